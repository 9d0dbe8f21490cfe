#include "host_pool.h"

#include <algorithm>

#include "client/base/job_thread.h"
#include "client/call/calls.h"
#include "client/objects/contexts.h"
#include "client/objects/thread.h"
#include "client/stream/fences.h"
#include "client/stream/settler.h"
#include "host_memory.h"
#include "memory_map.h"

namespace fargpu::client {
namespace {

constexpr std::uint64_t page_bytes = 4096;  // no two allocations share one

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

}  // namespace

CUresult HostPools::allocate(Thread& thread, Context& context, const std::shared_ptr<MemoryPool>& pool,
                             std::uint64_t bytes, std::uint64_t& address) {
  Context& home = parts_.contexts.home(context);
  const std::uint64_t whole = round_up(bytes);
  if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t most = pool->properties.maxSize;
    if (const auto kept = take_kept(*pool, home, whole)) address = *kept;
    else if (most != 0 && pool->usage.reserved + whole > round_up(most)) return CUDA_ERROR_OUT_OF_MEMORY;
    else address = 0;
  }
  const bool fresh = address == 0;
  if (fresh) {
    void* memory = nullptr;
    const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if (const CUresult bad = parts_.host_memory.allocate(thread, home, whole, flags, &memory); bad != CUDA_SUCCESS)
      return bad;
    address = reinterpret_cast<std::uint64_t>(memory);
  }
  parts_.map.update(address, [&](Region& region) { region.pool = pool->cuda(); });
  const std::lock_guard lock(mutex_);
  blocks_[address] = {pool, whole, &home};
  PoolUsage& usage = pool->usage;
  if (fresh) usage.reserved += whole;
  usage.used += whole;
  usage.used_high = std::max(usage.used_high, usage.used);
  usage.reserved_high = std::max(usage.reserved_high, usage.reserved);
  return CUDA_SUCCESS;
}

std::optional<std::uint64_t> HostPools::take_kept(const MemoryPool& pool, const Context& context, std::uint64_t bytes) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.pool == &pool && kept.block.bytes == bytes && kept.block.context == &context;
  });
  if (found == kept_.end()) return std::nullopt;
  const std::uint64_t base = found->base;
  kept_.erase(found);
  return base;
}

bool HostPools::knows(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return blocks_.contains(address);
}

CUresult HostPools::free(Thread& thread, std::uint64_t address, Stream* stream) {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return CUDA_ERROR_INVALID_VALUE;
    block = std::move(found->second);
    blocks_.erase(found);
    block.pool->usage.used -= block.bytes;
  }
  CUresult result = CUDA_SUCCESS;
  if (!stream && !parts_.contexts.idle()) result = parts_.waits.settle(thread, *parts_.map.find(address)->context);
  if (!stream || parts_.contexts.idle()) {
    passed(address, block);
  } else {
    parts_.fences.after(thread, *stream, [this, address, block] { passed(address, block); });
  }
  return result;
}

// On whichever thread hears of it.
void HostPools::passed(std::uint64_t address, const Block& block) {
  {
    const std::lock_guard lock(mutex_);
    if (!parts_.map.find(address)) return;  // gone with its context
    if (!block.pool->destroyed && block.pool->usage.reserved <= block.pool->release_threshold) {
      kept_.push_back({block.pool.get(), address, block});
      return;
    }
    block.pool->usage.reserved -= block.bytes;
  }
  parts_.answers.run([this, address] {
    try {
      parts_.host_memory.discard(Thread::current(), address);
    } catch (const std::exception& error) {
      lose_for(parts_.calls.events, error.what());
    }
  });
}

void HostPools::trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes) {
  std::vector<std::uint64_t> given;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&](const Kept& kept) {
      if (kept.pool != &pool || pool.usage.reserved <= keep_bytes) return false;
      pool.usage.reserved -= kept.block.bytes;
      given.push_back(kept.base);
      return true;
    });
  }
  for (const std::uint64_t address : given) parts_.host_memory.discard(thread, address);
}

PoolUsage HostPools::usage(const MemoryPool& pool) const {
  const std::lock_guard lock(mutex_);
  return pool.usage;
}

void HostPools::reset_high(MemoryPool& pool, bool reserved) {
  const std::lock_guard lock(mutex_);
  if (reserved) pool.usage.reserved_high = pool.usage.reserved;
  else pool.usage.used_high = pool.usage.used;
}

void HostPools::context_closed(const Context& context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [&](const auto& entry) {
    const Block& block = entry.second;
    if (block.context != &context) return false;
    block.pool->usage.used -= block.bytes;
    block.pool->usage.reserved -= block.bytes;
    return true;
  });
  std::erase_if(kept_, [&](const Kept& kept) {
    if (kept.block.context != &context) return false;
    kept.block.pool->usage.reserved -= kept.block.bytes;
    return true;
  });
}

}  // namespace fargpu::client
