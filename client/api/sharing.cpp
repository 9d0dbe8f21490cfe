// Memory and events shared with other processes whose sessions are at the same host. CUDA Driver API, "Memory
// Management" (cuIpc*) and "Virtual Memory Management" (shareable handles).

#include <cstring>

#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

template <class Handle>
void write(const SharedHandle& shared, Handle& handle) {
  const SharedHandle::Bytes bytes = shared.encode();
  static_assert(sizeof(handle) == sizeof(bytes));
  std::memcpy(&handle, bytes.data(), bytes.size());
}

template <class Handle>
std::optional<SharedHandle> read(const Handle& handle, SharedHandle::Kind kind) {
  SharedHandle::Bytes bytes;
  static_assert(sizeof(handle) == sizeof(bytes));
  std::memcpy(bytes.data(), &handle, bytes.size());
  return SharedHandle::decode(bytes, kind);
}

// A handle of the memory at this address, for other processes.
template <class Handle>
CUresult share(Thread& thread, CUdeviceptr address, bool of_pool, Handle* handle) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  SharedHandle shared;
  const CUresult result = session_of(thread).shared_memory.share(thread, address, of_pool, shared);
  if (result == CUDA_SUCCESS) write(shared, *handle);
  return result;
}

// Memory of another process. `pool`: the imported pool that it lies in, or null.
template <class Handle>
CUresult open(Thread& thread, const Handle& handle, CUmemoryPool pool, CUdeviceptr* address) {
  Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const auto shared = read(handle, SharedHandle::Kind::memory);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  Session& session = session_of(thread);
  std::uint64_t opened = 0;
  const CUresult result = session.shared_memory.open(thread, session.contexts.home(*context), *shared, pool, opened);
  if (result == CUDA_SUCCESS) *address = opened;
  return result;
}

ShareKey key_of(wire::Shared::Reader shared) {
  const auto key = share_key(shared.getKey());
  if (!key) throw ProtocolError("the worker gave a key of another length than keys have");
  return *key;
}

}  // namespace

CUresult cuIpcGetMemHandle(Thread& thread, CUipcMemHandle* handle, CUdeviceptr address) {
  return share(thread, address, /*of_pool=*/false, handle);
}

CUresult cuIpcOpenMemHandle_v2(Thread& thread, CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  if (!address || (flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) return CUDA_ERROR_INVALID_VALUE;
  return open(thread, handle, nullptr, address);
}

CUresult cuIpcCloseMemHandle(Thread& thread, CUdeviceptr address) {
  return session_of(thread).shared_memory.close(thread, address, /*of_pool=*/false);
}

CUresult cuIpcGetEventHandle(Thread& thread, CUipcEventHandle* handle, CUevent event) {
  const Event* const found = session_of(thread).events.find(handle_of(event));
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (!found->shared()) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::ShareEvent> call(thread);
  call.in().setEvent(handle_of(event).value());
  if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) return bad;
  write({SharedHandle::Kind::event, key_of(call.out())}, *handle);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(Thread& thread, CUevent* out, CUipcEventHandle handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const auto shared = read(handle, SharedHandle::Kind::event);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::OpenSharedEvent> call(thread);
  if (!call) return call.error();
  Session& session = session_of(thread);
  const auto [minted, event] = session.events.create();
  if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
  event->handle = minted;
  event->context = thread.context();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  call.in().setKey(wire_of(shared->key));
  call.in().setEvent(minted.value());
  if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) {
    session.events.give_up(minted);
    return bad;
  }
  session.events.publish(minted);
  *out = handle_cast<CUevent>(minted);
  return CUDA_SUCCESS;
}

// An importing process knows a pool by its device; its allocations are shared one by one.
CUresult cuMemPoolExportToShareableHandle(Thread& thread, void* out, CUmemoryPool handle,
                                          CUmemAllocationHandleType type, unsigned long long flags) {
  const auto pool = session_of(thread).device_memory.pools().find(handle);
  if (!pool || !out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(pool->properties.handleTypes & type) || pool->imported)
    return CUDA_ERROR_INVALID_VALUE;
  SharedHandle shared{SharedHandle::Kind::pool, {}};
  const auto& uuid = session_of(thread).terms.facts.device(pool->device)->uuid;
  static_assert(sizeof(uuid) == sizeof(shared.key));
  std::memcpy(shared.key.data(), &uuid, sizeof(uuid));
  const int descriptor = shared.to_file();
  if (descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &descriptor, sizeof(descriptor));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(Thread& thread, CUmemoryPool* out, void* os_handle,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
  if (!out || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto shared =
      SharedHandle::from_file(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)), SharedHandle::Kind::pool);
  if (!shared) return CUDA_ERROR_INVALID_VALUE;
  const auto& devices = session_of(thread).terms.facts.devices;
  for (std::size_t device = 0; device < devices.size(); ++device) {
    if (std::memcmp(&devices[device].uuid, shared->key.data(), shared->key.size()) != 0) continue;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = static_cast<int>(device);
    const auto pool = session_of(thread).device_memory.pools().create(properties);
    pool->imported = true;
    *out = pool->cuda();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;  // none that this process sees
}

CUresult cuMemPoolExportPointer(Thread& thread, CUmemPoolPtrExportData* data, CUdeviceptr address) {
  return share(thread, address, /*of_pool=*/true, data);
}

CUresult cuMemPoolImportPointer(Thread& thread, CUdeviceptr* address, CUmemoryPool handle,
                                CUmemPoolPtrExportData* data) {
  const auto pool = session_of(thread).device_memory.pools().find(handle);
  if (!pool || !pool->imported || !address || !data) return CUDA_ERROR_INVALID_VALUE;
  return open(thread, *data, handle, address);
}

CUresult cuMemExportToShareableHandle(Thread& thread, void* out, CUmemGenericAllocationHandle allocation,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return refuse_use("export of an allocation other than as a file descriptor");
  session_of(thread).shared_memory.note(thread);
  RemoteCall<wire::ShareAllocation> call(thread);
  call.in().setAllocation(allocation);
  if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) return bad;
  const auto shared = call.out();
  const int descriptor =
      SharedHandle{SharedHandle::Kind::allocation, key_of(shared), shared.getBytes(), 0, shared.getBytes()}.to_file();
  if (descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &descriptor, sizeof(descriptor));
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(Thread& thread, CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return refuse_use("import of an allocation other than by a file descriptor");
  const auto shared = SharedHandle::from_file(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)),
                                              SharedHandle::Kind::allocation);
  if (!shared) return CUDA_ERROR_UNKNOWN;  // what NVIDIA's driver says
  session_of(thread).shared_memory.note(thread);
  RemoteCall<wire::ImportAllocation> call(thread);
  call.in().setKey(wire_of(shared->key));
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) *out = call.out().getAllocation();
  return result;
}

}  // namespace fargpu::client::hand
