#include "scheduler.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fargpu::scheduler {
namespace {

bool overlap(const Share& a, const Share& b) {
  return std::any_of(a.devices.begin(), a.devices.end(), [&](int device) {
    return std::find(b.devices.begin(), b.devices.end(), device) != b.devices.end();
  });
}

Time after(Time now, Time length) { return length == never ? never : now + length; }

}  // namespace

bool Scheduler::Lease::wants() const {
  return std::any_of(sessions.begin(), sessions.end(), [](const auto& entry) { return entry.second.wants; });
}

bool Scheduler::Lease::busy() const {
  return std::any_of(sessions.begin(), sessions.end(), [](const auto& entry) { return entry.second.busy; });
}

Scheduler::Scheduler(const Rules& rules, Tell tell)
    : rules_(rules), policy_(make_policy(rules)), tell_(std::move(tell)) {
  if (!policy_) throw std::invalid_argument("no such policy: " + rules.policy);
}

void Scheduler::set_rules(const Rules& rules, Time now) {
  auto policy = make_policy(rules);
  if (!policy) throw std::invalid_argument("no such policy: " + rules.policy);
  settle(now);
  rules_ = rules;
  policy_ = std::move(policy);
  for (auto& [id, lease] : leases_) {
    lease.use.virtual_time = 0;
    policy_->joins(lease.use, now);
    // Turns of the old kind end; a session with work asks again.
    if (lease.holds()) end(lease, now);
    if (lease.wants()) wake(lease, now);
  }
  schedule(now);
}

void Scheduler::join(LeaseId id, const Share& share, Time now) {
  settle(now);
  Lease& lease = leases_[id];
  lease.use.lease = id;
  lease.use.share = share;
  lease.accounted = now;
  policy_->joins(lease.use, now);
  schedule(now);
}

void Scheduler::leave(LeaseId id, Time now) {
  settle(now);
  leases_.erase(id);
  schedule(now);
}

void Scheduler::change(LeaseId id, const Share& share, Time now) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return;
  settle(now);
  found->second.use.share = share;
  policy_->refresh(found->second.use, now);
  schedule(now);
}

Turn Scheduler::add_session(LeaseId id, SessionId session, Time now) {
  settle(now);
  Lease& lease = leases_.at(id);
  lease.sessions[session];
  schedule(now);
  return lease.told;
}

void Scheduler::remove_session(LeaseId id, SessionId session, Time now) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return;
  settle(now);
  found->second.sessions.erase(session);
  if (!found->second.wants()) found->second.use.waiting = false;
  schedule(now);
}

void Scheduler::report(LeaseId id, SessionId session, const Activity& activity, std::uint64_t number, Time since,
                       Time now) {
  const auto found = leases_.find(id);
  if (found == leases_.end() || !found->second.sessions.contains(session)) return;
  Lease& lease = found->second;
  Activity& known = lease.sessions[session];
  // Written before it heard of its turn: what it says of having nothing to do it will say again.
  if (number < lease.told.number && lease.holds() && !activity.wants && !activity.busy) return;
  const bool was_active = lease.active();
  // What it used began and ended when it says, not when the word arrived.
  const bool paid = pays(lease);
  const Activity before = std::exchange(known, activity);
  const bool changes = pays(lease) != paid;
  known = before;
  settle(changes ? std::clamp(since, lease.accounted, now) : now);
  known = activity;
  settle(now);
  if (activity.wants && !lease.use.waiting) wake(lease, now);
  if (!lease.wants()) lease.use.waiting = false;
  if (!was_active && lease.busy() && lease.holds()) {
    lease.started = now;
    if (!lease.use.waiting) wake(lease, now), lease.use.waiting = false;
  }
  schedule(now);
}

void Scheduler::wake(Lease& lease, Time now) {
  std::vector<const LeaseUse*> others;
  for (const auto& [id, other] : leases_)
    if (&other != &lease && other.active() && overlap(other.use.share, lease.use.share)) others.push_back(&other.use);
  lease.use.company = company(lease);
  if (!lease.busy()) policy_->wakes(lease.use, others, now);
  lease.use.waiting = true;
  lease.use.waiting_since = now;
}

Time Scheduler::tick(Time now) {
  settle(now);
  schedule(now);
  Time next = never;
  const auto at = [&](Time time) { next = std::min(next, std::max(time, now + Time(1))); };
  for (auto& [id, lease] : leases_) {
    if (lease.holds() && lease.told.until != never)
      at(now < lease.told.until ? lease.told.until : lease.told.until + rules_.grace);
    if (!lease.holds() && lease.wants()) {
      const Time when = ready(lease, now);
      if (when > now) at(when);
      if (may_be_stuck(lease) && !stuck(lease, now)) at(lease.use.waiting_since + stuck_max);
    }
  }
  return next;
}

std::optional<Scheduler::View> Scheduler::view(LeaseId id) const {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return std::nullopt;
  const Lease& lease = found->second;
  View view = lease.sums;
  view.share = lease.use.share;
  view.turn = lease.told;
  view.wants = lease.wants();
  view.busy = lease.busy();
  return view;
}

// Whether the time that passes is the lease's.
bool Scheduler::pays(const Lease& lease) const {
  return lease.busy() || (policy_->charges_whole_turns() && lease.holds() && lease.wants());
}

// Charges everybody up to now.
void Scheduler::settle(Time now) {
  for (auto& [id, lease] : leases_) {
    const Time passed = std::max(Time(0), now - lease.accounted);
    lease.accounted = std::max(now, lease.accounted);
    lease.use.active = lease.active();
    policy_->refresh(lease.use, now);
    if (pays(lease)) {
      if (policy_->takes_turns()) lease.use.company = company(lease);
      policy_->charge(lease.use, passed);
      lease.sums.charged += passed;
    }
    if (lease.wants() && !lease.holds()) lease.sums.waited += passed;
  }
}

void Scheduler::schedule(Time now) {
  end_turns(now);
  hold_back(now);
  grant_waiting(now);
  update_turns(now);
}

// Turns that are over. One whose time has come goes on, without interruption, if its lease would be the next again.
void Scheduler::end_turns(Time now) {
  for (auto& [id, lease] : leases_) {
    if (!lease.holds() || lease.told.until == never) continue;
    if (!lease.active()) {
      end(lease, now);
      continue;
    }
    if (now < lease.told.until) continue;
    if (next_again(lease, now)) {
      lease.started = now;
      ++lease.sums.turns;
      Turn turn = lease.told;
      turn.until = after(now, policy_->length(lease.use, wanted_by_others(lease, now)));
      say(lease, turn);
    } else if (!lease.busy()) {
      end(lease, now);
    } else if (now >= lease.told.until + rules_.grace) {
      ++lease.sums.overruns;
      lease.overran = true;
      end(lease, now);
    }
  }
}

// Whether it would have the next turn if it began to wait now.
bool Scheduler::next_again(Lease& lease, Time now) {
  if (!may_have_turn(lease, now) || held_back(lease, now)) return false;
  lease.use.waiting_since = now;
  const auto list = waiting(now);
  return std::none_of(list.begin(), list.end(), [&](const Lease* other) {
    return overlap(other->use.share, lease.use.share) && before(*other, lease, now);
  });
}

// Leases of lower priority give way to those of higher.
void Scheduler::hold_back(Time now) {
  for (auto& [id, lease] : leases_) {
    if (!lease.holds() || !held_back(lease, now)) continue;
    ++lease.sums.held_back;
    end(lease, now);
  }
}

void Scheduler::grant_waiting(Time now) {
  std::vector<const Lease*> reserved;
  for (Lease* lease : waiting(now)) {
    if (held_back(*lease, now) || !may_have_turn(*lease, now)) continue;
    bool free = std::none_of(reserved.begin(), reserved.end(),
                             [&](const Lease* other) { return overlap(other->use.share, lease->use.share); });
    for (auto& [id, holder] : leases_) {
      if (&holder == lease || !holder.holds() || !in_the_way(holder, *lease)) continue;
      if (!holder.active()) {
        end(holder, now);  // it has had nothing to do for a while
      } else {
        free = false;
        // Nobody waited until now.
        if (holder.told.until == never) {
          Turn turn = holder.told;
          turn.until = std::max(now, after(holder.started, policy_->length(holder.use, true)));
          say(holder, turn);
        }
      }
    }
    if (!free) {
      // A lease that needs several devices must not be passed over for ever by leases that need one.
      if (now - lease->use.waiting_since >= 2 * rules_.quantum) reserved.push_back(lease);
      continue;
    }
    lease->use.waiting = false;
    lease->overran = false;
    lease->started = now;
    ++lease->sums.turns;
    Turn turn;
    turn.granted = true;
    turn.until = after(now, policy_->length(lease->use, wanted_by_others(*lease, now)));
    turn.ahead = above(*lease) ? ahead_shallow : ahead_usual;
    say(*lease, turn);
  }
}

// A turn without a reason ends, and a lease that has company hears of it.
void Scheduler::update_turns(Time now) {
  for (auto& entry : leases_) {
    Lease& lease = entry.second;
    Turn turn = lease.told;
    const bool limited = policy_->length(lease.use, false) != never;
    const bool unhindered = !held_back(lease, now) && !limited;
    const bool others_wait = policy_->takes_turns() && wanted_by_others(lease, now);
    if (unhindered && (alone(lease) || (!policy_->takes_turns() && !mixed(lease)))) {
      turn = {.granted = true, .quiet = true, .until = never, .ahead = never};
    } else if (unhindered && !policy_->takes_turns()) {
      turn = {.granted = true, .quiet = false, .until = never, .ahead = above(lease) ? ahead_shallow : never};
    } else if (unhindered && lease.use.share.critical() && !lease.holds() &&
               std::none_of(leases_.begin(), leases_.end(), [&](const auto& known) {
                 const Lease& other = known.second;
                 return &other != &lease && other.use.share.critical() && overlap(other.use.share, lease.use.share);
               })) {
      // It need not ask: the others give way when it begins.
      turn = {.granted = true, .quiet = false, .until = never, .ahead = never};
    } else if (turn.granted) {
      if (turn.quiet) {
        // It has company now, and will say what it does.
        turn.quiet = false;
        lease.started = now;
      }
      if (limited && turn.until == never) {  // also one whose share was changed
        lease.started = now;
        turn.until = after(now, policy_->length(lease.use, others_wait));
      }
      turn.ahead = lease.use.share.critical() && turn.until == never ? never
                   : above(lease)                                    ? ahead_shallow
                                                                     : ahead_usual;
      if (!limited && !others_wait) turn.until = never;
    }
    if (!(turn == lease.told)) {
      if (turn.granted && !lease.holds()) {
        lease.started = now;
        lease.use.waiting = false;
        ++lease.sums.turns;
      }
      say(lease, turn);
    }
  }
}

void Scheduler::end(Lease& lease, Time now) {
  say(lease, Turn());
  if (lease.wants() || lease.busy()) {
    lease.use.waiting = lease.wants();
    lease.use.waiting_since = now;
  }
}

void Scheduler::say(Lease& lease, Turn turn) {
  turn.number = next_number_++;
  lease.told = turn;
  tell_(lease.use.lease, turn);
}

// Leases that compete for the time that one owner's weight stands for, this one among them.
unsigned Scheduler::company(const Lease& lease) const {
  const Share& share = lease.use.share;
  if (share.owner.empty()) return 1;
  return 1 + static_cast<unsigned>(std::count_if(leases_.begin(), leases_.end(), [&](const auto& entry) {
           const Lease& other = entry.second;
           return &other != &lease && other.active() && other.use.share.owner == share.owner &&
                  other.use.share.priority == share.priority && overlap(other.use.share, share);
         }));
}

// Whether `other` cannot have a turn while `holder` has one.
bool Scheduler::in_the_way(const Lease& holder, const Lease& other) const {
  if (!policy_->takes_turns() || !overlap(holder.use.share, other.use.share)) return false;
  // The latency-critical keep their turn when they have nothing to do.
  return holder.use.share.critical() == other.use.share.critical() || !holder.use.share.critical();
}

bool Scheduler::held_back(const Lease& lease, Time now) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    const Lease& other = entry.second;
    return other.use.share.priority > lease.use.share.priority &&
           (other.busy() || (other.wants() && (other.holds() || may_have_turn(other, now)))) &&
           overlap(other.use.share, lease.use.share);
  });
}

// Whether a lease beside it is of a higher priority.
bool Scheduler::above(const Lease& lease) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    const Share& other = entry.second.use.share;
    return other.priority > lease.use.share.priority && overlap(other, lease.use.share);
  });
}

// Whether one is of a higher or lower priority.
bool Scheduler::mixed(const Lease& lease) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    const Share& other = entry.second.use.share;
    return other.priority != lease.use.share.priority && overlap(other, lease.use.share);
  });
}

bool Scheduler::alone(const Lease& lease) const {
  return std::none_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    return &entry.second != &lease && overlap(entry.second.use.share, lease.use.share);
  });
}

bool Scheduler::wanted_by_others(const Lease& lease, Time now) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const auto& entry) {
    const Lease& other = entry.second;
    return &other != &lease && !other.holds() && other.wants() && may_have_turn(other, now) && !held_back(other, now) &&
           overlap(other.use.share, lease.use.share);
  });
}

Time Scheduler::ready(const Lease& lease, Time now) const {
  const Time own = policy_->ready(lease.use, now);
  return may_be_stuck(lease) ? std::min(own, std::max(now, lease.use.waiting_since + stuck_max)) : own;
}

// Whether what it gave may be waiting for what it may not give.
bool Scheduler::may_be_stuck(const Lease& lease) const {
  return lease.overran && lease.wants() && lease.busy() && !lease.holds();
}

bool Scheduler::stuck(const Lease& lease, Time now) const {
  return may_be_stuck(lease) && now >= lease.use.waiting_since + stuck_max;
}

bool Scheduler::may_have_turn(const Lease& lease, Time now) const { return ready(lease, now) <= now; }

bool Scheduler::before(const Lease& a, const Lease& b, Time now) const {
  if (stuck(a, now) != stuck(b, now)) return stuck(a, now);
  if (a.use.share.priority != b.use.share.priority) return a.use.share.priority > b.use.share.priority;
  return policy_->before(a.use, b.use);
}

std::vector<Scheduler::Lease*> Scheduler::waiting(Time now) {
  std::vector<Lease*> list;
  for (auto& [id, lease] : leases_)
    if (!lease.holds() && lease.wants() && may_have_turn(lease, now)) list.push_back(&lease);
  std::stable_sort(list.begin(), list.end(), [&](const Lease* a, const Lease* b) { return before(*a, *b, now); });
  return list;
}

}  // namespace fargpu::scheduler
