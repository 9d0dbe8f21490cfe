#include "unreached.h"

namespace fargpu::server {

void Unreached::note(const std::string& machine, const std::string& host, Clock::time_point now) {
  if (!hosts_.contains(machine) && hosts_.size() >= machines_max) forget_old(now);
  if (!hosts_.contains(machine) && hosts_.size() >= machines_max) return;
  auto& hosts = hosts_[machine];
  if (hosts.contains(host) || hosts.size() < hosts_max) hosts[host] = now + remembered_for;
}

std::vector<std::string> Unreached::of(const std::string& machine, Clock::time_point now) {
  forget_old(now);
  std::vector<std::string> names;
  if (const auto place = hosts_.find(machine); place != hosts_.end())
    for (const auto& [name, until] : place->second) names.push_back(name);
  return names;
}

void Unreached::forget_old(Clock::time_point now) {
  for (auto& [machine, hosts] : hosts_) std::erase_if(hosts, [&](const auto& host) { return host.second <= now; });
  std::erase_if(hosts_, [](const auto& machine) { return machine.second.empty(); });
}

}  // namespace fargpu::server
