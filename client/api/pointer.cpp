// Pointer attributes, from the memory map. CUDA Driver API, "Unified Addressing".

#include <cstring>

#include "client/session/entry.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "forms.h"

namespace fargpu::client::hand {
namespace {

template <class T>
void store(void* data, T value) {
  std::memcpy(data, &value, sizeof(value));
}

CUDA_POINTER_ATTRIBUTE_ACCESS_FLAGS access_to(const Region& region) {
  if (!region.accessible) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
  const bool read_only = region.kind == Region::Kind::registered && region.flags & CU_MEMHOSTREGISTER_READ_ONLY;
  return read_only ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
}

// What is known of the region; `address` is the one asked about.
CUresult attribute_of(const Region& region, CUpointer_attribute attribute, std::uint64_t address, void* data) {
  const std::uint64_t offset = address - region.base;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      store(data, region.context ? region.context->cuda() : nullptr);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      store<unsigned>(
          data, region.on_host() || region.kind == Region::Kind::alias ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (region.on_host() && region.device_address == 0) return CUDA_ERROR_INVALID_VALUE;
      store<CUdeviceptr>(data, region.on_host() ? region.device_address + offset : address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (region.kind == Region::Kind::alias) {
        store(data, region.owner + offset);
        return CUDA_SUCCESS;
      }
      if (!region.on_host() && !region.managed()) return CUDA_ERROR_INVALID_VALUE;
      store(data, address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: store<int>(data, region.sync_memops); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: store<unsigned long long>(data, region.buffer_id); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: store<int>(data, region.managed()); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int>(data, region.device); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      store<int>(data, region.kind == Region::Kind::device && !region.pool);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: store<CUdeviceptr>(data, region.base); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: store<std::size_t>(data, region.bytes); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      store<int>(data, region.kind == Region::Kind::mapped || region.device_address != 0 || region.on_device());
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      store<unsigned long long>(data, region.handle_types);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: store<int>(data, 0); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: store<int>(data, 0); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: store<unsigned>(data, access_to(region)); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: store(data, region.pool); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: store<std::size_t>(data, region.bytes); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      store<void*>(data, reinterpret_cast<void*>(region.base));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      store<unsigned long long>(data, region.owner ? region.owner : region.buffer_id);
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::optional<Region> region_of(Thread& thread, CUdeviceptr address) { return session_of(thread).map.find(address); }

// Memory of pools and of graphs is of no context to CUDA, nor are mappings.
void forget_context(Thread& thread, CUpointer_attribute attribute, Region& region) {
  if (attribute != CU_POINTER_ATTRIBUTE_CONTEXT) return;
  if (region.pool || session_of(thread).graph_memory.knows(region.base)) region.context = nullptr;
}

// Registered memory has another address for kernels, which it gets when that is asked for. A kernel may find the
// address anywhere, so the memory is there from then on, if it `is_used`, and if that is no wait. The CUDA runtime asks
// for all attributes together, mostly to learn what kind of memory it is: then memory is not made ready but when work
// is given the address.
void find_device_address(Thread& thread, CUpointer_attribute attribute, Region& region, bool is_used) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER || !region.on_host() || region.device_address != 0) return;
  HostMemory& memory = session_of(thread).host_memory;
  const Thread::AnswersOnly answers_only(thread);  // of earlier failures the next call tells
  if (is_used && !memory.waits_to_map(region.base) &&
      memory.map(thread, region.base, region.device_address) == CUDA_SUCCESS)
    return;
  (void)memory.promise(region.base, region.device_address);  // else it stays without
}

// What the plural form writes for an attribute that memory does not have; `known` is whether CUDA knows the memory
// (measured on an H200).
void absent_attribute(CUpointer_attribute attribute, CUdeviceptr address, bool known, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: store<void*>(data, nullptr); return;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: store<unsigned>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: store<CUdeviceptr>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      store<CUdeviceptr>(data, known ? 0 : address);  // what it does not know is the program's own
      return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int>(data, -2); return;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: store<unsigned long long>(data, 0); return;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: store<void*>(data, nullptr); return;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: store<int>(data, 0); return;
    default: return;  // ranges and sizes stay as they are
  }
}

}  // namespace

CUresult cuPointerGetAttribute(Thread& thread, void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  auto region = region_of(thread, ptr);
  if (!region) return CUDA_ERROR_INVALID_VALUE;
  find_device_address(thread, attribute, *region, true);
  forget_context(thread, attribute, *region);
  return attribute_of(*region, attribute, ptr, data);
}

// Attributes that do not apply are given their "unknown" value; the call succeeds.
CUresult cuPointerGetAttributes(Thread& thread, unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  if (count == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  auto region = region_of(thread, ptr);
  for (unsigned i = 0; i < count; ++i) {
    if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
    if (region) {
      find_device_address(thread, attributes[i], *region, false);
      forget_context(thread, attributes[i], *region);
    }
    if (!region || attribute_of(*region, attributes[i], ptr, data[i]) != CUDA_SUCCESS)
      absent_attribute(attributes[i], ptr, region.has_value(), data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(Thread& thread, const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  const Context* const current = thread.context();
  if (current && !current->active) return CUDA_ERROR_INVALID_VALUE;  // as the driver says, which needs none here
  const auto region = region_of(thread, ptr);
  if (!region || !region->on_device()) return CUDA_ERROR_INVALID_VALUE;
  int on;
  std::memcpy(&on, value, sizeof(on));
  Session& session = session_of(thread);
  session.map.update(region->base, [&](Region& r) { r.sync_memops = on != 0; });
  // Copies that were begun before are waited for, and no kernels: these may wait for what the program does next.
  return on && current ? finish_copies(thread) : CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
