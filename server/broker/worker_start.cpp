#include "worker_start.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string_view>

extern char** environ;

namespace fargpu::server {
namespace {

constexpr int link_descriptor = 3, door_descriptor = 4;  // of a worker

// From our own environment, what a process needs and what NVIDIA's driver, RDMA's libraries, sanitizers and the
// software GPU read. Not what a client may have an opinion on (CUDA_*), and nothing else: the service may have been
// started with secrets.
bool passes_to_worker(std::string_view variable) {
  constexpr std::string_view names[] = {"HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"};
  constexpr std::string_view groups[] = {
      "ASAN_", "FARGPU_FAKE_", "FARGPU_SOFTGPU_", "FARGPU_TEST_", "GLIBC_", "IBV_",  "LC_",   "LD_",
      "LSAN_", "MALLOC_",      "MLX5_",           "NVIDIA_",      "RDMAV_", "TSAN_", "UBSAN_"};
  const std::string_view name = variable.substr(0, variable.find('='));
  return std::ranges::find(names, name) != std::end(names) ||
         std::ranges::any_of(groups, [&](std::string_view group) { return name.starts_with(group); });
}

// The worker's environment: some of ours, and the client's.
std::vector<std::string> compose(const Environment& environment) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable)
    if (passes_to_worker(*variable)) variables.emplace_back(*variable);
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::uint64_t host_bytes_max(const Settings& settings) {
  if (settings.host_bytes_max != 0) return settings.host_bytes_max;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) /
         2;
}

// The driver's own numbers of a profile's devices.
std::string devices_argument(const Settings& settings, const WorkerProfile& profile) {
  if (profile.devices.empty()) return settings.devices;
  const std::vector<int> offered = parse_devices(settings.devices);
  std::string text;
  for (const unsigned place : profile.devices)
    text += (text.empty() ? "" : ",") + std::to_string(offered.empty() ? static_cast<int>(place) : offered.at(place));
  return text;
}

}  // namespace

std::vector<std::string> worker_arguments(const Settings& settings, const WorkerProfile& profile, bool warm,
                                          bool has_door) {
  std::vector<std::string> arguments{settings.worker,
                                     "--driver",
                                     settings.driver,
                                     "--link",
                                     std::to_string(link_descriptor),
                                     "--image-bytes-max",
                                     std::to_string(settings.image_bytes_max),
                                     "--content-bytes-max",
                                     std::to_string(settings.content_bytes_max),
                                     "--host-bytes-max",
                                     std::to_string(host_bytes_max(settings)),
                                     "--spin-us",
                                     std::to_string(settings.spin_us),
                                     "--launch-threads",
                                     std::to_string(settings.launch_threads),
                                     "--silence-seconds",
                                     std::to_string(settings.silence_seconds)};
  if (const std::string devices = devices_argument(settings, profile); !devices.empty())
    arguments.insert(arguments.end(), {"--devices", devices});
  if (!profile.sm_groups.empty()) arguments.insert(arguments.end(), {"--sm-groups", text_of(profile.sm_groups)});
  if (has_door) arguments.insert(arguments.end(), {"--door", std::to_string(door_descriptor)});
  if (settings.sandbox) arguments.emplace_back("--sandbox");
  arguments.insert(arguments.end(), {"--rdma-networks", settings.rdma_networks, "--rdma-transports",
                                     settings.rdma_transports, "--gpudirect", settings.gpudirect});
  if (!settings.worker_user.empty()) arguments.insert(arguments.end(), {"--user", settings.worker_user});
  if (settings.warm_context && warm) arguments.emplace_back("--warm-context");
  return arguments;
}

int spawn_worker(pid_t& process, std::vector<std::string> arguments, const Environment& environment, int link,
                 int door) {
  std::vector<std::string> variables = compose(environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // In this order: the door's number here is higher than both.
  posix_spawn_file_actions_adddup2(&actions, link, link_descriptor);
  if (door >= 0) posix_spawn_file_actions_adddup2(&actions, door, door_descriptor);
  // Nothing else of ours: neither the listening sockets, which would outlive us in it, nor the connections of other
  // clients.
  posix_spawn_file_actions_addclosefrom_np(&actions, (door >= 0 ? door_descriptor : link_descriptor) + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own: a Ctrl-C at our terminal is for us alone.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawn(&process, arguments.front().c_str(), &actions, &attributes,
                                  pointers(arguments).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace fargpu::server
