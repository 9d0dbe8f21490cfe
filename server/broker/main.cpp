// fargpud: the broker of a GPU host.

#include <asio.hpp>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "broker.h"
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
  if (!error && ::access(settings.image_folder.c_str(), W_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error)
    EventLog::warn("no image folder", {{"folder", settings.image_folder}, {"reason", error.message()},
                                       {"meaning", "each session sends its GPU code again; set --image-folder"}});
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  try {
    int exit_code = 0;
    switch (read_settings(argc, argv, settings, exit_code)) {
      case Wish::done:
        return exit_code;
      case Wish::show_config:
        Tenants::read(settings.file);  // what is wrong with them is said here too
        for (const Settings::Origin& origin : settings.origins)
          std::cout << origin.name << " = " << (origin.value.empty() ? "(empty)" : origin.value) << "   # " << origin.from << "\n";
        return 0;
      case Wish::serve:
        break;
    }
    EventLog::start(settings.log_level, settings.log_format);
    ::signal(SIGPIPE, SIG_IGN);
    for (const std::string& name : settings.unknown_variables)
      EventLog::warn("no such setting", {{"variable", name}, {"meaning", "it counts for nothing; `fargpud --help` lists those that there are"}});
    check_image_folder(settings);
    asio::io_context io;
    Broker broker(io, settings);
    asio::signal_set signals(io, SIGTERM, SIGINT);
    std::function<void()> wait = [&] {
      signals.async_wait([&](const asio::error_code& error, int signal) {
        if (error) return;
        const bool gently = signal == SIGTERM;
        broker.drain(gently ? "SIGTERM" : "SIGINT", std::chrono::seconds(gently ? settings.drain_seconds : 0));
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
                                     {"meaning", "nothing can be served; mend the driver of this machine, or name another by --driver"}});
        status = 1;
        io.stop();
        return;
      }
      broker.workers().release(*worker);
      const auto facts = broker.workers().facts();
      EventLog::info("driver", {{"library", settings.driver},
                                {"version", facts->getDriverVersion()},
                                {"devices", facts->getDevices().size()}});
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
