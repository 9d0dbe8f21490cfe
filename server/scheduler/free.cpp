// All at once: the GPU divides its time as it does by itself, and what is used is only reported.

#include "policy.h"

namespace fargpu::scheduler {
namespace {

class Free final : public Policy {
 public:
  const char* name() const override { return "free"; }
  bool takes_turns() const override { return false; }
  bool before(const LeaseUse& a, const LeaseUse& b) const override { return a.waiting_since < b.waiting_since; }
  Time length(const LeaseUse&, bool) const override { return never; }
};

}  // namespace

std::unique_ptr<Policy> make_free() { return std::make_unique<Free>(); }

}  // namespace fargpu::scheduler
