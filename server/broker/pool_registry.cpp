#include "pool_registry.h"

#include "protocol/tls.h"
#include "server/pool/etcd_registry.h"

namespace fargpu::server {
namespace {

// etcd would break the connection without a word of this.
void require_pair(const Settings& settings) {
  if (settings.pool_certificate.empty()) return;
  TlsTrust shown;
  shown.certificate_file = settings.pool_certificate;
  shown.key_file = settings.pool_key;
  try {
    make_client_context(shown);
  } catch (const TlsError& error) {
    throw SettingsError(std::string("pool_certificate and pool_key: ") + error.what());
  }
}

}  // namespace

std::unique_ptr<pool::Registry> open_registry(asio::io_context& io, const Settings& settings) {
  require_pair(settings);
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
