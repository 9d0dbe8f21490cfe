#include "notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>

#include "event_log.h"
#include "protocol/descriptor_passing.h"

namespace fargpu::server {

ServiceManager::ServiceManager() {
  const char* const variable = std::getenv("NOTIFY_SOCKET");
  const std::string path = variable ? variable : "";
  ::unsetenv("NOTIFY_SOCKET");
  if (path.empty()) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address.sun_path)) {
    EventLog::warn("no service manager", {{"NOTIFY_SOCKET", path}, {"reason", "it is the name of no Unix socket"}});
    return;
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  descriptor_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor_ >= 0 && ::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), length) == 0) return;
  EventLog::warn("no service manager", {{"NOTIFY_SOCKET", path}, {"reason", std::strerror(errno)}});
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

ServiceManager::~ServiceManager() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ServiceManager::tell(const std::string& lines) const {
  if (descriptor_ < 0) return;
  if (::send(descriptor_, lines.data(), lines.size(), MSG_NOSIGNAL) < 0)
    EventLog::warn("service manager not notified", {{"lines", lines}, {"reason", std::strerror(errno)}});
}

void ServiceManager::keep(int descriptor, const std::string& name) const {
  const std::string lines = "FDSTORE=1\nFDNAME=" + name;
  if (descriptor_ >= 0) send_with_descriptor(descriptor_, std::as_bytes(std::span(lines)), descriptor);
}

}  // namespace fargpu::server
