#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

using namespace fargpu::softgpu;

namespace {

/// Memory made by cuMemCreate. A handle can be released while the memory is still mapped.
struct Allocation {
  std::shared_ptr<PhysicalMemory> memory;
  CUmemAllocationProp properties = {};
  int references = 1;
};

std::mutex allocations_mutex;

std::map<CUmemGenericAllocationHandle, Allocation>& allocations() {
  static auto* all = new std::map<CUmemGenericAllocationHandle, Allocation>();
  return *all;
}

CUmemGenericAllocationHandle add(Allocation allocation) {
  static std::atomic<CUmemGenericAllocationHandle> next{16};
  CUmemGenericAllocationHandle handle = next.fetch_add(16);
  std::lock_guard lock(allocations_mutex);
  allocations().emplace(handle, std::move(allocation));
  return handle;
}

/// A copy; throws INVALID_VALUE.
Allocation find(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(allocations_mutex);
  auto found = allocations().find(handle);
  require(found != allocations().end());
  return found->second;
}

void check(const CUmemAllocationProp& properties) {
  require(properties.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  require(properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
  Driver::get().device(properties.location.id);
  require((properties.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0, CUDA_ERROR_NOT_SUPPORTED);
  // Compression changes nothing that can be seen, so asking for it is harmless.
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return entry([&] {
    require(granularity != nullptr && properties != nullptr);
    require(option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    check(*properties);
    *granularity = large_page_bytes;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wished,
                             unsigned long long flags) {
  return entry([&] {
    require(address != nullptr && flags == 0);
    *address = addresses().reserve(bytes, alignment, wished);
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return entry([&] { addresses().free_reservation(address, bytes); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return entry([&] {
    require(handle != nullptr && properties != nullptr && flags == 0);
    check(*properties);
    require(bytes != 0 && bytes % large_page_bytes == 0);
    Device& device = Driver::get().device(properties->location.id);
    require(bytes <= device.account()->total_bytes(), CUDA_ERROR_OUT_OF_MEMORY);
    bool is_shared = properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    auto memory = PhysicalMemory::create(
        device.account(), bytes, is_shared ? PhysicalMemory::Sharing::file : PhysicalMemory::Sharing::private_memory);
    require(memory != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    *handle = add({std::move(memory), *properties});
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return entry([&] {
    std::shared_ptr<PhysicalMemory> released;  // outlives the lock
    std::lock_guard lock(allocations_mutex);
    auto found = allocations().find(handle);
    require(found != allocations().end());
    if (--found->second.references > 0) return;
    released = std::move(found->second.memory);
    // Kernels may still be running that got its address from a mapping taken away just now.
    Driver::get().device(found->second.properties.location.id).retire(released);
    allocations().erase(found);
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return entry([&] {
    require(flags == 0);
    Allocation allocation = find(handle);
    addresses().map(address, bytes, allocation.properties.location.id, allocation.memory, offset);
  });
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return entry([&] {
    // Unlike cuMemFree this does not wait for kernels; they keep the memory, not the mapping.
    for (const auto& memory : addresses().unmap(address, bytes))
      for (int i = 0; i < Driver::get().device_count(); ++i) Driver::get().device(i).retire(memory);
  });
}

namespace {

Access access_of(CUmemAccess_flags flags) {
  switch (flags) {
    case CU_MEM_ACCESS_FLAGS_PROT_NONE: return Access::none;
    case CU_MEM_ACCESS_FLAGS_PROT_READ: return Access::read;
    case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: return Access::read_write;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

}  // namespace

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptors, size_t count) {
  return entry([&] {
    require(descriptors != nullptr && count != 0);
    for (size_t i = 0; i < count; ++i) {
      require(descriptors[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED);
      Driver::get().device(descriptors[i].location.id);
      addresses().set_access(address, bytes, descriptors[i].location.id, access_of(descriptors[i].flags));
    }
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return entry([&] {
    require(flags != nullptr && location != nullptr);
    require(location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    Driver::get().device(location->id);
    switch (addresses().get_access(address, location->id)) {
      case Access::none: *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; return;
      case Access::read: *flags = CU_MEM_ACCESS_FLAGS_PROT_READ; return;
      case Access::read_write: *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return;
    }
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return entry([&] {
    require(handle != nullptr);
    auto range = addresses().find(reinterpret_cast<CUdeviceptr>(address));
    require(range != nullptr && range->kind == MemoryKind::mapped);
    {
      std::lock_guard lock(allocations_mutex);
      for (auto& [known, allocation] : allocations())
        if (allocation.memory == range->physical) {
          ++allocation.references;
          *handle = known;
          return;
        }
    }
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, range->device};
    if (range->physical->file() >= 0) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *handle = add({range->physical, properties});
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return entry([&] {
    require(properties != nullptr);
    *properties = find(handle).properties;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return entry([&] {
    require(shareable != nullptr && flags == 0);
    require(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    Allocation allocation = find(handle);
    require(allocation.memory->file() >= 0, CUDA_ERROR_INVALID_VALUE);
    int file = fcntl(allocation.memory->file(), F_DUPFD_CLOEXEC, 0);
    require(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    *static_cast<int*>(shareable) = file;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return entry([&] {
    require(handle != nullptr);
    require(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    auto file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    auto memory = PhysicalMemory::import(file);
    require(memory != nullptr, CUDA_ERROR_UNKNOWN);
    // Which device it belongs to is not in the file; all devices of this kind are alike.
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *handle = add({std::move(memory), properties});
  });
}
