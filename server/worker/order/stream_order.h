#pragma once
// Work that cannot be given to the driver yet, because it comes behind something that only the client can do: a host
// function, or bytes still to be fetched. Nothing submitted to the GPU may depend on the client, so such work waits
// here.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// Items are pieces of work in the order in which they arrived. An item is done when it was given to the driver, or, if
/// it holds its stream, when each hold on it is released. An item waits for those before it on its stream, for those
/// the legacy stream's rule puts before it, and for the record of an event it waits for. While nothing is held all of
/// this costs one comparison. Used by the executor.
class StreamOrder {
 public:
  using Job = std::function<void()>;

  /// Whether anything is held back in the session.
  bool any() const { return !items_.empty(); }
  /// What is held back, and how often something waits for something.
  std::size_t waits() const { return items_.size() + followers_ + awaited_.size(); }
  /// Whether what runs now was held back.
  bool running() const { return running_ != 0; }

  /// The items that work on this stream (waiting for this event, if not 0) must wait for. Empty: it may go at once.
  std::vector<std::uint64_t> before(const StreamState& stream, std::uint64_t awaited_event) const;
  /// Those of them after which the stream is given something that must not be captured with what comes now.
  std::vector<std::uint64_t> before_capture(const StreamState& stream) const;
  /// Runs `job` when those items are done. `stream`: later work on it waits for this one; `recorded_events`: so does
  /// work that waits for one of those. `launched`: the executable graph that it launches, as this is now. Returns the
  /// new item.
  std::uint64_t enqueue(const std::vector<std::uint64_t>& items, StreamState* stream,
                        std::vector<std::uint64_t> recorded_events, Job job, std::uint64_t launched = 0);

  /// Runs `job` when those items are done; at once if there are none.
  void after(const std::vector<std::uint64_t>& items, Job job) {
    if (items.empty()) job();
    else enqueue(items, nullptr, {}, std::move(job));
  }
  /// Runs `job` when everything that is held back now is done; at once if nothing is. Work that waits for these events
  /// waits for it. `records_in`: the context of which it records all work; null if it records none.
  void after_all(Job job, std::vector<std::uint64_t> recorded_events = {}, const ContextState* records_in = nullptr);
  /// Runs `job` when an item is done; later work on all streams of the context waits for it. Returns the new item.
  std::uint64_t hold_context(ContextState& context, std::uint64_t item, Job job);
  /// Runs `job` when the last record of an event is done, if that is held back. `awaits`: later records of the event
  /// come behind it.
  void after_record(std::uint64_t event, Job job, bool awaits);
  /// The item is a copy that the program takes for done: it holds the context as hold_context does.
  void hold_behind_copy(ContextState& context, std::uint64_t item);
  /// Such copies that are held back.
  std::vector<std::uint64_t> copies() const;

  /// The item, if it is held back still, records the event, as those of enqueue() do.
  void records(std::uint64_t item, std::uint64_t event);
  /// The item, if it is held back still, waits for the event as it was recorded last: later records of it must come
  /// behind the item.
  void awaits(std::uint64_t item, std::uint64_t event);
  /// The item does nothing else than record its event.
  void only_records(std::uint64_t item);
  /// What runs now is such an item, and its event was recorded again since: it has nothing to do.
  bool superseded() const { return running_ != 0 && items_.at(running_).superseded; }
  /// Whether a record of the event was superseded that after_record() had jobs for, since this was asked last.
  bool take_superseded(std::uint64_t event) { return superseded_.erase(event) > 0; }
  /// The items that records of these events come behind, as the last record counts: waits for earlier records, and the
  /// record before, unless that is superseded by these.
  std::vector<std::uint64_t> before_records(std::vector<std::uint64_t> events);
  bool record_held(std::uint64_t event) const { return records_.contains(event); }
  /// The item that will record this event; 0 if none will.
  std::uint64_t record_of(std::uint64_t event) const {
    const auto found = records_.find(event);
    return found == records_.end() ? 0 : found->second;
  }

  /// The last launch of an executable graph that is held back and comes before what is done now; 0 if there is none.
  std::uint64_t launch_of(std::uint64_t exec) const;

  /// What is held back and comes before what is done now, by its stream, which may be null.
  std::vector<std::uint64_t> items(const std::function<bool(const StreamState*)>& which) const;

  /// Holds the stream from here on: later work on it waits until release(), and for what is held back on it already.
  /// Called by the work that holds it, when it runs.
  std::uint64_t hold(StreamState& stream);
  /// Holds the stream while the program does something, which gives the stream nothing. `function`: for
  /// leave_out_functions().
  std::uint64_t hold_for_program(StreamState& stream, bool function);
  /// Takes from `items` those that functions alone hold on this stream.
  void leave_out_functions(const StreamState& stream, std::vector<std::uint64_t>& items) const;
  /// Holds a place for work that is not given yet:
  /// what runs now, or, if nothing does, later work on `stream`, waits for
  /// it. `launched` as for enqueue().
  std::uint64_t postpone(StreamState& stream, std::uint64_t launched);
  /// Runs `job` in the place of an item that was held; the item is done then, unless the job holds it again.
  void resume(std::uint64_t item, Job job);
  /// An item of its own, on no stream, for others to wait for until release().
  std::uint64_t hold();
  void release(std::uint64_t item);

  /// The stream is gone.
  void forget(const StreamState& stream);

 private:
  struct Item {
    std::size_t waits_for = 0;
    std::vector<std::uint64_t> followers;
    Job job;
    StreamState* stream = nullptr;
    std::vector<std::uint64_t> events;   // that it records
    std::vector<std::uint64_t> awaited;  // that it waits for
    std::uint64_t launched = 0;
    const ContextState* records_in = nullptr;  // may be gone
    unsigned holders = 0;
    bool copy = false;        // that the program takes for done
    bool of_program = false;  // gives no stream anything
    bool function = false;
    bool only_records = false;
    bool superseded = false;
  };

  void drain();
  void run(std::uint64_t id);
  void finish(std::uint64_t id);
  bool supersede(std::uint64_t event);

  std::map<std::uint64_t, Item> items_;
  std::unordered_map<std::uint64_t, std::uint64_t> records_;   // event handle to the item that will record it
  std::set<std::uint64_t> superseded_;                         // events with such records
  std::set<std::pair<std::uint64_t, std::uint64_t>> awaited_;  // event handle and an item that waits for it
  std::unordered_map<std::uint64_t, std::uint64_t> launches_;  // executable graph to the last item that launches it
  std::size_t followers_ = 0;                                  // of all items
  std::uint64_t next_ = 1;
  std::uint64_t last_all_ = 0;  // the last item that waits for all before it
  std::uint64_t running_ = 0;   // the item whose job runs now
  std::set<std::uint64_t> ready_;
  bool draining_ = false;
};

}  // namespace fargpu::server
