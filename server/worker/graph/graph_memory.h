#pragma once
// Allocation and free nodes of graphs. The memory is the session's and there all the time, so that in the driver's
// graphs empty nodes stand in their place, and what CUDA says of graphs with such nodes is seen to here.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <vector>

#include "server/worker/objects/handles.h"
#include "operations.capnp.h"

namespace fargpu::server {

class GraphMemory {
 public:
  struct Node {
    bool allocates = false;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t part = 0;  // of an allocation: what graphs that hold the node keep alive
  };

  explicit GraphMemory(Handles& handles) : handles_(handles) {}

  /// Whether a graph may get this node: only one that stands by itself, and an allocation is freed once, by its own
  /// graph or by others.
  CUresult check(Handle graph, const Node& node);
  void add(Handle node, const Node& what);
  /// No graph holds the allocation node with this part any more.
  void released(std::uint64_t part);
  /// Null for nodes of other kinds.
  const Node* find(Handle node) const;
  /// Whether a graph has such nodes, those of its child graphs included.
  bool any(Handle graph);
  /// What launches do.
  void describe(Handle graph, wire::GraphMemory::Builder out);

  /// Of a graph with such nodes there is at most one executable graph at a time.
  bool instantiated(Handle graph);
  void set_instantiated(Handle graph, Handle exec);
  /// Whether an executable graph may become one of this graph, as far as such nodes are concerned.
  CUgraphExecUpdateResult may_update(Handle exec, Handle graph);

 private:
  struct Allocation {
    Handle node;  // perhaps gone: executable graphs hold it longer
    std::uint64_t part = 0;
    bool freed_within = false;  // by its own graph
  };
  /// Addresses that a launch allocates, frees, or both.
  struct Effect {
    std::vector<std::uint64_t> allocated, freed, within;
    bool alike(const Effect& other) const {
      return allocated.size() == other.allocated.size() && freed.size() == other.freed.size() &&
             within.size() == other.within.size();
    }
    bool any() const { return !alike({}); }
  };
  struct Executable {
    Handle graph;
    Effect effect;
  };
  Handle graph_of(Handle node) const;  // null if the node is gone
  Effect effect_of(Handle graph) const;
  void sweep();

  Handles& handles_;
  std::map<std::uint64_t, Node> nodes_;              // by handle; some may be gone
  std::map<std::uint64_t, Allocation> allocations_;  // by address
  std::map<std::uint64_t, Executable> executables_;  // by handle; some may be gone
};

}  // namespace fargpu::server
