#pragma once
// A GPU host as it tells of itself: its devices and their users. NVML and `fargpu smi` answer from it.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control.capnp.h"

namespace fargpu::client::report {

/// An NVLink that is up.
struct Link {
  static constexpr unsigned capabilities_max = 6;  ///< NVML_NVLINK_CAP_COUNT

  unsigned version = 0;
  unsigned capabilities = 0;                 ///< a bit for each nvmlNvLinkCapability_t
  unsigned remote_type = 0;                  ///< nvmlIntNvLinkDeviceType_t
  std::optional<std::size_t> remote_device;  ///< what is at the other end, by its number, if it is one of the devices
  unsigned remote_domain = 0, remote_bus = 0, remote_pci_device = 0, remote_pci_device_id = 0;
  std::string remote_bus_id, remote_bus_id_legacy;
};

struct Device {
  std::string name;
  std::string uuid;  ///< "GPU-" and the number
  unsigned pci_domain = 0;
  unsigned pci_bus = 0;
  unsigned pci_device = 0;
  unsigned pci_device_id = 0;     ///< vendor in the lower half; 0 if the host could not tell
  unsigned pci_subsystem_id = 0;  ///< vendor in the lower half; 0 if the host could not tell
  int compute_capability = 0;     ///< 10 * major + minor
  std::uint64_t memory_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::map<int, int> attributes;  ///< by CUdevice_attribute
  std::map<wire::Reading::Kind, std::int64_t> readings;
  std::map<unsigned, Link> links;  ///< by their numbers

  std::optional<std::int64_t> reading(wire::Reading::Kind kind) const {
    const auto found = readings.find(kind);
    return found == readings.end() ? std::nullopt : std::optional(found->second);
  }
};

/// A program on this machine with a session at the host.
struct Session {
  unsigned process_id = 0;
  std::string program;
  std::vector<std::uint64_t> memory_bytes;  ///< per device
};

struct Host {
  std::string driver_release;  ///< such as 580.95.05; empty if the host could not tell
  int driver_version = 0;      ///< CUDA level
  std::vector<Device> devices;
  std::vector<Session> sessions;
  std::string address;   ///< as FARGPU_POOL names it
  bool guessed = false;  ///< the devices are as many as the process's lease will have, and perhaps others of the host
  struct Peer {
    bool can_access = false;
    std::map<int, int> attributes;  ///< by CUdevice_P2PAttribute
  };
  struct Distance {
    unsigned level = 0;                     ///< nvmlGpuTopologyLevel_t
    std::vector<std::uint8_t> peer_status;  ///< nvmlGpuP2PStatus_t, by nvmlGpuP2PCapsIndex_t; empty if not known
  };
  std::map<std::pair<unsigned, unsigned>, Peer> peers;  ///< by numbers of devices
  std::map<std::pair<unsigned, unsigned>, Distance> distances;
};

/// What a host's status says to programs on this machine: of memory, what FARGPU_MEM leaves.
Host read_host(wire::Status::Reader status);

/// Asks the first host of FARGPU_POOL that answers; if programs may have devices of several, all that answer, whose
/// devices are numbered across them. Of one host the devices are those of the process's lease. A connection per
/// question: there is none to be torn by a fork, and none that keeps a host busy. Throws DialError.
Host ask_host();

}  // namespace fargpu::client::report
