#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "client/session/dial.h"
#include "client/connect/windows.h"
#include "commands.h"
#include "library_folder.h"
#include "cuda_facts.h"
#include "protocol/site/pki.h"
#include "protocol/site/tokens.h"
#include "protocol/text.h"
#include "variables.h"

namespace fargpu::client::cli {
namespace {

/// Findings, as they are made.
class Report {
 public:
  void good(const std::string& what) { std::cout << "  ok    " << what << "\n"; }
  void bad(const std::string& what, const std::string& repair) {
    std::cout << "  FAIL  " << what << "\n        " << repair << "\n";
    ++failures_;
  }
  void note(const std::string& what) { std::cout << "  note  " << what << "\n"; }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

void check_library(Report& report) {
  const std::filesystem::path folder = library_folder();
  if (folder.empty()) {
    report.bad(missing_library_text(), missing_library_repair());
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
}

void check_memory(Report& report) {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) {
    report.bad(fmt::format("the address space is limited to {} GiB", limit.rlim_cur >> 30),
               "device memory needs addresses in this process: ulimit -v unlimited");
    return;
  }
  const auto windows = reserve_device_windows();
  for (const Window& window : windows) release_window(window);
  if (windows.empty()) report.bad("no address range for device memory is free in this process", "start from a plain shell");
  else report.good("address space for device memory");
}

void check_variables(Report& report) {
  for (const std::string& name : strange_variables()) report.note(name + " is no variable of fargpu; it counts for nothing");
}

// What says who one is is for oneself.
void check_secrets(Report& report) {
  for (const Variable& variable : variables()) {
    const char* const path = variable.names == Variable::Names::secret ? std::getenv(variable.name) : nullptr;
    struct stat status {};
    if (path && ::stat(path, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
      report.note(fmt::format("{} names '{}', which others than its owner may read or change: chmod 600", variable.name, path));
  }
}

// A certificate that ends soon is to be renewed before it does.
void check_certificates(Report& report) {
  constexpr auto soon = std::chrono::days(30);
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  for (const char* const name : {"FARGPU_CA", "FARGPU_CERT"}) {
    const char* const path = std::getenv(name);
    if (!path || !*path) continue;
    try {
      const auto expires = site::expiry(path);
      const std::string what = fmt::format("{} '{}'", name, path), end = site::time_text(expires);
      if (expires <= now) report.bad(what + " has expired on " + end, "ask who looks after the GPU host for another one");
      else if (expires <= now + soon)
        report.note(fmt::format("{} expires on {}, in {}: ask who looks after the GPU host for another one", what, end,
                                so_many(static_cast<std::uint64_t>((expires - now) / std::chrono::days(1)), "day")));
    } catch (const site::PkiError& error) {
      report.bad(fmt::format("{}: {}", name, error.what()), "name a certificate in PEM");
    }
  }
}

// A program warns of these in its log, and goes on without.
void check_outputs(Report& report) {
  for (const Variable& variable : variables()) {
    const char* const path = variable.names == Variable::Names::output ? std::getenv(variable.name) : nullptr;
    if (!path || !*path) continue;
    const std::filesystem::path file = std::filesystem::absolute(path);
    std::error_code none;
    int error = 0;
    if (std::filesystem::is_directory(file, none)) error = EISDIR;
    else if (::access((std::filesystem::exists(file, none) ? file : file.parent_path()).c_str(), W_OK) != 0) error = errno;
    if (error != 0)
      report.bad(fmt::format("{} '{}' cannot be written: {}", variable.name, path, std::strerror(error)),
                 "name a file that can, or unset it");
  }
}

/// What mends that a host is not reached, or does not let this client in.
std::string repair_of(const DialError& error) {
  if (error.setting) return "unset or correct it";
  if (error.tls) return "correct what that host is known by (FARGPU_CA, FARGPU_FINGERPRINT, FARGPU_PSK_FILE), or its name in FARGPU_POOL";
  if (error.result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) return "install the same version of fargpu on both machines";
  switch (error.reason) {
    case wire::Failure::Reason::NONE: return "start fargpud there, open the port in its firewall, or correct FARGPU_POOL";
    case wire::Failure::Reason::NO_CAPACITY:
    case wire::Failure::Reason::DRAINING: return "try again later";
    case wire::Failure::Reason::DENIED:
      return "set what says who you are (FARGPU_TOKEN_FILE, FARGPU_CERT and FARGPU_KEY, FARGPU_PSK_FILE), or ask who looks after that host";
    default: return "look at the log of fargpud there";
  }
}

void check_host(Report& report, const PoolHost& host) {
  std::unique_ptr<ControlConnection> broker;
  try {
    broker = std::make_unique<ControlConnection>(host);
  } catch (const DialError& error) {
    std::string_view what = error.what();
    if (what.ends_with(doctor_hint)) what.remove_suffix(doctor_hint.size());
    report.bad(std::string(what), repair_of(error));
    return;
  }
  report.good(fmt::format("{} answers, fargpud {}", broker->name(), broker->broker_version()));
  try {
    broker->ask([](wire::Control::Builder control) { control.setStatusRequest(); }, wire::Control::STATUS,
                [&](wire::Control::Reader control) {
                  const auto status = control.getStatus();
                  if (status.getFailure().getReason() != wire::Failure::Reason::NONE)
                    report.bad("its driver: " + printable(status.getFailure().getText().cStr(), 512), "mend the driver on that host");
                  if (status.getDraining()) report.bad("it is shutting down", "wait until it is back, or name another host");
                  const auto version = static_cast<int>(status.getDriverVersion());
                  if (version < config().driver_version) {
                    report.bad(fmt::format("its driver is of CUDA level {}, this client of {}", version, config().driver_version),
                               fmt::format("set FARGPU_DRIVER_VERSION={}, or update the driver there", version));
                  }
                  for (const auto device : status.getDevices())
                    report.good(fmt::format("device {}, {}", printable(device.getName().cStr()), memory_text(device.getMemoryBytes())));
                });
  } catch (const DialError& error) {
    report.bad(error.what(), "look at the log of fargpud there");
    return;
  }
  if (!config().number_error.empty()) {
    report.note("no session is tried before the variable above is mended");
    return;
  }
  try {  // a session, as a program would have it
    Config one = config();
    one.hosts = {host};
    one.pool_error.clear();
    const auto begin = std::chrono::steady_clock::now();
    Session* const session = dial(one).release();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
    if (session->terms.facts.devices.empty()) {
      report.bad("a session sees no device", "CUDA_VISIBLE_DEVICES names none of this host's devices: correct or unset it");
    } else {
      report.good(fmt::format("a session with {}, ready in {} ms, by {}", so_many(session->terms.facts.devices.size(), "device"),
                              took.count(), session->shares_memory() ? "shared memory" : "TCP"));
    }
    session->leave();
  } catch (const DialError& error) {
    // Who one is has been accepted: it is what is asked for that is not had.
    report.bad(std::string("no session: ") + error.what(),
               error.reason == wire::Failure::Reason::DENIED ? "ask for what this host gives (FARGPU_GPUS, FARGPU_MEM, FARGPU_COMPUTE, "
                                                               "FARGPU_PRIORITY; they count here too), or ask who looks after it"
               : error.reason == wire::Failure::Reason::NONE ? "look at the log of fargpud there"
                                                             : repair_of(error));
  }
}

}  // namespace

int doctor(const DoctorOptions& options) {
  Report report;
  std::cout << "this machine\n";
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
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) report.note(std::string("CUDA_VISIBLE_DEVICES=") + visible);
  for (const PoolHost& host : hosts) {
    std::cout << address_text(host) << "\n";
    check_host(report, host);
  }
  std::cout << (report.failures() == 0 ? "everything is in order\n"
                                       : fmt::format("{} {} to mend\n", report.failures(), report.failures() == 1 ? "thing" : "things"));
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace fargpu::client::cli
