#pragma once
// What cannot be done yet and is tried again each time the executor comes round.

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

namespace fargpu::server {

/// Used by the executor only.
class Retries {
 public:
  /// `job` runs each round until it returns true.
  void add(std::function<bool()> job) { jobs_.push_back(std::move(job)); }
  bool empty() const { return jobs_.empty(); }

  /// Tries each once. Returns whether one succeeded.
  bool poll() {
    auto attempts = std::exchange(jobs_, {});  // one that succeeds may have others tried
    const bool progress = std::erase_if(attempts, [](const auto& attempt) { return attempt(); }) > 0;
    std::move(jobs_.begin(), jobs_.end(), std::back_inserter(attempts));
    jobs_.swap(attempts);
    return progress;
  }

 private:
  std::vector<std::function<bool()>> jobs_;
};

}  // namespace fargpu::server
