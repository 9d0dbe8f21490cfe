#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "driver/conditional.h"
#include "driver/graph.h"

namespace fargpu::softgpu {

/// What launches of a graph do: a copy of its operations, each behind those that it depends on. A body of a conditional
/// node is executed some time after the launch, by another thread, so the plan of a body never changes.
class GraphPlan {
 public:
  struct Step {
    uint64_t node_id = 0;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    std::unique_ptr<Operation> operation;                  // null for nodes that hold graphs
    std::vector<size_t> dependencies;                      // earlier steps
    std::vector<std::shared_ptr<const GraphPlan>> graphs;  // the child graph, the bodies
    std::shared_ptr<Condition> condition;                  // of a conditional node
    CUgraphConditionalNodeType kind = CU_GRAPH_COND_TYPE_IF;
    bool is_enabled = true;
  };

  /// Throws INVALID_VALUE for a graph with a cycle, or with a condition that no node goes by; NOT_SUPPORTED for nodes
  /// that CUDA does not allow in a body (CUDA_CONDITIONAL_NODE_PARAMS).
  explicit GraphPlan(const Graph& graph, bool is_body = false);

  std::vector<Step>& steps() { return steps_; }
  const std::vector<Step>& steps() const { return steps_; }
  /// Adds tasks that come after `begin`, and makes `end` wait for them.
  void add_tasks(const std::shared_ptr<Context>& context, const std::shared_ptr<Task>& begin,
                 const std::shared_ptr<Task>& end) const;
  /// Its conditions, at any depth.
  void add_conditions(std::vector<std::shared_ptr<Condition>>& conditions) const;

  struct UpdateFailure {
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    GraphNode* node = nullptr;
    GraphNode* from = nullptr;
  };
  /// Whether a graph has the same shape, so that its operations may take the place of these.
  UpdateFailure compare(const Graph& graph) const;

 private:
  std::vector<Step> steps_;
};

/// A graph that can be launched: a plan that can be changed in place. Under graph_mutex().
class GraphExec {
 public:
  /// Throws what GraphPlan does; INVALID_VALUE for a second one of a graph with conditional nodes.
  GraphExec(Graph& graph, uint64_t flags);
  ~GraphExec();
  GraphExec(const GraphExec&) = delete;
  CUgraphExec handle() { return reinterpret_cast<CUgraphExec>(this); }
  uint64_t flags() const { return flags_; }

  void launch(const std::shared_ptr<Stream>& stream);
  /// The operation made from a node; throws INVALID_VALUE if there is none of that type.
  Operation& operation_of(const GraphNode& node, CUgraphNodeType type);
  void replace(const GraphNode& node, std::unique_ptr<Operation> operation);
  bool is_enabled(const GraphNode& node) const;
  void set_enabled(const GraphNode& node, bool enabled);
  void update_child(const GraphNode& node, Graph& graph);
  /// Takes over what the nodes of a graph of the same shape do.
  GraphPlan::UpdateFailure update(Graph& graph);

 private:
  GraphPlan::Step& step_of(const GraphNode& node);
  const GraphPlan::Step& step_of(const GraphNode& node) const;
  void use_memory() const;

  const uint64_t flags_;
  const std::shared_ptr<void> instance_ = std::make_shared<int>();  // what Graph::instance refers to
  std::shared_ptr<GraphPlan> plan_;
  std::shared_ptr<Task> last_launch_;
  UserObjectCounts user_objects_;  // of the graph, held as long as it can be launched
};

using GraphExecTable = HandleTable<GraphExec, CUgraphExec>;

}  // namespace fargpu::softgpu
