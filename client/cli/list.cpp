#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/base/uuid.h"
#include "commands.h"
#include "pool_facts.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"
#include "statuses.h"
#include "waiting.h"

namespace fargpu::client::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* priority_text(wire::Priority priority) {
  return priority == wire::Priority::LATENCY_CRITICAL ? "latency-critical"
         : priority == wire::Priority::BEST_EFFORT    ? "best-effort"
                                                      : "normal";
}

const char* state_text(wire::LeaseState state) {
  switch (state) {
    case wire::LeaseState::RUNNING: return "running";
    case wire::LeaseState::WAITING: return "waiting";
    case wire::LeaseState::ENDING: return "ending";
    default: return "idle";
  }
}

const char* state_text(wire::SessionStatus::Reader session) {
  if (session.getEnding()) return "ending";
  if (session.getResumingSeconds() != 0) return "resuming";
  return residency_text(session);
}

Json describe(const ControlConnection& broker, wire::Status::Reader status, const Filter& filter) {
  Json host{{"host", broker.name()},
            {"name", printable(status.getHostName().cStr())},
            {"version", printable(status.getVersion().cStr())},
            {"driver", printable(status.getDriver().cStr())},
            {"driver_release", printable(status.getDriverRelease().cStr())},
            {"driver_version", status.getDriverVersion()},
            {"draining", status.getDraining()},
            {"state", host_state_text(status.getState())},
            {"state_until", status.getStateUntil()},
            {"started", status.getStartedSeconds()},
            {"warm_workers", status.getWarmWorkers()},
            {"sessions_max", status.getSessionsMax()},
            {"sessions_taken", status.getSessionsTaken()},
            {"tenant", printable(status.getTenant().cStr())},
            {"policy", printable(status.getPolicy().cStr())},
            {"quantum_ms", status.getQuantumMs()},
            {"grace_ms", status.getGraceMs()}};
  if (status.getFailure().getReason() != wire::Failure::Reason::NONE)
    host["failure"] = printable(status.getFailure().getText().cStr(), 512);
  host["devices"] = Json::array();
  for (const auto device : status.getDevices()) {
    host["devices"].push_back({{"name", printable(device.getName().cStr())},
                               {"uuid", uuid_text(read_uuid(device.getUuid()))},
                               {"compute_capability", fmt::format("{}.{}", device.getComputeCapability() / 10,
                                                                  device.getComputeCapability() % 10)},
                               {"memory_bytes", device.getMemoryBytes()},
                               {"used_bytes", device.getUsedBytes()},
                               {"free_bytes", device.getFreeBytes()},
                               {"pci", fmt::format("{:08x}:{:02x}:{:02x}.0", device.getPciDomain(), device.getPciBus(),
                                                   device.getPciDevice())}});
  }
  host["sessions"] = Json::array();
  for (const auto session : status.getSessions()) {
    Json memory = Json::array();
    for (const std::uint64_t bytes : session.getMemoryBytes()) memory.push_back(bytes);
    Json busy = Json::array();
    for (const std::uint64_t nanoseconds : session.getBusyNs()) busy.push_back(nanoseconds);
    host["sessions"].push_back({{"id", session.getId()},
                                {"program", printable(session.getProgram().cStr())},
                                {"client", printable(session.getHostName().cStr())},
                                {"pid", session.getProcessId()},
                                {"worker", session.getWorkerId()},
                                {"started", session.getStartedSeconds()},
                                {"memory_bytes", memory},
                                {"calls", session.getCalls()},
                                {"lease", session.getLease()},
                                {"tenant", printable(session.getTenant().cStr())},
                                {"busy_ns", busy},
                                {"waited_ns", session.getWaitedNs()},
                                {"known_bytes", session.getKnownBytes()},
                                {"transport", session.getRdma()           ? "rdma"
                                              : session.getSharedMemory() ? "shm"
                                                                          : "tcp"},
                                {"state", state_text(session)},
                                {"resuming_since", session.getResumingSeconds()},
                                {"residency_since", session.getResidencySeconds()},
                                {"away_bytes", session.getAwayBytes()},
                                {"away_host_bytes", session.getAwayHostBytes()},
                                {"away_disk_bytes", session.getAwayDiskBytes()},
                                {"host_bytes", session.getHostBytes()},
                                {"stays_because", printable(session.getStaysBecause().cStr(), 512)}});
  }
  host["leases"] = Json::array();
  for (const auto lease : status.getLeases()) {
    Json devices = Json::array();
    for (const unsigned device : lease.getDevices()) devices.push_back(device);
    host["leases"].push_back({{"id", lease.getId()},
                              {"tenant", printable(lease.getTenant().cStr())},
                              {"devices", devices},
                              {"memory_bytes", lease.getMemoryBytes()},
                              {"compute_percent", lease.getComputePercent()},
                              {"priority", priority_text(lease.getPriority())},
                              {"sessions", lease.getSessions()},
                              {"share_percent", lease.getSharePercent()},
                              {"weight", lease.getWeight()},
                              {"has_turn", lease.getHasTurn()},
                              {"turns", lease.getTurns()},
                              {"overruns", lease.getOverruns()},
                              {"held_back", lease.getHeldBack()},
                              {"bandwidth_bytes", lease.getBandwidthBytes()},
                              {"moved_bytes", lease.getMovedBytes()},
                              {"state", state_text(lease.getState())},
                              {"waiting_since", lease.getWaitingSince()}});
  }
  host["waiting"] = describe_waiting(status.getWaiting(), filter);
  for (const char* const list : {"sessions", "leases"})
    for (auto one = host[list].begin(); one != host[list].end();)
      one = filter.shows_tenant((*one)["tenant"].get<std::string>()) ? std::next(one) : host[list].erase(one);
  if (Json pool = describe_pool(status, filter); !pool.is_null()) host["pool"] = std::move(pool);
  return host;
}

// What a lease does: of one that waits, for how long.
std::string state_of(const Json& lease) {
  const auto state = lease["state"].get<std::string>();
  return state == "waiting" ? "waiting since " + age_text(lease["waiting_since"].get<std::uint64_t>()) : state;
}

// What a session does; nothing of one that runs.
std::string state_of_session(const Json& session) {
  const auto state = session["state"].get<std::string>();
  const auto since = [&](const char* what) { return " since " + age_text(session[what].get<std::uint64_t>()); };
  const auto away = session["away_bytes"].get<std::uint64_t>();
  if (state == "running") {
    const auto why = session["stays_because"].get<std::string>();
    return why.empty() ? "" : "  not evicted: " + why;
  }
  if (state == "resuming") return "  resuming" + since("resuming_since");
  if (state == "ending") return "  ending";
  const bool on_disk = session["away_disk_bytes"].get<std::uint64_t>() != 0;
  return "  " + state + since("residency_since") + (away == 0 ? "" : ", " + bytes_text(away)) +
         (on_disk ? " on disk" : "");
}

std::string state_of_host(const Json& host) {
  if (!host["draining"].get<bool>()) return "";
  const auto until = host["state_until"].get<std::uint64_t>();
  const std::string end =
      until == 0 ? "" : " until " + site::time_text(std::chrono::sys_seconds(std::chrono::seconds(until)));
  return (host["state"] == "draining" ? ", draining" : ", shutting down") + end;
}

// Leases that ask for something in particular, or do not run: the others are everybody's.
void print_leases(const Json& leases) {
  bool headed = false;
  for (const Json& lease : leases) {
    const auto memory = lease["memory_bytes"].get<std::uint64_t>();
    const auto percent = lease["compute_percent"].get<unsigned>();
    const auto priority = lease["priority"].get<std::string>();
    if (memory == 0 && percent == 0 && priority == "normal" && lease["state"] == "running") continue;
    if (!std::exchange(headed, true))
      std::cout << fmt::format("  {:>7}  {:<20} {:<12} {:>12} {:>8}  {:<16}  {}\n", "lease", "tenant", "GPUs",
                               "memory each", "compute", "priority", "state");
    std::string devices;
    for (const Json& device : lease["devices"])
      devices += (devices.empty() ? "" : ",") + std::to_string(device.get<unsigned>());
    std::cout << fmt::format("  {:>7}  {:<20.20} {:<12.12} {:>12} {:>8}  {:<16}  {}\n",
                             lease["id"].get<std::uint64_t>(), lease["tenant"].get<std::string>(), devices,
                             memory == 0 ? "-" : bytes_text(memory), percent == 0 ? "-" : fmt::format("{}%", percent),
                             priority, state_of(lease));
  }
}

// A bar of ten cells, filled as far as the device's memory is.
std::string bar(std::uint64_t used, std::uint64_t all) {
  const auto cells = all == 0 ? 0 : static_cast<int>((used * 10 + all - 1) / all);
  std::string text;
  for (int i = 0; i < 10; ++i) text += i < cells ? "█" : "░";
  return text;
}

void print(const Json& host, const Filter& filter) {
  std::cout << fmt::format("{}  fargpud {}, CUDA {}.{}, up {}{}\n", host["host"].get<std::string>(),
                           host["version"].get<std::string>(), host["driver_version"].get<int>() / 1000,
                           host["driver_version"].get<int>() % 1000 / 10,
                           age_text(host["started"].get<std::uint64_t>()), state_of_host(host));
  if (host.contains("failure")) std::cout << "  ! " << host["failure"].get<std::string>() << "\n";
  unsigned number = 0;
  for (const Json& device : host["devices"]) {
    const auto all = device["memory_bytes"].get<std::uint64_t>(), used = device["used_bytes"].get<std::uint64_t>();
    std::cout << fmt::format("  GPU {}  {:<28} {}  {:>10} of {:>10}  {}\n", number++, device["name"].get<std::string>(),
                             bar(used, all), memory_text(used), memory_text(all), device["uuid"].get<std::string>());
  }
  print_leases(host["leases"]);
  std::cout << waiting_text(host["waiting"], Wishes::in_reasons);
  // Those of other tenants are only counted.
  const auto taken = host["sessions_taken"].get<std::size_t>(), seen = host["sessions"].size();
  const std::size_t others = taken > seen ? taken - seen : 0;
  if (seen == 0) {
    std::cout << (others == 0
                      ? "  no sessions\n"
                      : fmt::format("  no sessions of tenant {}; {} of others or about to begin\n",
                                    filter.tenant.empty() ? host["tenant"].get<std::string>() : filter.tenant, others));
    return;
  }
  std::cout << fmt::format("  {:>7}  {:<12} {:<20} {:<20} {:>8} {:>8} {:>4} {:>12} {:>12}\n", "session", "tenant",
                           "program", "client", "pid", "age", "by", "memory", "calls");
  for (const Json& session : host["sessions"]) {
    std::uint64_t bytes = 0;
    for (const Json& device : session["memory_bytes"]) bytes += device.get<std::uint64_t>();
    std::cout << fmt::format("  {:>7}  {:<12.12} {:<20.20} {:<20.20} {:>8} {:>8} {:>4} {:>12} {:>12}{}\n",
                             session["id"].get<std::uint64_t>(), session["tenant"].get<std::string>(),
                             session["program"].get<std::string>(), session["client"].get<std::string>(),
                             session["pid"].get<unsigned>(), age_text(session["started"].get<std::uint64_t>()),
                             session["transport"].get<std::string>(), memory_text(bytes),
                             session["calls"].get<std::uint64_t>(), state_of_session(session));
  }
  if (others != 0) std::cout << fmt::format("  and {} of other tenants or about to begin\n", others);
}

// All hosts together.
void print_sums(const std::vector<Json>& hosts) {
  std::size_t answering = 0, devices = 0, sessions = 0, waiting = 0;
  std::uint64_t used = 0, all = 0;
  for (const Json& host : hosts) {
    if (host.contains("error")) continue;
    ++answering;
    devices += host["devices"].size();
    sessions += host["sessions_taken"].get<std::size_t>();
    waiting += host["waiting"].size();
    for (const Json& device : host["devices"]) {
      used += device["used_bytes"].get<std::uint64_t>();
      all += device["memory_bytes"].get<std::uint64_t>();
    }
  }
  std::cout << fmt::format("the pool: {} of {} answer, {}, {} of {} used, {}, {} waiting\n", answering,
                           so_many(hosts.size(), "host"), so_many(devices, "GPU"), memory_text(used), memory_text(all),
                           so_many(sessions, "session"), waiting);
}

}  // namespace

int list(const ListOptions& options) {
  auto hosts = statuses(pool_hosts(options.pool), [&](const ControlConnection& broker, wire::Status::Reader status) {
    return describe(broker, status, options.filter);
  });
  const int code = exit_code(hosts);
  hosts = only_shown(std::move(hosts), options.filter);
  if (options.output == "json") {
    // Names of programs are bytes; what is no text in them is replaced.
    std::cout << Json(hosts).dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    return code;
  }
  std::vector<Json> own;
  for (const Json& host : hosts)
    if (host.contains("error") || shows(options.filter, host)) own.push_back(host);
  for (const Json& host : own) {
    if (host.contains("error"))
      std::cout << host["host"].get<std::string>() << "  ! " << host["error"].get<std::string>() << "\n";
    else print(host, options.filter);
  }
  // A pool with a registry has sums of its own, of all its hosts.
  const bool of_pool =
      std::ranges::all_of(own, [](const Json& host) { return host.contains("error") || host.contains("pool"); });
  const bool any_answers = std::ranges::any_of(own, [](const Json& host) { return host.contains("pool"); });
  if (own.size() > 1 && !(of_pool && any_answers)) print_sums(own);
  for (const Json* const pool : pools_of(hosts)) std::cout << pool_table(*pool, options.filter);
  std::cout << nothing_shown(hosts, options.filter);
  return code;
}

}  // namespace fargpu::client::cli
