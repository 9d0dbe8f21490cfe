#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/context.h"
#include "driver/graph.h"
#include "driver/memory_pool.h"
#include "driver/submission.h"

#include <memory>
#include <mutex>
#include <set>

using namespace fargpu::softgpu;

namespace {

std::shared_ptr<MemoryPool> find_pool(CUmemoryPool handle) {
  return MemoryPoolTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
}

/// While a stream is captured an allocation becomes a node, with memory of the graph.
CUdeviceptr capture_allocation(const std::shared_ptr<Stream>& stream, const MemoryPool& pool, size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters = {};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool.device()};
  parameters.bytesize = bytes;
  auto operation = std::make_unique<MemoryAllocOperation>(parameters);
  CUdeviceptr address = operation->parameters.dptr;
  submit(stream, std::move(operation));
  return address;
}

CUresult allocate(CUdeviceptr* address, size_t bytes, CUmemoryPool pool_handle, CUstream handle, bool per_thread) {
  return entry([&] {
    require(address != nullptr);
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    *address = 0;
    if (bytes == 0) return;  // unlike cuMemAlloc, which refuses it
    int device = stream->context()->device().ordinal();
    auto pool = find_pool(pool_handle != nullptr ? pool_handle : current_pool(device));
    if (stream_is_captured(*stream)) {
      *address = capture_allocation(stream, *pool, bytes);
      return;
    }
    *address = pool->allocate(bytes);
    submit(stream, std::make_unique<EmptyOperation>());
  });
}

/// Memory that is to be freed when its stream gets there.
/// A second free of it fails, as of memory that is freed already.
class Doomed {
 public:
  /// False if it is to be freed already.
  bool add(const std::shared_ptr<const MemoryRange>& range) {
    const std::lock_guard lock(mutex_);
    return ranges_.insert(range).second;
  }
  void remove(const std::shared_ptr<const MemoryRange>& range) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(range);
  }

 private:
  std::mutex mutex_;
  std::set<std::weak_ptr<const MemoryRange>, std::owner_less<>> ranges_;  // a stream may be gone before it got there
};
Doomed& doomed() {
  static Doomed* const instance = new Doomed;  // never destroyed: streams may go on to the last
  return *instance;
}

/// Blocks of cuMemAlloc can be freed in stream order as well.
CUresult free_in_order(CUdeviceptr address, CUstream handle, bool per_thread) {
  return entry([&] {
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    if (stream_is_captured(*stream)) {
      require(find_graph_allocation(address) != nullptr);
      return submit(stream, std::make_unique<MemoryFreeOperation>(address));
    }
    if (free_graph_allocation(address)) return;
    if (address == 0) return;
    auto range = addresses().find(address);
    require(range != nullptr && range->base == address && range->kind == MemoryKind::device);
    require(doomed().add(range));
    stream->enqueue(std::make_shared<FunctionTask>(FunctionTask::Place::service, [range, address] {
      guarded([&] { addresses().free(address); });
      doomed().remove(range);
      if (auto pool = MemoryPoolTable::instance().find(range->pool)) pool->note_freed(range->bytes);
    }));
  });
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream, true);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate(address, bytes, pool, stream, false);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return allocate(address, bytes, pool, stream, true);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return free_in_order(address, stream, false); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) { return free_in_order(address, stream, true); }

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return entry([&] {
    require(pool != nullptr && properties != nullptr);
    require(properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    require(
        properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE,
        CUDA_ERROR_NOT_SUPPORTED);
    int device = properties->location.id;
    require(device >= 0 && device < Driver::get().device_count());
    *pool = MemoryPoolTable::instance().add(std::make_shared<MemoryPool>(device, properties->maxSize));
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return entry([&] {
    auto pool = find_pool(handle);
    require(handle != default_pool(pool->device()));
    Device& device = Driver::get().device(pool->device());
    std::lock_guard lock(device.pool_mutex);
    if (device.current_pool == handle) device.current_pool = nullptr;
    MemoryPoolTable::instance().remove(handle);
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return entry([&] {
    require(pool != nullptr);
    *pool = default_pool(device);
  });
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return entry([&] {
    require(pool != nullptr);
    *pool = current_pool(device);
  });
}
CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return entry([&] {
    Device& device = Driver::get().device(ordinal);
    require(find_pool(handle)->device() == ordinal);
    std::lock_guard lock(device.pool_mutex);
    device.current_pool = handle;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return entry([&] { find_pool(pool); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return entry([&] {
    require(value != nullptr);
    auto pool = find_pool(handle);
    auto* number = static_cast<int*>(value);
    auto* bytes = static_cast<cuuint64_t*>(value);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: *number = pool->reuse_follow_event; return;
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: *number = pool->reuse_opportunistic; return;
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *number = pool->reuse_internal; return;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *bytes = pool->release_threshold; return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *bytes = pool->used_bytes(); return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *bytes = pool->used_high; return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return entry([&] {
    require(value != nullptr);
    auto pool = find_pool(handle);
    int number = *static_cast<int*>(value);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: pool->reuse_follow_event = number; return;
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: pool->reuse_opportunistic = number; return;
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse_internal = number; return;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = *static_cast<cuuint64_t*>(value); return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        require(*static_cast<cuuint64_t*>(value) == 0);
        pool->used_high = pool->used_bytes();
        return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

// A pool's memory is where its device's other memory is, which peers reach when access to their
// device is enabled.
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptors, size_t count) {
  return entry([&] {
    require(descriptors != nullptr || count == 0);
    auto pool = find_pool(handle);
    for (size_t i = 0; i < count; ++i) {
      require(descriptors[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
      int device = Driver::get().device(descriptors[i].location.id).ordinal();
      require(descriptors[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ, CUDA_ERROR_NOT_SUPPORTED);
      if (device == pool->device()) {
        require(descriptors[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE, CUDA_ERROR_INVALID_DEVICE);
        continue;
      }
      bool wants_access = descriptors[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      addresses().set_pool_peer(device, pool->device(), wants_access);
    }
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return entry([&] {
    require(flags != nullptr && location != nullptr);
    require(location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    auto pool = find_pool(handle);
    int device = Driver::get().device(location->id).ordinal();
    bool has_access = device == pool->device() || addresses().is_peer(device, pool->device());
    *flags = has_access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  });
}
