// Adding nodes to graphs, and kernel nodes' parameters. CUDA Driver API, "Graph Management".

#include <functional>

#include "client/entry.h"
#include "client/launch_codec.h"
#include "client/remote_call.h"
#include "client/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

using FillNode = std::function<CUresult(wire::AddNode::Node::Builder)>;

CUresult add_node(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                  std::size_t count, const FillNode& fill) {
  if (!out || (count > 0 && !dependencies)) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::AddNode> call(thread, Opcode::addNode, ContextNeed::optional);
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
  if (const CUresult bad = fill(in.getNode()); bad != CUDA_SUCCESS) return bad;
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) *out = handle_cast<CUgraphNode>(Handle(call.out<wire::AddNodeReply>().getNode()));
  return result;
}

// The parameter structs of the several versions differ in how they name function and context only.
struct KernelParams {
  CUfunction function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** params;
  void** extra;
  CUcontext context;
};

KernelParams kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return {p.func, {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes, p.kernelParams,
          p.extra, nullptr};
}

template <class Params>  // v2 and v3
KernelParams kernel_params_with_kernel(const Params& p) {
  return {p.func ? p.func : reinterpret_cast<CUfunction>(p.kern),
          {p.gridDimX, p.gridDimY, p.gridDimZ},
          {p.blockDimX, p.blockDimY, p.blockDimZ},
          p.sharedMemBytes,
          p.kernelParams,
          p.extra,
          p.ctx};
}

CUresult write_kernel(Thread& thread, const KernelParams& p, wire::KernelNode::Builder node) {
  const Function* const function = thread.session().functions().find(p.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (p.context && !thread.session().find_context(p.context)) return CUDA_ERROR_INVALID_CONTEXT;
  std::span<const std::byte> arguments;
  if (const CUresult bad = gather_arguments(*function, p.params, p.extra, arguments); bad != CUDA_SUCCESS) return bad;
  node.setFunction(function->handle.value());
  node.setGridX(p.grid[0]);
  node.setGridY(p.grid[1]);
  node.setGridZ(p.grid[2]);
  node.setBlockX(p.block[0]);
  node.setBlockY(p.block[1]);
  node.setBlockZ(p.block[2]);
  node.setSharedBytes(p.shared_bytes);
  node.setParameters(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(arguments.data()), arguments.size()));
  node.setContext(handle_of(p.context).value());
  return CUDA_SUCCESS;
}

CUresult write_memset(Thread& thread, const CUDA_MEMSET_NODE_PARAMS_v2& p, wire::MemsetNode::Builder node) {
  const std::uint64_t extent = p.height == 0 ? 0 : (p.height - 1) * p.pitch + p.width * p.elementSize;
  if (!thread.session().map().covered(p.dst, extent)) return CUDA_ERROR_INVALID_VALUE;
  auto target = node.initTarget();
  target.setAddress(p.dst);
  target.setPitch(p.pitch);
  node.setValue(p.value);
  node.setElementBytes(p.elementSize);
  node.setWidth(p.width);
  node.setHeight(p.height);
  return CUDA_SUCCESS;
}

bool device_side(CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; }

CUresult write_copy(Thread& thread, const CUDA_MEMCPY3D& p, wire::CopyDevice::Builder copy) {
  const MemoryMap& map = thread.session().map();
  const auto on_device = [&](CUmemorytype type, CUdeviceptr address) {
    const auto region = device_side(type) ? map.find(address) : std::nullopt;
    return region && region->on_device();
  };
  if (!on_device(p.srcMemoryType, p.srcDevice) || !on_device(p.dstMemoryType, p.dstDevice)) {
    refuse_use("a graph's copy node from or to host memory or an array");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto shape = copy.initShape();
  shape.setWidth(p.WidthInBytes);
  shape.setHeight(p.Height);
  shape.setDepth(p.Depth);
  const auto side = [&](wire::Side::Builder out, CUdeviceptr base, std::size_t x, std::size_t y, std::size_t z, std::size_t pitch,
                        std::size_t height) {
    out.setAddress(base + z * pitch * height + y * pitch + x);
    out.setPitch(pitch);
    out.setSlice(pitch * height);
  };
  side(copy.initSource(), p.srcDevice, p.srcXInBytes, p.srcY, p.srcZ, p.srcPitch, p.srcHeight);
  side(copy.initTarget(), p.dstDevice, p.dstXInBytes, p.dstY, p.dstZ, p.dstPitch, p.dstHeight);
  return CUDA_SUCCESS;
}

CUresult check_context(Thread& thread, CUcontext context) {
  return !context || thread.session().find_context(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult write_event(Thread& thread, CUevent event, const std::function<void(std::uint64_t)>& store) {
  if (const CUresult bad = check_event_handle(thread, handle_of(event)); bad != CUDA_SUCCESS) return bad;
  store(handle_of(event).value());
  return CUDA_SUCCESS;
}

CUresult fill_any(Thread& thread, const CUgraphNodeParams& p, wire::AddNode::Node::Builder node) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return write_kernel(thread, kernel_params_with_kernel(p.kernel), node.initKernel());
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (!handle_of(p.graph.graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
      node.setChild(handle_of(p.graph.graph).value());
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      node.setEmpty();
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return write_memset(thread, p.memset, node.initMemset());
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return write_copy(thread, p.memcpy.copyParams, node.initCopy());
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return write_event(thread, p.eventRecord.event, [&](std::uint64_t event) { node.setEventRecord(event); });
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return write_event(thread, p.eventWait.event, [&](std::uint64_t event) { node.setEventWait(event); });
    default:
      refuse_use(("a graph node of type " + std::to_string(p.type)).c_str());
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult set_kernel(Thread& thread, CUgraphExec exec, CUgraphNode node, const KernelParams& params) {
  if (!handle_of(node).well_formed(HandleKind::node)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::SetKernelNode> call(thread, Opcode::setKernelNode, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setExec(handle_of(exec).value());
  in.setNode(handle_of(node).value());
  if (const CUresult bad = write_kernel(thread, params, in.initKernel()); bad != CUDA_SUCCESS) return bad;
  return call.wait();
}

}  // namespace

CUresult cuGraphAddEmptyNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, std::size_t count) {
  return add_node(thread, out, graph, dependencies, nullptr, count, [](auto node) {
    node.setEmpty();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddKernelNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return add_node(thread, out, graph, dependencies, nullptr, count,
                  [&](auto node) { return write_kernel(thread, kernel_params(*params), node.initKernel()); });
}

CUresult cuGraphAddKernelNode_v2(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                 std::size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return add_node(thread, out, graph, dependencies, nullptr, count,
                  [&](auto node) { return write_kernel(thread, kernel_params_with_kernel(*params), node.initKernel()); });
}

CUresult cuGraphAddChildGraphNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                  std::size_t count, CUgraph child) {
  if (!handle_of(child).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  return add_node(thread, out, graph, dependencies, nullptr, count, [&](auto node) {
    node.setChild(handle_of(child).value());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddMemsetNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_context(thread, context); bad != CUDA_SUCCESS) return bad;
  const CUDA_MEMSET_NODE_PARAMS_v2 p{params->dst,   params->pitch,  params->value, params->elementSize,
                                     params->width, params->height, context};
  return add_node(thread, out, graph, dependencies, nullptr, count,
                  [&](auto node) { return write_memset(thread, p, node.initMemset()); });
}

CUresult cuGraphAddMemcpyNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              std::size_t count, const CUDA_MEMCPY3D* params, CUcontext context) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_context(thread, context); bad != CUDA_SUCCESS) return bad;
  return add_node(thread, out, graph, dependencies, nullptr, count,
                  [&](auto node) { return write_copy(thread, *params, node.initCopy()); });
}

CUresult cuGraphAddEventRecordNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                   std::size_t count, CUevent event) {
  return add_node(thread, out, graph, dependencies, nullptr, count, [&](auto node) {
    return write_event(thread, event, [&](std::uint64_t value) { node.setEventRecord(value); });
  });
}

CUresult cuGraphAddEventWaitNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                 std::size_t count, CUevent event) {
  return add_node(thread, out, graph, dependencies, nullptr, count, [&](auto node) {
    return write_event(thread, event, [&](std::uint64_t value) { node.setEventWait(value); });
  });
}

CUresult cuGraphAddNode(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                        CUgraphNodeParams* params) {
  return cuGraphAddNode_v2(thread, out, graph, dependencies, nullptr, count, params);
}

CUresult cuGraphAddNode_v2(Thread& thread, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  return add_node(thread, out, graph, dependencies, edges, count, [&](auto node) { return fill_any(thread, *params, node); });
}

CUresult cuGraphKernelNodeSetParams(Thread& thread, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return params ? set_kernel(thread, nullptr, node, kernel_params(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeSetParams_v2(Thread& thread, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return params ? set_kernel(thread, nullptr, node, kernel_params_with_kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams(Thread& thread, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params || !handle_of(exec).well_formed(HandleKind::exec)) return CUDA_ERROR_INVALID_VALUE;
  return set_kernel(thread, exec, node, kernel_params(*params));
}

CUresult cuGraphExecKernelNodeSetParams_v2(Thread& thread, CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  if (!params || !handle_of(exec).well_formed(HandleKind::exec)) return CUDA_ERROR_INVALID_VALUE;
  return set_kernel(thread, exec, node, kernel_params_with_kernel(*params));
}

}  // namespace fargpu::client::hand
