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
  /// How one device lies to another one.
  struct Distance {
    unsigned level = 0;                     ///< nvmlGpuTopologyLevel_t
    std::vector<std::uint8_t> peer_status;  ///< nvmlGpuP2PStatus_t, by nvmlGpuP2PCapsIndex_t; empty if not known
  };
  /// An NVLink that is up.
  struct Link {
    unsigned number = 0;
    unsigned version = 0;
    unsigned capabilities = 0;  ///< a bit for each nvmlNvLinkCapability_t
    unsigned remote_type = 0;   ///< nvmlIntNvLinkDeviceType_t
    unsigned remote_domain = 0, remote_bus = 0, remote_pci_device = 0, remote_pci_device_id = 0;
    std::string remote_bus_id, remote_bus_id_legacy;
  };

  /// `path`: of libnvidia-ml; empty for none.
  explicit HostNvml(std::string path) : path_(std::move(path)) {}
  HostNvml(const HostNvml&) = delete;
  HostNvml& operator=(const HostNvml&) = delete;

  /// `uuid`: the device's 16 bytes.
  std::vector<Reading> read(capnp::Data::Reader uuid);
  /// Memory of a device by the processes that have it, whatever for.
  std::map<unsigned, std::uint64_t> process_bytes(capnp::Data::Reader uuid);
  std::optional<Distance> distance(capnp::Data::Reader from, capnp::Data::Reader to);
  std::vector<Link> links(capnp::Data::Reader uuid);

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
  std::map<std::string, Device> devices_;  // by what NVML calls them
  // What does not change.
  std::map<std::pair<Handle, Handle>, std::optional<Distance>> distances_;
  std::map<Handle, std::vector<Link>> links_;
};

}  // namespace fargpu::server
