#pragma once
// The fake driver's graphs, as the rest of it sees them: work given to a stream that is captured becomes a node.

#include <cuda.h>

#include <map>
#include <memory>
#include <vector>

#include "fake.h"
#include "objects.h"

namespace fargpu::fake {

struct Graph;
struct UserObject;

struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Graph* graph = nullptr;
  const Node* origin = nullptr;  // of which it is a copy
  bool enabled = true;
  CUfunction function = nullptr;
  bool as_kernel = false;
  Launch launch;
  std::vector<void*> arguments;  // given out by cuGraphKernelNodeGetParams
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS_v2 memset{};
  CUDA_HOST_NODE_PARAMS host{};
  CUevent event = nullptr;
  std::vector<CUstreamBatchMemOpParams> operations;
  CUgraphConditionalHandle condition = 0;
  std::vector<std::unique_ptr<Graph>> graphs;  // a child, or bodies
  std::vector<CUgraph> graph_handles;
  std::map<int, CUlaunchAttributeValue> attributes;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::pair<Node*, Node*>> edges;
  std::map<UserObject*, unsigned> references;
  Node* captured = nullptr;  // the last one
};

// What behaviour.cpp has.
/// Where a stream keeps the graph into which it is captured; null if there is no such stream.
Graph** capture_of(CUstream stream);
/// Somebody asks about an event that was recorded in a capture, which breaks all that are under way.
void break_captures();
/// A launch with its arguments gathered.
CUresult make_launch(CUfunction function, const unsigned* grid, const unsigned* block, unsigned shared_bytes,
                     void** params, Launch& launch);
const std::vector<std::pair<std::size_t, std::size_t>>& parameters_of(CUfunction function);
void run_launch(const Launch& launch);
CUresult run_memset(const CUDA_MEMSET_NODE_PARAMS_v2& memset);
CUresult record_event(CUevent event);

/// Does the writes among them.
void run_memory_operations(const std::vector<CUstreamBatchMemOpParams>& operations);

// What arrays.cpp has.
CUresult run_copy(const CUDA_MEMCPY3D& copy);

// What graphs.cpp has.
/// A new node of the graph into which the stream is captured; null if it is not.
Node* capture_node(CUstream stream, CUgraphNodeType type);
/// Does a copy, or makes it such a node.
CUresult copy_or_capture(const CUDA_MEMCPY3D& copy, CUstream stream);
Graph* make_graph();

}  // namespace fargpu::fake
