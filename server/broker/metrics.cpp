#include "metrics.h"

#include <fmt/format.h>

#include "event_log.h"
#include "settings.h"

namespace fargpu::server {
namespace {

constexpr std::size_t callers_max = 16;
constexpr std::size_t request_bytes_max = 4096;
constexpr auto patience = std::chrono::seconds(5);

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    if (c == '\n') result += "\\n";
    else result += c;
  }
  return result;
}

}  // namespace

void MetricsText::add(const std::string& name, const std::string& type, const std::string& help, const Labels& labels, double value) {
  Family& family = families_[name];
  family.type = type;
  family.help = help;
  std::string list;
  for (const auto& [label, what] : labels) list += (list.empty() ? "" : ",") + label + "=\"" + escaped(what) + "\"";
  family.samples.push_back(name + (list.empty() ? "" : "{" + list + "}") + fmt::format(" {}", value));
}

std::string MetricsText::text() const {
  std::string text;
  for (const auto& [name, family] : families_) {
    text += "# HELP " + name + " " + family.help + "\n# TYPE " + name + " " + family.type + "\n";
    for (const std::string& sample : family.samples) text += sample + "\n";
  }
  return text;
}

/// One connection: a request, an answer, the end.
class MetricsServer::Caller : public std::enable_shared_from_this<Caller> {
 public:
  Caller(MetricsServer& server, asio::ip::tcp::socket socket) : server_(server), socket_(std::move(socket)), deadline_(server.io_) {
    ++server_.callers_;
  }
  ~Caller() { --server_.callers_; }

  void start() {
    deadline_.expires_after(patience);
    deadline_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
      const auto self = weak.lock();
      asio::error_code ignored;
      if (!error && self) self->socket_.close(ignored);
    });
    asio::async_read_until(socket_, asio::dynamic_buffer(request_, request_bytes_max), "\r\n\r\n",
                           [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                             if (!error) self->answer();
                           });
  }

 private:
  void answer() {
    const std::string line = request_.substr(0, request_.find("\r\n"));
    const bool get = line.starts_with("GET ");
    const std::string path = get ? line.substr(4, line.find(' ', 4) - 4) : "";
    if (!get) reply("405 Method Not Allowed", "only GET\n");
    else if (path != "/metrics") reply("404 Not Found", "only /metrics\n");
    else reply("200 OK", server_.write_());
  }

  void reply(const std::string& status, const std::string& body) {
    answer_ = "HTTP/1.0 " + status + "\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\nConnection: close\r\n\r\n" + body;
    asio::async_write(socket_, asio::buffer(answer_), [self = shared_from_this()](const asio::error_code&, std::size_t) {
      asio::error_code ignored;
      self->deadline_.cancel();
      self->socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    });
  }

  MetricsServer& server_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;
  std::string request_, answer_;
};

MetricsServer::MetricsServer(asio::io_context& io, const std::string& address, bool insecure, std::function<std::string()> write)
    : io_(io), acceptor_(io), pause_(io), write_(std::move(write)) {
  const auto list = parse_listen(address, "metrics_listen");
  if (list.size() != 1 || !list[0].socket.empty()) throw SettingsError("metrics_listen is '" + address + "'; give one host:port");
  asio::ip::tcp::resolver resolver(io);
  asio::error_code error;
  const auto endpoints = resolver.resolve(list[0].host, std::to_string(list[0].port), asio::ip::tcp::resolver::passive, error);
  if (error) throw SettingsError("metrics_listen: there is no address '" + list[0].host + "' (" + error.message() + ")");
  const asio::ip::tcp::endpoint endpoint = *endpoints.begin();
  if (!endpoint.address().is_loopback() && !insecure)
    throw SettingsError(
        "metrics_listen: " + endpoint.address().to_string() +
        " can be reached from other machines, and nothing is encrypted; listen on 127.0.0.1, or accept the risk with --insecure");
  try {
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
  } catch (const asio::system_error& failed) {
    throw SettingsError("metrics_listen: cannot listen on " + address + " (" + failed.code().message() + ")");
  }
  EventLog::info("metrics", {{"address", endpoint.address().to_string()}, {"port", acceptor_.local_endpoint().port()}});
  accept();
}

void MetricsServer::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {  // most likely there are no descriptors left, which does not change at once
      pause_.expires_after(std::chrono::milliseconds(100));
      pause_.async_wait([this](const asio::error_code& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    if (callers_ < callers_max) std::make_shared<Caller>(*this, std::move(socket))->start();
    accept();
  });
}

}  // namespace fargpu::server
