#include "shared_memory.h"

#include <algorithm>

#include "operations.capnp.h"
#include "client/call/refusal.h"
#include "client/call/remote_call.h"
#include "client/connect/facts.h"
#include "client/objects/contexts.h"
#include "client/stream/settler.h"
#include "device_memory.h"
#include "graph_memory.h"
#include "memory_map.h"
#include "protocol/errors.h"

namespace fargpu::client {

void SharedMemory::note(Thread& thread) {
  if (settled_) return;
  const std::lock_guard lock(settling_);
  if (settled_) return;
  any_ = true;  // from now on copies are waited for
  parts_.waits.settle_taken(thread);
  settled_ = true;
}

CUresult SharedMemory::share(Thread& thread, std::uint64_t address, bool of_pool, SharedHandle& handle) {
  const auto region = parts_.map.find(address);
  // As the driver: pools' memory in its own way, and no mappings of the program's own.
  if (!region || region->kind != Region::Kind::device || of_pool != (region->pool != nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  if (of_pool) {
    const auto pool = parts_.device_memory.pools().find(region->pool);
    if (!pool || !(pool->properties.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (parts_.graph_memory.knows(region->base)) return CUDA_ERROR_INVALID_VALUE;
  note(thread);
  const auto [base, bytes] = parts_.device_memory.share_piece(region->base);
  RemoteCall<wire::ShareMemory> call(parts_.calls, thread);
  call.in().setAddress(base);
  const CUresult result = call.wait();
  if (result == CUDA_ERROR_NOT_SUPPORTED)
    return refuse_use("sharing large memory that has left its device meanwhile (docs/internals/eviction.md)");
  if (result != CUDA_SUCCESS) return result;
  const auto shared = call.out();
  const auto key = share_key(shared.getKey());
  if (!key || shared.getBytes() != bytes) throw ProtocolError("the worker shared other memory than it was asked to");
  handle = {SharedHandle::Kind::memory, *key, bytes, region->base - base, region->bytes};
  const std::lock_guard lock(mutex_);
  ours_.insert(*key);
  return CUDA_SUCCESS;
}

CUresult SharedMemory::open(Thread& thread, Context& context, const SharedHandle& handle, CUmemoryPool pool,
                            std::uint64_t& address) {
  note(thread);
  const std::lock_guard lock(mutex_);
  if (ours_.contains(handle.key)) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle.bytes == 0 || handle.bytes % DeviceMemory::granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::pair key(handle.key, static_cast<const Context*>(&context));
  auto found = opened_.find(key);
  if (found == opened_.end()) {
    const auto base = parts_.device_memory.reserve(handle.bytes, 0, 0);
    if (!base) return CUDA_ERROR_OUT_OF_MEMORY;
    RemoteCall<wire::OpenSharedMemory> call(thread, &context);
    auto in = call.in();
    in.setKey(wire_of(handle.key));
    in.setAddress(*base);
    in.setBytes(handle.bytes);
    if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) {
      parts_.device_memory.unreserve(*base, handle.bytes);
      return bad;
    }
    const int device = parts_.facts.client_ordinal(static_cast<int>(call.out().getDevice()));
    found = opened_.emplace(key, Opened{*base, handle.bytes, device, {}}).first;
  }
  Opened& opened = found->second;
  const std::uint64_t begin = opened.base + handle.offset;
  unsigned& times = opened.allocations[begin];
  // A handle that was tampered with may name what overlaps.
  if (times == 0 && (handle.bytes != opened.bytes || !parts_.map.add({.kind = Region::Kind::opened,
                                                                      .base = begin,
                                                                      .bytes = handle.length,
                                                                      .device = opened.device,
                                                                      .context = &context,
                                                                      .buffer_id = parts_.map.next_buffer_id(),
                                                                      .pool = pool}))) {
    opened.allocations.erase(begin);
    release_unused(thread, found);
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++times;
  address = begin;
  return CUDA_SUCCESS;
}

bool SharedMemory::imported(std::uint64_t address) const {
  const auto region = parts_.map.find(address);
  return region && region->kind == Region::Kind::opened && region->pool;
}

CUresult SharedMemory::close(Thread& thread, std::uint64_t address, bool of_pool) {
  std::unique_lock lock(mutex_);
  const auto there = parts_.map.find(address);
  if (!there || there->kind != Region::Kind::opened || of_pool != (there->pool != nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  const auto piece = std::find_if(opened_.begin(), opened_.end(),
                                  [&](const auto& entry) { return entry.second.allocations.contains(address); });
  if (piece == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
  Opened& opened = piece->second;
  const auto allocation = opened.allocations.find(address);
  if (--allocation->second > 0) return CUDA_SUCCESS;
  parts_.map.remove(address);
  opened.allocations.erase(allocation);
  ++opened.closing;
  // Work that uses it may be under way, whatever an earlier call has to say. It may wait for another thread, which may
  // share memory first.
  lock.unlock();
  const CUresult late = thread.take_late_error();
  const Thread::AnswersOnly answers_only(thread);
  const CUresult result = settle(thread, there->context);
  lock.lock();
  --opened.closing;
  release_unused(thread, piece);
  return late != CUDA_SUCCESS ? late : result;
}

// What has outlasted its context may be in use in any other one.
CUresult SharedMemory::settle(Thread& thread, Context* context) {
  if (parts_.contexts.idle()) return CUDA_SUCCESS;
  return context ? parts_.waits.settle(thread, *context) : parts_.waits.settle_all(thread);
}

void SharedMemory::context_closed(Thread& thread, Context& context) {
  const std::lock_guard lock(mutex_);
  for (auto it = opened_.begin(); it != opened_.end();) {
    const auto piece = it++;
    if (piece->first.second != &context) continue;
    std::erase_if(piece->second.allocations, [&](const auto& allocation) {
      return parts_.map.remove_if(allocation.first, [&](const Region& r) { return r.context == &context; }).has_value();
    });
    release_unused(thread, piece);
  }
}

void SharedMemory::release_unused(Thread& thread, Pieces::iterator opened) {
  if (!opened->second.allocations.empty() || opened->second.closing > 0) return;
  release(thread, opened->second);
  opened_.erase(opened);
}

void SharedMemory::release(Thread& thread, const Opened& opened) {
  parts_.device_memory.unmap(thread, opened.base, opened.bytes);
  parts_.device_memory.unreserve(opened.base, opened.bytes);
}

}  // namespace fargpu::client
