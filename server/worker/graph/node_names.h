#pragma once
// By which nodes a program names those of an executable graph.

#include <cuda.h>

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "driver_table.h"

namespace fargpu::server {

/// A node of an executable graph is named by the node of the graph that it was instantiated from, also after updates
/// with other graphs (CUDA driver API, Graph Management: cuGraphExecKernelNodeSetParams). Here each name stands for the
/// node of the copy that was made of the last of these graphs.
class NodeNames {
 public:
  /// `copy` was made of `graph`, from which the executable graph was just instantiated, or with which it was updated.
  /// The first one taken may be that of an update, if before nothing had to be known of the graph's nodes: then those
  /// of the graph before name nothing. Nodes are paired with the first graph's by the order in which they were made.
  /// Where types or edges differ, which node the driver takes for which is not known, and the first graph's nodes name
  /// nothing.
  void take(DriverTable& driver, CUgraph graph, CUgraph copy);
  /// Null if the node names none.
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
