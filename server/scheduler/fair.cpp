// Shares by weight, of whatever time there is: who has used least for its weight is next. Nobody saves up: a lease that had nothing
// to do begins where those are that had. An owner's leases divide its weight, so that nobody gets more by having more of them.

#include <algorithm>

#include "policy.h"

namespace fargpu::scheduler {
namespace {

class Fair final : public Policy {
 public:
  explicit Fair(Time quantum) : quantum_(quantum) {}
  const char* name() const override { return "fair"; }

  void wakes(Account& account, const std::vector<const Account*>& others, Time) override {
    double from = highest_;  // nobody else has work: nobody is owed anything
    if (!others.empty()) {
      from = others.front()->virtual_time;
      for (const Account* other : others) from = std::min(from, other->virtual_time);
      // A short pause costs nothing: up to one turn may be made up for.
      from -= static_cast<double>(quantum_.count()) / account.weight();
    }
    account.virtual_time = std::max(account.virtual_time, from);
  }
  void charge(Account& account, Time used) override {
    account.virtual_time += static_cast<double>(used.count()) / account.weight();
    highest_ = std::max(highest_, account.virtual_time);
  }
  bool before(const Account& a, const Account& b) const override {
    return a.virtual_time != b.virtual_time ? a.virtual_time < b.virtual_time : a.waiting_since < b.waiting_since;
  }
  Time length(const Account&, bool wanted) const override { return wanted ? quantum_ : never; }

 private:
  const Time quantum_;
  double highest_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fair(Time quantum) { return std::make_unique<Fair>(quantum); }

}  // namespace fargpu::scheduler
