#include "pool_registry.h"

namespace fargpu::server {

std::unique_ptr<pool::Registry> open_registry(asio::io_context&, const Settings&) {
  throw SettingsError("pool: this fargpud was built without a registry");
}

}  // namespace fargpu::server
