#include "connection_failures.h"

#include <algorithm>

namespace fargpu::server {

ConnectionFailures::Told ConnectionFailures::add(const std::string& name, Clock::time_point now) {
  if (!sources_.contains(name) && sources_.size() >= sources_max) forget(now);
  Source& source = sources_[name];
  if (source.count == 0 || now - source.since >= period) source = {now, 0};
  ++source.count;
  if (source.count == most_) return Told::shut_out;
  if (source.count < told_max) return Told::alone;
  return source.count == told_max ? Told::last : Told::not_any_more;
}

bool ConnectionFailures::shut_out(const std::string& name, Clock::time_point now) const {
  const auto found = sources_.find(name);
  return found != sources_.end() && found->second.count >= most_ && now - found->second.since < period;
}

// What is over, or, with so many sources at once, the one that began first: it is no worse than the others.
void ConnectionFailures::forget(Clock::time_point now) {
  std::erase_if(sources_, [&](const auto& entry) { return now - entry.second.since >= period; });
  if (sources_.size() < sources_max) return;
  sources_.erase(std::min_element(sources_.begin(), sources_.end(),
                                  [](const auto& a, const auto& b) { return a.second.since < b.second.since; }));
}

}  // namespace fargpu::server
