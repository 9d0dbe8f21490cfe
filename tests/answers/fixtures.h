#pragma once
// The fixtures by topic, and what several topics need.

#include <cuda.h>

#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "world.h"

namespace answers {

using Makers = std::map<std::string, Maker, std::less<>>;

void add_contexts(Makers& makers);
void add_streams(Makers& makers);
void add_code(Makers& makers);
void add_memory(Makers& makers);
void add_copies(Makers& makers);
void add_arrays(Makers& makers);
void add_graphs(Makers& makers);
void add_numbers(Makers& makers);

template <class T>
Slot slot_of(T value) {
  Slot slot;
  slot.put(value);
  return slot;
}
template <class T>
Slot pointer_to(World& w, const T& value) {
  T* at = w.zeroed<T>();
  std::memcpy(static_cast<void*>(at), &value, sizeof value);
  return slot_of(at);
}

/// A function of hosts that does nothing.
void CUDA_CB nothing_of_host(void*);
/// A kernel that stores its second argument, of four bytes, at the address that the first one is.
CUfunction lasting_function();
/// Arguments for it.
void** kernel_arguments(World& w);
CUmemLocation location_of(CUmemLocationType type);
/// Memory of the device that its kernels may use.
CUmemAccessDesc access_of_device();
CUmemPoolProps pool_of(CUmemLocationType type, CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE);
/// From "memory2" to "memory".
CUDA_MEMCPY3D copy_between(World& w);
CUstreamBatchMemOpParams write_value(World& w);

}  // namespace answers
