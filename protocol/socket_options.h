#pragma once
// How sockets are set that carry frames.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace fargpu {

/// Makes a connected socket one of a channel: it does not block, is closed on exec, and sends small frames at once.
/// What waits to be sent waits with us and not with the kernel, as far as the line does not need it there: so a sender
/// feels how fast the line is, whose queue would else be as long as the kernel's buffers.
inline void prepare_socket(int socket) {
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  constexpr int on = 1, unsent_bytes = 1 << 20;
  // These fail on Unix sockets, harmlessly.
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof(unsent_bytes));
}

}  // namespace fargpu
