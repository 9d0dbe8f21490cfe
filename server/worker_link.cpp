#include "worker_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

constexpr std::size_t packet_bytes_max = 1u << 20;  // facts of 64 devices fit many times

}  // namespace

std::pair<int, int> make_link() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw SystemError(std::string("socketpair: ") + std::strerror(errno));
  for (const int end : ends) {
    const int bytes = 2 * static_cast<int>(packet_bytes_max);
    ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  }
  return {ends[0], ends[1]};
}

bool send_link(int link, const std::function<void(wire::WorkerMessage::Builder)>& fill, int descriptor) {
  MessageWriter writer;
  fill(writer.root<wire::WorkerMessage>());
  return send_packet(link, writer.finish(), descriptor);
}

bool send_packet(int link, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do sent = ::sendmsg(link, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

std::optional<LinkPacket> receive_link(int link) {
  static thread_local std::vector<std::byte> buffer(packet_bytes_max);
  LinkPacket packet;
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one: the kernel closes what more a hostile peer sends
  ssize_t got;
  do got = ::recvmsg(link, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  packet.message.assign(buffer.begin(), buffer.begin() + std::max<ssize_t>(got, 0));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
      std::memcpy(&packet.descriptor, CMSG_DATA(header), sizeof(int));
  }
  if (packet.message.empty() && packet.descriptor >= 0) ::close(std::exchange(packet.descriptor, -1));
  return packet;
}

}  // namespace fargpu::server
