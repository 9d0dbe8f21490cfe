#include "descriptor_passing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace fargpu {

ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int descriptor) {
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
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_with_descriptor(int socket, std::span<std::byte> buffer, int& descriptor, int flags,
                                std::vector<int>* others) {
  constexpr std::size_t at_once_max = 253;  // the kernel's SCM_MAX_FD
  descriptor = -1;
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * at_once_max)];
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int) * (others ? at_once_max : 1));
  ssize_t received;
  do received = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (received < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    for (std::size_t at = sizeof(int); CMSG_LEN(at) < header->cmsg_len; at += sizeof(int)) {
      int other;
      std::memcpy(&other, CMSG_DATA(header) + at, sizeof(int));
      others->push_back(other);
    }
  }
  return received;
}

}  // namespace fargpu
