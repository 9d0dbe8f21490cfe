#include "tenant_facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "protocol/limits.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;

// Years up to 9999, so that what a peer sends is a date.
constexpr std::uint64_t time_max = 253'402'300'799;

const char* text_of(wire::Priority priority) {
  return priority == wire::Priority::LATENCY_CRITICAL ? "latency-critical"
         : priority == wire::Priority::BEST_EFFORT    ? "best-effort"
                                                      : "normal";
}

const char* text_of(wire::Identity::Kind kind) {
  switch (kind) {
    case wire::Identity::Kind::NOTHING: return "nothing";
    case wire::Identity::Kind::TOKEN: return "token";
    case wire::Identity::Kind::CERTIFICATE: return "certificate";
    case wire::Identity::Kind::KEY: return "key";
    case wire::Identity::Kind::USER: return "user";
    default: return "";
  }
}

std::string of_limit(const std::string& used, std::uint64_t limit, const std::string& limit_text) {
  return used + " in use, " + (limit != 0 ? "of " + limit_text : "no limit");
}

}  // namespace

Json describe_tenant(wire::TenantStatus::Reader tenant) {
  Json devices = Json::array();
  for (const std::uint32_t device : tenant.getDevices()) {
    if (devices.size() == limits::devices_max) break;
    devices.push_back(device);
  }
  return {{"name", printable(tenant.getName().cStr())},
          {"memory_bytes", tenant.getMemoryBytes()},
          {"memory_limit_bytes", tenant.getMemoryLimitBytes()},
          {"compute_percent", tenant.getComputePercent()},
          {"compute_limit_percent", tenant.getComputeLimitPercent()},
          {"sessions", tenant.getSessions()},
          {"sessions_limit", tenant.getSessionsLimit()},
          {"leases", tenant.getLeases()},
          {"waiting", tenant.getWaiting()},
          {"priority", text_of(tenant.getPriority())},
          {"weight", tenant.getWeight()},
          {"devices", devices},
          {"host_memory_bytes", tenant.getHostMemoryBytes()},
          {"host_memory_limit_bytes", tenant.getHostMemoryLimitBytes()}};
}

std::vector<std::string> quota_lines(const Json& tenant) {
  const auto number = [&](const char* key) { return tenant[key].get<std::uint64_t>(); };
  std::string devices;
  for (const auto& device : tenant["devices"])
    devices += (devices.empty() ? "" : ", ") + std::to_string(device.get<std::uint32_t>());
  const std::uint64_t memory = number("memory_limit_bytes"), compute = number("compute_limit_percent"),
                      sessions = number("sessions_limit"), host_memory = number("host_memory_limit_bytes");
  return {
      "quota of memory: " + of_limit(memory_text(number("memory_bytes")), memory, memory_text(memory)),
      "quota of compute: " +
          of_limit(fmt::format("{}%", number("compute_percent")), compute, fmt::format("{}%", compute)),
      "quota of sessions: " + of_limit(std::to_string(number("sessions")), sessions, std::to_string(sessions)),
      "quota of host memory, for each lease: " +
          of_limit(memory_text(number("host_memory_bytes")), host_memory, memory_text(host_memory)),
      "devices that the tenant may use: " + (devices.empty() ? "all" : devices),
      "priority: at most " + tenant["priority"].get<std::string>(),
  };
}

std::string ClientIdentity::text() const {
  if (kind == "nothing") return "the host knows this client by nothing: it serves everybody";
  if (kind == "user") return fmt::format("the host knows this client by user {} of its machine", name);
  return fmt::format("the host knows this client by the {} '{}'", kind == "key" ? "shared key" : kind, name);
}

ClientIdentity read_identity(wire::Identity::Reader identity) {
  ClientIdentity known;
  known.kind = text_of(identity.getKind());
  known.name = printable(identity.getName().cStr());
  if (const std::uint64_t end = identity.getExpiresSeconds(); end != 0)
    known.expires = std::chrono::sys_seconds(std::chrono::seconds(std::min(end, time_max)));
  known.administrator = identity.getAdministrator();
  return known;
}

Json describe(const ClientIdentity& identity) {
  Json known{{"kind", identity.kind}, {"name", identity.name}};
  known["expires"] = identity.expires ? Json(site::time_text(identity.expires)) : Json(nullptr);
  known["administrator"] = identity.administrator;
  return known;
}

}  // namespace fargpu::client::cli
