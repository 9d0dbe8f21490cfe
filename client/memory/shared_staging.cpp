#include "shared_staging.h"

#include <algorithm>
#include <array>

#include "client/base/pages.h"
#include "client/call/calls.h"
#include "client/objects/stream.h"
#include "host_memory.h"

namespace fargpu::client {

/// Of one context.
struct SharedStaging::Memory {
  Memory(HostMemory& owner, const Context& of) : host_memory(owner), context(&of) {}
  ~Memory() {
    if (base != 0) host_memory.unshare(base, slots * slot_bytes);
  }

  HostMemory& host_memory;
  const Context* const context;
  std::uint64_t base = 0;                                 // 0: there is no room for it
  std::array<std::atomic<std::uint64_t>, slots> taken{};  // by which stream; 0: free
};

SharedStaging::Slot::Slot(std::shared_ptr<Memory> memory, std::size_t number)
    : memory_(std::move(memory)), number_(number) {}
SharedStaging::Slot::~Slot() { memory_->taken[number_].store(0, std::memory_order_release); }
std::uint64_t SharedStaging::Slot::address() const { return memory_->base + number_ * slot_bytes; }

std::uint64_t SharedStaging::part_bytes(std::uint64_t bytes) {
  return std::clamp(round_up(bytes / slots), gains_bytes / 2, slot_bytes);
}

std::shared_ptr<SharedStaging::Memory> SharedStaging::memory_of(Thread& thread, Context& context) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(memories_.begin(), memories_.end(), [&](const auto& memory) { return memory->context == &context; });
  if (found != memories_.end()) return *found;
  auto memory = std::make_shared<Memory>(host_memory_, context);
  std::uint64_t base;
  if (host_memory_.share(thread, context, slots * slot_bytes, base) == CUDA_SUCCESS) memory->base = base;
  memories_.push_back(memory);
  return memory;
}

std::shared_ptr<SharedStaging::Slot> SharedStaging::take(Thread& thread, Context& context, const Stream& stream,
                                                         bool wait) {
  const std::shared_ptr<Memory> memory = memory_of(thread, context);
  if (memory->base == 0) return nullptr;
  std::shared_ptr<Slot> slot;
  const auto found = [&] {
    for (std::size_t i = 0; !slot && i < slots; ++i)
      if (std::uint64_t nobody = 0;
          memory->taken[i].compare_exchange_strong(nobody, stream.wire(), std::memory_order_acquire))
        slot = std::make_shared<Slot>(memory, i);
    return slot != nullptr;
  };
  const auto has_some = [&] {
    return std::any_of(memory->taken.begin(), memory->taken.end(),
                       [&](const auto& taken) { return taken.load() == stream.wire(); });
  };
  if (found() || !wait) return slot;
  calls_.commands.flush();
  calls_.receiver.wait_until([&] { return found() || !has_some(); });
  return slot;
}

void SharedStaging::context_closed(const Context& context) {
  const std::lock_guard lock(mutex_);
  memories_.remove_if([&](const auto& memory) { return memory->context == &context; });
}

}  // namespace fargpu::client
