#include "pool_reach.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "at_once.h"
#include "client/connect/placement.h"

namespace fargpu::client::cli {
namespace {

// Nothing if it answers.
std::optional<Reach::Silent> try_to_reach(const PoolMember& member) {
  if (!member.host) return Reach::Silent{member, member.unfit, "have its pool_address corrected"};
  try {
    connect_to(member);
    return std::nullopt;
  } catch (const DialError& failure) {
    // What else it says is for somebody who has named that host.
    const std::string what = failure.what();
    return Reach::Silent{member, what.substr(0, what.find("; ")), unreached_repair(failure)};
  } catch (const std::exception& failure) {
    return Reach::Silent{member, failure.what(), "try again"};
  }
}

}  // namespace

Reach reach(const std::vector<PoolMember>& members) {
  Reach result;
  std::mutex mutex;
  const auto call = [&](std::size_t i) {
    if (auto silent = try_to_reach(members[i])) {
      const std::lock_guard lock(mutex);
      result.silent.push_back(std::move(*silent));
    }
  };
  result.tried = at_once(members.size(), call, std::chrono::steady_clock::now() + begin_within);
  std::ranges::sort(result.silent, {}, [](const Reach::Silent& one) { return one.member.name; });
  return result;
}

}  // namespace fargpu::client::cli
