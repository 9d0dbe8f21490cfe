#include "session.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "calls_graph.capnp.h"
#include "operations.capnp.h"
#include "protocol/errors.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t staging_in_bytes = 32u << 20;
constexpr std::size_t staging_out_bytes = 32u << 20;
constexpr auto usage_interval = std::chrono::milliseconds(250);
constexpr auto completion_poll = std::chrono::microseconds(30);
/// How long to sleep at least and at most while the GPU works; for as long as a step of a program takes, what its client waits for is looked for often.
constexpr auto look_least = std::chrono::microseconds(20), look_most = std::chrono::microseconds(500);
constexpr auto hurried_wait = std::chrono::milliseconds(50);
constexpr auto completion_interval = std::chrono::microseconds(50);
/// Work on a stream after which an event is recorded, where the client asks for none: its own fences come a little sooner. Each costs the GPU a pause.
constexpr std::uint64_t look_interval = limits::stream_fence_interval * 5 / 4;
constexpr std::uint64_t pending_most = limits::stream_pending_max - limits::stream_fence_interval;
constexpr std::size_t waits_max = 1u << 20;   // work held back, who waits for it, and completions; no program comes near
constexpr std::size_t streams_hurried = 4;  // to look at while calls come in
constexpr std::uint64_t confirm_interval = 1024;  // frames taken after which the client is told even if there is nothing to say

}  // namespace

Session::Session(Channel& channel, DriverTable& driver, SessionOptions options)
    : channel_(channel),
      driver_(driver),
      options_(std::move(options)),
      reader_(channel, *this, /*frames_before=*/1),  // attach
      output_(channel, options_.compression),
      host_budget_(options_.host_bytes_max, options_.memory_place, [this](HostBudget::Bound bound) { tell_full(bound); }),
      ledger_(options_.memory_limits, options_.memory_place),
      memory_(driver, ledger_, options_.device_window.base, options_.device_window.bytes),
      sharing_(driver, memory_, options_.exchange),
      host_blocks_(driver, memory_, host_budget_, options_.host_window, {.scrub = options_.scrub, .one_process = options_.one_process}),
      images_(options_.image_folder, options_.image_bytes_max, host_budget_),
      completions_(driver, [this](CUevent event) { flush_prints(event); }, [this](StreamState& stream, CUevent event) { return crew_.record(stream, event); },
                   [this] { return reading(); }),
      turns_(*this, options_.turns),
      lent_driver_(&driver, [](DriverTable*) {}),
      heard_at_(Clock::now()),
      sent_at_(Clock::now()),
      told_at_(Clock::now()),
      told_usage_{.memory_bytes = std::vector<std::uint64_t>(options_.memory_limits.size()),
                  .busy_ns = std::vector<std::uint64_t>(options_.devices.size())},
      busy_until_(Clock::now()),
      crew_(driver, options_.launch_threads, waker_, [this] { relax_captures(); }),
      aside_(waker_, [this] { relax_captures(); }) {
  for (std::size_t device = 0; device < options_.parts.size(); ++device)
    partitions_.push_back(std::make_unique<Partition>(driver, options_.devices[device], options_.parts[device]));
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
  transfers_.close();
  lent_driver_.reset();
  // Green contexts go before what they are parts of.
  for (bool found = true; found;) {
    const auto green = std::find_if(contexts_.begin(), contexts_.end(), [](const auto& item) { return item.second->green != nullptr; });
    found = green != contexts_.end();
    if (found) close_context(*green->second);
  }
  while (!contexts_.empty()) close_context(*contexts_.begin()->second);
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
  progress |= aside_.collect();
  progress |= collect_parts();
  progress |= transfers_.collect();
  progress |= look_for_completions(heard);
  progress |= empty_full();
  progress |= turns_.poll();
  for (std::size_t i = 0; i < retries_.size();) {
    if (retries_[i]()) {
      retries_.erase(retries_.begin() + static_cast<std::ptrdiff_t>(i));
      progress = true;
    } else {
      ++i;
    }
  }
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

// The client does not take what there is for it: nothing is done that would make it more.
bool Session::wait_for_reader() {
  bool progress = reading() && completions_.poll(streams_hurried);
  if (output_.pump()) {
    progress = true;
    heard_at_ = sent_at_ = Clock::now();
  }
  return progress;
}

// Each stream with something to wait for is one question to the driver: while calls come in, they are not asked each time.
bool Session::look_for_completions(bool hurried) {
  if (completions_.empty()) return false;
  const auto now = Clock::now();
  if (hurried && now - looked_at_ < completion_interval) return false;
  looked_at_ = now;
  return hurried ? completions_.poll(streams_hurried) : completions_.poll();
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
// CUDA C++ Programming Guide, "Formatted Output".
void Session::flush_prints(CUevent passed) {
  if (!options_.printed) return;
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
                              : "all sessions of the lease may take " + std::to_string(options_.memory_place->account->host_max());
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
  if (header.kind == FrameKind::call && header.opcode == static_cast<std::uint16_t>(Opcode::copyIn) && make_staging())
    return staging_in_.take(header.bulk_bytes);
  arriving_.resize(header.bulk_bytes);
  return std::span(arriving_);
}

void Session::take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) {
  switch (header.kind) {
    case FrameKind::call:
      on_call(header, message, bulk);
      return;
    case FrameKind::control:
      on_control(message, bulk);
      return;
    case FrameKind::heartbeat:
      output_.confirm();
      return;
    case FrameKind::confirm:
      return;
    case FrameKind::reply:
    case FrameKind::data:
      break;
  }
  throw ProtocolError("a frame of a kind that a client does not send");
}

void Session::on_control(std::span<const std::byte> message, std::span<std::byte> bulk) {
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  switch (control.which()) {
    case wire::Control::CALLBACK_DONE: {
      const auto found = callbacks_.find(control.getCallbackDone().getCallback());
      if (found == callbacks_.end()) throw ProtocolError("a host function was reported that was not asked for");
      const auto done = std::move(found->second);
      callbacks_.erase(found);
      done();
      return;
    }
    case wire::Control::PULLED: {
      const auto found = pulls_.find(control.getPulled().getPull());
      if (found == pulls_.end() || bulk.size() > found->second.wanted - found->second.bytes.size())
        throw ProtocolError("bytes were sent that were not asked for");
      Pull& pull = found->second;
      pull.bytes.insert(pull.bytes.end(), bulk.begin(), bulk.end());
      if (pull.bytes.size() < pull.wanted && !control.getPulled().getGone()) return;
      const auto done = std::move(pull.done);
      const HostCharge charge = std::move(pull.charge);
      std::vector<std::byte> bytes = std::move(pull.bytes);
      pulls_.erase(found);
      done(std::move(bytes));
      return;
    }
    case wire::Control::GOODBYE:
      ended_ = true;
      ended_why_ = "the client left";
      return;
    default:
      throw ProtocolError("a control message that a client does not send");
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
  if (order_.any()) {
    if (service->after_held) {
      execute_after_all(*service, call);
      return;
    }
    if (service->stream_of) {
      StreamState* const target = stream(service->stream_of(call), header.subject);
      const std::uint64_t event = service->event_of ? service->event_of(call) : 0;
      if (target && !capturing(*target)) {  // what is captured comes behind nothing
        const auto before = order_.before(*target, service->records_event ? 0 : event);
        if (!before.empty()) {
          park(*service, call, before, target, service->records_event ? event : 0);
          return;
        }
      }
    }
  }
  execute(*service, call);
}

namespace {

/// A call that waits: its frame, on the heap.
struct Parked {
  FrameHeader header;
  std::vector<std::byte> message;
  std::vector<std::byte> bulk;
  HostCharge charge;
};

// Null if there is no room for it.
std::shared_ptr<Parked> copy_frame(HostBudget& budget, Call& call) {
  constexpr std::size_t about_itself = 512;  // and its place in the order
  auto charge = HostCharge::take(budget, call.message().size() + call.bulk().size() + about_itself);
  if (!charge) return nullptr;
  auto parked = std::make_shared<Parked>();
  parked->charge = std::move(*charge);
  const CallId& id = call.id();
  parked->header.sequence = id.sequence;
  parked->header.thread = id.thread;
  parked->header.subject = id.context;
  parked->header.opcode = id.opcode;
  parked->header.detail = id.wants_reply ? std::uint32_t{call_wants_reply} : 0;
  parked->message.assign(call.message().begin(), call.message().end());
  parked->bulk.assign(call.bulk().begin(), call.bulk().end());
  return parked;
}

}  // namespace

void Session::park(const Service& service, Call& call, const std::vector<std::uint64_t>& before, StreamState* stream,
                   std::uint64_t recorded_event) {
  auto parked = copy_frame(host_budget_, call);
  if (staging_in_.contains(call.bulk().data())) staging_in_.give(call.bulk());
  if (!parked) return finish(call.id(), CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<std::uint64_t> recorded;
  if (recorded_event != 0) recorded.push_back(recorded_event);
  const auto is = [&](Opcode opcode) { return call.id().opcode == static_cast<std::uint16_t>(opcode); };
  const std::uint64_t item = order_.enqueue(
      before, stream, std::move(recorded),
      [this, &service, parked] {
        Call again(parked->header, parked->message, parked->bulk);
        execute(service, again);
      },
      is(Opcode::cuGraphLaunch) ? call.in<wire::CuGraphLaunch>().getHGraph() : 0);
  // The program's call has returned: nothing that it does now may come first.
  if (is(Opcode::copyIn) && call.in<wire::CopyIn>().getComplete()) order_.hold_context(*stream->context, item, [] {});
}

// Something is destroyed. Where the client cannot wait, it is told at once, as the driver would, which needs what it destroys no longer
// than until work has been submitted.
void Session::execute_after_all(const Service& service, Call& call) {
  auto parked = copy_frame(host_budget_, call);
  if (!parked) return finish(call.id(), CUDA_ERROR_OUT_OF_MEMORY);
  const bool answered = call.id().wants_reply && call.id().never_held;
  if (answered) finish(call.id(), CUDA_SUCCESS);
  order_.after_all([this, &service, parked, answered] {
    Call again(parked->header, parked->message, parked->bulk);
    if (answered) again.set_answered();
    execute(service, again);
  });
}

std::optional<Outcome> Session::behind_launches(Call& call, std::uint64_t exec) {
  const std::uint64_t launch = order_.launch_of(exec);
  if (launch == 0) return std::nullopt;
  return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind({launch}, call);
}

std::optional<Outcome> Session::behind_context(Call& call, ContextState& context) {
  const auto all = with_greens(context);
  const auto items = order_.items([&](const StreamState* stream) {
    return !call.id().never_held || (stream && std::find(all.begin(), all.end(), stream->context) != all.end());
  });
  if (items.empty()) return std::nullopt;
  return park_behind(items, call);
}

std::optional<Outcome> Session::behind_streams(Call& call, const std::vector<StreamState*>& streams) {
  if (order_.any() && !order_.running()) {
    std::vector<std::uint64_t> items;
    for (const StreamState* stream : streams)
      for (const std::uint64_t item : order_.before(*stream, 0)) items.push_back(item);
    if (!items.empty()) return park_behind(items, call, streams);
  }
  for (StreamState* stream : streams) catch_up(*stream);
  return std::nullopt;
}

Outcome Session::park_behind(const std::vector<std::uint64_t>& items, Call& call, const std::vector<StreamState*>& streams) {
  auto parked = copy_frame(host_budget_, call);
  if (!parked) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t item = order_.enqueue(items, nullptr, {}, [this, parked] {
    Call again(parked->header, parked->message, parked->bulk);
    execute(*service_of(again.id().opcode), again);
  });
  for (StreamState* stream : streams) order_.enqueue({item}, stream, {}, [] {});
  return Outcome::later();
}

namespace {

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) { return (seed ^ value) * 0x9e37'79b9'7f4a'7c15 + (seed >> 29); }

// Calls of which the GPU's work may be expected to take as long.
Turns::Kind kind_of(Call& call) {
  std::uint64_t kind = mix(0, call.id().opcode);
  const auto of_shape = [&](wire::Shape::Reader shape) {
    kind = mix(kind, std::bit_width(shape.getWidth() * shape.getHeight() * std::max<std::uint64_t>(1, shape.getDepth())));
  };
  switch (static_cast<Opcode>(call.id().opcode)) {
    case Opcode::launch: {
      const auto launch = call.in<wire::Launch>();
      for (const std::uint64_t part : {std::uint64_t{launch.getFunction()}, std::uint64_t{launch.getGridX()},
                                       std::uint64_t{launch.getGridY()}, std::uint64_t{launch.getGridZ()}})
        kind = mix(kind, part);
      break;
    }
    case Opcode::cuGraphLaunch: kind = mix(kind, call.in<wire::CuGraphLaunch>().getHGraph()); break;
    case Opcode::copyIn: of_shape(call.in<wire::CopyIn>().getShape()); break;
    case Opcode::copyOut: of_shape(call.in<wire::CopyOut>().getShape()); break;
    case Opcode::copyDevice: of_shape(call.in<wire::CopyDevice>().getShape()); break;
    default: break;
  }
  return kind | 2;  // neither of the two that are not kinds of calls
}

}  // namespace

// Work that the session may not give to the GPU now waits for its turn, with what comes behind it on its stream. True if it does.
bool Session::wait_for_turn(const Service& service, Call& call) {
  StreamState* const target = stream(service.stream_of(call), call.id().context);
  if (!target || capturing(*target)) return false;  // an error, or no work yet
  const Turns::Kind kind = kind_of(call);
  if (turns_.may_give(kind)) return false;
  auto parked = copy_frame(host_budget_, call);
  if (staging_in_.contains(call.bulk().data())) staging_in_.give(call.bulk());
  if (!parked) {
    finish(call.id(), CUDA_ERROR_OUT_OF_MEMORY);
    return true;
  }
  const bool launches = call.id().opcode == static_cast<std::uint16_t>(Opcode::cuGraphLaunch);
  const std::uint64_t item = order_.postpone(*target, launches ? call.in<wire::CuGraphLaunch>().getHGraph() : 0);
  turns_.wait(kind, [this, &service, parked, item] {
    order_.resume(item, [this, &service, parked] {
      Call again(parked->header, parked->message, parked->bulk);
      execute(service, again);
    });
  });
  return true;
}

std::optional<Outcome> Session::behind_turn(Call& call, const std::vector<StreamState*>& streams) {
  const Turns::Kind kind = kind_of(call);
  turns_.set_kind(kind);
  if (turns_.may_give(kind)) return std::nullopt;
  auto parked = copy_frame(host_budget_, call);
  if (!parked) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool running = order_.running();  // then the streams wait for it already
  const std::uint64_t item = order_.postpone(*streams.front(), 0);
  for (StreamState* stream : streams)
    if (!running && stream != streams.front()) order_.enqueue({item}, stream, {}, [] {});
  turns_.wait(kind, [this, parked, item] {
    order_.resume(item, [this, parked] {
      Call again(parked->header, parked->message, parked->bulk);
      execute(*service_of(again.id().opcode), again);
    });
  });
  return Outcome::later();
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
    if (staging_in_.contains(call.bulk().data())) staging_in_.give(call.bulk());
    finish(call.id(), call.id().context == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return;
  }
  if (service.needs_turn && !turns_.open() && wait_for_turn(service, call)) return;
  StreamState* const target = service.stream_of ? stream(service.stream_of(call), call.id().context) : nullptr;
  if (crew_.busy() && !goes_behind_launches(call)) {
    if (target) crew_.wait_for(*target);
    else crew_.wait_for_all();
  }
  if (target) catch_up(*target);
  turns_.set_kind(service.needs_turn && !turns_.open() ? kind_of(call) : service.stream_of && !service.needs_turn ? 0 : Turns::unknown);
  const Outcome outcome = service.serve(*this, call);
  turns_.set_kind(Turns::unknown);
  if (!outcome.is_later()) finish(call.id(), outcome.result(), call.reply());
}

// While so much waits to be read that waking a thread pays, and for a stream whose launches are there already. Who may work by turns only
// must know what was given.
bool Session::crew_helps(const StreamState& stream) const {
  constexpr std::size_t many_bytes = 4096;
  if (crew_.size() == 0 || captures_ != 0 || !turns_.open()) return false;
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
      error.setSequence(call.sequence);
      error.setThread(call.thread);
      error.setOpcode(call.opcode);
      error.setResult(result);
      error.setContext(call.context);
    });
  }
}

// --- contexts and streams ---------------------------------------------------------------------------------------------------------

bool Session::enter_context(const Service& service, const Call& call) {
  if (call.id().context == 0) return service.context != ContextUse::current;
  ContextState* const wanted = context(call.id().context);
  if (!wanted) return service.context == ContextUse::none;
  return make_current(*wanted);
}

bool Session::make_current(ContextState& context) {
  if (&context == current_) return true;
  if (driver_.cuCtxSetCurrent(context.cuda) != CUDA_SUCCESS) return false;
  current_ = &context;
  return true;
}

ContextState* Session::context(std::uint32_t id) {
  const auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.get();
}

ContextState* Session::context_on(int device) {
  for (const auto& [id, state] : contexts_)
    if (driver_ordinal(state->device) == device) return state.get();
  return nullptr;
}

Partition* Session::partition(int device) {
  return device >= 0 && static_cast<std::size_t>(device) < partitions_.size() ? partitions_[static_cast<std::size_t>(device)].get() : nullptr;
}

CUresult Session::open_context(Handle handle, int device, bool primary, unsigned flags, ContextState*& opened) {
  if (!handle.well_formed(HandleKind::context) || contexts_.contains(handle.id())) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = driver_ordinal(device);
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  auto state = std::make_unique<ContextState>();
  // Waiting is done by polling events here, so how the driver would wait does not matter; spinning in it never happens.
  const unsigned kept = flags & ~static_cast<unsigned>(CU_CTX_SCHED_MASK);
  Partition* const part = partition(device);
  if (primary && part && primary_of(device)) return CUDA_ERROR_INVALID_VALUE;  // it would be gone with the first
  CUresult result;
  if (primary) {
    driver_.cuDevicePrimaryCtxSetFlags_v2(ordinal, kept);  // fails, harmlessly, on an active one
    result = driver_.cuDevicePrimaryCtxRetain(&state->cuda, ordinal);
    if (result == CUDA_SUCCESS && part) {
      result = part->open();
      if (result != CUDA_SUCCESS) driver_.cuDevicePrimaryCtxRelease_v2(ordinal);
      state->whole = std::exchange(state->cuda, part->cuda());
      state->part = part->green();
    }
    if (result == CUDA_SUCCESS) result = driver_.cuCtxSetCurrent(state->cuda);
  } else if (part) {
    warn("cuCtxCreate is not supported here: this session has multiprocessors of its own (sm_partitions of its tenant), to which only the primary "
         "context of a device keeps");
    return CUDA_ERROR_NOT_SUPPORTED;
  } else {
    result = driver_.cuCtxCreate_v4(&state->cuda, nullptr, kept, ordinal);
    // Creating also pushes it: it stays current, and nothing else is ever on our stack.
  }
  if (result != CUDA_SUCCESS) return result;
  state->primary = primary;
  state->driver_memory = std::make_shared<DriverMemory>(driver_, ledger_, device, ordinal, ++driver_memories_);
  take_context(std::move(state), handle, device, opened);
  return result;
}

CUresult Session::open_green(Handle handle, int device, CUdevResourceDesc resources, ContextState*& opened) {
  if (!handle.well_formed(HandleKind::context) || contexts_.contains(handle.id())) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = driver_ordinal(device);
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  ContextState* const primary = primary_of(device);
  if (!primary || !make_current(*primary)) return CUDA_ERROR_INVALID_CONTEXT;
  auto state = std::make_unique<ContextState>();
  CUresult result = driver_.cuGreenCtxCreate(&state->green, resources, ordinal, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  state->driver_memory = primary->driver_memory;
  result = driver_.cuCtxFromGreenCtx(&state->cuda, state->green);
  if (result == CUDA_SUCCESS) result = driver_.cuCtxSetCurrent(state->cuda);
  if (result != CUDA_SUCCESS) {
    driver_.cuGreenCtxDestroy(state->green);
    return result;
  }
  take_context(std::move(state), handle, device, opened);
  return result;
}

ContextState* Session::primary_of(int device) {
  for (const auto& [id, context] : contexts_)
    if (context->primary && context->device == device) return context.get();
  return nullptr;
}

// A primary context and the green ones of its device; others by themselves.
std::vector<ContextState*> Session::with_greens(ContextState& context) {
  std::vector<ContextState*> all{&context};
  if (context.primary) {
    for (const auto& [id, other] : contexts_)
      if (other->green && other->device == context.device) all.push_back(other.get());
  }
  return all;
}

// It is current.
void Session::take_context(std::unique_ptr<ContextState> state, Handle handle, int device, ContextState*& opened) {
  state->id = handle.id();
  state->device = device;
  state->legacy = std::make_unique<StreamState>();
  state->legacy->cuda = CU_STREAM_LEGACY;
  state->legacy->context = state.get();
  state->legacy->handle = 1;
  state->streams.push_back(state->legacy.get());
  opened = state.get();
  current_ = opened;
  contexts_[handle.id()] = std::move(state);
}

// The streams go with it; what else was made in it goes over to the primary context.
CUresult Session::close_green(ContextState& context, ContextState& heir) {
  driver_.cuCtxSetCurrent(heir.cuda);
  current_ = &heir;
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  if (staging_context_ == &context) staging_context_ = &heir;
  host_blocks_.inherit(context.id, heir.id);
  graph_parts_.inherit(context.id, heir.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  if (context.overtake_event) driver_.cuEventDestroy_v2(context.overtake_event);
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
  contexts_.erase(context.id);
  return result;
}

void Session::drop_streams(ContextState& context) {
  std::vector<std::uint64_t> held;
  for (StreamState* stream : context.streams) {
    if (stream->full != 0) held.push_back(stream->full);
    turns_.forget(*stream);
    order_.forget(*stream);
    if (stream->handle != 1) streams_.erase(stream->handle);
  }
  // What waited behind them meets that they are gone.
  for (const std::uint64_t item : held) order_.release(item);
}

CUresult Session::close_context(ContextState& context) {
  crew_.wait_for_all();
  aside_.wait_for_all();  // it may be in this context
  if (context.green) return close_green(context, *primary_of(context.device));
  for (ContextState* const green : with_greens(context))
    if (green != &context) close_green(*green, context);
  driver_.cuCtxSetCurrent(context.cuda);
  current_ = &context;
  completions_.abandon(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  drop_staging(context);
  transfers_.context_closes(driver_, context);
  host_blocks_.context_closes(context.id);
  graph_parts_.context_closes(driver_, context.id);
  for (const CUevent event : context.free_events) driver_.cuEventDestroy_v2(event);
  if (context.overtake_event) driver_.cuEventDestroy_v2(context.overtake_event);
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
      partition(context.device)->close();
    }
    result = driver_.cuDevicePrimaryCtxReset_v2(device);
  } else {
    result = driver_.cuCtxDestroy_v2(context.cuda);
  }
  tell_prints();
  current_ = nullptr;
  contexts_.erase(context.id);
  return result;
}

StreamState* Session::stream(std::uint64_t handle, std::uint32_t context_id) {
  if (handle == 1) {
    ContextState* const owner = context(context_id);
    return owner ? owner->legacy.get() : nullptr;
  }
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : found->second.get();
}

void Session::submitted(std::uint64_t stream_handle) {
  if (StreamState* const target = stream(stream_handle, current_ ? current_->id : 0)) submitted(*target);
}

void Session::submitted(StreamState& stream) {
  if (captures_ != 0 && capturing(stream)) return;
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
  for (ContextState* const one : with_greens(context))
    for (StreamState* const stream : one->streams) submitted(*stream);
}

bool Session::capturing(const StreamState& stream) {
  if (captures_ == 0) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // The legacy stream answers with an error while a blocking stream is captured; recording on it would break that capture.
  if (driver_.cuStreamIsCapturing(stream.cuda, &status) != CUDA_SUCCESS) return true;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Handle Session::captured_graph(StreamState& stream, CUgraph graph, const Call& call) {
  const Handle known = handles_.known(HandleKind::graph, raw_of(graph));
  if (known) return known;
  return captured_graphs_[stream.cuda] = reveal(HandleKind::graph, graph, call);
}

void Session::capture_ended(CUstream stream, CUresult result) {
  const auto found = captured_graphs_.find(stream);
  if (found == captured_graphs_.end()) return;
  if (result != CUDA_SUCCESS) forget(HandleKind::graph, found->second.value());
  captured_graphs_.erase(found);
}

void Session::let_nothing_overtake(StreamState& stream) {
  ContextState& context = *stream.context;
  if (!context.overtake_event && driver_.cuEventCreate(&context.overtake_event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    context.overtake_event = nullptr;
    driver_.cuStreamSynchronize(stream.cuda);  // what need not be waited for elsewhere is waited for here
    return;
  }
  // One event stands for all such copies, so each comes behind the one before.
  if (stream.overtake_seen != context.overtake) driver_.cuStreamWaitEvent(stream.cuda, context.overtake_event, 0);
  context.overtake_on_legacy = &stream == context.legacy.get();
  if (driver_.cuEventRecord(context.overtake_event, stream.cuda) == CUDA_SUCCESS) stream.overtake_seen = ++context.overtake;
  else driver_.cuStreamSynchronize(stream.cuda);
}

// A copy in was given to one stream; work that another is given later must find its bytes.
void Session::catch_up(StreamState& stream) {
  ContextState& context = *stream.context;
  if (stream.overtake_seen == context.overtake) return;
  if (capturing(stream)) return;
  stream.overtake_seen = context.overtake;
  if (!stream.blocking || !context.overtake_on_legacy) driver_.cuStreamWaitEvent(stream.cuda, context.overtake_event, 0);
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
    case HandleKind::surfobject:
      return true;
    default:
      return false;
  }
}

bool Session::resolve_raw(HandleKind kind, std::uint64_t value, std::uint64_t& raw) {
  if (kind == HandleKind::stream && value == 1) {
    raw = reinterpret_cast<std::uint64_t>(CU_STREAM_LEGACY);
    return true;
  }
  if (kind == HandleKind::context) {
    const ContextState* const found = Handle(value).well_formed(kind) ? context(Handle(value).id()) : nullptr;
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
  if (kind != HandleKind::stream) return;
  ContextState& owner = *context(call.id().context);
  auto state = std::make_unique<StreamState>();
  state->cuda = reinterpret_cast<CUstream>(raw);
  state->context = &owner;
  state->handle = value;
  unsigned flags = 0;
  driver_.cuStreamGetFlags(state->cuda, &flags);
  state->blocking = !(flags & CU_STREAM_NON_BLOCKING);
  state->number = state->blocking ? 0 : ++next_stream_number_;
  state->overtake_seen = 0;
  owner.streams.push_back(state.get());
  streams_[value] = std::move(state);
}

void Session::add_global(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes) {
  memory_.add_foreign(address, bytes);
  globals_.emplace(owner, address);  // again and again, if the client asks so
}

void Session::forget(HandleKind kind, std::uint64_t value) {
  handles_.forget(kind, Handle(value));
  const auto first = globals_.lower_bound({value, 0}), last = globals_.lower_bound({value + 1, 0});
  for (auto it = first; it != last; ++it) memory_.remove_foreign(it->second);
  globals_.erase(first, last);
  if (kind == HandleKind::exec) attended_.erase(value);
  if (kind == HandleKind::link) links_.erase(value);
  charges_.erase(value);
  if (kind == HandleKind::library) library_images_.erase(value);
  if (kind == HandleKind::event) sharing_.event_gone(value);
  if (kind != HandleKind::stream) return;
  const auto found = streams_.find(value);
  if (found == streams_.end()) return;
  StreamState& gone = *found->second;
  // The driver finishes what the stream was given; nobody hears of it any more.
  completions_.abandon(gone, CUDA_SUCCESS);
  const std::uint64_t held = gone.full;
  turns_.forget(gone);
  order_.forget(gone);
  std::erase(gone.context->streams, &gone);
  streams_.erase(found);
  if (held != 0) order_.release(held);
}

std::size_t Session::list_size(std::uint64_t n) {
  if (n > limits::array_elements_max) throw ProtocolError("a list of " + std::to_string(n) + " elements");
  return static_cast<std::size_t>(n);
}

int Session::driver_ordinal(int ordinal) const {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= options_.devices.size()) return -1;
  return options_.devices[static_cast<std::size_t>(ordinal)];
}

// --- waiting --------------------------------------------------------------------------------------------------------------------

void Session::when_passed(StreamState& stream, Completions::Done done) {
  order_.after_stream(stream, [this, handle = stream.handle, id = stream.context->id, done = std::move(done)] {
    StreamState* const target = this->stream(handle, id);
    if (!target) {  // destroyed meanwhile
      completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, done);
    } else if (!target->dirty() && target->handle != 1) {
      completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, done);
    } else if (capturing(*target)) {
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
  order_.after_all([this, id = context.id, done = std::move(done)] {
    ContextState* const target = this->context(id);
    auto gather = std::make_shared<Gather>(done);
    for (ContextState* const one : target ? with_greens(*target) : std::vector<ContextState*>{}) {
      make_current(*one);
      for (StreamState* stream : one->streams) {
        if (!stream->dirty() || capturing(*stream)) continue;
        gather->add();
        completions_.after(*stream, Completions::Kind::signal, [gather](CUresult result) { gather->close(result); });
      }
    }
    completions_.soon(Completions::Kind::signal, CUDA_SUCCESS, [gather](CUresult result) { gather->close(result); });
  });
}

void Session::when_all_passed(Completions::Done done) {
  auto gather = std::make_shared<Gather>(std::move(done));
  for (const auto& [id, context] : contexts_) {
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
      deliver(address + offset, *copy, [copy] {});
    }
  });
}

void Session::deliver(std::uint64_t address, std::span<const std::byte> bytes, Output::Release release) {
  output_.control([&](wire::Control::Builder control) { control.initDeliver().setAddress(address); }, bytes, std::move(release));
}

void Session::call_client(std::uint64_t number, CUresult result, std::function<void()> done) {
  callbacks_[number] = std::move(done);
  output_.control([&](wire::Control::Builder control) {
    auto callback = control.initCallback();
    callback.setCallback(number);
    callback.setResult(result);
  });
}

void Session::call_part(std::uint64_t part, std::function<void()> done) {
  constexpr std::uint64_t ours = std::uint64_t{1} << 63;  // the client's numbers begin at 1
  const std::uint64_t number = ours | next_part_call_++;
  callbacks_[number] = std::move(done);
  output_.control([&](wire::Control::Builder control) {
    auto callback = control.initCallback();
    callback.setCallback(number);
    callback.setPart(part);
  });
}

bool Session::start_pull(const Wanted& wanted, std::function<void(std::vector<std::byte>)> done) {
  auto charge = HostCharge::take(host_budget_, wanted.bytes);
  if (!charge) return false;
  const std::uint64_t id = next_pull_++;
  pulls_[id] = {{}, wanted.bytes, std::move(*charge), std::move(done)};
  output_.control([&](wire::Control::Builder control) {
    auto pull = control.initPull();
    pull.setPull(id);
    pull.setAddress(wanted.address);
    pull.setBytes(wanted.bytes);
    pull.setPart(wanted.part);
  });
  return true;
}

void Session::deliver_part(std::uint64_t part) {
  const std::span<const std::byte> staging = graph_parts_.staging(part);
  for (std::size_t at = 0; at < staging.size(); at += limits::bulk_bytes_max) {
    const auto bytes = staging.subspan(at, std::min(limits::bulk_bytes_max, staging.size() - at));
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());  // the next launch may write there meanwhile
    output_.control(
        [&](wire::Control::Builder control) {
          auto deliver = control.initDeliver();
          deliver.setAddress(at);
          deliver.setPart(part);
        },
        *copy, [copy] {});
  }
}

void Session::release_part(std::uint64_t part) {
  if (part == 0) return;
  output_.control([&](wire::Control::Builder control) { control.initReleased().setPart(part); });
}

// The driver has no graph any more that needs these parts.
bool Session::collect_parts() {
  const auto gone = graph_parts_.gone();
  for (const std::uint64_t part : gone) {
    if (const Handle object = user_objects_.ended(part)) {
      handles_.forget(HandleKind::userobject, object);
      call_part(part, [] {});
    }
    if (!current_ && !contexts_.empty()) make_current(*contexts_.begin()->second);
    graph_parts_.erase(driver_, part);
    graph_memory_.released(part);
    release_part(part);
  }
  return !gone.empty();
}

AttendedGraph* Session::attended(std::uint64_t exec) {
  const auto found = attended_.find(exec);
  return found == attended_.end() ? nullptr : found->second.get();
}

std::uint64_t Session::context_handle(CUcontext context) const {
  for (const auto& [id, state] : contexts_)
    if (state->cuda == context || (state->whole && state->whole == context)) return Handle::from_id(HandleKind::context, id).value();
  return 0;
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
  return aside_reply(call, std::move(work),
                     [settle = std::move(settle)](CUresult result, MessageWriter&) { return settle(result); });
}

Outcome Session::aside_reply(Call& call, std::function<CUresult()> work,
                             std::function<CUresult(CUresult, MessageWriter&)> settle) {
  auto result = std::make_shared<CUresult>(CUDA_ERROR_UNKNOWN);
  const CUcontext cuda = current_ && call.id().context != 0 ? current_->cuda : nullptr;
  aside_.run(
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

// --- staging ------------------------------------------------------------------------------------------------------------------------

bool Session::make_staging() {
  if (staging_memory_) return true;
  if (!current_ && (contexts_.empty() || !make_current(*contexts_.begin()->second))) return false;
  void* memory = nullptr;
  if (driver_.cuMemHostAlloc(&memory, staging_in_bytes + staging_out_bytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) return false;
  staging_memory_ = memory;
  staging_context_ = current_;
  auto* const bytes = static_cast<std::byte*>(memory);
  staging_in_ = StagingRing({bytes, staging_in_bytes});
  staging_out_ = StagingRing({bytes + staging_in_bytes, staging_out_bytes});
  return true;
}

// Pinned memory dies with the context it was made in. Whatever still passes through it is of no use any more.
void Session::drop_staging(ContextState& context) {
  if (staging_context_ != &context) return;
  if (!ended_ && !send_rest()) throw ChannelClosed("the client does not read");
  driver_.cuMemFreeHost(staging_memory_);
  staging_memory_ = nullptr;
  staging_context_ = nullptr;
  staging_in_ = StagingRing();
  staging_out_ = StagingRing();
}

// The driver wants a context for what needs none of the client's. A program whose first call launches a kernel has none yet; the one that it
// will have is made a moment early.
bool Session::borrow_context() {
  if (current_) return false;
  if (!contexts_.empty()) return make_current(*contexts_.begin()->second);
  if (Partition* const part = partition(0)) return part->open() == CUDA_SUCCESS && driver_.cuCtxSetCurrent(part->cuda()) == CUDA_SUCCESS;
  CUcontext primary = nullptr;
  return driver_.cuDevicePrimaryCtxRetain(&primary, options_.devices.front()) == CUDA_SUCCESS &&
         driver_.cuCtxSetCurrent(primary) == CUDA_SUCCESS;
}

CUresult Session::layout(Handles::Entry& entry, bool kernel, FunctionLayout*& found) {
  found = entry.layout.get();
  if (found) return CUDA_SUCCESS;
  auto layout = std::make_shared<FunctionLayout>();
  for (std::size_t index = 0;; ++index) {
    std::size_t offset = 0, bytes = 0;
    const auto ask = [&] {
      return kernel ? driver_.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(entry.value), index, &offset, &bytes)
                    : driver_.cuFuncGetParamInfo(reinterpret_cast<CUfunction>(entry.value), index, &offset, &bytes);
    };
    CUresult result = ask();
    if (result == CUDA_ERROR_INVALID_CONTEXT && borrow_context()) result = ask();
    if (result == CUDA_ERROR_INVALID_VALUE) break;  // behind the last one
    // Fewer parameters than there are would have the driver read beyond them.
    if (result != CUDA_SUCCESS) return result;
    layout->parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(bytes)});
    layout->bytes = std::max(layout->bytes, static_cast<std::uint32_t>(offset + bytes));
  }
  entry.layout = std::move(layout);
  found = entry.layout.get();
  return CUDA_SUCCESS;
}

CUresult Session::hold_local(const Handles::Entry& entry, bool kernel, FunctionLayout& layout, ContextState* kernel_context) {
  if (layout.held_by != 0 && (!kernel || (kernel_context && kernel_context->driver_memory->number() == layout.held_by))) return CUDA_SUCCESS;
  // A function is of its module's context, wherever it is named.
  const Handles::Entry* const module = handles_.find(HandleKind::module, Handle(entry.owner));
  ContextState* owner = kernel ? kernel_context : context(module ? module->context : entry.context);
  if (!owner) owner = kernel_context;
  if (!owner || !current_) return CUDA_SUCCESS;  // as in a graph that is made without one: the driver says what it thinks of that
  if (!layout.local_bytes) {
    int bytes = 0;
    const CUresult result = kernel ? driver_.cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUkernel>(entry.value),
                                                                  driver_ordinal(owner->device))
                                   : driver_.cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUfunction>(entry.value));
    if (result != CUDA_SUCCESS) return CUDA_SUCCESS;  // the launch will say the same
    layout.local_bytes = static_cast<std::uint32_t>(std::max(bytes, 0));
  }
  const CUresult result = owner->driver_memory->hold_local(*layout.local_bytes);
  if (result == CUDA_SUCCESS) layout.held_by = owner->driver_memory->number();
  return result;
}

}  // namespace fargpu::server
