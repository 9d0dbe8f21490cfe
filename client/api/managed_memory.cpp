// Managed memory. CUDA Driver API, "Memory Management" and "Unified Addressing".

#include "client/memory/managed_memory.h"

#include <algorithm>
#include <cstring>

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "forms.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {

CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  return {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

namespace {

bool on_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

bool same(const CUmemLocation& a, const CUmemLocation& b) { return a.type == b.type && a.id == b.id; }

CUresult check_location(Thread& thread, const CUmemLocation& location) {
  if (on_host(location)) return CUDA_SUCCESS;
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return session_of(thread).terms.facts.has(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// Contents go to the device before the next work in any case; from there they come when they are touched.
CUresult prefetch(Thread& thread, CUdeviceptr address, std::size_t bytes, const CUmemLocation& location) {
  if (const CUresult bad = check_location(thread, location); bad != CUDA_SUCCESS) return bad;
  ManagedMemory& managed = session_of(thread).managed;
  if (!managed.advise(address, bytes, [&](ManagedAdvice& advice) { advice.last_prefetch = location; }))
    return CUDA_ERROR_INVALID_VALUE;
  if (!on_host(location)) managed.before_work(thread);
  return CUDA_SUCCESS;
}

// Checks [address, address + bytes) of each range of a batch.
CUresult check_ranges(Thread& thread, const CUdeviceptr* addresses, const std::size_t* bytes, std::size_t count) {
  if (!addresses || !bytes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (!session_of(thread).managed.visit(addresses[i], bytes[i], [](const ManagedAdvice&) {}))
      return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

int device_number(const CUmemLocation& location) {
  if (on_host(location)) return CU_DEVICE_CPU;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_INVALID;
}

/// The one value that all parts of a range have, or nothing.
template <class T>
class Common {
 public:
  explicit Common(T otherwise) : value_(otherwise), otherwise_(otherwise) {}
  void add(T value) {
    if (first_) value_ = value;
    else if (value_ != value) value_ = otherwise_;
    first_ = false;
  }
  T get() const { return value_; }

 private:
  T value_;
  const T otherwise_;
  bool first_ = true;
};

}  // namespace

CUresult cuMemAllocManaged(Thread& thread, CUdeviceptr* dptr, std::size_t bytesize, unsigned flags) {
  if (!dptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = thread.context();
  if (const CUresult bad = check_usable(context); bad != CUDA_SUCCESS) return bad;
  std::uint64_t address = 0;
  const CUresult result = session_of(thread).managed.allocate(thread, *context, bytesize, address);
  if (result == CUDA_SUCCESS) *dptr = address;
  return result;
}

CUresult cuMemAdvise_v2(Thread& thread, CUdeviceptr address, std::size_t bytes, CUmem_advise advice,
                        CUmemLocation location) {
  const bool about_location = advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                              advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (about_location)
    if (const CUresult bad = check_location(thread, location); bad != CUDA_SUCCESS) return bad;
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
    return CUDA_ERROR_INVALID_VALUE;
  const bool managed = session_of(thread).managed.advise(address, bytes, [&](ManagedAdvice& known) {
    const auto accessed = std::find_if(known.accessed_by.begin(), known.accessed_by.end(),
                                       [&](const CUmemLocation& other) { return same(location, other); });
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY: known.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; return;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: known.preferred = location; return;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: known.preferred = ManagedAdvice::nowhere; return;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        if (accessed == known.accessed_by.end()) known.accessed_by.push_back(location);
        return;
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        if (accessed != known.accessed_by.end()) known.accessed_by.erase(accessed);
        return;
      default: return;
    }
  });
  return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPrefetchAsync_v2(Thread& thread, CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                               unsigned flags, CUstream stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  return use ? prefetch(thread, address, bytes, location) : use.error();
}

CUresult cuMemPrefetchBatchAsync(Thread& thread, CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                 CUmemLocation* locations, std::size_t* first_of_location, std::size_t location_count,
                                 unsigned long long flags, CUstream stream) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (use->legacy()) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_ranges(thread, addresses, bytes, count); bad != CUDA_SUCCESS) return bad;
  if (!locations || !first_of_location || location_count == 0 || location_count > count || first_of_location[0] != 0 ||
      flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t l = 0; l < location_count; ++l) {
    const std::size_t end = l + 1 < location_count ? first_of_location[l + 1] : count;
    if (end > count || end <= first_of_location[l]) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = first_of_location[l]; i < end; ++i)
      if (const CUresult bad = prefetch(thread, addresses[i], bytes[i], locations[l]); bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

// What is discarded may be anything afterwards, also what it was.
CUresult cuMemDiscardBatchAsync(Thread& thread, CUdeviceptr* addresses, std::size_t* bytes, std::size_t count,
                                unsigned long long flags, CUstream stream) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (use->legacy()) return CUDA_ERROR_INVALID_VALUE;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return check_ranges(thread, addresses, bytes, count);
}

CUresult cuMemRangeGetAttribute(Thread& thread, void* data, std::size_t data_bytes, CUmem_range_attribute attribute,
                                CUdeviceptr address, std::size_t bytes) {
  if (!data || data_bytes == 0 || data_bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
  ManagedMemory& managed = session_of(thread).managed;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    std::vector<CUmemLocation> common;
    bool first = true;
    const bool known = managed.visit(address, bytes, [&](const ManagedAdvice& advice) {
      if (first) common = advice.accessed_by;
      first = false;
      std::erase_if(common, [&](const CUmemLocation& location) {
        return std::none_of(advice.accessed_by.begin(), advice.accessed_by.end(),
                            [&](const CUmemLocation& other) { return same(location, other); });
      });
    });
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    std::vector<int> numbers(data_bytes / sizeof(int), CU_DEVICE_INVALID);
    for (std::size_t i = 0; i < std::min(numbers.size(), common.size()); ++i) numbers[i] = device_number(common[i]);
    std::memcpy(data, numbers.data(), data_bytes);
    return CUDA_SUCCESS;
  }
  if (data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const auto tell = [&](int otherwise, auto&& value_of) {
    Common<int> common(otherwise);
    if (!managed.visit(address, bytes, [&](const ManagedAdvice& advice) { common.add(value_of(advice)); }))
      return CUDA_ERROR_INVALID_VALUE;
    const int value = common.get();
    std::memcpy(data, &value, sizeof(value));
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return tell(0, [](const ManagedAdvice& advice) { return int{advice.read_mostly}; });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return tell(CU_DEVICE_INVALID, [](const ManagedAdvice& advice) { return device_number(advice.preferred); });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return tell(CU_DEVICE_INVALID, [](const ManagedAdvice& advice) { return device_number(advice.last_prefetch); });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return tell(CU_MEM_LOCATION_TYPE_INVALID, [](const ManagedAdvice& advice) { return int{advice.preferred.type}; });
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return tell(0, [](const ManagedAdvice& advice) { return advice.preferred.id; });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return tell(CU_MEM_LOCATION_TYPE_INVALID,
                  [](const ManagedAdvice& advice) { return int{advice.last_prefetch.type}; });
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return tell(0, [](const ManagedAdvice& advice) { return advice.last_prefetch.id; });
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemRangeGetAttributes(Thread& thread, void** data, std::size_t* data_bytes,
                                 CUmem_range_attribute* attributes, std::size_t count, CUdeviceptr address,
                                 std::size_t bytes) {
  if (!data || !data_bytes || !attributes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (const CUresult bad = cuMemRangeGetAttribute(thread, data[i], data_bytes[i], attributes[i], address, bytes);
        bad != CUDA_SUCCESS)
      return bad;
  return CUDA_SUCCESS;
}

// Attaching says when the program and the GPU stay out of each other's way; here they never meet.
CUresult cuStreamAttachMemAsync(Thread& thread, CUstream stream, CUdeviceptr address, std::size_t bytes,
                                unsigned flags) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_MEM_ATTACH_SINGLE && use->legacy()) return CUDA_ERROR_INVALID_VALUE;
  const auto region = session_of(thread).map.find(address);
  if (!region || !region->managed() || region->base != address || (bytes != 0 && bytes != region->bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
