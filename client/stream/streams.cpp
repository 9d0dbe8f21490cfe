#include "streams.h"

#include "calls_stream.capnp.h"
#include "client/call/remote_call.h"

namespace fargpu::client {

Stream* Streams::make_hidden(Thread& thread, Context& context, unsigned flags, bool apart) {
  const auto [handle, stream] = create();
  if (!stream) return nullptr;
  stream->handle = handle;
  stream->context = &context;
  stream->flags = flags;
  stream->id = context.number << 32 | handle.id();
  RemoteCall<wire::CuStreamCreate> call(thread, &context);
  auto in = call.in();
  in.setPhStream(handle.value());
  in.setFlags(flags);
  if (apart) call.never_held();
  call.tell();
  publish(handle);
  return stream;
}

Stream* Streams::default_of(Thread& thread, Context& context) {
  if (const auto known = thread.default_streams.find(&context); known != thread.default_streams.end())
    if (Stream* const stream = find(known->second)) return stream;
  Stream* const stream = make_hidden(thread, context, CU_STREAM_DEFAULT);
  if (stream) thread.default_streams[&context] = stream->handle;
  return stream;
}

CUresult Streams::destroy(Thread& thread, Stream& stream) {
  RemoteCall<wire::CuStreamDestroyV2> call(thread, stream.context);
  call.in().setHStream(stream.handle.value());
  captures_.forget(stream);
  const Handle handle = stream.handle;
  if (!stream.finished()) raise(stream.context->orphaned, stream.submitted.load());
  if (!erase(handle)) return CUDA_ERROR_INVALID_HANDLE;  // another thread was quicker
  const CUresult posted = call.post();
  if (call.number() == 0) call.tell();  // it goes, also in a context that has failed
  return posted;
}

}  // namespace fargpu::client
