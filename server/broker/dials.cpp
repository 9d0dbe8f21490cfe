#include "dials.h"

#include <netinet/tcp.h>

#include <cstring>
#include <memory>
#include <utility>

#include "protocol/limits.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

constexpr std::size_t under_way_max = 64;
constexpr std::size_t host_bytes_max = 255;  // no name of DNS is longer

// Whether a program on another machine cannot get here: then the other hosts of its pool are on this machine too.
bool on_loopback_only(const Settings& settings) {
  for (const ListenAddress& address : parse_listen(settings.listen)) {
    asio::error_code none;
    const auto number = asio::ip::make_address(address.host, none);
    if (address.socket.empty() && address.host != "localhost" && (none || !number.is_loopback())) return false;
  }
  return true;
}

}  // namespace

/// Lives until its answer is given.
class Dials::Attempt final : public std::enable_shared_from_this<Attempt> {
  using Endpoints = NameLookups::Endpoints;

 public:
  Attempt(Dials& dials, std::string host, std::uint16_t port, Done done)
      : dials_(dials),
        host_(std::move(host)),
        port_(port),
        done_(std::move(done)),
        socket_(dials.io_),
        deadline_(dials.io_, limits::connect_timeout) {
    ++dials_.under_way_;
  }
  ~Attempt() { --dials_.under_way_; }

  void start(const std::string& tenant) {
    deadline_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->end(-1, self->unreachable());
    });
    asio::error_code name;
    const auto number = asio::ip::make_address(host_, name);
    if (!name) return connect({{number, port_}});
    const bool looks = dials_.names_.look_up(host_, port_, tenant, [self = shared_from_this()](const Endpoints& found) {
      if (found.empty()) return self->end(-1, self->unreachable());
      self->connect(found);
    });
    if (!looks) end(-1, "fargpud of this host can look up no more names just now");
  }

  void forbid() {
    ++dials_.refused_;
    end(-1, forbidden());
  }

 private:
  std::string name() const { return printable(host_, 256) + ":" + std::to_string(port_); }
  // One text for whatever there is, so that a client learns nothing of networks that the client is not in.
  std::string unreachable() const { return "fargpud of this host cannot connect to " + name(); }
  std::string forbidden() const {
    return "fargpud of this host may not connect to " + name() + "; its setting `peers` names who it may";
  }

  void connect(const Endpoints& found) {
    if (!done_) return;
    for (const auto& endpoint : found)
      if (dials_.allowed(endpoint)) addresses_.push_back(endpoint);
    if (addresses_.empty()) return forbid();
    asio::async_connect(socket_, addresses_, [self = shared_from_this()](const asio::error_code& error, const auto&) {
      if (error) return self->end(-1, self->unreachable());
      if (!self->done_) return;
      const int on = 1;
      ::setsockopt(self->socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      self->end(self->socket_.release(), {});
    });
  }

  void end(int descriptor, const std::string& failure) {
    const Done done = std::exchange(done_, nullptr);
    if (!done) return;
    asio::error_code ignored;
    deadline_.cancel();
    socket_.close(ignored);
    done(descriptor, failure);
  }

  Dials& dials_;
  const std::string host_;
  const std::uint16_t port_;
  Done done_;  // null once it was called
  Endpoints addresses_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;
};

Dials::Dials(asio::io_context& io, const Settings& settings)
    : io_(io), loopback_(on_loopback_only(settings)), names_(io) {
  std::string error;  // the settings have been checked
  rdma::Networks::parse(settings.peers, networks_, error);
}

bool Dials::allowed(const asio::ip::tcp::endpoint& endpoint) const {
  if (loopback_ && endpoint.address().is_loopback()) return true;
  sockaddr_storage address{};
  std::memcpy(&address, endpoint.data(), endpoint.size());
  return networks_.contain(address);
}

void Dials::dial(const std::string& host, std::uint16_t port, const std::string& tenant, Done done) {
  if (host.empty() || host.size() > host_bytes_max) return done(-1, "the other host has no name by which to connect");
  if (under_way_ == under_way_max) return done(-1, "fargpud of this host connects to many others just now");
  const auto attempt = std::make_shared<Attempt>(*this, host, port, std::move(done));
  // The client has no say in which names this host looks up for nothing.
  if (networks_.none() && !loopback_) return attempt->forbid();
  attempt->start(tenant);
}

}  // namespace fargpu::server
