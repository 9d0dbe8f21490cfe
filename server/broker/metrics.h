#pragma once
// Numbers for Prometheus, by HTTP.

#include <asio.hpp>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fargpu::server {

/// The text format that Prometheus reads. Samples of one name belong together, whatever the order in which they are
/// added.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  /// `type` as the format has it: gauge or counter.
  void add(const std::string& name, const std::string& type, const std::string& help, const Labels& labels,
           double value);
  /// Numbers by how large they are: `counts` has one more entry than `bounds`, for what is larger than all of them.
  void add_histogram(const std::string& name, const std::string& help, const Labels& labels,
                     std::span<const double> bounds, std::span<const std::uint64_t> counts, double sum);
  std::string text() const;

 private:
  struct Family {
    std::string type, help;
    std::vector<std::string> samples;
  };
  void add_sample(const std::string& family, const std::string& type, const std::string& help, const std::string& name,
                  const Labels& labels, double value);
  std::map<std::string, Family> families_;
};

/// Answers GET /metrics and GET /healthz, and nothing else, once a connection. A connection that is slow is closed
/// after some seconds; of many, the oldest makes room.
class MetricsServer {
 public:
  struct Pages {
    std::function<std::string()> metrics;
    std::function<std::string()> trouble;  ///< why the host takes no sessions; empty if it does
  };
  /// Listens at host:port. Throws SettingsError, or AddressInUse.
  MetricsServer(asio::io_context& io, const std::string& address, bool insecure, Pages pages);

  /// Throws what listening there would, and listens at nothing.
  static void check(asio::io_context& io, const std::string& address, bool insecure) { bind(io, address, insecure); }

 private:
  class Caller;
  static asio::ip::tcp::acceptor bind(asio::io_context& io, const std::string& address, bool insecure);
  void accept();

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const Pages pages_;
  std::list<Caller*> callers_;  // in the order in which they came
};

}  // namespace fargpu::server
