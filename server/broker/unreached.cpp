#include "unreached.h"

namespace fargpu::server {

void Unreached::note(const std::string& address, const std::string& host, Clock::time_point now) {
  if (!hosts_.contains(address) && hosts_.size() >= addresses_max) hosts_.erase(hosts_.begin());
  auto& hosts = hosts_[address];
  if (hosts.contains(host) || hosts.size() < hosts_max) hosts[host] = now + remembered_for;
}

std::vector<std::string> Unreached::of(const std::string& address, Clock::time_point now) {
  std::vector<std::string> names;
  const auto place = hosts_.find(address);
  if (place == hosts_.end()) return names;
  std::erase_if(place->second, [&](const auto& host) { return host.second <= now; });
  for (const auto& [name, until] : place->second) names.push_back(name);
  if (names.empty()) hosts_.erase(place);
  return names;
}

}  // namespace fargpu::server
