#include "worker_link.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "protocol/descriptor_passing.h"
#include "protocol/errors.h"

namespace fargpu::server {
namespace {

constexpr std::size_t packet_bytes_max = 1u << 20;  // facts of 64 devices fit many times

// For the operator, and for the person whose program is refused.
std::string why_no_link(int error) {
  if (error != EMFILE) return std::string("no link to a worker: ") + std::strerror(error);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return "fargpud has all the " + std::to_string(limit.rlim_cur) +
         " files open that it may have, and cannot start another worker: raise LimitNOFILE in its unit, or 'ulimit -n'";
}

}  // namespace

std::pair<int, int> make_link() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError(why_no_link(errno));
  for (const int end : ends) give_room(end);
  return {ends[0], ends[1]};
}

void give_room(int link) {
  const int bytes = 2 * static_cast<int>(packet_bytes_max);
  ::setsockopt(link, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

bool send_link(int link, const std::function<void(wire::WorkerMessage::Builder)>& fill, int descriptor) {
  MessageWriter writer;
  fill(writer.root<wire::WorkerMessage>());
  return send_packet(link, writer.finish(), descriptor);
}

bool send_packet(int link, std::span<const std::byte> bytes, int descriptor) {
  return send_with_descriptor(link, bytes, descriptor) == static_cast<ssize_t>(bytes.size());
}

std::optional<LinkPacket> receive_link(int link, std::vector<int>* others) {
  static thread_local std::vector<std::byte> buffer(packet_bytes_max);
  LinkPacket packet;
  const ssize_t got = receive_with_descriptor(link, buffer, packet.descriptor, 0, others);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  packet.message.assign(buffer.begin(), buffer.begin() + std::max<ssize_t>(got, 0));
  if (packet.message.empty() && packet.descriptor >= 0) {
    const int unwanted = std::exchange(packet.descriptor, -1);
    if (others) others->push_back(unwanted);
    else ::close(unwanted);
  }
  return packet;
}

}  // namespace fargpu::server
