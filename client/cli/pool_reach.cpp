#include "pool_reach.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "client/connect/placement.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

constexpr std::size_t at_once = 32;
constexpr auto begin_within = std::chrono::seconds(10);

// Nothing if it answers.
std::optional<Reach::Silent> try_to_reach(const PoolMember& member) {
  std::string error;
  const auto hosts = parse_pool(member.address, error, "its address");
  if (hosts.size() != 1)
    return Reach::Silent{member, error.empty() ? "its address is none of a host" : error, "correct its pool_address"};
  try {
    Placement::Part part;
    part.host = hosts.front();
    part.identity = member.identity;
    connect_to_part(part, ControlConnection::For::host);
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
  const auto until = std::chrono::steady_clock::now() + begin_within;
  const auto work = [&] {
    std::unique_lock lock(mutex);
    while (result.tried < members.size() && std::chrono::steady_clock::now() < until) {
      const PoolMember& member = members[result.tried++];
      lock.unlock();
      auto silent = try_to_reach(member);
      lock.lock();
      if (silent) result.silent.push_back(std::move(*silent));
    }
  };
  std::vector<std::future<void>> workers;
  for (std::size_t i = 0; i < std::min(at_once, members.size()); ++i)
    workers.push_back(std::async(std::launch::async, work));
  for (auto& worker : workers) worker.get();
  std::ranges::sort(result.silent, {}, [](const Reach::Silent& one) { return one.member.name; });
  return result;
}

}  // namespace fargpu::client::cli
