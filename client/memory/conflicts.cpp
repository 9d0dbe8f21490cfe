#include "conflicts.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "client/base/log.h"

namespace fargpu::client {
namespace {

// Apart from the rest, which takes memory: nearly every call asks, and has no conflict to tell.
constinit std::atomic<bool> any{false};

struct Noted {
  std::mutex mutex;
  std::string memory;  // the first one
};

Noted& noted() {
  static Noted* const instance = new Noted;  // never destroyed: late calls may still ask
  return *instance;
}

std::string taken() {
  const std::lock_guard lock(noted().mutex);
  any = false;
  const std::string memory = std::exchange(noted().memory, {});
  return (memory.empty() ? "memory" : memory) +
         " was changed by the program and by the GPU, each in a copy of its own; one of the changes is lost";
}

}  // namespace

void note_conflict(std::uint64_t address, const char* kind, std::uint64_t base, std::uint64_t bytes) noexcept {
  try {
    const std::string memory = fmt::format("the word at {:#x} in {} memory ", address, kind) +
                               (bytes > 0 ? fmt::format("of {} bytes at {:#x}", bytes, base) : "that was freed");
    const std::lock_guard lock(noted().mutex);
    if (!any) noted().memory = memory;
  } catch (...) {  // for the want of memory: told all the same
  }
  any = true;
}

CUresult tell_conflict(const char* call, CUresult result) noexcept {
  if (result != CUDA_SUCCESS || !any.load(std::memory_order_relaxed)) [[likely]]
    return result;
  try {
    log::error("{} returns CUDA_ERROR_NOT_SUPPORTED: {} (docs/reference/over-a-network.md)", call, taken());
  } catch (...) {}
  return CUDA_ERROR_NOT_SUPPORTED;
}

void tell_conflict_at_exit() noexcept {
  try {
    if (any) log::error("{} (docs/reference/over-a-network.md)", taken());
  } catch (...) {}
}

}  // namespace fargpu::client
