#include "memory_pool.h"

#include <algorithm>

#include "client/base/pages.h"

namespace fargpu::client {

void PoolChunks::take(std::uint64_t base, std::uint64_t bytes) {
  constexpr std::uint64_t chunk_bytes = 32u << 20, unit = 512;
  bytes = (bytes + unit - 1) / unit * unit;
  auto chunk = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& c) { return c.bytes - c.used >= bytes; });
  if (chunk == chunks_.end()) {
    chunk = chunks_.insert(chunk, {(bytes + chunk_bytes - 1) / chunk_bytes * chunk_bytes, 0});
    bytes_ += chunk->bytes;
  }
  chunk->used += bytes;
  allocations_[base] = {chunk, bytes};
}

void PoolChunks::give(std::uint64_t base) {
  const auto found = allocations_.find(base);
  if (found == allocations_.end()) return;
  found->second.chunk->used -= found->second.bytes;
  allocations_.erase(found);
}

void PoolChunks::release(std::uint64_t keep_bytes) {
  for (auto chunk = chunks_.end(); chunk != chunks_.begin() && bytes_ > keep_bytes;) {
    --chunk;
    if (chunk->used != 0 || bytes_ - chunk->bytes < keep_bytes) continue;
    bytes_ -= chunk->bytes;
    chunk = chunks_.erase(chunk);
  }
}

void MemoryStore::keep(const Extent& extent) {
  kept.push_back(extent);
  kept_bytes += extent.bytes;
}

std::optional<MemoryStore::Extent> MemoryStore::take_kept(std::uint64_t wanted) {
  auto best = kept.end();
  for (auto it = kept.begin(); it != kept.end(); ++it) {
    if (it->bytes < wanted || it->bytes > wanted + wanted / 4) continue;
    if (best == kept.end() || it->bytes <= best->bytes)
      best = it;  // of equal ones the newest, which may be in the GPU's caches
  }
  if (best == kept.end()) return std::nullopt;
  const Extent extent = *best;
  kept_bytes -= extent.bytes;
  kept.erase(best);
  return extent;
}

std::optional<MemoryStore::Extent> MemoryStore::take_oldest() {
  if (kept.empty()) return std::nullopt;
  const Extent extent = kept.front();
  kept_bytes -= extent.bytes;
  kept.pop_front();
  return extent;
}

void MemoryStore::retire_arenas(bool all) {
  for (auto it = arenas.begin(); it != arenas.end();) {
    if (it->second.empty() && (all || arenas.size() > 1)) {
      keep({it->second.base(), it->second.bytes()});
      it = arenas.erase(it);
    } else {
      ++it;
    }
  }
  if (arenas.empty()) next_arena_bytes = 0;
}

std::shared_ptr<MemoryPool> MemoryPools::create(const CUmemPoolProps& properties) {
  auto pool = std::make_shared<MemoryPool>();
  pool->properties = properties;
  pool->host = properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  pool->device = pool->host ? pool_of_host : properties.location.id;
  const std::lock_guard lock(mutex_);
  pools_.emplace(pool->cuda(), pool);
  return pool;
}

std::shared_ptr<MemoryPool> MemoryPools::find(CUmemoryPool pool) const {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(pool);
  return found == pools_.end() ? nullptr : found->second;
}

bool MemoryPools::destroy(CUmemoryPool pool) {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return false;
  const int device = found->second->device;
  if (const auto own = defaults_.find(device); own != defaults_.end() && own->second == found->second) return false;
  if (const auto current = currents_.find(device); current != currents_.end() && current->second == found->second)
    currents_.erase(current);
  found->second->destroyed = true;
  pools_.erase(found);
  return true;
}

std::shared_ptr<MemoryPool> MemoryPools::default_locked(int device) {
  auto& pool = defaults_[device];
  if (!pool) {
    pool = std::make_shared<MemoryPool>();
    pool->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->host = device == pool_of_host;
    pool->properties.location = {.type = pool->host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                                 .id = pool->host ? 0 : device};
    pool->device = device;
    pools_.emplace(pool->cuda(), pool);
  }
  return pool;
}

std::shared_ptr<MemoryPool> MemoryPools::default_of(int device) {
  const std::lock_guard lock(mutex_);
  return default_locked(device);
}

std::shared_ptr<MemoryPool> MemoryPools::current_of(int device) {
  const std::lock_guard lock(mutex_);
  const auto current = currents_.find(device);
  return current == currents_.end() ? default_locked(device) : current->second;
}

void MemoryPools::set_current(int device, std::shared_ptr<MemoryPool> pool) {
  const std::lock_guard lock(mutex_);
  currents_[device] = std::move(pool);
}

std::shared_ptr<MemoryPool> MemoryPools::managed_of(int device) {
  const std::lock_guard lock(mutex_);
  auto& pool = managed_[device];
  if (!pool) {
    pool = std::make_shared<MemoryPool>();
    pool->device = device;
    pool->managed = pool->hidden = true;
    pool->alignment = page_bytes;  // no page of the client has two owners
  }
  return pool;
}

std::shared_ptr<MemoryPool> MemoryPools::graph_of(int device) {
  const std::lock_guard lock(mutex_);
  auto& pool = graph_[device];
  if (!pool) {
    pool = std::make_shared<MemoryPool>();
    pool->device = device;
    pool->hidden = true;
    pool->release_threshold = UINT64_MAX;  // until cuDeviceGraphMemTrim
  }
  return pool;
}

std::vector<std::shared_ptr<MemoryPool>> MemoryPools::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<MemoryPool>> all;
  for (const auto& [handle, pool] : pools_) all.push_back(pool);
  for (const auto* hidden : {&managed_, &graph_})
    for (const auto& [device, pool] : *hidden) all.push_back(pool);
  return all;
}

}  // namespace fargpu::client
