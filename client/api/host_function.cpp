// Functions of the program in stream order. CUDA Driver API, "Execution Control", cuLaunchHostFunc; "Stream
// Management", cuStreamAddCallback.

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

CUresult enqueue(Thread& thread, CUstream stream, bool always, Callbacks::Function function) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (use->capture && always) return session_of(thread).captures.check_query(thread, *use);
  Callbacks& callbacks = session_of(thread).callbacks;
  const std::uint64_t number = callbacks.add(std::move(function), always);
  RemoteCall<wire::HostFunction> call(thread, use->context);
  auto in = call.in();
  in.setStream(use.wire());
  in.setCallback(number);
  in.setAlways(always);
  in.setOrdered(true);
  in.setHearsSkips(true);
  call.host_visible();
  try {
    const CUresult result = call.post(use);
    // Of a session that is lost the function may have been told already: then it is as good as given.
    if (result != CUDA_SUCCESS) return callbacks.remove(number) || !always ? result : CUDA_SUCCESS;
    session_of(thread).calls.commands.flush();  // the program may wait for the function, of which no call tells
    return result;
  } catch (...) {
    if (callbacks.remove(number) || !always) throw;
    return CUDA_SUCCESS;
  }
}

// On a stream that is captured the function becomes a node of the graph.
CUresult capture(Thread& thread, Stream& stream, GraphParts::Function function) {
  NewParts parts(session_of(thread).graph_parts);
  RemoteCall<wire::HostFunction> call(thread, stream.context);
  auto in = call.in();
  in.setStream(stream.wire());
  in.setPart(parts.add(function));
  const CUresult result = call.post(stream);
  if (result == CUDA_SUCCESS) parts.keep();
  return result;
}

}  // namespace

CUresult cuLaunchHostFunc(Thread& thread, CUstream stream, CUhostFn fn, void* user) {
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  if (const StreamUse use(thread, stream); use && use->capture.load()) return capture(thread, *use, {fn, user});
  return enqueue(thread, stream, false, [fn, user](CUresult) { fn(user); });
}

CUresult cuStreamAddCallback(Thread& thread, CUstream stream, CUstreamCallback callback, void* user, unsigned flags) {
  if (!callback || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(thread, stream, true, [=](CUresult status) { callback(stream, status, user); });
}

}  // namespace fargpu::client::hand
