#include "listeners.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "event_log.h"
#include "passed_descriptors.h"

namespace fargpu::server {
namespace {

constexpr auto accept_pause = std::chrono::milliseconds(100);

[[noreturn]] void refuse(const ListenAddress& address, const asio::error_code& error) {
  const std::string what =
      "listen: cannot listen on " + address.host + ":" + std::to_string(address.port) + " (" + error.message() + "); ";
  if (error == asio::error::address_in_use) throw AddressInUse(what + "is another fargpud running?");
  if (error == asio::error::access_denied) throw SettingsError(what + "ports below 1024 are for root");
  throw AddressMissing(what + "name an address that this machine has");
}

bool is_other_file(const std::string& path) {
  struct stat there {};
  return ::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode);
}

// Names of kept sockets have no colons.
std::string kept_name(std::string address) {
  std::replace(address.begin(), address.end(), ':', '-');
  return address;
}

}  // namespace

Listeners::Listeners(asio::io_context& io, const Settings& settings, const ServiceManager& manager, Heard heard)
    : io_(io), settings_(settings), manager_(manager), heard_(std::move(heard)) {}

// One of IPv6 would be that of IPv4 as well, where that has the same port.
GivenSockets::Wanted Listeners::wanted(const asio::ip::tcp::endpoint& endpoint) const {
  const auto addresses = parse_listen(settings_.listen);
  const bool by_ipv4 = std::any_of(addresses.begin(), addresses.end(), [&](const ListenAddress& address) {
    asio::error_code none;
    const auto number = asio::ip::make_address(address.host, none);
    return address.port == endpoint.port() && !none && number.is_v4();
  });
  return {GivenSockets::address_of(endpoint), endpoint.address().is_v6() && by_ipv4};
}

void Listeners::open(const std::vector<ListenAddress>& addresses, bool can_encrypt) {
  std::vector<Endpoint> endpoints;  // of Unix sockets nothing
  std::vector<GivenSockets::Wanted> all;
  for (const ListenAddress& address : addresses) {
    const bool by_tcp = address.socket.empty();
    endpoints.push_back(by_tcp ? resolve(address, can_encrypt) : Endpoint());
    if (by_tcp) all.push_back(wanted(endpoints.back().address));
    else all.push_back({GivenSockets::address_of(asio::local::stream_protocol::endpoint(address.socket))});
  }
  close_others(all);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i].socket.empty()) open(addresses[i], endpoints[i]);
    else open_socket(addresses[i].socket);
  }
  close_others({});  // what was given twice
}

void Listeners::close_others(const std::vector<GivenSockets::Wanted>& wanted) {
  for (const std::string& name : given_.close_others(wanted)) {
    EventLog::info("not listening any more", {{"socket", name}});
    manager_.forget(name);
  }
}

void Listeners::open_socket(const std::string& name) {
  const bool abstract = name.front() == '\0';
  const std::string shown = "unix:" + (abstract ? "@" + name.substr(1) : name);
  const asio::local::stream_protocol::endpoint endpoint(name);
  try {
    asio::local::stream_protocol::acceptor& acceptor = local_acceptors_.emplace_back(io_);
    if (Descriptor given = given_.take({GivenSockets::address_of(endpoint)}); given.number() >= 0)
      acceptor.assign(endpoint.protocol(), given.release());
    else bind(acceptor, name);
    refuse_descriptors(acceptor.native_handle());
    acceptor.listen();
    if (!abstract) manager_.keep(acceptor.native_handle(), kept_name(shown));
    // The other is no address that anybody gives: clients hear of it.
    if (abstract) EventLog::debug("local socket", {{"address", shown}});
    else EventLog::info("listening", {{"address", shown}});
    accept(acceptor, Transport::plain);
  } catch (const asio::system_error& failed) {
    const std::string what = "listen: cannot listen on " + shown + " (" + failed.code().message() + ")";
    if (failed.code() == asio::error::address_in_use) throw AddressInUse(what + "; is another fargpud running?");
    throw SettingsError(what + "; name a folder that this user may write to");
  }
}

void Listeners::bind(asio::local::stream_protocol::acceptor& acceptor, const std::string& name) {
  const bool abstract = name.front() == '\0';
  const asio::local::stream_protocol::endpoint endpoint(name);
  // A socket that a broker left behind, which nobody serves any more.
  asio::error_code refused;
  asio::local::stream_protocol::socket probe(io_);
  if (!abstract) probe.connect(endpoint, refused);
  if (!abstract && is_other_file(name))
    throw SettingsError("listen: unix:" + name + " is there and no socket; name another, or remove it");
  if (refused == asio::error::connection_refused) ::unlink(name.c_str());
  acceptor.open();
  acceptor.bind(endpoint);
  // The user at the other end decides whether it may have a session, whatever umask this was started with.
  // The folder can be for fewer.
  if (!abstract && ::chmod(name.c_str(), 0666) != 0)
    throw asio::system_error(asio::error_code(errno, asio::error::get_system_category()));
}

// A service manager makes the folder at the start, so that it may be missing now.
void Listeners::check_socket(const std::string& path) {
  const std::string shown = "unix:" + path, folder = path.substr(0, path.rfind('/') + 1);
  if (is_other_file(path))
    throw SettingsError("listen: " + shown + " is there and no socket; name another, or remove it");
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  const int error = errno;
  if (error != ENOENT)
    throw SettingsError("listen: cannot listen on " + shown + " (" + std::strerror(error) +
                        "); name a folder that this user may write to");
  EventLog::warn("no folder for a socket",
                 {{"address", shown},
                  {"meaning", "fargpud cannot start before there is one; the installed service makes /run/fargpu"}});
}

void Listeners::check(const ListenAddress& address, bool can_encrypt) {
  if (!address.socket.empty()) return check_socket(address.socket);
  bind(address, resolve(address, can_encrypt));
}

Listeners::Endpoint Listeners::resolve(const ListenAddress& address, bool can_encrypt) {
  asio::ip::tcp::resolver resolver(io_);
  asio::error_code error;
  const auto endpoints =
      resolver.resolve(address.host, std::to_string(address.port), asio::ip::tcp::resolver::passive, error);
  if (error) throw AddressMissing("listen: there is no address '" + address.host + "' (" + error.message() + ")");
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
  if (!tls && !loopback && !settings_.insecure)
    throw SettingsError("listen: " + endpoint.address().to_string() +
                        " can be reached from other machines, and tcp:// is neither encrypted nor authenticated; "
                        "write tls://, or accept the risk with --insecure");
  return {endpoint, tls};
}

asio::ip::tcp::acceptor Listeners::bind(const ListenAddress& address, const Endpoint& endpoint) {
  asio::ip::tcp::acceptor acceptor(io_);
  try {
    const GivenSockets::Wanted wanted = this->wanted(endpoint.address);
    if (Descriptor given = given_.take(wanted); given.number() >= 0) {
      acceptor.assign(endpoint.address.protocol(), given.release());
      return acceptor;
    }
    acceptor.open(endpoint.address.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    if (endpoint.address.address().is_v6()) acceptor.set_option(asio::ip::v6_only(wanted.v6_only));
    acceptor.bind(endpoint.address);
  } catch (const asio::system_error& failed) {
    refuse(address, failed.code());
  }
  return acceptor;
}

void Listeners::open(const ListenAddress& address, const Endpoint& endpoint) {
  if (!endpoint.tls && !endpoint.address.address().is_loopback())
    EventLog::warn("insecure",
                   {{"address", endpoint.address.address().to_string()},
                    {"meaning", "every machine that reaches this port can use the GPUs; nothing is encrypted"}});
  asio::ip::tcp::acceptor& acceptor = acceptors_.emplace_back(bind(address, endpoint));
  asio::error_code error;
  if (acceptor.listen(asio::socket_base::max_listen_connections, error)) refuse(address, error);
  const auto bound = acceptor.local_endpoint();
  open_.push_back({bound, endpoint.tls});
  manager_.keep(acceptor.native_handle(), kept_name(bound.address().to_string() + ":" + std::to_string(bound.port())));
  EventLog::info(
      "listening",
      {{"transport", endpoint.tls ? "tls" : "tcp"}, {"address", bound.address().to_string()}, {"port", bound.port()}});
  accept(acceptor, endpoint.tls ? Transport::tls : Transport::plain);
}

std::string Listeners::address_for_clients(const std::string& name) const {
  const Endpoint* best = nullptr;
  for (const Endpoint& one : open_)
    if (!best || (best->address.address().is_loopback() && !one.address.address().is_loopback())) best = &one;
  if (!best) return "";
  const asio::ip::address address = best->address.address();
  const std::string text = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
  return (best->tls ? "tls://" : "tcp://") + (address.is_loopback() ? text : name) + ":" +
         std::to_string(best->address.port());
}

template <class Acceptor>
void Listeners::accept(Acceptor& acceptor, Transport transport) {
  using Socket = typename Acceptor::protocol_type::socket;
  acceptor.async_accept([this, &acceptor, transport](const asio::error_code& error, Socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {  // which does not change at once
      EventLog::warn("cannot accept", {{"reason", error.message()}});
      heard_.trouble();
      const auto pause = std::make_shared<asio::steady_timer>(io_, accept_pause);  // others may pause as well
      pause->async_wait([this, pause, &acceptor, transport](const asio::error_code& stopped) {
        if (!stopped && acceptor.is_open()) accept(acceptor, transport);
      });
      return;
    }
    if constexpr (std::is_same_v<Socket, asio::ip::tcp::socket>) heard_.by_tcp(std::move(socket), transport);
    else heard_.by_socket(std::move(socket));
    accept(acceptor, transport);
  });
}

}  // namespace fargpu::server
