#pragma once
// How the host's devices are doing, without waiting for the process that reads them.

#include <sys/types.h>

#include <asio.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host_nvml.h"

namespace fargpu::server {

/// Asks the host's NVML on a thread of its own, when somebody wants to know: NVML may hang, as it does over a GPU that
/// has fallen off its bus, and then nothing is known, but nobody else waits. Used by the broker's thread.
class DeviceWatch {
 public:
  /// `path`: of libnvidia-ml; empty for none.
  DeviceWatch(asio::io_context& io, std::string path);
  ~DeviceWatch();

  /// Has NVML asked about these devices, by their 16 bytes each; over when it has answered, or after a while.
  asio::awaitable<void> refresh(std::vector<std::string> uuids);
  /// What it said; nothing if that is long ago.
  std::vector<HostNvml::Reading> readings(std::size_t device) const;
  /// Memory of a device that a process has, whatever for; nothing if that is not known, or was long ago.
  std::optional<std::uint64_t> process_bytes(std::size_t device, pid_t process) const;
  /// Between devices, by their numbers in the list.
  std::map<std::pair<unsigned, unsigned>, HostNvml::Distance> distances() const;
  /// A device's.
  std::vector<HostNvml::Link> links(std::size_t device) const;

 private:
  struct State;
  static void ask(const std::shared_ptr<State>& state);

  asio::io_context& io_;
  const std::shared_ptr<State> state_;  // the thread may outlive this, in NVML
};

}  // namespace fargpu::server
