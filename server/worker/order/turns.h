#pragma once
// The session's turns on its devices: which work may be given to the GPU now, and how long it takes.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "completions.h"
#include "server/scheduler/turn.h"
#include "server/worker/call/work_kind.h"
#include "server/worker/objects/captures.h"
#include "server/worker/objects/contexts.h"

namespace fargpu::server {

struct TurnOptions {
  /// Says what the session does, to the scheduler that grants turns;
  /// `number` is that of the last word heard, `since` when it became so. None:
  /// the session may always give work.
  std::function<void(const scheduler::Activity&, std::uint64_t number, scheduler::Time since)> tell;
  /// How long the GPU may be busy without completing anything; 0 for no limit.
  std::chrono::nanoseconds work_max{0};
  /// Whether the session must be told that it has a turn before it gives work.
  bool asks = false;
};

/// The work that the session gives is marked by events, one for each piece where turns end, and one now and then where
/// they do not. From them follows how long work of a kind takes, so that no more is given than begins before the turn
/// ends, and the GPU is never without work within it. All of it on the executor, but for hear().
class Turns {
 public:
  using Kind = WorkKind;
  static constexpr Kind unknown = work_kinds::unknown;

  /// `devices`: how many the session has.
  Turns(Contexts& contexts, const Captures& captures, Completions& completions, std::size_t devices,
        TurnOptions options);

  /// A message of the scheduler that grants turns. Any thread.
  void hear(const scheduler::Turn& turn);

  /// Whether any work may be given, whatever its kind, which then need not be told either.
  bool open() const { return turn_.quiet && waiting_.empty(); }
  /// Whether work may be given now. While this is true nothing waits.
  bool may_give(Kind kind);
  /// Runs `job`, which gives work of this kind, when it may; one after the other.
  void wait(Kind kind, std::function<void()> job);
  /// Work that is given from here on is of this kind; 0 if none is given that the GPU is busy with.
  void set_kind(Kind kind) { kind_ = kind; }
  /// Work was given to a stream, in whose context we are.
  void given(StreamState& stream);
  /// The stream is gone; nobody asks about its work any more.
  void forget(StreamState& stream);

  /// Does what is due; whether anything was.
  bool poll();
  /// When poll() has something to do if nothing else happens.
  std::chrono::nanoseconds due() const;

  /// Time for which devices had work of this session, by the session's ordinals.
  std::vector<std::uint64_t> busy_ns() const;
  std::uint64_t waited_ns() const;
  std::size_t waiting() const { return waiting_.size(); }
  /// Not empty: the GPU has completed nothing for longer than it may.
  const std::string& hung() const { return hung_; }

 private:
  using Time = scheduler::Time;
  struct Mark {
    StreamState* stream;
    int device;
    Kind kind;
    Time expected;
    Time given;
  };
  struct Waiting {
    Kind kind;
    std::function<void()> job;
  };
  struct Device {
    unsigned streams = 0;  // that have work
    Time since{0};
    Time used{0};
  };

  /// What is known of a kind of work.
  struct Known {
    Time took{0};
    unsigned seen = 0;   // how often, since it last took much longer than expected
    unsigned given = 0;  // pieces that are not complete
  };

  static Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }
  bool counted() const { return static_cast<bool>(options_.tell) || options_.work_max.count() > 0; }
  bool in_turn(Time at) const { return turn_.granted && at < turn_.until; }
  Time expected(Kind kind) const;
  bool trusted(Kind kind) const;
  Time left(Time at) const;
  Time next_look(Time at) const;
  void learn(Known& known, Time took);
  void mark(StreamState& stream, Time at);
  void passed(std::uint64_t id);
  void measure(Time at);
  void set_active(StreamState& stream, bool active, Time at);
  bool busy() const { return active_streams_ > 0; }
  bool take_word();
  bool mark_again(Time at);
  bool give_waiting();
  void tell(Time at);
  void say(const scheduler::Activity& activity, Time since);

  Contexts& contexts_;
  const Captures& captures_;
  Completions& completions_;
  const std::size_t device_count_;
  const TurnOptions options_;
  std::mutex word_mutex_;
  std::optional<scheduler::Turn> word_;
  scheduler::Turn turn_;
  scheduler::Activity told_;
  bool must_tell_ = false;
  Kind kind_ = unknown;
  bool giving_ = false;
  std::deque<Waiting> waiting_;
  Time waiting_since_{0};
  Time waited_{0};
  std::map<std::uint64_t, Mark> marks_;
  std::uint64_t next_mark_ = 1;
  Time ahead_{0};                     // of all marks
  std::vector<std::uint64_t> fired_;  // since they were last measured
  Time last_fired_{0};
  Time last_progress_{0};
  std::unordered_map<Kind, Known> known_;
  std::vector<StreamState*> unmarked_;  // that have work behind their last mark
  std::map<int, Device> devices_;
  unsigned active_streams_ = 0;
  Time idle_since_{0};
  std::string hung_;
};

}  // namespace fargpu::server
