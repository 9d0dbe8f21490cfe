#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "memory/shared_use.h"

namespace fargpu::softgpu {

/// How much of a device's memory is in use.
class MemoryAccount {
 public:
  /// `shared`: what other processes use too of the hardware's device of this number; null for none.
  explicit MemoryAccount(uint64_t total_bytes, std::shared_ptr<SharedUse> shared = nullptr, int device = 0)
      : total_bytes_(total_bytes), shared_(std::move(shared)), device_(device) {}
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes() const;
  bool try_charge(uint64_t bytes);
  void release(uint64_t bytes);

 private:
  const uint64_t total_bytes_;
  const std::shared_ptr<SharedUse> shared_;
  const int device_;
  std::atomic<uint64_t> used_bytes_{0};
};

/// A piece of a device's memory, kept in host memory that costs nothing until it is touched.
class PhysicalMemory {
 public:
  enum class Sharing : uint8_t { private_memory, file };

  /// Null if the account, or the host, has no room. With Sharing::file other processes can map
  /// it too, through file().
  static std::shared_ptr<PhysicalMemory> create(std::shared_ptr<MemoryAccount> account, uint64_t bytes,
                                                Sharing sharing);
  /// Memory that another process made. It is in that process's account, as a device has it once
  /// however many processes map it. Takes no ownership of the descriptor. Null if it is no such file.
  static std::shared_ptr<PhysicalMemory> import(int file);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  std::byte* host() const { return host_; }
  uint64_t bytes() const { return bytes_; }
  /// A descriptor of the file behind it, or -1.
  int file() const { return file_; }

 private:
  PhysicalMemory(std::shared_ptr<MemoryAccount> account, std::byte* host, uint64_t bytes, int file)
      : account_(std::move(account)), host_(host), bytes_(bytes), file_(file) {}

  std::shared_ptr<MemoryAccount> account_;  // null: another process's
  std::byte* host_;
  uint64_t bytes_;
  int file_;
};

}  // namespace fargpu::softgpu
