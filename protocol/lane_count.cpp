#include "lane_count.h"

#include <algorithm>
#include <utility>

namespace fargpu {
namespace {

using namespace std::chrono_literals;

/// A measurement ends after so much of both, or after the longest time with the fewest bytes.
constexpr std::uint64_t bytes_enough = 16u << 20;
constexpr auto time_enough = 4ms;
constexpr std::uint64_t bytes_least = 4u << 20;
constexpr auto time_most = 60ms;
/// So many measurements, of which the median counts: others use the processors and the line too.
constexpr std::size_t measurements = 3;
/// Fewer lanes are as good if they carry so much of what more do; more are better if they carry so much of what fewer
/// do.
constexpr double as_good = 0.96;
constexpr double better = 1.08;
/// Between trials, in medians.
constexpr std::uint64_t trial_after = 64;

}  // namespace

void LaneCount::add() {
  std::vector<unsigned> levels;
  for (unsigned lanes = all_ + 1; lanes > 0; lanes /= 2) levels.push_back(lanes);
  levels_ = std::move(levels);
  ++all_;
  level_ = best_ = 0;
  rates_.clear();
  until_trial_ = 0;
  begin_measurement();
}

void LaneCount::begin_measurement() {
  measuring_ = false;
  took_ = {};
  bytes_ = 0;
}

void LaneCount::sent(std::uint64_t bytes, bool more, Clock::time_point now) {
  if (fixed_ || all_ < 2) return;
  if (measuring_) {
    bytes_ += bytes;
    took_ += now - since_;
  }
  measuring_ = more;
  since_ = now;
  if (bytes_ < bytes_least || took_ < time_enough || (bytes_ < bytes_enough && took_ < time_most)) return;
  rates_.push_back(static_cast<double>(bytes_) / std::chrono::duration<double>(took_).count());
  begin_measurement();
  if (rates_.size() < measurements) return;
  std::nth_element(rates_.begin(), rates_.begin() + measurements / 2, rates_.end());
  const double median = rates_[measurements / 2];
  rates_.clear();
  measured(median);
}

void LaneCount::measured(double rate) {
  const bool fewer = level_ > best_, on_trial = level_ != best_;
  if (on_trial && rate < (fewer ? as_good : better) * best_rate_) {
    level_ = best_;
    until_trial_ = trial_after;
    return;
  }
  const bool can_fewer = level_ + 1 < levels_.size(), can_more = level_ > 0;
  best_ = level_;
  best_rate_ = rate;
  if (on_trial) {
    until_trial_ = trial_after;
    if (fewer && can_fewer) ++level_;
    if (!fewer && can_more) --level_;
  } else if (until_trial_ > 0) {
    --until_trial_;
  } else if (can_fewer && (fewer_next_ || !can_more)) {
    fewer_next_ = false;
    ++level_;
  } else if (can_more) {
    fewer_next_ = true;
    --level_;
  }
}

}  // namespace fargpu
