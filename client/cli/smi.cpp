// `fargpu smi`: the devices as programs see them through NVML, in a table of 80 columns.

#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/connect/control_connection.h"
#include "client/connect/host_report.h"
#include "commands.h"
#include "protocol/text.h"

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

Json describe(const report::Host& host) {
  Json out{{"host", host.address},
           {"driver_release", printable(host.driver_release)},
           {"driver_version", host.driver_version}};
  out["devices"] = Json::array();
  for (const report::Device& device : host.devices) {
    Json one{
        {"name", printable(device.name)},
        {"uuid", device.uuid},
        {"pci", fmt::format("{:08x}:{:02x}:{:02x}.0", device.pci_domain, device.pci_bus, device.pci_device)},
        {"compute_capability", fmt::format("{}.{}", device.compute_capability / 10, device.compute_capability % 10)},
        {"memory_bytes", device.memory_bytes},
        {"used_bytes", device.used_bytes}};
    for (const auto& [name, kind] : readings) {
      const auto value = device.reading(kind);
      one[name] = value ? Json(*value) : Json(nullptr);
    }
    out["devices"].push_back(one);
  }
  out["processes"] = Json::array();
  for (const report::Session& session : host.sessions)
    for (std::size_t device = 0; device < session.memory_bytes.size(); ++device)
      if (session.memory_bytes[device] > 0)
        out["processes"].push_back({{"device", device},
                                    {"pid", session.process_id},
                                    {"program", printable(session.program)},
                                    {"memory_bytes", session.memory_bytes[device]}});
  return out;
}

std::string mib(std::uint64_t bytes) { return fmt::format("{} MiB", bytes >> 20); }

/// A value with its unit, or a dash where the host does not know it.
std::string shown(const Json& value, const char* unit, std::int64_t divisor = 1) {
  return value.is_null() ? "-" : fmt::format("{}{}", value.get<std::int64_t>() / divisor, unit);
}

const std::string rule = "+" + std::string(78, '-') + "+\n";

void row(const std::string& left, const std::string& right) {
  std::cout << fmt::format("| {:<{}} {} |\n", left, 75 - right.size(), right);
}

void print(const Json& host) {
  std::cout << rule;
  const std::string release = host["driver_release"].get<std::string>();
  const int version = host["driver_version"].get<int>();
  row(fmt::format("fargpu {}  {:.32}", FARGPU_VERSION, host["host"].get<std::string>()),
      fmt::format("driver {:.16}  CUDA {}.{}", release.empty() ? "-" : release, version / 1000, version % 1000 / 10));
  std::cout << rule;
  std::cout << fmt::format("| {:>3}  {:<24} {:>5} {:>11} {:>23} {:>4} |\n", "GPU", "Name", "Temp", "Power",
                           "Memory used", "Util");
  std::cout << rule;
  unsigned number = 0;
  for (const Json& device : host["devices"]) {
    const std::string power =
        shown(device["power_milliwatts"], "", 1000) + "/" + shown(device["power_limit_milliwatts"], " W", 1000);
    const std::string memory =
        mib(device["used_bytes"].get<std::uint64_t>()) + " / " + mib(device["memory_bytes"].get<std::uint64_t>());
    std::cout << fmt::format("| {:>3}  {:<24.24} {:>5} {:>11} {:>23} {:>4} |\n", number++,
                             device["name"].get<std::string>(), shown(device["temperature_celsius"], " C"),
                             device["power_milliwatts"].is_null() ? "-" : power, memory,
                             shown(device["utilisation_percent"], "%"));
    std::cout << fmt::format("|      {:<71} |\n", device["uuid"].get<std::string>());
  }
  if (host["devices"].empty()) row("no devices", "");
  std::cout << rule;
  std::cout << fmt::format("| {:>3}  {:>8}  {:<43} {:>17} |\n", "GPU", "PID", "Program of this machine", "Memory");
  std::cout << rule;
  for (const Json& process : host["processes"])
    std::cout << fmt::format("| {:>3}  {:>8}  {:<43.43} {:>17} |\n", process["device"].get<std::size_t>(),
                             process["pid"].get<unsigned>(), process["program"].get<std::string>(),
                             mib(process["memory_bytes"].get<std::uint64_t>()));
  if (host["processes"].empty()) row("no programs", "");
  std::cout << rule;
}

}  // namespace

int smi(const SmiOptions& options) {
  pool_hosts(options.pool);  // says what is wrong with it
  if (!options.pool.empty()) ::setenv("FARGPU_POOL", options.pool.c_str(), 1);
  try {
    const Json host = describe(report::ask_host());
    if (options.output == "json") std::cout << host.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    else print(host);
    return 0;
  } catch (const DialError& error) {
    std::cerr << "fargpu: " << error.what() << "\n";
    return exit_own_error;
  }
}

}  // namespace fargpu::client::cli
