// Never more than so many percent, also when others are idle, and no less if there is work for it. A bucket of time that fills at that
// rate: what a long kernel took too much is debt, and is waited for. Only work is charged: what a turn takes to begin would otherwise be
// missing from the percentage in each of many turns.

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

  void joins(Account& account, Time now) override {
    account.tokens = burst(account);
    account.refilled = now;
  }
  bool charges_whole_turns() const override { return false; }
  void charge(Account& account, Time used) override {
    if (limited(account)) account.tokens -= used;
  }
  void refresh(Account& account, Time now) override {
    const Time passed = now - account.refilled;
    if (passed <= Time(0)) return;
    account.refilled = now;
    account.tokens += passed * account.share.percent / percent_max;
    // Time not used is lost, but not to one that had none only because others had their turn.
    const Time most = account.active ? saved_windows * window(account) : burst(account);
    account.tokens = std::min(account.tokens, most);
  }
  Time ready(const Account& account, Time now) const override {
    if (!limited(account)) return now;
    const Time enough = burst(account);  // few long turns: each costs a little at both ends
    if (account.tokens >= enough) return now;
    return now + (enough - account.tokens) * percent_max / account.share.percent + Time(1);
  }
  bool before(const Account& a, const Account& b) const override { return a.waiting_since < b.waiting_since; }
  Time length(const Account& account, bool wanted) const override {
    if (!limited(account)) return wanted ? quantum_ : never;
    // The bucket goes on filling meanwhile.
    const Time whole = std::max(account.tokens, Time(1)) * percent_max / (percent_max - account.share.percent);
    return wanted ? std::min(whole, quantum_) : whole;
  }

 private:
  static bool limited(const Account& account) { return account.share.percent < percent_max; }
  Time window(const Account& account) const { return window_ * account.share.percent / percent_max; }
  // No more than one turn, so that a second that begins with it is not far off.
  Time burst(const Account& account) const { return std::min(quantum_, window(account)); }

  const Time quantum_;
  const Time window_;
};

}  // namespace

std::unique_ptr<Policy> make_fixed(Time quantum) { return std::make_unique<Fixed>(quantum); }

}  // namespace fargpu::scheduler
