#pragma once
// What NVML answers from: the GPU host's own words about its devices.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "nvml.h"

namespace fargpu::client::nvml {

struct Device {
  std::string name;
  std::string uuid;  ///< "GPU-" and the number
  unsigned pci_domain = 0;
  unsigned pci_bus = 0;
  unsigned pci_device = 0;
  unsigned pci_device_id = 0;     ///< vendor in the lower half; 0 if the host could not tell
  unsigned pci_subsystem_id = 0;  ///< the same
  int compute_capability = 0;     ///< 10 * major + minor
  std::uint64_t memory_bytes = 0;
  std::uint64_t used_bytes = 0;
};

/// A program on this machine with a session at the host.
struct Session {
  unsigned process_id = 0;
  std::vector<std::uint64_t> memory_bytes;  ///< per device
};

struct Host {
  std::string driver_release;  ///< such as 580.95.05; empty if the host could not tell
  int driver_version = 0;      ///< CUDA level
  std::vector<Device> devices;
  std::vector<Session> sessions;
};

/// Asks the first host of FARGPU_POOL that answers. A connection per question: there is none to be torn by a fork, and none that keeps
/// a host busy. Throws DialError.
Host ask_host();

}  // namespace fargpu::client::nvml
