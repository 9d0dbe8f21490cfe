#include "host_pool.h"

#include <algorithm>
#include <exception>

#include "client/base/job_thread.h"
#include "client/base/pages.h"
#include "client/call/calls.h"
#include "client/objects/contexts.h"
#include "client/objects/thread.h"
#include "client/stream/fences.h"
#include "client/stream/settler.h"
#include "device_memory.h"
#include "host_memory.h"
#include "memory_map.h"

namespace fargpu::client {

CUresult HostPools::allocate(Thread& thread, Context& context, const std::shared_ptr<MemoryPool>& pool,
                             std::uint64_t bytes, std::uint64_t& address) {
  Context& home = parts_.contexts.home(context);
  Block block{pool, 0, round_up(bytes), 0, &home};  // no two allocations share a page
  if (block.bytes < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    // What is made counts from here on, so that several threads together keep to the pool's bound.
    const std::lock_guard lock(mutex_);
    const std::uint64_t most = pool->properties.maxSize;
    if (const auto kept = take_kept(*pool, home, block.bytes)) block = *kept;
    else if (most != 0 && pool->usage.reserved + block.bytes > round_up(most)) return CUDA_ERROR_OUT_OF_MEMORY;
    else pool->usage.reserved += block.bytes;
    if (!kept_.empty() && pool->usage.reserved > pool->release_threshold) parts_.device_memory.look_at_thresholds();
  }
  if (block.base == 0) {
    if (const CUresult bad = pin(thread, home, block.bytes, block.base); bad != CUDA_SUCCESS) {
      const std::lock_guard lock(mutex_);
      pool->usage.reserved -= block.bytes;
      return bad;
    }
    parts_.map.update(block.base, [&](Region& region) {
      region.pool = pool->cuda();
      block.buffer_id = region.buffer_id;
    });
  }
  address = block.base;
  const std::lock_guard lock(mutex_);
  blocks_[address] = block;
  PoolUsage& usage = pool->usage;
  usage.used += block.bytes;
  usage.used_high = std::max(usage.used_high, usage.used);
  usage.reserved_high = std::max(usage.reserved_high, usage.reserved);
  return CUDA_SUCCESS;
}

// What is kept for reuse may be what is missing.
CUresult HostPools::pin(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& base) {
  const unsigned flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  void* memory = nullptr;
  CUresult result = parts_.host_memory.allocate(thread, context, bytes, flags, &memory);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    std::vector<Block> unused;
    {
      const std::lock_guard lock(mutex_);
      unused.swap(kept_);
      for (const Block& block : unused) block.pool->usage.reserved -= block.bytes;
    }
    if (unused.empty()) return result;
    give_back(thread, unused);
    result = parts_.host_memory.allocate(thread, context, bytes, flags, &memory);
  }
  base = reinterpret_cast<std::uint64_t>(memory);
  return result;
}

std::optional<HostPools::Block> HostPools::take_kept(const MemoryPool& pool, const Context& context,
                                                     std::uint64_t bytes) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Block& kept) {
    return kept.pool.get() == &pool && kept.bytes == bytes && kept.context == &context;
  });
  if (found == kept_.end()) return std::nullopt;
  const Block block = *found;
  kept_.erase(found);
  return block;
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
    block = found->second;
    blocks_.erase(found);
    block.pool->usage.used -= block.bytes;
    leaving_.push_back(block);
  }
  CUresult result = CUDA_SUCCESS;
  if (!stream && !parts_.contexts.idle()) result = parts_.waits.settle(thread, *block.context);
  if (!stream || parts_.contexts.idle()) passed(block);
  else parts_.fences.after(thread, *stream, [this, block] { passed(block); });
  return result;
}

// On whichever thread hears of it, which may be the one that receives, and which sends nothing.
void HostPools::passed(const Block& block) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(leaving_.begin(), leaving_.end(),
                                    [&](const Block& one) { return one.buffer_id == block.buffer_id; });
    if (found == leaving_.end()) return;  // gone with its context
    leaving_.erase(found);
    if (!block.pool->destroyed && block.pool->usage.reserved <= block.pool->release_threshold) {
      kept_.push_back(block);
      return;
    }
    block.pool->usage.reserved -= block.bytes;
  }
  parts_.answers.run([this, block] {
    try {
      give_back(Thread::current(), {block});
    } catch (const std::exception& error) {
      lose_for(parts_.calls.events, error.what());
    }
  });
}

void HostPools::give_back(Thread& thread, const std::vector<Block>& blocks) {
  for (const Block& block : blocks) parts_.host_memory.discard(thread, block.base, block.buffer_id, parts_.fences);
}

void HostPools::trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes) {
  std::vector<Block> given;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&](const Block& kept) {
      if (kept.pool.get() != &pool || pool.usage.reserved <= keep_bytes) return false;
      pool.usage.reserved -= kept.bytes;
      given.push_back(kept);
      return true;
    });
  }
  give_back(thread, given);
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
  for (std::vector<Block>* const freed : {&leaving_, &kept_}) {
    std::erase_if(*freed, [&](const Block& block) {
      if (block.context != &context) return false;
      block.pool->usage.reserved -= block.bytes;
      return true;
    });
  }
}

}  // namespace fargpu::client
