#include "memory_operation.h"

#include "client/objects/context.h"
#include "client/session/session.h"
#include "client/objects/thread.h"

namespace fargpu::client {
namespace {

template <class Word>
bool holds(unsigned flags, Word now, Word value) {
  switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_EQ: return now == value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR: return static_cast<Word>(~(now | value)) != 0;
    default:  // cyclic: numbers that have wrapped around are greater
      return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
  }
}

template <class Word>
Word load(std::uint64_t address) {
  return __atomic_load_n(reinterpret_cast<const Word*>(address), __ATOMIC_ACQUIRE);
}

template <class Word>
void store(std::uint64_t address, std::uint64_t value) {
  __atomic_store_n(reinterpret_cast<Word*>(address), static_cast<Word>(value), __ATOMIC_RELEASE);
}

// Where the value lies: memory of the GPU, or pinned memory, by whichever of its addresses.
CUresult place(Thread& thread, MemoryOperation& operation) {
  const std::uint64_t bytes = operation.wide() ? 8 : 4;
  const auto region = thread.session().map().find(operation.address);
  if (!region || !region->contains(operation.address, bytes) || operation.address % bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (region->kind == Region::Kind::managed) return CUDA_ERROR_INVALID_VALUE;
  if (region->kind == Region::Kind::alias) operation.address += region->owner - region->base;
  operation.on_host = region->on_host() || region->kind == Region::Kind::alias;
  return CUDA_SUCCESS;
}

}  // namespace

bool MemoryOperation::satisfied() const {
  return wide() ? holds<std::uint64_t>(flags, load<std::uint64_t>(address), value)
                : holds<std::uint32_t>(flags, load<std::uint32_t>(address), static_cast<std::uint32_t>(value));
}

void MemoryOperation::write() const {
  if (wide()) store<std::uint64_t>(address, value);
  else store<std::uint32_t>(address, value);
}

CUresult read_operation(Thread& thread, const Context& context, const CUstreamBatchMemOpParams& p, MemoryOperation& operation) {
  const Device& device = thread.session().facts().devices[static_cast<std::size_t>(context.device)];
  const auto can = [&](CUdevice_attribute attribute) { return device.attribute(attribute) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED; };
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
    if (served == CUDA_SUCCESS && (operation.flags & CU_STREAM_WAIT_VALUE_FLUSH)) served = can(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES);
    if (served == CUDA_SUCCESS && (operation.flags & 3u) == CU_STREAM_WAIT_VALUE_NOR)
      served = can(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR);
  } else if (operation.flags != CU_STREAM_WRITE_VALUE_DEFAULT) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return served == CUDA_SUCCESS ? place(thread, operation) : served;
}

void write_operation(const MemoryOperation& operation, wire::MemoryOperation::Builder out) {
  out.setOperation(operation.type);
  out.setFlags(operation.flags);
  out.setAddress(operation.address);
  out.setValue(operation.value);
}

}  // namespace fargpu::client
