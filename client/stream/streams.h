#pragma once
// The streams of a session.

#include <cuda.h>

#include "client/base/handle_map.h"
#include "client/objects/capture.h"
#include "client/objects/stream.h"

namespace fargpu::client {

/// All but the legacy ones, which are their contexts'. Threads: any.
class Streams : public HandleMap<Stream> {
 public:
  /// `origin`: of all their handles.
  explicit Streams(Captures& captures, unsigned origin = 0)
      : HandleMap(HandleKind::stream, origin), captures_(captures) {}

  /// A stream that the program does not know; null if there are too many. `apart`: its work comes behind nothing but
  /// what it was given itself, not even what all of its context waits for.
  Stream* make_hidden(Thread& thread, Context& context, unsigned flags, bool apart = false);
  /// The default stream of a thread in its current context (CU_STREAM_PER_THREAD), made when first used; null if there
  /// are too many.
  Stream* default_of(Thread& thread, Context& context);
  /// cuStreamDestroy, and the end of a thread for its default streams.
  CUresult destroy(Thread& thread, Stream& stream);
  /// What a call about a handle is answered with that is of no stream, or no more.
  CUresult error(Handle handle) {
    return gone(handle, [](const Stream& stream) { return stream.without_green; }) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                                                   : CUDA_ERROR_INVALID_HANDLE;
  }

 private:
  Captures& captures_;
};

}  // namespace fargpu::client
