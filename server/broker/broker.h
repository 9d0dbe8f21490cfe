#pragma once
// fargpud: admits clients, gives them workers, and says how the host is doing. It never calls CUDA and never sees a call.

#include <asio.hpp>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "device_watch.h"
#include "local_keys.h"
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

  Workers& workers() { return workers_; }

 private:
  class Connection;
  friend class Connection;
  using Ticket = std::array<std::byte, 32>;
  struct Reservation {
    Worker* worker = nullptr;
    ClientFacts client;
    std::unique_ptr<asio::steady_timer> expiry;
  };

  void listen_by_tcp(const ListenAddress& address);
  /// `name`: a path, or of the abstract namespace with a zero byte first.
  void listen_on_socket(const std::string& name);
  template <class Acceptor>
  void accept(Acceptor& acceptor);
  /// The caller who has said nothing for the longest is cut off.
  void make_room();
  Ticket issue(Worker& worker, const ClientFacts& client);
  /// The reservation of a ticket is not wanted any more.
  void withdraw(const Ticket& ticket);
  /// Takes the reservation of a ticket; null if there is none (any more).
  Worker* redeem(std::span<const std::byte> ticket, ClientFacts& client);
  /// Has the host's NVML say how the devices are, before the status is written.
  asio::awaitable<void> look_at_devices();
  void write_status(wire::Status::Builder status);
  void finish_drain(const std::string& why);

  asio::io_context& io_;
  const Settings& settings_;
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
  std::list<Connection*> callers_;  // connections that have asked for no session yet; who spoke last is last
  std::uint64_t next_session_ = 1;
  bool draining_ = false;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

}  // namespace fargpu::server
