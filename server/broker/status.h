#pragma once
// What the host says of itself: to clients (`fargpu ls`, `top`, `smi`, NVML), and to Prometheus.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "device_watch.h"
#include "lease.h"
#include "settings.h"
#include "workers.h"

namespace fargpu::server {

/// Reads what others keep. Used by the broker's one thread.
class HostStatus {
 public:
  HostStatus(const Settings& settings, const Leases& leases, const Workers& workers, const DeviceWatch& devices)
      : settings_(settings), leases_(leases), workers_(workers), devices_(devices) {}

  /// As a tenant sees it: with its own leases and sessions. With a lease, as its programs see it: with its devices alone, and of each
  /// what the lease may have.
  void write(wire::Status::Builder status, const std::string& tenant, const Lease* seen, bool draining) const;

  /// In Prometheus' text format. `admissions`: by how they went.
  std::string metrics(const std::map<std::string, std::uint64_t>& admissions) const;

 private:
  void write_devices(wire::Status::Builder status, const std::vector<unsigned>& places, const Lease* seen) const;
  void write_sessions(wire::Status::Builder status, const std::vector<const Worker*>& sessions, const std::vector<unsigned>& places) const;
  void write_leases(wire::Status::Builder status, const std::string& tenant, const std::vector<unsigned>& places, const Lease* seen) const;

  const Settings& settings_;
  const Leases& leases_;
  const Workers& workers_;
  const DeviceWatch& devices_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace fargpu::server
