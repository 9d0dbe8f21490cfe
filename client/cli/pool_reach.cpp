#include "pool_reach.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>

#include "client/connect/placement.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

constexpr std::size_t at_once = 32;
constexpr auto begin_within = std::chrono::seconds(10);

// Empty if it answers.
std::string why_silent(const PoolMember& member) {
  std::string error;
  const auto hosts = parse_pool(member.address, error, "its address");
  if (hosts.size() != 1) return error.empty() ? "its address is none of a host" : error;
  try {
    const ControlConnection broker(hosts.front(), ControlConnection::For::host);
    return is_another(broker, member.identity) ? "another host answers there" : "";
  } catch (const std::exception& failure) {
    // What else it says is for somebody who has named that host.
    const std::string what = failure.what();
    return what.substr(0, what.find("; "));
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
      const std::string why = why_silent(member);
      lock.lock();
      if (!why.empty()) result.silent.push_back({member, why});
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
