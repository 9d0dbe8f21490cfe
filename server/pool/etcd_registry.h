#pragma once
// A registry by etcd 3.4 or newer. What speaks to it is a plugin, libfargpu-etcd.so: the broker itself has no gRPC.

#include <asio.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "registry.h"

namespace fargpu::etcd {
struct Interface;
}

namespace fargpu::server::pool {

struct EtcdOptions {
  std::string endpoints;    ///< host:port or a URL, separated by commas; all of one etcd
  std::string ca;           ///< file of the authority's certificate; empty: connections are not encrypted
  std::string certificate;  ///< file of the certificate by which etcd knows this host; may be empty
  std::string key;          ///< its file
  std::chrono::milliseconds timeout{5000};
  std::string plugin;  ///< its file; empty: where the installation has it
};

class EtcdRegistry final : public Registry {
 public:
  /// Connects when it is first asked something. Throws std::runtime_error if the plugin is missing, or the options can
  /// never work.
  EtcdRegistry(asio::io_context& io, const EtcdOptions& options);
  /// Within a second. What waits fails.
  ~EtcdRegistry() override;

  asio::awaitable<Snapshot> read(std::vector<std::string> prefixes) override;
  asio::awaitable<Outcome> commit(Transaction transaction) override;
  asio::awaitable<std::unique_ptr<Lifetime>> begin_lifetime(std::chrono::seconds seconds) override;
  std::unique_ptr<Watch> watch(std::string prefix, std::int64_t after) override;
  asio::awaitable<std::string> describe() override;
  asio::awaitable<std::string> identity() override;

 private:
  struct Link;
  class Call;
  class OwnLifetime;
  class OwnWatch;

  asio::io_context& io_;
  const std::shared_ptr<Link> link_;
};

}  // namespace fargpu::server::pool
