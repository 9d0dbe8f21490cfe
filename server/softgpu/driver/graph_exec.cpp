#include "driver/graph_exec.h"

#include <set>
#include <unordered_map>
#include <utility>

#include "driver/launch_operation.h"
#include "driver/stream.h"

namespace fargpu::softgpu {
namespace {

bool may_be_in_body(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_GRAPH:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return true;
    default: return false;
  }
}

/// The graphs that a node holds.
std::vector<std::shared_ptr<Graph>> graphs_of(const GraphNode& node) {
  if (node.type() == CU_GRAPH_NODE_TYPE_GRAPH) return {static_cast<ChildGraphOperation&>(node.operation()).graph};
  if (node.type() == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    return static_cast<ConditionalOperation&>(node.operation()).bodies();
  return {};
}

bool has_conditions(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->type() == CU_GRAPH_NODE_TYPE_CONDITIONAL) return true;
    for (const auto& inner : graphs_of(*node))
      if (has_conditions(*inner)) return true;
  }
  return false;
}

/// One execution of a conditional node: its bodies come one after the other, as the condition is when each may begin.
class ConditionalRun : public std::enable_shared_from_this<ConditionalRun> {
 public:
  ConditionalRun(std::shared_ptr<Context> context, const GraphPlan::Step& step)
      : context_(std::move(context)), condition_(step.condition), kind_(step.kind), bodies_(step.graphs) {}

  void start(DeferredTask::Finish finish) {
    finish_ = std::move(finish);
    decide();
  }

 private:
  void decide() {
    const size_t body = chosen_body(kind_, condition_->value(), bodies_.size());
    if (body >= bodies_.size() || context_->has_failed()) return finish_();
    const auto begin = make_marker(), end = make_marker();
    bodies_[body]->add_tasks(context_, begin, end);
    end->depend_on(begin);
    const auto after = std::make_shared<FunctionTask>(
        FunctionTask::Place::inline_on_completion,
        [self = shared_from_this()] { self->kind_ == CU_GRAPH_COND_TYPE_WHILE ? self->decide() : self->finish_(); });
    after->depend_on(end);
    after->submit();
    end->submit();
    begin->submit();
  }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Condition> condition_;
  const CUgraphConditionalNodeType kind_;
  const std::vector<std::shared_ptr<const GraphPlan>> bodies_;
  DeferredTask::Finish finish_;
};

}  // namespace

// ---- plans ---------------------------------------------------------------------------------------------------------

GraphPlan::GraphPlan(const Graph& graph, bool is_body) {
  for (const auto& condition : graph.conditions) require(condition->has_node);
  std::unordered_map<const GraphNode*, size_t> position;
  for (GraphNode* node : graph.in_order()) {
    require(!is_body || may_be_in_body(node->type()), CUDA_ERROR_NOT_SUPPORTED);
    Step step;
    step.node_id = node->id();
    step.type = node->type();
    const bool is_conditional = step.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    for (const auto& inner : graphs_of(*node))
      step.graphs.push_back(std::make_shared<const GraphPlan>(*inner, is_body || is_conditional));
    if (is_conditional) {
      auto& conditional = static_cast<ConditionalOperation&>(node->operation());
      step.condition = conditional.condition();
      step.kind = conditional.kind();
    } else if (step.graphs.empty()) {
      step.operation = node->operation().clone();
    }
    for (const GraphNode::Edge& edge : node->dependencies()) step.dependencies.push_back(position[edge.node]);
    position[node] = steps_.size();
    steps_.push_back(std::move(step));
  }
}

void GraphPlan::add_tasks(const std::shared_ptr<Context>& context, const std::shared_ptr<Task>& begin,
                          const std::shared_ptr<Task>& end) const {
  std::vector<std::shared_ptr<Task>> ends;
  for (const Step& step : steps_) {
    std::shared_ptr<Task> first, last;
    if (!step.is_enabled) {
      first = last = make_marker();
    } else if (step.condition != nullptr) {
      const auto run = std::make_shared<ConditionalRun>(context, step);
      first = last = std::make_shared<DeferredTask>([run](DeferredTask::Finish finish) { run->start(finish); });
    } else if (!step.graphs.empty()) {
      first = make_marker();
      last = make_marker();
    } else {
      first = last = step.operation->make_task(context);
    }
    first->depend_on(begin);
    for (size_t dependency : step.dependencies) first->depend_on(ends[dependency]);
    if (first != last) step.graphs.front()->add_tasks(context, first, last);
    end->depend_on(last);
    ends.push_back(last);
    first->submit();
    if (first != last) {
      last->depend_on(first);
      last->submit();
    }
  }
}

void GraphPlan::add_conditions(std::vector<std::shared_ptr<Condition>>& conditions) const {
  for (const Step& step : steps_) {
    if (step.condition != nullptr) conditions.push_back(step.condition);
    for (const auto& graph : step.graphs) graph->add_conditions(conditions);
  }
}

GraphPlan::UpdateFailure GraphPlan::compare(const Graph& graph) const {
  const std::vector<GraphNode*> order = graph.in_order();
  if (order.size() != steps_.size()) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr};
  std::unordered_map<const GraphNode*, size_t> position;
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  for (size_t i = 0; i < order.size(); ++i) {
    const Step& step = steps_[i];
    GraphNode* const node = order[i];
    std::vector<size_t> dependencies;
    for (const GraphNode::Edge& edge : node->dependencies()) dependencies.push_back(position[edge.node]);
    if (dependencies != step.dependencies) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, nullptr};
    if (node->type() != step.type) return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node, nullptr};
    if (step.type == CU_GRAPH_NODE_TYPE_KERNEL) {
      auto& before = static_cast<KernelOperation&>(*step.operation);
      auto& after = static_cast<KernelOperation&>(node->operation());
      if (before.function()->module()->context() != after.function()->module()->context())
        return {CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE, node, nullptr};
    }
    const auto inner = graphs_of(*node);
    const bool is_conditional = step.condition != nullptr;
    if (inner.size() != step.graphs.size() ||
        (is_conditional && static_cast<ConditionalOperation&>(node->operation()).kind() != step.kind))
      return {CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, node, nullptr};
    for (size_t k = 0; k < inner.size(); ++k) {
      UpdateFailure failure = step.graphs[k]->compare(*inner[k]);
      if (failure.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return failure;
    }
  }
  return {};
}

// ---- executable graphs ---------------------------------------------------------------------------------------------

// NVIDIA's driver does not tell of node priorities later.
GraphExec::GraphExec(Graph& graph, uint64_t flags)
    : flags_(flags & ~uint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY}) {
  require(graph.instance.expired() || !has_conditions(graph));
  plan_ = std::make_shared<GraphPlan>(graph);
  user_objects_ = retained(graph.user_objects);
  graph.instance = instance_;
}

GraphExec::~GraphExec() { release(user_objects_); }

// What a launch leaves allocated counts from the launch on, in the order in which the program
// launches and frees.
void GraphExec::use_memory() const {
  std::set<DeviceAddress> freed;
  for (const GraphPlan::Step& step : plan_->steps())
    if (step.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
      freed.insert(static_cast<const MemoryFreeOperation&>(*step.operation).address);
  std::vector<std::shared_ptr<GraphAllocation>> left;
  for (const GraphPlan::Step& step : plan_->steps()) {
    if (step.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    const auto& alloc = static_cast<const MemoryAllocOperation&>(*step.operation);
    if (freed.erase(alloc.parameters.dptr) != 0) continue;
    require(!alloc.allocation->is_in_use || (flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    left.push_back(alloc.allocation);
  }
  for (DeviceAddress address : freed) {
    auto allocation = find_graph_allocation(address);
    require(allocation != nullptr && allocation->is_in_use);
  }
  for (DeviceAddress address : freed) free_graph_allocation(address);
  for (const auto& allocation : left) allocation->is_in_use = true;
}

void GraphExec::launch(const std::shared_ptr<Stream>& stream) {
  use_memory();
  std::vector<std::shared_ptr<Condition>> conditions;
  plan_->add_conditions(conditions);
  const auto begin = std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion, [conditions] {
    for (const auto& condition : conditions) condition->begin();
  });
  const std::shared_ptr<Task> end = make_marker();
  // Launches of one executable graph come one after the other.
  begin->depend_on(last_launch_);
  last_launch_ = end;
  plan_->add_tasks(stream->context()->home(), begin, end);
  end->depend_on(begin);
  stream->context()->enqueue_pair(*stream, begin, end);
}

GraphPlan::Step& GraphExec::step_of(const GraphNode& node) {
  return const_cast<GraphPlan::Step&>(static_cast<const GraphExec&>(*this).step_of(node));
}

const GraphPlan::Step& GraphExec::step_of(const GraphNode& node) const {
  for (const GraphPlan::Step& step : plan_->steps())
    if (step.node_id == node.id()) return step;
  throw Failure(CUDA_ERROR_INVALID_VALUE);
}

Operation& GraphExec::operation_of(const GraphNode& node, CUgraphNodeType type) {
  GraphPlan::Step& step = step_of(node);
  require(step.type == type && step.operation != nullptr);
  return *step.operation;
}

void GraphExec::replace(const GraphNode& node, std::unique_ptr<Operation> operation) {
  GraphPlan::Step& step = step_of(node);
  require(step.type == operation->type() && step.operation != nullptr);
  step.operation = std::move(operation);
}

bool GraphExec::is_enabled(const GraphNode& node) const { return step_of(node).is_enabled; }

void GraphExec::set_enabled(const GraphNode& node, bool enabled) {
  GraphPlan::Step& step = step_of(node);
  require(step.type == CU_GRAPH_NODE_TYPE_KERNEL || step.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
          step.type == CU_GRAPH_NODE_TYPE_MEMSET);
  step.is_enabled = enabled;
}

void GraphExec::update_child(const GraphNode& node, Graph& graph) {
  GraphPlan::Step& step = step_of(node);
  require(step.type == CU_GRAPH_NODE_TYPE_GRAPH);
  GraphPlan::UpdateFailure failure = step.graphs.front()->compare(graph);
  require(failure.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  step.graphs.front() = std::make_shared<const GraphPlan>(graph);
}

GraphPlan::UpdateFailure GraphExec::update(Graph& graph) {
  GraphPlan::UpdateFailure failure = plan_->compare(graph);
  if (failure.result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return failure;
  const auto plan = std::make_shared<GraphPlan>(graph);
  for (size_t i = 0; i < plan->steps().size(); ++i) {
    GraphPlan::Step& step = plan->steps()[i];
    step.node_id = plan_->steps()[i].node_id;  // nodes of the graph that it was instantiated from name it
    step.is_enabled = plan_->steps()[i].is_enabled;
  }
  plan_ = plan;
  release(std::exchange(user_objects_, retained(graph.user_objects)));
  return {};
}

}  // namespace fargpu::softgpu
