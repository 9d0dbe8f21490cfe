#pragma once
// Learning when the GPU is done with something, without waiting for it.

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "driver_table.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// Whether what an event was recorded behind is done: CUDA_ERROR_NOT_READY while it is not. Asked again where it fails:
/// a failure of the work or of the device is said again, one of the question itself says nothing of the work, which may
/// still be under way.
CUresult query_event(DriverTable& driver, CUevent event);

/// Records an event at the present end of a stream and calls back when it has fired, from poll(). Used by the executor
/// only.
class Completions {
 public:
  using Done = std::function<void(CUresult)>;

  /// What a completion does. Releases give back what is the worker's own; deliveries send what the client is owed;
  /// signals tell it of the completion. No signal is given before every delivery that is complete at that time, so that
  /// a client that was told finds its bytes. Deliveries are made in the order in which they were asked for, so that of
  /// two for the same memory the later one stays.
  enum class Kind { release, delivery, signal };
  static constexpr std::size_t kinds = 3;

  /// How an event was recorded. Behind launches that the driver is still to be given it is recorded later: `later` is
  /// CUDA_ERROR_NOT_READY until then.
  struct Recorded {
    CUresult result = CUDA_SUCCESS;
    std::shared_ptr<std::atomic<CUresult>> later;
  };
  using Record = std::function<Recorded(StreamState&, CUevent)>;

  using Passed = std::function<void(CUevent, CUresult)>;
  /// `passed` hears, before anything is called back that the client hears of, of the last event that has fired in each
  /// context, or of an event of the program's, and of the first failure among those that it has not heard of.
  /// Deliveries and signals, which give the client something to read, wait for `room`.
  Completions(
      DriverTable& driver, Passed passed, Record record, std::function<bool()> room = [] { return true; })
      : driver_(driver), passed_(std::move(passed)), record_(std::move(record)), room_(std::move(room)) {}

  /// `done` gets the stream's result once everything submitted to it so far is complete. The stream must not be
  /// capturing, and its context must be current.
  void after(StreamState& stream, Kind kind, Done done);
  /// Calls `done` behind an event of the program's own, which must live until then. `handle`: the program's.
  void after_event(CUevent event, std::uint64_t handle, ContextState& context, Done done);
  /// The event is about to be recorded in a capture: what waits for it and has not happened is told
  /// CUDA_ERROR_CAPTURED_EVENT.
  void captured(std::uint64_t handle);
  /// Calls `done` at the next poll.
  void soon(Kind kind, CUresult result, Done done);

  /// Calls back what is complete. Looks at `streams_max` streams and as many events of the program at most, and goes on
  /// with the others the next time. Returns whether anything was.
  bool poll(std::size_t streams_max = ~std::size_t{0});
  bool empty() const { return queues_.empty() && events_.empty() && soon_.empty() && !held_up(); }
  /// Whether something is complete and waits for room. Until it has been called back nothing else may be done with the
  /// session.
  bool held_up() const { return !deliveries_.empty() || !signals_.empty(); }
  /// Whether the client waits to hear of something.
  bool wanted() const { return wanted_ + events_.size() > 0; }
  /// Whether something of the stream is being looked for.
  bool follow(StreamState& stream) const { return queues_.contains(&stream); }
  /// What waits.
  std::size_t size() const { return queued_ + events_.size() + soon_.size() + deliveries_.size() + signals_.size(); }

  /// The stream or context is gone: what waited for it is called back with this result.
  void abandon(StreamState& stream, CUresult result);
  void abandon(ContextState& context, CUresult result);

 private:
  struct Entry {
    CUevent event = nullptr;
    std::shared_ptr<std::atomic<CUresult>> later;
    std::uint64_t submitted = 0;
    std::uint64_t number = 0;
    Kind kind = Kind::signal;
    Done done;
  };
  struct Queue {
    std::deque<Entry> entries;
    std::size_t deliveries = 0;  // of these
  };
  using Queues = std::unordered_map<StreamState*, Queue>;
  struct EventEntry {
    CUevent event = nullptr;
    std::uint64_t handle = 0;
    ContextState* context = nullptr;
    Done done;
  };
  struct Ready {
    CUresult result;
    Done done;
    std::uint64_t number = 0;  // of its entry
  };
  using ReadyList = std::list<Ready>;  // an empty one costs nothing
  struct PassedEvent {
    ContextState* context;
    CUevent event;
    CUresult result;
  };

  CUresult query(CUevent event) { return query_event(driver_, event); }
  CUresult query(StreamState& stream, Entry& entry);
  CUresult take_event(ContextState& context, CUevent& event);
  bool sweep(Kind wanted, std::size_t streams_max);
  bool take_complete(StreamState& stream, Queue& queue, Kind last_wanted, const std::array<ReadyList*, kinds>& ready);
  bool call_back(ReadyList& ready);
  template <class Taken>
  void take_events(Taken&& taken, std::optional<CUresult> result);
  bool look_at_events(std::size_t events_max);
  void note_passed(ContextState& context, CUevent event, CUresult result);
  CUresult forget_passed(ContextState& context);
  void tell_passed();

  DriverTable& driver_;
  const Passed passed_;
  const Record record_;
  const std::function<bool()> room_;
  Queues queues_;           // streams with something to wait for
  std::size_t queued_ = 0;  // in all of them
  std::uint64_t last_number_ = 0;
  std::size_t wanted_ = 0;                  // of these, what the client will hear of
  StreamState* next_ = nullptr;             // where to go on looking
  std::vector<PassedEvent> passed_events_;  // of which nobody has heard yet; they are not used again before that
  std::vector<EventEntry> events_;
  std::size_t next_event_ = 0;  // where to go on looking
  std::vector<std::pair<Kind, Ready>> soon_;
  ReadyList deliveries_, signals_;  // complete
};

}  // namespace fargpu::server
