// Shares by weight, of whatever time there is: the lease with the least use for its weight is next. No lease saves up:
// one that had nothing
// to do begins where those are that had. An owner's leases divide its weight, so that nobody gets more by having more
// of them.

#include <algorithm>

#include "policy.h"

namespace fargpu::scheduler {
namespace {

class Fair final : public Policy {
 public:
  explicit Fair(Time quantum) : quantum_(quantum) {}
  const char* name() const override { return "fair"; }

  void wakes(LeaseUse& use, const std::vector<const LeaseUse*>& others, Time) override {
    double from = highest_;  // nobody else has work: nobody is owed anything
    if (!others.empty()) {
      from = others.front()->virtual_time;
      for (const LeaseUse* other : others) from = std::min(from, other->virtual_time);
      // A short pause costs nothing: up to one turn may be made up for.
      from -= static_cast<double>(quantum_.count()) / use.weight();
    }
    use.virtual_time = std::max(use.virtual_time, from);
  }
  void charge(LeaseUse& use, Time used) override {
    use.virtual_time += static_cast<double>(used.count()) / use.weight();
    highest_ = std::max(highest_, use.virtual_time);
  }
  bool before(const LeaseUse& a, const LeaseUse& b) const override {
    return a.virtual_time != b.virtual_time ? a.virtual_time < b.virtual_time : a.waiting_since < b.waiting_since;
  }
  Time length(const LeaseUse&, bool wanted) const override { return wanted ? quantum_ : never; }

 private:
  const Time quantum_;
  double highest_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fair(Time quantum) { return std::make_unique<Fair>(quantum); }

}  // namespace fargpu::scheduler
