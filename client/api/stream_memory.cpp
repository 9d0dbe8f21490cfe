// Stream memory operations. CUDA Driver API, "Stream Memory Operations".

#include <cstring>
#include <vector>

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "forms.h"
#include "client/memory/read_operation.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

constexpr unsigned operations_max = 256;  // as the driver has it

using Operations = std::span<const MemoryOperation>;

// On memory of the GPU: in one call, which the GPU executes.
CUresult give_to_gpu(Thread& thread, const StreamUse& stream, Operations operations) {
  RemoteCall<wire::StreamMemory> call(thread, stream->context);
  call.in().setStream(stream.wire());
  auto list = call.in().initOperations(static_cast<unsigned>(operations.size()));
  for (unsigned i = 0; i < operations.size(); ++i) write_operation(operations[i], list[i]);
  const CUresult result = call.post(stream);
  const bool waits =
      std::any_of(operations.begin(), operations.end(), [](const MemoryOperation& o) { return o.waits(); });
  if (result == CUDA_SUCCESS && waits && !stream->capture.load()) {
    StreamWaits& all = session_of(thread).stream_waits;
    all.begun();
    session_of(thread).fences.after(thread, *stream, [&all] { all.passed(); });
  }
  return result;
}

// On memory of the host: here, when the stream gets there. The stream goes on when this is done, and by then what the
// program wrote earlier is where the GPU sees it; before a write, what the GPU wrote earlier is where the program sees
// it.
CUresult do_here(Thread& thread, const StreamUse& stream, const MemoryOperation& operation) {
  Session& session = session_of(thread);
  if (stream->capture.load()) return refuse_use("capturing a stream memory operation on memory of the host");
  Callbacks& callbacks = session.callbacks;
  std::uint64_t number;
  if (operation.waits()) {
    number = callbacks.take_number();
    session.stream_waits.add(number, operation, *stream->context);
  } else {
    // Freeing would wait for the stream. The worker says that the stream is done, and calls this.
    number = callbacks.add([&map = session.map, operation](CUresult) {
      const auto region = map.find(operation.address);
      if (region && region->on_host() && region->contains(operation.address, operation.wide() ? 8 : 4))
        operation.write();
    });
  }
  RemoteCall<wire::HostFunction> call(thread, stream->context);
  auto in = call.in();
  in.setStream(stream.wire());
  in.setCallback(number);
  in.setAlways(operation.waits());  // so that a wait on a stream that fails is not waited for
  in.setWatched(operation.waits());
  in.setHearsSkips(true);
  call.host_visible();
  const CUresult result = call.post(stream);
  if (result == CUDA_SUCCESS) {
    session.calls.commands.flush();  // the program may look at what is written, or wait for what comes behind
    return result;
  }
  if (operation.waits()) session.stream_waits.remove(number);
  else callbacks.remove(number);
  return result;
}

CUresult submit(Thread& thread, CUstream stream, unsigned count, const CUstreamBatchMemOpParams* params,
                unsigned flags) {
  if (!params || count == 0 || count > operations_max || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  const Session& session = session_of(thread);
  const Device& device = session.terms.facts.at(use->context->device);
  std::vector<MemoryOperation> operations(count);
  for (unsigned i = 0; i < count; ++i)
    if (const CUresult bad = read_operation(session.map, device, params[i], operations[i]); bad != CUDA_SUCCESS)
      return bad;
  for (std::size_t i = 0; i < count;) {
    std::size_t end = i;
    while (end < count && !operations[end].on_host) ++end;
    const CUresult result = end > i ? give_to_gpu(thread, use, Operations(operations).subspan(i, end - i))
                                    : do_here(thread, use, operations[end++]);
    if (result != CUDA_SUCCESS) return result;
    i = end;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult stream_operation(Thread& thread, CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                          std::uint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams params;
  std::memset(&params, 0, sizeof(params));
  params.operation = type;
  params.waitValue.address = address;
  params.waitValue.flags = flags;
  params.waitValue.value64 = value;  // of which the lower half is `value`
  return submit(thread, stream, 1, &params, 0);
}

namespace {

// The first version of these calls is there only where the driver was told to offer it; what it does the second version
// does too, but for a hint about the order of writes.
CUresult check_first_version(Thread& thread, CUstream stream, CUdevice_attribute attribute) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  const Device& device = session_of(thread).terms.facts.at(use->context->device);
  return device.attribute(attribute) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult stream_operation_v1(Thread& thread, CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                             std::uint64_t value, unsigned flags) {
  const bool wide = type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  const bool writes = type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  const CUresult bad = check_first_version(
      thread, stream,
      wide ? CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1 : CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1);
  if (bad != CUDA_SUCCESS) return bad;
  return stream_operation(thread, stream, type, address, value,
                          writes ? flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER} : flags);
}

CUresult cuStreamBatchMemOp_v2(Thread& thread, CUstream stream, unsigned count, CUstreamBatchMemOpParams* params,
                               unsigned flags) {
  return submit(thread, stream, count, params, flags);
}

CUresult cuStreamBatchMemOp(Thread& thread, CUstream stream, unsigned count, CUstreamBatchMemOpParams* params,
                            unsigned flags) {
  const CUresult bad = check_first_version(thread, stream, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1);
  return bad == CUDA_SUCCESS ? submit(thread, stream, count, params, flags) : bad;
}

}  // namespace fargpu::client::hand
