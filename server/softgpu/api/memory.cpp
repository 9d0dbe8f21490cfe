#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>

#include "driver/context.h"
#include "driver/graph.h"
#include "driver/memory_pool.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return entry([&] {
    const MemoryAccount& account = *usable_context()->device().account();
    if (free_bytes != nullptr) *free_bytes = account.free_bytes();
    if (total_bytes != nullptr) *total_bytes = account.total_bytes();
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return entry([&] {
    require(address != nullptr);
    auto context = usable_context();
    refuse_while_capturing();
    *address = addresses().allocate(context->device().ordinal(), context->id(), bytes);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
  return entry([&] {
    require(address != nullptr && pitch != nullptr && width_bytes != 0 && height != 0);
    require(element_bytes == 4 || element_bytes == 8 || element_bytes == 16);
    constexpr size_t pitch_align = 512;
    require(width_bytes <= size_t{1} << 40 && height <= size_t{1} << 40, CUDA_ERROR_OUT_OF_MEMORY);
    size_t row = (width_bytes + pitch_align - 1) / pitch_align * pitch_align;
    require(height <= (size_t{1} << 60) / row, CUDA_ERROR_OUT_OF_MEMORY);
    auto context = usable_context();
    refuse_while_capturing();
    *address = addresses().allocate(context->device().ordinal(), context->id(), row * height);
    *pitch = row;
  });
}

namespace {

/// Work that may use memory of the kind being freed must be over: all of the owner's, or for
/// memory that every device sees, everybody's.
void wait_for_users(const MemoryRange& range) {
  bool is_shared = range.kind != MemoryKind::device || range.context_id == 0;
  for (const auto& context : all_contexts()) {
    if (!context->is_alive()) continue;
    if (!is_shared && context->id() != range.context_id) continue;
    for (const auto& task : context->everything()) task->wait();
    context->flush_print();
  }
}

}  // namespace

CUresult cuMemFree_v2(CUdeviceptr address) {
  return entry([&] {
    if (address == 0) return;
    auto context = usable_context();
    refuse_while_capturing();
    auto range = addresses().find(address);
    require(range != nullptr && range->base == address);
    require(range->kind == MemoryKind::device || range->kind == MemoryKind::managed);
    wait_for_users(*range);
    if (free_graph_allocation(address)) return;
    addresses().free(address);
    if (auto pool = MemoryPoolTable::instance().find(range->pool)) pool->note_freed(range->bytes);
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return entry([&] {
    require(base != nullptr || bytes != nullptr);
    auto range = addresses().find(address);
    require(range != nullptr, CUDA_ERROR_NOT_FOUND);
    if (base != nullptr) *base = range->base;
    if (bytes != nullptr) *bytes = range->bytes;
  });
}

// ---- host memory ---------------------------------------------------------------------------------------------------

namespace {

CUresult allocate_host(void** address, size_t bytes, unsigned flags) {
  return entry([&] {
    require(address != nullptr);
    constexpr unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    require((flags & ~known) == 0);
    auto context = usable_context();
    refuse_while_capturing();
    *address = nullptr;
    if (bytes == 0) return;
    *address = addresses().allocate_host(context->device().ordinal(), context->id(), bytes, flags);
  });
}

}  // namespace

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  return allocate_host(address, bytes, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned int flags) {
  return allocate_host(address, bytes, flags);
}

CUresult cuMemFreeHost(void* address) {
  return entry([&] {
    auto context = usable_context();
    refuse_while_capturing();
    if (address == nullptr) return;
    auto range = addresses().find(reinterpret_cast<DeviceAddress>(address));
    require(range != nullptr && range->host == address && range->kind == MemoryKind::host_allocated);
    wait_for_users(*range);
    addresses().free_host(address);
  });
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned int flags) {
  return entry([&] {
    constexpr unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                               CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    require((flags & ~known) == 0);
    require(!(flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)), CUDA_ERROR_NOT_SUPPORTED);
    auto context = usable_context();
    refuse_while_capturing();
    addresses().register_host(context->device().ordinal(), context->id(), address, bytes, flags);
  });
}

CUresult cuMemHostUnregister(void* address) {
  return entry([&] {
    usable_context();
    refuse_while_capturing();
    auto range = addresses().find(reinterpret_cast<DeviceAddress>(address));
    require(range == nullptr || range->kind != MemoryKind::host_allocated);
    require(range != nullptr && range->host == address && range->kind == MemoryKind::host_registered,
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    wait_for_users(*range);
    addresses().unregister_host(address);
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device_address, void* host, unsigned int flags) {
  return entry([&] {
    require(device_address != nullptr && flags == 0);
    usable_context();
    auto range = addresses().find(reinterpret_cast<DeviceAddress>(host));
    require(range != nullptr && (range->is_host() || range->kind == MemoryKind::managed));
    *device_address = reinterpret_cast<CUdeviceptr>(host);
  });
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  return entry([&] {
    require(flags != nullptr);
    usable_context();
    auto range = addresses().find(reinterpret_cast<DeviceAddress>(host));
    require(range != nullptr && range->kind == MemoryKind::host_allocated);
    *flags = range->flags;
  });
}

// ---- managed memory ------------------------------------------------------------------------------------------------

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  return entry([&] {
    require(address != nullptr);
    require(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    auto context = usable_context();
    refuse_while_capturing();
    *address = addresses().allocate_managed(context->device().ordinal(), context->id(), bytes, flags);
  });
}

namespace {

/// Managed memory is always where both sides can reach it, so hints and migrations have nothing
/// to do but to be valid.
void check_managed(CUdeviceptr address, size_t bytes) {
  require(bytes != 0);
  auto range = addresses().find(address);
  require(range != nullptr && range->kind == MemoryKind::managed && bytes <= range->bytes - (address - range->base));
}

void check_location(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: Driver::get().device(location.id); return;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags, CUstream handle,
                  bool per_thread) {
  return entry([&] {
    require(flags == 0);
    check_location(location);
    check_managed(address, bytes);
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    submit(stream, std::make_unique<EmptyOperation>());
  });
}

CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return entry([&] {
    require(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    bool names_location = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                          advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (names_location) check_location(location);
    check_managed(address, bytes);
  });
}

}  // namespace

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, location_of(device), 0, stream, false);
}
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return prefetch(address, bytes, location_of(device), 0, stream, true);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
  return prefetch(address, bytes, location, flags, stream, false);
}
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                                    CUstream stream) {
  return prefetch(address, bytes, location, flags, stream, true);
}
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(address, bytes, advice, location_of(device));
}
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return advise(address, bytes, advice, location);
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                size_t bytes) {
  return entry([&] {
    require(data != nullptr && data_bytes != 0);
    check_managed(address, bytes);
    auto* values = static_cast<int*>(data);
    switch (attribute) {
      case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        require(data_bytes == 4);
        values[0] = 0;
        return;
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        require(data_bytes == 4);
        values[0] = CU_DEVICE_INVALID;
        return;
      case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        require(data_bytes % 4 == 0);
        std::fill_n(values, data_bytes / 4, CU_DEVICE_INVALID);
        return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  return entry([&] {
    require(data != nullptr && data_bytes != nullptr && attributes != nullptr && count != 0);
    for (size_t i = 0; i < count; ++i) {
      CUresult result = cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], address, bytes);
      require(result == CUDA_SUCCESS, result);
    }
  });
}

namespace {

CUresult attach(CUstream handle, CUdeviceptr address, size_t bytes, unsigned flags, bool per_thread) {
  return entry([&] {
    require(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE);
    auto range = addresses().find(address);
    require(range != nullptr && range->kind == MemoryKind::managed);
    require(address == range->base && (bytes == 0 || bytes == range->bytes));
    auto stream = find_stream(handle, per_thread);
    require(flags != CU_MEM_ATTACH_SINGLE || stream->kind() != Stream::Kind::legacy);
    stream->context()->check();
    submit(stream, std::make_unique<EmptyOperation>());
  });
}

}  // namespace

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {
  return attach(stream, address, bytes, flags, false);
}
CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {
  return attach(stream, address, bytes, flags, true);
}

// ---- facts about pointers ------------------------------------------------------------------------------------------

namespace {

template <class T>
void store(void* data, T value) {
  *static_cast<T*>(data) = value;
}

CUmemorytype memory_type(const MemoryRange& range) {
  return range.is_host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

/// Attributes of memory that the driver knows.
void get_pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address, const MemoryRange& range) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: store(data, context_of_id(range.context_id)); return;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: store<unsigned>(data, memory_type(range)); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: store<CUdeviceptr>(data, address); return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      require(range.is_host() || range.kind == MemoryKind::managed);
      store<void*>(data, reinterpret_cast<void*>(address));
      return;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: throw Failure(CUDA_ERROR_NOT_SUPPORTED);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: store<unsigned>(data, range.sync_memops); return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: store<unsigned long long>(data, range.serial); return;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: store<unsigned>(data, range.kind == MemoryKind::managed); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int>(data, range.device); return;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      store<unsigned>(data, range.kind == MemoryKind::device);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: store<CUdeviceptr>(data, range.base); return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: store<size_t>(data, range.bytes); return;
    case CU_POINTER_ATTRIBUTE_MAPPED: store<unsigned>(data, 1); return;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      store<uint64_t>(
          data, range.kind == MemoryKind::mapped ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE);
      return;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: store<unsigned>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: store<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE); return;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: store<CUmemoryPool>(data, range.pool); return;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: store<size_t>(data, range.bytes); return;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: store<CUdeviceptr>(data, range.base); return;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: store<unsigned long long>(data, range.serial); return;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: store<unsigned>(data, 0); return;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

/// What cuPointerGetAttributes says of an attribute that memory does not have. Memory that the driver does not know is
/// the program's own.
void get_absent_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address, bool is_known) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: store<CUcontext>(data, nullptr); return;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: store<unsigned>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: store<CUdeviceptr>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: store<CUdeviceptr>(data, is_known ? 0 : address); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int>(data, CU_DEVICE_INVALID); return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: store<unsigned long long>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: store<uint64_t>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: store<CUmemoryPool>(data, nullptr); return;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return;  // left as they are
    default: store<unsigned>(data, 0); return;
  }
}

/// A place that is reserved but has no memory is known, too.
std::shared_ptr<const MemoryRange> find_range_or_reservation(CUdeviceptr address) {
  if (auto range = addresses().find(address)) return range;
  auto reservation = addresses().find_reservation(address);
  if (!reservation) return nullptr;
  auto range = std::make_shared<MemoryRange>();
  range->base = reservation->first;
  range->bytes = reservation->second;
  range->kind = MemoryKind::mapped;
  return range;
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return entry([&] {
    require(data != nullptr);
    auto range = find_range_or_reservation(address);
    require(range != nullptr);
    get_pointer_attribute(data, attribute, address, *range);
  });
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  return entry([&] {
    require(attributes != nullptr && data != nullptr && count != 0);
    auto range = find_range_or_reservation(address);
    for (unsigned i = 0; i < count; ++i) {
      require(data[i] != nullptr);
      bool has_no_host = range != nullptr && attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && !range->is_host() &&
                         range->kind != MemoryKind::managed;
      if (range == nullptr || has_no_host) get_absent_attribute(data[i], attributes[i], address, range != nullptr);
      else get_pointer_attribute(data[i], attributes[i], address, *range);
    }
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return entry([&] {
    require(value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    addresses().set_sync_memops(address, *static_cast<const unsigned*>(value) != 0);
  });
}
