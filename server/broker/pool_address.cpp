#include "pool_address.h"

#include <asio.hpp>

#include "event_log.h"
#include "settings.h"

namespace fargpu::server {
namespace {

bool is_loopback(const std::string& host) {
  asio::error_code error;
  const auto literal = asio::ip::make_address(host, error);
  return host == "localhost" || (!error && literal.is_loopback());
}

void warn(const std::string& address, const std::string& reason, const std::string& meaning) {
  EventLog::warn("pool_address", {{"address", address}, {"reason", reason}, {"meaning", meaning}});
}

}  // namespace

asio::awaitable<void> look_at_pool_address(std::string address, std::string listen, bool encrypts) {
  std::string by_tcp = address;
  const bool rdma = by_tcp.starts_with("rdma://");
  if (rdma) by_tcp.erase(0, 7);
  const ListenAddress host = parse_listen(by_tcp, "pool_address").front();
  bool open = false;
  for (const ListenAddress& one : parse_listen(listen)) open = open || (one.socket.empty() && !is_loopback(one.host));
  const bool loopback = is_loopback(host.host);
  if (loopback && open)
    warn(address, "'" + host.host + "' is each machine itself",
         "clients of other machines find no way to this host; give an address that they reach");
  if (!rdma && !loopback && !encrypts && host.transport == ListenAddress::Transport::usual)
    warn(address, "clients speak TLS to such an address, and this host speaks none", "write tcp:// in front of it");
  asio::error_code error;
  const auto literal = asio::ip::make_address(host.host, error);
  if (!error) {
    if (literal.is_unspecified())
      warn(address, "this is no address of any one machine", "give an address that clients reach");
    co_return;
  }
  asio::ip::tcp::resolver resolver(co_await asio::this_coro::executor);
  co_await resolver.async_resolve(host.host, "", asio::redirect_error(asio::use_awaitable, error));
  if (error)
    warn(address, "'" + host.host + "' is unknown here: " + error.message(),
         "clients that do not know it either find no way to this host; give a name or address that they know");
}

}  // namespace fargpu::server
