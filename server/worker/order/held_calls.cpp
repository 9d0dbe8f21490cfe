#include "held_calls.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "calls_graph.capnp.h"
#include "operations.capnp.h"
#include "server/worker/session/session.h"

namespace fargpu::server {
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

void execute(Session& session, Parked& parked, bool answered = false) {
  Call again(parked.header, parked.message, parked.bulk);
  if (answered) again.set_answered();
  session.execute(*service_of(again.id().opcode), again);
}

bool is(const Call& call, Opcode opcode) { return call.id().opcode == static_cast<std::uint16_t>(opcode); }

/// Whether the program's call has returned: nothing that it does now may come first.
bool taken_for_done(Call& call) { return is(call, Opcode::copyIn) && call.in<wire::CopyIn>().getComplete(); }

/// Events that a launch itself records, by its attributes.
std::vector<std::uint64_t> recorded_by_launch(Call& call) {
  std::vector<std::uint64_t> events;
  if (!is(call, Opcode::launch)) return events;
  for (const auto attribute : call.in<wire::Launch>().getAttributes())
    if (attribute.getHandle() != 0) events.push_back(attribute.getHandle());
  return events;
}

/// The executable graph that a call launches; 0 if it launches none.
std::uint64_t launched(Call& call) { return is(call, Opcode::cuGraphLaunch) ? call.in<wire::CuGraphLaunch>().getHGraph() : 0; }

}  // namespace

bool HeldCalls::holds(const Service& service, Call& call) {
  StreamOrder& order = session_.order();
  if (!order.any()) return false;
  if (service.after_held) {
    park_behind_all(call);
    return true;
  }
  if (!service.stream_of) return false;
  StreamState* const target = session_.stream(service.stream_of(call), call.id().context);
  if (!target || session_.captures().capturing(*target)) return false;  // what is captured comes behind nothing
  const std::uint64_t event = service.event_of ? service.event_of(call) : 0;
  const std::uint64_t awaited = service.records_event ? 0 : event;
  auto before = order.before(*target, awaited);
  std::vector<std::uint64_t> recorded = recorded_by_launch(call);
  if (service.records_event) recorded.push_back(event);
  for (const std::uint64_t item : order.before_records(recorded)) before.push_back(item);
  // Launches of one executable graph come one after the other, on whatever streams.
  if (const std::uint64_t exec = launched(call); exec != 0 && order.launch_of(exec) != 0) before.push_back(order.launch_of(exec));
  if (before.empty()) return false;
  // What joins a capture is waited for: it cannot come behind what waits for the same thread.
  if (call.id().never_held && call.id().wants_reply && is(call, Opcode::cuStreamWaitEvent)) {
    session_.finish(call.id(), CUDA_ERROR_NOT_SUPPORTED);
    return true;
  }
  const std::uint64_t item = park(call, before, *target, std::move(recorded));
  if (awaited != 0) order.awaits(item, awaited);
  return true;
}

std::uint64_t HeldCalls::park(Call& call, const std::vector<std::uint64_t>& before, StreamState& stream,
                              std::vector<std::uint64_t> recorded_events) {
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) {
    session_.refuse(call, CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
  }
  session_.give_bulk(call);
  const std::uint64_t item = session_.order().enqueue(
      before, &stream, std::move(recorded_events), [this, parked] { execute(session_, *parked); }, launched(call));
  if (taken_for_done(call)) session_.order().hold_behind_copy(*stream.context, item);
  return item;
}

// Something is destroyed. Where the client cannot wait, it is told at once, as the driver would, which needs what it destroys no longer
// than until work has been submitted.
void HeldCalls::park_behind_all(Call& call) {
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) return session_.finish(call.id(), CUDA_ERROR_OUT_OF_MEMORY);
  const bool answered = call.id().wants_reply && call.id().never_held;
  if (answered) session_.finish(call.id(), CUDA_SUCCESS);
  session_.order().after_all([this, parked, answered] { execute(session_, *parked, answered); });
}

Outcome HeldCalls::park_behind(const std::vector<std::uint64_t>& items, Call& call, const std::vector<StreamState*>& streams) {
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t item = session_.order().enqueue(items, nullptr, {}, [this, parked] { execute(session_, *parked); });
  for (StreamState* stream : streams) session_.order().enqueue({item, stream->last_item}, stream, {}, [] {});
  return Outcome::later();
}

std::optional<Outcome> HeldCalls::behind_launches(Call& call, std::uint64_t exec) {
  const std::uint64_t launch = session_.order().launch_of(exec);
  if (launch == 0) return std::nullopt;
  return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind({launch}, call);
}

std::optional<Outcome> HeldCalls::behind_context(Call& call, ContextState& context) {
  const auto all = session_.contexts().with_greens(context);
  const auto items = session_.order().items([&](const StreamState* stream) {
    return !call.id().never_held || (stream && std::find(all.begin(), all.end(), stream->context) != all.end());
  });
  if (items.empty()) return std::nullopt;
  return park_behind(items, call);
}

std::optional<Outcome> HeldCalls::behind_copies(Call& call) {
  StreamOrder& order = session_.order();
  if (order.running()) return std::nullopt;
  const std::vector<std::uint64_t> items = order.copies();
  if (items.empty()) return std::nullopt;
  return park_behind(items, call);
}

std::optional<Outcome> HeldCalls::sets_limit(Call& call, const Limit& limit, int value, bool lowers) {
  if (session_.order().running()) return std::nullopt;  // it is the time now
  lowered_later_.erase(limit);
  if (!lowers) return std::nullopt;
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint32_t sequence = call.id().sequence;
  lowered_later_[limit] = {value, sequence};
  session_.order().after_all([this, parked, limit, sequence] {
    const auto last = lowered_later_.find(limit);
    if (last == lowered_later_.end() || last->second.call != sequence) return;  // set again since
    lowered_later_.erase(last);
    execute(session_, *parked, /*answered=*/true);
  });
  return CUDA_SUCCESS;
}

std::optional<int> HeldCalls::lowered_later(const Limit& limit) const {
  const auto found = lowered_later_.find(limit);
  return found == lowered_later_.end() ? std::nullopt : std::optional(found->second.value);
}

std::optional<Outcome> HeldCalls::behind_streams(Call& call, const std::vector<StreamState*>& streams) {
  StreamOrder& order = session_.order();
  if (order.any() && !order.running()) {
    std::vector<std::uint64_t> items;
    for (const StreamState* stream : streams)
      for (const std::uint64_t item : order.before(*stream, 0)) items.push_back(item);
    if (!items.empty()) return park_behind(items, call, streams);
  }
  for (StreamState* stream : streams) session_.taken_copies().catch_up(*stream);
  return std::nullopt;
}

std::optional<Outcome> HeldCalls::before_capture(Call& call, StreamState& stream) {
  StreamOrder& order = session_.order();
  if (order.any() && !order.running()) {
    const auto items = order.before_capture(stream);
    if (!items.empty()) return call.id().never_held ? Outcome(CUDA_ERROR_NOT_SUPPORTED) : park_behind(items, call, {&stream});
  }
  session_.taken_copies().catch_up(stream);
  return std::nullopt;
}

bool HeldCalls::waits_for_turn(const Service& service, Call& call) {
  StreamState* const target = session_.stream(service.stream_of(call), call.id().context);
  if (!target || session_.captures().capturing(*target)) return false;  // an error, or no work yet
  Turns& turns = session_.turns();
  const Turns::Kind kind = Turns::kind_of(call);
  if (turns.may_give(kind)) return false;
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) {
    session_.refuse(call, CUDA_ERROR_OUT_OF_MEMORY);
    return true;
  }
  session_.give_bulk(call);
  const bool hold = taken_for_done(call) && !session_.order().running();  // what was held back before is waited for already
  const std::uint64_t item = session_.order().postpone(*target, launched(call));
  if (!session_.order().running())  // else it has been known since it was held back
    for (const std::uint64_t event : recorded_by_launch(call)) session_.order().records(item, event);
  if (hold) session_.order().hold_behind_copy(*target->context, item);
  turns.wait(kind, [this, parked, item] { session_.order().resume(item, [this, parked] { execute(session_, *parked); }); });
  return true;
}

std::optional<Outcome> HeldCalls::behind_turn(Call& call, const std::vector<StreamState*>& streams) {
  Turns& turns = session_.turns();
  const Turns::Kind kind = Turns::kind_of(call);
  turns.set_kind(kind);
  if (turns.may_give(kind)) return std::nullopt;
  auto parked = copy_frame(session_.host_budget(), call);
  if (!parked) return CUDA_ERROR_OUT_OF_MEMORY;
  StreamOrder& order = session_.order();
  const bool running = order.running();  // then the streams wait for it already
  const std::uint64_t item = order.postpone(*streams.front(), 0);
  for (StreamState* stream : streams)
    if (!running && stream != streams.front()) order.enqueue({item}, stream, {}, [] {});
  turns.wait(kind, [this, parked, item] { session_.order().resume(item, [this, parked] { execute(session_, *parked); }); });
  return Outcome::later();
}

}  // namespace fargpu::server
