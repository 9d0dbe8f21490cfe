#include "listeners.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <type_traits>
#include <utility>

#include "event_log.h"

namespace fargpu::server {
namespace {

constexpr auto accept_pause = std::chrono::milliseconds(100);

}  // namespace

Listeners::Listeners(asio::io_context& io, const Settings& settings, Heard heard)
    : io_(io), settings_(settings), heard_(std::move(heard)), pause_(io) {}

void Listeners::open_socket(const std::string& name) {
  const bool abstract = name.front() == '\0';
  const std::string shown = "unix:" + (abstract ? "@" + name.substr(1) : name);
  const asio::local::stream_protocol::endpoint endpoint(name);
  try {
    // A socket that a broker left behind, which nobody serves any more.
    asio::error_code refused;
    asio::local::stream_protocol::socket probe(io_);
    if (!abstract) probe.connect(endpoint, refused);
    struct stat there {};
    const bool other = !abstract && ::lstat(name.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode);
    if (other) throw SettingsError("listen: " + shown + " is there and no socket; name another, or remove it");
    if (refused == asio::error::connection_refused) ::unlink(name.c_str());
    asio::local::stream_protocol::acceptor& acceptor = local_acceptors_.emplace_back(io_);
    acceptor.open();
    acceptor.bind(endpoint);
    // The user at the other end decides whether it may have a session, whatever umask this was started with.
    // The folder can be for fewer.
    if (!abstract && ::chmod(name.c_str(), 0666) != 0)
      throw asio::system_error(asio::error_code(errno, asio::error::get_system_category()));
    acceptor.listen();
    // The other is no address that anybody gives: clients hear of it.
    if (abstract) EventLog::debug("local socket", {{"address", shown}});
    else EventLog::info("listening", {{"address", shown}});
    accept(acceptor, Transport::plain);
  } catch (const asio::system_error& failed) {
    const bool taken = failed.code() == asio::error::address_in_use;
    throw SettingsError("listen: cannot listen on " + shown + " (" + failed.code().message() + ")" +
                        (taken ? "; is another fargpud running?" : "; name a folder that this user may write to"));
  }
}

void Listeners::open(const ListenAddress& address, bool can_encrypt) {
  if (!address.socket.empty()) return open_socket(address.socket);
  asio::ip::tcp::resolver resolver(io_);
  asio::error_code error;
  const auto endpoints =
      resolver.resolve(address.host, std::to_string(address.port), asio::ip::tcp::resolver::passive, error);
  if (error) throw SettingsError("listen: there is no address '" + address.host + "' (" + error.message() + ")");
  const asio::ip::tcp::endpoint endpoint = *endpoints.begin();
  const bool loopback = endpoint.address().is_loopback();
  const bool tls = address.transport == ListenAddress::Transport::tls ||
                   (address.transport == ListenAddress::Transport::usual && !loopback && !settings_.insecure);
  if (tls && !can_encrypt) {
    throw SettingsError(
        "listen: " + endpoint.address().to_string() +
        (loopback ? " is to speak TLS" : " can be reached from other machines, and therefore speaks TLS") +
        ", which needs tls_certificate and tls_key (`fargpu pki` makes them) or psk_file; give them" +
        (loopback ? "" : ", listen on 127.0.0.1 (and tunnel), or accept the risk with --insecure"));
  }
  if (!tls && !loopback) {
    if (!settings_.insecure) {
      throw SettingsError("listen: " + endpoint.address().to_string() +
                          " can be reached from other machines, and tcp:// is neither encrypted nor authenticated; "
                          "write tls://, or accept the "
                          "risk with --insecure");
    }
    EventLog::warn("insecure",
                   {{"address", endpoint.address().to_string()},
                    {"meaning", "every machine that reaches this port can use the GPUs; nothing is encrypted"}});
  }
  try {
    asio::ip::tcp::acceptor& acceptor = acceptors_.emplace_back(io_);
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    const auto bound = acceptor.local_endpoint();
    EventLog::info(
        "listening",
        {{"transport", tls ? "tls" : "tcp"}, {"address", bound.address().to_string()}, {"port", bound.port()}});
    accept(acceptor, tls ? Transport::tls : Transport::plain);
  } catch (const asio::system_error& failed) {
    const bool taken = failed.code() == asio::error::address_in_use;
    const bool privileged = failed.code() == asio::error::access_denied;
    throw SettingsError("listen: cannot listen on " + address.host + ":" + std::to_string(address.port) + " (" +
                        failed.code().message() + "); " +
                        (taken        ? "is another fargpud running?"
                         : privileged ? "ports below 1024 are for root"
                                      : "name an address that this machine has"));
  }
}

template <class Acceptor>
void Listeners::accept(Acceptor& acceptor, Transport transport) {
  using Socket = typename Acceptor::protocol_type::socket;
  acceptor.async_accept([this, &acceptor, transport](const asio::error_code& error, Socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {  // which does not change at once
      EventLog::warn("cannot accept", {{"reason", error.message()}});
      heard_.trouble();
      pause_.expires_after(accept_pause);
      pause_.async_wait([this, &acceptor, transport](const asio::error_code& stopped) {
        if (!stopped) accept(acceptor, transport);
      });
      return;
    }
    if constexpr (std::is_same_v<Socket, asio::ip::tcp::socket>) heard_.by_tcp(std::move(socket), transport);
    else heard_.by_socket(std::move(socket));
    accept(acceptor, transport);
  });
}

}  // namespace fargpu::server
