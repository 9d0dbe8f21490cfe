#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memory/page_table.h"

namespace fargpu::softgpu {

// Windows of the generic address space (PTX ISA 6.4.1.1): the bits above a device address tell
// the space. A shared address within a cluster names the block in its bits from 24 up: zero for
// the executing block itself, else the rank in the cluster plus one.
inline constexpr int window_shift = 48;
enum class Window : uint64_t { global = 0, shared = 1, local = 2, param = 3, code = 4 };
inline constexpr uint64_t window_base(Window window) { return static_cast<uint64_t>(window) << window_shift; }
inline constexpr int cluster_rank_shift = 24;

/// Shared memory below this offset belongs to the system, as on compute capability 9.0.
inline constexpr uint32_t reserved_shared_bytes = 1024;

/// Translations that a block used lately.
class TranslationCache {
 public:
  struct Entry {
    DeviceAddress begin = 1;  // never a page
    uint64_t bytes = 0;
    std::byte* host = nullptr;  // of `begin`
    bool covers(DeviceAddress address) const { return (address & ~(bytes - 1)) == begin; }
  };

  void clear() { entries_.fill({}); }

  /// Null if the device has no such access there.
  const Entry* find(const PageTable& table, DeviceAddress address, Access access) {
    Entry& entry = entries_[(address >> 21) % entries_.size()];
    if (entry.bytes != 0 && entry.covers(address)) return &entry;
    Translation found = table.find(address, access);
    if (found.host == nullptr) return nullptr;
    entry = {found.page_begin, found.page_bytes, found.host - (address - found.page_begin)};
    return &entry;
  }

 private:
  std::array<Entry, 16> entries_;
};

/// What a block of threads sees as memory, apart from the local memory of its warps.
struct MemoryView {
  const PageTable* page_table = nullptr;
  TranslationCache reads;
  TranslationCache writes;
  uint64_t generation = 0;

  std::byte* shared = nullptr;
  uint32_t shared_bytes = 0;
  const std::byte* parameters = nullptr;
  uint32_t parameter_bytes = 0;

  /// Drops cached translations if a mapping was taken away since they were made.
  void refresh() {
    uint64_t current = page_table->generation();
    if (current == generation) return;
    generation = current;
    reads.clear();
    writes.clear();
  }
};

}  // namespace fargpu::softgpu
