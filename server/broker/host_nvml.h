#pragma once
// What this host's NVML says of its devices: how much they do, how warm they are. Nothing where there is no such
// library, and nothing of devices that it does not know, such as the software GPU's.

#include <capnp/blob.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control.capnp.h"

namespace fargpu::server {

/// Loads the library when it is first asked. Any call may hang as long as NVML does. Used by one thread.
class HostNvml {
 public:
  struct Reading {
    wire::Reading::Kind kind;
    std::int64_t value;
  };
  struct Distance {
    unsigned from;
    unsigned to;
    unsigned level;
  };

  /// `path`: of libnvidia-ml; empty for none.
  explicit HostNvml(std::string path) : path_(std::move(path)) {}
  HostNvml(const HostNvml&) = delete;
  HostNvml& operator=(const HostNvml&) = delete;

  /// `uuid`: the device's 16 bytes.
  std::vector<Reading> read(capnp::Data::Reader uuid);
  /// Memory of a device by the processes that have it, whatever for.
  std::map<unsigned, std::uint64_t> process_bytes(capnp::Data::Reader uuid);
  /// nvmlGpuTopologyLevel_t between two devices.
  std::optional<unsigned> distance(capnp::Data::Reader from, capnp::Data::Reader to);

 private:
  using Handle = void*;
  struct Device {
    Handle handle = nullptr;
  };
  bool ready();
  Device* find(capnp::Data::Reader uuid);
  std::vector<Reading> read_now(const Device& device);
  template <class Function>
  Function* function(const char* name);

  const std::string path_;
  void* library_ = nullptr;
  bool started_ = false;
  std::optional<std::chrono::steady_clock::time_point> tried_at_;
  std::map<std::string, Device> devices_;                                   // by what NVML calls them
  std::map<std::pair<Handle, Handle>, std::optional<unsigned>> distances_;  // which do not change
};

}  // namespace fargpu::server
