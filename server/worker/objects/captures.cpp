#include "captures.h"

namespace fargpu::server {

void relax_captures(DriverTable& driver) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver.cuThreadExchangeStreamCaptureMode(&mode);
}

bool Captures::capturing(const StreamState& stream) const {
  if (!any()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // The legacy stream answers with an error while a blocking stream is captured; recording on it would break that
  // capture.
  if (driver_.cuStreamIsCapturing(stream.cuda, &status) != CUDA_SUCCESS) return true;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Captures::into(Handle graph) const {
  if (!any()) return false;
  const Handle root = handles_.root_of(graph);
  bool found = false;
  handles_.for_each(HandleKind::stream, [&](Handle, const Handles::Entry& stream) {
    if (found) return;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph captured{};
    if (driver_.cuStreamGetCaptureInfo_v3(reinterpret_cast<CUstream>(stream.value), &status, nullptr, &captured,
                                          nullptr, nullptr, nullptr) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
      return;
    const Handle known = handles_.known(HandleKind::graph, reinterpret_cast<std::uint64_t>(captured));
    found = known && handles_.root_of(known) == root;
  });
  return found;
}

void Captures::begun(CUstream stream, bool own) {
  CUstreamCaptureStatus status{};
  Begun& capture = begun_[stream] = {.own = own};
  driver_.cuStreamGetCaptureInfo_v3(stream, &status, &capture.capture, nullptr, nullptr, nullptr, nullptr);
}

void Captures::ended(CUstream stream, CUresult result) {
  const auto capture = begun_.find(stream);
  if (capture == begun_.end()) return;
  const auto found = graphs_.find(capture->second.capture);
  begun_.erase(capture);
  if (found == graphs_.end()) return;
  if (result != CUDA_SUCCESS) handles_.forget(HandleKind::graph, found->second);
  graphs_.erase(found);
}

void Captures::abandon(CUstream stream) {
  const auto found = begun_.find(stream);
  if (found == begun_.end()) return;
  const bool own = found->second.own;
  CUgraph graph{};
  const CUresult result = driver_.cuStreamEndCapture(stream, &graph);
  if (result == CUDA_SUCCESS && own) driver_.cuGraphDestroy(graph);
  ended(stream, own ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : result);
}

Handle Captures::graph_of(cuuint64_t capture, CUgraph graph) {
  const auto raw = reinterpret_cast<std::uint64_t>(graph);
  if (const Handle known = handles_.known(HandleKind::graph, raw)) return known;
  return graphs_[capture] = handles_.reveal(HandleKind::graph, raw, 0);
}

}  // namespace fargpu::server
