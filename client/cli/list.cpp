#include <fmt/format.h>

#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/control_connection.h"
#include "client/uuid.h"
#include "commands.h"
#include "protocol/printable.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;

Json describe(const std::string& name, wire::Status::Reader status) {
  Json host{{"host", name},
            {"name", printable(status.getHostName().cStr())},
            {"version", printable(status.getVersion().cStr())},
            {"driver", printable(status.getDriver().cStr())},
            {"driver_release", printable(status.getDriverRelease().cStr())},
            {"driver_version", status.getDriverVersion()},
            {"draining", status.getDraining()},
            {"started", status.getStartedSeconds()},
            {"warm_workers", status.getWarmWorkers()},
            {"sessions_max", status.getSessionsMax()},
            {"sessions_taken", status.getSessionsTaken()}};
  if (status.getFailure().getReason() != wire::Failure::Reason::NONE) host["failure"] = printable(status.getFailure().getText().cStr(), 512);
  host["devices"] = Json::array();
  for (const auto device : status.getDevices()) {
    host["devices"].push_back({{"name", printable(device.getName().cStr())},
                               {"uuid", uuid_text(read_uuid(device.getUuid()))},
                               {"compute_capability", fmt::format("{}.{}", device.getComputeCapability() / 10,
                                                                  device.getComputeCapability() % 10)},
                               {"memory_bytes", device.getMemoryBytes()},
                               {"used_bytes", device.getUsedBytes()},
                               {"pci", fmt::format("{:08x}:{:02x}:{:02x}.0", device.getPciDomain(), device.getPciBus(),
                                                   device.getPciDevice())}});
  }
  host["sessions"] = Json::array();
  for (const auto session : status.getSessions()) {
    Json memory = Json::array();
    for (const std::uint64_t bytes : session.getMemoryBytes()) memory.push_back(bytes);
    host["sessions"].push_back({{"id", session.getId()},
                                {"program", printable(session.getProgram().cStr())},
                                {"client", printable(session.getHostName().cStr())},
                                {"pid", session.getProcessId()},
                                {"worker", session.getWorkerId()},
                                {"started", session.getStartedSeconds()},
                                {"memory_bytes", memory},
                                {"calls", session.getCalls()},
                                {"transport", session.getSharedMemory() ? "shm" : "tcp"}});
  }
  return host;
}

std::string gib(std::uint64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1u << 30)); }

// A bar of ten cells, filled as far as the device's memory is.
std::string bar(std::uint64_t used, std::uint64_t all) {
  const auto cells = all == 0 ? 0 : static_cast<int>((used * 10 + all - 1) / all);
  std::string text;
  for (int i = 0; i < 10; ++i) text += i < cells ? "█" : "░";
  return text;
}

std::string age(std::uint64_t since) {
  const auto seconds = static_cast<std::uint64_t>(std::max<std::time_t>(0, std::time(nullptr) - static_cast<std::time_t>(since)));
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} h", seconds / 3600);
}

void print(const Json& host) {
  std::cout << fmt::format("{}  fargpud {}, CUDA {}.{}, up {}{}\n", host["host"].get<std::string>(), host["version"].get<std::string>(),
                           host["driver_version"].get<int>() / 1000, host["driver_version"].get<int>() % 1000 / 10,
                           age(host["started"].get<std::uint64_t>()), host["draining"].get<bool>() ? ", shutting down" : "");
  if (host.contains("failure")) std::cout << "  ! " << host["failure"].get<std::string>() << "\n";
  unsigned number = 0;
  for (const Json& device : host["devices"]) {
    const auto all = device["memory_bytes"].get<std::uint64_t>(), used = device["used_bytes"].get<std::uint64_t>();
    std::cout << fmt::format("  GPU {}  {:<28} {}  {:>10} of {:>10}  {}\n", number++, device["name"].get<std::string>(), bar(used, all),
                             gib(used), gib(all), device["uuid"].get<std::string>());
  }
  if (host["sessions"].empty()) {
    std::cout << "  no sessions\n";
    return;
  }
  std::cout << fmt::format("  {:>7}  {:<20} {:<20} {:>8} {:>8} {:>4} {:>12} {:>12}\n", "session", "program", "client", "pid", "age", "by", "memory",
                           "calls");
  for (const Json& session : host["sessions"]) {
    std::uint64_t bytes = 0;
    for (const Json& device : session["memory_bytes"]) bytes += device.get<std::uint64_t>();
    std::cout << fmt::format("  {:>7}  {:<20.20} {:<20.20} {:>8} {:>8} {:>4} {:>12} {:>12}\n", session["id"].get<std::uint64_t>(),
                             session["program"].get<std::string>(), session["client"].get<std::string>(), session["pid"].get<unsigned>(),
                             age(session["started"].get<std::uint64_t>()), session["transport"].get<std::string>(), gib(bytes), session["calls"].get<std::uint64_t>());
  }
}

}  // namespace

int list(const ListOptions& options) {
  Json hosts = Json::array();
  int code = 0;
  for (const PoolHost& host : pool_hosts(options.pool)) {
    const std::string name = address_text(host);
    try {
      ControlConnection broker(host);
      broker.ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                 [&](wire::Control::Reader control) { hosts.push_back(describe(name, control.getStatus())); });
    } catch (const DialError& error) {
      hosts.push_back({{"host", name}, {"error", error.what()}});
      code = exit_own_error;
    }
  }
  if (options.output == "json") {
    // Names of programs are bytes; what is no text in them is replaced.
    std::cout << hosts.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return code;
  }
  for (const Json& host : hosts) {
    if (host.contains("error")) std::cout << host["host"].get<std::string>() << "  ! " << host["error"].get<std::string>() << "\n";
    else print(host);
  }
  return code;
}

}  // namespace fargpu::client::cli
