// Virtual memory management: reservations are divided from the session's window here, physical memory is the worker's.
// CUDA Driver API, "Virtual Memory Management".

#include <algorithm>
#include <mutex>

#include "calls_vmm.capnp.h"
#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"
#include "struct_codecs.h"

namespace fargpu::client::hand {
namespace {

constexpr std::uint64_t granularity = DeviceMemory::granularity;

// Location in worker terms; false if it names no device of ours.
bool translate(const Session& session, CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return false;
  return session.terms.facts.worker_ordinal(location.id, location.id);
}

// Locations other than devices are the host's own memory, which a remote program cannot have.
CUresult location_error(const Session& session, const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return session.terms.facts.has(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CUDA_ERROR_INVALID_VALUE;
  return refuse_denied(
      "memory of the host in virtual memory management (CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)");
}

}  // namespace

CUresult cuMemAddressReserve(Thread& thread, CUdeviceptr* ptr, std::size_t size, std::size_t alignment,
                             CUdeviceptr wish, unsigned long long flags) {
  if (!ptr || size == 0 || size % granularity != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
  const auto address = session_of(thread).device_memory.reserve(size, alignment, wish);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  session_of(thread).reservations.add(*address, size);
  *ptr = *address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(Thread& thread, CUdeviceptr ptr, std::size_t size) {
  Session& session = session_of(thread);
  if (!session.reservations.holds(ptr, size) || session.map.overlaps(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  if (!session.reservations.remove(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  session.device_memory.unreserve(ptr, size);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(Thread& thread, CUdeviceptr ptr, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (size == 0 || ptr % granularity != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Session& session = session_of(thread);
  if (!session.reservations.holds(ptr, size) || session.map.overlaps(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::MapMemory> call(thread);
  auto in = call.in();
  in.setAddress(ptr);
  in.setBytes(size);
  in.setOffset(offset);
  in.setAllocation(handle);
  // All of what the program has from cuMemCreate: what the driver would say is known.
  const auto held = session.device_memory.safe(handle);
  const bool known = held && offset == 0 && size == held->bytes;
  const CUresult result = known ? call.post() : call.wait();
  if (result != CUDA_SUCCESS) return result;
  session.map.add({.kind = Region::Kind::mapped,
                   .base = ptr,
                   .bytes = size,
                   .device = known ? held->device : session.terms.facts.client_ordinal(call.out().getDevice()),
                   .buffer_id = session.map.next_buffer_id(),
                   .owner = handle,
                   .handle_types = session.device_memory.handle_types(handle),
                   .accessible = false});
  return CUDA_SUCCESS;
}

CUresult finish_copies(Thread& thread) {
  RemoteCall<wire::FinishCopies> copies(thread);
  return session_of(thread).contexts.idle() ? copies.refusal() : copies.wait();
}

// Whole mappings only, with gaps between them or nothing else; nothing may still be using them, which is the program's
// to see to.
CUresult cuMemUnmap(Thread& thread, CUdeviceptr ptr, std::size_t size) {
  Session& session = session_of(thread);
  if (size == 0 || !session.reservations.holds(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  const auto reaches_out = [&](std::uint64_t at) {
    const auto region = session.map.find(at);
    return region && (region->base < ptr || region->base + region->bytes > ptr + size);
  };
  if (reaches_out(ptr) || reaches_out(ptr + size - 1)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = finish_copies(thread); bad != CUDA_SUCCESS) return bad;
  for (const Region& region : session.map.extract_within(ptr, size)) session.device_memory.unmap(thread, region);
  return CUDA_SUCCESS;
}

namespace {

// Whether the driver cannot but do it: whole mappings of what the program has from cuMemCreate, for the device that
// they lie on.
bool plain_access(Session& session, CUdeviceptr ptr, std::size_t size, const CUmemAccessDesc& desc) {
  const std::vector<Region> regions = session.map.within(ptr, size);
  if (regions.empty() || regions.front().base != ptr || regions.back().base + regions.back().bytes != ptr + size)
    return false;
  return desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
         std::all_of(regions.begin(), regions.end(), [&](const Region& region) {
           return region.kind == Region::Kind::mapped && region.device == desc.location.id &&
                  session.device_memory.safe(region.owner);
         });
}

}  // namespace

CUresult cuMemSetAccess(Thread& thread, CUdeviceptr ptr, std::size_t size, const CUmemAccessDesc* desc,
                        std::size_t count) {
  if (!desc || count == 0 || count > limits::devices_max) return CUDA_ERROR_INVALID_VALUE;
  Session& session = session_of(thread);
  if (!session.map.covered(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  const auto writable = [](const CUmemAccessDesc& d) { return d.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE; };
  if (!std::all_of(desc, desc + count, writable))
    if (const CUresult bad = finish_copies(thread); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuMemSetAccess> call(thread);
  if (!call) return call.error();
  auto in = call.in();
  in.setPtr(ptr);
  in.setSize(size);
  auto list = in.initDesc(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) {
    CUmemAccessDesc item = desc[i];
    if (const CUresult bad = location_error(session, item.location); bad != CUDA_SUCCESS) return bad;
    translate(session, item.location);
    encode(item, list[i]);
  }
  in.setCount(count);
  const CUresult result = count == 1 && plain_access(session, ptr, size, *desc) ? call.post() : call.wait();
  if (result != CUDA_SUCCESS) return result;
  // A peer's access says nothing about the device's own.
  const auto accessible = [&](const Region& region) {
    bool is = region.accessible;
    for (const CUmemAccessDesc& one : std::span(desc, count)) {
      if (one.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return true;
      if (one.location.type != CU_MEM_LOCATION_TYPE_DEVICE || one.location.id == region.device) is = false;
    }
    return is;
  };
  session.map.update_within(ptr, size, [&](Region& region) { region.accessible = accessible(region); });
  return result;
}

CUresult cuMemGetAccess(Thread& thread, unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  CUmemLocation there = *location;
  if (!translate(session_of(thread), there)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CuMemGetAccess> call(thread);
  // The worker has no word on memory that is not the session's.
  const auto region = session_of(thread).map.find(ptr);
  if (ptr != 0 && !(region && (region->on_device() || region->device_address != 0))) {
    if (const CUresult refused = call.refusal(); refused != CUDA_SUCCESS) return refused;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;  // as the driver writes it
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto in = call.in();
  encode(there, in.initLocation());
  in.setPtr(ptr);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) *flags = call.out().getFlags();
  return result;
}

CUresult cuMemCreate(Thread& thread, CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  if (!handle || !prop || size == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = location_error(session_of(thread), prop->location); bad != CUDA_SUCCESS) return bad;
  // As the driver where there is no fabric: PyTorch then asks for a descriptor.
  constexpr unsigned exported_as = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (prop->requestedHandleTypes & ~exported_as) return CUDA_ERROR_NOT_SUPPORTED;
  const PhysicalMemory::Kind kind{.bytes = size,
                                  .device = prop->location.id,
                                  .type = static_cast<std::uint32_t>(prop->type),
                                  .handle_types = static_cast<std::uint32_t>(prop->requestedHandleTypes),
                                  .compression = prop->allocFlags.compressionType,
                                  .rdma = prop->allocFlags.gpuDirectRDMACapable,
                                  .usage = prop->allocFlags.usage};
  return session_of(thread).device_memory.make(thread, kind, *handle);
}

CUresult cuMemRelease(Thread& thread, CUmemGenericAllocationHandle handle) {
  return session_of(thread).device_memory.release(thread, handle);
}

CUresult cuMemGetAllocationGranularity(Thread& thread, std::size_t* bytes, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  if (!bytes || !prop) return CUDA_ERROR_INVALID_VALUE;
  CUmemAllocationProp there = *prop;
  if (const CUresult bad = location_error(session_of(thread), there.location); bad != CUDA_SUCCESS) return bad;
  translate(session_of(thread), there.location);
  there.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  RemoteCall<wire::CuMemGetAllocationGranularity> call(thread);
  auto in = call.in();
  encode(there, in.initProp());
  in.setOption(option);
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS) *bytes = call.out().getGranularity();
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(Thread& thread, CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  if (!prop) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CuMemGetAllocationPropertiesFromHandle> call(thread);
  call.in().setHandle(handle);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  decode(call.out().getProp(), *prop);
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    prop->location.id = session_of(thread).terms.facts.client_ordinal(prop->location.id);
  return result;
}

CUresult cuMemRetainAllocationHandle(Thread& thread, CUmemGenericAllocationHandle* handle, void* addr) {
  if (!handle || !addr) return CUDA_ERROR_INVALID_VALUE;
  const auto region = session_of(thread).map.find(reinterpret_cast<std::uint64_t>(addr));
  if (!region || region->kind != Region::Kind::mapped) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::RetainAllocation> call(thread);
  call.in().setAddress(region->base);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  *handle = call.out().getAllocation();
  session_of(thread).device_memory.retained(*handle, *region);
  return result;
}

}  // namespace fargpu::client::hand
