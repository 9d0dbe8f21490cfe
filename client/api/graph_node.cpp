// Nodes of graphs: adding them, and their parameters. CUDA Driver API, "Graph Management".

#include "node_params.h"

#include "calls_graph.capnp.h"
#include "forms.h"
#include "client/session/entry.h"
#include "client/code/launch_attributes.h"
#include "client/code/launch_class.h"
#include "client/copy/copy_node.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "cuda_facts.h"

namespace fargpu::client::hand {
namespace {

// What the parameters of an allocation node say of it is checked, and its memory made.
CUresult allocate(Thread& thread, CUDA_MEM_ALLOC_NODE_PARAMS_v2& p) {
  if (p.bytesize == 0 || p.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      p.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.accessDescCount > 0 && !p.accessDescs) return CUDA_ERROR_INVALID_VALUE;
  if (p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return refuse_use("an allocation node in host memory");
  Session& session = session_of(thread);
  if (!session.terms.facts.has(p.poolProps.location.id)) return CUDA_ERROR_INVALID_DEVICE;
  for (std::size_t i = 0; i < p.accessDescCount; ++i)
    if (p.accessDescs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        p.accessDescs[i].location.id != p.poolProps.location.id)
      return refuse_use("an allocation node with access of other devices");
  Context& context = session.contexts.primary(p.poolProps.location.id);
  Context* const current = thread.context();
  if (!current && !context.active) return CUDA_ERROR_INVALID_CONTEXT;
  std::uint64_t address = 0;
  const CUresult result =
      session.graph_memory.allocate(thread, current && current->device == p.poolProps.location.id ? *current : context,
                                    p.poolProps.location.id, p.bytesize, address);
  p.dptr = address;
  return result;
}

CUresult send_node(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                   const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams& params) {
  if (!out || (count > 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  NewParts parts(session_of(thread).graph_parts);
  RemoteCall<wire::AddNode> call(thread, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setGraph(handle_of(graph).value());
  const unsigned n = element_count(count);
  if (n != count) return CUDA_ERROR_INVALID_VALUE;
  auto list = in.initDependencies(n);
  for (unsigned i = 0; i < n; ++i) list.set(i, handle_of(dependencies[i]).value());
  if (edges) {
    auto data = in.initEdges(n);
    for (unsigned i = 0; i < n; ++i) {
      data[i].setFromPort(edges[i].from_port);
      data[i].setToPort(edges[i].to_port);
      data[i].setType(edges[i].type);
    }
  }
  if (const CUresult bad = write_node(thread, params, in.initParameters(), parts); bad != CUDA_SUCCESS) return bad;
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  session_of(thread).host_memory.graph_has(thread, parts);
  parts.keep();
  const auto reply = call.out();
  const Handle node(reply.getNode());
  if (params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    auto& bodies = session_of(thread).graphs.given(node).bodies;
    bodies.clear();
    for (const std::uint64_t body : reply.getBodies()) bodies.push_back(handle_cast<CUgraph>(Handle(body)));
    if (bodies.size() != params.conditional.size) throw ProtocolError("a conditional node without its bodies");
    params.conditional.phGraph_out = bodies.data();
  }
  *out = handle_cast<CUgraphNode>(node);
  return result;
}

CUresult add_node(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams& params) {
  if (params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return send_node(thread, out, graph, dependencies, edges, count, params);
  if (const CUresult bad = allocate(thread, params.alloc); bad != CUDA_SUCCESS) return bad;
  const CUresult result = send_node(thread, out, graph, dependencies, edges, count, params);
  if (result != CUDA_SUCCESS) session_of(thread).graph_memory.discard(thread, params.alloc.dptr);
  return result;
}

// What decides whether a kernel node of an executable graph may be changed so; its arguments do not.
std::uint64_t class_of(Thread& thread, wire::KernelNode::Reader kernel) {
  Session& session = session_of(thread);
  Function* const function = session.functions.find(handle_cast<CUfunction>(Handle(kernel.getFunction())));
  const Context* const current = thread.context();
  LaunchClass change;
  change.add(kernel.getFunction());
  change.add(function ? function->changes_now() : 0);
  change.add(kernel.getAsKernel());
  change.add(std::uint64_t{kernel.getGridX()} << 32 | kernel.getGridY());
  change.add(std::uint64_t{kernel.getGridZ()} << 32 | kernel.getBlockX());
  change.add(std::uint64_t{kernel.getBlockY()} << 32 | kernel.getBlockZ());
  change.add(std::uint64_t{kernel.getSharedBytes()} << 32 | kernel.getParameters().size());
  change.add(kernel.getContext());
  change.add(current ? current->id() : 0);
  return change.value();
}

// Frameworks give the kernels of an executable graph other arguments before each of its launches. A graph that the
// worker attends to keeps a copy, which has more reasons to refuse.
bool surely_accepted(Session& session, Handle exec, CUgraphNode node, std::uint64_t change) {
  return !session.graphs.attended(exec) && !session.graphs.destroyed(exec) &&
         session.graphs.change_known(exec, handle_of(node), change);
}

// Copies of an executable graph that the worker does not attend to name pinned memory as kernels do.
CUresult map_pinned_sides(Thread& thread, const CUDA_MEMCPY3D& copy) {
  Session& session = session_of(thread);
  for (const auto& side : {source_of(copy), target_of(copy)}) {
    if (!side || side->in_array()) continue;
    const auto region = session.map.find(side->begin());
    std::uint64_t ignored;
    if (!region || !region->on_host()) continue;
    if (const CUresult bad = session.host_memory.map(thread, side->begin(), ignored); bad != CUDA_SUCCESS) return bad;
  }
  return CUDA_SUCCESS;
}

CUresult change_node(Thread& thread, Handle exec, CUgraphNode node, const CUgraphNodeParams& params) {
  if (!handle_of(node).well_formed(HandleKind::node)) return CUDA_ERROR_INVALID_VALUE;
  if (params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    return CUDA_ERROR_INVALID_VALUE;
  NewParts parts(session_of(thread).graph_parts);
  RemoteCall<wire::SetNode> call(thread, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setExec(exec.value());
  in.setNode(handle_of(node).value());
  if (exec && params.type == CU_GRAPH_NODE_TYPE_MEMCPY && !session_of(thread).graphs.attended(exec)) {
    if (const CUresult bad = map_pinned_sides(thread, params.memcpy.copyParams); bad != CUDA_SUCCESS) return bad;
  }
  if (const CUresult bad = write_node(thread, params, in.initParameters(), parts); bad != CUDA_SUCCESS) return bad;
  Session& session = session_of(thread);
  if (params.type == CU_GRAPH_NODE_TYPE_GRAPH) session.graphs.forget_changes();
  const bool changes_kernel = exec && params.type == CU_GRAPH_NODE_TYPE_KERNEL;
  const std::uint64_t change = changes_kernel ? class_of(thread, in.getParameters().getKernel().asReader()) : 0;
  if (changes_kernel && surely_accepted(session, exec, node, change)) return call.post();
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) {
    session.host_memory.graph_has(thread, parts);
    parts.keep();
    if (changes_kernel) session.graphs.learn_change(exec, handle_of(node), change);
  }
  if (result == CUDA_ERROR_NOT_SUPPORTED && session.stream_waits.any_here())
    return refuse_use(
        "changing an executable graph of which a launch is behind a wait for a value in memory of the host");
  if (result == CUDA_ERROR_NOT_SUPPORTED)
    refuse_use(
        "changing a node that involves functions or memory of the program, or whose graph has such nodes: beside "
        "conditional nodes, or after an update with a graph that was made in another order");
  return result;
}

// An attribute of a kernel node: read into `value`, or set to what is there.
CUresult kernel_attribute(Thread& thread, CUgraphNode node, CUkernelNodeAttrID id, bool set,
                          CUkernelNodeAttrValue& value) {
  if (!handle_of(node).well_formed(HandleKind::node)) return CUDA_ERROR_INVALID_VALUE;
  if (!launch_attribute_facts(id)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::NodeAttribute> call(thread, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setNode(handle_of(node).value());
  in.setSet(set);
  if (const CUresult bad =
          write_attribute(session_of(thread).events, attribute_of(id, set ? &value : nullptr), in.initAttribute());
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS && !set) read_attribute(call.out().getAttribute(), value);
  return result;
}

}  // namespace

// --- adding ---------------------------------------------------------------------------------------------------------

CUresult add_node(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                  NodeWish node) {
  return node ? add_node(thread, out, graph, dependencies, nullptr, count, *node) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddNode_v2(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams* params) {
  return params ? add_node(thread, out, graph, dependencies, edges, count, *params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphConditionalHandleCreate(Thread& thread, CUgraphConditionalHandle* out, CUgraph graph, CUcontext context,
                                        unsigned value, unsigned flags) {
  if (!out || !handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  if (!context) {
    if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
    context = thread.context()->cuda();
  }
  if (!session_of(thread).contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
  RemoteCall<wire::CuGraphConditionalHandleCreate> call(thread);
  auto in = call.in();
  in.setHGraph(handle_of(graph).value());
  in.setCtx(handle_of(context).value());
  in.setDefaultLaunchValue(value);
  in.setFlags(flags);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) *out = call.out().getPHandleOut();
  return result;
}

// --- parameters -----------------------------------------------------------------------------------------------------

CUresult set_node(Thread& thread, CUgraphNode node, const NodeWish& wish) {
  return wish ? change_node(thread, Handle(), node, *wish) : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_in_exec(Thread& thread, CUgraphExec exec, CUgraphNode node, const NodeWish& wish) {
  if (!wish || !handle_of(exec).well_formed(HandleKind::exec)) return CUDA_ERROR_INVALID_VALUE;
  return change_node(thread, handle_of(exec), node, *wish);
}

CUresult cuGraphKernelNodeGetParams_v2(Thread& thread, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_KERNEL, params,
                  [&](auto in) { return read_kernel(thread, node, in.getKernel(), *params); });
}
CUresult cuGraphKernelNodeGetParams(Thread& thread, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  CUDA_KERNEL_NODE_PARAMS now;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = cuGraphKernelNodeGetParams_v2(thread, node, &now);
  if (result != CUDA_SUCCESS) return result;
  *params = {now.func ? now.func : reinterpret_cast<CUfunction>(now.kern),
             now.gridDimX,
             now.gridDimY,
             now.gridDimZ,
             now.blockDimX,
             now.blockDimY,
             now.blockDimZ,
             now.sharedMemBytes,
             now.kernelParams,
             now.extra};
  return result;
}

CUresult cuGraphMemcpyNodeGetParams(Thread& thread, CUgraphNode node, CUDA_MEMCPY3D* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_MEMCPY, params, [&](auto in) {
    const Session& session = session_of(thread);
    *params = read_copy(session.map, session.graph_parts, in.getCopy().getCopy());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemsetNodeGetParams(Thread& thread, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_MEMSET, params, [&](auto in) {
    read_memset(thread, in.getMemset(), *params);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphHostNodeGetParams(Thread& thread, CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_HOST, params, [&](auto in) {
    const auto function = session_of(thread).graph_parts.function(in.getHost());
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    *params = {function->call, function->argument};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphBatchMemOpNodeGetParams(Thread& thread, CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return get_node(thread, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params, [&](auto in) {
    read_memory(thread, node, in.getMemory(), *params);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeGetAttribute(Thread& thread, CUgraphNode node, CUkernelNodeAttrID id,
                                       CUkernelNodeAttrValue* value) {
  return value ? kernel_attribute(thread, node, id, false, *value) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeSetAttribute(Thread& thread, CUgraphNode node, CUkernelNodeAttrID id,
                                       const CUkernelNodeAttrValue* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  CUkernelNodeAttrValue wanted = *value;
  return kernel_attribute(thread, node, id, true, wanted);
}

}  // namespace fargpu::client::hand
