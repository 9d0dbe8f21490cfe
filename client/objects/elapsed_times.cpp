#include "elapsed_times.h"

#include <algorithm>
#include <cmath>

namespace fargpu::client {

// Threads that record at the same time may come in another order than their calls.
void ElapsedTimes::recorded(const Record& record) {
  const std::lock_guard lock(mutex_);
  if (!records_.empty() && record.call < records_.back().call) return;
  records_.push_back(record);
  if (records_.size() <= records_max) return;
  records_.pop_front();
  ++forgotten_;
}

std::optional<std::size_t> ElapsedTimes::place_of(const Record& record) const {
  const auto found = std::ranges::lower_bound(records_, record.call, {}, &Record::call);
  if (found == records_.end() || found->call != record.call || found->event != record.event) return std::nullopt;
  return forgotten_ + static_cast<std::size_t>(found - records_.begin());
}

std::optional<float> ElapsedTimes::ask(const Pair& pair, std::vector<Pair>& pairs) {
  pairs.assign(1, pair);
  const std::lock_guard lock(mutex_);
  const auto start = place_of(pair.start), end = place_of(pair.end);
  const std::optional<Places> before = asked_;
  asked_.reset();
  if (!start || !end) return std::nullopt;
  asked_ = {*start, *end};
  if (const auto known = known_.find({pair.start.call, pair.end.call}); known != known_.end()) return known->second;
  if (!before || *start <= before->start || *start - before->start != *end - before->end) return std::nullopt;
  const std::size_t step = *start - before->start;
  const std::size_t beyond = forgotten_ + records_.size();
  for (std::size_t ahead = step; pairs.size() < ahead_max && std::max(*start, *end) + ahead < beyond; ahead += step)
    pairs.push_back({records_[*start + ahead - forgotten_], records_[*end + ahead - forgotten_]});
  return std::nullopt;
}

void ElapsedTimes::learn(const std::vector<Pair>& pairs, const std::vector<float>& milliseconds) {
  const std::lock_guard lock(mutex_);
  known_.clear();
  for (std::size_t i = 0; i < std::min(pairs.size(), milliseconds.size()); ++i)
    if (!std::isnan(milliseconds[i])) known_[{pairs[i].start.call, pairs[i].end.call}] = milliseconds[i];
}

}  // namespace fargpu::client
