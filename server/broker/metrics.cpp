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

[[noreturn]] void refuse(const std::string& address, const asio::error_code& error) {
  const std::string what = "metrics_listen: cannot listen on " + address + " (" + error.message() + ")";
  if (error == asio::error::address_in_use) throw AddressInUse(what);
  if (error == asio::error::access_denied) throw SettingsError(what);
  throw AddressMissing(what);
}

}  // namespace

void MetricsText::add(const std::string& name, const std::string& type, const std::string& help, const Labels& labels,
                      double value) {
  add_sample(name, type, help, name, labels, value);
}

void MetricsText::add_histogram(const std::string& name, const std::string& help, const Labels& labels,
                                std::span<const double> bounds, std::span<const std::uint64_t> counts, double sum) {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    all += counts[i];
    Labels up_to = labels;
    up_to.emplace_back("le", i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf");
    add_sample(name, "histogram", help, name + "_bucket", up_to, static_cast<double>(all));
  }
  add_sample(name, "histogram", help, name + "_sum", labels, sum);
  add_sample(name, "histogram", help, name + "_count", labels, static_cast<double>(all));
}

void MetricsText::add_sample(const std::string& of, const std::string& type, const std::string& help,
                             const std::string& name, const Labels& labels, double value) {
  Family& family = families_[of];
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
  Caller(MetricsServer& server, asio::ip::tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io_) {
    place_ = server_.callers_.insert(server_.callers_.end(), this);
  }
  ~Caller() { server_.callers_.erase(place_); }

  void close() {
    asio::error_code ignored;
    socket_.close(ignored);
  }

  void start() {
    deadline_.expires_after(patience);
    deadline_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->close();
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
    else if (path == "/metrics") reply("200 OK", server_.pages_.metrics());
    else if (path == "/healthz") health();
    else reply("404 Not Found", "only /metrics and /healthz\n");
  }

  void health() {
    const std::string trouble = server_.pages_.trouble();
    if (trouble.empty()) reply("200 OK", "ok\n");
    else reply("503 Service Unavailable", trouble + "\n");
  }

  void reply(const std::string& status, const std::string& body) {
    answer_ = "HTTP/1.0 " + status +
              "\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\nConnection: close\r\n\r\n" + body;
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) {
                        asio::error_code ignored;
                        self->deadline_.cancel();
                        self->socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
                      });
  }

  MetricsServer& server_;
  std::list<Caller*>::iterator place_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer deadline_;
  std::string request_, answer_;
};

asio::ip::tcp::acceptor MetricsServer::bind(asio::io_context& io, const std::string& address, bool insecure) {
  const auto list = parse_listen(address, "metrics_listen");
  if (list.size() != 1 || !list[0].socket.empty())
    throw SettingsError("metrics_listen is '" + address + "'; give one host:port");
  asio::ip::tcp::resolver resolver(io);
  asio::error_code error;
  const auto endpoints =
      resolver.resolve(list[0].host, std::to_string(list[0].port), asio::ip::tcp::resolver::passive, error);
  if (error)
    throw AddressMissing("metrics_listen: there is no address '" + list[0].host + "' (" + error.message() + ")");
  const asio::ip::tcp::endpoint endpoint = *endpoints.begin();
  if (!endpoint.address().is_loopback() && !insecure)
    throw SettingsError("metrics_listen: " + endpoint.address().to_string() +
                        " can be reached from other machines, and nothing is encrypted; listen on 127.0.0.1, or accept "
                        "the risk with --insecure");
  asio::ip::tcp::acceptor acceptor(io);
  try {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind(endpoint);
  } catch (const asio::system_error& failed) {
    refuse(address, failed.code());
  }
  return acceptor;
}

MetricsServer::MetricsServer(asio::io_context& io, const std::string& address, bool insecure, Pages pages)
    : io_(io), acceptor_(bind(io, address, insecure)), pause_(io), pages_(std::move(pages)) {
  asio::error_code error;
  if (acceptor_.listen(asio::socket_base::max_listen_connections, error)) refuse(address, error);
  const auto bound = acceptor_.local_endpoint();
  EventLog::info("metrics", {{"address", bound.address().to_string()}, {"port", bound.port()}});
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
    // One that is closed leaves the list when it hears of it, which is soon: twice as many are the most.
    if (callers_.size() >= callers_max)
      (*std::next(callers_.begin(), static_cast<std::ptrdiff_t>(callers_.size() - callers_max)))->close();
    if (callers_.size() < 2 * callers_max) std::make_shared<Caller>(*this, std::move(socket))->start();
    accept();
  });
}

}  // namespace fargpu::server
