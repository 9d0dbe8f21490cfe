#include "driver/graph.h"

#include <algorithm>
#include <atomic>

#include "driver/conditional.h"
#include "driver/driver.h"

namespace fargpu::softgpu {
namespace {

uint64_t next_node_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

/// The nodes that exist; a handle that is not here is refused.
std::set<GraphNode*>& live_nodes() {
  static auto* nodes = new std::set<GraphNode*>();
  return *nodes;
}

std::mutex& allocations_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

std::map<DeviceAddress, std::weak_ptr<GraphAllocation>>& allocations() {
  static auto* all = new std::map<DeviceAddress, std::weak_ptr<GraphAllocation>>();
  return *all;
}

bool points_to(const GraphNode::Edge& edge, const GraphNode* node) { return edge.node == node; }

}  // namespace

// ---- nodes ---------------------------------------------------------------------------------------------------------

GraphNode::GraphNode(Graph& graph, std::unique_ptr<Operation> operation)
    : graph_(graph), id_(next_node_id()), operation_(std::move(operation)) {}

GraphNode* find_node(CUgraphNode handle) {
  auto* node = reinterpret_cast<GraphNode*>(handle);
  require(live_nodes().contains(node));
  return node;
}

std::vector<GraphNode*> find_nodes(const CUgraphNode* handles, size_t count) {
  require(handles != nullptr || count == 0);
  std::vector<GraphNode*> nodes;
  for (size_t i = 0; i < count; ++i) nodes.push_back(find_node(handles[i]));
  return nodes;
}

// ---- objects of the program ----------------------------------------------------------------------------------------

bool UserObject::release(unsigned count) {
  require(count <= count_);
  count_ -= count;
  return count_ == 0;
}

// ---- graphs --------------------------------------------------------------------------------------------------------

UserObjectCounts retained(const UserObjectCounts& counts) {
  UserObjectCounts result;
  for (auto [handle, count] : counts)
    if (auto object = UserObjectTable::instance().find(handle)) {
      object->retain(count);
      result[handle] = count;
    }
  return result;
}

void release(const UserObjectCounts& counts) {
  for (auto [handle, count] : counts) {
    auto object = UserObjectTable::instance().find(handle);
    if (object == nullptr || !object->release(count)) continue;
    UserObjectTable::instance().remove(handle);
    object->destroy();
  }
}

Graph::~Graph() {
  for (const auto& node : nodes_) live_nodes().erase(node.get());
  release(user_objects);
}

GraphNode* Graph::add(std::unique_ptr<Operation> operation, const std::vector<GraphNode*>& dependencies) {
  for (GraphNode* dependency : dependencies) require(&dependency->graph() == this);
  nodes_.push_back(std::make_unique<GraphNode>(*this, std::move(operation)));
  GraphNode* node = nodes_.back().get();
  live_nodes().insert(node);
  for (GraphNode* dependency : dependencies) {
    bool is_double = std::any_of(node->dependencies_.begin(), node->dependencies_.end(),
                                 [&](const auto& edge) { return points_to(edge, dependency); });
    if (!is_double) add_edge(dependency, node, {});
  }
  return node;
}

void Graph::add_edge(GraphNode* from, GraphNode* to, const CUgraphEdgeData& data) {
  require(&from->graph() == this && &to->graph() == this && from != to);
  require(data.to_port == 0);
  for (const GraphNode::Edge& edge : from->dependents_) require(edge.node != to);
  from->dependents_.push_back({to, data});
  to->dependencies_.push_back({from, data});
}

void Graph::remove_edge(GraphNode* from, GraphNode* to) {
  size_t removed = std::erase_if(from->dependents_, [&](const auto& edge) { return points_to(edge, to); });
  require(removed != 0);
  std::erase_if(to->dependencies_, [&](const auto& edge) { return points_to(edge, from); });
}

void Graph::remove(GraphNode* node) {
  for (const GraphNode::Edge& edge : node->dependencies_)
    std::erase_if(edge.node->dependents_, [&](const auto& e) { return points_to(e, node); });
  for (const GraphNode::Edge& edge : node->dependents_)
    std::erase_if(edge.node->dependencies_, [&](const auto& e) { return points_to(e, node); });
  live_nodes().erase(node);
  std::erase_if(nodes_, [&](const auto& owned) { return owned.get() == node; });
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  std::unordered_map<const GraphNode*, GraphNode*> copies;
  for (const auto& node : nodes_) {
    GraphNode* made = copy->add(node->operation().clone(), {});
    made->origin_id_ = node->id();
    copies[node.get()] = made;
  }
  for (const auto& node : nodes_)
    for (const GraphNode::Edge& edge : node->dependencies_)
      copy->add_edge(copies[edge.node], copies[node.get()], edge.data);
  copy->user_objects = retained(user_objects);
  return copy;
}

std::vector<GraphNode*> Graph::in_order() const {
  std::vector<GraphNode*> order;
  std::unordered_map<const GraphNode*, size_t> waiting;
  for (const auto& node : nodes_) {
    waiting[node.get()] = node->dependencies().size();
    if (node->dependencies().empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i)
    for (const GraphNode::Edge& edge : order[i]->dependents())
      if (--waiting[edge.node] == 0) order.push_back(edge.node);
  require(order.size() == nodes_.size());
  return order;
}

GraphNode* Graph::find_clone_of(const GraphNode& original) const {
  for (const auto& node : nodes_)
    if (node->origin_id() == original.id()) return node.get();
  throw Failure(CUDA_ERROR_INVALID_VALUE);
}

bool Graph::holds(const Graph& other) const {
  if (this == &other) return true;
  for (const auto& node : nodes_) {
    if (const auto* child = dynamic_cast<const ChildGraphOperation*>(&node->operation()))
      if (child->graph->holds(other)) return true;
    if (const auto* conditional = dynamic_cast<const ConditionalOperation*>(&node->operation()))
      for (const auto& body : conditional->bodies())
        if (body->holds(other)) return true;
  }
  return false;
}

ChildGraphOperation::~ChildGraphOperation() {
  // Its handle, if the program has asked for it, ends with the node.
  if (graph->is_child) GraphTable::instance().remove(graph->handle());
}

std::shared_ptr<Task> ChildGraphOperation::make_task(const std::shared_ptr<Context>&) const {
  throw Failure(CUDA_ERROR_UNKNOWN);  // executable graphs hold child graphs as such
}

// ---- memory of graphs ----------------------------------------------------------------------------------------------

GraphAllocation::GraphAllocation(int device, uint64_t bytes)
    : device_(device), bytes_(bytes), address_(addresses().allocate(device, 0, bytes)) {}

GraphAllocation::~GraphAllocation() {
  {
    std::lock_guard lock(allocations_mutex());
    allocations().erase(address_);
  }
  // What a launch left in use still belongs to the program.
  if (!is_in_use) addresses().free(address_);
}

std::shared_ptr<GraphAllocation> find_graph_allocation(DeviceAddress address) {
  std::lock_guard lock(allocations_mutex());
  auto found = allocations().find(address);
  return found == allocations().end() ? nullptr : found->second.lock();
}

bool free_graph_allocation(DeviceAddress address) {
  auto allocation = find_graph_allocation(address);
  if (allocation == nullptr) return false;
  require(allocation->is_in_use.exchange(false));
  return true;
}

uint64_t graph_memory_bytes(int device, bool in_use_only) {
  std::lock_guard lock(allocations_mutex());
  uint64_t bytes = 0;
  for (const auto& [address, weak] : allocations())
    if (auto allocation = weak.lock())
      if (allocation->device() == device && (!in_use_only || allocation->is_in_use)) bytes += allocation->bytes();
  return bytes;
}

MemoryAllocOperation::MemoryAllocOperation(const CUDA_MEM_ALLOC_NODE_PARAMS& given) : parameters(given) {
  require(parameters.poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
  require(parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  int device = Driver::get().device(parameters.poolProps.location.id).ordinal();
  allocation = std::make_shared<GraphAllocation>(device, parameters.bytesize);
  parameters.dptr = allocation->address();
  parameters.accessDescs = nullptr;
  parameters.accessDescCount = 0;
  std::lock_guard lock(allocations_mutex());
  allocations()[allocation->address()] = allocation;
}

std::shared_ptr<Task> MemoryAllocOperation::make_task(const std::shared_ptr<Context>&) const { return make_marker(); }

std::shared_ptr<Task> MemoryFreeOperation::make_task(const std::shared_ptr<Context>&) const { return make_marker(); }

}  // namespace fargpu::softgpu
