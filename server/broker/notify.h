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
  /// Has it keep a socket for the next start of this service, by a name without colons (FDSTORE).
  void keep(int descriptor, const std::string& name) const;
  /// No longer.
  void forget(const std::string& name) const { tell("FDSTOREREMOVE=1\nFDNAME=" + name); }

 private:
  int descriptor_ = -1;
};

}  // namespace fargpu::server
