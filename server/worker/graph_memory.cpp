#include "graph_memory.h"

#include <algorithm>
#include <vector>

namespace fargpu::server {

// Forgets nodes whose graphs are gone.
void GraphMemory::sweep() {
  std::erase_if(nodes_, [&](const auto& item) { return !handles_.find(HandleKind::node, Handle(item.first)); });
  std::erase_if(executables_, [&](const auto& item) { return !handles_.find(HandleKind::exec, item.second); });
}

CUresult GraphMemory::check(Handle graph, const Node& node) {
  if (handles_.root_of(graph) != graph) return CUDA_ERROR_NOT_SUPPORTED;  // within another graph
  if (node.allocates) return CUDA_SUCCESS;
  sweep();
  Handle owner;
  bool freed_by_owner = false, freed_by_others = false;
  for (const auto& [handle, other] : nodes_)
    if (other.allocates && other.address == node.address) owner = handles_.root_of(Handle(handle));
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& [handle, other] : nodes_) {
    if (other.allocates || other.address != node.address) continue;
    const Handle by = handles_.root_of(Handle(handle));
    if (by == graph) return CUDA_ERROR_INVALID_VALUE;
    (by == owner ? freed_by_owner : freed_by_others) = true;
  }
  return freed_by_owner || (graph == owner && freed_by_others) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

const GraphMemory::Node* GraphMemory::find(Handle node) const {
  const auto found = nodes_.find(node.value());
  return found == nodes_.end() ? nullptr : &found->second;
}

bool GraphMemory::any(Handle graph) {
  if (nodes_.empty()) return false;
  sweep();
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& item) { return handles_.root_of(Handle(item.first)) == graph; });
}

void GraphMemory::describe(Handle graph, wire::GraphMemory::Builder out) {
  std::map<std::uint64_t, unsigned> seen;  // by address: 1 allocated, 2 freed
  for (const auto& [handle, node] : nodes_)
    if (handles_.root_of(Handle(handle)) == graph) seen[node.address] |= node.allocates ? 1u : 2u;
  const auto list = [&](unsigned how, auto&& init) {
    const auto count = std::count_if(seen.begin(), seen.end(), [&](const auto& item) { return item.second == how; });
    auto addresses = init(static_cast<unsigned>(count));
    unsigned i = 0;
    for (const auto& [address, what] : seen)
      if (what == how) addresses.set(i++, address);
  };
  list(1, [&](unsigned n) { return out.initAllocated(n); });
  list(2, [&](unsigned n) { return out.initFreed(n); });
  list(3, [&](unsigned n) { return out.initWithin(n); });
}

bool GraphMemory::instantiated(Handle graph) {
  const auto found = executables_.find(graph.value());
  return found != executables_.end() && handles_.find(HandleKind::exec, found->second) != nullptr;
}

}  // namespace fargpu::server
