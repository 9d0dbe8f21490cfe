// Stream-ordered allocation. Pools are the client's own: their memory is device memory like any other. CUDA Driver API,
// "Stream Ordered Memory Allocator".

#include "client/memory/memory_pool.h"

#include <cstring>
#include <span>

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "node_params.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

DeviceMemory& memory_of(Thread& thread) { return session_of(thread).device_memory; }
MemoryPools& pools_of(Thread& thread) { return memory_of(thread).pools(); }
HostPools& host_pools_of(Thread& thread) { return session_of(thread).host_pools; }

bool known(Thread& thread, CUdevice device) { return session_of(thread).terms.facts.has(device); }

// A place where pools may lie: a device, or the host, whose NUMA nodes are one to the client. The driver has none at
// the node of the calling thread either.
CUresult check_location(Thread& thread, const CUmemLocation* location, CUmemAllocationType type) {
  if (!location) return CUDA_ERROR_INVALID_VALUE;
  const bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (!host && location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return refuse_use("a memory pool of managed memory");
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  return host || known(thread, location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// The pools of a location.
int pool_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : pool_of_host;
}

// On a stream that is captured: nodes of the graph.
CUresult capture_allocation(Thread& thread, const StreamUse& use, int device, std::size_t bytes, CUdeviceptr* dptr) {
  Session& session = session_of(thread);
  if (const CUresult bad = session.captures.check_submission(*use); bad != CUDA_SUCCESS) return bad;
  std::uint64_t address = 0;
  const CUresult made = session.graph_memory.allocate(thread, *use->context, device, bytes, address);
  if (made != CUDA_SUCCESS) return made;
  NewParts parts(session.graph_parts);
  RemoteCall<wire::CaptureMemory> call(thread, use->context);
  call.in().setStream(use.wire());
  write_allocation(thread, address, bytes, call.in().initParameters().initAllocation(), parts);
  const CUresult result = call.wait(use);
  if (result == CUDA_SUCCESS) {
    parts.keep();
    *dptr = address;
  } else {
    session.graph_memory.discard(thread, address);
  }
  return result;
}

CUresult capture_free(Thread& thread, const StreamUse& use, CUdeviceptr address) {
  if (!session_of(thread).graph_memory.knows(address)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CaptureMemory> call(thread, use->context);
  call.in().setStream(use.wire());
  call.in().initParameters().setFree(address);
  return call.wait(use);
}

void trim(Thread& thread, MemoryPool& pool, std::uint64_t keep_bytes) {
  if (pool.host) host_pools_of(thread).trim(thread, pool, keep_bytes);
  else memory_of(thread).trim(thread, pool, keep_bytes);
}

CUresult allocate(Thread& thread, CUdeviceptr* dptr, std::size_t bytes, const std::shared_ptr<MemoryPool>& pool,
                  const StreamUse& use) {
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // unlike cuMemAlloc, which refuses it
    *dptr = 0;
    return CUDA_SUCCESS;
  }
  if (use->capture.load() && pool->host) return refuse_use("an allocation from a pool in host memory in a capture");
  if (use->capture.load()) return capture_allocation(thread, use, pool->device, bytes, dptr);
  if (const CUresult bad = session_of(thread).captures.check_submission(*use); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = session_of(thread).captures.check_unsafe(thread); bad != CUDA_SUCCESS) return bad;
  std::uint64_t address = 0;
  const CUresult result = pool->host ? host_pools_of(thread).allocate(thread, *use->context, pool, bytes, address)
                                     : memory_of(thread).allocate(thread, *use->context, bytes, address, pool, &*use);
  if (result == CUDA_SUCCESS) *dptr = address;
  return result;
}

CUresult check_access(Thread& thread, const MemoryPool& pool, const CUmemAccessDesc& wish) {
  const auto& [location, flags] = wish;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!known(thread, location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return CUDA_ERROR_INVALID_VALUE;
  // The owner's access cannot be taken away.
  const bool own = !pool.host && location.id == pool.device;
  return own && flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemAllocAsync(Thread& thread, CUdeviceptr* dptr, std::size_t bytesize, CUstream stream) {
  if (!dptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  return allocate(thread, dptr, bytesize, pools_of(thread).current_of(use->context->device), use);
}

CUresult cuMemAllocFromPoolAsync(Thread& thread, CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool handle,
                                 CUstream stream) {
  if (!dptr) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  const auto pool = pools_of(thread).find(handle);
  return pool ? allocate(thread, dptr, bytesize, pool, use) : CUDA_ERROR_INVALID_VALUE;
}

// The driver takes blocks of cuMemAlloc here too (cuSPARSE relies on it). Such a block is not used again before
// everything submitted so far is complete, which is more than the stream order asks for.
CUresult cuMemFreeAsync(Thread& thread, CUdeviceptr dptr, CUstream stream) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (use->capture.load()) return capture_free(thread, use, dptr);
  if (const CUresult bad = session_of(thread).captures.check_submission(*use); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = session_of(thread).captures.check_unsafe(thread); bad != CUDA_SUCCESS) return bad;
  if (dptr == 0) return CUDA_SUCCESS;
  GraphMemory& graph_memory = session_of(thread).graph_memory;
  if (graph_memory.knows(dptr)) return graph_memory.free(thread, dptr);
  SharedMemory& shared_memory = session_of(thread).shared_memory;
  if (shared_memory.imported(dptr)) return shared_memory.close(thread, dptr, /*of_pool=*/true);
  if (host_pools_of(thread).knows(dptr)) return host_pools_of(thread).free(thread, dptr, &*use);
  return memory_of(thread).free(thread, dptr, *use);
}

CUresult cuMemPoolCreate(Thread& thread, CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_location(thread, &properties->location, properties->allocType); bad != CUDA_SUCCESS)
    return bad == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : bad;
  if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return refuse_use("a memory pool that other processes open other than by a file descriptor");
  if (properties->handleTypes != 0 && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return refuse_use("a memory pool in host memory that other processes open");
  *pool = pools_of(thread).create(*properties)->cuda();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(Thread& thread, CUmemoryPool handle) {
  MemoryPools& pools = pools_of(thread);
  const auto pool = pools.find(handle);
  if (!pool || !pools.destroy(handle)) return CUDA_ERROR_INVALID_VALUE;
  trim(thread, *pool, 0);
  // Peers go on reaching what is still in use.
  if (!pool->host && memory_of(thread).is_over(*pool)) session_of(thread).peers.pool_destroyed(thread, *pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(Thread& thread, CUmemoryPool handle, std::size_t keep_bytes) {
  const auto pool = pools_of(thread).find(handle);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  trim(thread, *pool, keep_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(Thread& thread, CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  const auto pool = pools_of(thread).find(handle);
  if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
  const auto number = [&](cuuint64_t of) {
    std::memcpy(value, &of, sizeof(of));
    return CUDA_SUCCESS;
  };
  const PoolUsage usage = pool->host ? host_pools_of(thread).usage(*pool) : memory_of(thread).usage(*pool);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      const int allowed = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
      std::memcpy(value, &allowed, sizeof(allowed));
      return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return number(pool->release_threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return number(usage.reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return number(usage.reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return number(usage.used);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return number(usage.used_high);
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAttribute(Thread& thread, CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  const auto pool = pools_of(thread).find(handle);
  if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
  const auto number = [&] {
    cuuint64_t of;
    std::memcpy(&of, value, sizeof(of));
    return of;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      int allowed;
      std::memcpy(&allowed, value, sizeof(allowed));
      pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = allowed;
      return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->release_threshold = number();
      memory_of(thread).look_at_thresholds();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;  // it can only be reset
      if (pool->host) host_pools_of(thread).reset_high(*pool, attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
      else memory_of(thread).reset_high(*pool, attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// A pool's own device always has access.
CUresult cuMemPoolGetAccess(Thread& thread, CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  const auto pool = pools_of(thread).find(handle);
  if (!pool || !flags || !location) return CUDA_ERROR_INVALID_VALUE;
  if (location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    *flags = pool->host ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!known(thread, location->id)) return CUDA_ERROR_INVALID_DEVICE;
  const bool accessible =
      pool->host || location->id == pool->device || session_of(thread).peers.has(*pool, location->id);
  *flags = accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(Thread& thread, CUmemoryPool handle, const CUmemAccessDesc* access, std::size_t count) {
  const auto pool = pools_of(thread).find(handle);
  if (!pool || !access || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (const CUmemAccessDesc& wish : std::span(access, count))
    if (const CUresult bad = check_access(thread, *pool, wish); bad != CUDA_SUCCESS) return bad;
  if (pool->host) return CUDA_SUCCESS;  // every device reaches pinned memory
  for (const auto& [location, flags] : std::span(access, count)) {
    if (location.id == pool->device) continue;
    const bool wanted = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (const CUresult bad = session_of(thread).peers.set(thread, *pool, location.id, wanted); bad != CUDA_SUCCESS)
      return bad;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(Thread& thread, CUmemoryPool* pool, CUdevice device) {
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  if (!known(thread, device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = pools_of(thread).default_of(device)->cuda();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(Thread& thread, CUmemoryPool* pool, CUdevice device) {
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  if (!known(thread, device)) return CUDA_ERROR_INVALID_DEVICE;
  *pool = pools_of(thread).current_of(device)->cuda();
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(Thread& thread, CUdevice device, CUmemoryPool handle) {
  if (!known(thread, device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto pool = pools_of(thread).find(handle);
  if (!pool || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  pools_of(thread).set_current(device, pool);
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(Thread& thread, CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult bad = check_location(thread, location, type); bad != CUDA_SUCCESS) return bad;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = pools_of(thread).default_of(pool_device(*location))->cuda();
  return CUDA_SUCCESS;
}

CUresult cuMemGetMemPool(Thread& thread, CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (const CUresult bad = check_location(thread, location, type); bad != CUDA_SUCCESS) return bad;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = pools_of(thread).current_of(pool_device(*location))->cuda();
  return CUDA_SUCCESS;
}

CUresult cuMemSetMemPool(Thread& thread, CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  if (const CUresult bad = check_location(thread, location, type); bad != CUDA_SUCCESS) return bad;
  const auto wanted = pools_of(thread).find(pool);
  if (!wanted || wanted->device != pool_device(*location)) return CUDA_ERROR_INVALID_VALUE;
  pools_of(thread).set_current(wanted->device, wanted);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
