#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fargpu::softgpu {

/// How much of each device's memory the processes of a machine use, which share the devices as they
/// would share a real one: a file that each maps. A process has a slot there, by a lock on one of its
/// bytes, which ends with the process. What a slot without a lock says does not count.
class SharedUse {
 public:
  /// Null if the file cannot be had, or has no slot left; why is told on stderr.
  static std::shared_ptr<SharedUse> open(const std::string& path);
  ~SharedUse();
  SharedUse(const SharedUse&) = delete;
  SharedUse& operator=(const SharedUse&) = delete;

  /// False if all processes together would use more than this.
  bool try_charge(int device, uint64_t bytes, uint64_t total_bytes);
  void release(int device, uint64_t bytes) { own(device).fetch_sub(bytes); }
  uint64_t used(int device) const;

 private:
  using Counter = std::atomic<uint64_t>;
  SharedUse(int file, Counter* counters, size_t slot) : file_(file), counters_(counters), slot_(slot) {}
  Counter& own(int device) { return counters_[slot_ * devices_max + static_cast<size_t>(device)]; }
  void forget_dead();

  static constexpr size_t slots = 256, devices_max = 64;
  int file_;
  Counter* counters_;
  size_t slot_;
};

}  // namespace fargpu::softgpu
