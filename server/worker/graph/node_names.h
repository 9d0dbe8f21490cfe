#pragma once
// By which nodes a program names those of an executable graph.

#include <cuda.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "driver_table.h"

namespace fargpu::server {

/// In the order in which they were made; none of a graph that cannot be read.
std::vector<CUgraphNode> nodes_of(DriverTable& driver, CUgraph graph);

/// A node of an executable graph is named by the node of the graph that it was instantiated from, also after updates
/// with other graphs (CUDA driver API, Graph Management: cuGraphExecKernelNodeSetParams). The worker changes a copy of
/// the last of these graphs alike. Which node of the copy belongs to a node of that graph the driver tells; which one
/// belongs to a node of the first graph is known here.
class NodeNames {
 public:
  /// `copy` was made of `graph`, from which the executable graph was just instantiated, or with which it was updated.
  /// The first graph taken may be that of an update, if nothing had to be known of nodes before: then those of the
  /// graph before name nothing. Nodes are paired by the order in which they were made. Where types or edges differ from
  /// the first graph's, it is not known which node the driver takes for which, and the first graph's nodes name
  /// nothing.
  void take(DriverTable& driver, CUgraph graph, CUgraph copy);
  /// For a node of the first graph, once another one was taken. Null if it names none.
  CUgraphNode copy_of(CUgraphNode node) const;

 private:
  struct Shape {
    std::vector<CUgraphNodeType> types;
    std::vector<std::pair<std::size_t, std::size_t>> edges;  // sorted
    bool operator==(const Shape&) const = default;
  };
  static Shape shape_of(DriverTable& driver, CUgraph graph, const std::vector<CUgraphNode>& nodes);

  std::vector<CUgraphNode> first_;
  Shape first_shape_;
  std::map<CUgraphNode, CUgraphNode> copies_;
};

}  // namespace fargpu::server
