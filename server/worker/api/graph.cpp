// Graphs: nodes, executable graphs, launches.

#include <sys/mman.h>
#include <unistd.h>

#include "server/worker/graph/graph_node.h"
#include "server/worker/graph/graph_plan.h"
#include "server/worker/graph/graph_run.h"
#include "server/worker/code/launch_attributes.h"
#include "server/worker/session/session.h"
#include "server_hand.h"
#include "struct_codecs.h"

namespace fargpu::server::hand {

namespace {

// A graph cannot become part of itself. NVIDIA's driver copies it while it grows, without end.
bool holds_itself(Session& session, CUgraph graph, Handle handle, const CUgraphNodeParams& node, Handle child) {
  if (node.type != CU_GRAPH_NODE_TYPE_GRAPH) return false;
  if (node.graph.graph == graph) return true;
  Handles& handles = session.objects().handles();
  return handles.root_of(handle) == handles.root_of(child) && lies_in(session, graph, node.graph.graph);
}

}  // namespace

// --- nodes ---------------------------------------------------------------------------------------------------------------------------

Outcome addNode(Session& session, Call& call, wire::AddNode::Reader in) {
  CUgraph graph{};
  if (!session.objects().resolve(HandleKind::graph, in.getGraph(), graph)) return Objects::invalid(HandleKind::graph);
  const auto dependency_list = in.getDependencies();
  std::vector<CUgraphNode> dependencies(list_size(dependency_list.size()));
  for (unsigned i = 0; i < dependencies.size(); ++i)
    if (!session.objects().resolve(HandleKind::node, dependency_list[i], dependencies[i])) return Objects::invalid(HandleKind::node);
  const auto edge_list = in.getEdges();
  std::vector<CUgraphEdgeData> edges(list_size(edge_list.size()));
  if (!edges.empty() && edges.size() != dependencies.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < edges.size(); ++i) {
    edges[i].from_port = edge_list[i].getFromPort();
    edges[i].to_port = edge_list[i].getToPort();
    edges[i].type = edge_list[i].getType();
  }
  NodeParameters node(session);
  if (const CUresult bad = node.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
  if (holds_itself(session, graph, Handle(in.getGraph()), node.params(),
                   Handle(in.getParameters().isChild() ? in.getParameters().getChild() : 0)))
    return CUDA_ERROR_INVALID_VALUE;
  if (node.memory()) {
    if (const CUresult bad = check_memory(session, Handle(in.getGraph()), *node.memory()); bad != CUDA_SUCCESS) return bad;
  }
  if (const CUresult bad = node.keep_in(keeper_of(session, graph)); bad != CUDA_SUCCESS) return bad;
  CUgraphNode made{};
  const CUresult result = session.driver().cuGraphAddNode_v2(&made, graph, dependencies.data(), edges.empty() ? nullptr : edges.data(),
                                                             dependencies.size(), &node.params());
  if (result != CUDA_SUCCESS) {
    node.take_back();
    return result;
  }
  auto out = call.out<wire::AddNodeReply>();
  const Handle handle = session.objects().introduce(HandleKind::node, made, call, in.getGraph());
  out.setNode(handle.value());
  if (node.memory()) session.graph_memory().add(handle, *node.memory());
  const CUgraphNodeParams& params = node.params();
  if (params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    const std::vector<CUgraph> bodies(params.conditional.phGraph_out, params.conditional.phGraph_out + params.conditional.size);
    auto list = out.initBodies(params.conditional.size);
    for (unsigned i = 0; i < bodies.size(); ++i)
      list.set(i, session.objects().reveal(HandleKind::graph, bodies[i], call, in.getGraph()).value());
    session.graph_parts().set_bodies(made, bodies);
  } else if (params.type == CU_GRAPH_NODE_TYPE_GRAPH && params.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    session.objects().handles().give(Handle(in.getParameters().getChild()), Handle(in.getGraph()));
  } else if (params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    CUgraph copy{};
    if (session.driver().cuGraphChildGraphNodeGetGraph(made, &copy) == CUDA_SUCCESS)
      session.user_objects().copied(Handle(in.getParameters().getChild()),
                                    session.objects().introduce(HandleKind::graph, copy, call, in.getGraph()));
  }
  return result;
}

Outcome setNode(Session& session, Call& call, wire::SetNode::Reader in) {
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::node, in.getNode(), node)) return Objects::invalid(HandleKind::node);
  NodeParameters params(session);
  DriverTable& driver = session.driver();
  if (in.getExec() == 0) {
    CUgraph graph{};
    if (!session.objects().resolve(HandleKind::graph, session.objects().handles().root_of(Handle(in.getNode())).value(), graph))
      return Objects::invalid(HandleKind::node);
    const std::vector<Handle> within = known_within(session, node);
    if (!within.empty() && session.captures().into(Handle(in.getNode()))) return CUDA_ERROR_ILLEGAL_STATE;
    if (const CUresult bad = params.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
    if (params.params().type == CU_GRAPH_NODE_TYPE_GRAPH && params.params().graph.graph == graph) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult bad = params.keep_in(graph); bad != CUDA_SUCCESS) return bad;
    const CUresult result = driver.cuGraphNodeSetParams(node, &params.params());
    if (result != CUDA_SUCCESS) params.take_back();
    else
      for (const Handle gone : within) session.objects().forget(gone.kind(), gone.value());
    return result;
  }
  CUgraphExec exec{};
  if (!session.objects().resolve(HandleKind::exec, in.getExec(), exec)) return Objects::invalid(HandleKind::exec);
  if (const auto later = session.ordering().behind_launches(call, in.getExec())) return *later;
  if (const CUresult bad = params.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
  AttendedGraph* const attended = session.attended_graphs().find(in.getExec());
  if (!attended) {
    // Without parts until now: the driver does not let a node change so much, and neither do we.
    return params.attended() ? CUDA_ERROR_INVALID_VALUE : driver.cuGraphExecNodeSetParams(exec, node, &params.params());
  }
  const CUgraphNode copy = attended->copy_of(node);
  if (!copy) {
    if (params.attended() || attended->has_parts()) return CUDA_ERROR_NOT_SUPPORTED;
    return driver.cuGraphExecNodeSetParams(exec, node, &params.params());
  }
  if (const CUresult bad = params.keep_in(attended->copy()); bad != CUDA_SUCCESS) return bad;
  CUresult result = driver.cuGraphExecNodeSetParams(exec, node, &params.params());
  if (result == CUDA_SUCCESS) {
    result = driver.cuGraphNodeSetParams(copy, &params.params());
    attended->changed();
  } else {
    params.take_back();
  }
  return result;
}

// What the driver takes for an empty node may be more.
Outcome cuGraphNodeGetType(Session& session, Call& call, wire::CuGraphNodeGetType::Reader in) {
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::node, in.getHNode(), node)) return Objects::invalid(HandleKind::node);
  CUgraphNodeType type{};
  const CUresult result = session.driver().cuGraphNodeGetType(node, &type);
  if (result != CUDA_SUCCESS) return result;
  if (const GraphMemory::Node* const memory = session.graph_memory().find(Handle(in.getHNode())))
    type = memory->allocates ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : CU_GRAPH_NODE_TYPE_MEM_FREE;
  call.out<wire::CuGraphNodeGetTypeReply>().setType(type);
  return result;
}

// --- what graphs with memory nodes do not allow ------------------------------------------------------------------------------------------

Outcome cuGraphClone(Session& session, Call& call, wire::CuGraphClone::Reader in) {
  CUgraph original{};
  if (!session.objects().resolve(HandleKind::graph, in.getOriginalGraph(), original)) return Objects::invalid(HandleKind::graph);
  if (session.graph_memory().any(session.objects().handles().root_of(Handle(in.getOriginalGraph())))) return CUDA_ERROR_NOT_SUPPORTED;
  CUgraph clone{};
  const CUresult result = session.driver().cuGraphClone(&clone, original);
  if (result != CUDA_SUCCESS) return result;
  const Handle handle = session.objects().reveal(HandleKind::graph, clone, call);
  session.user_objects().copied(Handle(in.getOriginalGraph()), handle);
  call.out<wire::CuGraphCloneReply>().setPhGraphClone(handle.value());
  return result;
}

Outcome cuGraphDestroy(Session& session, Call&, wire::CuGraphDestroy::Reader in) {
  CUgraph graph{};
  if (!session.objects().resolve(HandleKind::graph, in.getHGraph(), graph)) return Objects::invalid(HandleKind::graph);
  if (session.captures().into(Handle(in.getHGraph()))) return CUDA_ERROR_ILLEGAL_STATE;
  const CUresult result = session.driver().cuGraphDestroy(graph);
  if (result == CUDA_SUCCESS) session.objects().forget(HandleKind::graph, in.getHGraph());
  return result;
}

Outcome cuGraphDestroyNode(Session& session, Call&, wire::CuGraphDestroyNode::Reader in) {
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::node, in.getHNode(), node)) return Objects::invalid(HandleKind::node);
  if (session.captures().into(Handle(in.getHNode()))) return CUDA_ERROR_ILLEGAL_STATE;
  if (session.graph_memory().any(session.objects().handles().root_of(Handle(in.getHNode())))) return CUDA_ERROR_NOT_SUPPORTED;
  const std::vector<Handle> within = known_within(session, node);
  const CUresult result = session.driver().cuGraphDestroyNode(node);
  if (result != CUDA_SUCCESS) return result;
  session.objects().forget(HandleKind::node, in.getHNode());
  for (const Handle gone : within) session.objects().forget(gone.kind(), gone.value());
  return result;
}

namespace {

CUresult resolve_nodes(Session& session, capnp::List<std::uint64_t>::Reader in, std::vector<CUgraphNode>& nodes) {
  nodes.resize(list_size(in.size()));
  for (unsigned i = 0; i < nodes.size(); ++i)
    if (!session.objects().resolve(HandleKind::node, in[i], nodes[i])) return Objects::invalid(HandleKind::node);
  return CUDA_SUCCESS;
}

// Checks what both versions of cuGraphRemoveDependencies are given.
template <class Request>
CUresult read_removal(Session& session, Request in, CUgraph& graph, std::vector<CUgraphNode>& from, std::vector<CUgraphNode>& to) {
  if (!session.objects().resolve(HandleKind::graph, in.getHGraph(), graph)) return Objects::invalid(HandleKind::graph);
  if (const CUresult bad = resolve_nodes(session, in.getFrom(), from); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = resolve_nodes(session, in.getTo(), to); bad != CUDA_SUCCESS) return bad;
  if (from.size() != to.size()) return CUDA_ERROR_INVALID_VALUE;
  return session.graph_memory().any(session.objects().handles().root_of(Handle(in.getHGraph()))) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

}  // namespace

Outcome cuGraphRemoveDependencies(Session& session, Call&, wire::CuGraphRemoveDependencies::Reader in) {
  CUgraph graph{};
  std::vector<CUgraphNode> from, to;
  if (const CUresult bad = read_removal(session, in, graph, from, to); bad != CUDA_SUCCESS) return bad;
  return session.driver().cuGraphRemoveDependencies(graph, from.data(), to.data(), from.size());
}

Outcome cuGraphRemoveDependencies_v2(Session& session, Call&, wire::CuGraphRemoveDependenciesV2::Reader in) {
  CUgraph graph{};
  std::vector<CUgraphNode> from, to;
  if (const CUresult bad = read_removal(session, in, graph, from, to); bad != CUDA_SUCCESS) return bad;
  const auto edge_list = in.getEdgeData();
  std::vector<CUgraphEdgeData> edges(list_size(edge_list.size()));
  if (in.getHasEdgeData() && edges.size() != from.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < edges.size(); ++i) decode(edge_list[i], edges[i]);
  return session.driver().cuGraphRemoveDependencies_v2(graph, from.data(), to.data(), in.getHasEdgeData() ? edges.data() : nullptr,
                                                       from.size());
}

Outcome getNode(Session& session, Call& call, wire::GetNode::Reader in) {
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::node, in.getNode(), node)) return Objects::invalid(HandleKind::node);
  return write_node(session, call, node, static_cast<CUgraphNodeType>(in.getType()), call.out<wire::GetNodeReply>().initParameters());
}

Outcome nodeAttribute(Session& session, Call& call, wire::NodeAttribute::Reader in) {
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::node, in.getNode(), node)) return Objects::invalid(HandleKind::node);
  CUlaunchAttribute attribute;
  if (const CUresult bad = read_attribute(session.objects(), in.getAttribute(), attribute); bad != CUDA_SUCCESS) return bad;
  if (in.getSet()) return session.driver().cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value);
  const CUresult result = session.driver().cuGraphKernelNodeGetAttribute(node, attribute.id, &attribute.value);
  if (result != CUDA_SUCCESS) return result;
  return write_attribute(session.objects(), attribute, call.out<wire::NodeAttributeReply>().initAttribute());
}

Outcome cuGraphNodeSetEnabled(Session& session, Call& call, wire::CuGraphNodeSetEnabled::Reader in) {
  CUgraphExec exec{};
  CUgraphNode node{};
  if (!session.objects().resolve(HandleKind::exec, in.getHGraphExec(), exec)) return Objects::invalid(HandleKind::exec);
  if (!session.objects().resolve(HandleKind::node, in.getHNode(), node)) return Objects::invalid(HandleKind::node);
  if (const auto later = session.ordering().behind_launches(call, in.getHGraphExec())) return *later;
  AttendedGraph* const attended = session.attended_graphs().find(in.getHGraphExec());
  const CUgraphNode copy = attended ? attended->copy_of(node) : nullptr;
  if (attended && !copy && attended->has_parts()) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = session.driver().cuGraphNodeSetEnabled(exec, node, in.getIsEnabled());
  if (result == CUDA_SUCCESS && copy) attended->set_enabled(copy, in.getIsEnabled() != 0);
  return result;
}

Outcome cuGraphExecChildGraphNodeSetParams(Session& session, Call& call, wire::CuGraphExecChildGraphNodeSetParams::Reader in) {
  CUgraphExec exec{};
  CUgraphNode node{};
  CUgraph child{};
  if (!session.objects().resolve(HandleKind::exec, in.getHGraphExec(), exec)) return Objects::invalid(HandleKind::exec);
  if (!session.objects().resolve(HandleKind::node, in.getHNode(), node)) return Objects::invalid(HandleKind::node);
  if (!session.objects().resolve(HandleKind::graph, in.getChildGraph(), child)) return Objects::invalid(HandleKind::graph);
  if (const auto later = session.ordering().behind_launches(call, in.getHGraphExec())) return *later;
  // A child graph cannot be exchanged in the copy from which an attended graph's pieces are made.
  if (session.attended_graphs().find(in.getHGraphExec()) || needs_attention(session.driver(), session.graph_parts(), child))
    return CUDA_ERROR_NOT_SUPPORTED;
  return session.driver().cuGraphExecChildGraphNodeSetParams(exec, node, child);
}

// --- executable graphs ---------------------------------------------------------------------------------------------------------------

Outcome instantiateGraph(Session& session, Call& call, wire::InstantiateGraph::Reader in) {
  CUgraph graph{};
  if (!session.objects().resolve(HandleKind::graph, in.getGraph(), graph)) return Objects::invalid(HandleKind::graph);
  struct Made {
    CUgraphExec exec = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    std::unique_ptr<AttendedGraph> attended;
    std::string refusal;
  };
  if (session.graph_memory().any(Handle(in.getGraph())) && session.graph_memory().instantiated(Handle(in.getGraph())))
    return CUDA_ERROR_NOT_SUPPORTED;
  auto made = std::make_shared<Made>();
  made->params.flags = in.getFlags();
  if (in.getUpload() != 0) {
    StreamState* const stream = session.contexts().stream(in.getUpload(), call.id().context);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    made->params.hUploadStream = stream->cuda;
    session.ordering().submitted(*stream);
  }
  return session.aside_reply(
      call,
      [made, graph, driver = session.attended_graphs().lent_driver(), &parts = session.graph_parts()] {
        const CUresult result = driver->cuGraphInstantiateWithParams(&made->exec, graph, &made->params);
        if (result != CUDA_SUCCESS || !needs_attention(*driver, parts, graph)) return result;
        made->attended = std::make_unique<AttendedGraph>(driver, parts, made->exec, made->params.flags);
        const CUresult taken = made->attended->take(graph, made->refusal);
        if (taken != CUDA_SUCCESS) driver->cuGraphExecDestroy(made->exec);
        return taken;
      },
      [made, &session, source = Handle(in.getGraph())](CUresult result, MessageWriter& writer) {
        auto out = writer.root<wire::InstantiateGraphReply>();
        out.setOutcome(made->params.result_out);
        if (made->params.hErrNode_out) {
          out.setErrorNode(session.objects()
                               .handles()
                               .reveal(HandleKind::node, reinterpret_cast<std::uint64_t>(made->params.hErrNode_out), 0, source)
                               .value());
        }
        out.setRefusal(made->refusal);
        if (result != CUDA_SUCCESS) return result;
        const Handle exec = session.objects().handles().reveal(HandleKind::exec, reinterpret_cast<std::uint64_t>(made->exec), 0);
        out.setExec(exec.value());
        out.setAttended(made->attended != nullptr);
        session.graph_memory().set_instantiated(source, exec);
        session.graph_memory().describe(source, out.initMemory());
        if (made->attended) session.attended_graphs().add(exec.value(), std::move(made->attended));
        return result;
      });
}

Outcome updateGraph(Session& session, Call& call, wire::UpdateGraph::Reader in) {
  CUgraphExec exec{};
  CUgraph graph{};
  if (!session.objects().resolve(HandleKind::exec, in.getExec(), exec)) return Objects::invalid(HandleKind::exec);
  if (!session.objects().resolve(HandleKind::graph, in.getGraph(), graph)) return Objects::invalid(HandleKind::graph);
  if (const auto later = session.ordering().behind_launches(call, in.getExec())) {
    if (later->is_later()) return *later;
    call.out<wire::UpdateGraphReply>().setOutcome(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
    call.out<wire::UpdateGraphReply>().setRefusal(
        "updating an executable graph of which a launch is behind a wait for a value in memory of the host");
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  DriverTable& driver = session.driver();
  auto out = call.out<wire::UpdateGraphReply>();
  // The driver takes memory nodes for empty ones, and sees no difference between them.
  GraphMemory& memory = session.graph_memory();
  if (const auto refused = memory.may_update(Handle(in.getExec()), Handle(in.getGraph())); refused != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    out.setOutcome(refused);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  CUgraphExecUpdateResultInfo info{};
  CUresult result = driver.cuGraphExecUpdate_v2(exec, graph, &info);
  out.setOutcome(info.result);
  out.setErrorNode(session.objects().reveal(HandleKind::node, info.errorNode, call, in.getGraph()).value());
  out.setErrorFromNode(session.objects().reveal(HandleKind::node, info.errorFromNode, call, in.getGraph()).value());
  AttendedGraph* attended = session.attended_graphs().find(in.getExec());
  if (result == CUDA_SUCCESS && !attended && needs_attention(driver, session.graph_parts(), graph)) {
    cuuint64_t flags = 0;
    driver.cuGraphExecGetFlags(exec, &flags);
    session.attended_graphs().add(
        in.getExec(), std::make_unique<AttendedGraph>(session.attended_graphs().lent_driver(), session.graph_parts(), exec, flags));
    attended = session.attended_graphs().find(in.getExec());
  }
  if (attended) {
    out.setAttended(true);
    std::string refusal;
    if (result == CUDA_SUCCESS && (result = attended->take(graph, refusal)) != CUDA_SUCCESS) {
      out.setRefusal(refusal);
      out.setOutcome(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
    }
  }
  if (result == CUDA_SUCCESS) {
    memory.set_instantiated(Handle(in.getGraph()), Handle(in.getExec()));
    memory.describe(Handle(in.getGraph()), out.initMemory());
  }
  return result;
}

Outcome cuGraphLaunch(Session& session, Call& call, wire::CuGraphLaunch::Reader in) {
  CUgraphExec exec{};
  if (!session.objects().resolve(HandleKind::exec, in.getHGraph(), exec)) return Objects::invalid(HandleKind::exec);
  StreamState* const stream = session.contexts().stream(in.getHStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  // Into a capture goes the graph as it is; it is looked at when what is captured is instantiated.
  const AttendedGraph* const attended = session.attended_graphs().find(in.getHGraph());
  if (attended && attended->has_parts() && !session.captures().capturing(*stream)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = session.driver().cuGraphLaunch(exec, stream->cuda);
  if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  return result;
}

Outcome launchGraph(Session& session, Call& call, wire::LaunchGraph::Reader in) {
  StreamState* const stream = session.contexts().stream(in.getStream(), call.id().context);
  AttendedGraph* const attended = session.attended_graphs().find(in.getExec());
  const auto refuse = [&](CUresult result) {
    GraphRun::announce(session, nullptr, in.getDone());
    return result;
  };
  if (!attended) return refuse(CUDA_ERROR_INVALID_VALUE);
  if (!stream || session.captures().capturing(*stream)) return refuse(CUDA_ERROR_INVALID_HANDLE);
  std::string refusal;
  auto plan = attended->plan(refusal);
  if (!plan) return refuse(CUDA_ERROR_NOT_SUPPORTED);
  std::make_shared<GraphRun>(session, std::move(plan), call.id(), in.getStream(), in.getDone())->launch(*stream, *attended, in.getExec());
  return Outcome::later();
}

Outcome cuGraphUpload(Session& session, Call& call, wire::CuGraphUpload::Reader in) {
  CUgraphExec exec{};
  if (!session.objects().resolve(HandleKind::exec, in.getHGraph(), exec)) return Objects::invalid(HandleKind::exec);
  StreamState* const stream = session.contexts().stream(in.getHStream(), call.id().context);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  CUresult result = CUDA_SUCCESS;
  if (AttendedGraph* const attended = session.attended_graphs().find(in.getHGraph())) {
    std::string refusal;
    const auto plan = attended->plan(refusal);
    if (!plan) return CUDA_ERROR_NOT_SUPPORTED;
    for (const GraphPlan::Step& step : plan->steps)
      if (step.piece && result == CUDA_SUCCESS) result = session.driver().cuGraphUpload(step.piece, stream->cuda);
  } else {
    result = session.driver().cuGraphUpload(exec, stream->cuda);
  }
  if (result == CUDA_SUCCESS) session.ordering().submitted(*stream);
  return result;
}

// --- the rest --------------------------------------------------------------------------------------------------------------------------

// The driver writes to a path only; this one leads to memory.
Outcome printGraph(Session& session, Call& call, wire::PrintGraph::Reader in) {
  CUgraph graph{};
  if (!session.objects().resolve(HandleKind::graph, in.getGraph(), graph)) return Objects::invalid(HandleKind::graph);
  const int file = ::memfd_create("graph", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const CUresult result = session.driver().cuGraphDebugDotPrint(graph, path.c_str(), in.getFlags());
  if (result == CUDA_SUCCESS) {
    const auto bytes = static_cast<std::uint64_t>(std::max<off_t>(0, ::lseek(file, 0, SEEK_END)));
    const std::uint64_t offset = std::min(in.getOffset(), bytes);
    std::vector<kj::byte> text(std::min<std::uint64_t>(bytes - offset, limits::bulk_bytes_max));
    const ssize_t got = ::pread(file, text.data(), text.size(), static_cast<off_t>(offset));
    auto out = call.out<wire::PrintGraphReply>();
    out.setText(capnp::Data::Reader(text.data(), static_cast<std::size_t>(std::max<ssize_t>(0, got))));
    out.setBytes(bytes);
  }
  ::close(file);
  return result;
}

}  // namespace fargpu::server::hand
