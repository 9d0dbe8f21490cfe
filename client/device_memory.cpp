#include "device_memory.h"

#include <algorithm>

#include "operations.capnp.h"
#include "remote_call.h"
#include "session.h"

namespace fargpu::client {
namespace {

constexpr std::uint64_t arena_bytes_max = 32u << 20;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

DeviceMemory::DeviceMemory(Session& session, std::uint64_t window_base, std::uint64_t window_bytes)
    : session_(session), window_(window_base, window_bytes) {}

CUresult DeviceMemory::allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address) {
  if (bytes > window_.bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t needed = round_up(bytes, alignment);
  Block block;
  const auto attempt = [&] {
    return needed <= small_bytes_max ? allocate_small(thread, context, needed, block)
                                     : allocate_large(thread, context, needed, block);
  };
  CUresult result = attempt();
  // What is kept for reuse, or still waits for the GPU, may be what is missing.
  if (result == CUDA_ERROR_OUT_OF_MEMORY && reclaim(thread, context)) result = attempt();
  if (result != CUDA_SUCCESS) return result;
  {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(block.base, block);
  }
  address = block.base;
  session_.map().add({.kind = Region::Kind::device,
                      .base = block.base,
                      .bytes = bytes,
                      .device = context.device,
                      .context = &context,
                      .buffer_id = session_.map().next_buffer_id()});
  return CUDA_SUCCESS;
}

bool DeviceMemory::take_small(Pool& pool, std::uint64_t bytes, Block& block) {
  for (auto& [base, arena] : pool.arenas) {
    if (const auto at = arena.take(bytes, alignment)) {
      block = {*at, bytes, base};
      return true;
    }
  }
  return false;
}

CUresult DeviceMemory::allocate_small(Thread& thread, Context& context, std::uint64_t bytes, Block& block) {
  std::uint64_t arena_bytes;
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = pools_[context.device];
    if (take_small(pool, bytes, block)) return CUDA_SUCCESS;
    arena_bytes = pool.next_arena_bytes;
    pool.next_arena_bytes = std::min(2 * arena_bytes, arena_bytes_max);
  }
  std::uint64_t base = 0;
  CUresult result = back(thread, context, arena_bytes, base);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && arena_bytes > granularity) {
    arena_bytes = granularity;
    result = back(thread, context, arena_bytes, base);
  }
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex_);
  AddressRanges& arena = pools_[context.device].arenas.emplace(base, AddressRanges(base, arena_bytes)).first->second;
  block = {*arena.take(bytes, alignment), bytes, base};
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::allocate_large(Thread& thread, Context& context, std::uint64_t bytes, Block& block) {
  const std::uint64_t extent_bytes = round_up(bytes, granularity);
  {
    // A kept extent of this size, or a little more, costs nothing.
    const std::lock_guard lock(mutex_);
    Pool& pool = pools_[context.device];
    auto best = pool.kept.end();
    for (auto it = pool.kept.begin(); it != pool.kept.end(); ++it) {
      if (it->bytes < extent_bytes || it->bytes > extent_bytes + extent_bytes / 4) continue;
      if (best == pool.kept.end() || it->bytes < best->bytes) best = it;
    }
    if (best != pool.kept.end()) {
      block = {best->base, best->bytes, 0};
      pool.kept_bytes -= best->bytes;
      pool.kept.erase(best);
      return CUDA_SUCCESS;
    }
  }
  std::uint64_t base = 0;
  const CUresult result = back(thread, context, extent_bytes, base);
  if (result == CUDA_SUCCESS) block = {base, extent_bytes, 0};
  return result;
}

// Has the worker put memory behind a new part of the window.
CUresult DeviceMemory::back(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = window_.take(bytes, granularity);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    base = *at;
  }
  RemoteCall<wire::BackMemory> call(thread, Opcode::backMemory, ContextNeed::none);
  call.in_context(&context);
  auto in = call.in();
  in.setAddress(base);
  in.setBytes(bytes);
  in.setDevice(session_.facts().devices[static_cast<std::size_t>(context.device)].worker_ordinal);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) unreserve(base, bytes);
  return result;
}

CUresult DeviceMemory::free(Thread& thread, std::uint64_t address, bool wait) {
  const auto region = session_.map().remove_if(address, [](const Region& r) { return r.kind == Region::Kind::device; });
  if (!region) return CUDA_ERROR_INVALID_VALUE;
  Context& context = *region->context;
  // Programs rely on cuMemFree as a synchronisation where results come to the host by themselves.
  CUresult outcome = CUDA_SUCCESS;
  if (wait && context.active && context.host_visible.load() > context.completed.load())
    outcome = session_.settle(thread, context);
  Block block;
  const bool passed = session_.idle();
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    block = found->second;
    blocks_.erase(found);
    if (!passed) ++waiting_;
  }
  const int device = region->device;
  if (passed) {
    give(device, block);
  } else {
    session_.fences().after_all(thread, [this, device, block] {
      {
        const std::lock_guard lock(mutex_);
        --waiting_;
      }
      give(device, block);
    });
  }
  std::vector<Extent> extents;
  {
    const std::lock_guard lock(mutex_);
    extents = surplus(pools_[device], kept_bytes_max);
  }
  release(thread, extents);
  return outcome;
}

void DeviceMemory::give(int device, const Block& block) {
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[device];
  if (block.arena == 0) {
    pool.kept.push_back({block.base, block.bytes});
    pool.kept_bytes += block.bytes;
    return;
  }
  const auto arena = pool.arenas.find(block.arena);
  arena->second.give(block.base, block.bytes);
  // An arena nobody uses becomes an extent like others, except the first, which the next allocation would want again.
  if (arena->second.empty() && pool.arenas.size() > 1) {
    pool.kept.push_back({arena->second.base(), arena->second.bytes()});
    pool.kept_bytes += arena->second.bytes();
    pool.arenas.erase(arena);
  }
}

std::vector<DeviceMemory::Extent> DeviceMemory::surplus(Pool& pool, std::uint64_t keep) {
  std::vector<Extent> extents;
  while (pool.kept_bytes > keep) {
    extents.push_back(pool.kept.front());
    pool.kept_bytes -= pool.kept.front().bytes;
    pool.kept.pop_front();
  }
  return extents;
}

void DeviceMemory::release(Thread& thread, const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    RemoteCall<wire::ReleaseMemory> call(thread, Opcode::releaseMemory, ContextNeed::none);
    auto in = call.in();
    in.setAddress(extent.base);
    in.setBytes(extent.bytes);
    call.tell();
    unreserve(extent.base, extent.bytes);
  }
}

// Gives everything back that is not in use, waiting for the GPU if it must. Returns whether there was anything.
bool DeviceMemory::reclaim(Thread& thread, Context& context) {
  bool waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = waiting_ > 0;
  }
  if (waiting) session_.settle(thread, context);
  return release_unused(thread, context.device) || waiting;
}

bool DeviceMemory::release_unused(Thread& thread, int device) {
  std::vector<Extent> extents;
  {
    const std::lock_guard lock(mutex_);
    Pool& pool = pools_[device];
    extents = surplus(pool, 0);
    for (auto it = pool.arenas.begin(); it != pool.arenas.end();) {
      if (it->second.empty()) {
        extents.push_back({it->second.base(), it->second.bytes()});
        it = pool.arenas.erase(it);
      } else {
        ++it;
      }
    }
  }
  release(thread, extents);
  return !extents.empty();
}

void DeviceMemory::context_closed(Thread& thread, Context& context) {
  for (const Region& region : session_.map().extract(
           [&](const Region& r) { return r.kind == Region::Kind::device && r.context == &context; })) {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(region.base);
      block = found->second;
      blocks_.erase(found);
    }
    give(region.device, block);
  }
  release_unused(thread, context.device);
}

std::uint64_t DeviceMemory::kept_bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(device);
  if (found == pools_.end()) return 0;
  std::uint64_t bytes = found->second.kept_bytes;
  for (const auto& [base, arena] : found->second.arenas) bytes += arena.free_bytes();
  return bytes;
}

std::optional<std::uint64_t> DeviceMemory::reserve(std::uint64_t bytes, std::uint64_t wanted_alignment,
                                                   std::uint64_t wish) {
  const std::lock_guard lock(mutex_);
  if (wish != 0 && wish % granularity == 0 && window_.take_at(wish, bytes)) return wish;
  return window_.take(bytes, std::max(wanted_alignment, granularity));
}

void DeviceMemory::unreserve(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  window_.give(address, bytes);
}

}  // namespace fargpu::client
