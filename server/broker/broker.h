#pragma once
// fargpud: admits clients, gives them workers, and says how the host is doing. It never calls CUDA and never sees a
// call.

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "pending_connections.h"
#include "fair_limit.h"
#include "device_watch.h"
#include "expiry_watch.h"
#include "identity.h"
#include "lease.h"
#include "listeners.h"
#include "local_keys.h"
#include "memory_watch.h"
#include "metrics.h"
#include "notify.h"
#include "pool_host.h"
#include "service_state.h"
#include "settings.h"
#include "status.h"
#include "succession.h"
#include "tickets.h"
#include "workers.h"

namespace fargpu::server {

/// One Asio thread. A connection is read frame by frame, exactly, so that it can be handed to a worker after its first
/// frame.
class Broker {
 public:
  Broker(asio::io_context& io, const Settings& settings);

  /// Enters what an earlier broker of this host has left, once the devices are known.
  void take_over();
  /// Opens the listening sockets. Throws SettingsError, or AddressInUse.
  void listen();
  /// Throws SettingsError where `listen` would, and listens at nothing. The log warns of addresses in use and of what
  /// ends soon.
  void check();
  /// Begins to stop: no new sessions, running ones have their time, then everything ends and the io_context runs dry.
  void stop(const std::string& why, std::chrono::seconds patience);
  /// Ends as soon as no conversation is interrupted by that, within a second, and leaves the sessions to the host's
  /// next broker. Where there is no runtime folder: as `stop`.
  void leave(const std::string& why);
  /// The sessions that were taken over are left to the next broker, because this one cannot serve.
  void give_back() { leaves_ = succession_.possible(); }
  /// Whether the sessions are to go on when this process has ended.
  bool leaves() const { return leaves_; }
  /// What running sessions have, as the settings say now.
  std::chrono::seconds patience() const { return patience_; }

  /// Reads again what may change while sessions run: tenants, certificates, keys, drain_seconds. What is wrong changes
  /// nothing. Of other settings that changed it says that they wait for another start.
  void reload();

  Workers& workers() { return workers_; }
  const Tenants& tenants() const { return leases_.tenants(); }
  bool in_pool() const { return pool_ != nullptr; }
  /// Whether there is a certificate or a key, so that TLS can be spoken.
  bool encrypts() const { return tls_ != nullptr; }
  /// Asks the pool's registry what it is, and logs a warning if it does not answer. Says which pool the host is of. For
  /// a host of a pool.
  asio::awaitable<std::string> check_registry();

 private:
  class Connection;
  friend class Connection;
  /// Sessions that have ended give their memory back by the end of their processes, which the driver may take its time
  /// for. A client that asks meanwhile is not refused for the want of it before this.
  static constexpr auto giving_back_max = std::chrono::seconds(3);

  void warn_of_tenants();
  std::unique_ptr<PoolHost> make_pool_host();
  /// Whether a host of this address in the pool may be the broker that runs here.
  bool may_be_ours(const std::string& address) const;
  /// By which clients tell this host from others; empty if there is nowhere to keep it.
  const std::string& host_identity();
  std::function<void(MetricsText&)> pool_metrics() const;
  void tell_pool() {
    if (pool_) pool_->changed();
  }
  void warn_of_oversubscription(const std::vector<std::uint64_t>& memory_bytes) const;
  void warn_of_ways_in() const;
  void take_identity(std::unique_ptr<Identity> identity);
  /// A connection has come in.
  template <class Socket>
  void meet(Socket socket, Transport transport);
  /// Whether sessions that have ended still hold a quarter or more of what a tenant could have of a device.
  bool much_is_given_back(const std::string& tenant) const;
  /// Whether a session is over, or that of a job which is over: a client that a bandwidth made wait leaves what it sent
  /// behind it, and its worker reads that first, which takes seconds.
  bool sessions_are_ending() const;
  std::shared_ptr<const Lease> lease_of(const ClientFacts& client, const std::optional<JobKey>& job) const;
  WorkerProfile profile(Environment environment, const Lease& lease) const;
  /// Whether a caller may look after this host: one of a tenant that may, or, where nobody is told apart, from this
  /// machine.
  bool may_administer(const std::string& tenant, bool near) const;
  /// Why not; empty when it is done.
  std::string administer(const ClientFacts& by, wire::AdministrationRequest::Reader request);
  bool stopping() const { return state_.at(std::chrono::system_clock::now()) == ServiceState::State::stopping; }
  void end_sessions(const std::string& why);
  bool in_conversation() const;
  /// Looks after each interval, and calls `then` when it is over, at the latest at the deadline.
  void look_until(std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds interval,
                  std::function<bool()> over, std::function<void()> then);
  void finish_stop(const std::string& why);
  void leave_pool(void (PoolHost::*how)(std::function<void()>));
  asio::awaitable<std::string> set_pool_tenant(ClientFacts by, std::string name,
                                               std::optional<pool::TenantRecord> limits);
  /// Why no session can begin now; empty if one can.
  std::string trouble() const;

  asio::io_context& io_;
  const Settings& settings_;
  std::unique_ptr<Identity> identity_;
  std::shared_ptr<asio::ssl::context> tls_;  // of the identity; null if it has none
  const ServiceManager service_manager_;     // before workers start, which do not inherit its socket
  PendingConnections pending_;               // raises the limit of descriptors, by which others go
  Leases leases_;
  const Succession succession_;
  std::string host_identity_;
  Workers workers_;
  Tickets tickets_;
  DeviceWatch device_watch_;
  MemoryWatch memory_watch_;
  const HostStatus status_;
  LocalKeys local_keys_;
  FairLimit patient_;  // connections that wait for a lease, or hold one
  Listeners listeners_;
  asio::signal_set signals_;
  asio::steady_timer stop_timer_;
  bool ending_sessions_ = false;
  bool leaves_ = false;
  ExpiryWatch expiry_watch_;
  ServiceState state_;
  std::chrono::seconds patience_;
  std::unique_ptr<pool::Registry> registry_;  // of the pool; null without one
  std::unique_ptr<PoolHost> pool_;            // null without one
  std::uint64_t next_session_ = 1;
  Admissions admissions_;
  bool reloaded_ = true;  // the last time that it was tried
  std::unique_ptr<MetricsServer> metrics_;
};

}  // namespace fargpu::server
