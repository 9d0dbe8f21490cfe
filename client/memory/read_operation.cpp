#include "read_operation.h"

namespace fargpu::client {

namespace {

// Where the value lies: memory of the GPU, or pinned memory, by whichever of its addresses.
CUresult place(const MemoryMap& map, MemoryOperation& operation) {
  const std::uint64_t bytes = operation.wide() ? 8 : 4;
  const auto region = map.find(operation.address);
  if (!region || !region->contains(operation.address, bytes) || operation.address % bytes != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (region->managed()) return CUDA_ERROR_INVALID_VALUE;
  if (region->kind == Region::Kind::alias) operation.address += region->owner - region->base;
  operation.on_host = region->on_host() || region->kind == Region::Kind::alias;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult read_operation(const MemoryMap& map, const Device& device, const CUstreamBatchMemOpParams& p,
                        MemoryOperation& operation) {
  const auto can = [&](CUdevice_attribute attribute) {
    return device.attribute(attribute) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  };
  operation.type = p.operation;
  switch (p.operation) {
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      operation.flags = p.flushRemoteWrites.flags;
      return operation.flags != 0 ? CUDA_ERROR_INVALID_VALUE : can(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
    case CU_STREAM_MEM_OP_BARRIER:
      operation.flags = p.memoryBarrier.flags;
      return operation.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:  // waits and writes are laid out alike
      operation.address = p.waitValue.address;
      operation.flags = p.waitValue.flags;
      operation.value = operation.wide() ? p.waitValue.value64 : p.waitValue.value;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult served = operation.wide() ? can(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) : CUDA_SUCCESS;
  if (operation.waits()) {
    if (operation.flags & ~(3u | unsigned{CU_STREAM_WAIT_VALUE_FLUSH})) return CUDA_ERROR_INVALID_VALUE;
    if (served == CUDA_SUCCESS && (operation.flags & CU_STREAM_WAIT_VALUE_FLUSH))
      served = can(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
    if (served == CUDA_SUCCESS && (operation.flags & 3u) == CU_STREAM_WAIT_VALUE_NOR)
      served = can(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR);
  } else if (operation.flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return served == CUDA_SUCCESS ? place(map, operation) : served;
}

}  // namespace fargpu::client
