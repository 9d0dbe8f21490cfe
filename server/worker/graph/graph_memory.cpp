#include "graph_memory.h"

#include <algorithm>

namespace fargpu::server {

// Forgets nodes whose graphs are gone, and executable graphs that are.
void GraphMemory::sweep() {
  std::erase_if(nodes_, [&](const auto& item) { return !handles_.find(HandleKind::node, Handle(item.first)); });
  std::erase_if(executables_, [&](const auto& item) { return !handles_.find(HandleKind::exec, Handle(item.first)); });
}

Handle GraphMemory::graph_of(Handle node) const {
  return handles_.find(HandleKind::node, node) ? handles_.root_of(node) : Handle();
}

CUresult GraphMemory::check(Handle graph, const Node& node) {
  if (handles_.root_of(graph) != graph) return CUDA_ERROR_NOT_SUPPORTED;  // within another graph
  if (node.allocates) return CUDA_SUCCESS;
  sweep();
  // No graph need hold the allocation any more: a launch may have left the memory to the program, which the client
  // knows.
  Handle owner;
  if (const auto found = allocations_.find(node.address); found != allocations_.end()) {
    if (found->second.freed_within) return CUDA_ERROR_INVALID_VALUE;
    owner = graph_of(found->second.node);
  }
  bool freed_by_others = false;
  for (const auto& [handle, other] : nodes_) {
    if (other.allocates || other.address != node.address) continue;
    if (handles_.root_of(Handle(handle)) == graph) return CUDA_ERROR_INVALID_VALUE;
    freed_by_others = true;
  }
  return graph == owner && freed_by_others ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

void GraphMemory::add(Handle node, const Node& what) {
  nodes_[node.value()] = what;
  if (what.allocates) {
    allocations_[what.address] = {.node = node, .part = what.part};
  } else if (const auto found = allocations_.find(what.address); found != allocations_.end()) {
    found->second.freed_within = found->second.freed_within || graph_of(found->second.node) == graph_of(node);
  }
}

void GraphMemory::released(std::uint64_t part) {
  std::erase_if(allocations_, [&](const auto& item) { return item.second.part == part; });
}

const GraphMemory::Node* GraphMemory::find(Handle node) const {
  const auto found = nodes_.find(node.value());
  return found == nodes_.end() ? nullptr : &found->second;
}

bool GraphMemory::any(Handle graph) {
  if (nodes_.empty()) return false;
  sweep();
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const auto& item) { return handles_.root_of(Handle(item.first)) == graph; });
}

GraphMemory::Effect GraphMemory::effect_of(Handle graph) const {
  std::map<std::uint64_t, unsigned> seen;  // by address: 1 allocated, 2 freed
  for (const auto& [handle, node] : nodes_)
    if (graph_of(Handle(handle)) == graph) seen[node.address] |= node.allocates ? 1u : 2u;
  Effect effect;
  for (const auto& [address, what] : seen)
    (what == 1 ? effect.allocated : what == 2 ? effect.freed : effect.within).push_back(address);
  return effect;
}

void GraphMemory::describe(Handle graph, wire::GraphMemory::Builder out) {
  const Effect effect = effect_of(graph);
  const auto tell = [](const std::vector<std::uint64_t>& from, auto&& init) {
    auto addresses = init(static_cast<unsigned>(from.size()));
    for (unsigned i = 0; i < from.size(); ++i) addresses.set(i, from[i]);
  };
  tell(effect.allocated, [&](unsigned n) { return out.initAllocated(n); });
  tell(effect.freed, [&](unsigned n) { return out.initFreed(n); });
  tell(effect.within, [&](unsigned n) { return out.initWithin(n); });
}

bool GraphMemory::instantiated(Handle graph) {
  sweep();
  return std::any_of(executables_.begin(), executables_.end(),
                     [&](const auto& item) { return item.second.graph == graph; });
}

void GraphMemory::set_instantiated(Handle graph, Handle exec) {
  Effect effect = effect_of(graph);
  if (effect.any()) executables_[exec.value()] = {.graph = graph, .effect = std::move(effect)};
  else executables_.erase(exec.value());
}

CUgraphExecUpdateResult GraphMemory::may_update(Handle exec, Handle graph) {
  sweep();
  const auto found = executables_.find(exec.value());
  const Executable now = found == executables_.end() ? Executable() : found->second;
  const Effect effect = effect_of(graph);
  if (!effect.any() && !now.effect.any()) return CU_GRAPH_EXEC_UPDATE_SUCCESS;
  if (!effect.alike(now.effect)) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  return now.graph != graph && instantiated(graph) ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
                                                   : CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace fargpu::server
