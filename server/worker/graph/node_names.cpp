#include "node_names.h"

#include <algorithm>

namespace fargpu::server {

std::vector<CUgraphNode> nodes_of(DriverTable& driver, CUgraph graph) {
  std::size_t count = 0;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return {};
  std::vector<CUgraphNode> nodes(count);
  if (count > 0 && driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) nodes.clear();
  return nodes;
}

NodeNames::Shape NodeNames::shape_of(DriverTable& driver, CUgraph graph, const std::vector<CUgraphNode>& nodes) {
  Shape shape;
  std::map<CUgraphNode, std::size_t> place;
  for (const CUgraphNode node : nodes) {
    place.emplace(node, place.size());
    driver.cuGraphNodeGetType(node, &shape.types.emplace_back());
  }
  std::size_t count = 0;
  driver.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count);
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count > 0) driver.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count);
  for (std::size_t i = 0; i < count; ++i) shape.edges.emplace_back(place[from[i]], place[to[i]]);
  std::sort(shape.edges.begin(), shape.edges.end());
  return shape;
}

void NodeNames::take(DriverTable& driver, CUgraph graph, CUgraph copy) {
  const std::vector<CUgraphNode> nodes = nodes_of(driver, graph);
  Shape shape = shape_of(driver, graph, nodes);
  copies_.clear();
  if (first_.empty()) {
    first_ = nodes;
    first_shape_ = std::move(shape);
    return;
  }
  if (shape != first_shape_) return;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    CUgraphNode found{};
    if (driver.cuGraphNodeFindInClone(&found, nodes[i], copy) == CUDA_SUCCESS) copies_[first_[i]] = found;
  }
}

CUgraphNode NodeNames::copy_of(CUgraphNode node) const {
  const auto found = copies_.find(node);
  return found == copies_.end() ? nullptr : found->second;
}

}  // namespace fargpu::server
