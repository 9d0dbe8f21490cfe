#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/context.h"
#include "driver/copy.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

DeviceAddress as_address(const void* host) { return reinterpret_cast<DeviceAddress>(host); }

/// When a copy that was asked for has to be over: synchronous calls wait unless both ends are on
/// the device (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: then too); any copy to pageable memory is complete
/// on return.
enum class Synchrony { synchronous, asynchronous };

void refuse_to_wait(const Stream& stream) {
  refuse_if_captured(stream);
  refuse_while_capturing();
}

void run_copy(std::unique_ptr<CopyOperation> copy, const std::shared_ptr<Stream>& stream, Synchrony synchrony) {
  stream->context()->check();
  if (copy->is_empty()) return;
  copy->check();
  copy->node_context = stream->context()->handle();
  if (synchrony == Synchrony::synchronous) refuse_to_wait(*stream);
  bool is_captured = stream_is_captured(*stream);
  bool must_wait = synchrony == Synchrony::synchronous ? copy->touches_host() || copy->touches_synchronizing()
                                                       : copy->writes_pageable() && !is_captured;
  if (synchrony == Synchrony::asynchronous && copy->reads_pageable() && !is_captured && !must_wait) copy->stage();
  if (must_wait) submit_and_wait(stream, std::move(copy));
  else submit(stream, std::move(copy));
}

CUresult copy_linear(DeviceAddress to, DeviceAddress from, size_t bytes, bool per_thread) {
  return entry([&] {
    require((to != 0 && from != 0) || bytes == 0);
    run_copy(CopyOperation::linear(to, from, bytes), find_stream(nullptr, per_thread), Synchrony::synchronous);
  });
}

CUresult copy_linear_async(DeviceAddress to, DeviceAddress from, size_t bytes, CUstream stream, bool per_thread) {
  return entry([&] {
    require((to != 0 && from != 0) || bytes == 0);
    run_copy(CopyOperation::linear(to, from, bytes), find_stream(stream, per_thread), Synchrony::asynchronous);
  });
}

/// Calls that name the device side expect memory of a device there, or what devices see.
void require_device(DeviceAddress address, size_t bytes) { require(bytes == 0 || !addresses().is_plain_host(address)); }

CUresult copy_host_to_device(DeviceAddress to, const void* from, size_t bytes, bool per_thread) {
  return entry([&] {
    require_device(to, bytes);
    return copy_linear(to, as_address(from), bytes, per_thread);
  });
}

CUresult copy_device_to_host(void* to, DeviceAddress from, size_t bytes, bool per_thread) {
  return entry([&] {
    require_device(from, bytes);
    return copy_linear(as_address(to), from, bytes, per_thread);
  });
}

CUresult copy_device_to_device(DeviceAddress to, DeviceAddress from, size_t bytes, bool per_thread) {
  return entry([&] {
    require_device(to, bytes);
    require_device(from, bytes);
    return copy_linear(to, from, bytes, per_thread);
  });
}

/// One row of an array and a place in the address space.
CUDA_MEMCPY2D array_row(size_t bytes) {
  CUDA_MEMCPY2D copy = {};
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  return copy;
}

CUDA_MEMCPY2D to_array(CUarray to, size_t offset, DeviceAddress from, size_t bytes) {
  CUDA_MEMCPY2D copy = array_row(bytes);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = to;
  copy.dstXInBytes = offset;
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = from;
  return copy;
}

CUDA_MEMCPY2D from_array(DeviceAddress to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY2D copy = array_row(bytes);
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = to;
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.srcXInBytes = offset;
  return copy;
}

CUDA_MEMCPY2D between_arrays(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  CUDA_MEMCPY2D copy = to_array(to, to_offset, 0, bytes);
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.srcXInBytes = from_offset;
  return copy;
}

template <class Descriptor>
CUresult copy_described(const Descriptor* descriptor, bool per_thread) {
  return entry([&] {
    require(descriptor != nullptr);
    run_copy(CopyOperation::from_descriptor(*descriptor), find_stream(nullptr, per_thread), Synchrony::synchronous);
  });
}

template <class Descriptor>
CUresult copy_described_async(const Descriptor* descriptor, CUstream stream, bool per_thread) {
  return entry([&] {
    require(descriptor != nullptr);
    run_copy(CopyOperation::from_descriptor(*descriptor), find_stream(stream, per_thread), Synchrony::asynchronous);
  });
}

/// Null is the current one.
void check_contexts(CUcontext to, CUcontext from) {
  for (CUcontext context : {to, from})
    if (context != nullptr) ContextTable::instance().get(context, CUDA_ERROR_INVALID_CONTEXT);
}

/// The synchronous copy comes behind all work of both contexts.
CUresult copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                   bool per_thread) {
  return entry([&] {
    check_contexts(to_context, from_context);
    refuse_to_wait(*find_stream(nullptr, per_thread));
    for (CUcontext context : {to_context, from_context})
      if (context != nullptr) ContextTable::instance().get(context)->synchronize();
    return copy_device_to_device(to, from, bytes, per_thread);
  });
}

CUresult copy_peer_async(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                         CUstream stream, bool per_thread) {
  return entry([&] {
    check_contexts(to_context, from_context);
    require_device(to, bytes);
    require_device(from, bytes);
    return copy_linear_async(to, from, bytes, stream, per_thread);
  });
}

}  // namespace

// ---- linear --------------------------------------------------------------------------------------------------------

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_linear(to, from, bytes, false); }
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_linear(to, from, bytes, true); }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_host_to_device(to, from, bytes, false);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_host_to_device(to, from, bytes, true);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy_device_to_host(to, from, bytes, false);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return copy_device_to_host(to, from, bytes, true);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_device_to_device(to, from, bytes, false);
}
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_device_to_device(to, from, bytes, true);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, from, bytes, stream, false);
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, from, bytes, stream, true);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, as_address(from), bytes, stream, false);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, as_address(from), bytes, stream, true);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(as_address(to), from, bytes, stream, false);
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(as_address(to), from, bytes, stream, true);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, from, bytes, stream, false);
}
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_linear_async(to, from, bytes, stream, true);
}

// ---- between devices -----------------------------------------------------------------------------------------------

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return copy_peer(to, to_context, from, from_context, bytes, false);
}
CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
  return copy_peer(to, to_context, from, from_context, bytes, true);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
  return copy_peer_async(to, to_context, from, from_context, bytes, stream, false);
}
CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                size_t bytes, CUstream stream) {
  return copy_peer_async(to, to_context, from, from_context, bytes, stream, true);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) { return copy_described(copy, false); }
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* copy) { return copy_described(copy, true); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy_described_async(copy, stream, false);
}
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy_described_async(copy, stream, true);
}

// ---- rectangles and boxes ------------------------------------------------------------------------------------------

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) { return copy_described(copy, false); }
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* copy) { return copy_described(copy, true); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return copy_described(copy, false); }
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* copy) { return copy_described(copy, true); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_described_async(copy, stream, false);
}
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_described_async(copy, stream, true);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) { return copy_described(copy, false); }
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* copy) { return copy_described(copy, true); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_described_async(copy, stream, false);
}
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy_described_async(copy, stream, true);
}

// ---- arrays --------------------------------------------------------------------------------------------------------

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY2D copy = to_array(to, offset, from, bytes);
  return copy_described(&copy, false);
}
CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY2D copy = to_array(to, offset, from, bytes);
  return copy_described(&copy, true);
}
CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
  CUDA_MEMCPY2D copy = to_array(to, offset, as_address(from), bytes);
  return copy_described(&copy, false);
}
CUresult cuMemcpyHtoA_v2_ptds(CUarray to, size_t offset, const void* from, size_t bytes) {
  CUDA_MEMCPY2D copy = to_array(to, offset, as_address(from), bytes);
  return copy_described(&copy, true);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = to_array(to, offset, as_address(from), bytes);
  return copy_described_async(&copy, stream, false);
}
CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = to_array(to, offset, as_address(from), bytes);
  return copy_described_async(&copy, stream, true);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY2D copy = from_array(to, from, offset, bytes);
  return copy_described(&copy, false);
}
CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY2D copy = from_array(to, from, offset, bytes);
  return copy_described(&copy, true);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY2D copy = from_array(as_address(to), from, offset, bytes);
  return copy_described(&copy, false);
}
CUresult cuMemcpyAtoH_v2_ptds(void* to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY2D copy = from_array(as_address(to), from, offset, bytes);
  return copy_described(&copy, true);
}
CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = from_array(as_address(to), from, offset, bytes);
  return copy_described_async(&copy, stream, false);
}
CUresult cuMemcpyAtoHAsync_v2_ptsz(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
  CUDA_MEMCPY2D copy = from_array(as_address(to), from, offset, bytes);
  return copy_described_async(&copy, stream, true);
}
CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  CUDA_MEMCPY2D copy = between_arrays(to, to_offset, from, from_offset, bytes);
  return copy_described(&copy, false);
}
CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  CUDA_MEMCPY2D copy = between_arrays(to, to_offset, from, from_offset, bytes);
  return copy_described(&copy, true);
}

// ---- filling -------------------------------------------------------------------------------------------------------

namespace {

struct Fill {
  CUdeviceptr address;
  size_t pitch;
  unsigned value;
  unsigned element_bytes;
  size_t width, height;
};

/// Filling is asynchronous with respect to the host, except for memory that the host sees too.
CUresult fill(const Fill& fill, CUstream handle, bool per_thread, Synchrony synchrony) {
  return entry([&] {
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    if (synchrony == Synchrony::synchronous) refuse_to_wait(*stream);
    CUDA_MEMSET_NODE_PARAMS parameters = {.dst = fill.address,
                                          .pitch = fill.pitch,
                                          .value = fill.value,
                                          .elementSize = fill.element_bytes,
                                          .width = fill.width,
                                          .height = fill.height};
    if (fill.width == 0 || fill.height == 0) return;
    auto operation = std::make_unique<MemsetOperation>(stream->context()->handle(), parameters);
    // What is captured may be given its memory later.
    if (!stream->capture) operation->check();
    auto range = addresses().find(fill.address);
    bool host_sees_it = range && (range->is_host() || range->kind == MemoryKind::managed);
    if (synchrony == Synchrony::synchronous && host_sees_it) submit_and_wait(stream, std::move(operation));
    else submit(stream, std::move(operation));
  });
}

CUresult fill_now(const Fill& what, bool per_thread) { return fill(what, nullptr, per_thread, Synchrony::synchronous); }
CUresult fill_async(const Fill& what, CUstream stream, bool per_thread) {
  return fill(what, stream, per_thread, Synchrony::asynchronous);
}

}  // namespace

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n) {
  return fill_now({to, 0, value, 1, n, 1}, false);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t n) {
  return fill_now({to, 0, value, 1, n, 1}, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t n) {
  return fill_now({to, 0, value, 2, n, 1}, false);
}
CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t n) {
  return fill_now({to, 0, value, 2, n, 1}, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t n) {
  return fill_now({to, 0, value, 4, n, 1}, false);
}
CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t n) {
  return fill_now({to, 0, value, 4, n, 1}, true);
}
CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 1, width, height}, false);
}
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 1, width, height}, true);
}
CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 2, width, height}, false);
}
CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 2, width, height}, true);
}
CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 4, width, height}, false);
}
CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height) {
  return fill_now({to, pitch, value, 4, width, height}, true);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 1, n, 1}, stream, false);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 1, n, 1}, stream, true);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 2, n, 1}, stream, false);
}
CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 2, n, 1}, stream, true);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 4, n, 1}, stream, false);
}
CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t n, CUstream stream) {
  return fill_async({to, 0, value, 4, n, 1}, stream, true);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  return fill_async({to, pitch, value, 1, width, height}, stream, false);
}
CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                                CUstream stream) {
  return fill_async({to, pitch, value, 1, width, height}, stream, true);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  return fill_async({to, pitch, value, 2, width, height}, stream, false);
}
CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                                 CUstream stream) {
  return fill_async({to, pitch, value, 2, width, height}, stream, true);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
                            CUstream stream) {
  return fill_async({to, pitch, value, 4, width, height}, stream, false);
}
CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height,
                                 CUstream stream) {
  return fill_async({to, pitch, value, 4, width, height}, stream, true);
}
