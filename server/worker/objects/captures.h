#pragma once
// Which streams the driver captures, and the graphs that it makes of them.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <unordered_set>

#include "driver_table.h"
#include "handles.h"
#include "streams.h"

namespace fargpu::server {

/// The client enforces capture rules for its threads; ours must never break a capture. For each thread that calls the
/// driver.
void relax_captures(DriverTable& driver);

/// Used by the executor only.
class Captures {
 public:
  Captures(DriverTable& driver, Handles& handles) : driver_(driver), handles_(handles) {}

  /// While there is none, nobody asks the driver.
  bool any() const { return !begun_.empty(); }
  /// Whether the driver captures the stream now: what it is given is no work yet.
  bool capturing(const StreamState& stream) const;

  /// Whether a stream is captured into the graph, or into one within it. Until the end of the capture such a graph may
  /// neither be destroyed nor lose nodes: CUDA Driver API, cuStreamGetCaptureInfo. The driver of CUDA 13.0 refuses that
  /// with CUDA_ERROR_ILLEGAL_STATE, but where the stream is captured into a graph within the one that goes: that ends
  /// the process.
  bool into(Handle graph) const;

  /// `own`: the driver makes a graph for it.
  void begun(CUstream stream, bool own);
  /// What cuStreamEndCapture said; a capture that was broken has ended too.
  void ended(CUstream stream, CUresult result);
  /// The stream is about to be destroyed. What is captured from there comes to nothing, and other streams leave it,
  /// which only the end of a capture is sure to bring about.
  void abandon(CUstream stream);
  /// The handle of a graph that the driver makes for the capture of this id: forgotten if the capture fails, for the
  /// driver destroys the graph then.
  Handle graph_of(cuuint64_t capture, CUgraph graph);

  /// Where an event of the program was recorded last. A question to the driver about one that was recorded in a capture
  /// breaks that (CUDA Driver API, cuEventQuery: CUDA_ERROR_CAPTURED_EVENT).
  void recorded(std::uint64_t event, bool in_capture) {
    if (!in_capture) events_.erase(event);
    else if (handles_.find(HandleKind::event, Handle(event))) events_.insert(event);
  }
  bool has_recorded(std::uint64_t event) const { return events_.contains(event); }
  /// Whether it is of interest which events are recorded.
  bool concern_records() const { return any() || !events_.empty(); }

 private:
  DriverTable& driver_;
  Handles& handles_;
  struct Begun {
    cuuint64_t capture = 0;  // the driver's id of it
    bool own = true;         // the graph is the capture's own
  };
  std::map<CUstream, Begun> begun_;      // by the stream where it began
  std::map<cuuint64_t, Handle> graphs_;  // by the capture, which other streams may join
  std::unordered_set<std::uint64_t> events_;
};

}  // namespace fargpu::server
