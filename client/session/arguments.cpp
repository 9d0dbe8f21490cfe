#include "arguments.h"

#include "client/objects/context.h"
#include "client/objects/thread.h"
#include "process.h"
#include "session.h"

namespace fargpu::client {

StreamUse::StreamUse(Thread& thread, CUstream stream, Context* context) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    if (!context) context = thread.context();
    if (!context) {
      error_ = CUDA_ERROR_INVALID_CONTEXT;
    } else if (!context->active) {
      error_ = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    } else if (stream == CU_STREAM_PER_THREAD) {
      stream_ = context->session->streams.default_of(thread, *context);
      error_ = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      stream_ = &context->legacy;
    }
    return;
  }
  Streams& streams = session_of(thread).streams;
  stream_ = streams.find(handle_of(stream));
  if (!stream_) error_ = streams.error(handle_of(stream));
}

bool synchronizes(Thread& thread, const Stream& stream, CUdeviceptr address) {
  Session& session = session_of(thread);
  if (session.contexts.home(*stream.context).flags & CU_CTX_SYNC_MEMOPS) return true;
  const auto region = session.map.find(address);
  return region && region->sync_memops;
}

CUresult check_event_handle(Thread& thread, Handle handle) {
  return session_of(thread).events.find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void destroyed_now(Thread& thread, Handle handle) {
  Session& session = session_of(thread);
  if (handle.kind() == HandleKind::exec) session.graphs.forget_changes(handle);
  else session.graphs.forget_changes();
  if (handle.kind() != HandleKind::node && !session.captures.any()) session.graphs.destroy(handle);
}

bool is_destroyed(Thread& thread, Handle graph) { return session_of(thread).graphs.destroyed(graph); }

}  // namespace fargpu::client
