#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace fargpu::softgpu {

using DeviceAddress = uint64_t;

inline constexpr uint64_t small_page_bytes = 4096;
inline constexpr uint64_t large_page_bytes = uint64_t{2} << 20;
inline constexpr int device_address_bits = 48;

enum class Access : uint8_t { none = 0, read = 1, read_write = 3 };

/// Where a device address is kept on the host, and for which piece around it that holds.
struct Translation {
  std::byte* host = nullptr;  // of the address asked for; null if there is no such access
  DeviceAddress page_begin = 0;
  uint64_t page_bytes = 0;
};

/// Maps device addresses to host memory for one device, as the page table of a GPU does: pages of
/// 2 MiB, split into pages of 4 KiB where a mapping is not a multiple of that. Device addresses are
/// never used as host addresses, so they may coincide with mappings of anybody in the process.
///
/// Lookups take no lock and may run beside changes; changes lock each other out. The tables live
/// until the page table is destroyed.
class PageTable {
 public:
  PageTable();
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  /// Maps [address, address + bytes) to host memory; all three are multiples of 4 KiB.
  void map(DeviceAddress address, std::byte* host, uint64_t bytes, Access access);
  void unmap(DeviceAddress address, uint64_t bytes);

  Translation find(DeviceAddress address, Access wanted) const;

  /// Changes whenever a mapping or a right was taken away, so that cached translations from
  /// before must be dropped.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  static constexpr int large_page_bits = 21;
  static constexpr int leaf_bits = 14;  // one leaf covers 32 GiB
  static constexpr size_t leaf_count = size_t{1} << (device_address_bits - large_page_bits - leaf_bits);
  static constexpr size_t small_pages = large_page_bytes / small_page_bytes;

  // A host address of at least page alignment with the rights in its low bits; zero if unmapped.
  // With the bit `is_split` it points to a SmallPages instead.
  using Entry = std::atomic<uint64_t>;
  static constexpr uint64_t right_bits = 3;
  static constexpr uint64_t is_split = 4;
  static constexpr uint64_t flag_bits = small_page_bytes - 1;

  struct Leaf {
    std::array<Entry, size_t{1} << leaf_bits> entries{};
  };
  // Aligned so that the flag bits of an entry that points to one are free.
  struct alignas(small_page_bytes) SmallPages {
    std::array<Entry, small_pages> entries{};
  };

  Entry& large_entry(DeviceAddress address);
  Entry& small_entry(DeviceAddress address);
  void set_range(DeviceAddress address, uint64_t first_value, bool is_mapped, uint64_t bytes);

  std::mutex mutex_;
  std::unique_ptr<std::atomic<Leaf*>[]> leaves_;
  std::atomic<uint64_t> generation_{1};
};

}  // namespace fargpu::softgpu
