#pragma once
// Parameters of graph nodes, between programs and the wire.

#include <cuda.h>

#include "client/call/remote_call.h"
#include "client/objects/graph_parts.h"
#include "operations.capnp.h"

namespace fargpu::client {

/// The older structs, as the one that holds all kinds.
CUgraphNodeParams node_params(const CUDA_KERNEL_NODE_PARAMS_v1& p);
CUgraphNodeParams node_params(const CUDA_KERNEL_NODE_PARAMS_v2& p);
CUgraphNodeParams node_params(const CUDA_MEMSET_NODE_PARAMS_v1& p, CUcontext context);
CUgraphNodeParams node_params(const CUDA_MEMCPY3D& p, CUcontext context);
CUgraphNodeParams node_params(const CUDA_HOST_NODE_PARAMS_v1& p);
CUgraphNodeParams node_params(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1& p);
CUgraphNodeParams node_params(CUgraphNodeType record_or_wait, CUevent event);
CUgraphNodeParams node_params(CUgraph child);
CUgraphNodeParams empty_node();
CUgraphNodeParams free_node(CUdeviceptr address);

/// An allocation node's memory must have been made: GraphMemory::allocate.
CUresult write_node(Thread& thread, const CUgraphNodeParams& params, wire::NodeParameters::Builder out,
                    NewParts& parts);
void write_allocation(Thread& thread, std::uint64_t address, std::uint64_t bytes, wire::AllocationNode::Builder out,
                      NewParts& parts);

/// Asks for the parameters of a node that must be of this type; `read` takes them. `out`: where `read` puts them, which
/// must not be null.
template <class Read>
CUresult get_node(Thread& thread, CUgraphNode node, CUgraphNodeType type, const void* out, Read&& read) {
  if (!out || !handle_of(node).well_formed(HandleKind::node)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::GetNode> call(thread, ContextNeed::optional);
  call.in().setNode(handle_of(node).value());
  call.in().setType(type);
  const CUresult result = call.wait();
  return result == CUDA_SUCCESS ? read(call.out().getParameters()) : result;
}

CUresult read_kernel(Thread& thread, CUgraphNode node, wire::KernelNode::Reader in, CUDA_KERNEL_NODE_PARAMS_v2& params);
void read_memset(Thread& thread, wire::MemsetNode::Reader in, CUDA_MEMSET_NODE_PARAMS_v1& params);
void read_memory(Thread& thread, CUgraphNode node, wire::MemoryOperations::Reader in,
                 CUDA_BATCH_MEM_OP_NODE_PARAMS_v1& params);

}  // namespace fargpu::client
