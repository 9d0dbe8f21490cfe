#include "driver/submission.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "driver/driver.h"
#include "driver/graph.h"

namespace fargpu::softgpu {
namespace {

/// Captures that are going on, under graph_mutex().
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::shared_ptr<Capture>>();
  return *all;
}

// So that calls need no lock as long as nobody captures anything.
std::atomic<int> capture_count{0};

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t next_capture_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

void require_intact(const Capture& capture) { require(!capture.is_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); }

/// Adds an operation to a capture, behind what the stream has captured so far.
void capture_operation(Stream& stream, std::unique_ptr<Operation> operation) {
  Capture& capture = *stream.capture;
  require_intact(capture);
  GraphNode* node = capture.graph->add(std::move(operation), stream.capture_dependencies);
  capture.nodes.push_back(node);
  stream.capture_dependencies = {node};
}

/// The legacy stream would wait for streams that are being captured.
void refuse_implicit_dependency(Stream& stream) {
  if (stream.kind() != Stream::Kind::legacy) return;
  if (!stream.context()->has_captured_blocking_stream()) return;
  for (const auto& capture : captures())
    for (Stream* captured : capture->streams)
      if (captured->context() == stream.context() && captured->is_blocking()) capture->is_invalidated = true;
  throw Failure(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

void end(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture_dependencies.clear();
    // Last, because the stream may hold the last reference.
    std::shared_ptr<Capture> held = std::move(stream->capture);
  }
  std::erase(captures(), capture);
  capture_count = static_cast<int>(captures().size());
}

/// True if everything captured comes before what the origin stream has captured last.
bool is_joined(const Capture& capture, const Stream& origin) {
  std::set<const GraphNode*> reached;
  std::vector<GraphNode*> pending = origin.capture_dependencies;
  pending.insert(pending.end(), capture.let_go.begin(), capture.let_go.end());
  while (!pending.empty()) {
    GraphNode* node = pending.back();
    pending.pop_back();
    if (!reached.insert(node).second) continue;
    for (const GraphNode::Edge& edge : node->dependencies()) pending.push_back(edge.node);
  }
  return std::all_of(capture.nodes.begin(), capture.nodes.end(),
                     [&](GraphNode* node) { return reached.contains(node); });
}

}  // namespace

void submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation) {
  if (capture_count != 0) {
    std::lock_guard lock(graph_mutex());
    if (stream->capture != nullptr) return capture_operation(*stream, std::move(operation));
    refuse_implicit_dependency(*stream);
  }
  stream->enqueue(operation->make_task(stream->context()->home()));
}

void submit_and_wait(const std::shared_ptr<Stream>& stream, std::unique_ptr<Operation> operation) {
  if (stream_is_captured(*stream)) return submit(stream, std::move(operation));
  if (capture_count != 0) {
    std::lock_guard lock(graph_mutex());
    refuse_implicit_dependency(*stream);
  }
  std::shared_ptr<Task> task = operation->make_task(stream->context()->home());
  stream->enqueue(task);
  task->wait();
  stream->context()->flush_print();
  stream->context()->check();
}

bool stream_is_captured(const Stream& stream) {
  if (capture_count == 0) return false;
  std::lock_guard lock(graph_mutex());
  return stream.capture != nullptr;
}

void refuse_while_capturing() {
  if (capture_count == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  std::lock_guard lock(graph_mutex());
  bool is_refused = false;
  for (const auto& capture : captures()) {
    bool is_own = capture->thread == std::this_thread::get_id();
    bool disturbs =
        is_own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
               : thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!disturbs) continue;
    capture->is_invalidated = true;
    is_refused = true;
  }
  require(!is_refused, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void refuse_if_captured(const Stream& stream) {
  if (capture_count == 0) return;
  std::lock_guard lock(graph_mutex());
  if (stream.capture != nullptr) {
    stream.capture->is_invalidated = true;
    throw Failure(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  refuse_implicit_dependency(const_cast<Stream&>(stream));
}

void refuse_if_captured(const Context& context) {
  if (capture_count == 0) return;
  std::lock_guard lock(graph_mutex());
  bool is_refused = false;
  for (const auto& capture : captures()) {
    if (capture->origin->context().get() != &context) continue;
    capture->is_invalidated = true;
    is_refused = true;
  }
  require(!is_refused, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CUstreamCaptureMode exchange_capture_mode(CUstreamCaptureMode mode) { return std::exchange(thread_mode, mode); }

void begin_capture(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph,
                   std::vector<GraphNode*> dependencies) {
  std::lock_guard lock(graph_mutex());
  require(stream->kind() != Stream::Kind::legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  require(stream->capture == nullptr, CUDA_ERROR_ILLEGAL_STATE);
  auto capture = std::make_shared<Capture>();
  capture->is_graph_own = graph == nullptr;
  capture->graph = graph != nullptr ? std::move(graph) : std::make_shared<Graph>();
  for (GraphNode* dependency : dependencies) require(&dependency->graph() == capture->graph.get());
  capture->id = next_capture_id();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->streams.insert(stream.get());
  stream->capture = capture;
  stream->capture_dependencies = std::move(dependencies);
  captures().push_back(std::move(capture));
  capture_count = static_cast<int>(captures().size());
}

std::shared_ptr<Graph> end_capture(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(graph_mutex());
  std::shared_ptr<Capture> capture = stream->capture;
  require(capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
  if (capture->origin != stream.get()) {
    capture->is_invalidated = true;
    throw Failure(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  bool is_wrong_thread =
      capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id();
  require(!is_wrong_thread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  bool was_joined = is_joined(*capture, *stream);
  end(capture);
  require_intact(*capture);
  require(was_joined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  return capture->graph;
}

void abandon_capture(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(graph_mutex());
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return;
  if (capture->origin == stream.get()) return end(capture);
  // A stream that joined a capture may go; its work must have been joined in turn at the end.
  capture->streams.erase(stream.get());
}

void record_event(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, unsigned flags) {
  {
    std::lock_guard lock(graph_mutex());
    if (stream->capture != nullptr) {
      if (flags & CU_EVENT_RECORD_EXTERNAL)
        return capture_operation(*stream, std::make_unique<EventRecordOperation>(event));
      require_intact(*stream->capture);
      auto place = std::make_shared<CapturedPlace>();
      place->capture = stream->capture;
      place->nodes = stream->capture_dependencies;
      return event->set_captured(std::move(place));
    }
    refuse_implicit_dependency(*stream);
  }
  stream->enqueue(event->make_record());
}

void wait_for_event(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event, unsigned flags) {
  {
    std::lock_guard lock(graph_mutex());
    if (stream->capture != nullptr && (flags & CU_EVENT_WAIT_EXTERNAL))
      return capture_operation(*stream, std::make_unique<EventWaitOperation>(event));
    auto place = event->captured();
    std::shared_ptr<Capture> capture = place != nullptr ? place->capture.lock() : nullptr;
    bool is_over = capture != nullptr && std::find(captures().begin(), captures().end(), capture) == captures().end();
    require(place == nullptr || (capture != nullptr && !is_over), CUDA_ERROR_CAPTURED_EVENT);
    if (capture != nullptr) {
      // The stream joins the capture, behind where the event was recorded.
      require(stream->kind() != Stream::Kind::legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      require_intact(*capture);
      if (stream->capture == nullptr) {
        stream->capture = capture;
        stream->capture_dependencies.clear();
        capture->streams.insert(stream.get());
      }
      if (stream->capture != capture) {
        capture->is_invalidated = stream->capture->is_invalidated = true;
        throw Failure(CUDA_ERROR_STREAM_CAPTURE_MERGE);
      }
      for (GraphNode* node : place->nodes)
        if (std::find(stream->capture_dependencies.begin(), stream->capture_dependencies.end(), node) ==
            stream->capture_dependencies.end())
          stream->capture_dependencies.push_back(node);
      return;
    }
    if (stream->capture != nullptr) {
      // Work outside the capture cannot be waited for within it.
      if (event->last_task() == nullptr) return;
      stream->capture->is_invalidated = true;
      throw Failure(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    refuse_implicit_dependency(*stream);
  }
  auto task = event->last_task();
  if (task == nullptr) return;
  std::shared_ptr<Task> marker = make_marker();
  marker->depend_on(task);
  stream->enqueue(marker);
}

}  // namespace fargpu::softgpu
