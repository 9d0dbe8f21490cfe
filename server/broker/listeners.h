#pragma once
// Where the broker hears clients.

#include <asio.hpp>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "given_sockets.h"
#include "notify.h"
#include "settings.h"

namespace fargpu::server {

/// What is spoken on a connection.
enum class Transport { plain, tls };

/// The broker's listening sockets, from the settings' `listen`.
class Listeners {
 public:
  struct Heard {
    std::function<void(asio::ip::tcp::socket, Transport)> by_tcp;
    std::function<void(asio::local::stream_protocol::socket)> by_socket;
    std::function<void()> trouble;  ///< a connection could not be taken: most likely descriptors or memory ran out
  };
  /// Sockets that listen already are taken over, and the service manager keeps all for the next broker, so that nobody
  /// is refused in between.
  Listeners(asio::io_context& io, const Settings& settings, const ServiceManager& manager, Heard heard);

  /// All of them, and no others: what listens at those is closed first, so that it is in no new one's way.
  /// `can_encrypt`: there is a certificate or a key. Throws SettingsError that says what to do, AddressInUse or
  /// AddressMissing.
  void open(const std::vector<ListenAddress>& addresses, bool can_encrypt);
  /// `name`: a path, or of the abstract namespace with a zero byte first. Throws as `open`.
  void open_socket(const std::string& name);
  /// Throws what `open` would, and listens at nothing.
  void check(const ListenAddress& address, bool can_encrypt);
  bool any_by_tcp() const { return !acceptors_.empty(); }
  /// How clients of other machines write this host, whose name this is, in FARGPU_POOL: by the first port that they
  /// reach, or else by the first of the loopback. Empty: by none.
  std::string address_for_clients(const std::string& name) const;

 private:
  struct Endpoint {
    asio::ip::tcp::endpoint address;
    bool tls = false;
  };
  /// Where an address is, and whether TLS is spoken there. Throws SettingsError where that cannot be served.
  Endpoint resolve(const ListenAddress& address, bool can_encrypt);
  GivenSockets::Wanted wanted(const asio::ip::tcp::endpoint& endpoint) const;
  void close_others(const std::vector<GivenSockets::Wanted>& wanted);
  void open(const ListenAddress& address, const Endpoint& endpoint);
  asio::ip::tcp::acceptor bind(const ListenAddress& address, const Endpoint& endpoint);
  void bind(asio::local::stream_protocol::acceptor& acceptor, const std::string& path);
  void check_socket(const std::string& path);
  template <class Acceptor>
  void accept(Acceptor& acceptor, Transport transport);

  asio::io_context& io_;
  const Settings& settings_;
  const ServiceManager& manager_;
  const Heard heard_;
  GivenSockets given_;
  std::list<asio::ip::tcp::acceptor> acceptors_;
  std::vector<Endpoint> open_;  // as they were bound
  std::list<asio::local::stream_protocol::acceptor> local_acceptors_;
};

}  // namespace fargpu::server
