#pragma once
// What the service manager is told (sd_notify(3)), where it has asked for it.

#include <string>

namespace fargpu::server {

/// The socket of the service manager, from NOTIFY_SOCKET, which no process that is started later inherits.
class ServiceManager {
 public:
  ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;
  ~ServiceManager();

  /// Lines NAME=VALUE. Without a service manager nothing happens.
  void tell(const std::string& lines) const;

 private:
  int descriptor_ = -1;
};

}  // namespace fargpu::server
