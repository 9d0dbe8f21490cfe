#include "policy.h"

namespace fargpu::scheduler {

const std::vector<std::string>& policies() {
  static const std::vector<std::string> names{"free", "fair", "fixed", "exclusive"};
  return names;
}

std::unique_ptr<Policy> make_policy(const Rules& rules) {
  if (rules.policy == "free") return make_free();
  if (rules.policy == "fair") return make_fair(rules.quantum);
  if (rules.policy == "fixed") return make_fixed(rules.quantum);
  if (rules.policy == "exclusive") return make_exclusive(rules.quantum);
  return nullptr;
}

}  // namespace fargpu::scheduler
