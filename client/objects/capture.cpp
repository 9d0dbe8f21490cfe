#include "capture.h"

#include <algorithm>
#include <utility>

#include "context.h"
#include "stream.h"
#include "thread.h"

namespace fargpu::client {

Capture* Captures::of(const Stream& stream) const { return stream.capture.load(); }

CUresult Captures::may_begin(const Thread&, const Stream& stream) const {
  if (stream.legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (of(stream)) return CUDA_ERROR_ILLEGAL_STATE;
  return CUDA_SUCCESS;
}

void Captures::begin(const Thread& thread, Stream& stream, CUstreamCaptureMode mode, bool into_graph) {
  const std::lock_guard lock(mutex_);
  auto capture = std::make_unique<Capture>();
  capture->id = next_id_++;
  capture->mode = mode;
  capture->thread = thread.id();
  capture->origin = &stream;
  capture->context = stream.context;
  capture->into_graph = into_graph;
  capture->streams.insert(&stream);
  stream.capture = capture.get();
  captures_.emplace(capture->id, std::move(capture));
  active_ = static_cast<unsigned>(captures_.size());
}

CUresult Captures::may_end(const Thread& thread, const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  Capture* const capture = of(stream);
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread.id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return CUDA_SUCCESS;
}

Captures::End Captures::end(Stream& stream) {
  const std::lock_guard lock(mutex_);
  Capture* capture = of(stream);
  if (!capture) return {};
  const End end{capture->invalidated, capture->into_graph};
  remove(*capture);
  return end;
}

void Captures::remove(const Capture& capture) {
  for (Stream* member : capture.streams) member->capture = nullptr;
  captures_.erase(capture.id);
  active_ = static_cast<unsigned>(captures_.size());
}

void Captures::context_closed(const Context& context) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  std::vector<const Capture*> over;
  for (const auto& [id, capture] : captures_)
    if (capture->context == &context) over.push_back(capture.get());
  for (const Capture* const capture : over) remove(*capture);
}

CUresult Captures::check_beside_captures(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (const Capture* capture = of(stream))
    return capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (Capture* capture : disturbed_by(stream)) {
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

// The legacy stream would synchronise with the blocking streams of its context, some of which are being captured.
std::vector<Capture*> Captures::disturbed_by(const Stream& stream) const {
  std::vector<Capture*> found;
  if (!stream.legacy()) return found;
  for (const auto& [id, capture] : captures_) {
    const bool blocking = std::any_of(capture->streams.begin(), capture->streams.end(),
                                      [](const Stream* member) { return member->blocking(); });
    if (capture->context == stream.context && blocking) found.push_back(capture.get());
  }
  return found;
}

void Captures::record(Event& event, const Stream& stream) {
  if (!any()) {
    event.capture = 0;
    return;
  }
  const std::lock_guard lock(mutex_);
  const Capture* capture = of(stream);
  event.capture = capture ? capture->id : 0;
}

CUresult Captures::wait(Stream& stream, const Event& event) {
  if (!any() && event.capture == 0) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = event.capture;
  const auto found = captures_.find(id);
  Capture* capture = of(stream);
  if (id == 0) {
    if (!capture || event.recorded == 0) return CUDA_SUCCESS;
    capture->invalidated = true;  // would depend on work outside of the capture
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (found == captures_.end()) {
    // Recorded in a capture that has ended.
    if (capture) capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (capture && capture != found->second.get()) {
    capture->invalidated = true;
    found->second->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (!capture) {
    if (stream.legacy()) {
      found->second->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    found->second->streams.insert(&stream);
    stream.capture = found->second.get();
  }
  return CUDA_SUCCESS;
}

CUresult Captures::check_query(const Thread& thread, Stream& stream) {
  if (!any()) return CUDA_SUCCESS;
  {
    const std::lock_guard lock(mutex_);
    if (Capture* capture = of(stream)) {
      capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  if (const CUresult bad = check_submission(stream); bad != CUDA_SUCCESS) return bad;
  return check_unsafe(thread);
}

namespace {

// A primary context has the streams of its green contexts, too.
bool has(const Context& context, const Stream& stream) {
  const Context& own = *stream.context;
  return &own == &context || (own.green && context.primary && own.device == context.device);
}

}  // namespace

CUresult Captures::check_context(const Context& context) {
  if (!any()) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [id, capture] : captures_) {
    const auto& members = capture->streams;
    if (std::none_of(members.begin(), members.end(), [&](const Stream* member) { return has(context, *member); }))
      continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::check_event(const Event& event) {
  const std::uint64_t id = event.capture;
  if (id == 0) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  if (const auto found = captures_.find(id); found != captures_.end()) found->second->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Captures::check_unsafe(const Thread& thread) {
  if (!any() || thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [id, capture] : captures_) {
    const bool own = capture->thread == thread.id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global =
        thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::status(const Stream& stream, CUstreamCaptureStatus& status, std::uint64_t& id) {
  status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!any()) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  if (const Capture* capture = of(stream)) {
    status = capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    id = capture->id;
    return CUDA_SUCCESS;
  }
  return disturbed_by(stream).empty() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

const CaptureAnswer* Captures::keep(const Stream& stream, std::uint64_t id, CaptureAnswer answer) {
  const std::lock_guard lock(mutex_);
  Capture* const capture = of(stream);
  if (!capture || capture->id != id) return nullptr;
  CaptureAnswer& kept = capture->answers[&stream];
  kept = std::move(answer);
  return &kept;
}

void Captures::invalidate(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (Capture* const capture = of(stream)) capture->invalidated = true;
}

void Captures::forget(Stream& stream) {
  if (!any()) return;
  const std::lock_guard lock(mutex_);
  if (Capture* capture = of(stream)) {
    // The capture is over with the stream where it began. Another may go; whether its work was joined in turn is told
    // at the end.
    if (capture->origin == &stream) return remove(*capture);
    capture->streams.erase(&stream);
    capture->answers.erase(&stream);
    stream.capture = nullptr;
  }
}

}  // namespace fargpu::client
