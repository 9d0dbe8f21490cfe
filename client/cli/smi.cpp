// `fargpu smi`: the devices of a pool's hosts as programs see them through NVML, in tables of 80 columns.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "client/connect/host_report.h"
#include "commands.h"
#include "pool_facts.h"
#include "protocol/text.h"
#include "statuses.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;
using Kind = wire::Reading::Kind;

struct NamedReading {
  const char* name;
  Kind kind;
};
constexpr NamedReading readings[] = {{"utilisation_percent", Kind::GPU_UTILISATION},
                                     {"memory_utilisation_percent", Kind::MEMORY_UTILISATION},
                                     {"temperature_celsius", Kind::TEMPERATURE},
                                     {"power_milliwatts", Kind::POWER},
                                     {"power_limit_milliwatts", Kind::POWER_LIMIT_ENFORCED},
                                     {"sm_clock_mhz", Kind::SM_CLOCK},
                                     {"memory_clock_mhz", Kind::MEMORY_CLOCK},
                                     {"fan_percent", Kind::FAN_SPEED}};

Json describe(const report::Device& device, std::size_t number) {
  Json out{{"number", number},
           {"name", printable(device.name)},
           {"uuid", device.uuid},
           {"pci", fmt::format("{:08x}:{:02x}:{:02x}.0", device.pci_domain, device.pci_bus, device.pci_device)},
           {"compute_capability", fmt::format("{}.{}", device.compute_capability / 10, device.compute_capability % 10)},
           {"memory_bytes", device.memory_bytes},
           {"used_bytes", device.used_bytes}};
  for (const auto& [name, kind] : readings) {
    const auto value = device.reading(kind);
    out[name] = value ? Json(*value) : Json(nullptr);
  }
  return out;
}

/// Without what it says of its pool.
Json describe(const ControlConnection& broker, wire::Status::Reader status, const Filter& filter) {
  const report::Host told = report::read_host(status);
  Json host{{"host", broker.name()},
            {"name", printable(status.getHostName().cStr())},
            {"driver_release", printable(told.driver_release)},
            {"driver_version", told.driver_version}};
  host["state"] = host_state_text(status.getState());
  if (status.getFailure().getReason() != wire::Failure::Reason::NONE)
    host["failure"] = printable(status.getFailure().getText().cStr(), 512);
  host["devices"] = Json::array();
  std::set<std::size_t> shown;
  for (std::size_t number = 0; number < told.devices.size(); ++number) {
    if (!filter.shows_model(printable(told.devices[number].name))) continue;
    host["devices"].push_back(describe(told.devices[number], number));
    shown.insert(number);
  }
  host["processes"] = Json::array();
  for (const auto session : status.getSessions()) {
    const std::string tenant = printable(session.getTenant().cStr());
    if (!filter.shows_tenant(tenant)) continue;
    const auto memory = session.getMemoryBytes();
    for (unsigned device = 0; device < memory.size(); ++device)
      if (memory[device] > 0 && shown.contains(device))
        host["processes"].push_back({{"device", device},
                                     {"pid", session.getProcessId()},
                                     {"program", printable(session.getProgram().cStr())},
                                     {"client", printable(session.getHostName().cStr())},
                                     {"tenant", tenant},
                                     {"memory_bytes", memory[device]}});
  }
  if (status.hasPool()) host["member"] = printable(status.getPool().getMember().cStr());
  return host;
}

bool answers(const Json& host) { return !host.contains("error"); }

/// Hosts that FARGPU_POOL names, and the others of their pools; each once.
std::vector<Json> ask(const SmiOptions& options) {
  const Filter& filter = options.filter;
  const auto key = [](const std::string& pool, const std::string& member) { return pool + "/" + member; };
  std::vector<std::pair<std::string, PoolMember>> told;
  std::set<std::string> seen;
  const auto of_named = [&](const ControlConnection& broker, wire::Status::Reader status) {
    const auto pool = status.getPool();
    for (const auto member : pool.getHosts())
      if (filter.shows_host(printable(member.getName().cStr())))  // its model is that of one of its devices
        told.emplace_back(key(pool.getName().cStr(), member.getName().cStr()), read_member(member, broker));
    Json host = describe(broker, status, filter);
    if (Json of = describe_pool(status, filter); !of.is_null()) {
      if (!pool.getNameTaken()) seen.insert(key(pool.getName().cStr(), pool.getMember().cStr()));
      host["pool"] = std::move(of);
    }
    return host;
  };
  // Within a job, what it has of its hosts.
  std::vector<Json> hosts = statuses(pool_hosts(options.pool), of_named, ControlConnection::For::job);
  for (const Json& host : hosts)
    if (!answers(host)) seen.insert(host["host"].get<std::string>());
  std::vector<PoolMember> others;
  for (auto& [name, member] : told)
    if (!(member.host && seen.contains(address_text(*member.host))) && seen.insert(name).second)
      others.push_back(std::move(member));
  for (Json& host : statuses(others, [&](const ControlConnection&broker, wire::Status::Reader status) {
         Json host = describe(broker, status, filter);
         if (status.hasPool()) host["name"] = host["member"];  // by which it was chosen
         return host;
       }))
    hosts.push_back(std::move(host));
  return hosts;
}

std::uint64_t number(const Json& object, const char* key) { return object[key].get<std::uint64_t>(); }

/// Of all devices together: null is what none of them tells.
Json sums_of(const std::vector<Json>& hosts) {
  std::uint64_t answering = 0, devices = 0, memory = 0, used = 0;
  struct Told {
    std::int64_t sum = 0, devices = 0;
    void add(const Json& value) {
      if (value.is_null()) return;
      sum += value.get<std::int64_t>();
      ++devices;
    }
  } power, limit, utilisation;
  for (const Json& host : hosts) {
    if (!answers(host)) continue;
    ++answering;
    for (const Json& device : host["devices"]) {
      ++devices;
      memory += number(device, "memory_bytes");
      used += number(device, "used_bytes");
      power.add(device["power_milliwatts"]);
      limit.add(device["power_limit_milliwatts"]);
      utilisation.add(device["utilisation_percent"]);
    }
  }
  const auto sum = [](const Told& told) { return told.devices == 0 ? Json() : Json(told.sum); };
  return {{"hosts", answering},
          {"devices", devices},
          {"memory_bytes", memory},
          {"used_bytes", used},
          {"power_milliwatts", sum(power)},
          {"power_limit_milliwatts", sum(limit)},
          {"utilisation_percent", utilisation.devices == 0 ? Json() : Json(utilisation.sum / utilisation.devices)}};
}

/// One list of devices, and one of processes whose "device" is a place in it.
Json together(const std::vector<Json>& hosts) {
  Json all{{"host", ""}, {"driver_release", ""}, {"driver_version", 0}};
  for (const char* const list : {"devices", "processes", "errors", "pools"}) all[list] = Json::array();
  bool first = true;
  for (const Json& host : hosts) {
    if (!answers(host)) {
      all["errors"].push_back(host);
      continue;
    }
    if (std::exchange(first, false))
      for (const char* const key : {"host", "driver_release", "driver_version"}) all[key] = host[key];
    else all["host"] = all["host"].get<std::string>() + ", " + host["host"].get<std::string>();
    std::map<std::uint64_t, std::size_t> places;
    for (const Json& device : host["devices"]) {
      places[number(device, "number")] = all["devices"].size();
      all["devices"].push_back(device);
      all["devices"].back()["host"] = host["host"];
    }
    for (const Json& process : host["processes"]) {
      all["processes"].push_back(process);
      all["processes"].back()["device"] = places.at(number(process, "device"));
      all["processes"].back()["host"] = host["host"];
    }
  }
  all["sums"] = sums_of(hosts);
  return all;
}

std::string mib(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

/// A value with its unit, or a dash where the host does not know it.
std::string shown(const Json& value, const char* unit, std::int64_t divisor = 1) {
  return value.is_null() ? "-" : fmt::format("{}{}", value.get<std::int64_t>() / divisor, unit);
}

const std::string rule = "+" + std::string(78, '-') + "+\n";

void row(const std::string& left, const std::string& right) {
  std::cout << fmt::format("| {:<{}} {} |\n", left, 75 - std::min<std::size_t>(75, right.size()), right);
}

std::string power_text(const Json& of) {
  const Json& power = of["power_milliwatts"];
  return power.is_null() ? "-" : shown(power, "", 1000) + "/" + shown(of["power_limit_milliwatts"], " W", 1000);
}

std::string used_text(const Json& of) {
  return mib(number(of, "used_bytes")) + " / " + mib(number(of, "memory_bytes"));
}

void print(const Json& host) {
  std::cout << rule;
  const std::string release = host["driver_release"].get<std::string>();
  const int version = host["driver_version"].get<int>();
  row(fmt::format("fargpu {}  {:.32}", FARGPU_VERSION, host["host"].get<std::string>()),
      fmt::format("driver {:.16}  CUDA {}.{}", release.empty() ? "-" : release, version / 1000, version % 1000 / 10));
  if (host.contains("member"))
    row(fmt::format("host {:.40}", host["member"].get<std::string>()), host["state"].get<std::string>());
  std::cout << rule;
  std::cout << fmt::format("| {:>3}  {:<24} {:>5} {:>11} {:>23} {:>4} |\n", "GPU", "Name", "Temp", "Power",
                           "Memory used", "Util");
  std::cout << rule;
  for (const Json& device : host["devices"]) {
    std::cout << fmt::format("| {:>3}  {:<24.24} {:>5} {:>11} {:>23} {:>4} |\n", number(device, "number"),
                             device["name"].get<std::string>(), shown(device["temperature_celsius"], " C"),
                             power_text(device), used_text(device), shown(device["utilisation_percent"], "%"));
    std::cout << fmt::format("|      {:<71} |\n", device["uuid"].get<std::string>());
  }
  if (host["devices"].empty()) row("no devices", "");
  if (host.contains("failure")) row(fmt::format("! {:.70}", host["failure"].get<std::string>()), "");
  std::cout << rule;
  std::cout << fmt::format("| {:>3}  {:>8}  {:<22} {:<20} {:>17} |\n", "GPU", "PID", "Program", "Client", "Memory");
  std::cout << rule;
  for (const Json& process : host["processes"])
    std::cout << fmt::format("| {:>3}  {:>8}  {:<22.22} {:<20.20} {:>17} |\n", number(process, "device"),
                             number(process, "pid"), process["program"].get<std::string>(),
                             process["client"].get<std::string>(), mib(number(process, "memory_bytes")));
  if (host["processes"].empty()) row("no programs", "");
  std::cout << rule;
}

/// A line of the table's columns for all devices together.
void print_sums(const Json& sums) {
  std::cout << fmt::format("| {:<35} {:>11} {:>23} {:>4} |\n",
                           so_many(number(sums, "hosts"), "host") + ", " + so_many(number(sums, "devices"), "GPU"),
                           power_text(sums), used_text(sums), shown(sums["utilisation_percent"], "%"))
            << rule;
}

}  // namespace

int smi(const SmiOptions& options) {
  auto hosts = ask(options);
  const int code = exit_code(hosts);
  const bool any_answers = std::ranges::any_of(hosts, answers);
  std::vector<Json> pools;
  for (const Json* const pool : pools_of(hosts)) pools.push_back(*pool);
  std::erase_if(hosts, [&](const Json& host) { return answers(host) && !shows(options.filter, host); });
  if (options.output == "json") {
    Json all = together(hosts);
    all["pools"] = std::move(pools);
    // Names of programs are bytes; what is no text in them is replaced.
    std::cout << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return code;
  }
  for (const Json& host : hosts) {
    if (answers(host)) print(host);
    else if (any_answers)
      std::cout << host["host"].get<std::string>() << "  ! " << host["error"].get<std::string>() << "\n";
    else std::cerr << "fargpu: " << host["error"].get<std::string>() << "\n";
  }
  if (std::ranges::count_if(hosts, answers) > 1) print_sums(sums_of(hosts));
  for (const Json& pool : pools)
    std::cout << (options.filter.model.empty() ? pool_sums(pool, options.filter) : pool_trouble(pool));
  std::cout << nothing_shown(hosts, options.filter);
  return code;
}

}  // namespace fargpu::client::cli
