#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace fargpu::softgpu {

class Graph;
class GraphNode;
class Stream;

/// A capture of streams into a graph, from cuStreamBeginCapture to cuStreamEndCapture.
struct Capture {
  std::shared_ptr<Graph> graph;
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;  // that began it
  const Stream* origin = nullptr;
  bool is_invalidated = false;     // a forbidden call was made
  bool is_graph_own = true;        // false if captured into the program's graph
  std::set<Stream*> streams;       // that take part, the origin too
  std::vector<GraphNode*> nodes;   // that were captured
  std::vector<GraphNode*> let_go;  // that the program took from a stream's dependencies
};

/// Where in a capture an event was recorded.
struct CapturedPlace {
  std::weak_ptr<Capture> capture;
  std::vector<GraphNode*> nodes;
};

/// Serializes all changes of captures and graphs in the process; captures span streams and
/// threads, and graphs contain one another.
std::mutex& graph_mutex();

}  // namespace fargpu::softgpu
