#include "driver/operation.h"

#include <algorithm>

#include "driver/driver.h"
#include "driver/service_pool.h"

namespace fargpu::softgpu {
namespace {

thread_local bool in_host_function = false;

uint32_t bytes_of(const CUstreamBatchMemOpParams& op) {
  bool is_wide = op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  return is_wide ? 8 : 4;
}

/// Host memory of an aligned value; null if the program took it away meanwhile.
std::byte* find_value(DeviceAddress address, uint32_t bytes) {
  auto spans = addresses().spans(address, bytes);
  return spans ? spans->front().host : nullptr;
}

bool is_met(const CUstreamBatchMemOpParams& op, const std::byte* memory) {
  uint64_t value, current;
  int64_t difference;
  if (bytes_of(op) == 8) {
    value = op.waitValue.value64;
    current = __atomic_load_n(reinterpret_cast<const uint64_t*>(memory), __ATOMIC_ACQUIRE);
    difference = static_cast<int64_t>(current - value);
  } else {
    value = op.waitValue.value;
    current = __atomic_load_n(reinterpret_cast<const uint32_t*>(memory), __ATOMIC_ACQUIRE);
    difference = static_cast<int32_t>(static_cast<uint32_t>(current - value));
  }
  uint64_t all = bytes_of(op) == 8 ? ~uint64_t{0} : 0xffffffffu;
  switch (op.waitValue.flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return difference >= 0;  // cyclic
    case CU_STREAM_WAIT_VALUE_EQ: return current == value;
    case CU_STREAM_WAIT_VALUE_AND: return (current & value) != 0;
    default: return (~(current | value) & all) != 0;
  }
}

void write_value(const CUstreamBatchMemOpParams& op, std::byte* memory) {
  if (bytes_of(op) == 8) __atomic_store_n(reinterpret_cast<uint64_t*>(memory), op.writeValue.value64, __ATOMIC_SEQ_CST);
  else
    __atomic_store_n(reinterpret_cast<uint32_t*>(memory), static_cast<uint32_t>(op.writeValue.value), __ATOMIC_SEQ_CST);
}

/// Carries the operations out from `next` on; those that must wait resume here.
void run_memory_ops(const std::shared_ptr<Context>& context, const std::vector<CUstreamBatchMemOpParams>& ops,
                    size_t next, const DeferredTask::Finish& finish) {
  for (; next < ops.size() && !context->has_failed(); ++next) {
    const CUstreamBatchMemOpParams& op = ops[next];
    bool is_wait = op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    bool is_write = op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!is_wait && !is_write) continue;  // barriers and flushes: all is in order anyway
    std::byte* memory = find_value(is_wait ? op.waitValue.address : op.writeValue.address, bytes_of(op));
    if (memory == nullptr) {
      context->fail(CUDA_ERROR_ILLEGAL_ADDRESS, "memory of a stream memory operation is gone");
      break;
    }
    if (is_write) {
      write_value(op, memory);
    } else if (!is_met(op, memory)) {
      Poller::instance().watch([context, op, memory] { return context->has_failed() || is_met(op, memory); },
                               [context, ops, next, finish] { run_memory_ops(context, ops, next + 1, finish); });
      return;
    }
  }
  finish();
}

}  // namespace

bool is_in_host_function() { return in_host_function; }

void run_host_function(const std::function<void()>& function) {
  in_host_function = true;
  function();
  in_host_function = false;
}

std::shared_ptr<Task> HostOperation::make_task(const std::shared_ptr<Context>& context) const {
  return std::make_shared<FunctionTask>(FunctionTask::Place::service, [context, call = function, data = user_data] {
    if (!context->has_failed()) run_host_function([&] { call(data); });
  });
}

std::shared_ptr<Task> EventWaitOperation::make_task(const std::shared_ptr<Context>&) const {
  std::shared_ptr<Task> marker = make_marker();
  marker->depend_on(event->last_task());
  return marker;
}

MemoryOpsOperation::MemoryOpsOperation(CUcontext context, unsigned count, const CUstreamBatchMemOpParams* first,
                                       unsigned flags)
    : node_context(context), ops(first, first + count), flags(flags) {
  for (const CUstreamBatchMemOpParams& op : ops) {
    switch (op.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        require((op.waitValue.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) == 0);
        require(!(op.waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
        require(op.waitValue.address != 0 && op.waitValue.address % bytes_of(op) == 0);
        require(find_value(op.waitValue.address, bytes_of(op)) != nullptr);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        require((op.writeValue.flags & ~CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == 0);
        require(op.writeValue.address != 0 && op.writeValue.address % bytes_of(op) == 0);
        require(find_value(op.writeValue.address, bytes_of(op)) != nullptr);
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  }
}

std::shared_ptr<Task> MemoryOpsOperation::make_task(const std::shared_ptr<Context>& context) const {
  return std::make_shared<DeferredTask>(
      [context, ops = ops](const DeferredTask::Finish& finish) { run_memory_ops(context, ops, 0, finish); });
}

}  // namespace fargpu::softgpu
