// fargpud: the broker of a GPU host.

#include <asio.hpp>

#include <pwd.h>
#include <unistd.h>

#include <fmt/ranges.h>

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
#include "settings.h"
#include "tenants.h"

namespace {

using namespace fargpu::server;

// Without it everything works, but code is sent again by each session.
void check_image_folder(const Settings& settings) {
  if (settings.image_folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(settings.image_folder, error);
  if (!error && ::access(settings.image_folder.c_str(), W_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (error)
    EventLog::warn("no image folder", {{"folder", settings.image_folder},
                                       {"reason", error.message()},
                                       {"meaning", "each session sends its GPU code again; set --image-folder"}});
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
                   "may run out within leases until then; end them by these process ids if that must not be"}});
}

// By what was said of it: a wrong choice of devices, or the driver itself.
std::string what_to_do(const Settings& settings, const std::string& failure) {
  if (!settings.devices.empty() && failure.find("the devices " + settings.devices) != std::string::npos)
    return "devices is '" + settings.devices +
           "': name those that the driver has, by its numbers from 0 (`nvidia-smi -L`), or leave it out for all";
  return "repair the driver of this machine, or name another by --driver";
}

// All that can be wrong without a driver. What is not throws.
int check_all(const Settings& settings) {
  const Tenants tenants = Tenants::read(settings.file);
  check_workers(settings);
  const Identity identity(settings);
  ExpiryWatch::require_valid(settings, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
  for (const std::string& name : settings.unknown_variables)
    std::cerr << "fargpud: the variable " << name << " is no setting, and has no effect\n";
  std::cout << (settings.file.empty() ? "the settings" : settings.file) << (settings.file.empty() ? " are" : " is")
            << " in order: " << fargpu::so_many(tenants.all().size(), "tenant") << ", "
            << (identity.context() ? "TLS" : "no TLS") << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  try {
    int exit_code = 0;
    switch (read_settings(argc, argv, settings, exit_code)) {
      case Command::done: return exit_code;
      case Command::show_config:
        Tenants::read(settings.file);  // what is wrong with them is said here too
        std::cout << settings_text(settings);
        return 0;
      case Command::check: return check_all(settings);
      case Command::serve: break;
    }
    EventLog::start(settings.log_level, settings.log_format);
    ::signal(SIGPIPE, SIG_IGN);
    for (const std::string& name : settings.unknown_variables)
      EventLog::warn("no such setting", {{"variable", name},
                                         {"meaning", "it has no effect; `fargpud --help` lists those that there are"}});
    check_workers(settings);
    check_image_folder(settings);
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
    asio::signal_set reload(io, SIGHUP);
    std::function<void()> wait_to_reload = [&] {
      reload.async_wait([&](const asio::error_code& error, int) {
        if (error) return;
        broker.reload();
        wait_to_reload();
      });
    };
    wait_to_reload();
    // A host whose driver does not work says so at once instead of refusing every client later.
    int status = 0;
    broker.workers().reserve({}, [&](Worker* worker, const std::string& failure) {
      if (!worker) {
        EventLog::error("no driver", {{"driver", settings.driver},
                                      {"reason", failure},
                                      {"meaning", "nothing can be served; " + what_to_do(settings, failure)}});
        status = 1;
        io.stop();
        return;
      }
      broker.workers().release(*worker);
      const auto facts = broker.workers().facts();
      EventLog::info("driver", {{"library", settings.driver},
                                {"version", facts->getDriverVersion()},
                                {"devices", facts->getDevices().size()}});
      warn_of_earlier_sessions(settings);
      try {
        broker.listen();
      } catch (const SettingsError& error) {
        std::cerr << "fargpud: " << error.what() << "\n";
        status = 2;
        io.stop();
      }
    });
    io.run();
    broker.workers().kill_all();
    // What still waits in `io` refers to the broker, and the broker to `io`: neither can go first.
    std::_Exit(status);
  } catch (const SettingsError& error) {
    std::cerr << "fargpud: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "fargpud: " << error.what() << "\n";
    return 1;
  }
}
