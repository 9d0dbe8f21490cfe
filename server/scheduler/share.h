#pragma once
// What of the devices a lease may use, next to others.

#include <string>
#include <vector>

namespace fargpu::scheduler {

constexpr unsigned weight_max = 10'000;
constexpr unsigned percent_max = 100;

/// While a lease of a higher one has work, those of lower ones are held back.
enum class Priority { best_effort, normal, critical };

struct Share {
  std::vector<int> devices;        ///< a turn is for all of them
  unsigned percent = percent_max;  ///< upper limit under the policy `fixed`; 100 is none
  unsigned weight = 1;             ///< against those of others under the policy `fair`
  std::string owner;               ///< of the weight, which its leases with work divide; empty: the lease's own
  Priority priority = Priority::normal;
  bool critical() const { return priority == Priority::critical; }
};

/// What is wrong with it, for a person; empty if nothing is.
inline std::string complaint(const Share& share) {
  if (share.percent < 1 || share.percent > percent_max)
    return "the share is " + std::to_string(share.percent) + "%; give 1 to 100";
  if (share.weight < 1 || share.weight > weight_max)
    return "the weight is " + std::to_string(share.weight) + "; give 1 to " + std::to_string(weight_max);
  return "";
}

}  // namespace fargpu::scheduler
