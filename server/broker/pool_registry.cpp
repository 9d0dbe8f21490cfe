#include "pool_registry.h"

#include "server/pool/etcd_registry.h"

namespace fargpu::server {

std::unique_ptr<pool::Registry> open_registry(asio::io_context& io, const Settings& settings) {
  pool::EtcdOptions options;
  // Clients wait for five seconds for an answer that needs the registry.
  options.timeout = std::chrono::seconds(3);
  options.endpoints = settings.pool_registry;
  options.ca = settings.pool_ca;
  options.certificate = settings.pool_certificate;
  options.key = settings.pool_key;
  try {
    return std::make_unique<pool::EtcdRegistry>(io, options);
  } catch (const std::runtime_error& error) {
    throw SettingsError(std::string("pool_registry: ") + error.what());
  }
}

}  // namespace fargpu::server
