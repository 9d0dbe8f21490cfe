#include "session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "operations.capnp.h"
#include "protocol/errors.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto usage_interval = std::chrono::milliseconds(250);
constexpr auto prints_interval = std::chrono::milliseconds(250);
constexpr auto completion_poll = std::chrono::microseconds(30);
/// How long to sleep at least and at most while the GPU works; for as long as a step of a program takes, what its client waits for is looked for often.
constexpr auto look_least = std::chrono::microseconds(20), look_most = std::chrono::microseconds(500);
constexpr auto hurried_wait = std::chrono::milliseconds(50);
constexpr auto completion_interval = std::chrono::microseconds(50);
/// Work on a stream after which an event is recorded, where the client asks for none: its own fences come a little sooner. Each costs the GPU a pause.
constexpr std::uint64_t look_interval = limits::stream_fence_interval * 5 / 4;
constexpr std::uint64_t pending_most = limits::stream_pending_max - limits::stream_fence_interval;
constexpr std::size_t waits_max = 1u << 20;       // work held back, who waits for it, and completions; no program comes near
constexpr std::size_t streams_hurried = 4;        // to look at while calls come in
constexpr std::size_t completions_few = 2;        // an answer, and perhaps a mark
constexpr unsigned looks_at_few = 3;              // in a round: about as long as the rest of it takes
constexpr std::uint64_t confirm_interval = 1024;  // frames taken after which the client is told even if there is nothing to say

}  // namespace

Session::Session(Channel& channel, DriverTable& driver, SessionOptions options)
    : channel_(channel),
      driver_(driver),
      options_(std::move(options)),
      host_budget_(options_.host_bytes_max, options_.account_place, [this](HostBudget::Bound bound) { tell_full(bound); }),
      reader_(channel, *this, /*frames_before=*/1),  // attach
      output_(channel, options_.compression),
      ledger_(options_.memory_limits, options_.account_place),
      memory_(driver, ledger_, options_.device_window.base, options_.device_window.bytes),
      sharing_(driver, memory_, options_.exchange),
      host_blocks_(driver, memory_, host_budget_, options_.host_window, {.scrub = options_.scrub, .one_process = options_.one_process}),
      images_(options_.image_folder, options_.image_bytes_max, host_budget_),
      contexts_(driver, ledger_, host_budget_, options_.devices, options_.parts),
      completions_(
          driver, [this](CUevent event, CUresult result) { flush_prints(event, result); },
          [this](StreamState& stream, CUevent event) { return crew_.record(stream, event); }, [this] { return reading(); }),
      turns_(*this, options_.turns),
      lent_driver_(&driver, [](DriverTable*) {}),
      heard_at_(Clock::now()),
      sent_at_(Clock::now()),
      told_at_(Clock::now()),
      told_usage_{.memory_bytes = std::vector<std::uint64_t>(options_.memory_limits.size()),
                  .busy_ns = std::vector<std::uint64_t>(options_.devices.size())},
      busy_until_(Clock::now()),
      crew_(driver, options_.launch_threads, waker_, [this] { relax_captures(); }),
      blocking_calls_(waker_, [this] { relax_captures(); }) {
  relax_captures();
}

// The client enforces capture rules for its threads; ours must never break a capture.
void Session::relax_captures() {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
}

Session::~Session() {
  ended_ = true;
  crew_.wait_for_all();
  lanes_.close();
  lent_driver_.reset();
  for (ContextState* const context : contexts_.all()) close_context(*context);
}

// --- the loop -----------------------------------------------------------------------------------------------------------------

std::string Session::run() {
  try {
    while (!ended_) {
      if (stopping_.exchange(false)) {
        const std::lock_guard lock(stop_mutex_);
        output_.control([&](wire::Control::Builder control) { control.initGoodbye().setText(stop_why_); });
        send_rest();
        return stop_why_;
      }
      if (!turn()) rest();
    }
  } catch (const ChannelClosed& closed) {
    if (!ended_) ended_why_ = closed.what();  // goodbye and the end of the connection may come together
  }
  tell_usage(true);
  return ended_why_;
}

void Session::stop(const std::string& why) {
  {
    const std::lock_guard lock(stop_mutex_);
    stop_why_ = why;
  }
  stopping_ = true;
  waker_.signal();
}

// One round: read and execute, collect, look for completions, send. Returns whether anything happened.
bool Session::turn() {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  if (!reading() || completions_.held_up()) return wait_for_reader();
  const bool heard = reader_.pump();
  bool progress = heard;
  progress |= crew_.collect([this](const CallId& id, CUresult result) { finish(id, result); });
  progress |= blocking_calls_.collect();
  progress |= collect_parts();
  progress |= lanes_.collect();
  progress |= look_for_completions(heard);
  progress |= empty_full();
  progress |= turns_.poll();
  progress |= try_again();
  output_.set_confirmed(static_cast<std::uint32_t>(reader_.frames()));
  if (reader_.frames() - confirmed_at_ >= confirm_interval && output_.empty()) output_.confirm();
  if (!output_.empty()) confirmed_at_ = reader_.frames();
  const bool sent = output_.pump();
  progress |= sent;
  const auto now = progress || reader_.blocked() ? Clock::now() : Clock::time_point();
  if (sent) sent_at_ = now;
  // A client whose bytes find no room here is not silent, and one that takes its answers lives.
  if (heard || sent || reader_.blocked()) heard_at_ = now;
  if (progress) busy_until_ = now + options_.spin;
  if (order_.waits() + completions_.size() > waits_max) throw ProtocolError("more things wait than a session may have waiting");
  return progress;
}

bool Session::try_again() {
  auto attempts = std::exchange(retries_, {});  // one that succeeds may have others tried
  const bool progress = std::erase_if(attempts, [](const auto& attempt) { return attempt(); }) > 0;
  std::move(retries_.begin(), retries_.end(), std::back_inserter(attempts));
  retries_.swap(attempts);
  return progress;
}

// The client does not take what there is for it: nothing is done that would make it more.
bool Session::wait_for_reader() {
  bool progress = reading() && completions_.poll(streams_hurried);
  if (output_.pump()) {
    progress = true;
    heard_at_ = sent_at_ = Clock::now();
  }
  return progress;
}

// Each stream with something to wait for is one question to the driver: while calls come in, they are not asked each time. While there
// is nothing but an answer to wait for, it is asked more often than the connection, which takes longer.
bool Session::look_for_completions(bool hurried) {
  if (completions_.empty()) return false;
  const auto now = Clock::now();
  if (hurried && now - looked_at_ < completion_interval) return false;
  looked_at_ = now;
  if (hurried) return completions_.poll(streams_hurried);
  const auto few = [this] { return completions_.wanted() && completions_.size() <= completions_few && !completions_.held_up(); };
  for (unsigned look = 1; !completions_.poll(); ++look)
    if (look == looks_at_few || !few()) return false;
  return true;
}

// Sends what has gathered, for as long as the client takes it. False if it does not.
bool Session::send_rest() {
  auto deadline = Clock::now() + options_.silence;
  while (!output_.empty()) {
    const auto now = Clock::now();
    rounds_.fetch_add(1, std::memory_order_relaxed);
    if (output_.pump()) deadline = now + options_.silence;
    else if (now >= deadline) return false;
    else channel_.wait({.writable = true}, deadline - now);
  }
  return true;
}

// Nothing to do now: poll on for a moment, then sleep. While the GPU is being waited for, sleep briefly, and longer the longer it takes, but
// not while a step of a program may end at any moment.
void Session::rest() {
  const auto now = Clock::now();
  if (now < busy_until_) return;
  const bool told = tell_usage(false);
  if (!turns_.hung().empty()) return give_up(turns_.hung());
  // It may only have been stopped: then it finds this when it goes on.
  if (now - heard_at_ >= options_.silence)
    return give_up("the client has been silent for " + std::to_string(options_.silence.count() / 1000) + " s");
  const auto heartbeat = options_.silence / limits::heartbeats_per_silence;
  // The client's heartbeats are stuck behind what finds no room: so that it knows that we live, it hears from us unasked.
  if (reader_.blocked() && now - sent_at_ >= heartbeat) output_.confirm();
  Channel::Timeout timeout = told ? Channel::Timeout(heartbeat) : usage_interval;
  if (!completions_.empty() || !retries_.empty() || reader_.blocked()) {
    const auto waited = now - busy_until_;
    // Most of what is waited for comes within a few microseconds, and sleeping takes longer than that.
    if (waited < completion_poll) return;
    const bool hurried = completions_.wanted() && waited < hurried_wait;
    timeout = hurried ? look_least : std::clamp<Channel::Timeout>(waited / 16, look_least, look_most);
  }
  timeout = std::min(timeout, std::chrono::duration_cast<Channel::Timeout>(std::min<std::chrono::nanoseconds>(turns_.due(), heartbeat)));
  // A blocked reader is woken by completions, not by more bytes.
  channel_.wait({.readable = reading() && !reader_.blocked(), .writable = !output_.empty()}, timeout, &waker_);
}

void Session::give_up(const std::string& why) {
  ended_ = true;
  ended_why_ = why;
  output_.control([&](wire::Control::Builder control) { control.initGoodbye().setText(why); });
  output_.pump();
}

// The driver writes what kernels print when somebody waits; events are only asked about here, so this waits for one that has fired.
// CUDA C++ Programming Guide, "Formatted Output". Where no code may print and nothing went wrong there is hardly ever something, and
// everybody who waits would pay for the look.
void Session::flush_prints(CUevent passed, CUresult result) {
  if (!options_.printed) return;
  if (!may_print_ && result == CUDA_SUCCESS && looked_at_ - prints_at_ < prints_interval) return;
  prints_at_ = looked_at_;
  if (may_print_) driver_.cuEventSynchronize(passed);
  tell_prints();
}

void Session::tell_prints() {
  if (!options_.printed) return;
  std::fflush(stdout);
  const auto send_as = [&](std::uint8_t descriptor) {
    return [this, descriptor](std::span<const std::byte> text) {
      output_.control([&](wire::Control::Builder control) {
        auto printed = control.initPrinted();
        printed.setDescriptor(descriptor);
        printed.setText(capnp::Data::Reader(reinterpret_cast<const capnp::byte*>(text.data()), text.size()));
      });
    };
  };
  options_.printed->output.collect(send_as(1));
  options_.printed->errors.collect(send_as(2));
}

// To the person who runs the program: the driver's error does not say which memory it is.
void Session::tell_full(HostBudget::Bound bound) {
  const bool own = bound == HostBudget::Bound::session;
  const std::string who = own ? "the session may take " + std::to_string(options_.host_bytes_max)
                              : "all sessions of the lease may take " + std::to_string(options_.account_place->account->host_max());
  warn(who + " bytes of the GPU host's memory (" + (own ? "host_bytes_max of its fargpud" : "host_memory of the tenant") +
       (own ? ") and wants" : ") and want") + " more: CUDA_ERROR_OUT_OF_MEMORY");
}

void Session::warn(const std::string& what) {
  if (!warned_.insert(what).second) return;
  const std::string text = "fargpu: warning: " + what + "\n";
  output_.control([&](wire::Control::Builder control) {
    auto printed = control.initPrinted();
    printed.setDescriptor(2);
    printed.setText(capnp::Data::Reader(reinterpret_cast<const capnp::byte*>(text.data()), text.size()));
  });
}

bool Session::tell_usage(bool now) {
  if (!options_.report) return true;
  if (!now && Clock::now() - told_at_ < usage_interval) return false;
  SessionUsage usage{ledger_.charged(), calls_, turns_.busy_ns(), turns_.waited_ns()};
  if (usage == told_usage_) return true;
  told_at_ = Clock::now();
  told_usage_ = std::move(usage);
  options_.report(told_usage_);
  return true;
}

// --- frames -------------------------------------------------------------------------------------------------------------------

std::optional<std::span<std::byte>> Session::place(const FrameHeader& header, std::span<const std::byte>) {
  // Bytes for the GPU go into pinned memory; others are used up at once.
  if (header.kind == FrameKind::call && header.opcode == static_cast<std::uint16_t>(Opcode::copyIn)) {
    ContextState* const context = contexts_.find(header.subject);
    if (context && contexts_.make_current(*context) && context->staging->ready()) {
      arriving_in_ = context->staging;
      return arriving_in_->in().take(header.bulk_bytes);
    }
  }
  arriving_.resize(header.bulk_bytes);
  return std::span(arriving_);
}

void Session::take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) {
  switch (header.kind) {
    case FrameKind::call:
      on_call(header, message, bulk);
      arriving_in_.reset();
      return;
    case FrameKind::control: on_control(message, bulk); return;
    case FrameKind::heartbeat: output_.confirm(); return;
    case FrameKind::confirm: return;
    case FrameKind::reply:
    case FrameKind::data: break;
  }
  throw ProtocolError("a frame of a kind that a client does not send");
}

void Session::on_control(std::span<const std::byte> message, std::span<std::byte> bulk) {
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  switch (control.which()) {
    case wire::Control::CALLBACK_DONE: client_.called(control.getCallbackDone()); return;
    case wire::Control::PULLED: client_.fetched(control.getPulled(), bulk); return;
    case wire::Control::GOODBYE:
      ended_ = true;
      ended_why_ = "the client left";
      return;
    default: throw ProtocolError("a control message that a client does not send");
  }
}

void Session::on_call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) {
  ++calls_;
  Call call(header, message, bulk);
  const Service* const service = service_of(header.opcode);
  if (!service) {  // a newer client
    finish(call.id(), CUDA_ERROR_NOT_SUPPORTED);
    return;
  }
  if (held_calls_.holds(*service, call)) return;
  execute(*service, call);
}

void Session::hear_turn(const scheduler::Turn& turn) {
  turns_.hear(turn);
  waker_.signal();
}

namespace {

// Launches, which go the way of those before them, and what gives the driver nothing but an event.
bool goes_behind_launches(const Call& call) {
  const auto opcode = static_cast<Opcode>(call.id().opcode);
  return opcode == Opcode::launch || opcode == Opcode::fence || (opcode == Opcode::cuStreamSynchronize && call.id().wants_reply);
}

}  // namespace

void Session::execute(const Service& service, Call& call) {
  if (!enter_context(service, call)) {
    refuse(call, call.id().context == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return;
  }
  if (service.needs_turn && !turns_.open() && held_calls_.waits_for_turn(service, call)) return;
  StreamState* const target = service.stream_of ? stream(service.stream_of(call), call.id().context) : nullptr;
  if (crew_.busy() && !goes_behind_launches(call)) {
    if (target) crew_.wait_for(*target);
    else crew_.wait_for_all();
  }
  if (target) taken_copies_.catch_up(*target);
  turns_.set_kind(service.needs_turn && !turns_.open()       ? Turns::kind_of(call)
                  : service.stream_of && !service.needs_turn ? 0
                                                             : Turns::unknown);
  const Outcome outcome = service.serve(*this, call);
  turns_.set_kind(Turns::unknown);
  if (!outcome.is_later()) finish(call.id(), outcome.result(), call.reply());
}

// While so much waits to be read that waking a thread pays (more than gathers at a program that does something between its calls), and for
// a stream whose launches are there already. Who may work by turns only must know what was given.
bool Session::crew_helps(const StreamState& stream) const {
  constexpr std::size_t many_bytes = 8192;
  if (crew_.size() == 0 || captures_.any() || !turns_.open()) return false;
  return crew_.busy(stream) || reader_.waiting_bytes() >= many_bytes;
}

void Session::finish(const CallId& call, CUresult result, std::span<const std::byte> reply) {
  if (call.answered) return;
  // What the driver had to say about it comes before the error; the software GPU names what it misses.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) tell_prints();
  if (call.wants_reply) {
    output_.reply(call, result, reply);
  } else if (result != CUDA_SUCCESS) {
    output_.control([&](wire::Control::Builder control) {
      auto error = control.initLateError();
      error.setThread(call.thread);
      error.setOpcode(call.opcode);
      error.setResult(result);
      error.setContext(call.context);
    });
  }
}

void Session::refuse(Call& call, CUresult result) {
  give_up(call);
  finish(call.id(), result);
}

void Session::give_bulk(Call& call) {
  if (arriving_in_) arriving_in_->give_in(call.bulk());
}

void Session::give_up(Call& call) {
  give_bulk(call);
  if (call.id().opcode != static_cast<std::uint16_t>(Opcode::copyIn)) return;
  const auto in = call.in<wire::CopyIn>();
  const auto source = in.getSource();
  if (source.isPart()) client_.release_part(source.getPart());
  if (source.isLanes()) lanes_.refuse(source.getLanes(), in.getShape().getWidth());
}

// --- contexts and streams ---------------------------------------------------------------------------------------------------------

bool Session::enter_context(const Service& service, const Call& call) {
  if (call.id().context == 0) return service.context != ContextNeed::current;
  ContextState* const wanted = contexts_.find(call.id().context);
  if (!wanted) return service.context == ContextNeed::none;
  return make_current(*wanted);
}

// The streams go with it; what else was made in it goes over to the primary context.
CUresult Session::close_green(ContextState& context, ContextState& heir) {
  contexts_.enter(heir);
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  host_blocks_.inherit(context.id, heir.id);
  graph_parts_.inherit(context.id, heir.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  TakenCopies::context_closes(context);
  for (unsigned kind = 1; kind <= handle_kind_max; ++kind) {
    std::vector<Handle> streams;
    handles_.for_each(static_cast<HandleKind>(kind), [&](Handle handle, Handles::Entry& entry) {
      if (entry.context != context.id) return;
      if (kind == static_cast<unsigned>(HandleKind::stream)) streams.push_back(handle);
      else entry.context = heir.id;
    });
    for (const Handle stream : streams) handles_.forget(HandleKind::stream, stream);
  }
  drop_streams(context);
  const CUresult result = driver_.cuGreenCtxDestroy(context.green);
  contexts_.remove(context);
  return result;
}

void Session::drop_streams(ContextState& context) {
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

CUresult Session::close_context(ContextState& context) {
  crew_.wait_for_all();
  blocking_calls_.wait_for_all();  // it may be in this context
  if (context.green) return close_green(context, *contexts_.primary_of(context.device));
  for (ContextState* const green : contexts_.with_greens(context))
    if (green != &context) close_green(*green, context);
  contexts_.enter(context);
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  context.staging->unpin();
  lanes_.context_closes(driver_, context);
  host_blocks_.context_closes(context.id);
  graph_parts_.context_closes(driver_, context.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  TakenCopies::context_closes(context);
  for (unsigned kind = 1; kind <= handle_kind_max; ++kind) {
    std::vector<Handle> gone;
    handles_.for_each(static_cast<HandleKind>(kind), [&](Handle handle, Handles::Entry& entry) {
      if (entry.context == context.id) gone.push_back(handle);
    });
    for (const Handle handle : gone)
      if (kind != static_cast<unsigned>(HandleKind::stream)) forget(static_cast<HandleKind>(kind), handle.value());
      else handles_.forget(HandleKind::stream, handle);
  }
  drop_streams(context);
  CUdevice device = driver_ordinal(context.device);
  CUresult result;
  if (context.primary) {
    if (context.part) {
      driver_.cuCtxSetCurrent(context.whole);
      contexts_.partition(context.device)->close();
    }
    result = driver_.cuDevicePrimaryCtxReset_v2(device);
  } else {
    result = driver_.cuCtxDestroy_v2(context.cuda);
  }
  tell_prints();
  contexts_.remove(context);
  return result;
}

void Session::submitted(std::uint64_t stream_handle) {
  if (StreamState* const target = stream(stream_handle, contexts_.current() ? contexts_.current()->id : 0)) submitted(*target);
}

void Session::submitted(StreamState& stream) {
  if (captures_.any() && captures_.capturing(stream)) return;
  ++stream.submitted;
  turns_.given(stream);
  if (stream.submitted - stream.looked_at >= look_interval) completions_.after(stream, Completions::Kind::release, [](CUresult) {});
  // The driver must not be given so much that it blocks: with enough of it pending, what comes waits here.
  if (stream.full == 0 && stream.pending() > pending_most) {
    stream.full = order_.hold(stream);
    full_.emplace_back(stream.handle, stream.context->id);
  }
}

// What was held back behind enough work goes on when there is less of it, or when nothing more will be heard of it because it has failed.
bool Session::empty_full() {
  const auto full = std::exchange(full_, {});  // what goes on may fill it again
  for (const auto& name : full) {
    StreamState* const target = stream(name.first, name.second);
    if (!target || target->full == 0) continue;
    if (target->pending() > pending_most && completions_.follow(*target)) full_.push_back(name);
    else order_.release(std::exchange(target->full, 0));
  }
  return full_.size() < full.size();
}

void Session::submitted(ContextState& context) {
  for (ContextState* const one : contexts_.with_greens(context))
    for (StreamState* const stream : one->streams) submitted(*stream);
}

// --- handles -------------------------------------------------------------------------------------------------------------------

bool Session::lives_with_context(HandleKind kind) {
  switch (kind) {
    case HandleKind::stream:
    case HandleKind::event:
    case HandleKind::module:
    case HandleKind::function:
    case HandleKind::link:
    case HandleKind::texref:
    case HandleKind::surfref:
    case HandleKind::array:
    case HandleKind::mipmap:
    case HandleKind::texobject:
    case HandleKind::surfobject: return true;
    default: return false;
  }
}

bool Session::resolve_raw(HandleKind kind, std::uint64_t value, std::uint64_t& raw) {
  if (kind == HandleKind::stream && value == 1) {
    raw = reinterpret_cast<std::uint64_t>(CU_STREAM_LEGACY);
    return true;
  }
  if (kind == HandleKind::context) {
    const ContextState* const found = Handle(value).well_formed(kind) ? contexts_.find(Handle(value).id()) : nullptr;
    if (found) raw = reinterpret_cast<std::uint64_t>(found->cuda);
    return found != nullptr;
  }
  const Handles::Entry* entry = handles_.find(kind, Handle(value));
  if (!entry && kind == HandleKind::function) entry = handles_.find(HandleKind::kernel, Handle(value));
  if (entry) raw = entry->value;
  return entry != nullptr;
}

CUresult Session::check_adoption(HandleKind kind, std::uint64_t value) {
  // A client that reuses a live handle does not follow the protocol.
  if (!handles_.adoptable(kind, Handle(value))) throw ProtocolError("a new object was given a handle that is not free");
  return CUDA_SUCCESS;
}

void Session::adopt_raw(HandleKind kind, std::uint64_t value, std::uint64_t raw, const Call& call) {
  handles_.adopt(Handle(value), raw, lives_with_context(kind) ? call.id().context : 0);
  if (kind == HandleKind::stream) contexts_.add_stream(value, reinterpret_cast<CUstream>(raw), *contexts_.find(call.id().context));
}

void Session::add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  memory_.add_foreign(address, bytes);
  globals_.emplace(owner, address);  // again and again, if the client asks so
}

void Session::drop_globals(std::uint64_t owner) {
  const auto first = globals_.lower_bound({owner, 0}), last = globals_.lower_bound({owner + 1, 0});
  for (auto it = first; it != last; ++it) memory_.remove_foreign(it->second);
  globals_.erase(first, last);
}

void Session::hide(HandleKind kind, std::uint64_t value) {
  if (Handle(value).kind() == kind) handles_.hide(Handle(value), [this](Handle gone) { drop_globals(gone.value()); });
}

void Session::forget(HandleKind kind, std::uint64_t value) {
  handles_.forget(kind, Handle(value));
  drop_globals(value);
  if (kind == HandleKind::exec) attended_.erase(value);
  if (kind == HandleKind::link) links_.erase(value);
  charges_.erase(value);
  if (kind == HandleKind::library || kind == HandleKind::module) loaded_images_.erase(value);
  if (kind == HandleKind::event) sharing_.event_gone(value);
}

// The driver finishes what the stream was given. Until then whoever waits for it, or for its context, waits as if it were there.
CUresult Session::destroy_stream(std::uint64_t handle) {
  forget(HandleKind::stream, handle);
  StreamState& stream = *contexts_.stream(handle, 0);
  if (!stream.dirty() || captures_.capturing(stream)) return end_stream(stream, CUDA_SUCCESS);
  make_current(*stream.context);
  completions_.after(stream, Completions::Kind::release, [this, number = contexts_.retire_stream(stream)](CUresult result) {
    if (StreamState* const retired = contexts_.retired(number)) end_stream(*retired, result);
  });
  return CUDA_SUCCESS;
}

CUresult Session::end_stream(StreamState& stream, CUresult result) {
  crew_.wait_for(stream);  // which may have an event of ours to record there
  completions_.abandon(stream, result);
  const std::uint64_t held = stream.full;
  const CUstream cuda = stream.cuda;
  turns_.forget(stream);
  order_.forget(stream);
  contexts_.remove_stream(stream);
  captures_.abandon(cuda);
  if (held != 0) completions_.soon(Completions::Kind::release, result, [this, held](CUresult) { order_.release(held); });
  return driver_.cuStreamDestroy_v2(cuda);
}

std::size_t Session::list_size(std::uint64_t n) {
  if (n > limits::array_elements_max) throw ProtocolError("a list of " + std::to_string(n) + " elements");
  return static_cast<std::size_t>(n);
}

// --- waiting --------------------------------------------------------------------------------------------------------------------

void Session::when_passed(StreamState& stream, Completions::Done done) {
  order_.after_stream(stream, [this, handle = stream.handle, id = stream.context->id, done = std::move(done)] {
    StreamState* const target = this->stream(handle, id);
    if (!target) {  // destroyed meanwhile
      completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, done);
    } else if (!target->dirty() && target->handle != 1) {
      completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, done);
    } else if (captures_.capturing(*target)) {
      completions_.soon(Completions::Kind::signal, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, done);
    } else {
      make_current(*target->context);
      completions_.after(*target, Completions::Kind::signal, done);
    }
  });
}

namespace {

/// Calls `done` with the first failure once all of several waits are over.
class Gather {
 public:
  explicit Gather(Completions::Done done) : done_(std::move(done)) {}
  void add() { ++open_; }
  void close(CUresult result) {
    if (result_ == CUDA_SUCCESS) result_ = result;
    if (--open_ == 0) done_(result_);
  }

 private:
  Completions::Done done_;
  std::size_t open_ = 1;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace

void Session::when_passed(ContextState& context, Completions::Done done) {
  const auto all = contexts_.with_greens(context);
  const auto before =
      order_.items([&](const StreamState* stream) { return !stream || std::find(all.begin(), all.end(), stream->context) != all.end(); });
  order_.after(before, [this, id = context.id, done = std::move(done)] {
    ContextState* const target = this->context(id);
    auto gather = std::make_shared<Gather>(done);
    for (ContextState* const one : target ? contexts_.with_greens(*target) : std::vector<ContextState*>{}) {
      make_current(*one);
      for (StreamState* stream : one->streams) {
        if (!stream->dirty() || captures_.capturing(*stream)) continue;
        gather->add();
        completions_.after(*stream, Completions::Kind::signal, [gather](CUresult result) { gather->close(result); });
      }
    }
    completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [gather](CUresult result) { gather->close(result); });
  });
}

void Session::when_all_passed(Completions::Done done) {
  auto gather = std::make_shared<Gather>(std::move(done));
  for (ContextState* const context : contexts_.all()) {
    gather->add();
    when_passed(*context, [gather](CUresult result) { gather->close(result); });
  }
  completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [gather](CUresult result) { gather->close(result); });
}

void Session::deliver_changes() {
  if (!host_blocks_.any_compared()) return;
  host_blocks_.changes([&](std::uint64_t address, std::span<const std::byte> bytes) {
    for (std::size_t offset = 0; offset < bytes.size(); offset += limits::bulk_bytes_max) {
      const auto part = bytes.subspan(offset, std::min(limits::bulk_bytes_max, bytes.size() - offset));
      auto copy = std::make_shared<std::vector<std::byte>>(part.begin(), part.end());
      client_.deliver(address + offset, *copy, [copy] {});
    }
  });
}

// The driver has no graph any more that needs these parts.
bool Session::collect_parts() {
  const auto gone = graph_parts_.gone();
  for (const std::uint64_t part : gone) {
    if (const Handle object = user_objects_.ended(part)) {
      handles_.forget(HandleKind::userobject, object);
      client_.call_part(part, [] {});
    }
    if (!contexts_.empty()) contexts_.borrow();
    graph_parts_.erase(driver_, part);
    graph_memory_.released(part);
    client_.release_part(part);
  }
  return !gone.empty();
}

AttendedGraph* Session::attended(std::uint64_t exec) {
  const auto found = attended_.find(exec);
  return found == attended_.end() ? nullptr : found->second.get();
}

void Session::event_waiter(std::uint64_t event, int change) {
  EventWait& wait = event_waits_[event];
  wait.waiters += change;
  if (wait.waiters > 0) return;
  const bool destroy = wait.destroyed;
  event_waits_.erase(event);
  if (destroy) destroy_event(event);
}

CUresult Session::destroy_event(std::uint64_t event) {
  if (const auto waiting = event_waits_.find(event); waiting != event_waits_.end()) {
    waiting->second.destroyed = true;
    return CUDA_SUCCESS;
  }
  CUevent object{};
  if (!resolve(HandleKind::event, event, object)) return CUDA_ERROR_INVALID_HANDLE;
  handles_.forget(HandleKind::event, Handle(event));
  sharing_.event_gone(event);
  return driver_.cuEventDestroy_v2(object);
}

// --- beside the executor ------------------------------------------------------------------------------------------------------------

Outcome Session::aside(Call& call, std::function<CUresult()> work, std::function<CUresult(CUresult)> settle) {
  return aside_reply(call, std::move(work), [settle = std::move(settle)](CUresult result, MessageWriter&) { return settle(result); });
}

Outcome Session::aside_reply(Call& call, std::function<CUresult()> work, std::function<CUresult(CUresult, MessageWriter&)> settle) {
  auto result = std::make_shared<CUresult>(CUDA_ERROR_UNKNOWN);
  const CUcontext cuda = contexts_.current() && call.id().context != 0 ? contexts_.current()->cuda : nullptr;
  blocking_calls_.run(
      [this, cuda, work = std::move(work), result] {
        driver_.cuCtxSetCurrent(cuda);
        *result = work();
      },
      [this, id = call.id(), settle = std::move(settle), result] {
        // What settles may need the context current again.
        if (ContextState* const owner = context(id.context)) make_current(*owner);
        MessageWriter writer;
        const CUresult outcome = settle(*result, writer);
        finish(id, outcome, writer.finish());
      });
  return Outcome::later();
}

}  // namespace fargpu::server
