#pragma once
// Words that the program and the GPU have both changed where each has memory of its own: one of the changes is lost,
// which the program is told.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "symbols.h"

namespace fargpu::client {

class MemoryMap;

/// Threads: any.
class Conflicts {
 public:
  explicit Conflicts(const MemoryMap& map) : map_(map) {}

  /// A word at this address was changed by both.
  void note(std::uint64_t address) noexcept;
  /// What a call returns that would return `result`: an error, which a line explains, if something was noted since the
  /// last one.
  CUresult tell(Symbol call, CUresult result) {
    return any_.load(std::memory_order_relaxed) && result == CUDA_SUCCESS ? told(call) : result;
  }
  /// The program ends without another call.
  void tell_at_exit() noexcept;

 private:
  CUresult told(Symbol call);
  std::string taken();

  const MemoryMap& map_;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::string text_;  // of the first one
};

}  // namespace fargpu::client
