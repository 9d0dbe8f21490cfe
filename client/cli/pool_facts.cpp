#include "pool_facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "commands.h"
#include "protocol/text.h"
#include "statuses.h"
#include "tenant_facts.h"
#include "waiting.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;

Json describe_host(wire::PoolHost::Reader host, const char* state) {
  return {{"name", printable(host.getName().cStr())},
          {"address", printable(host.getAddress().cStr(), 300)},
          {"state", state},
          {"model", printable(host.getModel().cStr())},
          {"devices", host.getDevices()},
          {"free_devices", host.getFreeDevices()},
          {"memory_bytes", host.getMemoryBytes()},
          {"free_bytes", host.getFreeBytes()},
          {"leases", host.getLeases()},
          {"sessions_max", host.getSessionsMax()},
          {"version", printable(host.getVersion().cStr())}};
}

std::uint64_t number(const Json& object, const char* key) { return object[key].get<std::uint64_t>(); }

}  // namespace

Json describe_pool(wire::Status::Reader status, const Filter& filter) {
  if (!status.hasPool()) return nullptr;
  const auto pool = status.getPool();
  Json result{{"name", printable(pool.getName().cStr())},
              {"member", printable(pool.getMember().cStr())},
              {"placer", printable(pool.getPlacer().cStr())},
              {"trouble", printable(pool.getTrouble().cStr(), 512)},
              {"age_seconds", pool.getAgeSeconds()},
              {"more_hosts", pool.getMore()},
              {"all_hosts", pool.getHosts().size() + pool.getMore()}};
  for (const char* const list : {"hosts", "away"}) result[list] = Json::array();
  const auto add = [&](const char* list, Json host) {
    if (filter.shows_host(host["name"]) && filter.shows_model(host["model"])) result[list].push_back(std::move(host));
  };
  for (const auto host : pool.getHosts()) add("hosts", describe_host(host, host_state_text(host.getState())));
  for (const auto host : pool.getAway()) add("away", describe_host(host, "away"));
  result["waiting"] = describe_waiting(pool.getWaiting(), filter);
  result["tenants"] = Json::array();
  for (const auto tenant : pool.getTenants())
    if (filter.shows_tenant(printable(tenant.getName().cStr()))) {
      Json one = describe_tenant(tenant);
      Json told;
      for (const char* const key : {"name", "memory_bytes", "memory_limit_bytes", "compute_percent",
                                    "compute_limit_percent", "leases", "waiting", "weight"})
        told[key] = one[key];
      told["leases_limit"] = tenant.getSessionsLimit();
      result["tenants"].push_back(std::move(told));
    }
  return result;
}

bool shows(const Filter& filter, const Json& host) {
  const auto name = [&](const char* key) { return host.contains(key) && filter.shows_host(host[key]); };
  const Json& devices = host["devices"];
  const bool model = filter.model.empty() || std::any_of(devices.begin(), devices.end(), [&](const Json& device) {
                       return filter.shows_model(device["name"]);
                     });
  return model &&
         (name("host") || name("name") || (host.contains("pool") && filter.shows_host(host["pool"]["member"])));
}

std::vector<Json> only_shown(std::vector<Json> hosts, const Filter& filter) {
  std::vector<Json> shown;
  for (Json& host : hosts) {
    if (host.contains("error") || shows(filter, host)) {
      shown.push_back(std::move(host));
    } else if (host.contains("pool")) {
      Json member{{"host", host["host"]}, {"name", host["name"]}};
      for (const char* const list : {"devices", "sessions", "leases", "waiting"}) member[list] = Json::array();
      member["pool"] = std::move(host["pool"]);
      shown.push_back(std::move(member));
    }
  }
  return shown;
}

std::string nothing_shown(const std::vector<Json>& hosts, const Filter& filter) {
  return hosts.empty() ? "no host of FARGPU_POOL matches " + filter.hosts_text() + "\n" : "";
}

std::string pool_sums(const Json& pool, const Filter& filter) {
  std::uint64_t devices = 0, free_devices = 0, memory = 0, free = 0, leases = 0, serving = 0;
  for (const Json& host : pool["hosts"]) {
    devices += number(host, "devices");
    memory += number(host, "memory_bytes");
    leases += number(host, "leases");
    if (host["state"] != "serving") continue;  // what is free there, nobody gets
    ++serving;
    free_devices += number(host, "free_devices");
    free += number(host, "free_bytes");
  }
  const auto more = number(pool, "more_hosts"), all = number(pool, "all_hosts"), shown = pool["hosts"].size() + more;
  std::string text;
  const auto away = pool["away"].size();
  if (pool["hosts"].empty() && away == 0 && all > more)
    text = fmt::format("pool {}: no host matches {}; it has {}", pool["name"].get<std::string>(), filter.hosts_text(),
                       so_many(all, "host"));
  else
    text = fmt::format("pool {}: {} of {} serve, {} of {} free, {} of {} free, {}, {} waiting",
                       pool["name"].get<std::string>(), serving, so_many(pool["hosts"].size(), "host"), free_devices,
                       so_many(devices, "GPU"), memory_text(std::min(free, memory)), memory_text(memory),
                       so_many(leases, "lease"), pool["waiting"].size());
  if (const auto placer = pool["placer"].get<std::string>(); !placer.empty()) text += ", placed by " + placer;
  if (away != 0) text += fmt::format("; {} away", so_many(away, "host"));
  if (shown != all && !pool["hosts"].empty())
    text += fmt::format("; {} of {} shown", pool["hosts"].size(), so_many(all, "host"));
  if (more != 0) text += fmt::format("; {} more hosts are not told", more);
  text += "\n";
  return text + pool_trouble(pool);
}

std::string pool_trouble(const Json& pool) {
  const auto trouble = pool["trouble"].get<std::string>();
  if (trouble.empty()) return "";
  return fmt::format("  ! the registry is of no use to the host that was asked, and {}: {}\n",
                     number(pool, "all_hosts") == 0 && pool["away"].empty()
                         ? "nothing is known of the pool"
                         : fmt::format("this is what was so {} s ago", number(pool, "age_seconds")),
                     trouble);
}

std::vector<const Json*> pools_of(const std::vector<Json>& hosts) {
  std::vector<const Json*> pools;
  for (const Json& host : hosts) {
    if (!host.contains("pool")) continue;
    const Json& pool = host["pool"];
    const auto before = std::ranges::find_if(pools, [&](const Json* one) { return (*one)["name"] == pool["name"]; });
    if (before == pools.end()) pools.push_back(&pool);
    else if ((*before)->at("trouble") != "" && pool["trouble"] == "") *before = &pool;
  }
  return pools;
}

std::string pool_table(const Json& pool, const Filter& filter) {
  std::string text = pool_sums(pool, filter);
  if (!pool["hosts"].empty() || !pool["away"].empty())
    text += fmt::format("  {:<24} {:<10} {:<24} {:>9} {:>22} {:>7}  {}\n", "host", "state", "model", "GPUs free",
                        "memory free", "leases", "address");
  for (const char* const list : {"hosts", "away"})
    for (const Json& host : pool[list])
      text += fmt::format(
          "  {:<24.24} {:<10} {:<24.24} {:>9} {:>22} {:>7}  {}\n", host["name"].get<std::string>(),
          host["state"].get<std::string>(), host["model"].get<std::string>(),
          fmt::format("{} of {}", number(host, "free_devices"), number(host, "devices")),
          fmt::format("{} of {}", memory_text(std::min(number(host, "free_bytes"), number(host, "memory_bytes"))),
                      memory_text(number(host, "memory_bytes"))),
          number(host, "leases"), host["address"].get<std::string>());
  return text + waiting_text(pool["waiting"], Wishes::told);
}

}  // namespace fargpu::client::cli
