// One lease after the other, each for a quantum of time or until it has nothing to do.

#include "policy.h"

namespace fargpu::scheduler {
namespace {

class Exclusive final : public Policy {
 public:
  explicit Exclusive(Time quantum) : quantum_(quantum) {}
  const char* name() const override { return "exclusive"; }
  bool before(const LeaseUse& a, const LeaseUse& b) const override { return a.waiting_since < b.waiting_since; }
  Time length(const LeaseUse&, bool wanted) const override { return wanted ? quantum_ : never; }

 private:
  const Time quantum_;
};

}  // namespace

std::unique_ptr<Policy> make_exclusive(Time quantum) { return std::make_unique<Exclusive>(quantum); }

}  // namespace fargpu::scheduler
