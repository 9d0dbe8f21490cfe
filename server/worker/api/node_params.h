#pragma once
// Parameters of graph nodes, between the wire and the driver.

#include <cuda.h>

#include <optional>
#include <vector>

#include "server/worker/code/arguments.h"
#include "operations.capnp.h"
#include "server/worker/session/session.h"

namespace fargpu::server {

/// One node's parameters from the wire, as the driver wants them. Points into the message, so it lives no longer than
/// that.
class NodeParameters {
 public:
  explicit NodeParameters(Session& session) : session_(session) { params_ = {}; }
  ~NodeParameters();
  NodeParameters(const NodeParameters&) = delete;
  NodeParameters& operator=(const NodeParameters&) = delete;

  /// Resolves and checks everything; makes the graph parts that are named.
  CUresult read(const Call& call, wire::NodeParameters::Reader in);
  CUresult read_copy(const Call& call, wire::Copy::Reader in, std::uint64_t context);
  CUresult read_host(const Call& call, std::uint64_t part);
  CUgraphNodeParams& params() { return params_; }
  CUDA_MEMCPY3D& copy() { return params_.memcpy.copyParams; }
  /// Whether the worker must attend to launches of a graph with such a node.
  bool attended() const;
  bool has_parts() const { return !references_.empty(); }
  /// Gives a node of a graph these parameters. A memset or copy for which no context is named stays in the node's own.
  CUresult give_to(CUgraphNode node);
  /// What an allocation or free node does.
  const std::optional<GraphMemory::Node>& memory() const { return memory_; }

  /// Gives the parts to a graph that shall keep them: done before the driver is told of the node, and undone if it
  /// refuses.
  CUresult keep_in(CUgraph graph);
  void take_back();

 private:
  CUresult read_kernel(const Call& call, wire::KernelNode::Reader in);
  CUresult read_memset(const Call& call, wire::MemsetNode::Reader in);
  CUresult read_memory(const Call& call, wire::MemoryOperations::Reader in);
  CUresult read_allocation(const Call& call, wire::AllocationNode::Reader in);
  CUresult read_conditional(const Call& call, wire::ConditionalNode::Reader in);
  CUresult resolve_side(const Call& call, const CopyShape& shape, CopySide& side);
  CUresult add_part(const Call& call, std::uint64_t number, const CopyShape& shape);
  CUresult node_context(const Call& call, std::uint64_t named, CUcontext& context);

  Session& session_;
  CUgraphNodeParams params_;
  Arguments arguments_;
  std::vector<CUstreamBatchMemOpParams> operations_;
  std::vector<CUuserObject> references_;
  std::optional<GraphMemory::Node> memory_;
  CUgraph keeper_ = nullptr;
  bool context_named_ = false;
};

/// Memory operations on memory of the session.
CUresult read_operations(Session& session, capnp::List<wire::MemoryOperation>::Reader in,
                         std::vector<CUstreamBatchMemOpParams>& out);

/// Whether a graph may get this allocation or free node.
CUresult check_memory(Session& session, Handle graph, const GraphMemory::Node& node);

/// The outermost graph that a graph or a node lies in; null if the session no longer has it.
CUgraph outermost_of(Session& session, Handle object);
/// The graph that keeps the parts of this one's nodes: the one it is within, or itself.
CUgraph keeper_of(Session& session, CUgraph graph);
/// The parts of the client that a node has, graphs within it left out.
std::vector<std::uint64_t> parts_of(Session& session, CUgraphNode node);
/// The driver has made `copy` of a graph. What the copy may not have got with it, `keeper`, which is the copy or a
/// graph around it, keeps from here on.
CUresult keep_parts_of_copy(Session& session, Handle original, CUgraph copy, CUgraph keeper);

/// Whether a graph is another one or lies within it, in a child graph or the body of a conditional node.
bool lies_in(Session& session, CUgraph graph, CUgraph outer);
/// Handles of graphs and nodes within a node, which end with it.
std::vector<Handle> known_within(Session& session, CUgraphNode outer);

/// Asks the driver for the parameters of a node that must be of this type.
CUresult write_node(Session& session, Call& call, CUgraphNode node, CUgraphNodeType type,
                    wire::NodeParameters::Builder out);

}  // namespace fargpu::server
