#include "session.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "full_texts.h"
#include "operations.capnp.h"
#include "protocol/errors.h"
#include "protocol/program_memory.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto keeping_patience = std::chrono::seconds(2);
constexpr auto usage_interval = std::chrono::milliseconds(250);
constexpr auto completion_poll = std::chrono::microseconds(30);
/// How long to sleep at least and at most while the GPU works; for as long as a step of a program takes, what its
/// client waits for is looked for often.
constexpr auto look_least = std::chrono::microseconds(20), look_most = std::chrono::microseconds(500);
constexpr auto hurried_wait = std::chrono::milliseconds(50);
/// How long at most between those looks where other threads need the processor: a look takes some microseconds of it.
constexpr auto look_most_busy = std::chrono::microseconds(200);
constexpr auto completion_interval = std::chrono::microseconds(50);
constexpr std::size_t streams_hurried = 4;  // to look at while calls come in
constexpr std::size_t completions_few = 2;  // an answer, and perhaps a mark
constexpr unsigned looks_at_few = 3;        // in a round: about as long as the rest of it takes
// Frames taken after which the client is told even if there is nothing to say.
constexpr std::uint64_t confirm_interval = 1024;

Residency::Needs needs_of(const Service& service, Call& call) {
  return service.memory ? Residency::Needs(service.memory(call)) : std::nullopt;
}

}  // namespace

std::unique_ptr<ContentDesk> open_contents(const SessionOptions& options, HostBudget& budget) {
  if (options.content_folder.empty() || options.content_bytes_max == 0) return nullptr;
  return std::make_unique<ContentDesk>(ContentStore(options.content_folder, options.content_bytes_max), budget);
}

WorkerLanes::SlotMemory slot_memory(const SessionOptions& options) {
  if (!options.direct) return nullptr;
  return [direct = options.direct](std::size_t bytes) { return direct->slots(bytes); };
}

Session::Session(Channel& channel, DriverTable& driver, SessionOptions options)
    : channel_(channel),
      driver_(driver),
      options_(std::move(options)),
      host_budget_(
          options_.host_bytes_max, options_.account_place,
          [this](HostBudget::Bound bound) {
            const bool own = bound == HostBudget::Bound::session;
            prints_.warn(full_text(bound, own ? options_.host_bytes_max : options_.account_place->account->host_max()));
          }),
      reader_(channel, *this, /*frames_before=*/1),  // attach
      output_(channel, options_.compression, [this] { return lanes_.given(); }),
      ledger_(options_.memory_limits, options_.account_place,
              [this](const Ledger::Refusal& refusal) { prints_.warn(full_text(refusal)); }),
      memory_(driver, ledger_, options_.device_window.base, options_.device_window.bytes),
      sharing_(driver, memory_, options_.exchange),
      host_blocks_(driver, memory_, host_budget_, options_.host_window,
                   {.scrub = options_.scrub, .one_process = options_.one_process}),
      contexts_(driver, ledger_, host_budget_, options_.devices, options_.parts, options_.origin),
      objects_(memory_, contexts_, options_.origin,
               [this](HandleKind kind, std::uint64_t value) { forgotten(kind, value); }),
      completions_(
          driver, [this](CUevent event, CUresult result) { prints_.flush(event, result, looked_at_); },
          [this](StreamState& stream, CUevent event) { return ordering_.record(stream, event); },
          [this] { return reading(); }),
      ordering_(
          driver, contexts_, captures_, completions_, host_budget_, waker_, *this,
          {.turns = options_.turns, .launch_threads = options_.launch_threads, .devices = options_.devices.size()}),
      residency_(
          driver, contexts_, memory_, objects_.handles(), completions_, captures_, blocking_calls_, waker_,
          options_.account_place, options_.devices.size(), options_.residency, [this] { return at_work(); },
          [this](const ResidencyReturn& back) { tell_returned(back); }),
      heard_at_(Clock::now()),
      sent_at_(Clock::now()),
      told_at_(Clock::now()),
      told_usage_{.busy_ns = std::vector<std::uint64_t>(options_.devices.size())},
      idle_since_(Clock::now()),
      blocking_calls_(waker_, [&driver] { relax_captures(driver); }),
      link_calls_(
          waker_, [&driver] { relax_captures(driver); }, /*threads_max=*/1) {
  relax_captures(driver);
}

Session::~Session() {
  ended_ = true;
  ordering_.wait_for_launches();
  lanes_.close();
  peers_.close_all();
  attended_graphs_.end();
  blocking_calls_.wait_for_all();
  link_calls_.wait_for_all();
  for (ContextState* const context : contexts_.all()) close_context(*context);
}

// --- the loop -------------------------------------------------------------------------------------------------------

std::string Session::run() {
  const OwnMemory own;  // all that this thread sends from and receives into
  try {
    while (!ended_) {
      if (stopping_.exchange(false)) {
        tell_notice();  // of this end, perhaps, in rounds that had no time for it
        const std::lock_guard lock(stop_mutex_);
        output_.control([&](wire::Control::Builder control) { control.initGoodbye().setText(stop_why_); });
        send_rest();
        return stop_why_;
      }
      if (!round()) rest();
    }
  } catch (const ChannelClosed& closed) {
    if (!ended_) ended_why_ = closed.what();  // goodbye and the end of the connection may come together
  }
  tell_usage(true);
  return ended_why_;
}

void Session::finish_keeping() {
  if (lanes_.contents()) lanes_.contents()->finish(keeping_patience);
}

void Session::stop(const std::string& why) {
  {
    const std::lock_guard lock(stop_mutex_);
    stop_why_ = why;
  }
  stopping_ = true;
  waker_.signal();
}

void Session::notify(const std::string& line) {
  if (!options_.hears_notices) return;
  {
    const std::lock_guard lock(stop_mutex_);
    notice_ = line;
  }
  noticed_ = true;
  waker_.signal();
}

bool Session::tell_notice() {
  if (!noticed_.load(std::memory_order_relaxed) || !noticed_.exchange(false)) return false;
  const std::lock_guard lock(stop_mutex_);
  output_.control_ahead([&](wire::Control::Builder control) { control.setNotice(notice_); });
  return true;
}

void Session::tell_returned(const ResidencyReturn& back) {
  if (!options_.hears_returns) return;
  output_.control_ahead([&](wire::Control::Builder control) {
    const auto us = [](ResidencyReturn::Clock::duration time) {
      return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
    };
    auto returned = control.initReturned();
    returned.setBytes(back.bytes);
    returned.setLeavingUs(us(back.away - back.leaving));
    returned.setAwayUs(us(back.waiting - back.away));
    returned.setWaitingUs(us(back.returning - back.waiting));
    returned.setReturningUs(us(ResidencyReturn::Clock::now() - back.returning));
  });
}

void Session::tell_link_lost(std::uint32_t link, const std::string& why) {
  output_.control([&](wire::Control::Builder control) {
    auto lost = control.initLinkLost();
    lost.setLink(link);
    lost.setText(why);
  });
}

// One round: read and execute, collect, look for completions, send. Returns whether anything happened.
bool Session::round() {
  rounds_.fetch_add(1, std::memory_order_relaxed);
  if (!reading() || completions_.held_up()) return wait_for_reader();
  const bool heard = options_.evict_calls == 0 ? reader_.pump() : reader_.pump(1);
  bool sent = heard && send_answers();  // at once: a thread of the program may be waiting for them
  bool progress = heard;
  progress |= ordering_.collect_launches();
  progress |= blocking_calls_.collect();
  progress |= link_calls_.collect();
  progress |= collect_parts();
  progress |= lanes_.collect();
  progress |= peers_.collect();
  progress |= look_for_completions(heard);
  progress |= ordering_.poll();
  progress |= retries_.poll();
  progress |= client_.poll();
  progress |= look_after_memory();
  progress |= tell_notice();
  progress |= tell_settled(/*idle=*/!progress);
  output_.set_confirmed(static_cast<std::uint32_t>(reader_.frames()));
  if (reader_.frames() - frames_confirmed_ >= confirm_interval && output_.empty()) output_.confirm();
  sent |= send_answers();
  progress |= sent;
  const auto now = progress || reader_.blocked() ? Clock::now() : Clock::time_point();
  if (sent) sent_at_ = now;
  // A client whose bytes find no room here is not silent, and one that takes its answers lives.
  if (heard || sent || reader_.blocked()) heard_at_ = now;
  if (progress) {
    idle_since_ = now;
    spell_.stop();
  }
  const auto waits = ordering_.waits() + waits_.behind_captures() + completions_.size() + client_.unanswered();
  if (waits > limits::waits_max) throw ProtocolError("more things wait than a session may have waiting");
  return progress;
}

bool Session::send_answers() {
  if (output_.empty()) return false;
  frames_confirmed_ = reader_.frames();
  return output_.pump();
}

bool Session::look_after_memory() {
  if (options_.evict_calls != 0 && calls_ >= evict_after_calls_) {
    constexpr auto patience = std::chrono::milliseconds(20);
    evict_after_calls_ = calls_ + options_.evict_calls;
    const bool all = evict_after_calls_ / options_.evict_calls % 2 == 0;  // or one piece
    residency_.hear(
        {.bytes = all ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>(options_.devices.size(), 1),
         .host_bytes_max = TenantAccount::no_limit,
         .file = {},
         .patience = patience});
  }
  const bool progress = residency_.poll();
  reader_.hold_calls(holds_calls());
  if (!residency_.lost().empty()) end(residency_.lost());
  return progress;
}

// What may use device memory besides streams with work; a call that waits for room does not.
std::string Session::at_work() const {
  if (peers_.any()) return "it has a link with another host";
  if (ordering_.holding()) return "work of it waits, for its turn, a host function or other work";
  if (!blocking_calls_.idle() || !link_calls_.idle() || !retries_.empty()) return "a call of it is being carried out";
  if (reader_.in_frame() || lanes_.receiving() || !completions_.empty()) return "copies of it are under way";
  return "";
}

bool Session::tell_settled(bool idle) {
  const auto settled = credit_.news(idle);
  if (settled) output_.control([&](wire::Control::Builder control) { control.initSettled().setBytes(*settled); });
  return settled.has_value();
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

// Each stream with something to wait for is one question to the driver: while calls come in, they are not asked each
// time. While there is nothing but an answer to wait for, it is asked more often than the connection, which takes
// longer.
bool Session::look_for_completions(bool hurried) {
  if (completions_.empty()) return false;
  const auto now = Clock::now();
  if (hurried && now - looked_at_ < completion_interval) return false;
  looked_at_ = now;
  if (hurried) return completions_.poll(streams_hurried);
  const auto few = [this] {
    return completions_.wanted() && completions_.size() <= completions_few && !completions_.held_up();
  };
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
    if (channel_.resuming()) return false;  // nobody is waited for to be told the end
    if (output_.pump()) deadline = now + options_.silence;
    else if (now >= deadline) return false;
    else channel_.wait({.writable = true}, deadline - now);
  }
  return true;
}

// Whether to poll on. After a moment, other threads that need this processor go first; where all processors are busy,
// the moment is short. Most of what the GPU is waited for comes within a few microseconds, and sleeping takes longer
// than that.
bool Session::looks_on(Clock::time_point now) {
  const auto idle = now - idle_since_;
  const auto spin = options_.spin + (waits_for_gpu() ? completion_poll : Clock::duration::zero());
  return idle < spin && (idle < spare_.first_look(now) || spell_.go_on(now));
}

// Nothing to do now: poll on for a moment, then sleep. While the GPU is being waited for, sleep briefly, and longer the
// longer it takes, but not while a step of a program may end at any moment.
void Session::rest() {
  const auto now = Clock::now();
  if (looks_on(now)) return;
  spell_.stop();
  const bool told = tell_usage(false);
  if (!ordering_.hung().empty()) return end(ordering_.hung());
  if (channel_.resuming()) heard_at_ = now;
  if (now - heard_at_ >= options_.silence) {
    // It may only have been stopped: then it finds this when it goes on.
    const std::string why = "the client has been silent for " + std::to_string(options_.silence.count() / 1000) + " s";
    if (!channel_.suspect(why)) return end(why);
    heard_at_ = now;
  }
  const auto heartbeat = options_.silence / limits::heartbeats_per_silence;
  // The client's heartbeats are stuck behind what finds no room: so that it knows that we live, it hears from us
  // unasked.
  if (reader_.blocked() && now - sent_at_ >= heartbeat) output_.confirm();
  Channel::Timeout timeout = told ? Channel::Timeout(heartbeat) : usage_interval;
  if (waits_for_gpu()) {
    const auto waited = now - idle_since_;
    const bool hurried = completions_.wanted() && waited < hurried_wait;
    if (!hurried) timeout = std::clamp<Channel::Timeout>(waited / 16, look_least, look_most);
    else if (spare_.any(now)) timeout = look_least;
    else timeout = std::clamp<Channel::Timeout>(waited / 2, look_least, look_most_busy);
  }
  timeout = std::min(timeout, residency_.due());
  timeout = std::min(timeout, std::chrono::duration_cast<Channel::Timeout>(
                                  std::min<std::chrono::nanoseconds>(ordering_.due(), heartbeat)));
  // A blocked reader is woken by completions, not by more bytes.
  channel_.wait({.readable = reading() && !reader_.blocked(), .writable = !output_.empty()}, timeout, &waker_);
}

void Session::end(const std::string& why) {
  ended_ = true;
  ended_why_ = why;
  output_.control([&](wire::Control::Builder control) { control.initGoodbye().setText(why); });
  output_.pump();
}

bool Session::tell_usage(bool now) {
  if (!options_.report) return true;
  if (!now && Clock::now() - told_at_ < usage_interval) return false;
  SessionUsage usage{calls_, ordering_.busy_ns(), ordering_.waited_ns()};
  if (const ContentDesk* const contents = lanes_.contents()) {
    usage.known_bytes = contents->known_bytes();
    usage.kept_bytes = contents->kept_bytes();
  }
  usage.images_not_kept = code_.images.not_kept();
  if (usage == told_usage_) return true;
  told_at_ = Clock::now();
  told_usage_ = std::move(usage);
  options_.report(told_usage_);
  return true;
}

// --- frames ---------------------------------------------------------------------------------------------------------

std::optional<std::span<std::byte>> Session::place(const FrameHeader& header, std::span<const std::byte>) {
  // Bytes for the GPU go into pinned memory; others are used up at once.
  const Service* const service = header.kind == FrameKind::call ? service_of(header.opcode) : nullptr;
  if (service && service->staged) {
    ContextState* const context = contexts_.find(header.subject);
    if (context && contexts_.make_current(*context) && context->staging->ready()) {
      if (const auto part = context->staging->in().take(header.bulk_bytes)) {
        arriving_in_ = context->staging;
        return part;
      }
      // What is there may be behind work that does not end, and that waits for another stream, or for what the client
      // says next. The call's own room is elsewhere.
      if (context->staging->room_may_come(Clock::now())) return std::nullopt;
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

// What a host does not serve needs no memory.
bool Session::holds(const FrameHeader& header, std::span<const std::byte> message) {
  if (waits_in_order_ > 0) return true;
  const Service* const service = service_of(header.opcode);
  if (!service || service->asks) return false;
  Call call(header, message, {});
  return !residency_.admits(needs_of(*service, call));
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
    case wire::Control::LANE_LOST:
      stop("at the client " + printable(control.getLaneLost().getText().cStr(), 512));
      return;
    default: throw ProtocolError("a control message that a client does not send");
  }
}

void Session::on_call(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) {
  ++calls_;
  Call call(header, message, bulk);
  if ((header.detail & call_takes_credit) != 0) call.set_credit(credit_.take(credit_of(message.size(), bulk.size())));
  const Service* const service = service_of(header.opcode);
  if (!service) {  // a newer client
    finish(call.id(), CUDA_ERROR_NOT_SUPPORTED);
    return;
  }
  taking_ = true;
  execute(*service, call);
  taking_ = false;
}

void Session::hear_turn(const scheduler::Turn& turn) {
  ordering_.hear_turn(turn);
  waker_.signal();
}

void Session::execute(const Service& service, Call& call) {
  if (residency_.holds_calls() && !service.asks && !residency_.there(needs_of(service, call)))
    throw std::logic_error("a call is executed while the session's memory is away");
  if (!ordering_.admit(service, call)) return;
  const auto refusals = [this] { return ledger_.refusals() + host_budget_.refusals(); };
  const std::uint64_t refused = refusals();
  Outcome outcome = CUDA_ERROR_OUT_OF_MEMORY;
  bool exhausted = false;
  try {
    outcome = service.serve(*this, call);
    if (service.drop && !outcome.is_later() && outcome.result() != CUDA_SUCCESS) drop_call(call);
  } catch (const Handles::Exhausted&) {
    exhausted = true;
    prints_.warn(exhausted_text());
  }
  const bool no_room = !exhausted && !outcome.is_later() && outcome.result() == CUDA_ERROR_OUT_OF_MEMORY;
  // The driver's, and not a bound of the session.
  if (no_room && service.driver_room && refused == refusals()) outcome = wait_in_order(call);
  ordering_.served();
  if (!outcome.is_later()) finish(call.id(), outcome.result(), call.reply());
}

void Session::finish(const CallId& call, CUresult result, std::span<const std::byte> reply) {
  if (call.answered) return;
  // What the driver had to say about it comes before the error; the software GPU names what it misses.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) prints_.send();
  if (call.wants_reply) {
    if (reply.size() > limits::message_bytes_max) return output_.reply(call, CUDA_ERROR_OUT_OF_MEMORY, {});
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

Completions::Done Session::answer(const CallId& call) {
  return [this, call](CUresult result) {
    deliveries_.send_changes();
    finish(call, result);
  };
}

void Session::finish_behind_deliveries(const CallId& call, CUresult result, std::vector<std::byte> reply) {
  completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [this, call, result, reply = std::move(reply)](CUresult) {
    deliveries_.send_changes();
    finish(call, result, reply);
  });
}

void Session::refuse(Call& call, CUresult result) {
  drop_call(call);
  finish(call.id(), result);
}

void Session::give_bulk(Call& call) {
  if (arriving_in_) arriving_in_->give_in(call.bulk());
}

void Session::drop_call(Call& call) {
  give_bulk(call);
  if (const auto drop = service_of(call.id().opcode)->drop) drop(*this, call);
}

// --- contexts and streams -------------------------------------------------------------------------------------------

// The streams go with it; what else was made in it goes over to the primary context.
CUresult Session::close_green(ContextState& context, ContextState& heir) {
  contexts_.enter(heir);
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  host_blocks_.inherit(context.id, heir.id);
  graph_parts_.inherit(context.id, heir.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  objects_.green_closes(context.id, heir.id);
  ordering_.context_closes(context);
  const CUresult result = driver_.cuGreenCtxDestroy(context.green);
  contexts_.remove(context);
  return result;
}

CUresult Session::close_context(ContextState& context) {
  ordering_.wait_for_launches();
  if (context.green) return close_green(context, *contexts_.primary_of(context.device));
  for (ContextState* const green : contexts_.with_greens(context))
    if (green != &context) close_green(*green, context);
  contexts_.enter(context);
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  context.staging->unpin();
  lanes_.context_closes(driver_, context);
  peers_.context_closes(driver_, context);
  host_blocks_.context_closes(context.id);
  graph_parts_.context_closes(driver_, context.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  // The driver may look at code, and at what its links were told, until it has closed the context.
  const auto links = code_.links;
  const auto images = objects_.context_closes(context.id);
  ordering_.context_closes(context);
  CUdevice device = contexts_.driver_ordinal(context.device);
  CUresult result;
  if (context.primary) {
    const auto nothing_copied = options_.direct ? options_.direct->leave_context() : std::unique_lock<std::mutex>();
    if (context.part) {
      driver_.cuCtxSetCurrent(context.whole);
      contexts_.partition(context.device)->close();
    }
    result = driver_.cuDevicePrimaryCtxReset_v2(device);
  } else {
    result = driver_.cuCtxDestroy_v2(context.cuda);
  }
  prints_.send();
  contexts_.remove(context);
  return result;
}

// What is kept of an object beside its handle.
void Session::forgotten(HandleKind kind, std::uint64_t value) {
  if (kind == HandleKind::exec) attended_graphs_.forget(value);
  if (kind == HandleKind::link) code_.links.erase(value);
  if (kind == HandleKind::event) {
    sharing_.event_gone(value);
    captures_.recorded(value, /*in_capture=*/false);
  }
}

// The driver has no graph any more that needs these parts.
bool Session::collect_parts() {
  const auto gone = graph_parts_.gone();
  if (gone.empty()) return false;
  std::vector<std::pair<std::uint64_t, bool>> told;  // and whether the program's function is to be called
  for (const std::uint64_t part : gone) {
    const Handle object = user_objects_.ended(part);
    if (object) objects_.handles().forget(HandleKind::userobject, object);
    graph_parts_.erase(part);
    graph_memory_.released(part);
    told.emplace_back(part, !!object);
  }
  reuse_staging();
  // The program's function may take it as word that a graph's launches are complete.
  completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [this, told = std::move(told)](CUresult) {
    deliveries_.send_changes();
    for (const auto& [part, calls] : told) {
      if (calls) client_.call_part(part, [] {});
      client_.release_part(part);
    }
  });
  return true;
}

// A part may go whose launch, by the driver's own executable graph, is under way: a change there has taken its place.
// One wait at a time, for parts may come and go often while much is held back.
void Session::reuse_staging() {
  const std::uint64_t last = graph_parts_.used();
  if (last == 0 || staging_waits_) return;
  staging_waits_ = true;
  waits_.when_all_passed([this, last](CUresult) {
    staging_waits_ = false;
    if (!contexts_.empty()) contexts_.borrow();
    graph_parts_.passed(driver_, last);
    reuse_staging();
  });
}

// --- calls that wait for room ----------------------------------------------------------------------------------------

Outcome Session::wait_in_order(Call& call) {
  const ContextState* const context = contexts_.find(call.id().context);
  if (!context || !taking_ || ordering_.running() || !residency_.may_wait()) return CUDA_ERROR_OUT_OF_MEMORY;
  auto again = ordering_.keep(call);
  if (!again) return CUDA_ERROR_OUT_OF_MEMORY;
  ++waits_in_order_;
  reader_.hold_calls(true);  // also of those that have come with it
  const int device = call.device().value_or(contexts_.driver_ordinal(context->device));
  residency_.wait_for_room({device, Residency::room_for_the_driver}, [this, again = std::move(again)] {
    --waits_in_order_;
    in_order(again);
  });
  return Outcome::later();
}

void Session::in_order(const std::function<void()>& job) {
  taking_ = true;
  job();
  taking_ = false;
}

Outcome Session::wait_for_room(Call& call, const DeviceMemory::Shortage& shortage) {
  if (residency_.may_wait_for(shortage)) {
    if (auto again = ordering_.keep(call)) {
      residency_.wait_for_room(shortage, std::move(again));
      return Outcome::later();
    }
  }
  ledger_.device_full(shortage.device, shortage.bytes);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace fargpu::server
