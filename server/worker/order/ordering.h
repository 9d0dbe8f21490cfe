#pragma once
// When a call may be given to the driver, and what comes behind what. docs/internals/ordering.md has the questions one
// by one.

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "completions.h"
#include "driver_table.h"
#include "held_calls.h"
#include "launch_crew.h"
#include "server/worker/call/call.h"
#include "server/worker/call/dispatch.h"
#include "server/worker/call/executor.h"
#include "server/quota/host_budget.h"
#include "server/worker/objects/captures.h"
#include "server/worker/objects/contexts.h"
#include "stream_order.h"
#include "taken_copies.h"
#include "turns.h"

namespace fargpu::server {

/// An attribute that a function's launches are checked against.
using Limit = std::pair<CUfunction, CUfunction_attribute>;

struct OrderingOptions {
  TurnOptions turns;
  unsigned launch_threads = 0;
  std::size_t devices = 0;  ///< that the session has
};

/// While nothing is held back, no launch is with the launch crew and the turn is quiet, admitting a call costs a few
/// comparisons. Used by the executor only, but for hear_turn().
class Ordering {
 public:
  using Job = StreamOrder::Job;

  /// Whether something that was held back is being given to the driver now.
  bool running() const { return order_.running(); }

  /// `waker` tells the executor that a launch of the crew has failed.
  Ordering(DriverTable& driver, Contexts& contexts, Captures& captures, Completions& completions, HostBudget& budget,
           Waker& waker, Executor& executor, const OrderingOptions& options);

  // --- for the loop -------------------------------------------------------------------------------------------------

  /// Whether the call may be given to the driver now; its context is current then, and its stream has what must come
  /// first. If not it has been refused, or waits, and is executed when its time has come.
  bool admit(const Service& service, Call& call);
  /// The call that was admitted has been served.
  void served() { turns_.set_kind(Turns::unknown); }

  /// Answers for launches of the crew that the driver refused. Returns whether there were any.
  bool collect_launches();
  /// Does what is due; whether anything was.
  bool poll();
  /// When poll() has something to do if nothing else happens.
  std::chrono::nanoseconds due() const { return turns_.due(); }
  /// What is held back, and how often something waits for something.
  std::size_t waits() const { return order_.waits(); }
  /// Not empty: the GPU has completed nothing for longer than it may.
  const std::string& hung() const { return turns_.hung(); }
  std::vector<std::uint64_t> busy_ns() const { return turns_.busy_ns(); }
  std::uint64_t waited_ns() const { return turns_.waited_ns(); }
  /// A word of the broker about the session's turns. Any thread.
  void hear_turn(const scheduler::Turn& turn) { turns_.hear(turn); }

  // --- work ---------------------------------------------------------------------------------------------------------

  /// Work was given to a stream (by its handle, in the context being served), or to all streams of a context.
  void submitted(std::uint64_t stream_handle);
  void submitted(StreamState& stream);
  void submitted(ContextState& context);
  /// Before a stream is given work that was not admitted as a call: it gets what must come first.
  void catch_up(StreamState& stream) { taken_copies_.catch_up(stream); }

  /// Whether the crew is to make a plain launch of which nobody awaits the answer, while so many bytes wait to be read.
  bool crew_helps(const StreamState& stream, std::size_t unread_bytes) const;
  /// The place of the crew's next launch on a stream, to be filled and then given.
  Launch& next_launch(const StreamState& stream) { return crew_.next(stream); }
  void give_launch(StreamState& stream);
  /// Waits until the driver has what the crew was given on the stream, or at all.
  void wait_for_launches(const StreamState& stream) { crew_.wait_for(stream); }
  void wait_for_launches() { crew_.wait_for_all(); }
  /// Records an event behind what the stream was given.
  Completions::Recorded record(const StreamState& stream, CUevent event) { return crew_.record(stream, event); }

  /// A piece of a graph has no kind of its own. False if it may not be given now: `job` runs when it may.
  bool admit_piece(Job job);

  // --- what a call comes behind -------------------------------------------------------------------------------------
  // For services that find this out by themselves: the answer of a call that must wait, and is served again then, or
  // that cannot wait; nothing if it may go on.

  /// An executable graph is about to be changed: launches of it that are held back come first.
  std::optional<Outcome> behind_launches(Call& call, std::uint64_t exec);
  /// A context is about to go: everything that is held back comes first; or, for a client that cannot wait for others,
  /// what is held back on the context's own streams.
  std::optional<Outcome> behind_context(Call& call, ContextState& context);
  /// Work on several streams: comes behind what is held back on any of them, and later work on all of them behind it;
  /// and waits for the session's turn.
  std::optional<Outcome> behind_streams(Call& call, const std::vector<StreamState*>& streams);
  /// A stream is about to be captured: work that it was given before is no part of the capture, and would break it
  /// later.
  std::optional<Outcome> before_capture(Call& call, StreamState& stream);
  /// What held launches have taken from their call is about to be changed: everything that is held back comes first.
  std::optional<Outcome> behind_all(Call& call);
  /// Memory is about to be unmapped: copies into it that the program takes for done come first.
  std::optional<Outcome> behind_copies(Call& call);
  /// The call, with its bytes, which the session is charged for. None if there is no room to keep it.
  std::shared_ptr<HeldCall> copy(Call& call) { return held_calls_.copy(call); }
  /// A job that executes the call again, from the beginning. None if there is no room to keep it.
  Job keep(Call& call);
  /// A limit is about to be set. Launches that are held back may need more than a lower one: it is answered, and set
  /// behind them, unless it has been set again by then.
  std::optional<Outcome> sets_limit(Call& call, const Limit& limit, int value, bool lowers);
  /// What the program has set and the driver has not heard of yet.
  std::optional<int> lowered_later(const Limit& limit) const;

  // --- holding back -------------------------------------------------------------------------------------------------

  /// Whether anything is held back in the session, or on a stream.
  bool holding() const { return order_.any(); }
  bool holding(const StreamState& stream) const { return order_.any() && !order_.before(stream, 0).empty(); }
  /// Holds the stream from here on: later work on it waits until release(). Called by the work that holds it, when it
  /// runs.
  std::uint64_t hold(StreamState& stream) { return order_.hold(stream); }
  /// For a copy: if the program takes it for done, later work in the whole context waits.
  std::uint64_t hold_for_copy(StreamState& stream, bool taken_for_done);
  /// While the program does something, which gives the stream nothing. `function`: a function of the program does it,
  /// which the client runs behind those that it was told of before.
  std::uint64_t hold_for_program(StreamState& stream, bool function = false) {
    return order_.hold_for_program(stream, function);
  }
  /// An item of its own, on no stream, for others to come behind.
  std::uint64_t hold() { return order_.hold(); }
  void release(std::uint64_t item) { order_.release(item); }

  /// Runs `job` when what is held back now is done, at once if nothing is: what work on a stream would come behind,
  /// what a context's streams were given, all of it (work that waits for these events then waits for the job), or the
  /// record of an event.
  void after_stream(const StreamState& stream, Job job) {
    order_.after(order_.any() ? order_.before(stream, 0) : std::vector<std::uint64_t>{}, std::move(job));
  }
  /// `others`: also what is held back on no stream.
  void after_context(ContextState& context, Job job, bool others);
  void after_all(Job job, std::vector<std::uint64_t> recorded_events, const ContextState& records_in) {
    order_.after_all(std::move(job), std::move(recorded_events), &records_in);
  }
  void after_record(std::uint64_t event, Job job, bool awaits) { order_.after_record(event, std::move(job), awaits); }
  /// Runs `job` behind what is held back on the stream, of which there is something; later work on it comes behind the
  /// job.
  void defer(StreamState& stream, Job job);

  bool record_held(std::uint64_t event) const { return order_.record_held(event); }
  /// As StreamOrder's.
  bool take_superseded(std::uint64_t event) { return order_.take_superseded(event); }
  /// Runs `job` behind the record of an event that is held back, and all later work of the context behind that. False
  /// if no record is.
  bool hold_behind_record(ContextState& context, std::uint64_t event, Job job);

  /// The launch of a graph whose nodes wait for events, and record some; `behind`: an item that comes first, or 0;
  /// `exec`: the executable graph, if the driver's own instance is launched.
  struct GraphLaunch {
    std::vector<std::uint64_t> awaited;
    std::vector<std::uint64_t> recorded;
    std::uint64_t behind = 0;
    std::uint64_t exec = 0;
  };
  /// Runs `job`, which gives the graph, in its place on the stream.
  void enqueue(StreamState& stream, GraphLaunch launch, Job job);

  /// The program takes for done what the stream was given: no later work comes before it, on whatever stream.
  void take_for_done(StreamState& stream) { taken_copies_.mark(stream); }
  /// Takes for done also the held work that the stream will be given.
  void take_all_for_done(StreamState& stream);

  // --- ends ---------------------------------------------------------------------------------------------------------

  /// The client has destroyed the stream, whose handle is forgotten. The driver finishes what it was given.
  CUresult destroy_stream(StreamState& stream);
  /// The context goes, and its streams with it.
  void context_closes(ContextState& context);

 private:
  bool enter_context(const Service& service, const Call& call);
  void note_record(Call& call);
  bool comes_behind(const Service& service, Call& call);
  bool waits_for_turn(const Service& service, Call& call);
  std::optional<Outcome> behind_turn(Call& call, const std::vector<StreamState*>& streams);
  void give_in_turn(Turns::Kind kind, std::uint64_t item, std::shared_ptr<HeldCall> held);
  void park(const std::vector<std::uint64_t>& before, const Service& service, Call& call, StreamState& stream,
            std::vector<std::uint64_t> recorded, std::uint64_t awaited);
  void park_behind_all(Call& call);
  /// `streams`: later work on them comes behind it.
  Outcome park_behind(const std::vector<std::uint64_t>& items, Call& call,
                      const std::vector<StreamState*>& streams = {});
  void look_before_capture(StreamState& stream);
  void look_at_work_of(StreamState& stream);
  bool empty_full();
  CUresult end_stream(StreamState& stream, CUresult result);

  struct Lowered {
    int value = 0;
    std::uint32_t call = 0;  // that set it last
  };

  DriverTable& driver_;
  Contexts& contexts_;
  Captures& captures_;
  Completions& completions_;
  Executor& executor_;
  StreamOrder order_;
  HeldCalls held_calls_;
  TakenCopies taken_copies_;
  Turns turns_;
  std::map<Limit, Lowered> lowered_later_;
  // Streams (handle, context) of which the driver has enough.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> full_;
  LaunchCrew crew_;
};

inline bool Ordering::enter_context(const Service& service, const Call& call) {
  if (call.id().context == 0) return service.context != ContextNeed::current;
  ContextState* const wanted = contexts_.find(call.id().context);
  if (!wanted) return service.context == ContextNeed::none;
  return contexts_.make_current(*wanted);
}

inline bool Ordering::admit(const Service& service, Call& call) {
  if (captures_.concern_records() && service.recorded_events && !order_.running()) note_record(call);
  // What runs now in its place of the order has come behind it already.
  if (order_.any() && !order_.running() && comes_behind(service, call)) return false;
  if (!enter_context(service, call)) {
    executor_.refuse(call, call.id().context == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return false;
  }
  if (service.needs_turn && !turns_.open() && waits_for_turn(service, call)) return false;
  StreamState* const target =
      service.stream_of ? contexts_.stream(service.stream_of(call), call.id().context) : nullptr;
  if (crew_.busy() &&
      !(service.crew == CrewUse::always || (service.crew == CrewUse::awaited && call.id().wants_reply))) {
    if (target) crew_.wait_for(*target);
    else crew_.wait_for_all();
  }
  if (target) taken_copies_.catch_up(*target);
  // A wait that may have the stream join a capture, of which the client awaits the answer.
  if (target && service.awaited_event && call.id().wants_reply && captures_.any()) look_before_capture(*target);
  turns_.set_kind(service.needs_turn && !turns_.open()       ? kind_of(service, call)
                  : service.stream_of && !service.needs_turn ? 0
                                                             : Turns::unknown);
  return true;
}

}  // namespace fargpu::server
