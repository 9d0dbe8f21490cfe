#include "next_broker.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "protocol/errors.h"
#include "protocol/limits.h"
#include "server/worker_link.h"

namespace fargpu::server {
namespace {

constexpr auto pause_after_failure = std::chrono::milliseconds(100);

uid_t user_behind(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
    throw SystemError(std::string("nobody is known behind a socket: ") + std::strerror(errno));
  return peer.uid;
}

}  // namespace

void NextBroker::open(int link) {
  if (!may_come()) return;
  user_ = user_behind(link);
  if (::listen(door_.number(), 1) != 0)
    throw SystemError(std::string("the next broker cannot come: ") + std::strerror(errno));
}

Descriptor NextBroker::wait() {
  while (may_come()) {
    Descriptor comes(::accept4(door_.number(), nullptr, nullptr, SOCK_CLOEXEC));
    if (comes.number() >= 0) {
      if (user_behind(comes.number()) != user_) continue;
      give_room(comes.number());
      return comes;
    }
    if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) break;
    std::this_thread::sleep_for(pause_after_failure);  // no descriptor is free, perhaps
  }
  return {};
}

bool recount(int link, const std::function<void(wire::WorkerMessage::Builder)>& fill, int descriptor) {
  const auto deadline = std::chrono::steady_clock::now() + limits::connect_timeout;
  while (!send_link(link, fill, descriptor)) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd room{link, POLLOUT, 0};
    if (left.count() <= 0 || ::poll(&room, 1, static_cast<int>(left.count())) == 0) return false;
  }
  return true;
}

}  // namespace fargpu::server
