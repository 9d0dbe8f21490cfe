#pragma once
// Where the broker hears clients.

#include <asio.hpp>

#include <functional>
#include <list>
#include <string>

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
  Listeners(asio::io_context& io, const Settings& settings, Heard heard);

  /// `can_encrypt`: there is a certificate or a key. Throws SettingsError, that says what to do.
  void open(const ListenAddress& address, bool can_encrypt);
  /// `name`: a path, or of the abstract namespace with a zero byte first.
  void open_socket(const std::string& name);
  bool any_by_tcp() const { return !acceptors_.empty(); }

 private:
  template <class Acceptor>
  void accept(Acceptor& acceptor, Transport transport);

  asio::io_context& io_;
  const Settings& settings_;
  const Heard heard_;
  std::list<asio::ip::tcp::acceptor> acceptors_;
  std::list<asio::local::stream_protocol::acceptor> local_acceptors_;
  asio::steady_timer pause_;
};

}  // namespace fargpu::server
