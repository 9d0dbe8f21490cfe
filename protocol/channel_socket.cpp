#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "channel.h"
#include "connection_end.h"
#include "descriptor_passing.h"
#include "errors.h"
#include "limits.h"
#include "socket_options.h"

namespace fargpu {
namespace {

class SocketChannel final : public Channel {
 public:
  SocketChannel(int descriptor, std::string peer) : socket_(descriptor), peer_(std::move(peer)) {
    prepare_socket(socket_);
    int domain = 0;
    socklen_t length = sizeof(domain);
    unix_ = ::getsockopt(socket_, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
  }

  ~SocketChannel() override {
    for (const int descriptor : arrived_) ::close(descriptor);
    ::close(socket_);
  }

  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::array<iovec, 8> parts;
    std::size_t count = 0;
    for (const Bytes& piece : pieces) {
      if (piece.empty()) continue;
      if (count == parts.size()) break;
      parts[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
    }
    if (count == 0) return 0;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    while (true) {
      const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return static_cast<std::size_t>(sent);
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        // It will never take anything again: nobody closes one direction only.
        if (hung_up_.load(std::memory_order_relaxed)) end_.tell(peer_, 0);
        return 0;
      }
      if (errno == EFAULT) throw SystemError("memory to be sent cannot be read");
      end_.tell(peer_, errno);
    }
  }

  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (buffer.empty()) return 0;  // recv would answer as if the connection had ended
    while (true) {
      const ssize_t received = unix_ ? receive_with_descriptors(buffer) : receive_bytes(buffer);
      if (received > 0) return static_cast<std::size_t>(received);
      if (received == 0) end_.tell(peer_, 0);
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      if (errno == EFAULT) throw SystemError("memory to receive into cannot be written");
      end_.tell(peer_, errno);
    }
  }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    std::array<pollfd, 2> polled{};
    polled[0].fd = socket_;
    polled[0].events =
        static_cast<short>((interest.readable ? POLLIN : 0) | (interest.writable ? POLLOUT | POLLRDHUP : 0));
    polled[1].fd = waker ? waker->descriptor() : -1;
    polled[1].events = POLLIN;
    timespec time{};
    if (timeout >= Timeout::zero()) {
      time.tv_sec = timeout.count() / 1'000'000'000;
      time.tv_nsec = timeout.count() % 1'000'000'000;
    }
    if (::ppoll(polled.data(), polled.size(), timeout < Timeout::zero() ? nullptr : &time, nullptr) < 0) return {};
    if (waker && polled[1].revents) waker->drain();
    if (polled[0].revents & POLLRDHUP) hung_up_ = true;
    const bool closed = polled[0].revents & (POLLERR | POLLHUP | POLLNVAL | POLLRDHUP);
    return {.readable = closed || (polled[0].revents & POLLIN), .writable = closed || (polled[0].revents & POLLOUT)};
  }

  // The descriptor stays open until destruction, so that no other thread can meet a reused number.
  void close() noexcept override { ::shutdown(socket_, SHUT_RDWR); }

  int descriptor() const override { return socket_; }

  std::string peer() const override { return peer_; }

  bool passes_descriptors() const override { return unix_; }

  bool send_descriptor(int descriptor) override {
    constexpr std::byte nothing{};
    return send_with_descriptor(socket_, {&nothing, 1}, descriptor) == 1;
  }

  int receive_descriptor() override {
    if (arrived_.empty()) return -1;
    const int descriptor = arrived_.front();
    arrived_.pop_front();
    return descriptor;
  }

 private:
  // By recvmsg, which clients do not have stopped where the bytes go to memory that they watch
  // (client/memory/system_calls.h), as recv is.
  ssize_t receive_bytes(std::span<std::byte> buffer) {
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return ::recvmsg(socket_, &message, MSG_DONTWAIT);
  }

  ssize_t receive_with_descriptors(std::span<std::byte> buffer) {
    int descriptor = -1;
    const ssize_t received = receive_with_descriptor(socket_, buffer, descriptor, MSG_DONTWAIT);
    if (descriptor < 0) return received;
    if (received > 0 && arrived_.size() < limits::descriptors_max) arrived_.push_back(descriptor);
    else ::close(descriptor);
    return received;
  }

  int socket_;
  bool unix_ = false;
  std::deque<int> arrived_;  // descriptors that nobody has taken yet
  std::string peer_;
  std::atomic<bool> hung_up_{false};  // the peer sends nothing more
  ConnectionEnd end_;
};

}  // namespace

namespace {

// A program may close all descriptors that it has not opened itself (closefrom(3)): then the number leads to a file of
// its own, in which nothing of ours has a place. All eventfds of a machine have one inode, which no such file has.
bool is_eventfd(int descriptor) noexcept {
  const auto look = [](int at) {
    struct stat found {};
    return ::fstat(at, &found) == 0 ? std::optional(std::pair(found.st_dev, found.st_ino)) : std::nullopt;
  };
  static const auto of_all = look(descriptor);  // of the first one, when it is made
  return of_all && look(descriptor) == of_all;
}

}  // namespace

Waker::Waker() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) throw SystemError(std::string("eventfd: ") + std::strerror(errno));
  (void)is_eventfd(descriptor_);
}

Waker::~Waker() {
  if (is_eventfd(descriptor_)) ::close(descriptor_);
}

void Waker::signal() noexcept {
  const std::uint64_t one = 1;
  if (!is_eventfd(descriptor_)) return;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, &one, sizeof(one));
}

void Waker::drain() noexcept {
  std::uint64_t count;
  if (!is_eventfd(descriptor_)) return;
  [[maybe_unused]] const ssize_t got = ::read(descriptor_, &count, sizeof(count));
}

std::unique_ptr<Channel> make_socket_channel(int descriptor, std::string peer) {
  return std::make_unique<SocketChannel>(descriptor, std::move(peer));
}

bool send_all(Channel& channel, std::span<const Channel::Bytes> pieces) {
  std::array<Channel::Bytes, 8> rest;
  if (pieces.size() > rest.size()) throw SystemError("send_all takes at most 8 pieces");
  std::size_t left = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) left += (rest[i] = pieces[i]).size();
  std::size_t first = 0;
  bool waited = false;
  while (left > 0) {
    std::size_t sent = channel.send_some(std::span(rest).subspan(first, pieces.size() - first));
    if (sent == 0) {
      waited = true;
      channel.wait({.writable = true}, Channel::forever);
      continue;
    }
    left -= sent;
    while (sent > 0) {
      const std::size_t part = std::min(sent, rest[first].size());
      rest[first] = rest[first].subspan(part);
      sent -= part;
      if (rest[first].empty()) ++first;
    }
    while (left > 0 && rest[first].empty()) ++first;
  }
  return waited;
}

}  // namespace fargpu
