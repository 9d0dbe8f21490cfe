#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "client/connect/windows.h"
#include "client/connect/control_connection.h"
#include "client/connect/credentials.h"
#include "client/connect/placement.h"
#include "client/base/environment.h"
#include "client/base/log_words.h"
#include "client/base/rdma_options.h"
#include "commands.h"
#include "findings.h"
#include "library_folder.h"
#include "pool_facts.h"
#include "pool_reach.h"
#include "cuda_facts.h"
#include "protocol/limits.h"
#include "protocol/rdma/context.h"
#include "protocol/rdma/devices.h"
#include "protocol/site/pki.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"
#include "repair.h"
#include "tenant_facts.h"
#include "trial_session.h"

namespace fargpu::client::cli {
namespace {

void check_library(Findings& report) {
  const std::filesystem::path folder = library_folder();
  if (folder.empty()) {
    report.bad(missing_library_text(), missing_library_repair());
    return;
  }
  if (const std::string fault = library_fault(folder); !fault.empty()) {
    report.bad(fault, library_repair());
    return;
  }
  const std::string path = (folder / "libcuda.so.1").string();
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto version_of = library ? reinterpret_cast<int (*)(int*)>(::dlsym(library, "cuDriverGetVersion")) : nullptr;
  int version = 0;
  if (!version_of || version_of(&version) != 0) {
    report.bad("the client library does not load: " + std::string(library ? "it is another libcuda" : ::dlerror()),
               "install fargpu's client files again");
    return;
  }
  report.good(fmt::format("client library {}, CUDA level {}.{}", path, version / 1000, version % 1000 / 10));
  const std::string devices = (folder / "libnvidia-ml.so.1").string();
  if (::dlopen(devices.c_str(), RTLD_NOW | RTLD_LOCAL)) report.good("library of the device list " + devices);
  else
    report.note(
        fmt::format("programs that ask NVML see no device: {}; install fargpu's client files again", ::dlerror()));
}

void check_memory(Findings& report) {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) {
    report.bad(fmt::format("the address space is limited to {} GiB", limit.rlim_cur >> 30),
               "device memory needs addresses in this process: ulimit -v unlimited");
    return;
  }
  const auto windows = reserve_device_windows();
  for (const Window& window : windows) release_window(window);
  if (windows.empty())
    report.bad("no address range for device memory is free in this process", "start from a plain shell");
  else report.good("address space for device memory");
}

void check_variables(Findings& report) {
  for (const StrangeVariable& variable : strange_variables()) report.note(variable.text());
  if (const std::string complaint = log::complaint(); !complaint.empty()) report.note(complaint);
}

// Where there are cards, or RDMA is asked for.
void check_rdma(Findings& report, bool asked) {
  std::string told_already;  // as a variable that is wrong
  const bool by_cards = read_rdma_options(told_already).transports == rdma::Transports::cards;
  const std::vector<std::string> ports = rdma::active_ports();
  if (ports.empty() && by_cards) {
    if (asked)
      report.bad("RDMA is asked for, and there is no RDMA card with an active port",
                 "look with `rdma link`; the drivers are rdma-core's. Or take rdma:// out of FARGPU_POOL, and unset "
                 "FARGPU_TRANSPORT; to try it without a card: FARGPU_RDMA_TRANSPORTS=tcp");
    return;
  }
  std::string text;
  for (const std::string& port : ports) text += (text.empty() ? "" : ", ") + port;
  if (!by_cards) text = "no card, but a trial by UCX itself (FARGPU_RDMA_TRANSPORTS)";
  try {
    report.good(fmt::format("RDMA by {}: {}", rdma::plugin().library(), text));
  } catch (const rdma::RdmaError& error) {
    if (asked)
      report.bad(fmt::format("no RDMA: {}", error.what()),
                 "install it, or take rdma:// out of FARGPU_POOL, and unset FARGPU_TRANSPORT");
    else report.note(fmt::format("RDMA ({}) cannot be used: {}", text, error.what()));
    return;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (by_cards && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < limits::rdma_locked_bytes)
    report.note(fmt::format("RDMA needs memory that is locked, of which this process may have {}: ulimit -l unlimited",
                            bytes_text(limit.rlim_cur)));
}

// A credential is for its owner alone.
void check_secrets(Findings& report) {
  for (const EnvironmentVariable& variable : environment_variables()) {
    const char* const path =
        variable.names == EnvironmentVariable::Names::secret ? std::getenv(variable.name) : nullptr;
    struct stat status {};
    if (path && ::stat(path, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
      report.note(
          fmt::format("{} names '{}', which others than its owner may read or change: chmod 600", variable.name, path));
  }
}

// A certificate or a token that ends within this time is to be renewed before it does.
constexpr auto soon = std::chrono::days(30);

std::chrono::sys_seconds now_in_seconds() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

std::uint64_t whole_days(std::chrono::seconds left) {
  return static_cast<std::uint64_t>(std::max(left, std::chrono::seconds(0)) / std::chrono::days(1));
}

void check_certificates(Findings& report) {
  const auto now = now_in_seconds();
  for (const char* const name : {"FARGPU_CA", "FARGPU_CERT"}) {
    const char* const path = std::getenv(name);
    if (!path || !*path) continue;
    try {
      const bool bundle = std::string_view(name) == "FARGPU_CA";
      const auto expires = bundle ? site::authority_expiry(path) : site::expiry(path);
      const std::string what = fmt::format("{} '{}'", name, path), end = site::time_text(expires);
      if (const auto ends = site::expiries(path); bundle && expires > now) {
        const auto past = std::count_if(ends.begin(), ends.end(), [&](const auto& one) { return one <= now; });
        if (past != 0)
          report.note(fmt::format("{}: {} of its {} certificates have expired; hosts of these authorities are refused",
                                  what, past, ends.size()));
      }
      if (expires <= now)
        report.bad(what + " has expired on " + end, "ask the operator of the GPU host for another one");
      else if (expires <= now + soon)
        report.note(fmt::format("{} expires on {}, in {}: ask the operator of the GPU host for another one", what, end,
                                so_many(whole_days(expires - now), "day")));
    } catch (const site::PkiError& error) {
      report.bad(fmt::format("{}: {}", name, error.what()), "name a certificate in PEM");
    }
  }
}

// A program warns of these in its log, and goes on without.
void check_outputs(Findings& report) {
  for (const EnvironmentVariable& variable : environment_variables()) {
    const char* const path =
        variable.names == EnvironmentVariable::Names::output ? std::getenv(variable.name) : nullptr;
    if (!path || !*path) continue;
    const std::filesystem::path file = std::filesystem::absolute(path);
    std::error_code none;
    int error = 0;
    if (std::filesystem::is_directory(file, none)) error = EISDIR;
    else if (::access((std::filesystem::exists(file, none) ? file : file.parent_path()).c_str(), W_OK) != 0)
      error = errno;
    if (error != 0)
      report.bad(fmt::format("{} '{}' cannot be written: {}", variable.name, path, std::strerror(error)),
                 "name a file that can, or unset it");
  }
}

/// By what the host is known, and what is shown to it.
std::string secrecy_text(const ControlConnection& broker) {
  if (!broker.address().socket.empty()) return "by a Unix socket of this machine, without TLS";
  if (!broker.encrypted()) return "by TCP without TLS";
  const TlsTrust trust = read_credentials().trust;
  std::vector<std::string> known_by;
  if (trust.key) known_by.push_back("the shared key '" + printable(trust.key->identity) + "'");
  if (!trust.fingerprint.empty()) known_by.emplace_back("its certificate's fingerprint (FARGPU_FINGERPRINT)");
  else if (!trust.ca_file.empty()) known_by.push_back("the authority in " + trust.ca_file);
  std::string text;
  for (const std::string& one : known_by) text += (text.empty() ? "" : " or ") + one;
  return "by TCP with TLS 1.3; the host is known by " + text;
}

std::string shown_text() {
  const Credentials credentials = read_credentials();
  std::string text;
  const auto add = [&](const char* what) { text += (text.empty() ? "" : " and ") + std::string(what); };
  if (!credentials.token.empty()) add("a token");
  if (!credentials.trust.certificate_file.empty()) add("a certificate");
  if (credentials.trust.key) add("a shared key");
  return text.empty() ? "nothing is shown to it" : "shown to it: " + text;
}

void check_session(Findings& report, const PoolHost& host, const LeaseOptions& wish) {
  const TrialSession trial = try_session(host, wish);
  if (!trial.error.empty()) {
    report.bad("no session: " + trial.error, trial.repair);
    return;
  }
  if (trial.devices == 0) {
    report.bad("a session sees no device",
               "CUDA_VISIBLE_DEVICES names none of this host's devices: correct or unset it");
    return;
  }
  report.good(fmt::format("a session with {}, ready in {:.0f} ms", so_many(trial.devices, "device"), trial.ready_ms));
  report.good(fmt::format("its calls go by {}", printable(trial.transport, 256)));
  if (!trial.unmeasured.empty()) {
    report.note("no copy is measured: " + trial.unmeasured);
    return;
  }
  report.good(fmt::format("round trip {:.2f} ms, with a copy of 4 bytes", trial.round_trip_us / 1e3));
  report.good(fmt::format("bandwidth {}/s to the device, {}/s back",
                          bytes_text(static_cast<std::uint64_t>(trial.out_bytes_per_second)),
                          bytes_text(static_cast<std::uint64_t>(trial.in_bytes_per_second))));
  if (trial.lanes > 0)
    report.good(fmt::format("large copies use {} of {}", trial.lanes_in_use, so_many(trial.lanes, "bulk lane")));
}

// The client's tenant there, by what the host knows the client and until when, and what the tenant may have.
void check_identity(Findings& report, wire::Status::Reader status) {
  const std::string tenant = printable(status.getTenant().cStr());
  report.fact("tenant", tenant);
  if (tenant.empty()) report.good("this client is of no tenant there, and administers the host");
  else report.good(fmt::format("tenant '{}' ({})", tenant, shown_text()));
  const ClientIdentity identity = read_identity(status.getIdentity());
  if (identity.kind.empty()) {
    report.note("its fargpud is too old to say by what it knows this client, and until when");
    return;
  }
  report.fact("identity", describe(identity));
  if (!identity.expires) {
    report.good(identity.text());
  } else {
    const auto left = *identity.expires - now_in_seconds();
    const std::string what = fmt::format("{}, which ends on {}, {} left", identity.text(),
                                         site::time_text(identity.expires), so_many(whole_days(left), "day"));
    if (left > soon) report.good(what);
    else report.note(what + ": ask the operator of the GPU host for another one");
  }
  if (identity.administrator && !tenant.empty()) report.good("this client may administer the host");
  if (tenant.empty()) return;
  for (const auto one : status.getTenants()) {
    if (status.getTenant() != one.getName()) continue;
    const auto quota = describe_tenant(one);
    report.fact("quota", quota);
    for (const std::string& line : quota_lines(quota)) report.good(line);
    return;
  }
  // A program under a lease is told of that alone.
  report.note("the tenant's quota is not told within `fargpu run`");
}

/// Of the client's tenant, on all devices together.
std::uint64_t quota_left(wire::Status::Reader status) {
  for (const auto one : status.getTenants())
    if (status.getTenant() == one.getName() && one.getMemoryLimitBytes() != 0)
      return one.getMemoryLimitBytes() - std::min(one.getMemoryLimitBytes(), one.getMemoryBytes());
  return std::numeric_limits<std::uint64_t>::max();
}

/// What the trial of a session asks for. A pool that limits its tenant's memory or compute wants to be told how much of
/// it; a user who has not said it has a little then, on one GPU.
LeaseOptions wish_of_trial(Findings& report, wire::Status::Reader status) {
  constexpr std::uint64_t memory_enough = 1u << 30;  // for a context, and what is copied
  constexpr std::uint32_t percent_enough = 10;
  LeaseOptions wish = config().lease;
  for (const auto one : status.getPool().getTenants()) {
    if (status.getTenant() != one.getName()) continue;
    std::vector<std::string> said;
    if (const auto limit = one.getMemoryLimitBytes(); limit != 0 && wish.memory_bytes == 0) {
      const auto left = limit - std::min(limit, one.getMemoryBytes());
      wish.memory_bytes = left == 0 ? memory_enough : std::min(memory_enough, left);
      said.push_back("memory, so the session asks for " + bytes_text(wish.memory_bytes) + " (-m or FARGPU_MEM)");
    }
    if (const auto limit = one.getComputeLimitPercent(); limit != 0 && wish.compute_percent == 0) {
      const auto left = limit - std::min(limit, one.getComputePercent());
      wish.compute_percent = left == 0 ? percent_enough : std::min(percent_enough, left);
      said.push_back(fmt::format("compute, so the session asks for {}% (-c or FARGPU_COMPUTE)", wish.compute_percent));
    }
    if (said.empty()) break;
    if (wish.gpus == 0) wish.gpus = 1;
    for (const std::string& what : said)
      report.note(fmt::format("programs of tenant '{}' have to say how much they want of the pool's {}",
                              printable(one.getName().cStr()), what));
  }
  return wish;
}

/// Hosts of the pool that serve while this one does not.
std::size_t others_serve(wire::Status::Reader status) {
  const auto pool = status.getPool();
  if (pool.getTrouble().size() != 0 || pool.getPlacer().size() == 0) return 0;
  const auto hosts = pool.getHosts();
  return static_cast<std::size_t>(std::count_if(hosts.begin(), hosts.end(), [&](const auto& host) {
    return host.getState() == wire::HostState::SERVING && host.getName() != pool.getMember();
  }));
}

// Whether clients on this machine reach the hosts to which the pool may send them.
void check_reach(Findings& report, const ControlConnection& broker, wire::PoolStatus::Reader pool) {
  std::vector<PoolMember> members;
  for (const auto host : pool.getHosts())
    if (host.getState() == wire::HostState::SERVING) members.push_back(read_member(host, broker));
  const Reach found = reach(members);
  for (const auto& [member, why, repair] : found.silent)
    report.bad(fmt::format("host '{}' of the pool is not reached at {}: {}", member.name, member.address, why), repair);
  if (found.tried < members.size())
    report.note(fmt::format("{} of {} of the pool were called in time", found.tried, so_many(members.size(), "host")));
  else if (found.silent.empty())
    report.good(fmt::format("{} of the pool {} this machine", so_many(members.size(), "serving host"),
                            members.size() == 1 ? "answers" : "answer"));
}

// Whether the registry of the host's pool answers, and somebody places its leases. Each of several pools in `seen` was
// looked at by another of its members.
void check_pool(Findings& report, const ControlConnection& broker, wire::Status::Reader status,
                std::set<std::string>& seen) {
  const auto pool = describe_pool(status, {});
  if (pool.is_null()) return;
  report.fact("pool", pool);
  const auto text = [&](const char* key) { return pool[key].get<std::string>(); };
  const std::string of = fmt::format("it is '{}' of pool '{}'", text("member"), text("name"));
  if (status.getPool().getNameTaken()) {
    report.bad(of + ", but no member of it: " + text("trouble"),
               fmt::format("give {} or that host another name by pool_host, and restart its fargpud", broker.name()));
    return;
  }
  if (!text("trouble").empty()) {
    report.bad(of + ", whose registry is of no use now: " + text("trouble"),
               "look at etcd and at the log of fargpud there; sessions that run go on");
    return;
  }
  if (text("placer").empty()) {
    report.bad(of + ", where no host places leases", "one of its hosts needs pool_placer = true, and to be in touch");
    return;
  }
  std::string sums = pool_sums(pool, {});
  report.good(of + "; " + sums.substr(0, sums.find('\n')));
  for (const auto away : status.getPool().getAway())
    report.note(fmt::format("host '{}' of the pool, at {}, is away: it was there lately",
                            printable(away.getName().cStr()), printable(away.getAddress().cStr(), 300)));
  if (seen.insert(text("name")).second) check_reach(report, broker, status.getPool());
}

/// What was looked at by now.
struct Seen {
  std::map<std::string, std::string> hosts;  ///< addresses by identity
  std::set<std::string> pools;
};

void check_host(Findings& report, const PoolHost& host, Seen& seen) {
  std::unique_ptr<ControlConnection> broker;
  try {
    broker = std::make_unique<ControlConnection>(host);
  } catch (const DialError& error) {
    std::string_view what = error.what();
    if (what.ends_with(doctor_hint)) what.remove_suffix(doctor_hint.size());
    const std::string repair = repair_of(error);
    // It has a line of its own.
    if (const std::string end = "; " + repair; what.ends_with(end)) what.remove_suffix(end.size());
    report.bad(std::string(what), repair);
    return;
  }
  report.good(fmt::format("{} answers, fargpud {}", broker->name(), broker->broker_version()));
  if (const std::string& identity = broker->host_identity(); !identity.empty())
    if (const auto [first, fresh] = seen.hosts.emplace(identity, broker->name()); !fresh) {
      report.note(fmt::format("{} in FARGPU_POOL leads to this host too: it is used once", first->second));
      return;
    }
  report.good("its broker is reached " + secrecy_text(*broker));
  bool serves = true;
  LeaseOptions wish = config().lease;
  try {
    broker->ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                [&](wire::Control::Reader control) {
                  const auto status = control.getStatus();
                  if (status.getFailure().getReason() != wire::Failure::Reason::NONE)
                    report.bad("its driver: " + printable(status.getFailure().getText().cStr(), 512),
                               "repair the driver on that host");
                  serves = !status.getDraining();
                  if (const auto others = serves ? 0 : others_serve(status);
                      others != 0 && status.getState() == wire::HostState::DRAINING) {
                    report.note(
                        fmt::format("it is drained by its administrator, and sends programs to others of its pool, of "
                                    "which {} now",
                                    others == 1 ? "1 serves" : fmt::format("{} serve", others)));
                    serves = true;
                  } else if (!serves && status.getState() == wire::HostState::DRAINING)
                    report.bad("it is drained by its administrator and takes no new sessions",
                               "use another host, or try later");
                  else if (!serves) report.bad("it is shutting down", "wait until it is back, or name another host");
                  const auto version = static_cast<int>(status.getDriverVersion());
                  if (version < config().driver_version) {
                    report.bad(fmt::format("its driver is of CUDA level {}, this client of {}", version,
                                           config().driver_version),
                               fmt::format("set FARGPU_DRIVER_VERSION={}, or update the driver there", version));
                  }
                  check_identity(report, status);
                  check_pool(report, *broker, status, seen.pools);
                  serves = serves && !status.getPool().getNameTaken();
                  wish = wish_of_trial(report, status);
                  report.good(fmt::format("{} of {} taken", status.getSessionsTaken(),
                                          so_many(status.getSessionsMax(), "session")));
                  const std::uint64_t left = quota_left(status);
                  for (const auto device : status.getDevices()) {
                    report.good(fmt::format("device {}, {}, of which a new lease may have {}",
                                            printable(device.getName().cStr()), memory_text(device.getMemoryBytes()),
                                            memory_text(std::min(device.getFreeBytes(), left))));
                  }
                });
  } catch (const DialError& error) {
    report.bad(error.what(), "look at the log of fargpud there");
    return;
  }
  if (!config().number_error.empty()) {
    report.note("no session is tried before the variable above is mended");
    return;
  }
  if (serves) check_session(report, host, wish);
}

}  // namespace

int doctor(const DoctorOptions& options) {
  log::drop_what_is_not_understood();
  Findings report(options.output == "json");
  report.begin("");
  check_library(report);
  check_memory(report);
  check_variables(report);
  check_secrets(report);
  check_certificates(report);
  check_outputs(report);
  if (!config().number_error.empty()) report.bad(config().number_error, "unset or correct it");
  std::vector<PoolHost> hosts;
  try {
    hosts = pool_hosts(options.pool);
  } catch (const std::runtime_error& error) {
    report.bad(error.what(), "for example FARGPU_POOL=gpuhost:8470");
  }
  check_rdma(report, config().transport == Transport::rdma ||
                         std::any_of(hosts.begin(), hosts.end(),
                                     [](const PoolHost& host) { return host.transport == PoolHost::Transport::rdma; }));
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    report.note(std::string("CUDA_VISIBLE_DEVICES=") + visible);
  Seen seen;
  for (const PoolHost& host : hosts) {
    report.begin(address_text(host));
    check_host(report, host, seen);
  }
  report.end();
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace fargpu::client::cli
