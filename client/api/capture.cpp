// Stream capture. CUDA Driver API, "Stream Management".

#include "client/objects/capture.h"

#include <utility>

#include "calls_graph.capnp.h"
#include "calls_stream.capnp.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "forms.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "struct_codecs.h"

namespace fargpu::client::hand {
namespace {

bool mode_valid(CUstreamCaptureMode mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
         mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

}  // namespace

CUresult capture_info(Thread& thread, CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  std::uint64_t known_id = 0;
  if (const CUresult bad = session_of(thread).captures.status(*use, *status, known_id); bad != CUDA_SUCCESS) return bad;
  if (id && *status != CU_STREAM_CAPTURE_STATUS_NONE) *id = known_id;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE || (!graph && !dependencies && !edges && !count)) return CUDA_SUCCESS;
  RemoteCall<wire::CaptureInfo> call(thread, use->context);
  call.in().setStream(use.wire());
  if (const CUresult result = call.wait(); result != CUDA_SUCCESS) return result;
  const auto out = call.out();
  CaptureAnswer answer;
  for (const std::uint64_t node : out.getDependencies())
    answer.dependencies.push_back(handle_cast<CUgraphNode>(Handle(node)));
  bool plain_edges = true;
  for (const auto edge : out.getEdges()) {
    CUgraphEdgeData data{};
    data.from_port = edge.getFromPort();
    data.to_port = edge.getToPort();
    data.type = edge.getType();
    plain_edges = plain_edges && data.from_port == 0 && data.to_port == 0 && data.type == 0;
    answer.edges.push_back(data);
  }
  if (!answer.edges.empty() && answer.edges.size() != answer.dependencies.size())
    throw ProtocolError("a capture has edges other than its dependencies");
  // Callers that ask for dependencies without edge data must be told when there is some.
  if (dependencies && !edges && !plain_edges) return CUDA_ERROR_LOSSY_QUERY;
  const CaptureAnswer* const kept = session_of(thread).captures.keep(*use, known_id, std::move(answer));
  if (!kept) {  // another thread has ended the capture since
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  if (graph) *graph = handle_cast<CUgraph>(Handle(out.getGraph()));
  if (dependencies) *dependencies = kept->dependencies.data();
  if (edges) *edges = kept->edges.empty() ? nullptr : kept->edges.data();
  if (count) *count = kept->dependencies.size();
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(Thread& thread, CUstream stream, CUstreamCaptureStatus* status) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  std::uint64_t id = 0;
  return session_of(thread).captures.status(*use, *status, id);
}

CUresult cuThreadExchangeStreamCaptureMode(Thread& thread, CUstreamCaptureMode* mode) {
  if (!mode || !mode_valid(*mode)) return CUDA_ERROR_INVALID_VALUE;
  std::swap(thread.capture_mode, *mode);
  return CUDA_SUCCESS;
}

namespace {

// What the stream was given before is no part of the capture: the worker has made it first, if it could.
CUresult begin(Thread& thread, Stream& stream, CUstreamCaptureMode mode, bool into_graph, CUresult answer) {
  if (answer == CUDA_SUCCESS) session_of(thread).captures.begin(thread, stream, mode, into_graph);
  if (answer == CUDA_ERROR_NOT_SUPPORTED && session_of(thread).stream_waits.any_here())
    return refuse_use("beginning a capture behind work that is behind a wait for a value in memory of the host");
  return answer;
}

}  // namespace

CUresult cuStreamBeginCapture_v2(Thread& thread, CUstream stream, CUstreamCaptureMode mode) {
  if (!mode_valid(mode)) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Captures& captures = session_of(thread).captures;
  if (const CUresult bad = captures.may_begin(thread, *use); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuStreamBeginCaptureV2> call(thread, use->context);
  auto in = call.in();
  in.setHStream(use.wire());
  in.setMode(mode);
  return begin(thread, *use, mode, /*into_graph=*/false, call.wait());
}

CUresult cuStreamBeginCaptureToGraph(Thread& thread, CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, std::size_t count, CUstreamCaptureMode mode) {
  if (!mode_valid(mode) || (count > 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Captures& captures = session_of(thread).captures;
  if (const CUresult bad = captures.may_begin(thread, *use); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuStreamBeginCaptureToGraph> call(thread, use->context);
  auto in = call.in();
  in.setHStream(use.wire());
  in.setHGraph(handle_of(graph).value());
  const unsigned n = element_count(count);
  if (n != count) return CUDA_ERROR_INVALID_VALUE;
  auto list = in.initDependencies(n);
  for (unsigned i = 0; i < n; ++i) list.set(i, handle_of(dependencies[i]).value());
  in.setHasDependencyData(edges != nullptr);
  if (edges) {
    auto data = in.initDependencyData(n);
    for (unsigned i = 0; i < n; ++i) encode(edges[i], data[i]);
  }
  in.setNumDependencies(count);
  in.setMode(mode);
  return begin(thread, *use, mode, /*into_graph=*/true, call.wait());
}

CUresult cuStreamEndCapture(Thread& thread, CUstream stream, CUgraph* out) {
  if (out) *out = nullptr;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Captures& captures = session_of(thread).captures;
  if (const CUresult bad = captures.may_end(thread, *use); bad != CUDA_SUCCESS) return bad;
  const Captures::End end = captures.end(*use);
  RemoteCall<wire::CuStreamEndCapture> call(thread, use->context);
  call.in().setHStream(use.wire());
  // The capture must end at the worker too, whatever failed before: later work on the stream would go on into it. By
  // the time of the answer all failures of what this thread captured are known, and the graph lacks that.
  CUresult late = thread.take_own_late_error();
  const CUresult result = [&] {
    const Thread::AnswersOnly answers_only(thread);
    return call.wait();
  }();
  if (late == CUDA_SUCCESS) late = thread.take_own_late_error();
  const auto graph = [&] { return call.out().getPhGraph(); };
  // Nobody may have the driver's graph where the capture is invalid for a reason only the client knows, or wants it
  // without a place. A graph that was there before, perhaps a conditional node's, stays.
  if (end.invalidated || late != CUDA_SUCCESS || !out) {
    if (result == CUDA_SUCCESS && !end.into_graph) {
      RemoteCall<wire::CuGraphDestroy> discard(thread);
      discard.in().setHGraph(graph());
      discard.post();
    }
    if (late != CUDA_SUCCESS) return late;
    return end.invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : result;
  }
  if (result == CUDA_SUCCESS) *out = handle_cast<CUgraph>(Handle(graph()));
  return result;
}

}  // namespace fargpu::client::hand
