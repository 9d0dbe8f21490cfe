#include "device_memory.h"

#include <algorithm>

#include "calls_vmm.capnp.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "client/base/pages.h"
#include "client/call/remote_call.h"
#include "client/connect/facts.h"
#include "client/objects/contexts.h"
#include "client/stream/fences.h"
#include "client/stream/settler.h"
#include "memory_map.h"

namespace fargpu::client {
namespace {

constexpr std::uint64_t arena_bytes_max = 32u << 20;
constexpr std::uint64_t alignment = 512;  // of every allocation, as the driver's own

}  // namespace

/// What comes unasked with a request that is under way. It is as good as there for other threads, which would else ask
/// for as much each.
class DeviceMemory::Coming {
 public:
  explicit Coming(DeviceMemory& owner) : owner_(owner) {}
  Coming(const Coming&) = delete;
  Coming& operator=(const Coming&) = delete;
  /// Under the lock.
  void begin(SpareMemory& memory, std::uint64_t bytes) {
    memory_ = &memory;
    bytes_ = bytes;
    memory.coming_bytes += bytes;
    ++owner_.sparing_;
  }
  /// Under the lock.
  void end() {
    if (!memory_) return;
    memory_->coming_bytes -= bytes_;
    memory_ = nullptr;
    if (--owner_.sparing_ == 0) owner_.spared_.notify_all();
  }
  ~Coming() {
    if (!memory_) return;
    const std::lock_guard lock(owner_.mutex_);
    end();
  }

 private:
  DeviceMemory& owner_;
  SpareMemory* memory_ = nullptr;
  std::uint64_t bytes_ = 0;
};

DeviceMemory::DeviceMemory(Parts parts, std::uint64_t window_base, std::uint64_t window_bytes)
    : parts_(std::move(parts)), window_(window_base, window_bytes) {}

CUresult DeviceMemory::allocate(Thread& thread, Context& context, std::uint64_t bytes, std::uint64_t& address,
                                const std::shared_ptr<MemoryPool>& pool, const Stream* stream) {
  const int device = pool ? pool->device : context.device;
  if (bytes > window_.bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t needed = round_up(bytes, pool ? pool->alignment : alignment);
  Block block;
  const auto attempt = [&] {
    return needed <= small_bytes_max ? allocate_small(thread, context, device, pool.get(), needed, block)
                                     : allocate_large(thread, context, device, pool.get(), needed, block);
  };
  if (!stream || !take_freed(*pool, *stream, needed, block)) {
    if (const CUresult result = with_room(thread, &context, device, attempt); result != CUDA_SUCCESS) return result;
  }
  block.pool = pool;
  block.asked_bytes = pool && pool->hidden ? block.bytes : bytes;
  {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(block.base, block);
    if (pool) {
      if (!pool->hidden) pool->chunks.take(block.base, bytes);
      pool->usage.used += block.asked_bytes;
      pool->usage.used_high = std::max(pool->usage.used_high, pool->usage.used);
      pool->usage.reserved_high = std::max(pool->usage.reserved_high, reserved_of(*pool));
    }
  }
  address = block.base;
  const bool managed = pool && pool->managed;
  parts_.map.add({.kind = managed ? Region::Kind::managed : Region::Kind::device,
                  .base = block.base,
                  .bytes = bytes,
                  .device = device,
                  .context = &context,
                  .buffer_id = parts_.map.next_buffer_id(),
                  .pool = pool && !pool->hidden ? pool->cuda() : nullptr,
                  .handle_types = pool ? static_cast<unsigned>(pool->properties.handleTypes) : 0u});
  return CUDA_SUCCESS;
}

// The newest block of a fitting size that was freed on the same stream: what uses it next comes after what used it
// before.
bool DeviceMemory::take_freed(MemoryPool& pool, const Stream& stream, std::uint64_t bytes, Block& block) {
  const bool small = bytes <= small_bytes_max;
  const std::uint64_t extent_bytes = round_up(bytes, granularity);
  const std::lock_guard lock(mutex_);
  for (auto it = pool.freed.rbegin(); it != pool.freed.rend(); ++it) {
    if (it->stream != stream.wire() || it->context != stream.context || shared(pool.store, it->base, it->arena))
      continue;
    if (small ? it->bytes != bytes
              : it->arena != 0 || it->bytes < extent_bytes || it->bytes > extent_bytes + extent_bytes / 4)
      continue;
    block = {it->base, it->bytes, it->arena, nullptr};
    pool.chunks.give(it->base);
    pool.freed.erase(std::next(it).base());
    --waiting_;
    return true;
  }
  return false;
}

CUresult DeviceMemory::allocate_small(Thread& thread, Context& context, int device, MemoryPool* pool,
                                      std::uint64_t bytes, Block& block) {
  Extent arena;
  {
    const std::lock_guard lock(mutex_);
    MemoryStore& store = store_of(device, pool);
    for (auto& [base, there] : store.arenas) {
      if (const auto at = there.take(bytes, pool ? pool->alignment : alignment)) {
        block = {*at, bytes, base, nullptr};
        return CUDA_SUCCESS;
      }
    }
    arena.bytes = std::max(store.next_arena_bytes, granularity);
    store.next_arena_bytes = std::min(2 * arena.bytes, arena_bytes_max);
  }
  CUresult result = back(thread, context, device, pool, arena);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && arena.bytes > granularity) {
    arena.bytes = granularity;
    result = back(thread, context, device, pool, arena);
  }
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(mutex_);
  AddressRanges& ranges =
      store_of(device, pool).arenas.emplace(arena.base, AddressRanges(arena.base, arena.bytes)).first->second;
  block = {*ranges.take(bytes, pool ? pool->alignment : alignment), bytes, arena.base, nullptr};
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::allocate_large(Thread& thread, Context& context, int device, MemoryPool* pool,
                                      std::uint64_t bytes, Block& block) {
  Extent extent{0, round_up(bytes, granularity)};
  const CUresult result = back(thread, context, device, pool, extent);
  if (result == CUDA_SUCCESS) block = {extent.base, extent.bytes, 0, nullptr};
  return result;
}

// An extent of this size or a little more: a kept one, or a new part of the window behind which the worker puts memory.
CUresult DeviceMemory::back(Thread& thread, Context& context, int device, MemoryPool* pool, Extent& extent) {
  std::uint32_t spares = 0;
  Coming coming(*this);
  {
    const std::lock_guard lock(mutex_);
    MemoryStore& store = store_of(device, pool);
    if (const auto kept = store.take_kept(extent.bytes)) {
      extent = *kept;
      return CUDA_SUCCESS;
    }
    if (pool && pool->properties.maxSize != 0 &&
        store.bytes + extent.bytes > round_up(pool->properties.maxSize, granularity))
      return CUDA_ERROR_OUT_OF_MEMORY;
    if (const auto kept = pool ? stores_[device].take_kept(extent.bytes) : std::nullopt) {
      extent = *kept;
      stores_[device].bytes -= extent.bytes;
      store.bytes += extent.bytes;
      return CUDA_SUCCESS;
    }
    if (!pool) spares = spares_for(device, store, extent.bytes);
    auto at = window_.take((1 + spares) * extent.bytes, granularity);
    if (!at && spares > 0) at = window_.take(extent.bytes, granularity), spares = 0;
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    extent.base = *at;
    if (spares > 0) coming.begin(store, spares * extent.bytes);
  }
  RemoteCall<wire::BackMemory> call(thread, &context);
  auto in = call.in();
  in.setAddress(extent.base);
  in.setBytes(extent.bytes);
  in.setDevice(parts_.facts.at(device).worker_ordinal);
  in.setSpares(spares);
  const CUresult result = call.wait();
  const std::lock_guard lock(mutex_);
  coming.end();
  std::uint32_t backed = 0;
  if (result == CUDA_SUCCESS) {
    physical_.set_plenty(device, false);  // until the worker says again that there is
    MemoryStore& store = store_of(device, pool);
    store.bytes += extent.bytes;
    backed = 1 + std::min(call.out().getSpares(), spares);
    for (std::uint32_t i = 1; i < backed; ++i) {
      store.keep({extent.base + i * extent.bytes, extent.bytes});
      store.bytes += extent.bytes;
    }
  }
  if (backed <= spares) window_.give(extent.base + backed * extent.bytes, (1 + spares - backed) * extent.bytes);
  return result;
}

// A program that takes piece after piece of one size is about to take more: they come with what it asks for, a few at
// first, and no more than a part of what it has. What nobody comes to want goes back with what is freed, as soon as
// more than kept_bytes_max is kept.
std::uint32_t DeviceMemory::spares_for(int device, SpareMemory& memory, std::uint64_t bytes) const {
  if (shortages_ > 0 || scarce_.contains(device)) return 0;
  const std::uint64_t room = std::clamp(memory.bytes / 4, spare_bytes_min, spare_bytes_max);
  const std::uint64_t taken = memory.kept_bytes + memory.coming_bytes;
  const unsigned asked = memory.asked[bytes]++;
  const std::uint32_t wanted = asked == 0 ? 0 : (1u << std::min(asked, 30u)) - 1;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>({wanted, limits::spares_max, (room - std::min(room, taken)) / bytes}));
}

CUresult DeviceMemory::free(Thread& thread, std::uint64_t address, Stream* stream, bool noticed) {
  auto region = parts_.map.remove_if(address, [](const Region& r) { return r.allocated() && !r.managed(); });
  const bool managed = !region;
  if (managed) region = parts_.map.find(address);
  if (!region || region->base != address || !region->allocated()) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = region->context;
  // Until the wait is over managed memory is there: functions of the program may use it.
  CUresult outcome = CUDA_SUCCESS;
  if (!stream && context && context->active && (managed || noticed)) outcome = parts_.waits.settle(thread, *context);
  if (managed) {
    if (!parts_.map.remove_if(address, [&](const Region& r) { return r.buffer_id == region->buffer_id; }))
      return CUDA_ERROR_INVALID_VALUE;  // another thread has freed it meanwhile
    parts_.managed_dropped(address);
  }
  free_block(thread, address, region->device, stream, /*waits=*/!stream && !managed && !noticed);
  return outcome;
}

void DeviceMemory::discard(Thread& thread, std::uint64_t address) {
  const auto region = parts_.map.remove_if(address, [](const Region& r) { return r.allocated(); });
  if (region) free_block(thread, address, region->device, nullptr, /*waits=*/false);
}

void DeviceMemory::free_block(Thread& thread, std::uint64_t address, int device, Stream* stream, bool waits) {
  const Block block = take_block(address);
  if (parts_.contexts.idle()) {
    const std::lock_guard lock(mutex_);
    give(device, block);
  } else {
    give_later(thread, device, block, stream, waits);
  }
  release_surplus(thread, device);
}

DeviceMemory::Block DeviceMemory::take_block(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  Block block = std::move(found->second);
  blocks_.erase(found);
  if (block.pool) block.pool->usage.used -= block.asked_bytes;
  return block;
}

// A block of no pool may have been used on any stream.
void DeviceMemory::give_later(Thread& thread, int device, const Block& block, Stream* stream, bool waits) {
  std::uint64_t serial = 0;
  {
    const std::lock_guard lock(mutex_);
    ++waiting_;
    if (waits) ++freeing_;
    else if (!stream && !block.pool) freed_bytes_[device] += block.bytes;
    if (stream && block.pool) {
      serial = block.pool->next_serial++;
      block.pool->freed.push_back({serial, stream->context, stream->wire(), block.base, block.bytes, block.arena});
    }
  }
  if (serial == 0) {
    parts_.fences.after_all(thread, [this, device, block, waits, freed = !stream && !block.pool] {
      const std::lock_guard lock(mutex_);
      --waiting_;
      if (waits) {
        --freeing_;
        ++frees_done_;
      } else if (freed) {
        freed_bytes_[device] -= block.bytes;
      }
      give(device, block);
    });
    return;
  }
  parts_.fences.after(thread, *stream, [this, device, block, serial] {
    const std::lock_guard lock(mutex_);
    if (std::erase_if(block.pool->freed, [&](const MemoryPool::Freed& freed) { return freed.serial == serial; }) == 0)
      return;  // used again on its stream
    --waiting_;
    give(device, block);
  });
}

// Under the lock.
void DeviceMemory::give(int device, const Block& block) {
  MemoryStore& store = store_of(device, block.pool.get());
  if (shared(store, block.base, block.arena)) {
    if (block.arena == 0) {
      shared_.erase(block.base);
      doom(device, store, {block.base, block.bytes});
    } else if (AddressRanges& arena = store.sealed.at(block.arena);
               arena.give(block.base, block.bytes), arena.empty()) {
      doom(device, store, {arena.base(), arena.bytes()});
      store.sealed.erase(block.arena);
    }
  } else if (block.arena == 0) {
    store.keep({block.base, block.bytes});
  } else {
    store.arenas.find(block.arena)->second.give(block.base, block.bytes);
    // The first arena stays: the next allocation would want it again.
    store.retire_arenas(/*all=*/false);
  }
  if (!block.pool) return;
  block.pool->chunks.give(block.base);
  if (block.pool->destroyed) {
    shrink(*block.pool, 0);
    if (store.bytes == 0) parts_.pool_over(block.pool);
  } else if (std::max(store.bytes, block.pool->chunks.bytes()) > block.pool->release_threshold) {
    pools_above_threshold_ = true;
  }
}

// A pool gives unused memory to its device's own store while it has more than this. Under the lock.
void DeviceMemory::shrink(MemoryPool& pool, std::uint64_t keep_bytes) {
  pool.chunks.release(keep_bytes);
  if (pool.store.bytes <= keep_bytes) return;
  pool.store.retire_arenas(/*all=*/true);
  MemoryStore& device_store = stores_[pool.device];
  while (pool.store.bytes > keep_bytes) {
    const auto extent = pool.store.take_oldest();
    if (!extent) return;
    pool.store.bytes -= extent->bytes;
    device_store.bytes += extent->bytes;
    device_store.keep(*extent);
  }
}

void DeviceMemory::trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes) {
  {
    const std::lock_guard lock(mutex_);
    shrink(pool, keep_bytes);
  }
  release_surplus(thread, pool.device);
}

void DeviceMemory::synchronized(Thread& thread) {
  if (!pools_above_threshold_.load(std::memory_order_relaxed) || !pools_above_threshold_.exchange(false)) return;
  for (const auto& pool : pools_.all()) {
    if (pool->host) parts_.trim_in_host(thread, *pool);
    else trim(thread, *pool, pool->release_threshold);
  }
}

bool DeviceMemory::is_over(const MemoryPool& pool) const {
  const std::lock_guard lock(mutex_);
  return pool.store.bytes == 0;
}

PoolUsage DeviceMemory::usage(const MemoryPool& pool) const {
  const std::lock_guard lock(mutex_);
  PoolUsage usage = pool.usage;
  usage.reserved = reserved_of(pool);
  return usage;
}

void DeviceMemory::reset_high(MemoryPool& pool, bool reserved) {
  const std::lock_guard lock(mutex_);
  if (reserved) {
    pool.usage.reserved_high = reserved_of(pool);
  } else {
    pool.usage.used_high = pool.usage.used;
  }
}

void DeviceMemory::release_surplus(Thread& thread, int device) {
  std::vector<Extent> extents;
  {
    const std::lock_guard lock(mutex_);
    MemoryStore& store = stores_[device];
    extents.swap(doomed_[device]);
    while (store.kept_bytes > kept_bytes_max) extents.push_back(*store.take_oldest());
    if (!extents.empty()) scarce_.erase(device);
  }
  release(thread, device, extents);
}

void DeviceMemory::release(Thread& thread, int device, const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    unmap(thread, extent.base, extent.bytes);
    const std::lock_guard lock(mutex_);
    stores_[device].bytes -= extent.bytes;
    window_.give(extent.base, extent.bytes);
  }
}

// Gives everything back that is not in use, waiting for the GPU if it must: OUT_OF_MEMORY if there was nothing, or what
// the wait has shown.
CUresult DeviceMemory::reclaim(Thread& thread, Context* context, int device, std::uint64_t reclaims_before) {
  bool waiting = false;
  {
    // What is on its way to be kept would be missing to everybody; during a shortage nobody asks for more of that.
    std::unique_lock lock(mutex_);
    waiting = sparing_ > 0;
    spared_.wait(lock, [&] { return sparing_ == 0; });
    waiting = waiting || waiting_ > 0;
  }
  if (waiting) {
    Context& awaited = context && context->device == device ? *context : parts_.contexts.primary(device);
    if (const CUresult bad = parts_.waits.settle(thread, awaited); bad != CUDA_SUCCESS) return bad;
  }
  const std::lock_guard one(reclaiming_);  // what another one gives back is there for us too, once it is sent
  const bool by_another = reclaims_.load() != reclaims_before;
  if (!release_unused(thread, device) && !waiting && !by_another) return CUDA_ERROR_OUT_OF_MEMORY;
  ++reclaims_;
  return CUDA_SUCCESS;
}

bool DeviceMemory::release_unused(Thread& thread, int device) {
  const auto pools = pools_.all();
  std::vector<Extent> extents;
  std::vector<CUmemGenericAllocationHandle> allocations;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& pool : pools)
      if (pool->device == device) shrink(*pool, 0);
    MemoryStore& store = stores_[device];
    extents.swap(doomed_[device]);
    store.retire_arenas(/*all=*/true);
    while (const auto extent = store.take_oldest()) extents.push_back(*extent);
    allocations = physical_.take_spares(device, 0);
  }
  release(thread, device, extents);
  release(thread, allocations);
  return !extents.empty() || !allocations.empty();
}

void DeviceMemory::context_closed(Thread& thread, Context& context) {
  for (const Region& region :
       parts_.map.extract([&](const Region& r) { return r.allocated() && r.context == &context; })) {
    if (region.kind == Region::Kind::managed) parts_.managed_dropped(region.base);
    const Block block = take_block(region.base);
    const std::lock_guard lock(mutex_);
    give(region.device, block);
  }
  for (const auto& pool : pools_.all()) {
    const std::lock_guard lock(mutex_);
    pool->freed.remove_if([&](const MemoryPool::Freed& freed) {
      if (freed.context != &context) return false;
      --waiting_;
      give(pool->device, {freed.base, freed.bytes, freed.arena, pool});
      return true;
    });
  }
  release_unused(thread, context.device);
}

bool DeviceMemory::freed_on(const Stream& stream) const {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ == 0) return false;
  }
  const auto here = [&](const MemoryPool::Freed& freed) {
    return freed.context == stream.context && freed.stream == stream.wire();
  };
  const auto pools = pools_.all();
  const std::lock_guard lock(mutex_);
  return std::any_of(pools.begin(), pools.end(),
                     [&](const auto& pool) { return std::any_of(pool->freed.begin(), pool->freed.end(), here); });
}

std::uint64_t DeviceMemory::kept_bytes(int device) const {
  const auto unused = [](const MemoryStore& store) {
    std::uint64_t bytes = store.kept_bytes;
    for (const auto& [base, arena] : store.arenas) bytes += arena.free_bytes();
    return bytes;
  };
  const auto pools = pools_.all();
  const std::lock_guard lock(mutex_);
  const auto found = stores_.find(device);
  std::uint64_t bytes = physical_.kept_bytes(device) + (found == stores_.end() ? 0 : unused(found->second));
  if (const auto freed = freed_bytes_.find(device); freed != freed_bytes_.end()) bytes += freed->second;
  // What a pool may keep is the pool's, and counts as used, as it does natively.
  for (const auto& pool : pools) {
    if (pool->device != device) continue;
    const std::uint64_t above = pool->store.bytes - std::min(pool->store.bytes, pool->release_threshold.load());
    bytes += std::min(above, unused(pool->store));
  }
  return bytes;
}

std::pair<std::uint64_t, std::uint64_t> DeviceMemory::share_piece(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return {0, 0};  // freed meanwhile
  const Block& block = found->second;
  if (block.arena == 0) {
    shared_.insert(block.base);
    return {block.base, block.bytes};
  }
  MemoryStore& store = store_of(parts_.map.find(address).value_or(Region{}).device, block.pool.get());
  if (auto arena = store.arenas.extract(block.arena)) store.sealed.insert(std::move(arena));
  return {block.arena, store.sealed.at(block.arena).bytes()};
}

bool DeviceMemory::shared(const MemoryStore& store, std::uint64_t base, std::uint64_t arena) const {
  return arena == 0 ? shared_.contains(base) : store.sealed.contains(arena);
}

// Other processes may go on using it; the address comes back when the worker has been told.
void DeviceMemory::doom(int device, MemoryStore& store, const Extent& extent) {
  store.bytes -= extent.bytes;
  stores_[device].bytes += extent.bytes;
  doomed_[device].push_back(extent);
}

CUresult DeviceMemory::make(Thread& thread, const PhysicalMemory::Kind& kind,
                            CUmemGenericAllocationHandle& allocation) {
  return with_room(thread, thread.context(), kind.device, [&] { return make_now(thread, kind, allocation); });
}

CUresult DeviceMemory::make_now(Thread& thread, const PhysicalMemory::Kind& kind,
                                CUmemGenericAllocationHandle& allocation) {
  RemoteCall<wire::MakeMemory> call(thread);
  if (const CUresult refused = call.refusal(); refused != CUDA_SUCCESS) return refused;
  std::uint32_t spares = 0;
  Coming coming(*this);
  {
    const std::lock_guard lock(mutex_);
    if (const auto spare = physical_.take_spare(kind)) {
      allocation = *spare;
      return CUDA_SUCCESS;
    }
    SpareMemory& memory = physical_.on(kind.device);
    spares = spares_for(kind.device, memory, kind.bytes);
    if (spares > 0) coming.begin(memory, spares * kind.bytes);
  }
  auto in = call.in();
  in.setBytes(kind.bytes);
  in.setDevice(parts_.facts.at(kind.device).worker_ordinal);
  in.setType(kind.type);
  in.setRequestedHandleTypes(kind.handle_types);
  in.setCompressionType(kind.compression);
  in.setGpuDirectRDMACapable(kind.rdma);
  in.setUsage(kind.usage);
  in.setSpares(spares);
  const CUresult result = call.wait();
  const std::lock_guard lock(mutex_);
  coming.end();
  if (result != CUDA_SUCCESS) return result;
  const auto made = call.out().getAllocations();
  if (made.size() == 0 || made.size() > 1 + spares)
    throw ProtocolError("another number of allocations than was asked for");
  allocation = made[0];
  physical_.set_plenty(kind.device, call.out().getPlenty());
  physical_.hold(allocation, kind.bytes, kind.device, kind.handle_types);
  for (unsigned i = 1; i < made.size(); ++i) physical_.keep(kind, made[i]);
  return CUDA_SUCCESS;
}

void DeviceMemory::retained(CUmemGenericAllocationHandle allocation, const Region& mapping) {
  const std::lock_guard lock(mutex_);
  physical_.hold(allocation, mapping.bytes, mapping.device, mapping.handle_types);
}

std::uint32_t DeviceMemory::handle_types(CUmemGenericAllocationHandle allocation) const {
  const std::lock_guard lock(mutex_);
  const auto held = physical_.held(allocation);
  return held ? held->handle_types : 0;
}

std::optional<PhysicalMemory::Held> DeviceMemory::safe(CUmemGenericAllocationHandle allocation) const {
  const std::lock_guard lock(mutex_);
  const auto held = physical_.held(allocation);
  return held && physical_.plenty(held->device) && !scarce_.contains(held->device) ? held : std::nullopt;
}

CUresult DeviceMemory::release(Thread& thread, CUmemGenericAllocationHandle allocation) {
  RemoteCall<wire::CuMemRelease> call(parts_.calls, thread);
  call.in().setHandle(allocation);
  if (const CUresult refused = call.refusal(); refused != CUDA_SUCCESS) return refused;
  std::optional<PhysicalMemory::Held> held;
  std::vector<CUmemGenericAllocationHandle> surplus;
  {
    const std::lock_guard lock(mutex_);
    held = physical_.drop(allocation);
    if (held && held->holds == 1) {
      scarce_.erase(held->device);
      surplus = physical_.take_spares(
          held->device, std::clamp(physical_.on(held->device).bytes / 4, spare_bytes_min, spare_bytes_max));
    }
  }
  if (!held) return call.wait();
  call.tell();
  release(thread, surplus);
  return CUDA_SUCCESS;
}

void DeviceMemory::release(Thread& thread, const std::vector<CUmemGenericAllocationHandle>& allocations) {
  for (const CUmemGenericAllocationHandle allocation : allocations) {
    RemoteCall<wire::CuMemRelease> call(parts_.calls, thread);
    call.in().setHandle(allocation);
    call.tell();
  }
}

void DeviceMemory::unmap(Thread& thread, const Region& mapping) {
  unmap(thread, mapping.base, mapping.bytes);
  const std::lock_guard lock(mutex_);
  scarce_.erase(mapping.device);
}

void DeviceMemory::unmap(Thread& thread, std::uint64_t address, std::uint64_t bytes) {
  RemoteCall<wire::UnmapMemory> call(parts_.calls, thread);
  auto in = call.in();
  in.setAddress(address);
  in.setBytes(bytes);
  call.tell();
}

std::optional<std::uint64_t> DeviceMemory::reserve(std::uint64_t bytes, std::uint64_t wanted_alignment,
                                                   std::uint64_t wish) {
  const std::uint64_t multiple = std::max(wanted_alignment, granularity);
  const std::lock_guard lock(mutex_);
  if (wish != 0 && wish % multiple == 0 && window_.take_at(wish, bytes)) return wish;
  return window_.take(bytes, multiple);
}

void DeviceMemory::unreserve(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  window_.give(address, bytes);
}

}  // namespace fargpu::client
