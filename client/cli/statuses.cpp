#include "statuses.h"

#include <algorithm>
#include <future>
#include <map>
#include <mutex>

#include "client/connect/control_connection.h"
#include "client/connect/pool_contacts.h"
#include "commands.h"

namespace fargpu::client::cli {

std::vector<nlohmann::ordered_json> statuses(const std::vector<PoolHost>& hosts, const Describe& describe) {
  using Json = nlohmann::ordered_json;
  std::mutex mutex;
  struct Asked {
    std::string name, identity;
    Json status;
  };
  const auto ask = [&](const PoolHost& host) {
    const std::string name = address_text(host);
    Json result;
    std::string identity;
    try {
      ControlConnection broker(host, ControlConnection::For::host);
      identity = broker.host_identity();
      broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                 [&](wire::Control::Reader control) {
                   const std::lock_guard lock(mutex);
                   result = describe(name, control.getStatus());
                 });
    } catch (const DialError& error) {
      result = {{"host", name}, {"error", error.what()}};
    }
    return Asked{name, identity, std::move(result)};
  };
  std::vector<std::future<Asked>> asked;
  for (const PoolHost& host : hosts) asked.push_back(std::async(ask, std::cref(host)));
  std::vector<Json> found;
  std::map<std::string, std::string> names;  // by identity
  for (std::future<Asked>& one : asked) {
    Asked host = one.get();
    const auto [first, fresh] = names.emplace(host.identity.empty() ? "at " + host.name : host.identity, host.name);
    if (fresh) found.push_back(std::move(host.status));
    else warn_of_twin(host.name, first->second);
  }
  return found;
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
