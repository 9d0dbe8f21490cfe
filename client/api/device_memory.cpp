// cuMemAlloc and its kin. CUDA Driver API, "Memory Management".

#include "client/memory/device_memory.h"

#include "calls_memory.capnp.h"
#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/pool.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {

CUresult cuMemAlloc_v2(Thread& thread, CUdeviceptr* dptr, std::size_t bytesize) {
  if (!dptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = thread.context();
  if (const CUresult bad = check_usable(context); bad != CUDA_SUCCESS) return bad;
  std::uint64_t address = 0;
  const CUresult result = session_of(thread).device_memory.allocate(thread, *context, bytesize, address);
  if (result == CUDA_SUCCESS) *dptr = address;
  return result;
}

// Rows begin at multiples of 512 bytes, which suits every access width and texture alignment there is.
CUresult cuMemAllocPitch_v2(Thread& thread, CUdeviceptr* dptr, std::size_t* pitch, std::size_t width,
                            std::size_t height, unsigned element_bytes) {
  if (!dptr || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t row = (width + 511) / 512 * 512;
  if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = cuMemAlloc_v2(thread, dptr, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUresult cuMemFree_v2(Thread& thread, CUdeviceptr dptr) {
  if (dptr == 0) return CUDA_SUCCESS;
  Session& session = session_of(thread);
  if (Pool* const pool = process().pool()) pool->between.settle(&session);
  if (session.shared_memory.imported(dptr)) return session.shared_memory.close(thread, dptr, /*of_pool=*/true);
  if (session.host_pools.knows(dptr)) return session.host_pools.free(thread, dptr, nullptr);
  if (!session.graph_memory.knows(dptr)) {
    // A driver waits for the context. Where nothing comes to the host by itself, and neither another context nor
    // another process may look, only later work could notice; elsewhere the memory's end waits. Nothing may be put
    // behind a function of the program: it may need memory of the GPU.
    const auto region = session.map.find(dptr);
    // What has outlasted its context may be in use in any other one.
    if (region && region->allocated() && !region->context) {
      if (const CUresult bad = session.waits.settle_all(thread); bad != CUDA_SUCCESS) return bad;
    }
    const bool allocated = region && region->allocated() && region->context && region->context->active;
    const bool noticed = allocated && (region->context->host_visible.load() > region->context->completed.load() ||
                                       session.contexts.several() || session.shared_memory.any());
    if (allocated && !noticed) session.waits.put_before_all(thread, *region->context);
    return session.device_memory.free(thread, dptr, noticed);
  }
  // Memory that a launch has left allocated: the launch may be under way yet, and programs rely on this call as a wait.
  if (const auto region = session.map.find(dptr); region && region->context->active) {
    if (const CUresult result = session.waits.settle(thread, *region->context); result != CUDA_SUCCESS) return result;
  }
  return session.graph_memory.free(thread, dptr);
}

CUresult cuMemGetInfo_v2(Thread& thread, std::size_t* free, std::size_t* total) {
  if (Context* const context = thread.context(); context && context->active) {
    Session& session = session_of(thread);
    // A driver's cuMemFree has waited. What else the context was given may wait for this thread.
    if (session.device_memory.frees_are_under_way()) {
      const std::uint64_t frees = session.device_memory.frees_begun();
      session.calls.commands.flush();
      session.calls.receiver.wait_until([&] { return session.device_memory.frees_done() >= frees; });
    }
  }
  RemoteCall<wire::CuMemGetInfoV2> call(thread);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto out = call.out();
  if (free) *free = out.getFree() + session_of(thread).device_memory.kept_bytes(thread.context()->device);
  if (total) *total = out.getTotal();
  return result;
}

CUresult cuMemGetAddressRange_v2(Thread& thread, CUdeviceptr* base, std::size_t* size, CUdeviceptr dptr) {
  if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto region = session_of(thread).map.find(dptr);
  if (!region || !(region->on_device() || region->device_address)) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = region->base;
  if (size) *size = region->bytes;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
