// Streams and events. CUDA Driver API, "Stream Management" and "Event Management".

#include "client/objects/stream.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "calls_context.capnp.h"
#include "calls_stream.capnp.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/code/launch_attributes.h"
#include "client/call/remote_call.h"
#include "client/session/pool.h"
#include "client/session/session.h"
#include "client_hand.h"
#include "cuda_facts.h"

namespace fargpu::client::hand {
namespace {

CUresult create_stream(Thread& thread, CUstream* out, unsigned flags, std::optional<int> priority, Context* context) {
  if (!out || (flags & ~CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  Session& session = session_of(thread);
  const auto [handle, stream] = session.streams.create();
  if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
  stream->handle = handle;
  stream->context = context;
  stream->flags = flags;
  // Priorities outside of the range are taken as its nearest end; the greatest priority is the lowest number.
  stream->priority = std::clamp(priority.value_or(0), context->greatest_priority, context->least_priority);
  stream->id = context->number << 32 | handle.id();
  CUresult result;
  if (priority) {
    RemoteCall<wire::CuStreamCreateWithPriority> call(thread, context);
    auto in = call.in();
    in.setPhStream(handle.value());
    in.setFlags(flags);
    in.setPriority(stream->priority);
    result = call.post();
  } else {
    RemoteCall<wire::CuStreamCreate> call(thread, context);
    auto in = call.in();
    in.setPhStream(handle.value());
    in.setFlags(flags);
    result = call.post();
  }
  if (result != CUDA_SUCCESS) {
    session.streams.give_up(handle);
    return result;
  }
  session.streams.publish(handle);
  *out = handle_cast<CUstream>(handle);
  return CUDA_SUCCESS;
}

CUgreenCtx green_of(const Stream& stream) {
  return stream.context->green ? reinterpret_cast<CUgreenCtx>(stream.context->cuda()) : nullptr;
}

template <class Answer>
CUresult about_stream(Thread& thread, CUstream stream, const void* out, Answer&& answer) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  answer(*use);
  return CUDA_SUCCESS;
}

// A program that has polled an event will do so after its next record too. The worker is to tell of that one by itself,
// so that no query waits for an answer.
void watch_next(Thread& thread, Event& event, Context& context) {
  const Session& session = session_of(thread);
  if (!event.polled.exchange(false) || event.shared() || event.recorded_by_work || session.asks_each_time) return;
  if (!session.calls.serves(Opcode::watchEvent)) return;  // release 0.2.0 does not
  RemoteCall<wire::WatchEvent> call(thread, &context);
  if (!call) return;
  call.in().setEvent(event.handle.value());
  call.tell();
  raise(event.watched, call.number());
}

CUresult record(Thread& thread, CUevent event, CUstream stream, unsigned flags) {
  Session& session = session_of(thread);
  Event* const recorded = session.events.find(handle_of(event));
  if (!recorded) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  if (&session.contexts.home(*recorded->context) != &session.contexts.home(*use->context))
    return CUDA_ERROR_INVALID_HANDLE;
  const bool node = flags & CU_EVENT_RECORD_EXTERNAL;  // becomes a node of the graph that is captured
  if (node && !use->capture.load()) return CUDA_ERROR_INVALID_VALUE;
  if (node) recorded->recorded_by_work = true;
  RemoteCall<wire::CuEventRecordWithFlags> call(thread, use->context);
  auto in = call.in();
  in.setHEvent(handle_of(event).value());
  in.setHStream(use.wire());
  in.setFlags(flags);
  const CUresult result = recorded->shared() ? call.wait(use) : call.post(use);
  if (result != CUDA_SUCCESS || node) return result;
  session.captures.record(*recorded, *use);
  if (recorded->capture == 0) {
    // A thread that asks meanwhile takes neither record for one on the other's stream.
    recorded->stream = nullptr;
    recorded->stream_handle = use->handle.value();
    recorded->recorded = call.number();
    recorded->stream = &*use;
    if (!(recorded->flags & CU_EVENT_DISABLE_TIMING))
      session.elapsed_times.recorded({.call = call.number(), .event = recorded->handle});
    watch_next(thread, *recorded, *use->context);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreate(Thread& thread, CUstream* out, unsigned flags) {
  return create_stream(thread, out, flags, std::nullopt, thread.context());
}

CUresult cuStreamCreateWithPriority(Thread& thread, CUstream* out, unsigned flags, int priority) {
  return create_stream(thread, out, flags, priority, thread.context());
}

CUresult cuGreenCtxStreamCreate(Thread& thread, CUstream* out, CUgreenCtx green, unsigned flags, int priority) {
  Context* const context = session_of(thread).contexts.find(reinterpret_cast<CUcontext>(green));
  if (!context || !context->green) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(flags & CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
  return create_stream(thread, out, flags, priority, context);
}

CUresult cuStreamDestroy_v2(Thread& thread, CUstream stream) {
  Streams& streams = session_of(thread).streams;
  Stream* const found = streams.find(handle_of(stream));
  if (!found) return streams.error(handle_of(stream));  // the default streams cannot be destroyed
  return streams.destroy(thread, *found);
}

CUresult cuStreamSynchronize(Thread& thread, CUstream stream) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  return session_of(thread).waits.synchronize(thread, *use);
}

CUresult cuStreamQuery(Thread& thread, CUstream stream) {
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  Session& session = session_of(thread);
  if (const CUresult bad = session.captures.check_query(thread, *use); bad != CUDA_SUCCESS) return bad;
  if (use->idle() && use->context->failure == CUDA_SUCCESS) {
    session.waits.after_work(thread);
    return thread.take_late_error();
  }
  RemoteCall<wire::CuStreamQuery> call(thread, use->context);
  call.in().setHStream(use.wire());
  session.host_memory.before_wait(thread);
  const std::uint64_t items = use->items.load();
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  use->pass(call.number(), items);  // copies whose bytes were taken may be under way
  session.waits.after_wait(thread);
  return result;
}

namespace {

// An event of another session than the stream's.
CUresult wait_elsewhere(Thread& thread, CUstream stream, CUevent event, unsigned flags) {
  Pool* const pool = process().pool();
  Session* const session = pool ? pool->begun(handle_of(event).origin()) : nullptr;
  const Event* const waited = session ? session->events.find(handle_of(event)) : nullptr;
  if (!waited) return CUDA_ERROR_INVALID_HANDLE;
  if (pool->lost(*session)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (flags & ~CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  return pool->between.wait(thread, *use, *waited);
}

}  // namespace

CUresult cuStreamWaitEvent(Thread& thread, CUstream stream, CUevent event, unsigned flags) {
  Session& session = session_of(thread);
  const Event* const waited = session.events.find(handle_of(event));
  if (!waited) return wait_elsewhere(thread, stream, event, flags);
  if (flags & ~CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  const bool node = flags & CU_EVENT_WAIT_EXTERNAL;  // becomes a node of the graph that is captured
  if (node && !use->capture.load()) return CUDA_ERROR_INVALID_VALUE;
  // Waiting for what is known to be done, or was never begun, is no wait.
  if (!session.captures.any() && waited->complete() && waited->capture == 0) return use->context->failure;
  const bool captured = use->capture.load();
  if (!node) {
    if (const CUresult bad = session.captures.wait(*use, *waited); bad != CUDA_SUCCESS) return bad;
  }
  const bool joins = !captured && use->capture.load();
  RemoteCall<wire::CuStreamWaitEvent> call(thread, use->context);
  auto in = call.in();
  in.setHStream(use.wire());
  in.setHEvent(handle_of(event).value());
  in.setFlags(flags);
  if (!joins) return waited->shared() ? call.wait(use) : call.post(use);
  // What the stream was given before is no part of the capture: the worker has made it first, if it could.
  const CUresult joined = call.wait(use);
  if (joined != CUDA_SUCCESS) session.captures.invalidate(*use);
  if (joined == CUDA_ERROR_NOT_SUPPORTED && session.stream_waits.any_here())
    return refuse_use("joining a capture behind a wait for a value in memory of the host");
  return joined;
}

namespace {

// An attribute of a stream: read into `value`, or set to what is there.
CUresult stream_attribute(Thread& thread, CUstream stream, CUstreamAttrID id, bool set, CUstreamAttrValue& value) {
  const LaunchAttributeFacts* const facts = launch_attribute_facts(id);
  if (!facts || facts->holds_event) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  RemoteCall<wire::StreamAttribute> call(thread, use->context);
  if (!call) return call.error();
  auto in = call.in();
  in.setStream(use.wire());
  in.setSet(set);
  if (const CUresult bad =
          write_attribute(session_of(thread).events, attribute_of(id, set ? &value : nullptr), in.initAttribute());
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  if (!set) read_attribute(call.out().getAttribute(), value);
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
    use->priority = std::clamp(value.priority, use->context->greatest_priority, use->context->least_priority);
  return result;
}

}  // namespace

CUresult cuStreamGetAttribute(Thread& thread, CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value) {
  return value ? stream_attribute(thread, stream, id, false, *value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamSetAttribute(Thread& thread, CUstream stream, CUstreamAttrID id, const CUstreamAttrValue* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  CUstreamAttrValue wanted = *value;
  return stream_attribute(thread, stream, id, true, wanted);
}

CUresult cuStreamCopyAttributes(Thread& thread, CUstream to, CUstream from) {
  const StreamUse target(thread, to), source(thread, from);
  if (!target) return target.error();
  if (!source) return source.error();
  if (target->context != source->context) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CuStreamCopyAttributes> call(thread, target->context);
  call.in().setDstStream(target.wire());
  call.in().setSrcStream(source.wire());
  if (const CUresult result = call.wait(); result != CUDA_SUCCESS) return result;
  CUstreamAttrValue priority;  // learnt anew
  return stream_attribute(thread, to, CU_LAUNCH_ATTRIBUTE_PRIORITY, false, priority);
}

CUresult cuStreamGetFlags(Thread& thread, CUstream stream, unsigned* flags) {
  return about_stream(thread, stream, flags, [&](const Stream& s) { *flags = s.flags; });
}
CUresult cuStreamGetPriority(Thread& thread, CUstream stream, int* priority) {
  return about_stream(thread, stream, priority, [&](const Stream& s) { *priority = s.priority; });
}
CUresult cuStreamGetCtx(Thread& thread, CUstream stream, CUcontext* out) {
  return about_stream(thread, stream, out, [&](const Stream& s) { *out = s.context->cuda(); });
}
CUresult cuStreamGetCtx_v2(Thread& thread, CUstream stream, CUcontext* out, CUgreenCtx* green) {
  return about_stream(thread, stream, out, [&](const Stream& s) {
    *out = session_of(thread).contexts.home(*s.context).cuda();
    if (green) *green = green_of(s);
  });
}
CUresult cuStreamGetId(Thread& thread, CUstream stream, unsigned long long* id) {
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  const StreamUse use(thread, stream);
  if (!use) return use.error();
  // The driver refuses this one question about a stream that is captured.
  if (use->capture.load()) return session_of(thread).captures.check_query(thread, *use);
  *id = use->id;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(Thread& thread, CUstream stream, CUdevice* device) {
  return about_stream(thread, stream, device, [&](const Stream& s) { *device = s.context->device; });
}
CUresult cuStreamGetGreenCtx(Thread& thread, CUstream stream, CUgreenCtx* green) {
  return about_stream(thread, stream, green, [&](const Stream& s) { *green = green_of(s); });
}

// --- events ---------------------------------------------------------------------------------------------------------

CUresult cuEventCreate(Thread& thread, CUevent* out, unsigned flags) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))
    return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::CuEventCreate> call(thread);
  if (!call) return call.error();
  Session& session = session_of(thread);
  const auto [handle, event] = session.events.create();
  if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
  event->handle = handle;
  event->context = thread.context();
  event->flags = flags;
  auto in = call.in();
  in.setPhEvent(handle.value());
  in.setFlags(flags);
  if (const CUresult result = event->shared() ? call.wait() : call.post(); result != CUDA_SUCCESS) {
    session.events.give_up(handle);
    return result;
  }
  session.events.publish(handle);
  *out = handle_cast<CUevent>(handle);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(Thread& thread, CUevent event) {
  Session& session = session_of(thread);
  Event* const found = session.events.find(handle_of(event));
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CuEventDestroyV2> call(thread, found->context);
  call.in().setHEvent(handle_of(event).value());
  if (!session.events.erase(handle_of(event))) return CUDA_ERROR_INVALID_HANDLE;
  return call.post();
}

CUresult cuEventRecordWithFlags(Thread& thread, CUevent event, CUstream stream, unsigned flags) {
  return record(thread, event, stream, flags);
}

namespace {

// An event and the whole of a context: both must be there and belong together, and no stream of the context may be
// captured.
CUresult check_context_event(Thread& thread, CUcontext handle, CUevent event, Context*& context, Event*& found) {
  Session& session = session_of(thread);
  context = handle ? session.contexts.find(handle) : thread.context();
  if (!context || !context->active) return CUDA_ERROR_INVALID_CONTEXT;
  found = session.events.find(handle_of(event));
  if (!found && handle_of(event).origin() != session.terms.origin)
    return refuse_use("a context that waits for an event of another host");
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  return session.captures.check_context(*context);
}

}  // namespace

CUresult cuCtxRecordEvent(Thread& thread, CUcontext handle, CUevent event) {
  Context* context = nullptr;
  Event* recorded = nullptr;
  if (const CUresult bad = check_context_event(thread, handle, event, context, recorded); bad != CUDA_SUCCESS)
    return bad;
  if (&session_of(thread).contexts.home(*recorded->context) != &session_of(thread).contexts.home(*context))
    return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::CuCtxRecordEvent> call(thread, context);
  call.in().setHCtx(context->handle.value());
  call.in().setHEvent(recorded->handle.value());
  if (const CUresult result = recorded->shared() ? call.wait() : call.post(); result != CUDA_SUCCESS) return result;
  recorded->capture = 0;
  recorded->stream = nullptr;  // no single stream tells when it has happened
  recorded->recorded = call.number();
  return CUDA_SUCCESS;
}

CUresult cuCtxWaitEvent(Thread& thread, CUcontext handle, CUevent event) {
  Context* context = nullptr;
  Event* waited = nullptr;
  if (const CUresult bad = check_context_event(thread, handle, event, context, waited); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = session_of(thread).captures.check_event(*waited); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuCtxWaitEvent> call(thread, context);
  call.in().setHCtx(context->handle.value());
  call.in().setHEvent(waited->handle.value());
  if (const CUresult result = waited->shared() ? call.wait() : call.post(); result != CUDA_SUCCESS) return result;
  // Waiting for any stream of the context is waiting for the event, from now on.
  const auto note = [&](Context& one) {
    raise(one.submitted, call.number());
    raise(one.blocking_submitted, call.number());
    raise(one.waits_for_event, call.number());
    session_of(thread).streams.for_each([&](Handle, Stream& stream) {
      if (stream.context == &one) raise(stream.submitted, call.number());
    });
  };
  const std::vector<Context*> greens = session_of(thread).contexts.greens(*context);
  session_of(thread).calls.commands.in_order([&] {
    note(*context);
    for (Context* const green : greens) note(*green);
  });
  return CUDA_SUCCESS;
}

namespace {

// What is known of a record without asking. Programs that poll ask the worker once, which tells by itself when the
// event has happened. Until then they are answered from what has come. What watches the event's next record goes
// behind it (watch_next).
std::optional<CUresult> poll(Session& session, Event& event, std::uint64_t record) {
  event.polled = true;
  if (session.asks_each_time) return std::nullopt;
  if (event.watch(record) == Event::Watch::waiting) {
    session.calls.commands.flush_some(CommandStream::Which::all);  // the record, perhaps
    session.calls.receiver.serve();
  }
  switch (event.watch(record)) {
    case Event::Watch::none: return std::nullopt;
    case Event::Watch::waiting: return CUDA_ERROR_NOT_READY;
    case Event::Watch::over: return CUDA_SUCCESS;
  }
  return std::nullopt;
}

// Asks the worker about an event unless its outcome is known.
template <class Request>
CUresult ask_event(Thread& thread, CUevent event) {
  constexpr bool polls = std::is_same_v<Request, wire::CuEventQuery>;
  Session& session = session_of(thread);
  Event* const found = session.events.find(handle_of(event));
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult bad = session.captures.check_event(*found); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = session.captures.check_unsafe(thread); bad != CUDA_SUCCESS) return bad;
  if (found->complete() && found->context->failure == CUDA_SUCCESS) {
    session.waits.after_work(thread);
    return thread.take_late_error();
  }
  RemoteCall<Request> call(thread, found->context);
  call.in().setHEvent(handle_of(event).value());
  if (found->flags & CU_EVENT_BLOCKING_SYNC) call.sleeps();
  session.host_memory.before_wait(thread);
  // A record by a launch or a graph says nothing of the stream that the event was recorded on before.
  const std::uint64_t record = found->recorded_by_work ? 0 : found->recorded.load();
  Stream* const where = polls ? nullptr : found->recorded_on();
  std::optional<CUresult> known;
  if (polls && found->context->failure == CUDA_SUCCESS) known = poll(session, *found, record);
  if (known) {  // what comes of it without a call tells of earlier failures as a call does
    if (const CUresult late = thread.take_late_error(); late != CUDA_SUCCESS) return late;
  }
  const CUresult result = known ? *known : call.wait();
  if (result == CUDA_ERROR_NOT_READY && !known) raise(found->watched, call.number());
  if (result != CUDA_SUCCESS) return result;
  raise(found->completed, record);
  // What came before it on its stream is done too, unless it was recorded again since.
  if (where && found->recorded.load() == record && found->recorded_on() == where) {
    raise(where->completed, record);
    raise(where->settled, record);
  }
  session.waits.after_wait(thread);
  return thread.take_late_error();
}

}  // namespace

CUresult cuEventQuery(Thread& thread, CUevent event) { return ask_event<wire::CuEventQuery>(thread, event); }

CUresult cuEventSynchronize(Thread& thread, CUevent event) {
  return ask_event<wire::CuEventSynchronize>(thread, event);
}

namespace {

template <class Request>
CUresult ask_elapsed(Thread& thread, float& milliseconds, CUevent start, CUevent end) {
  RemoteCall<Request> call(thread);
  call.in().setHStart(handle_of(start).value());
  call.in().setHEnd(handle_of(end).value());
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  milliseconds = call.out().getPMilliseconds();
  session_of(thread).waits.after_wait(thread);
  return result;
}

// The time of the first pair; the others are remembered.
CUresult ask_elapsed(Thread& thread, float& milliseconds, const std::vector<ElapsedTimes::Pair>& pairs) {
  RemoteCall<wire::ElapsedTimes> call(thread);
  auto list = call.in().initPairs(static_cast<unsigned>(pairs.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setStart(pairs[i].start.event.value());
    list[i].setEnd(pairs[i].end.event.value());
  }
  if (const CUresult bad = call.wait(); bad != CUDA_SUCCESS) return bad;
  const auto out = call.out();
  std::vector<float> times;
  for (const float time : out.getMilliseconds()) times.push_back(time);
  if (times.size() != pairs.size()) throw ProtocolError("times of other pairs of events than were asked for");
  const auto first = static_cast<CUresult>(out.getFirst());
  if (first == CUDA_SUCCESS) {
    milliseconds = times.front();
    session_of(thread).waits.after_wait(thread);
  }
  session_of(thread).elapsed_times.learn(pairs, times);
  return first;
}

}  // namespace

CUresult cuEventElapsedTime(Thread& thread, float* milliseconds, CUevent start, CUevent end) {
  const Session& session = session_of(thread);
  if (!milliseconds || !session.events.find(handle_of(start)) || !session.events.find(handle_of(end)))
    return CUDA_ERROR_INVALID_HANDLE;
  return ask_elapsed<wire::CuEventElapsedTime>(thread, *milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(Thread& thread, float* milliseconds, CUevent start, CUevent end) {
  if (!milliseconds) return CUDA_ERROR_INVALID_HANDLE;
  Session& session = session_of(thread);
  Event* const from = session.events.find(handle_of(start));
  Event* const to = session.events.find(handle_of(end));
  if (!from || !to) return CUDA_ERROR_INVALID_HANDLE;
  // Only the worker knows what work or a capture records.
  const auto known_here = [](const Event& event) {
    return !event.recorded_by_work && !event.shared() && event.capture == 0;
  };
  if (!known_here(*from) || !known_here(*to))
    return ask_elapsed<wire::CuEventElapsedTimeV2>(thread, *milliseconds, start, end);
  const ElapsedTimes::Pair asked{{from->recorded, from->handle}, {to->recorded, to->handle}};
  std::vector<ElapsedTimes::Pair> pairs;
  if (const auto known = session.elapsed_times.ask(asked, pairs); known && to->context->failure == CUDA_SUCCESS) {
    *milliseconds = *known;
    session.waits.after_work(thread);
    return CUDA_SUCCESS;
  }
  if (pairs.size() == 1 || !session.calls.serves(Opcode::elapsedTimes))
    return ask_elapsed<wire::CuEventElapsedTimeV2>(thread, *milliseconds, start, end);
  return ask_elapsed(thread, *milliseconds, pairs);
}

}  // namespace fargpu::client::hand
