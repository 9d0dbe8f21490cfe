#include "conflicts.h"

#include <utility>

#include "client/base/log.h"
#include "cuda_facts.h"
#include "memory_map.h"

namespace fargpu::client {
namespace {

const char* name_of(const Region& region) {
  if (region.managed()) return "managed memory";
  return region.kind == Region::Kind::registered ? "registered memory" : "pinned memory";
}

std::string describe(const MemoryMap& map, std::uint64_t address) {
  auto region = map.find(address);
  if (region && region->kind == Region::Kind::alias) region = map.find(region->owner);
  if (!region) return fmt::format("the memory at {:#x}", address);
  return fmt::format("the word at {:#x} in {} of {} bytes at {:#x}", address, name_of(*region), region->bytes,
                     region->base);
}

}  // namespace

void Conflicts::note(std::uint64_t address) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (!any_) text_ = describe(map_, address);
    any_ = true;
  } catch (...) {  // for the want of memory: told all the same
    any_ = true;
  }
}

std::string Conflicts::taken() {
  const std::lock_guard lock(mutex_);
  any_ = false;
  return std::exchange(text_, {}) +
         " was changed by the program and by the GPU at the same time, and one of the changes is lost: over a network "
         "each has its own copy (docs/reference/over-a-network.md)";
}

CUresult Conflicts::told(Symbol call) {
  log::error("{} returns CUDA_ERROR_NOT_SUPPORTED: {}", facts_of(call).name, taken());
  return CUDA_ERROR_NOT_SUPPORTED;
}

void Conflicts::tell_at_exit() noexcept {
  try {
    if (any_) log::error("{}", taken());
  } catch (...) {}
}

}  // namespace fargpu::client
