#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "driver/handle_table.h"
#include "driver/operation.h"

namespace fargpu::softgpu {

class Condition;
class Graph;

/// One operation of a graph, and what it comes after. All under graph_mutex().
class GraphNode {
 public:
  struct Edge {
    GraphNode* node = nullptr;
    CUgraphEdgeData data = {};
  };

  GraphNode(Graph& graph, std::unique_ptr<Operation> operation);

  CUgraphNode handle() { return reinterpret_cast<CUgraphNode>(this); }
  Graph& graph() const { return graph_; }
  uint64_t id() const { return id_; }
  CUgraphNodeType type() const { return operation_->type(); }
  Operation& operation() const { return *operation_; }
  void replace(std::unique_ptr<Operation> operation) { operation_ = std::move(operation); }
  const std::vector<Edge>& dependencies() const { return dependencies_; }
  const std::vector<Edge>& dependents() const { return dependents_; }
  /// The node this one was made from when its graph was cloned.
  uint64_t origin_id() const { return origin_id_; }

 private:
  friend class Graph;
  Graph& graph_;
  const uint64_t id_;
  uint64_t origin_id_ = 0;
  std::unique_ptr<Operation> operation_;
  std::vector<Edge> dependencies_;
  std::vector<Edge> dependents_;
};

/// An object of the program that lives as long as somebody holds references to it.
class UserObject {
 public:
  UserObject(void* object, CUhostFn destroy, unsigned count) : object_(object), destroy_(destroy), count_(count) {}
  CUuserObject handle() { return reinterpret_cast<CUuserObject>(this); }
  void retain(unsigned count) { count_ += count; }
  /// Throws INVALID_VALUE if there are not that many. True if none is left.
  bool release(unsigned count);
  void destroy() const { destroy_(object_); }

 private:
  void* object_;
  CUhostFn destroy_;
  unsigned count_;
};

using UserObjectTable = HandleTable<UserObject, CUuserObject>;

/// How many references to user objects something holds.
using UserObjectCounts = std::map<CUuserObject, unsigned>;
/// References like these, for another holder.
UserObjectCounts retained(const UserObjectCounts& counts);
void release(const UserObjectCounts& counts);

/// Operations and their order. Changed under graph_mutex() only.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph() = default;
  ~Graph();

  CUgraph handle() { return reinterpret_cast<CUgraph>(this); }
  const std::vector<std::unique_ptr<GraphNode>>& nodes() const { return nodes_; }

  /// Throws INVALID_VALUE if a dependency is no node of this graph.
  GraphNode* add(std::unique_ptr<Operation> operation, const std::vector<GraphNode*>& dependencies);
  void add_edge(GraphNode* from, GraphNode* to, const CUgraphEdgeData& data);
  void remove_edge(GraphNode* from, GraphNode* to);
  void remove(GraphNode* node);
  std::shared_ptr<Graph> clone() const;
  /// In an order in which each node comes behind what it depends on; throws INVALID_VALUE if
  /// there is a cycle.
  std::vector<GraphNode*> in_order() const;
  GraphNode* find_clone_of(const GraphNode& original) const;
  /// Whether a graph is this one or lies within one of its nodes.
  bool holds(const Graph& other) const;

  // References that the graph holds to objects of the program.
  UserObjectCounts user_objects;
  /// A graph within a node of another one belongs to that.
  bool is_child = false;
  std::vector<std::shared_ptr<Condition>> conditions;
  /// The executable graph that was made of it last, while that exists.
  std::weak_ptr<void> instance;

 private:
  std::vector<std::unique_ptr<GraphNode>> nodes_;
};

class ChildGraphOperation : public Operation {
 public:
  explicit ChildGraphOperation(std::shared_ptr<Graph> graph) : graph(std::move(graph)) {}
  ~ChildGraphOperation() override;
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_GRAPH; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<ChildGraphOperation>(graph->clone()); }

  std::shared_ptr<Graph> graph;
};

/// Memory that a node of a graph allocates. The address is the node's for as long as the node or
/// a copy of it exists, so the memory is held as long; a free ends the use of it only.
class GraphAllocation {
 public:
  GraphAllocation(int device, uint64_t bytes);
  ~GraphAllocation();
  DeviceAddress address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  std::atomic<bool> is_in_use{false};

 private:
  int device_;
  uint64_t bytes_;
  DeviceAddress address_;
};

/// The allocation of a graph at an address; null if there is none.
std::shared_ptr<GraphAllocation> find_graph_allocation(DeviceAddress address);
/// For cuMemFree and cuMemFreeAsync: true if the address was a graph's, which is then free.
bool free_graph_allocation(DeviceAddress address);
/// Bytes of all graph allocations of a device, in use only or all.
uint64_t graph_memory_bytes(int device, bool in_use_only);

class MemoryAllocOperation : public Operation {
 public:
  MemoryAllocOperation(const CUDA_MEM_ALLOC_NODE_PARAMS& parameters);
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<MemoryAllocOperation>(*this); }

  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  std::shared_ptr<GraphAllocation> allocation;
};

class MemoryFreeOperation : public Operation {
 public:
  explicit MemoryFreeOperation(DeviceAddress address) : address(address) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<MemoryFreeOperation>(*this); }

  DeviceAddress address;
};

using GraphTable = HandleTable<Graph, CUgraph>;

/// Throws INVALID_VALUE for handles that are no nodes.
GraphNode* find_node(CUgraphNode handle);
std::vector<GraphNode*> find_nodes(const CUgraphNode* handles, size_t count);

}  // namespace fargpu::softgpu
