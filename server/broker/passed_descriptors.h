#pragma once
// Descriptors that strangers pass to the broker. To close the last descriptor of something may take as long as its
// sender likes, such as that of a socket with unsent bytes (SO_LINGER): the broker's only thread must not do it.

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>

#include "server/worker_link.h"

namespace fargpu::server {

/// Has the kernel refuse descriptors on this Unix socket and on those that it accepts: passing one fails with EPERM.
/// Before Linux 6.16 nothing changes.
void refuse_descriptors(int socket);

/// Keeps what comes out of band (MSG_OOB) by this Unix socket in its order. MSG_PEEK passes over it otherwise, and so
/// over a descriptor that it carries.
void keep_in_order(int socket);

/// As recv() without waiting, of a Unix socket that keeps everything in order. Bytes that came with descriptors, or are
/// followed by some, stay there: EBADMSG.
ssize_t receive_without_descriptors(int socket, std::span<std::byte> buffer);

/// As receive_link(), of what a worker says, which executes what strangers sent. Descriptors besides the first, which
/// no worker in its senses passes, are closed.
std::optional<LinkPacket> receive_from_worker(int link);

/// Closes what strangers have passed, or a socket in which that may lie unread, on a thread that has nothing else to
/// do. -1 is left alone.
void close_aside(int descriptor) noexcept;
/// As close_aside(), of a connection, of which the other end hears at once.
void hang_up_aside(int connection) noexcept;

}  // namespace fargpu::server
