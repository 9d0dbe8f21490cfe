#pragma once
// Allocation and free nodes of graphs. The memory is the session's and there all the time, so that in the driver's graphs empty nodes
// stand in their place, and what CUDA says of graphs with such nodes is seen to here.

#include <cuda.h>

#include <cstdint>
#include <map>

#include "handles.h"
#include "operations.capnp.h"

namespace fargpu::server {

class GraphMemory {
 public:
  struct Node {
    bool allocates = false;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };

  explicit GraphMemory(Handles& handles) : handles_(handles) {}

  /// Whether a graph may get this node: only one that stands by itself, and an allocation is freed once, by its own graph or by others.
  CUresult check(Handle graph, const Node& node);
  void add(Handle node, const Node& what) { nodes_[node.value()] = what; }
  /// Null for nodes of other kinds.
  const Node* find(Handle node) const;
  /// Whether a graph has such nodes, those of its child graphs included.
  bool any(Handle graph);
  /// What launches do.
  void describe(Handle graph, wire::GraphMemory::Builder out);

  /// Of a graph with such nodes there is at most one executable graph at a time.
  bool instantiated(Handle graph);
  void set_instantiated(Handle graph, Handle exec) { executables_[graph.value()] = exec; }

 private:
  void sweep();

  Handles& handles_;
  std::map<std::uint64_t, Node> nodes_;  // by handle; some may be gone
  std::map<std::uint64_t, Handle> executables_;
};

}  // namespace fargpu::server
