// Never more than so many percent, also when others are idle, and no less if there is work for it. A bucket of time
// that fills at that rate: what a long kernel took too much is debt, and is waited for. Only work is charged: what a
// turn takes to begin would otherwise be missing from the percentage in each of many turns.

#include <algorithm>

#include "policy.h"

namespace fargpu::scheduler {
namespace {

constexpr int quanta_per_window = 5;
constexpr int saved_windows = 4;

class Fixed final : public Policy {
 public:
  explicit Fixed(Time quantum) : quantum_(quantum), window_(quantum * quanta_per_window) {}
  const char* name() const override { return "fixed"; }

  void joins(LeaseUse& use, Time now) override {
    use.tokens = burst(use);
    use.refilled = now;
  }
  bool charges_whole_turns() const override { return false; }
  void charge(LeaseUse& use, Time used) override {
    if (limited(use)) use.tokens -= used;
  }
  void refresh(LeaseUse& use, Time now) override {
    const Time passed = now - use.refilled;
    if (passed <= Time(0)) return;
    use.refilled = now;
    use.tokens += passed * use.share.percent / percent_max;
    // Time not used is lost, but not to one that had none only because others had their turn.
    const Time most = use.active ? saved_windows * window(use) : burst(use);
    use.tokens = std::min(use.tokens, most);
  }
  Time ready(const LeaseUse& use, Time now) const override {
    if (!limited(use)) return now;
    const Time enough = burst(use);  // few long turns: each costs a little at both ends
    if (use.tokens >= enough) return now;
    return now + (enough - use.tokens) * percent_max / use.share.percent + Time(1);
  }
  bool before(const LeaseUse& a, const LeaseUse& b) const override { return a.waiting_since < b.waiting_since; }
  Time length(const LeaseUse& use, bool wanted) const override {
    if (!limited(use)) return wanted ? quantum_ : never;
    // The bucket goes on filling meanwhile.
    const Time whole = std::max(use.tokens, Time(1)) * percent_max / (percent_max - use.share.percent);
    return wanted ? std::min(whole, quantum_) : whole;
  }

 private:
  static bool limited(const LeaseUse& use) { return use.share.percent < percent_max; }
  Time window(const LeaseUse& use) const { return window_ * use.share.percent / percent_max; }
  // No more than one turn, so that a second that begins with it is not far off.
  Time burst(const LeaseUse& use) const { return std::min(quantum_, window(use)); }

  const Time quantum_;
  const Time window_;
};

}  // namespace

std::unique_ptr<Policy> make_fixed(Time quantum) { return std::make_unique<Fixed>(quantum); }

}  // namespace fargpu::scheduler
