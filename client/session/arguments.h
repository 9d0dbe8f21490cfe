#pragma once
// Arguments of the program's calls that name a stream, or another object by its handle.

#include <cuda.h>

#include <algorithm>
#include <initializer_list>

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

 private:
  Stream* stream_ = nullptr;
  CUresult error_ = CUDA_ERROR_INVALID_HANDLE;
};

/// Whether a memory operation of a call without a stream waits for its end: its context has CU_CTX_SYNC_MEMOPS, or the
/// memory has CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
bool synchronizes(Thread& thread, const Stream& stream, CUdeviceptr address);

/// What a null stream means in the per-thread variant of a call.
inline CUstream own_default(CUstream stream) { return stream ? stream : CU_STREAM_PER_THREAD; }

CUresult check_event_handle(Thread& thread, Handle handle);
/// Of graphs and executable graphs, which are destroyed by calls that are not waited for.
bool is_destroyed(Thread& thread, Handle graph);
/// The program destroys a graph, an executable one or a node. While a stream is captured, maybe into it, only the
/// worker knows whether it goes.
void destroyed_now(Thread& thread, Handle handle);

/// Whether an argument is one of an enumeration's values, where the worker's answer to another one comes too late.
template <class Enumeration>
bool is_one_of(Enumeration value, std::initializer_list<Enumeration> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// CUDA_SUCCESS if the handle may be sent: of the right kind and, where the client keeps the objects, alive.
template <HandleKind kind>
CUresult check_handle([[maybe_unused]] Thread& thread, Handle handle) {
  if constexpr (kind == HandleKind::event) {
    return check_event_handle(thread, handle);
  } else {
    if constexpr (kind == HandleKind::graph || kind == HandleKind::exec) {
      if (is_destroyed(thread, handle)) return invalid_handle_result(kind);
    }
    // No reference at all is another error than one that is gone.
    if ((kind == HandleKind::texref || kind == HandleKind::surfref) && !handle) return CUDA_ERROR_INVALID_HANDLE;
    // Only the worker knows which of the driver's own values are the session's.
    const bool right = device_visible(kind) || handle.well_formed(kind) ||
                       (kind == HandleKind::function && handle.well_formed(HandleKind::kernel));
    return right ? CUDA_SUCCESS : invalid_handle_result(kind);
  }
}

}  // namespace fargpu::client
