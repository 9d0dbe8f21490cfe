// Never more than so many percent, also when others are idle. A bucket of time that fills at that rate: what a long kernel took too
// much is debt, and is waited for.

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
  void charge(Account& account, Time used) override {
    if (limited(account)) account.tokens -= used;
  }
  void refresh(Account& account, Time now) override {
    const Time passed = now - account.refilled;
    if (passed <= Time(0)) return;
    account.refilled = now;
    account.tokens += passed * account.share.percent / percent_max;
    // Time not used is lost, but not to one that waits only because others have their turn.
    const Time most = account.waiting ? saved_windows * burst(account) : burst(account);
    account.tokens = std::min(account.tokens, most);
  }
  Time ready(const Account& account, Time now) const override {
    if (!limited(account)) return now;
    const Time enough = std::min(quantum_, burst(account)) / 2;
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
  Time burst(const Account& account) const { return window_ * account.share.percent / percent_max; }

  const Time quantum_;
  const Time window_;
};

}  // namespace

std::unique_ptr<Policy> make_fixed(Time quantum) { return std::make_unique<Fixed>(quantum); }

}  // namespace fargpu::scheduler
