#pragma once
// Which lease may give work to which devices, and until when. A machine without threads, clocks or sockets:
// it is told what happens and when,
// and says what follows.

#include <functional>
#include <map>
#include <optional>

#include "policy.h"

namespace fargpu::scheduler {

using LeaseId = std::uint64_t;
using SessionId = std::uint64_t;

/// A turn is all sessions' and all devices' of a lease, or nobody's. It ends when the lease has nothing to do, or when
/// its time is over and what it gave is complete. A lease whose work goes on is waited for no longer than the grace:
/// then the next have their turn, the GPU divides itself between the two, and both are charged; so work that waits for
/// other work of its lease, which has no turn, gets there in the lease's next turn.
class Scheduler {
 public:
  /// `tell` hears what all sessions of a lease may do, from now on.
  using Tell = std::function<void(LeaseId, const Turn&)>;
  Scheduler(const Rules& rules, Tell tell);

  const Rules& rules() const { return rules_; }
  /// Puts the leases under other rules; what they are owed is forgotten. `rules.policy` must be one of policies().
  void set_rules(const Rules& rules, Time now);

  void join(LeaseId lease, const Share& share, Time now);
  void leave(LeaseId lease, Time now);
  void change(LeaseId lease, const Share& share, Time now);
  /// A session is part of a lease from here on. What it may do is returned, and told from then on.
  Turn add_session(LeaseId lease, SessionId session, Time now);
  void remove_session(LeaseId lease, SessionId session, Time now);
  /// What a session does now; `number` is that of the last word it had heard, `since` when it became so.
  void report(LeaseId lease, SessionId session, const Activity& activity, std::uint64_t number, Time since, Time now);

  /// Does what is due. When it must be called again, unless something happens before; `never` if not.
  Time tick(Time now);

  struct View {
    Share share;
    Turn turn;
    bool wants = false;
    bool busy = false;
    Time charged{0};  ///< for turns, and what went on after their end; under `fixed` for work alone
    Time waited{0};   ///< with work and without a turn
    std::uint64_t turns = 0;
    std::uint64_t overruns = 0;
    std::uint64_t held_back = 0;  ///< how often a lease of higher priority took its turn away
  };
  std::optional<View> view(LeaseId lease) const;

  /// A lease whose work goes on, and that waits, has a turn after this at the latest, whatever it owes: the work may
  /// wait for that.
  static constexpr Time stuck_max = std::chrono::milliseconds(500);

 private:
  struct Lease {
    LeaseUse use;
    std::map<SessionId, Activity> sessions;
    Turn told;
    Time started{0};  // of its turn
    Time accounted{0};
    bool overran = false;  // its turn was taken away while it was busy
    View sums;
    bool wants() const;
    bool busy() const;
    bool active() const { return wants() || busy(); }
    bool holds() const { return told.granted; }
  };

  bool pays(const Lease& lease) const;

  void settle(Time now);
  void schedule(Time now);
  void end_turns(Time now);
  bool next_again(Lease& lease, Time now);
  void hold_back(Time now);
  void grant_waiting(Time now);
  void update_turns(Time now);
  void end(Lease& lease, Time now);
  void say(Lease& lease, Turn turn);
  unsigned company(const Lease& lease) const;
  bool in_the_way(const Lease& holder, const Lease& other) const;
  bool held_back(const Lease& lease, Time now) const;
  bool above(const Lease& lease) const;
  bool mixed(const Lease& lease) const;
  bool alone(const Lease& lease) const;
  bool wanted_by_others(const Lease& lease, Time now) const;
  bool may_have_turn(const Lease& lease, Time now) const;
  Time ready(const Lease& lease, Time now) const;
  bool may_be_stuck(const Lease& lease) const;
  bool stuck(const Lease& lease, Time now) const;
  bool before(const Lease& a, const Lease& b, Time now) const;
  std::vector<Lease*> waiting(Time now);
  void wake(Lease& lease, Time now);

  Rules rules_;
  std::unique_ptr<Policy> policy_;
  const Tell tell_;
  std::map<LeaseId, Lease> leases_;
  std::uint64_t next_number_ = 1;
};

}  // namespace fargpu::scheduler
