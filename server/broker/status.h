#pragma once
// What the host says of itself: to clients (`fargpu ls`, `top`, `smi`, NVML), and to Prometheus.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "control.capnp.h"
#include "device_watch.h"
#include "expiry_watch.h"
#include "identity.h"
#include "lease.h"
#include "metrics.h"
#include "service_state.h"
#include "settings.h"
#include "workers.h"

namespace fargpu::server {

/// The client that asks how the host is doing.
struct Viewer {
  std::string tenant;
  bool administrator = false;    ///< sees what every tenant has: unseen sessions cannot be managed
  const Lease* lease = nullptr;  ///< that the asking program runs under: then with its devices alone, and of each what
                                 ///< the lease may have
  KnownBy known_by;              ///< of the client that asks
  bool sees(const Lease& other) const { return lease ? &other == lease : administrator || other.tenant == tenant; }
};

/// How requests for leases went, since the broker began.
struct Admissions {
  std::uint64_t granted = 0;
  std::map<wire::Failure::Reason, std::uint64_t> refused;
  /// Times from request to lease; the last bucket is for all that are longer.
  static constexpr std::array<double, 7> wait_bounds{0.1, 1, 10, 60, 600, 3600, 86'400};
  std::array<std::uint64_t, wait_bounds.size() + 1> waits{};
  double waited_seconds = 0;

  void waited(std::chrono::steady_clock::duration time);
};

/// What the broker knows of itself, for Prometheus.
struct ServiceFacts {
  const Admissions& admissions;
  const ServiceState& state;
  bool reloaded;  ///< the settings could be read when they were last read
  std::vector<ExpiryWatch::Certificate> certificates;
  std::vector<site::TokenEntry> tokens;    ///< that end, the next one first, at most tokens_max
  std::function<void(MetricsText&)> pool;  ///< adds what is known of the host's pool; empty without one
  static constexpr std::size_t tokens_max = 64;
};

/// Reads what others keep. Used by the broker's one thread.
class HostStatus {
 public:
  HostStatus(const Settings& settings, const Leases& leases, const Workers& workers, const DeviceWatch& devices)
      : settings_(settings), leases_(leases), workers_(workers), devices_(devices) {}

  /// As somebody sees it. How many sessions there are is told to everybody, so that none of one's own is not taken for
  /// none at all.
  void write(wire::Status::Builder status, const Viewer& viewer, const ServiceState& state) const;

  /// In Prometheus' text format.
  std::string metrics(const ServiceFacts& service) const;

 private:
  void write_devices(wire::Status::Builder status, const std::vector<unsigned>& places, const Lease* seen) const;
  void write_sessions(wire::Status::Builder status, const std::vector<const Worker*>& sessions,
                      const std::vector<unsigned>& places) const;
  void write_links(wire::Status::Builder status, const std::map<unsigned, unsigned>& numbers) const;
  void write_tenants(wire::Status::Builder status, const Viewer& viewer) const;
  void write_waiting(wire::Status::Builder status, const Viewer& viewer) const;
  void write_residency(const Worker& worker, wire::SessionStatus::Builder to) const;
  void write_state(const Lease& lease, wire::LeaseStatus::Builder to) const;
  void write_leases(wire::Status::Builder status, const Viewer& viewer, const std::vector<unsigned>& places) const;
  // The parts of `metrics`; `host` is the host's name.
  void add_host(MetricsText& text, const std::string& host, const ServiceFacts& service) const;
  void add_devices(MetricsText& text, const std::string& host) const;
  void add_tenants(MetricsText& text, const std::string& host) const;
  void add_sessions(MetricsText& text, const std::string& host) const;

  const Settings& settings_;
  const Leases& leases_;
  const Workers& workers_;
  const DeviceWatch& devices_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace fargpu::server
