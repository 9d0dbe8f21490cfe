// Streams, events and host functions: waiting without blocking, and what only the client can do.

#include <limits>

#include "node_params.h"
#include "server/worker/code/launch_attributes.h"
#include "server/worker/session/session.h"
#include "server_hand.h"
#include "struct_codecs.h"

namespace fargpu::server::hand {

Outcome cuStreamDestroy_v2(Session& session, Call&, wire::CuStreamDestroyV2::Reader, StreamState& stream) {
  if (stream.handle == legacy_stream) return Objects::invalid(HandleKind::stream);
  session.objects().forget(HandleKind::stream, stream.handle);
  return session.ordering().destroy_stream(stream);
}

Outcome cuStreamSynchronize(Session& session, Call& call, wire::CuStreamSynchronize::Reader, StreamState& stream) {
  if (!call.id().wants_reply) {  // the program has gone on, and must not notice
    session.ordering().take_all_for_done(stream);
    return CUDA_SUCCESS;
  }
  session.waits().when_passed(stream, session.answer(call.id()));
  return Outcome::later();
}

Outcome cuStreamQuery(Session& session, Call& call, wire::CuStreamQuery::Reader, StreamState& stream) {
  if (session.ordering().holding(stream)) return CUDA_ERROR_NOT_READY;
  if (session.driver().cuStreamQuery(stream.cuda) == CUDA_ERROR_NOT_READY) return CUDA_ERROR_NOT_READY;
  // Complete: answered like a synchronisation, so that what was to be delivered arrives first.
  session.waits().when_passed(stream, session.answer(call.id()));
  return Outcome::later();
}

Outcome cuEventDestroy_v2(Session& session, Call&, wire::CuEventDestroyV2::Reader, Known<HandleKind::event> event) {
  return session.awaited_events().destroy(event.value());
}

namespace {

// Answers a call when an event of the program has happened, with everything delivered that belongs to it.
void answer_after(Session& session, const CallId& id, std::uint64_t handle, CUevent event) {
  session.awaited_events().begin(handle);
  session.completions().after_event(event, handle, *session.contexts().find(id.context),
                                    [&session, id, handle](CUresult result) {
                                      session.awaited_events().end(handle);
                                      session.deliveries().send_changes();
                                      session.finish(id, result);
                                    });
}

// The last record of an event that is watched, be it held back yet.
void follow_record(Session& session, std::uint32_t context, std::uint64_t handle) {
  const auto follow = [&session, context, handle] {
    const auto tell = [&session, context, handle](CUresult result) {
      // The program has recorded it again, which the driver does not know yet.
      if (session.ordering().record_held(handle)) return follow_record(session, context, handle);
      if (!session.awaited_events().watches(handle)) return;  // what followed another record has told
      session.deliveries().send_changes();
      session.client().event_passed(handle, session.awaited_events().watched(handle), result != CUDA_SUCCESS);
    };
    CUevent event{};  // it and its context may be gone by now
    ContextState* const owner = session.contexts().find(context);
    if (session.captures().has_recorded(handle)) tell(CUDA_ERROR_CAPTURED_EVENT);
    else if (owner && session.objects().resolve(HandleKind::event, handle, event))
      session.completions().after_event(event, handle, *owner, tell);
    else tell(CUDA_ERROR_INVALID_HANDLE);
  };
  session.ordering().after_record(handle, follow, /*awaits=*/false);
}

// Programs ask again and again: the client answers by itself from now on, until it hears. What follows a record that
// has been superseded tells of the new one too late.
CUresult tell_when_passed(Session& session, const CallId& id, std::uint64_t handle) {
  const bool is_new = session.awaited_events().watch(handle, id.sequence);
  if (session.ordering().take_superseded(handle) || is_new) follow_record(session, id.context, handle);
  return CUDA_ERROR_NOT_READY;
}

}  // namespace

Outcome cuEventQuery(Session& session, Call& call, wire::CuEventQuery::Reader, Known<HandleKind::event> event) {
  // The driver does not know of a record that is held back.
  if (session.ordering().record_held(event.value())) return tell_when_passed(session, call.id(), event.value());
  const CUresult result = session.driver().cuEventQuery(event.cuda());
  if (result == CUDA_ERROR_NOT_READY) return tell_when_passed(session, call.id(), event.value());
  if (result != CUDA_SUCCESS) return result;
  answer_after(session, call.id(), event.value(), event.cuda());
  return Outcome::later();
}

Outcome watchEvent(Session& session, Call& call, wire::WatchEvent::Reader, Known<HandleKind::event> event) {
  tell_when_passed(session, call.id(), event.value());
  return CUDA_SUCCESS;
}

namespace {

// A time also says that both events have happened.
Outcome tell_times(Session& session, const Call& call, CUresult result, MessageWriter& reply) {
  const std::span<const std::byte> bytes = reply.finish();
  session.finish_behind_deliveries(call.id(), result, {bytes.begin(), bytes.end()});
  return Outcome::later();
}

template <class Reply>
Outcome tell_time(Session& session, const Call& call, CUresult result, float milliseconds) {
  MessageWriter reply;
  reply.root<Reply>().setPMilliseconds(milliseconds);
  return tell_times(session, call, result, reply);
}

}  // namespace

Outcome cuEventElapsedTime(Session& session, Call& call, wire::CuEventElapsedTime::Reader,
                           Known<HandleKind::event> start, Known<HandleKind::event> end) {
  float milliseconds = 0;
  const CUresult result = session.driver().cuEventElapsedTime(&milliseconds, start.cuda(), end.cuda());
  return tell_time<wire::CuEventElapsedTimeReply>(session, call, result, milliseconds);
}

Outcome cuEventElapsedTime_v2(Session& session, Call& call, wire::CuEventElapsedTimeV2::Reader,
                              Known<HandleKind::event> start, Known<HandleKind::event> end) {
  float milliseconds = 0;
  const CUresult result = session.driver().cuEventElapsedTime_v2(&milliseconds, start.cuda(), end.cuda());
  return tell_time<wire::CuEventElapsedTimeV2Reply>(session, call, result, milliseconds);
}

Outcome elapsedTimes(Session& session, Call& call, wire::ElapsedTimes::Reader in) {
  constexpr unsigned pairs_max = 512;
  const auto pairs = in.getPairs();
  if (pairs.size() == 0 || pairs.size() > pairs_max) return CUDA_ERROR_INVALID_VALUE;
  MessageWriter reply;
  auto out = reply.root<wire::ElapsedTimesReply>();
  auto times = out.initMilliseconds(pairs.size());
  for (unsigned i = 0; i < pairs.size(); ++i) {
    const auto start = session.objects().find<HandleKind::event>(pairs[i].getStart());
    const auto end = session.objects().find<HandleKind::event>(pairs[i].getEnd());
    float milliseconds = 0;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (start && end) {
      const bool held = session.ordering().record_held(start->value()) || session.ordering().record_held(end->value());
      result = held ? CUDA_ERROR_NOT_READY
                    : session.driver().cuEventElapsedTime_v2(&milliseconds, start->cuda(), end->cuda());
    }
    if (i == 0) out.setFirst(result);
    times.set(i, result == CUDA_SUCCESS ? milliseconds : std::numeric_limits<float>::quiet_NaN());
  }
  return tell_times(session, call, CUDA_SUCCESS, reply);
}

Outcome cuEventSynchronize(Session& session, Call& call, wire::CuEventSynchronize::Reader,
                           Known<HandleKind::event> event) {
  const auto answer = [&session, id = call.id(), handle = event.value()] {
    CUevent again{};  // it may be gone by now
    if (session.contexts().find(id.context) && session.objects().resolve(HandleKind::event, handle, again))
      answer_after(session, id, handle, again);
    else session.finish(id, CUDA_ERROR_INVALID_HANDLE);
  };
  session.ordering().after_record(event.value(), answer, /*awaits=*/true);
  return Outcome::later();
}

namespace {

// Has the driver make a node of the graph into which a stream is captured; the graph keeps the node's parts.
template <class Make>
CUresult capture_node(Session& session, NodeParameters& node, CUstream stream, Make&& make) {
  CUstreamCaptureStatus status{};
  CUgraph graph{};
  const CUresult result =
      session.driver().cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS) return result;
  // The client describes work only while it captures; this stream is captured no more.
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (const CUresult bad = node.keep_in(keeper_of(session, graph)); bad != CUDA_SUCCESS) return bad;
  const CUresult made = make();
  if (made != CUDA_SUCCESS) node.take_back();
  return made;
}

/// A function of the client that a stream is to get to.
struct ClientFunction {
  explicit ClientFunction(wire::HostFunction::Reader in)
      : number(in.getCallback()), always(in.getAlways()), watched(in.getWatched()), hears_skips(in.getHearsSkips()) {}

  std::uint64_t number;
  bool always, watched, hears_skips;
};

// The stream goes on when the function is over. One that has failed runs none.
void reach(Session& session, const ClientFunction& function, std::uint64_t held, CUresult result) {
  if (result != CUDA_SUCCESS && !function.always) {
    if (function.hears_skips) session.client().skip(function.number, result);
    session.ordering().release(held);
    return;
  }
  session.deliveries().send_changes();
  const auto over = std::make_shared<bool>(false);
  session.client().call(function.number, result, [&session, held, over] {
    *over = true;
    session.ordering().release(held);
  });
  if (!function.watched) return;
  session.retries().add([&session, over] {
    session.deliveries().send_changes();
    return *over;
  });
}

}  // namespace

Outcome hostFunction(Session& session, Call& call, wire::HostFunction::Reader in) {
  StreamState* const found = session.contexts().stream(in.getStream(), call.id().context);
  if (!found) return Objects::invalid(HandleKind::stream);
  StreamState& stream = *found;
  if (in.getPart() != 0) {
    NodeParameters node(session);
    if (const CUresult bad = node.read_host(call, in.getPart()); bad != CUDA_SUCCESS) return bad;
    return capture_node(session, node, stream.cuda, [&] {
      return session.driver().cuLaunchHostFunc(stream.cuda, node.params().host.fn, node.params().host.userData);
    });
  }
  const std::uint64_t held = session.ordering().hold_for_program(stream, in.getOrdered());
  session.completions().after(
      stream, Completions::Kind::signal,
      [&session, held, function = ClientFunction(in)](CUresult result) { reach(session, function, held, result); });
  return CUDA_SUCCESS;
}

void drop_hostFunction(Session& session, Call& call) {
  const auto in = call.in<wire::HostFunction>();
  if (in.getHearsSkips()) session.client().skip(in.getCallback(), CUDA_ERROR_UNKNOWN);
}

Outcome streamMemory(Session& session, Call&, wire::StreamMemory::Reader in, StreamState& stream) {
  std::vector<CUstreamBatchMemOpParams> operations;
  if (const CUresult bad = read_operations(session, in.getOperations(), operations); bad != CUDA_SUCCESS) return bad;
  const CUresult result = session.driver().cuStreamBatchMemOp_v2(stream.cuda, static_cast<unsigned>(operations.size()),
                                                                 operations.data(), 0);
  if (result == CUDA_SUCCESS) session.ordering().submitted(stream);
  return result;
}

// Launches that are held back were made before the attribute is set: it is set behind them then, and what the driver
// has to say of it comes late.
Outcome streamAttribute(Session& session, Call& call, wire::StreamAttribute::Reader in, StreamState& stream) {
  CUlaunchAttribute attribute;
  if (const CUresult bad = read_attribute(session.objects(), in.getAttribute(), attribute); bad != CUDA_SUCCESS)
    return bad;
  DriverTable& driver = session.driver();
  if (!in.getSet()) {
    const CUresult result = driver.cuStreamGetAttribute(stream.cuda, attribute.id, &attribute.value);
    return result == CUDA_SUCCESS
               ? write_attribute(session.objects(), attribute, call.out<wire::StreamAttributeReply>().initAttribute())
               : result;
  }
  if (!session.ordering().holding(stream))
    return driver.cuStreamSetAttribute(stream.cuda, attribute.id, &attribute.value);
  CallId id = call.id();
  id.wants_reply = false;
  session.ordering().defer(stream, [&session, id, handle = in.getStream(), attribute] {
    StreamState* const there = session.contexts().stream(handle, id.context);
    if (there && session.contexts().make_current(*there->context))
      session.finish(id, session.driver().cuStreamSetAttribute(there->cuda, attribute.id, &attribute.value));
  });
  return CUDA_SUCCESS;
}

Outcome captureCopy(Session& session, Call& call, wire::CaptureCopy::Reader in, StreamState& stream) {
  NodeParameters node(session);
  if (const CUresult bad = node.read_copy(call, in.getCopy(), /*context=*/0); bad != CUDA_SUCCESS) return bad;
  return capture_node(session, node, stream.cuda,
                      [&] { return session.driver().cuMemcpy3DAsync_v2(&node.copy(), stream.cuda); });
}

// The driver captures an empty node, behind what the stream depends on, and the stream goes on behind it.
Outcome captureMemory(Session& session, Call& call, wire::CaptureMemory::Reader in, StreamState& stream) {
  NodeParameters params(session);
  if (const CUresult bad = params.read(call, in.getParameters()); bad != CUDA_SUCCESS) return bad;
  if (!params.memory()) return CUDA_ERROR_INVALID_VALUE;
  session.objects().handles().require_room(HandleKind::node);
  DriverTable& driver = session.driver();
  return capture_node(session, params, stream.cuda, [&] {
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0;
    CUgraph graph{};
    const CUgraphNode* dependencies = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 0;
    CUresult result =
        driver.cuStreamGetCaptureInfo_v3(stream.cuda, &status, &id, &graph, &dependencies, &edges, &count);
    if (result != CUDA_SUCCESS) return result;
    const Handle owner = session.captures().graph_of(id, graph);
    if (const CUresult bad = check_memory(session, owner, *params.memory()); bad != CUDA_SUCCESS) return bad;
    CUgraphNode node{};
    result = driver.cuGraphAddNode_v2(&node, graph, dependencies, edges, count, &params.params());
    if (result == CUDA_SUCCESS)
      result = driver.cuStreamUpdateCaptureDependencies_v2(stream.cuda, &node, nullptr, 1,
                                                           CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    if (result == CUDA_SUCCESS)
      session.graph_memory().add(session.objects().introduce(HandleKind::node, node, call, owner.value()),
                                 *params.memory());
    return result;
  });
}

// --- capture --------------------------------------------------------------------------------------------------------

Outcome cuStreamBeginCapture_v2(Session& session, Call& call, wire::CuStreamBeginCaptureV2::Reader,
                                StreamState& stream) {
  if (const auto later = session.ordering().before_capture(call, stream)) return *later;
  const CUresult result = session.driver().cuStreamBeginCapture_v2(stream.cuda, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) session.captures().begun(stream.cuda, true);
  return result;
}

Outcome cuStreamBeginCaptureToGraph(Session& session, Call& call, wire::CuStreamBeginCaptureToGraph::Reader in,
                                    StreamState& stream, Known<HandleKind::graph> graph) {
  if (const auto later = session.ordering().before_capture(call, stream)) return *later;
  const auto dependency_list = in.getDependencies();
  std::vector<CUgraphNode> dependencies(list_size(dependency_list.size()));
  for (unsigned i = 0; i < dependencies.size(); ++i)
    if (!session.objects().resolve(HandleKind::node, dependency_list[i], dependencies[i]))
      return Objects::invalid(HandleKind::node);
  const auto edge_list = in.getDependencyData();
  std::vector<CUgraphEdgeData> edges(list_size(edge_list.size()));
  if (in.getHasDependencyData() && edges.size() != dependencies.size()) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < edges.size(); ++i) decode(edge_list[i], edges[i]);
  const CUresult result = session.driver().cuStreamBeginCaptureToGraph(
      stream.cuda, graph.cuda(), dependencies.data(), in.getHasDependencyData() ? edges.data() : nullptr,
      dependencies.size(), CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) session.captures().begun(stream.cuda, false);
  return result;
}

Outcome cuStreamEndCapture(Session& session, Call& call, wire::CuStreamEndCapture::Reader, StreamState& stream) {
  CUgraph graph{};
  const CUresult result = session.driver().cuStreamEndCapture(stream.cuda, &graph);
  session.captures().ended(stream.cuda, result);
  if (result != CUDA_SUCCESS) return result;
  const Handle handle = session.objects().reveal_made(HandleKind::graph, graph, call.id(),
                                                      [&] { session.driver().cuGraphDestroy(graph); });
  call.out<wire::CuStreamEndCaptureReply>().setPhGraph(handle.value());
  return result;
}

Outcome captureInfo(Session& session, Call& call, wire::CaptureInfo::Reader, StreamState& stream) {
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  CUgraph graph{};
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const CUresult result =
      session.driver().cuStreamGetCaptureInfo_v3(stream.cuda, &status, &id, &graph, &dependencies, &edges, &count);
  if (result != CUDA_SUCCESS) return result;
  auto out = call.out<wire::CaptureInfoReply>();
  out.setStatus(status);
  out.setId(id);
  if (graph) out.setGraph(session.captures().graph_of(id, graph).value());
  auto list = out.initDependencies(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i)
    list.set(i, session.objects().reveal(HandleKind::node, dependencies[i], call, out.getGraph()).value());
  if (edges) {
    auto data = out.initEdges(static_cast<unsigned>(count));
    for (unsigned i = 0; i < count; ++i) {
      data[i].setFromPort(edges[i].from_port);
      data[i].setToPort(edges[i].to_port);
      data[i].setType(edges[i].type);
    }
  }
  return result;
}

}  // namespace fargpu::server::hand
