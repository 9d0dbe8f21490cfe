#pragma once
// How turns are divided among the leases that want them: what differs between the policies.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "share.h"
#include "turn.h"

namespace fargpu::scheduler {

/// A lease's use of its devices, as the policies keep it.
struct LeaseUse {
  std::uint64_t lease = 0;
  Share share;
  Time waiting_since{0};  ///< while it wants a turn
  bool waiting = false;
  bool active = false;      ///< it has work, given to the devices or not
  double virtual_time = 0;  ///< fair: time used, by weight
  unsigned company = 1;     ///< fair: leases of the same owner that have work, with this one
  double weight() const { return static_cast<double>(share.weight) / company; }
  Time tokens{0};    ///< fixed: time that may be used; less than nothing is debt
  Time refilled{0};  ///< fixed: until when tokens were given
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;

  /// Whether a device is one lease's at a time.
  virtual bool takes_turns() const { return true; }
  virtual void joins(LeaseUse&, Time /*now*/) {}
  /// It begins to want after it had nothing to do; `others` are those that have.
  virtual void wakes(LeaseUse&, const std::vector<const LeaseUse*>& /*others*/, Time /*now*/) {}
  virtual void charge(LeaseUse&, Time /*used*/) {}
  /// Whether a turn is paid for also while nothing was given to the devices yet.
  virtual bool charges_whole_turns() const { return true; }
  /// Brings it up to the present.
  virtual void refresh(LeaseUse&, Time /*now*/) {}
  /// When it may have a turn, as far as its own limit goes.
  virtual Time ready(const LeaseUse&, Time now) const { return now; }
  /// Whether `a` comes before `b`, both wanting one.
  virtual bool before(const LeaseUse& a, const LeaseUse& b) const = 0;
  /// How long a turn is that others wait for, or, if nobody does (`wanted` false), `never` where there is no limit.
  virtual Time length(const LeaseUse& use, bool wanted) const = 0;
};

struct Rules {
  std::string policy = "fair";
  Time quantum = std::chrono::milliseconds(10);
  /// More than kernels usually take, or turns overlap and both are charged.
  Time grace = std::chrono::milliseconds(50);
};

/// Names of all policies.
const std::vector<std::string>& policies();
/// Null if there is none of this name.
std::unique_ptr<Policy> make_policy(const Rules& rules);

std::unique_ptr<Policy> make_free();
std::unique_ptr<Policy> make_fair(Time quantum);
std::unique_ptr<Policy> make_fixed(Time quantum);
std::unique_ptr<Policy> make_exclusive(Time quantum);

}  // namespace fargpu::scheduler
