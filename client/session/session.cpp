#include "session.h"

#include <utility>
#include <vector>

#include "calls_context.capnp.h"
#include "client/base/life.h"
#include "client/call/remote_call.h"
#include "operations.capnp.h"
#include "protocol/words.h"

namespace fargpu::client {

Session::Session(std::shared_ptr<Channel> channel, Terms agreed, std::chrono::nanoseconds spin)
    : channel_(std::move(channel)),
      terms(std::move(agreed)),
      waits({.calls = calls,
             .contexts = contexts,
             .streams = streams,
             .captures = captures,
             .writers = {callbacks, stream_waits, graphs, whole_system_work},
             .device_memory = device_memory,
             .host_memory = host_memory,
             .managed = managed,
             .shared_memory = shared_memory,
             .lanes = lanes}),
      pushes_({.calls = calls,
               .contexts = contexts,
               .events = events,
               .asks_each_time = asks_each_time,
               .fences = fences,
               .stream_waits = stream_waits,
               .callbacks = callbacks,
               .answers = answers,
               .waits = waits,
               .map = map,
               .host_memory = host_memory,
               .lanes = lanes,
               .graph_parts = graph_parts,
               .graphs = graphs,
               .graph_memory = graph_memory},
              terms.host, terms.host_window),
      events(HandleKind::event, terms.origin),
      streams(captures, terms.origin),
      contexts(terms.facts.devices.size(), *this, calls, streams, terms.origin),
      calls(
          *channel_, pushes_, spin, [this] { service_.wake(); }, terms.compression, terms.worker_opcodes,
          terms.credit_bytes, contexts, captures, *this),
      lanes(
          {.lanes = terms.lanes, .fixed = terms.lanes_fixed, .resumed = terms.resumes}, terms.open_lane,
          [this](const std::string& why) { tell_lane_lost(why); }, terms.compression, terms.silence, terms.contents),
      fences(calls),
      callbacks([this] { pushes_.function_due(); }, [this](std::uint64_t number) { pushes_.function_done(number); },
                {.wait =
                     [this](const std::function<bool()>& job) {
                       return service_.attend(job, [this] { return waits.for_host(); });
                     },
                 .wake = [this] { service_.wake_attending(); }},
                [this](const char* why) { lose_for(*this, why); }),
      stream_waits(calls.host_waits, [this](std::uint64_t number) { pushes_.function_done(number); }),
      whole_system_work(calls, fences, stream_waits),
      map(terms.origin),
      peers(calls, terms.facts),
      device_memory(
          {.calls = calls,
           .facts = terms.facts,
           .contexts = contexts,
           .waits = waits,
           .fences = fences,
           .map = map,
           .managed_dropped = [this](std::uint64_t address) { managed.dropped(address); },
           .trim_in_host = [this](auto& by, auto& pool) { host_pools.trim(by, pool, pool.release_threshold); },
           .pool_over = [this](const auto& pool) { pool_over(pool); }},
          terms.device_window.base, terms.device_window.bytes),
      managed({.calls = calls,
               .contexts = contexts,
               .whole_system_work = whole_system_work,
               .streams = streams,
               .device_memory = device_memory,
               .peers = peers},
              terms.device_window, terms.driver_band),
      host_memory({.calls = calls,
                   .channel = *channel_,
                   .contexts = contexts,
                   .waits = waits,
                   .stream_waits = stream_waits,
                   .whole_system_work = whole_system_work,
                   .map = map,
                   .managed = managed,
                   .graph_parts = graph_parts,
                   .graphs = graphs,
                   .lanes = lanes,
                   .one_process = terms.one_process},
                  terms.host_window.base, terms.host_window.bytes),
      host_pools({.calls = calls,
                  .contexts = contexts,
                  .fences = fences,
                  .waits = waits,
                  .map = map,
                  .host_memory = host_memory,
                  .device_memory = device_memory,
                  .answers = answers}),
      graph_memory(device_memory),
      shared_memory({.calls = calls,
                     .facts = terms.facts,
                     .contexts = contexts,
                     .waits = waits,
                     .map = map,
                     .device_memory = device_memory,
                     .graph_memory = graph_memory}),
      staging(calls, host_memory),
      functions(terms.origin),
      variables(map, managed),
      copy_parts{.calls = calls,
                 .lanes = lanes,
                 .contexts = contexts,
                 .captures = captures,
                 .fences = fences,
                 .waits = waits,
                 .writers = {callbacks, stream_waits, graphs, whole_system_work},
                 .program = {map, host_memory, terms.device_window, terms.driver_band},
                 .host_memory = host_memory,
                 .managed = managed,
                 .whole_system_work = whole_system_work,
                 .shared_memory = shared_memory,
                 .staging = staging,
                 .graph_parts = graph_parts,
                 .shares_memory = channel_->shares_memory()},
      service_(*channel_, calls, terms.host, terms.silence) {}

void Session::start() { service_.start(); }

void Session::lose(const std::string& why) noexcept {
  std::string first;
  service_.end();
  try {
    first = calls.receiver.lose(words(why, service_.excuse()));
  } catch (const std::exception&) {  // no memory for the words of the first one
    first = words("out of memory");
  }
  lanes.close(first);
  contexts.fail_all(CUDA_ERROR_DEVICE_UNAVAILABLE);
  if (const auto action = at_loss_.load()) action(*this, first);
  try {
    callbacks.lost(CUDA_ERROR_DEVICE_UNAVAILABLE, /*tells=*/life() != Life::ended);
  } catch (const std::exception&) {}  // no memory to call them
}

// A client that is not connected does not wait until it is, only to say this.
void Session::leave() noexcept {
  if (channel_->resuming()) channel_->close();
  tell([](wire::Control::Builder control) { control.initGoodbye().setText("the program ends"); });
  channel_->let_out();
  service_.end();
}

void Session::tell_lane_lost(const std::string& why) noexcept {
  tell([&](wire::Control::Builder control) { control.initLaneLost().setText(why); });
}

template <class Fill>
void Session::tell(Fill&& fill) noexcept {
  try {
    calls.say(fill);
  } catch (...) {
    // The worker notices that the connection is gone.
  }
}

// --- contexts -------------------------------------------------------------------------------------------------------

CUresult Session::open_context(Thread& thread, Context& context, Handle resources) {
  RemoteCall<wire::OpenContext> call(calls, thread);
  if (!call) return call.error();
  auto in = call.in();
  in.setContext(context.handle.value());
  in.setDevice(terms.facts.at(context.device).worker_ordinal);
  in.setPrimary(context.primary);
  in.setFlags(context.flags);
  in.setResources(resources.value());
  if (const CUresult result = call.wait(); result != CUDA_SUCCESS) {
    contexts.give_up(context);
    return result;
  }
  const auto out = call.out();
  context.number = out.getNumber() + (std::uint64_t{terms.origin} << 24);  // programs see those of all sessions
  context.least_priority = out.getLeastPriority();
  context.greatest_priority = out.getGreatestPriority();
  // cuBLASLt reads one of each for every two multiprocessors.
  const auto pairs =
      static_cast<std::size_t>(terms.facts.at(context.device).attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) / 2);
  if (out.getProcessorGroup().size() >= pairs && out.getProcessorIndex().size() >= pairs) {
    context.processor_group.assign(out.getProcessorGroup().begin(), out.getProcessorGroup().end());
    context.processor_index.assign(out.getProcessorIndex().begin(), out.getProcessorIndex().end());
  }
  const bool alone = !contexts.several();
  contexts.opened(context);
  if (alone && contexts.several()) waits.settle_taken(thread);
  managed.context_opened(thread);
  return CUDA_SUCCESS;
}

// Its streams have gone; what else was made in it is the primary context's.
void Session::close_green(Context& context) {
  Context& heir = contexts.home(context);
  events.for_each([&](Handle, Event& event) {
    if (event.context == &context) event.context = &heir;
  });
  for (Region region : map.extract([&](const Region& r) { return r.context == &context; })) {
    region.context = &heir;
    map.add(region);
  }
  graph_memory.inherit(context, heir);
  functions.forget_green(context.id());
}

CUresult Session::close_context(Thread& thread, Context& context) {
  // Whatever an earlier call has to say, it is to be closed before what it had is used again.
  const CUresult late = thread.take_late_error();
  const Thread::AnswersOnly answers_only(thread);
  for (Context* const green : contexts.greens(context)) close_context(thread, *green);
  stream_waits.forget(context);  // no thread may be left that would write what they wait for
  context.storage.clear(context.cuda());
  if (!context.green)
    if (Context* const heir = contexts.heir_of(context)) variables.hand_on(thread, context, *heir);
  RemoteCall<wire::CloseContext> call(calls, thread);
  call.in().setContext(context.handle.value());
  context.active = false;
  if (!context.green) variables.take([&](const Region& region) { return region.context == &context; });
  const CUresult closed = call.wait(), result = late != CUDA_SUCCESS ? late : closed;
  std::vector<std::pair<Handle, Stream*>> gone_streams;
  std::vector<Handle> gone_events;
  streams.for_each([&](Handle handle, Stream& stream) {
    if (stream.context == &context) gone_streams.emplace_back(handle, &stream);
  });
  events.for_each([&](Handle handle, Event& event) {
    if (event.context == &context) gone_events.push_back(handle);
  });
  for (const auto& [handle, stream] : gone_streams) {
    captures.forget(*stream);
    stream->without_green = context.green;
    streams.erase(handle);
  }
  captures.context_closed(context);
  if (context.green) {
    close_green(context);
    calls.replies.clear();
    contexts.closed(context);
    return result;
  }
  for (const Handle handle : gone_events) events.erase(handle);
  functions.forget_context(context);
  // Memory of pools is of no context and stays (cuCtxDestroy). A reset of a primary context destroys all that was
  // allocated in it.
  if (!context.primary) {
    map.update_within(0, UINT64_MAX, [&](Region& region) {
      if (region.context == &context && region.pool && region.on_device()) region.context = nullptr;
    });
  }
  graph_memory.context_closed(context);
  peers.context_closed(thread, context);
  shared_memory.context_closed(thread, context);
  device_memory.context_closed(thread, context);
  host_pools.context_closed(context);
  host_memory.context_closed(thread, context);
  staging.context_closed(context);
  calls.replies.clear();
  context.failure = CUDA_SUCCESS;
  raise(context.completed, call.number());
  contexts.closed(context);
  return result;
}

// --- what parts say upwards -----------------------------------------------------------------------------------------

void Session::fence_wanted(Thread& thread, Stream& stream, std::uint64_t items) {
  fences.after(thread, stream, [&stream, handle = stream.handle, items] {
    if (stream.handle == handle) raise(stream.retired, items);
  });
}

// Peers reached its memory until now.
void Session::pool_over(const std::shared_ptr<MemoryPool>& pool) {
  if (!peers.has_any(*pool)) return;
  answers.run([this, pool] {
    try {
      peers.pool_destroyed(Thread::current(), *pool);
    } catch (const std::exception& error) {
      lose_for(*this, error.what());
    }
  });
}

CUresult Session::with_room(Thread& thread, Context& context, const std::function<CUresult()>& ask) {
  return device_memory.with_room(thread, &context, context.device, ask);
}

}  // namespace fargpu::client
