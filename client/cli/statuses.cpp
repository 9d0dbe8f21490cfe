#include "statuses.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "at_once.h"
#include "client/connect/pool_contacts.h"
#include "commands.h"

namespace fargpu::client::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Asked {
  std::string name, identity;
  Json status;
};

using Clock = std::chrono::steady_clock;

using Connect = std::function<std::unique_ptr<ControlConnection>(std::size_t host)>;

std::vector<Asked> ask(const std::vector<std::string>& names, const Connect& connect, const Describe& describe,
                       Clock::time_point until = Clock::time_point::max()) {
  std::vector<Asked> hosts(names.size());
  std::mutex mutex;
  const auto call = [&](std::size_t i) {
    Asked& own = hosts[i];
    own.name = names[i];
    try {
      const auto broker = connect(i);
      own.identity = broker->host_identity();
      broker->ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                  [&](wire::Control::Reader control) {
                    const std::lock_guard lock(mutex);
                    own.status = describe(*broker, control.getStatus());
                  });
    } catch (const DialError& error) {
      own.status = {{"host", own.name}, {"error", error.what()}};
    }
  };
  for (std::size_t i = at_once(names.size(), call, until); i < names.size(); ++i)
    hosts[i].status = {{"host", names[i]}, {"error", "it was not asked in time, as others do not answer"}};
  return hosts;
}

}  // namespace

std::vector<Json> statuses(const std::vector<PoolHost>& hosts, const Describe& describe, ControlConnection::For whom) {
  std::vector<std::string> addresses;
  for (const PoolHost& host : hosts) addresses.push_back(address_text(host));
  const auto connect = [&](std::size_t i) { return std::make_unique<ControlConnection>(hosts[i], whom); };
  std::vector<Json> found;
  std::map<std::string, std::string> seen;  // by identity
  for (Asked& host : ask(addresses, connect, describe)) {
    const auto [first, fresh] = seen.emplace(host.identity.empty() ? "at " + host.name : host.identity, host.name);
    if (fresh) found.push_back(std::move(host.status));
    else warn_of_twin(host.name, first->second);
  }
  return found;
}

std::vector<Json> statuses(const std::vector<PoolMember>& members, const Describe& describe) {
  std::vector<std::string> names;
  for (const PoolMember& member : members) names.push_back(member.name + " at " + member.address);
  std::vector<Json> found;
  const auto connect = [&](std::size_t i) { return connect_to(members[i]); };
  for (Asked& host : ask(names, connect, describe, Clock::now() + begin_within))
    found.push_back(std::move(host.status));
  return found;
}

const char* host_state_text(wire::HostState state) {
  return state == wire::HostState::DRAINING ? "draining" : state == wire::HostState::STOPPING ? "stopping" : "serving";
}

const char* residency_text(wire::SessionStatus::Reader session) {
  switch (session.getResidency()) {
    case wire::Residency::LEAVING: return "leaving";
    case wire::Residency::EVICTED: return "evicted";
    case wire::Residency::WAITING: return "waiting for memory";
    case wire::Residency::RETURNING: return "returning";
    default: return "running";
  }
}

int exit_code(const std::vector<nlohmann::ordered_json>& statuses) {
  return std::any_of(statuses.begin(), statuses.end(), [](const auto& host) { return host.contains("error"); })
             ? exit_own_error
             : 0;
}

}  // namespace fargpu::client::cli
