// Graphs: nodes, executable graphs, launches.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "node_params.h"
#include "server/worker/graph/graph_plan.h"
#include "graph_run.h"
#include "server/worker/code/launch_attributes.h"
#include "server/worker/session/session.h"
#include "checks.h"
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

// The node, which was just given these parameters, has a copy of a graph, unless it was moved.
CUresult keep_parts_of_child(Session& session, wire::NodeParameters::Reader in, CUgraphNode node, CUgraph keeper) {
  if (!in.isChild() || in.getMoved()) return CUDA_SUCCESS;
  CUgraph copy{};
  if (const CUresult bad = session.driver().cuGraphChildGraphNodeGetGraph(node, &copy); bad != CUDA_SUCCESS) return bad;
  return keep_parts_of_copy(session, Handle(in.getChild()), copy, keeper);
}

}  // namespace

// --- nodes ----------------------------------------------------------------------------------------------------------

Outcome addNode(Session& session, Call& call, wire::AddNode::Reader in, Known<HandleKind::graph> graph) {
  const auto dependency_list = in.getDependencies();
  std::vector<CUgraphNode> dependencies(list_size(dependency_list.size()));
  for (unsigned i = 0; i < dependencies.size(); ++i)
    if (!session.objects().resolve(HandleKind::node, dependency_list[i], dependencies[i]))
      return Objects::invalid(HandleKind::node);
  const auto edge_list = in.getEdges();
  std::vector<CUgraphEdgeData> edges(list_size(edge_list.size()));
  if (!edges.empty() && edges.size() != dependencies.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < edges.size(); ++i) {
    edges[i].from_port = edge_list[i].getFromPort();
    edges[i].to_port = edge_list[i].getToPort();
    edges[i].type = edge_list[i].getType();
  }
  session.objects().handles().require_room(HandleKind::node);  // else the graph had a node that nobody can name
  NodeParameters node(session);
  if (const CUresult bad = node.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
  if (holds_itself(session, graph.cuda(), graph.handle(), node.params(),
                   Handle(in.getParameters().isChild() ? in.getParameters().getChild() : 0)))
    return CUDA_ERROR_INVALID_VALUE;
  if (node.memory()) {
    if (const CUresult bad = check_memory(session, graph.handle(), *node.memory()); bad != CUDA_SUCCESS) return bad;
  }
  if (const CUresult bad = node.keep_in(keeper_of(session, graph.cuda())); bad != CUDA_SUCCESS) return bad;
  CUgraphNode made{};
  const CUresult result =
      session.driver().cuGraphAddNode_v2(&made, graph.cuda(), dependencies.data(),
                                         edges.empty() ? nullptr : edges.data(), dependencies.size(), &node.params());
  if (result != CUDA_SUCCESS) {
    node.take_back();
    return result;
  }
  if (const CUresult bad = keep_parts_of_child(session, in.getParameters(), made, keeper_of(session, graph.cuda()));
      bad != CUDA_SUCCESS) {
    session.driver().cuGraphDestroyNode(made);
    node.take_back();
    return bad;
  }
  auto out = call.out<wire::AddNodeReply>();
  const Handle handle = session.objects().introduce(HandleKind::node, made, call, graph.value());
  out.setNode(handle.value());
  if (node.memory()) session.graph_memory().add(handle, *node.memory());
  const CUgraphNodeParams& params = node.params();
  if (params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    const std::vector<CUgraph> bodies(params.conditional.phGraph_out,
                                      params.conditional.phGraph_out + params.conditional.size);
    auto list = out.initBodies(params.conditional.size);
    for (unsigned i = 0; i < bodies.size(); ++i)
      list.set(i, session.objects().reveal(HandleKind::graph, bodies[i], call, graph.value()).value());
    session.graph_parts().set_bodies(made, bodies);
  } else if (params.type == CU_GRAPH_NODE_TYPE_GRAPH && params.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    session.objects().handles().give(Handle(in.getParameters().getChild()), graph.handle());
  } else if (params.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    CUgraph copy{};
    if (session.driver().cuGraphChildGraphNodeGetGraph(made, &copy) == CUDA_SUCCESS)
      session.user_objects().copied(Handle(in.getParameters().getChild()),
                                    session.objects().introduce(HandleKind::graph, copy, call, graph.value()));
  }
  return result;
}

namespace {

// The parts of a node that the graph keeps for it: the node is one of the graph's own, and of no graph within it.
std::vector<std::uint64_t> parts_kept_for(Session& session, CUgraph graph, CUgraphNode node) {
  DriverTable& driver = session.driver();
  const std::vector<std::uint64_t> numbers = parts_of(session, node);
  if (numbers.empty()) return {};
  std::size_t count = 0;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return {};
  std::vector<CUgraphNode> own(count);
  if (driver.cuGraphGetNodes(graph, own.data(), &count) != CUDA_SUCCESS) return {};
  return std::find(own.begin(), own.end(), node) != own.end() ? numbers : std::vector<std::uint64_t>{};
}

Outcome set_in_graph(Session& session, const Call& call, wire::NodeParameters::Reader in,
                     Known<HandleKind::node> node) {
  const CUgraph graph = outermost_of(session, node.handle());
  if (!graph) return Objects::invalid(HandleKind::node);
  const std::vector<Handle> within = known_within(session, node.cuda());
  if (!within.empty() && session.captures().into(node.handle())) return CUDA_ERROR_ILLEGAL_STATE;
  NodeParameters params(session);
  if (const CUresult bad = params.read(call, in); bad != CUDA_SUCCESS) return bad;
  if (params.params().type == CU_GRAPH_NODE_TYPE_GRAPH && params.params().graph.graph == graph)
    return CUDA_ERROR_INVALID_VALUE;
  const std::vector<std::uint64_t> before = parts_kept_for(session, graph, node.cuda());
  if (const CUresult bad = params.keep_in(graph); bad != CUDA_SUCCESS) return bad;
  const CUresult result = params.give_to(node.cuda());
  if (result != CUDA_SUCCESS) {
    params.take_back();
    return result;
  }
  const CUresult kept = keep_parts_of_child(session, in, node.cuda(), graph);
  for (const Handle gone : within) session.objects().forget(gone.kind(), gone.value());
  for (const std::uint64_t part : before) session.graph_parts().let_go(session.driver(), graph, part);
  return kept;
}

Outcome set_in_exec(Session& session, Call& call, wire::SetNode::Reader in, Known<HandleKind::node> node) {
  DriverTable& driver = session.driver();
  CUgraphExec exec{};
  if (!session.objects().resolve(HandleKind::exec, in.getExec(), exec)) return Objects::invalid(HandleKind::exec);
  if (const auto later = session.ordering().behind_launches(call, in.getExec())) return *later;
  NodeParameters params(session);
  if (const CUresult bad = params.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
  AttendedGraph* const attended = session.attended_graphs().find(in.getExec());
  if (!attended) {
    // Without parts until now: the driver does not let a node change so much, and neither do we.
    if (params.attended()) return CUDA_ERROR_INVALID_VALUE;
    if (params.params().type == CU_GRAPH_NODE_TYPE_GRAPH &&
        needs_attention(driver, session.graph_parts(), params.params().graph.graph))
      return CUDA_ERROR_NOT_SUPPORTED;
    return driver.cuGraphExecNodeSetParams(exec, node.cuda(), &params.params());
  }
  const CUgraphNode copy = attended->copy_of(node.cuda());
  if (!copy) {
    if (params.attended() || attended->has_parts()) return CUDA_ERROR_NOT_SUPPORTED;
    return driver.cuGraphExecNodeSetParams(exec, node.cuda(), &params.params());
  }
  if (const CUresult bad = attended->before_change(); bad != CUDA_SUCCESS) return bad;
  const std::vector<std::uint64_t> before = parts_kept_for(session, attended->copy(), copy);
  if (const CUresult bad = params.keep_in(attended->copy()); bad != CUDA_SUCCESS) return bad;
  CUresult result = driver.cuGraphExecNodeSetParams(exec, node.cuda(), &params.params());
  if (result == CUDA_SUCCESS) {
    result = driver.cuGraphNodeSetParams(copy, &params.params());
    attended->changed();
    if (result == CUDA_SUCCESS)
      for (const std::uint64_t part : before) session.graph_parts().let_go(driver, attended->copy(), part);
  } else {
    params.take_back();
  }
  return result;
}

}  // namespace

Outcome setNode(Session& session, Call& call, wire::SetNode::Reader in, Known<HandleKind::node> node) {
  return in.getExec() == 0 ? set_in_graph(session, call, in.getParameters(), node)
                           : set_in_exec(session, call, in, node);
}

// What the driver takes for an empty node may be more.
Outcome cuGraphNodeGetType(Session& session, Call& call, wire::CuGraphNodeGetType::Reader,
                           Known<HandleKind::node> node) {
  CUgraphNodeType type{};
  const CUresult result = session.driver().cuGraphNodeGetType(node.cuda(), &type);
  if (result != CUDA_SUCCESS) return result;
  if (const GraphMemory::Node* const memory = session.graph_memory().find(node.handle()))
    type = memory->allocates ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : CU_GRAPH_NODE_TYPE_MEM_FREE;
  call.out<wire::CuGraphNodeGetTypeReply>().setType(type);
  return result;
}

// --- graphs and nodes: copies, ends, questions ----------------------------------------------------------------------

Outcome cuGraphClone(Session& session, Call& call, wire::CuGraphClone::Reader, Known<HandleKind::graph> original) {
  session.objects().handles().require_room(HandleKind::graph);
  CUgraph clone{};
  const CUresult result = session.driver().cuGraphClone(&clone, original.cuda());
  if (result != CUDA_SUCCESS) return result;
  if (const CUresult bad = keep_parts_of_copy(session, original.handle(), clone, clone); bad != CUDA_SUCCESS) {
    session.driver().cuGraphDestroy(clone);
    return bad;
  }
  const Handle handle = session.objects().reveal(HandleKind::graph, clone, call);
  session.user_objects().copied(original.handle(), handle);
  call.out<wire::CuGraphCloneReply>().setPhGraphClone(handle.value());
  return result;
}

Outcome cuGraphDestroy(Session& session, Call&, wire::CuGraphDestroy::Reader, Known<HandleKind::graph> graph) {
  if (session.captures().into(graph.handle())) return CUDA_ERROR_ILLEGAL_STATE;
  const CUresult result = session.driver().cuGraphDestroy(graph.cuda());
  if (result == CUDA_SUCCESS) session.objects().forget(graph);
  return result;
}

Outcome cuGraphDestroyNode(Session& session, Call&, wire::CuGraphDestroyNode::Reader, Known<HandleKind::node> node) {
  if (session.captures().into(node.handle())) return CUDA_ERROR_ILLEGAL_STATE;
  if (const CUresult bad = checks::no_memory_nodes(session, node); bad != CUDA_SUCCESS) return bad;
  const CUgraph graph = outermost_of(session, node.handle());
  if (!graph) return Objects::invalid(HandleKind::node);
  const std::vector<Handle> within = known_within(session, node.cuda());
  const std::vector<std::uint64_t> parts = parts_kept_for(session, graph, node.cuda());
  const CUresult result = session.driver().cuGraphDestroyNode(node.cuda());
  if (result != CUDA_SUCCESS) return result;
  session.objects().forget(node);
  for (const std::uint64_t part : parts) session.graph_parts().let_go(session.driver(), graph, part);
  for (const Handle gone : within) session.objects().forget(gone.kind(), gone.value());
  return result;
}

Outcome getNode(Session& session, Call& call, wire::GetNode::Reader in, Known<HandleKind::node> node) {
  return write_node(session, call, node.cuda(), static_cast<CUgraphNodeType>(in.getType()),
                    call.out<wire::GetNodeReply>().initParameters());
}

Outcome nodeAttribute(Session& session, Call& call, wire::NodeAttribute::Reader in, Known<HandleKind::node> node) {
  CUlaunchAttribute attribute;
  if (const CUresult bad = read_attribute(session.objects(), in.getAttribute(), attribute); bad != CUDA_SUCCESS)
    return bad;
  if (in.getSet()) return session.driver().cuGraphKernelNodeSetAttribute(node.cuda(), attribute.id, &attribute.value);
  const CUresult result = session.driver().cuGraphKernelNodeGetAttribute(node.cuda(), attribute.id, &attribute.value);
  if (result != CUDA_SUCCESS) return result;
  return write_attribute(session.objects(), attribute, call.out<wire::NodeAttributeReply>().initAttribute());
}

Outcome cuGraphNodeSetEnabled(Session& session, Call& call, wire::CuGraphNodeSetEnabled::Reader in,
                              Known<HandleKind::exec> exec, Known<HandleKind::node> node) {
  if (const auto later = session.ordering().behind_launches(call, exec.value())) return *later;
  AttendedGraph* const attended = session.attended_graphs().find(exec.value());
  const CUgraphNode copy = attended ? attended->copy_of(node.cuda()) : nullptr;
  if (attended && !copy && attended->has_parts()) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult bad = attended ? attended->before_change() : CUDA_SUCCESS; bad != CUDA_SUCCESS) return bad;
  const CUresult result = session.driver().cuGraphNodeSetEnabled(exec.cuda(), node.cuda(), in.getIsEnabled());
  if (result != CUDA_SUCCESS) return result;
  if (attended) attended->set_enabled(node.cuda(), copy, in.getIsEnabled() != 0);
  else session.attended_graphs().set_enabled(exec.value(), node.cuda(), in.getIsEnabled() != 0);
  return result;
}

Outcome cuGraphExecChildGraphNodeSetParams(Session& session, Call& call,
                                           wire::CuGraphExecChildGraphNodeSetParams::Reader,
                                           Known<HandleKind::exec> exec, Known<HandleKind::node> node,
                                           Known<HandleKind::graph> child) {
  if (const auto later = session.ordering().behind_launches(call, exec.value())) return *later;
  // A child graph cannot be exchanged in the copy from which an attended graph's pieces are made.
  if (session.attended_graphs().find(exec.value()) ||
      needs_attention(session.driver(), session.graph_parts(), child.cuda()))
    return CUDA_ERROR_NOT_SUPPORTED;
  return session.driver().cuGraphExecChildGraphNodeSetParams(exec.cuda(), node.cuda(), child.cuda());
}

// --- executable graphs ----------------------------------------------------------------------------------------------

Outcome instantiateGraph(Session& session, Call& call, wire::InstantiateGraph::Reader in,
                         Known<HandleKind::graph> graph) {
  struct Made {
    CUgraphExec exec = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    std::unique_ptr<AttendedGraph> attended;
    std::string refusal;
  };
  if (session.graph_memory().any(graph.handle()) && session.graph_memory().instantiated(graph.handle())) {
    // The end of that executable graph may be among what is held back.
    if (const auto later = session.ordering().behind_all(call)) return *later;
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  session.objects().handles().require_room(HandleKind::exec);
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
        const CUresult result = driver->cuGraphInstantiateWithParams(&made->exec, graph.cuda(), &made->params);
        if (result != CUDA_SUCCESS || !needs_attention(*driver, parts, graph.cuda())) return result;
        made->attended = std::make_unique<AttendedGraph>(driver, parts, made->exec, made->params.flags);
        const CUresult taken = made->attended->take(graph.cuda(), made->refusal);
        if (taken != CUDA_SUCCESS) driver->cuGraphExecDestroy(made->exec);
        return taken;
      },
      [made, &session, id = call.id(), source = graph.handle()](CUresult result, MessageWriter& writer) {
        auto out = writer.root<wire::InstantiateGraphReply>();
        const bool refused = result != CUDA_SUCCESS && made->params.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS;
        out.setOutcome(refused ? CUDA_GRAPH_INSTANTIATE_ERROR : made->params.result_out);
        out.setErrorNode(
            session.objects().reveal(HandleKind::node, made->params.hErrNode_out, id, source.value()).value());
        out.setRefusal(made->refusal);
        if (result != CUDA_SUCCESS) return result;
        const Handle exec = session.objects().reveal_made(HandleKind::exec, made->exec, id,
                                                          [&] { session.driver().cuGraphExecDestroy(made->exec); });
        out.setExec(exec.value());
        out.setAttended(made->attended != nullptr);
        session.graph_memory().set_instantiated(source, exec);
        session.graph_memory().describe(source, out.initMemory());
        if (made->attended) session.attended_graphs().add(exec.value(), std::move(made->attended));
        return result;
      },
      Asides::Repeats::call);
}

Outcome updateGraph(Session& session, Call& call, wire::UpdateGraph::Reader, Known<HandleKind::exec> exec,
                    Known<HandleKind::graph> graph) {
  if (const auto later = session.ordering().behind_launches(call, exec.value())) {
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
  if (const auto refused = memory.may_update(exec.handle(), graph.handle()); refused != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    out.setOutcome(refused);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  AttendedGraph* attended = session.attended_graphs().find(exec.value());
  if (const CUresult bad = attended ? attended->before_change() : CUDA_SUCCESS; bad != CUDA_SUCCESS) {
    out.setOutcome(CU_GRAPH_EXEC_UPDATE_ERROR);
    return bad;
  }
  // Nobody knows which copies of the new graph the driver would leave out.
  if (session.attended_graphs().any_disabled(exec.value()) &&
      needs_attention(driver, session.graph_parts(), graph.cuda())) {
    out.setRefusal(
        "updating an executable graph of which nodes are disabled with the first graph that copies from or to memory "
        "of the program");
    out.setOutcome(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  CUgraphExecUpdateResultInfo info{};
  CUresult result = driver.cuGraphExecUpdate_v2(exec.cuda(), graph.cuda(), &info);
  out.setOutcome(info.result);
  out.setErrorNode(session.objects().reveal(HandleKind::node, info.errorNode, call, graph.value()).value());
  out.setErrorFromNode(session.objects().reveal(HandleKind::node, info.errorFromNode, call, graph.value()).value());
  if (result == CUDA_SUCCESS && !attended && needs_attention(driver, session.graph_parts(), graph.cuda())) {
    cuuint64_t flags = 0;
    driver.cuGraphExecGetFlags(exec.cuda(), &flags);
    session.attended_graphs().add(
        exec.value(), std::make_unique<AttendedGraph>(session.attended_graphs().lent_driver(), session.graph_parts(),
                                                      exec.cuda(), flags));
    attended = session.attended_graphs().find(exec.value());
  }
  if (attended) {
    out.setAttended(true);
    std::string refusal;
    if (result == CUDA_SUCCESS && (result = attended->take(graph.cuda(), refusal)) != CUDA_SUCCESS) {
      out.setRefusal(refusal);
      out.setOutcome(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
    }
  }
  if (result == CUDA_SUCCESS) {
    memory.set_instantiated(graph.handle(), exec.handle());
    memory.describe(graph.handle(), out.initMemory());
  }
  return result;
}

Outcome cuGraphLaunch(Session& session, Call&, wire::CuGraphLaunch::Reader, Known<HandleKind::exec> exec,
                      StreamState& stream) {
  // Into a capture goes the graph as it is; it is looked at when what is captured is instantiated.
  const AttendedGraph* const attended = session.attended_graphs().find(exec.value());
  if (attended && attended->has_parts() && !session.captures().capturing(stream)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = session.driver().cuGraphLaunch(exec.cuda(), stream.cuda);
  if (result == CUDA_SUCCESS) session.ordering().submitted(stream);
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
  std::make_shared<GraphRun>(session, std::move(plan), call.id(), in.getStream(), in.getDone())
      ->launch(*stream, *attended, in.getExec());
  return Outcome::later();
}

Outcome cuGraphUpload(Session& session, Call&, wire::CuGraphUpload::Reader, Known<HandleKind::exec> exec,
                      StreamState& stream) {
  CUresult result = CUDA_SUCCESS;
  if (AttendedGraph* const attended = session.attended_graphs().find(exec.value())) {
    std::string refusal;
    const auto plan = attended->plan(refusal);
    if (!plan) return CUDA_ERROR_NOT_SUPPORTED;
    for (const GraphPlan::Step& step : plan->steps)
      if (step.piece && result == CUDA_SUCCESS) result = session.driver().cuGraphUpload(step.piece, stream.cuda);
  } else {
    result = session.driver().cuGraphUpload(exec.cuda(), stream.cuda);
  }
  if (result == CUDA_SUCCESS) session.ordering().submitted(stream);
  return result;
}

// --- the rest -------------------------------------------------------------------------------------------------------

// The driver writes to a path only; this one leads to memory.
Outcome printGraph(Session& session, Call& call, wire::PrintGraph::Reader in, Known<HandleKind::graph> graph) {
  const int file = ::memfd_create("graph", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  const CUresult result = session.driver().cuGraphDebugDotPrint(graph.cuda(), path.c_str(), in.getFlags());
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
