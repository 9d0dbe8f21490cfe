// Memory of sparse arrays and of those whose memory comes later. CUDA Driver API, "Virtual Memory Management",
// cuMemMapArrayAsync.

#include <bit>

#include "client/call/remote_call.h"
#include "client/session/arguments.h"
#include "client/session/process.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

// The memory's device is the stream's: in `deviceBitMask` is exactly that one.
CUresult write_mapping(const CUarrayMapInfo& info, int device, wire::ArrayMapping::Builder out) {
  if (info.flags != 0 || info.reserved[0] != 0 || info.reserved[1] != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!std::has_single_bit(info.deviceBitMask) || std::countr_zero(info.deviceBitMask) != device)
    return CUDA_ERROR_INVALID_VALUE;
  if (info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) return CUDA_ERROR_INVALID_VALUE;
  switch (info.resourceType) {
    case CU_RESOURCE_TYPE_ARRAY:
      if (!handle_of(info.resource.array).well_formed(HandleKind::array)) return CUDA_ERROR_INVALID_HANDLE;
      out.setArray(handle_of(info.resource.array).value());
      break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      if (!handle_of(info.resource.mipmap).well_formed(HandleKind::mipmap)) return CUDA_ERROR_INVALID_HANDLE;
      out.setMipmap(handle_of(info.resource.mipmap).value());
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL) {
    const auto& from = info.subresource.sparseLevel;
    auto level = out.initLevel();
    level.setLevel(from.level);
    level.setLayer(from.layer);
    level.setX(from.offsetX);
    level.setY(from.offsetY);
    level.setZ(from.offsetZ);
    level.setWidth(from.extentWidth);
    level.setHeight(from.extentHeight);
    level.setDepth(from.extentDepth);
  } else if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    auto tail = out.initTail();
    tail.setLayer(info.subresource.miptail.layer);
    tail.setOffset(info.subresource.miptail.offset);
    tail.setBytes(info.subresource.miptail.size);
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemGenericAllocationHandle memory = info.memHandle.memHandle;
  if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
    return memory == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP || !Handle(memory).well_formed(HandleKind::allocation))
    return CUDA_ERROR_INVALID_VALUE;
  out.setAllocation(memory);
  out.setOffset(info.offset);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemMapArrayAsync(Thread& thread, CUarrayMapInfo* list, unsigned count, CUstream stream) {
  if (!list || count == 0 || count > limits::array_elements_max) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (use->capture.load()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  RemoteCall<wire::MapArrays> call(thread, use->context);
  call.in().setStream(use.wire());
  auto items = call.in().initItems(count);
  for (unsigned i = 0; i < count; ++i)
    if (const CUresult bad = write_mapping(list[i], use->context->device, items[i]); bad != CUDA_SUCCESS) return bad;
  // What must come first may be this thread's to do.
  return session_of(thread).waits.for_host() ? call.post(use) : call.wait(use);
}

}  // namespace fargpu::client::hand
