#pragma once
// Stream capture: status, mode and legality are the client's business, because they belong to the program's threads.
// The driver always captures in relaxed mode. CUDA Driver API, "Stream Management", cuStreamBeginCapture and
// cuThreadExchangeStreamCaptureMode.

#include <cuda.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace fargpu::client {

struct Context;
struct Event;
struct Stream;
class Thread;

/// What cuStreamGetCaptureInfo gave pointers to: the program may use them until it asks about that stream again, or the
/// capture ends.
struct CaptureAnswer {
  std::vector<CUgraphNode> dependencies;
  std::vector<CUgraphEdgeData> edges;
};

/// One capture sequence, from cuStreamBeginCapture to cuStreamEndCapture.
struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint32_t thread = 0;  ///< that began it
  Stream* origin = nullptr;
  Context* context = nullptr;
  bool into_graph = false;  ///< a graph of the program's goes on, and is the program's whatever comes of it
  std::atomic<bool> invalidated{false};
  // Under Captures' lock:
  std::set<Stream*> streams;                       ///< that take part
  std::map<const Stream*, CaptureAnswer> answers;  ///< about these
};

class Captures {
 public:
  /// Whether any stream of the process is being captured. Cheap.
  bool any() const { return active_.load(std::memory_order_relaxed) > 0; }

  CUresult may_begin(const Thread& thread, const Stream& stream) const;
  void begin(const Thread& thread, Stream& stream, CUstreamCaptureMode mode, bool into_graph);
  /// Checks that the thread may end the capture of this stream; trying where it did not begin breaks it.
  CUresult may_end(const Thread& thread, const Stream& stream) const;
  struct End {
    bool invalidated = false;
    bool into_graph = false;
  };
  /// Forgets the capture; returns what it was.
  End end(Stream& stream);

  /// Work is being given to a stream: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for a broken capture,
  /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy stream beside one.
  CUresult check_submission(const Stream& stream) { return any() ? check_beside_captures(stream) : CUDA_SUCCESS; }
  /// An event was recorded on a stream; a stream waits for one.
  void record(Event& event, const Stream& stream);
  CUresult wait(Stream& stream, const Event& event);

  /// A call that waits for or asks about this stream or context is not allowed while it is captured, and breaks the
  /// capture; about another stream it is allowed where unsafe calls are.
  CUresult check_query(const Thread& thread, Stream& stream);
  CUresult check_context(const Context& context);
  CUresult check_event(const Event& event);

  /// A call that may disturb captures: refused, with the captures broken, where the thread's mode forbids it.
  CUresult check_unsafe(const Thread& thread);

  /// Status and id for cuStreamIsCapturing and cuStreamGetCaptureInfo.
  CUresult status(const Stream& stream, CUstreamCaptureStatus& status, std::uint64_t& id);
  /// Keeps what a query about this stream is answered with, in place of the earlier answer. Null if the stream takes no
  /// part in this capture any more.
  const CaptureAnswer* keep(const Stream& stream, std::uint64_t id, CaptureAnswer answer);

  /// The stream's capture, if it takes part in one, can come to nothing any more.
  void invalidate(const Stream& stream);

  /// The stream goes.
  void forget(Stream& stream);
  /// Its captures are over, and nobody can end them.
  void context_closed(const Context& context);

 private:
  CUresult check_beside_captures(const Stream& stream);
  void remove(const Capture& capture);  // under mutex_
  Capture* of(const Stream& stream) const;
  std::vector<Capture*> disturbed_by(const Stream& stream) const;

  mutable std::mutex mutex_;
  std::atomic<unsigned> active_{0};
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::unique_ptr<Capture>> captures_;
};

}  // namespace fargpu::client
