#include "ordering.h"

#include <algorithm>

#include "calls_stream.capnp.h"
#include "opcodes.h"
#include "protocol/limits.h"

namespace fargpu::server {
namespace {

/// Work on a stream after which an event is recorded, where the client asks for none: its own fences come a little
/// sooner. Each costs the GPU a pause.
constexpr std::uint64_t look_interval = limits::stream_fence_interval * 5 / 4;
constexpr std::uint64_t pending_most = limits::stream_pending_max - limits::stream_fence_interval;

bool taken_for_done(const Service& service, Call& call) {
  return service.taken_for_done && service.taken_for_done(call);
}

/// Whether functions of the program that come before the call on its stream need not have run. A wait for an event
/// gives its stream nothing that they could notice.
bool passes_functions(const Service& service, Call& call) {
  return service.awaited_event || (service.passes_functions && service.passes_functions(call));
}

/// The executable graph that a call launches; 0 if it launches none.
std::uint64_t launched(const Service& service, Call& call) { return service.launched ? service.launched(call) : 0; }

/// Whether a record on a stream that is captured is the event's record from then on; an external one becomes a node.
bool records_in_capture(Call& call) {
  return static_cast<Opcode>(call.id().opcode) == Opcode::cuEventRecordWithFlags &&
         (call.in<wire::CuEventRecordWithFlags>().getFlags() & CU_EVENT_RECORD_EXTERNAL) == 0;
}

std::vector<std::uint64_t> recorded_by(const Service& service, Call& call) {
  return service.recorded_events ? service.recorded_events(call) : std::vector<std::uint64_t>{};
}

}  // namespace

Ordering::Ordering(DriverTable& driver, Contexts& contexts, Captures& captures, Completions& completions,
                   HostBudget& budget, Waker& waker, Executor& executor, const OrderingOptions& options)
    : driver_(driver),
      contexts_(contexts),
      captures_(captures),
      completions_(completions),
      executor_(executor),
      held_calls_(budget, executor),
      taken_copies_(driver, captures),
      turns_(contexts, captures, completions, options.devices, options.turns),
      crew_(driver, options.launch_threads, waker, [&driver] { relax_captures(driver); }) {}

// --- admitting calls ------------------------------------------------------------------------------------------------

// From now on nobody asks the driver about an event that a capture records.
void Ordering::note_record(Call& call) {
  if (static_cast<Opcode>(call.id().opcode) != Opcode::cuEventRecordWithFlags) return;
  const auto in = call.in<wire::CuEventRecordWithFlags>();
  const StreamState* const target = contexts_.stream(in.getHStream(), call.id().context);
  const bool captured = target && captures_.capturing(*target);
  if (captured && !records_in_capture(call)) return;
  captures_.recorded(in.getHEvent(), captured);
  if (captured) completions_.captured(in.getHEvent());
}

// Whether the call comes behind something that is held back; then it is executed in its turn.
bool Ordering::comes_behind(const Service& service, Call& call) {
  if (service.after_held) {
    park_behind_all(call);
    return true;
  }
  if (!service.stream_of) return false;
  StreamState* const target = contexts_.stream(service.stream_of(call), call.id().context);
  if (!target) return false;
  if (captures_.capturing(*target)) {  // what is captured comes behind nothing
    if (records_in_capture(call)) order_.before_records(recorded_by(service, call));
    return false;
  }
  const std::uint64_t awaited = service.awaited_event ? service.awaited_event(call) : 0;
  auto before = order_.before(*target, awaited);
  std::vector<std::uint64_t> recorded = recorded_by(service, call);
  for (const std::uint64_t item : order_.before_records(recorded)) before.push_back(item);
  // Launches of one executable graph come one after the other, on whatever streams.
  if (const std::uint64_t exec = launched(service, call); exec != 0 && order_.launch_of(exec) != 0)
    before.push_back(order_.launch_of(exec));
  if (before.empty()) return false;
  // A call that is held back for something else stays behind the functions too: later work on the stream, which has to,
  // comes behind that call alone.
  if (passes_functions(service, call)) {
    auto others = before;
    order_.leave_out_functions(*target, others);
    if (others.empty()) return false;
  }
  // A wait for an event that joins a capture is waited for: it cannot come behind what waits for the same thread.
  if (call.id().never_held && call.id().wants_reply && service.awaited_event) {
    executor_.finish(call.id(), CUDA_ERROR_NOT_SUPPORTED);
    return true;
  }
  park(before, service, call, *target, std::move(recorded), awaited);
  return true;
}

void Ordering::park(const std::vector<std::uint64_t>& before, const Service& service, Call& call, StreamState& stream,
                    std::vector<std::uint64_t> recorded, std::uint64_t awaited) {
  auto held = held_calls_.copy(call);
  if (!held) return executor_.refuse(call, CUDA_ERROR_OUT_OF_MEMORY);
  executor_.give_bulk(call);
  const bool only_records = !recorded.empty() && !service.needs_turn;
  const auto execute = [this, held] {
    if (order_.superseded()) held_calls_.leave_out(*held);
    else held_calls_.execute(*held);
  };
  const std::uint64_t item = order_.enqueue(before, &stream, std::move(recorded), execute, launched(service, call));
  if (only_records) order_.only_records(item);
  if (taken_for_done(service, call)) order_.hold_behind_copy(*stream.context, item);
  if (awaited != 0) order_.awaits(item, awaited);
}

// Something is destroyed. Where the client cannot wait, it is told at once, as the driver would, which needs what it
// destroys no longer than until work has been submitted.
void Ordering::park_behind_all(Call& call) {
  auto held = held_calls_.copy(call);
  if (!held) return executor_.finish(call.id(), CUDA_ERROR_OUT_OF_MEMORY);
  const bool answered = call.id().wants_reply && call.id().never_held;
  if (answered) executor_.finish(call.id(), CUDA_SUCCESS);
  order_.after_all([this, held, answered] { held_calls_.execute(*held, answered); });
}

Outcome Ordering::park_behind(const std::vector<std::uint64_t>& items, Call& call,
                              const std::vector<StreamState*>& streams) {
  auto held = held_calls_.copy(call);
  if (!held) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t item = order_.enqueue(items, nullptr, {}, [this, held] { held_calls_.execute(*held); });
  for (StreamState* stream : streams) order_.enqueue({item, stream->last_item}, stream, {}, [] {});
  return Outcome::later();
}

// Whether the call gives the GPU work that the session may not give now; then it waits, with what comes behind it on
// its stream.
bool Ordering::waits_for_turn(const Service& service, Call& call) {
  StreamState* const target = contexts_.stream(service.stream_of(call), call.id().context);
  if (!target || captures_.capturing(*target)) return false;  // an error, or no work yet
  const Turns::Kind kind = kind_of(service, call);
  if (turns_.may_give(kind)) return false;
  auto held = held_calls_.copy(call);
  if (!held) {
    executor_.refuse(call, CUDA_ERROR_OUT_OF_MEMORY);
    return true;
  }
  executor_.give_bulk(call);
  const bool running = order_.running();
  const bool hold = taken_for_done(service, call) && !running;  // what was held back before is waited for already
  const std::uint64_t item = order_.postpone(*target, launched(service, call));
  if (!running)  // else it has been known since it was held back
    for (const std::uint64_t event : recorded_by(service, call)) order_.records(item, event);
  if (hold) order_.hold_behind_copy(*target->context, item);
  give_in_turn(kind, item, std::move(held));
  return true;
}

std::optional<Outcome> Ordering::behind_turn(Call& call, const std::vector<StreamState*>& streams) {
  const Turns::Kind kind = kind_of(*service_of(call.id().opcode), call);
  turns_.set_kind(kind);
  if (turns_.may_give(kind)) return std::nullopt;
  auto held = held_calls_.copy(call);
  if (!held) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool running = order_.running();  // then the streams wait for it already
  const std::uint64_t item = order_.postpone(*streams.front(), 0);
  for (StreamState* stream : streams)
    if (!running && stream != streams.front()) order_.enqueue({item}, stream, {}, [] {});
  give_in_turn(kind, item, std::move(held));
  return Outcome::later();
}

void Ordering::give_in_turn(Turns::Kind kind, std::uint64_t item, std::shared_ptr<HeldCall> held) {
  turns_.wait(kind, [this, item, held = std::move(held)] {
    order_.resume(item, [this, held] { held_calls_.execute(*held); });
  });
}

bool Ordering::admit_piece(Job job) {
  if (turns_.may_give(Turns::unknown)) return true;
  turns_.wait(Turns::unknown, std::move(job));
  return false;
}

// --- what a call comes behind ---------------------------------------------------------------------------------------

std::optional<Outcome> Ordering::behind_launches(Call& call, std::uint64_t exec) {
  const std::uint64_t launch = order_.launch_of(exec);
  if (launch == 0) return std::nullopt;
  return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind({launch}, call);
}

std::optional<Outcome> Ordering::behind_context(Call& call, ContextState& context) {
  if (order_.running()) return std::nullopt;
  const auto all = contexts_.with_greens(context);
  const auto items = order_.items([&](const StreamState* stream) {
    return !call.id().never_held || (stream && std::find(all.begin(), all.end(), stream->context) != all.end());
  });
  if (items.empty()) return std::nullopt;
  return park_behind(items, call);
}

std::optional<Outcome> Ordering::behind_all(Call& call) {
  if (order_.running()) return std::nullopt;
  const auto items = order_.items([](const StreamState*) { return true; });
  if (items.empty()) return std::nullopt;
  return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind(items, call);
}

std::optional<Outcome> Ordering::behind_copies(Call& call) {
  if (order_.running()) return std::nullopt;
  const std::vector<std::uint64_t> items = order_.copies();
  if (items.empty()) return std::nullopt;
  return park_behind(items, call);
}

Ordering::Job Ordering::keep(Call& call) {
  auto held = held_calls_.copy(call);
  if (!held) return nullptr;
  if (call.id().never_held) held->header.detail |= call_never_held;
  return [this, held = std::move(held)] { held_calls_.execute(*held); };
}

std::optional<Outcome> Ordering::sets_limit(Call& call, const Limit& limit, int value, bool lowers) {
  if (order_.running()) return std::nullopt;  // it is the time now
  lowered_later_.erase(limit);
  if (!lowers) return std::nullopt;
  auto held = held_calls_.copy(call);
  if (!held) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint32_t sequence = call.id().sequence;
  lowered_later_[limit] = {value, sequence};
  order_.after_all([this, held, limit, sequence] {
    const auto last = lowered_later_.find(limit);
    if (last == lowered_later_.end() || last->second.call != sequence) return;  // set again since
    lowered_later_.erase(last);
    held_calls_.execute(*held, /*answered=*/true);
  });
  return CUDA_SUCCESS;
}

std::optional<int> Ordering::lowered_later(const Limit& limit) const {
  const auto found = lowered_later_.find(limit);
  return found == lowered_later_.end() ? std::nullopt : std::optional(found->second.value);
}

std::optional<Outcome> Ordering::behind_streams(Call& call, const std::vector<StreamState*>& streams) {
  if (order_.any() && !order_.running()) {
    std::vector<std::uint64_t> items;
    for (const StreamState* stream : streams)
      for (const std::uint64_t item : order_.before(*stream, 0)) items.push_back(item);
    if (!items.empty()) return park_behind(items, call, streams);
  }
  for (StreamState* stream : streams) taken_copies_.catch_up(*stream);
  return behind_turn(call, streams);
}

std::optional<Outcome> Ordering::before_capture(Call& call, StreamState& stream) {
  if (order_.any() && !order_.running()) {
    const auto items = order_.before_capture(stream);
    if (!items.empty())
      return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind(items, call, {&stream});
  }
  taken_copies_.catch_up(stream);
  look_before_capture(stream);
  return std::nullopt;
}

// The legacy stream may be asked nothing either while a blocking one is captured.
void Ordering::look_before_capture(StreamState& stream) {
  look_at_work_of(stream);
  if (stream.blocking) look_at_work_of(*stream.context->legacy);
}

void Ordering::look_at_work_of(StreamState& stream) {
  if (!stream.dirty() || captures_.capturing(stream)) return;
  const auto before = std::make_shared<BeforeCapture>();
  stream.before_capture = before;
  completions_.after(stream, Completions::Kind::release, [this, before](CUresult result) {
    before->over = true;
    for (auto& wait : std::exchange(before->waiting, {}))
      completions_.soon(Completions::Kind::signal, result, std::move(wait));
  });
}

// --- holding back ---------------------------------------------------------------------------------------------------

std::uint64_t Ordering::hold_for_copy(StreamState& stream, bool taken_for_done) {
  const std::uint64_t held = order_.hold(stream);
  if (taken_for_done) order_.hold_behind_copy(*stream.context, held);
  return held;
}

void Ordering::after_context(ContextState& context, Job job, bool others) {
  const auto all = contexts_.with_greens(context);
  auto before = order_.items([&](const StreamState* stream) {
    return stream ? std::find(all.begin(), all.end(), stream->context) != all.end() : others;
  });
  for (const ContextState* const one : all)
    if (!others && one->last_wait != 0) before.push_back(one->last_wait);
  order_.after(before, std::move(job));
}

void Ordering::defer(StreamState& stream, Job job) {
  order_.enqueue(order_.before(stream, 0), &stream, {}, std::move(job));
}

bool Ordering::hold_behind_record(ContextState& context, std::uint64_t event, Job job) {
  const std::uint64_t record = order_.record_of(event);
  if (record == 0) return false;
  const std::uint64_t held = order_.hold_context(context, record, std::move(job));
  order_.awaits(held, event);
  for (ContextState* const one : contexts_.with_greens(context))
    if (one != &context) order_.hold_context(*one, held, [] {});
  return true;
}

void Ordering::enqueue(StreamState& stream, GraphLaunch launch, Job job) {
  auto before = order_.before(stream, 0);
  const auto add = [&](std::uint64_t item) {
    if (item != 0) before.push_back(item);
  };
  add(launch.behind);
  if (launch.exec != 0) add(order_.launch_of(launch.exec));
  for (const std::uint64_t event : launch.awaited) add(order_.record_of(event));
  for (const std::uint64_t item : order_.before_records(launch.recorded)) add(item);
  const std::uint64_t item = order_.enqueue(before, &stream, std::move(launch.recorded), std::move(job), launch.exec);
  for (const std::uint64_t event : launch.awaited) order_.awaits(item, event);
}

void Ordering::take_all_for_done(StreamState& stream) {
  if (captures_.capturing(stream)) return;
  const auto held = order_.any() ? order_.before(stream, 0) : std::vector<std::uint64_t>{};
  if (held.empty()) return taken_copies_.mark(stream);
  const std::uint64_t item =
      order_.enqueue(held, nullptr, {}, [this, handle = stream.handle, context = stream.context->id] {
        StreamState* const target = contexts_.stream(handle, context);
        if (target && contexts_.make_current(*target->context)) taken_copies_.mark(*target);
      });
  order_.hold_behind_copy(*stream.context, item);
}

// --- work -----------------------------------------------------------------------------------------------------------

void Ordering::submitted(std::uint64_t stream_handle) {
  if (StreamState* const target = contexts_.stream(stream_handle, contexts_.current() ? contexts_.current()->id : 0))
    submitted(*target);
}

void Ordering::submitted(StreamState& stream) {
  if (captures_.any() && captures_.capturing(stream)) return;
  ++stream.submitted;
  turns_.given(stream);
  if (stream.submitted - stream.looked_at >= look_interval)
    completions_.after(stream, Completions::Kind::release, [](CUresult) {});
  // The driver must not be given so much that it blocks: with enough of it pending, what comes waits here.
  if (stream.full == 0 && stream.pending() > pending_most) {
    stream.full = order_.hold(stream);
    full_.emplace_back(stream.handle, stream.context->id);
  }
}

void Ordering::submitted(ContextState& context) {
  for (ContextState* const one : contexts_.with_greens(context))
    if (contexts_.make_current(*one))
      for (StreamState* const stream : one->streams) submitted(*stream);
}

// While so much waits to be read that waking a thread pays (more than gathers at a program that does something between
// its calls), and for a stream whose launches are there already. A session that works by turns must know at once what
// was given.
bool Ordering::crew_helps(const StreamState& stream, std::size_t unread_bytes) const {
  constexpr std::size_t many_bytes = 8192;
  if (crew_.size() == 0 || captures_.any() || !turns_.open()) return false;
  return crew_.busy(stream) || unread_bytes >= many_bytes;
}

void Ordering::give_launch(StreamState& stream) {
  crew_.give(stream);
  submitted(stream);
}

bool Ordering::collect_launches() {
  return crew_.collect([this](const CallId& id, CUresult result) { executor_.finish(id, result); });
}

bool Ordering::poll() {
  const bool progress = empty_full();
  return turns_.poll() || progress;
}

// What was held back behind enough work goes on when there is less of it, or when nothing more will be heard of it
// because it has failed.
bool Ordering::empty_full() {
  const auto full = std::exchange(full_, {});  // what goes on may fill it again
  for (const auto& name : full) {
    StreamState* const target = contexts_.stream(name.first, name.second);
    if (!target || target->full == 0) continue;
    if (target->pending() > pending_most && completions_.follow(*target)) full_.push_back(name);
    else order_.release(std::exchange(target->full, 0));
  }
  return full_.size() < full.size();
}

// --- ends -----------------------------------------------------------------------------------------------------------

// Until the driver has finished, waits for the stream, or for its context, go on as if the stream were there.
CUresult Ordering::destroy_stream(StreamState& stream) {
  // A fence may wait for what a stream without work of its own comes behind.
  const bool clean = !stream.dirty() && !completions_.follow(stream);
  if (clean) return end_stream(stream, CUDA_SUCCESS);
  captures_.abandon(stream.cuda);
  const auto retire = [this, &stream] {
    return [this, number = contexts_.retire_stream(stream)](CUresult result) {
      if (StreamState* const retired = contexts_.retired(number)) end_stream(*retired, result);
    };
  };
  if (captures_.capturing(stream)) {
    // It has joined a capture that began on another one, and is given nothing; but it may have had work before.
    const auto before = stream.before_capture;
    if (!before || before->over) return end_stream(stream, CUDA_SUCCESS);
    before->waiting.push_back(retire());
    return CUDA_SUCCESS;
  }
  contexts_.make_current(*stream.context);
  completions_.after(stream, Completions::Kind::release, retire());
  return CUDA_SUCCESS;
}

CUresult Ordering::end_stream(StreamState& stream, CUresult result) {
  crew_.wait_for(stream);  // which may have an event of ours to record there
  completions_.abandon(stream, result);
  const std::uint64_t held = stream.full;
  const CUstream cuda = stream.cuda;
  turns_.forget(stream);
  order_.forget(stream);
  contexts_.remove_stream(stream);
  captures_.abandon(cuda);
  if (held != 0)
    completions_.soon(Completions::Kind::release, result, [this, held](CUresult) { order_.release(held); });
  return driver_.cuStreamDestroy_v2(cuda);
}

void Ordering::context_closes(ContextState& context) {
  TakenCopies::context_closes(context);
  std::vector<std::uint64_t> held;
  for (StreamState* const stream : std::vector(context.streams)) {
    if (stream->full != 0) held.push_back(stream->full);
    captures_.abandon(stream->cuda);
    if (stream->handle == 0) driver_.cuStreamDestroy_v2(stream->cuda);
    turns_.forget(*stream);
    order_.forget(*stream);
    contexts_.remove_stream(*stream);
  }
  // What waited behind them meets that they are gone.
  for (const std::uint64_t item : held) order_.release(item);
}

}  // namespace fargpu::server
