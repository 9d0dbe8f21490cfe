#pragma once
// Arguments of the program's calls that name a stream, or another object by its handle.

#include <cuda.h>

#include "client/objects/stream.h"
#include "protocol/handle.h"
#include "protocol/invalid_handle.h"

namespace fargpu::client {

/// The stream that an argument means: resolves the special values, checks that it lives.
class StreamUse {
 public:
  /// Default streams are those of `context`, or of the thread's current one.
  StreamUse(Thread& thread, CUstream stream, Context* context = nullptr);
  explicit operator bool() const { return stream_ != nullptr; }
  CUresult error() const { return error_; }
  Stream* operator->() const { return stream_; }
  Stream& operator*() const { return *stream_; }
  operator Stream&() const { return *stream_; }
  std::uint64_t wire() const { return stream_->wire(); }
  /// What the stream is given becomes part of a graph: memory that the GPU is to use need not be there yet.
  bool captured() const { return stream_ && stream_->capture.load(std::memory_order_relaxed) != nullptr; }

 private:
  Stream* stream_ = nullptr;
  CUresult error_ = CUDA_ERROR_INVALID_HANDLE;
};

/// What a null stream means in the per-thread variant of a call.
inline CUstream own_default(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

CUresult check_event_handle(Thread& thread, Handle handle);

/// CUDA_SUCCESS if the handle may be sent: of the right kind and, where the client keeps the objects, alive.
template <HandleKind kind>
CUresult check_handle([[maybe_unused]] Thread& thread, Handle handle) {
  if constexpr (kind == HandleKind::event) {
    return check_event_handle(thread, handle);
  } else {
    // Of the driver's own values only the worker knows which ones are the session's.
    const bool right = device_visible(kind) || handle.well_formed(kind) ||
                       (kind == HandleKind::function && handle.well_formed(HandleKind::kernel));
    return right ? CUDA_SUCCESS : invalid_handle_result(kind);
  }
}

}  // namespace fargpu::client
