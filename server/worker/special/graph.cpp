// Graph nodes, instantiation and update.

#include "server/worker/arguments.h"
#include "server/worker/session.h"
#include "server_hand.h"

namespace fargpu::server::hand {
namespace {

// The context a node runs in: the one it names, or the call's.
CUresult node_context(Session& session, const Call& call, std::uint64_t named, CUcontext& context) {
  if (named != 0) return session.resolve(HandleKind::context, named, context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  ContextState* const current = session.context(call.id().context);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  context = current->cuda;
  return CUDA_SUCCESS;
}

CUresult read_kernel(Session& session, const Call& call, wire::KernelNode::Reader in, Arguments& arguments,
                     CUDA_KERNEL_NODE_PARAMS& params) {
  params = {};
  if (const CUresult bad = arguments.read(session, in.getFunction(), in.getParameters(), params.func); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = node_context(session, call, in.getContext(), params.ctx); bad != CUDA_SUCCESS) return bad;
  params.gridDimX = in.getGridX();
  params.gridDimY = in.getGridY();
  params.gridDimZ = in.getGridZ();
  params.blockDimX = in.getBlockX();
  params.blockDimY = in.getBlockY();
  params.blockDimZ = in.getBlockZ();
  params.sharedMemBytes = in.getSharedBytes();
  params.kernelParams = arguments.pointers();
  return CUDA_SUCCESS;
}

bool holds_rows(Session& session, std::uint64_t address, std::uint64_t pitch, std::uint64_t slice, std::uint64_t width,
                std::uint64_t height, std::uint64_t depth) {
  if (width == 0 || height == 0 || depth == 0) return false;
  const auto extent = static_cast<unsigned __int128>(depth - 1) * slice + static_cast<unsigned __int128>(height - 1) * pitch + width;
  return extent <= (std::uint64_t{1} << 47) && session.memory().holds(address, static_cast<std::uint64_t>(extent));
}

}  // namespace

Outcome addNode(Session& session, Call& call, wire::AddNode::Reader in) {
  CUgraph graph{};
  if (!session.resolve(HandleKind::graph, in.getGraph(), graph)) return session.invalid(HandleKind::graph);
  const auto dependency_list = in.getDependencies();
  std::vector<CUgraphNode> dependencies(session.list_size(dependency_list.size()));
  for (unsigned i = 0; i < dependencies.size(); ++i)
    if (!session.resolve(HandleKind::node, dependency_list[i], dependencies[i])) return session.invalid(HandleKind::node);
  const auto edge_list = in.getEdges();
  std::vector<CUgraphEdgeData> edges(session.list_size(edge_list.size()));
  if (!edges.empty() && edges.size() != dependencies.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < edges.size(); ++i) {
    edges[i].from_port = edge_list[i].getFromPort();
    edges[i].to_port = edge_list[i].getToPort();
    edges[i].type = edge_list[i].getType();
  }
  CUgraphNodeParams params{};
  Arguments arguments;
  const auto node = in.getNode();
  switch (node.which()) {
    case wire::AddNode::Node::EMPTY:
      params.type = CU_GRAPH_NODE_TYPE_EMPTY;
      break;
    case wire::AddNode::Node::KERNEL: {
      params.type = CU_GRAPH_NODE_TYPE_KERNEL;
      CUDA_KERNEL_NODE_PARAMS kernel;
      if (const CUresult bad = read_kernel(session, call, node.getKernel(), arguments, kernel); bad != CUDA_SUCCESS) return bad;
      params.kernel.func = kernel.func;
      params.kernel.gridDimX = kernel.gridDimX;
      params.kernel.gridDimY = kernel.gridDimY;
      params.kernel.gridDimZ = kernel.gridDimZ;
      params.kernel.blockDimX = kernel.blockDimX;
      params.kernel.blockDimY = kernel.blockDimY;
      params.kernel.blockDimZ = kernel.blockDimZ;
      params.kernel.sharedMemBytes = kernel.sharedMemBytes;
      params.kernel.kernelParams = kernel.kernelParams;
      params.kernel.ctx = kernel.ctx;
      break;
    }
    case wire::AddNode::Node::CHILD:
      params.type = CU_GRAPH_NODE_TYPE_GRAPH;
      if (!session.resolve(HandleKind::graph, node.getChild(), params.graph.graph)) return session.invalid(HandleKind::graph);
      break;
    case wire::AddNode::Node::MEMSET: {
      params.type = CU_GRAPH_NODE_TYPE_MEMSET;
      const auto memset = node.getMemset();
      const auto target = memset.getTarget();
      if (memset.getElementBytes() > 4 || memset.getWidth() > std::uint64_t{1} << 47 ||
          !holds_rows(session, target.getAddress(), target.getPitch(), 0, memset.getWidth() * memset.getElementBytes(),
                      memset.getHeight(), 1))
        return CUDA_ERROR_INVALID_VALUE;
      params.memset.dst = target.getAddress();
      params.memset.pitch = target.getPitch();
      params.memset.value = memset.getValue();
      params.memset.elementSize = memset.getElementBytes();
      params.memset.width = memset.getWidth();
      params.memset.height = memset.getHeight();
      if (const CUresult bad = node_context(session, call, 0, params.memset.ctx); bad != CUDA_SUCCESS) return bad;
      break;
    }
    case wire::AddNode::Node::COPY: {
      params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
      const auto copy = node.getCopy();
      const auto shape = copy.getShape();
      const auto source = copy.getSource();
      const auto target = copy.getTarget();
      for (const auto side : {source, target})
        if (!holds_rows(session, side.getAddress(), side.getPitch(), side.getSlice(), shape.getWidth(), shape.getHeight(), shape.getDepth()))
          return CUDA_ERROR_INVALID_VALUE;
      CUDA_MEMCPY3D& p = params.memcpy.copyParams;
      p.WidthInBytes = shape.getWidth();
      p.Height = shape.getHeight();
      p.Depth = shape.getDepth();
      p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      p.srcDevice = source.getAddress();
      p.srcPitch = source.getPitch();
      p.srcHeight = source.getPitch() ? source.getSlice() / source.getPitch() : 0;
      p.dstDevice = target.getAddress();
      p.dstPitch = target.getPitch();
      p.dstHeight = target.getPitch() ? target.getSlice() / target.getPitch() : 0;
      if (const CUresult bad = node_context(session, call, 0, params.memcpy.copyCtx); bad != CUDA_SUCCESS) return bad;
      break;
    }
    case wire::AddNode::Node::EVENT_RECORD:
      params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
      if (!session.resolve(HandleKind::event, node.getEventRecord(), params.eventRecord.event)) return CUDA_ERROR_INVALID_HANDLE;
      break;
    case wire::AddNode::Node::EVENT_WAIT:
      params.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
      if (!session.resolve(HandleKind::event, node.getEventWait(), params.eventWait.event)) return CUDA_ERROR_INVALID_HANDLE;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUgraphNode made{};
  const CUresult result = session.driver().cuGraphAddNode_v2(&made, graph, dependencies.data(), edges.empty() ? nullptr : edges.data(),
                                                             dependencies.size(), &params);
  if (result == CUDA_SUCCESS) call.out<wire::AddNodeReply>().setNode(session.reveal(HandleKind::node, made, call, in.getGraph()).value());
  return result;
}

Outcome setKernelNode(Session& session, Call& call, wire::SetKernelNode::Reader in) {
  CUgraphNode node{};
  if (!session.resolve(HandleKind::node, in.getNode(), node)) return session.invalid(HandleKind::node);
  Arguments arguments;
  CUDA_KERNEL_NODE_PARAMS params;
  if (const CUresult bad = read_kernel(session, call, in.getKernel(), arguments, params); bad != CUDA_SUCCESS) return bad;
  if (in.getExec() == 0) return session.driver().cuGraphKernelNodeSetParams_v2(node, &params);
  CUgraphExec exec{};
  if (!session.resolve(HandleKind::exec, in.getExec(), exec)) return session.invalid(HandleKind::exec);
  return session.driver().cuGraphExecKernelNodeSetParams_v2(exec, node, &params);
}

Outcome instantiateGraph(Session& session, Call& call, wire::InstantiateGraph::Reader in) {
  CUgraph graph{};
  if (!session.resolve(HandleKind::graph, in.getGraph(), graph)) return session.invalid(HandleKind::graph);
  struct Made {
    CUgraphExec exec = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  };
  auto made = std::make_shared<Made>();
  made->params.flags = in.getFlags();
  if (in.getUpload() != 0) {
    StreamState* const stream = session.stream(in.getUpload(), call.id().context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    made->params.hUploadStream = stream->cuda;
    session.submitted(*stream);
  }
  return session.aside_reply(
      call, [made, graph, &driver = session.driver()] { return driver.cuGraphInstantiateWithParams(&made->exec, graph, &made->params); },
      [made, &session, source = Handle(in.getGraph())](CUresult result, MessageWriter& writer) {
        auto out = writer.root<wire::InstantiateGraphReply>();
        out.setOutcome(made->params.result_out);
        if (made->params.hErrNode_out) {
          out.setErrorNode(
              session.handles().reveal(HandleKind::node, reinterpret_cast<std::uint64_t>(made->params.hErrNode_out), 0, source).value());
        }
        if (result == CUDA_SUCCESS)
          out.setExec(session.handles().reveal(HandleKind::exec, reinterpret_cast<std::uint64_t>(made->exec), 0).value());
        return result;
      });
}

Outcome updateGraph(Session& session, Call& call, wire::UpdateGraph::Reader in) {
  CUgraphExec exec{};
  CUgraph graph{};
  if (!session.resolve(HandleKind::exec, in.getExec(), exec)) return session.invalid(HandleKind::exec);
  if (!session.resolve(HandleKind::graph, in.getGraph(), graph)) return session.invalid(HandleKind::graph);
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = session.driver().cuGraphExecUpdate_v2(exec, graph, &info);
  auto out = call.out<wire::UpdateGraphReply>();
  out.setOutcome(info.result);
  out.setErrorNode(session.reveal(HandleKind::node, info.errorNode, call, in.getGraph()).value());
  out.setErrorFromNode(session.reveal(HandleKind::node, info.errorFromNode, call, in.getGraph()).value());
  return result;
}

}  // namespace fargpu::server::hand
