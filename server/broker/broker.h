#pragma once
// fargpud: admits clients, gives them workers, and says how the host is doing. It never calls CUDA and never sees a call.

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "count.h"
#include "device_watch.h"
#include "identity.h"
#include "lease.h"
#include "local_keys.h"
#include "metrics.h"
#include "offences.h"
#include "settings.h"
#include "workers.h"

namespace fargpu::server {

/// One Asio thread. A connection is read frame by frame, exactly, so that it can be handed to a worker after its first frame.
class Broker {
 public:
  Broker(asio::io_context& io, const Settings& settings);

  /// Opens the listening sockets. Throws SettingsError.
  void listen();
  /// Begins to stop: no new sessions, running ones have their time, then everything ends and the io_context runs dry.
  void drain(const std::string& why, std::chrono::seconds patience);

  /// Reads again what may change while sessions run: tenants, certificates, keys. What is wrong changes nothing.
  void reload();

  Workers& workers() { return workers_; }

 private:
  class Connection;
  friend class Connection;
  using Ticket = std::array<std::byte, 32>;
  using TicketName = std::array<std::byte, 16>;
  enum class Transport { plain, tls };
  struct Reservation {
    Worker* worker = nullptr;
    ClientFacts client;
    TicketName name{};    ///< for connections that speak TLS
    bool secure = false;  ///< only they may come with it
    std::unique_ptr<asio::steady_timer> expiry;
  };

  void warn_of_tenants();
  void listen_by_tcp(const ListenAddress& address);
  /// `name`: a path, or of the abstract namespace with a zero byte first.
  void listen_on_socket(const std::string& name);
  template <class Acceptor>
  void accept(Acceptor& acceptor, Transport transport);
  void take_identity(std::unique_ptr<Identity> identity);
  /// The caller who has said nothing for the longest is cut off.
  void make_room();
  /// The same for callers from one address, if there are too many.
  void make_room(const std::string& source);
  /// Somebody came to nothing: says so in the log, if that is not full of him already.
  void offended(const char* event, const std::string& peer, const std::string& source, const std::string& reason);
  /// Whether sessions that have ended still hold a quarter or more of what a tenant could have of a device.
  bool much_is_given_back(const std::string& tenant) const;
  Ticket issue(Worker& worker, const ClientFacts& client, Transport transport);
  /// The reservation of a ticket is not wanted any more.
  void withdraw(const Ticket& ticket);
  /// Takes the reservation of a ticket; null if there is none (any more).
  Worker* redeem(std::span<const std::byte> ticket, ClientFacts& client);
  /// The same for the ticket of a name, for a connection that is to speak TLS; tells the ticket too.
  Worker* redeem_name(std::span<const std::byte> name, ClientFacts& client, Ticket& ticket);
  Worker* take(std::map<Ticket, Reservation>::iterator reservation, ClientFacts& client);
  /// Charges sessions, every now and then, for what the driver has taken for itself: what NVML sees more than they were charged for. Ends
  /// those for which it has taken too much.
  asio::awaitable<void> watch_memory();
  /// Has the host's NVML say how the devices are, before the status is written.
  asio::awaitable<void> look_at_devices();
  /// As a tenant sees it: with its own leases and sessions. With a lease, as its programs see it: with its devices alone, and of each
  /// what the lease may have.
  void write_status(wire::Status::Builder status, const std::string& tenant, const Lease* lease);
  void write_devices(wire::Status::Builder status, const std::vector<unsigned>& places, const Lease* seen);
  std::shared_ptr<const Lease> lease_of(const ClientFacts& client, const std::optional<JobKey>& job) const;
  Profile profile(Environment environment, const Lease& lease) const;
  /// Whether a caller may change how devices are shared: one of a tenant that may, or, where nobody is told apart, from this machine.
  bool may_administer(const std::string& tenant, bool near) const;
  std::string write_metrics() const;
  /// Why not; empty when it is done.
  std::string change_scheduling(wire::SchedulingRequest::Reader request);
  void finish_drain(const std::string& why);

  asio::io_context& io_;
  const Settings& settings_;
  std::unique_ptr<Identity> identity_;
  std::shared_ptr<asio::ssl::context> tls_;  // of the identity; null if it has none
  Leases leases_;
  Workers workers_;
  DeviceWatch device_watch_;
  LocalKeys local_keys_;
  std::list<asio::ip::tcp::acceptor> acceptors_;
  std::list<asio::local::stream_protocol::acceptor> local_acceptors_;
  asio::signal_set signals_;
  asio::steady_timer drain_timer_;
  asio::steady_timer accept_timer_;
  std::map<Ticket, Reservation> reservations_;
  const std::size_t callers_max_;
  Offences offences_;
  Count patient_;  // connections that wait for a lease, or hold one
  std::list<Connection*> callers_;  // connections that have asked for no session yet; who spoke last is last
  std::uint64_t next_session_ = 1;
  bool draining_ = false;
  std::map<std::string, std::uint64_t> admissions_;  // by how they went
  std::unique_ptr<MetricsServer> metrics_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace fargpu::server
