// fargpud: the broker of a GPU host.

#include <asio.hpp>

#include <linux/capability.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "broker.h"
#include "expiry_watch.h"
#include "identity.h"
#include "orphaned_workers.h"
#include "protocol/text.h"
#include "event_log.h"
#include "evictions.h"
#include "settings.h"
#include "tenants.h"

namespace {

using namespace fargpu::server;

// What a service manager does about the end depends on these: the installed unit tries again, but for wrong settings.
constexpr int exit_no_service = 1, exit_wrong_setting = 2;

// The installed service has none: an operator who sets worker_user gives it these.
constexpr unsigned worker_user_capabilities[] = {CAP_SETUID, CAP_SETGID, CAP_KILL};

// Workers write there: fargpud itself, as root without capabilities, may not even be able to.
std::error_code why_not_written(const std::string& folder, const std::string& worker_user) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return error;
  const passwd* const user = worker_user.empty() ? nullptr : ::getpwnam(worker_user.c_str());
  struct stat there {};
  if (::access(folder.c_str(), W_OK) != 0 && !user) return std::error_code(errno, std::generic_category());
  if (::stat(folder.c_str(), &there) != 0) return std::error_code(errno, std::generic_category());
  // Workers of root have no capabilities: they may write what is root's, or open to all.
  const bool writes = user               ? there.st_uid == user->pw_uid
                      : ::geteuid() == 0 ? there.st_uid == 0 || (there.st_mode & S_IWOTH) != 0
                                         : true;
  return writes ? error : std::make_error_code(std::errc::permission_denied);
}

// Without it everything works, but code is sent again by each session.
void check_image_folder(const Settings& settings) {
  if (settings.image_folder.empty()) return;
  if (const std::error_code error = why_not_written(settings.image_folder, settings.worker_user))
    EventLog::warn("no image folder", {{"folder", settings.image_folder},
                                       {"reason", error.message()},
                                       {"meaning", "each session sends its GPU code again; set --image-folder"}});
}

// Without it everything works, but contents that the host has had travel again.
void check_content_folder(const Settings& settings) {
  if (settings.content_folder.empty() || settings.content_bytes_max == 0) return;
  if (const std::error_code error = why_not_written(settings.content_folder, settings.worker_user))
    EventLog::warn("no content folder",
                   {{"folder", settings.content_folder},
                    {"reason", error.message()},
                    {"meaning", "programs send again what this host has had before; set --content-folder"}});
}

// What leases were promised may rest on it.
void check_evicted_folder(const Settings& settings) {
  if (settings.evicted_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(settings.evicted_folder, error);
  if (!error && make_evicted_file(settings.evicted_folder).number() < 0) error.assign(errno, std::generic_category());
  if (error)
    throw SettingsError("evicted_folder is '" + settings.evicted_folder +
                        "', and fargpud can make no file there: " + error.message() +
                        (error == std::errc::read_only_file_system
                             ? "; the service may write there if ReadWritePaths= of its unit names the folder "
                               "(systemctl edit fargpud)"
                             : ""));
}

// To be another user, and to end its processes.
bool may_change_user() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  if (::syscall(SYS_capget, &header, sets) != 0) return true;  // the workers will say what they could not do
  return std::all_of(std::begin(worker_user_capabilities), std::end(worker_user_capabilities),
                     [&](unsigned capability) { return (sets[0].effective & (1u << capability)) != 0; });
}

// What every worker would fail of, and what no driver can repair.
void check_workers(const Settings& settings) {
  if (::access(settings.worker.c_str(), X_OK) != 0)
    throw SettingsError("worker is '" + settings.worker + "', which cannot be run (" + std::strerror(errno) +
                        "); give the path of fargpu-worker");
  if (settings.worker_user.empty()) return;
  const passwd* const user = ::getpwnam(settings.worker_user.c_str());
  if (!user)
    throw SettingsError("worker_user is '" + settings.worker_user +
                        "'; this machine has no such user: make it (useradd --system), or name another");
  if (::geteuid() != 0)
    throw SettingsError(
        "worker_user is '" + settings.worker_user +
        "', and only root can have workers run as another user; leave it out, or start fargpud as root");
  if (!may_change_user())
    throw SettingsError("worker_user is '" + settings.worker_user +
                        "', and this fargpud is root without the capabilities that it takes to start processes of "
                        "another user; let the service have them (CapabilityBoundingSet=CAP_SETUID CAP_SETGID "
                        "CAP_KILL), or leave worker_user out");
}

// It counts neither what they hold nor whose they are: leases are given as if they were not there.
void warn_of_earlier_sessions(const Settings& settings) {
  const std::vector<pid_t> workers = orphaned_workers(settings.worker);
  if (workers.empty()) return;
  EventLog::warn("sessions of an earlier fargpud",
                 {{"count", workers.size()},
                  {"workers", fmt::format("{}", fmt::join(workers, ", "))},
                  {"meaning",
                   "they go on until their programs end, and what they have of the devices is counted nowhere: memory "
                   "may run out within leases until then; to avoid that, end them by these process ids, and set "
                   "runtime_folder, by which a fargpud takes over its sessions"}});
}

// By what was said of it: a wrong choice of devices, or the driver itself.
std::string what_to_do(const Settings& settings, const std::string& failure) {
  if (!settings.devices.empty() && failure.find("the devices " + settings.devices) != std::string::npos)
    return "devices is '" + settings.devices +
           "': name those that the driver has, by its numbers from 0 (`nvidia-smi -L`), or leave it out for all";
  // It lies beside the worker where its package is installed.
  const std::filesystem::path software = std::filesystem::path(settings.worker).parent_path() / "libfargpu-softgpu.so";
  std::error_code error;
  const bool offered = software != settings.driver && std::filesystem::exists(software, error);
  return "repair the driver of this machine, or name another by --driver" +
         (offered ? ", such as the software GPU, " + software.string() : "");
}

// The first worker: a host whose driver does not work says so at once instead of refusing every client later.
void begin(Broker& broker, const Settings& settings, const std::function<void(bool works)>& known) {
  broker.workers().reserve({}, [&broker, &settings, known](Worker* worker, const std::string& failure) {
    if (worker) broker.workers().release(*worker);
    else
      EventLog::error("no driver", {{"driver", settings.driver},
                                    {"reason", failure},
                                    {"meaning", "nothing can be served; " + what_to_do(settings, failure)}});
    known(worker != nullptr);
  });
}

// What still waits in `io` refers to the broker, and the broker to `io`: neither can go first.
[[noreturn]] void end(Broker& broker, int status) {
  if (!broker.leaves()) broker.workers().kill_all();
  std::cout.flush();
  std::_Exit(status);
}

void warn_of_unknown_variables(const Settings& settings) {
  for (const std::string& name : settings.unknown_variables)
    EventLog::warn("no such setting",
                   {{"variable", name}, {"meaning", "it has no effect; `fargpud --help` lists those that there are"}});
}

// All that a start would find wrong, by a start that listens at nothing. What is not in order throws, or is in the log.
int check_all(Settings settings) {
  settings.warm_context = false;  // takes a device's memory
  settings.warm_workers = 0;
  settings.runtime_folder.clear();  // which the fargpud that runs has for itself
  EventLog::start("warn", "text");
  warn_of_unknown_variables(settings);
  check_workers(settings);
  check_image_folder(settings);
  check_content_folder(settings);
  check_evicted_folder(settings);
  asio::io_context io;
  Broker broker(io, settings);
  broker.check();
  bool works = false;
  std::string pool;
  int missing = 1;  // answers
  const auto answered = [&] {
    if (--missing == 0) io.stop();
  };
  if (broker.in_pool()) {
    ++missing;
    asio::co_spawn(io, broker.check_registry(), [&](const std::exception_ptr&, const std::string& told) {
      pool = told;
      answered();
    });
  }
  begin(broker, settings, [&](bool found) {
    works = found;
    answered();
  });
  io.run();
  if (works) {
    std::cout << (settings.file.empty() ? "the settings are" : settings.file + " is")
              << " in order: " << fargpu::so_many(broker.tenants().all().size(), "tenant") << ", "
              << (broker.encrypts() ? "TLS" : "no TLS");
    for (const auto& [interface, devices] : broker.workers().rdma())
      std::cout << ", RDMA on " << interface << " by " << devices;
    std::cout << "\n";
    if (!pool.empty()) std::cout << pool << "\n";
  }
  end(broker, works ? 0 : 1);
}

int serve(const Settings& settings) {
  EventLog::start(settings.log_level, settings.log_format);
  warn_of_unknown_variables(settings);
  check_workers(settings);
  check_image_folder(settings);
  check_content_folder(settings);
  check_evicted_folder(settings);
  asio::io_context io;
  Broker broker(io, settings);
  asio::signal_set signals(io, SIGTERM, SIGINT);
  std::function<void()> wait = [&] {
    signals.async_wait([&](const asio::error_code& error, int signal) {
      if (error) return;
      const bool gently = signal == SIGTERM;
      broker.stop(gently ? "SIGTERM" : "SIGINT", gently ? broker.patience() : std::chrono::seconds(0));
      wait();
    });
  };
  wait();
  asio::signal_set leave(io, SIGUSR1);
  std::function<void()> wait_to_leave = [&] {
    leave.async_wait([&](const asio::error_code& error, int) {
      if (error) return;
      broker.leave("SIGUSR1");
      wait_to_leave();
    });
  };
  wait_to_leave();
  asio::signal_set reload(io, SIGHUP);
  std::function<void()> wait_to_reload = [&] {
    reload.async_wait([&](const asio::error_code& error, int) {
      if (error) return;
      broker.reload();
      wait_to_reload();
    });
  };
  wait_to_reload();
  int status = 0;
  const auto give_up = [&](int code, const char* what) {
    if (what) std::cerr << "fargpud: " << what << "\n";
    status = code;
    broker.give_back();
    io.stop();
  };
  begin(broker, settings, [&](bool works) {
    if (!works) return give_up(exit_no_service, nullptr);
    const auto facts = broker.workers().facts();
    EventLog::info("driver", {{"library", settings.driver},
                              {"version", facts->getDriverVersion()},
                              {"devices", facts->getDevices().size()}});
    broker.take_over();
    warn_of_earlier_sessions(settings);
    try {
      broker.listen();
    } catch (const AddressInUse& error) {
      give_up(exit_no_service, error.what());
    } catch (const AddressMissing& error) {
      give_up(exit_no_service, error.what());
    } catch (const SettingsError& error) {
      give_up(exit_wrong_setting, error.what());
    }
  });
  io.run();
  end(broker, status);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  try {
    ::signal(SIGPIPE, SIG_IGN);
    int exit_code = 0;
    switch (read_settings(argc, argv, settings, exit_code)) {
      case Command::done: return exit_code;
      case Command::show_config:
        Tenants::read(settings.file);  // what is wrong with them is said here too
        std::cout << settings_text(settings);
        return 0;
      case Command::check: return check_all(settings);
      case Command::serve: return serve(settings);
    }
    return 0;
  } catch (const SettingsError& error) {
    std::cerr << "fargpud: " << error.what() << "\n";
    return exit_wrong_setting;
  } catch (const std::exception& error) {
    std::cerr << "fargpud: " << error.what() << "\n";
    return exit_no_service;
  }
}
