#pragma once
// Numbers for Prometheus, by HTTP.

#include <asio.hpp>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace fargpu::server {

/// The text format that Prometheus reads. Samples of one name belong together, whatever the order in which they are added.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  /// `type` as the format has it: gauge or counter.
  void add(const std::string& name, const std::string& type, const std::string& help, const Labels& labels, double value);
  std::string text() const;

 private:
  struct Family {
    std::string type, help;
    std::vector<std::string> samples;
  };
  std::map<std::string, Family> families_;
};

/// Answers GET /metrics, and nothing else, once a connection. Whoever is slow, or many, is cut off.
class MetricsServer {
 public:
  /// Listens at host:port. Throws SettingsError.
  MetricsServer(asio::io_context& io, const std::string& address, bool insecure, std::function<std::string()> write);

 private:
  class Caller;
  void accept();

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  const std::function<std::string()> write_;
  std::size_t callers_ = 0;
};

}  // namespace fargpu::server
