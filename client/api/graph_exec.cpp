// Instantiating, updating and launching graphs. CUDA Driver API, "Graph Management".

#include "calls_graph.capnp.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

struct Instantiated {
  CUgraphExec exec = nullptr;
  CUgraphInstantiateResult outcome = CUDA_GRAPH_INSTANTIATE_ERROR;
  CUgraphNode error_node = nullptr;
};

CUresult instantiate(Thread& thread, CUgraph graph, std::uint64_t flags, std::uint64_t upload_stream,
                     Instantiated& made) {
  if (!handle_of(graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
  // A kernel would be given our handle of it.
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return refuse_use("a graph that kernels launch");
  RemoteCall<wire::InstantiateGraph> call(thread, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setGraph(handle_of(graph).value());
  in.setFlags(flags);
  in.setUpload(upload_stream);
  const CUresult result = call.wait();
  const auto out = call.out();
  made.exec = handle_cast<CUgraphExec>(Handle(out.getExec()));
  if (result == CUDA_SUCCESS) {
    session_of(thread).graphs.set_attended(Handle(out.getExec()), out.getAttended());
    session_of(thread).graph_memory.set_executable(Handle(out.getExec()), out.getMemory(),
                                                   flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  }
  if (out.getRefusal().size() > 0) refuse_use(out.getRefusal().cStr());
  made.outcome = static_cast<CUgraphInstantiateResult>(out.getOutcome());
  made.error_node = handle_cast<CUgraphNode>(Handle(out.getErrorNode()));
  return result;
}

struct Updated {
  CUgraphExecUpdateResult outcome = CU_GRAPH_EXEC_UPDATE_SUCCESS;  // as the driver says where it compared nothing
  CUgraphNode node = nullptr;
  CUgraphNode from = nullptr;
};

CUresult update(Thread& thread, CUgraphExec exec, CUgraph graph, Updated& updated) {
  if (!handle_of(exec).well_formed(HandleKind::exec) || !handle_of(graph).well_formed(HandleKind::graph))
    return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::UpdateGraph> call(thread, ContextNeed::optional);
  if (!call) return call.error();
  auto in = call.in();
  in.setExec(handle_of(exec).value());
  in.setGraph(handle_of(graph).value());
  session_of(thread).graphs.forget_changes(handle_of(exec));
  const CUresult result = call.wait();
  const auto out = call.out();
  if (out.getAttended()) session_of(thread).graphs.set_attended(handle_of(exec), true);
  if (result == CUDA_SUCCESS) session_of(thread).graph_memory.update_executable(handle_of(exec), out.getMemory());
  if (out.getRefusal().size() > 0) refuse_use(out.getRefusal().cStr());
  updated.outcome = static_cast<CUgraphExecUpdateResult>(out.getOutcome());
  updated.node = handle_cast<CUgraphNode>(Handle(out.getErrorNode()));
  updated.from = handle_cast<CUgraphNode>(Handle(out.getErrorFromNode()));
  return result;
}

}  // namespace

CUresult cuGraphInstantiateWithFlags(Thread& thread, CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  // Without a stream there is nothing to upload on.
  if (!out || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) return CUDA_ERROR_INVALID_VALUE;
  Instantiated made;
  const CUresult result = instantiate(thread, graph, flags, 0, made);
  if (result == CUDA_SUCCESS) *out = made.exec;
  return result;
}

CUresult cuGraphInstantiateWithParams(Thread& thread, CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params, CUstream default_stream) {
  if (!out || !params) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t upload_stream = 0;
  if (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
    const StreamUse use(thread, params->hUploadStream ? params->hUploadStream : default_stream);
    if (!use) return use.error();
    upload_stream = use.wire();
  }
  Instantiated made;
  const CUresult result = instantiate(thread, graph, params->flags, upload_stream, made);
  params->result_out = made.outcome;
  params->hErrNode_out = made.error_node;
  if (result == CUDA_SUCCESS) *out = made.exec;
  return result;
}

// The old forms tell the offending node and a log; today's driver writes no log text.
CUresult cuGraphInstantiate_v2(Thread& thread, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                               std::size_t log_bytes) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Instantiated made;
  const CUresult result = instantiate(thread, graph, 0, 0, made);
  if (result == CUDA_SUCCESS) *out = made.exec;
  if (error_node) *error_node = made.error_node;
  if (log && log_bytes > 0) log[0] = '\0';
  return result;
}

CUresult cuGraphExecUpdate_v2(Thread& thread, CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  Updated updated;
  const CUresult result = update(thread, exec, graph, updated);
  if (!info) return result;
  info->result = updated.outcome;
  info->errorNode = updated.node;
  info->errorFromNode = updated.from;
  return result;
}

CUresult cuGraphExecUpdate(Thread& thread, CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* outcome) {
  Updated updated;
  const CUresult result = update(thread, exec, graph, updated);
  if (outcome) *outcome = updated.outcome;
  if (error_node) *error_node = updated.node;
  return result;
}

namespace {

// The worker runs the graph in pieces, with what of it happens in this process in between.
CUresult launch_attended(Thread& thread, CUgraphExec exec, const StreamUse& use) {
  Session& session = session_of(thread);
  RemoteCall<wire::LaunchGraph> call(thread, use->context);
  session.graphs.launched();
  const std::uint64_t done = session.callbacks.add([&graphs = session.graphs](CUresult) { graphs.ended(); });
  auto in = call.in();
  in.setExec(handle_of(exec).value());
  in.setStream(use.wire());
  in.setDone(done);
  call.host_visible();
  const CUresult result = call.post(use);
  if (result != CUDA_SUCCESS) {
    session.callbacks.remove(done);
    session.graphs.ended();
    return result;
  }
  session.calls.commands.flush();  // the program may wait for a function in it
  return CUDA_SUCCESS;
}

CUresult launch(Thread& thread, CUgraphExec exec, const StreamUse& use) {
  Session& session = session_of(thread);
  const WholeSystemWork::Launch turn(session.whole_system_work, thread, *use, session.whole_system_work.in_graphs());
  session.waits.before_work(thread);
  if (!use->capture.load() && session.graphs.attended(handle_of(exec))) return launch_attended(thread, exec, use);
  RemoteCall<wire::CuGraphLaunch> call(thread, use->context);
  auto in = call.in();
  in.setHGraph(handle_of(exec).value());
  in.setHStream(use.wire());
  if (session.waits.host_sees()) call.host_visible();
  return use->capture.load() ? call.wait(use) : call.post(use);  // what cannot be captured is said at once
}

}  // namespace

CUresult cuGraphLaunch(Thread& thread, CUgraphExec exec, CUstream stream) {
  if (const CUresult bad = check_handle<HandleKind::exec>(thread, handle_of(exec)); bad != CUDA_SUCCESS) return bad;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  GraphMemory& memory = session_of(thread).graph_memory;
  if (use->capture.load() && memory.used_by(handle_of(exec))) {  // as a child such a graph cannot be
    session_of(thread).captures.invalidate(*use);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const CUresult bad = memory.may_launch(handle_of(exec)); bad != CUDA_SUCCESS) return bad;
  const CUresult result = launch(thread, exec, use);
  if (result == CUDA_SUCCESS) memory.launched(thread, handle_of(exec));
  return result;
}

CUresult cuGraphExecChildGraphNodeSetParams(Thread& thread, CUgraphExec exec, CUgraphNode node, CUgraph child) {
  if (!handle_of(exec).well_formed(HandleKind::exec) || !handle_of(node).well_formed(HandleKind::node) ||
      !handle_of(child).well_formed(HandleKind::graph))
    return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CuGraphExecChildGraphNodeSetParams> call(thread);
  if (!call) return call.error();
  auto in = call.in();
  in.setHGraphExec(handle_of(exec).value());
  in.setHNode(handle_of(node).value());
  in.setChildGraph(handle_of(child).value());
  session_of(thread).graphs.forget_changes(handle_of(exec));
  const CUresult result = call.wait();
  if (result == CUDA_ERROR_NOT_SUPPORTED)
    refuse_use(
        "exchanging a child graph in an executable graph, where functions or memory of the program or events are "
        "involved");
  return result;
}

}  // namespace fargpu::client::hand
