#include "control_channel.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "passed_descriptors.h"
#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {
namespace {

// TCP tells of a peer that vanished without a word after about two minutes.
void keep_alive(asio::generic::stream_protocol::socket& socket) {
  socket.set_option(asio::socket_base::keep_alive(true));
  const int on = 1, idle = 30, interval = 15, count = 6;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

}  // namespace

void ControlChannel::open(asio::ip::tcp::socket socket) {
  socket_ = std::move(socket);
  keep_alive(socket_);
}

void ControlChannel::open(asio::local::stream_protocol::socket socket) {
  by_socket_ = true;
  keep_in_order(socket.native_handle());
  socket_ = std::move(socket);
}

asio::awaitable<std::optional<unsigned char>> ControlChannel::peek() {
  asio::error_code error;
  co_await socket_.async_wait(asio::socket_base::wait_read, asio::redirect_error(asio::use_awaitable, error));
  unsigned char first = 0;
  if (error || ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) co_return std::nullopt;
  co_return first;
}

asio::awaitable<asio::error_code> ControlChannel::encrypt(std::shared_ptr<asio::ssl::context> context) {
  asio::error_code error;
  context_ = std::move(context);
  tls_.emplace(socket_, *context_);
  co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
  co_return error;
}

asio::awaitable<bool> ControlChannel::read_frame() {
  FrameHeader header;
  asio::error_code error;
  co_await read(asio::buffer(&header, sizeof(header)), error);
  broke_ = error && error.category() == asio::error::get_system_category() && error != asio::error::operation_aborted;
  if (error) co_return false;
  check_frame_header(header, limits::open_message_bytes_max);
  if (header.kind != FrameKind::control || header.bulk_bytes != 0)
    throw ProtocolError("something else than a control message");
  if (header.sequence != ++received_) throw ProtocolError("a frame out of its turn");
  message_.resize(header.message_bytes);
  co_await read(asio::buffer(message_), error);
  if (error) throw asio::system_error(error);
  co_return true;
}

asio::awaitable<void> ControlChannel::read(asio::mutable_buffer buffer, asio::error_code& error) {
  if (tls_) co_await asio::async_read(*tls_, buffer, asio::redirect_error(asio::use_awaitable, error));
  else if (by_socket_) co_await read_from_user(buffer, error);
  else co_await asio::async_read(socket_, buffer, asio::redirect_error(asio::use_awaitable, error));
}

// By a Unix socket.
asio::awaitable<void> ControlChannel::read_from_user(asio::mutable_buffer buffer, asio::error_code& error) {
  while (buffer.size() > 0) {
    co_await socket_.async_wait(asio::socket_base::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const ssize_t got =
        receive_without_descriptors(socket_.native_handle(), {static_cast<std::byte*>(buffer.data()), buffer.size()});
    if (got > 0) {
      buffer += static_cast<std::size_t>(got);
      continue;
    }
    if (got < 0 && errno == EBADMSG) throw ProtocolError("descriptors, which nobody wants");
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    error = got == 0 ? asio::error::make_error_code(asio::error::eof)
                     : asio::error_code(errno, asio::error::get_system_category());
    co_return;
  }
}

bool ControlChannel::client_is_there() {
  char byte;
  const ssize_t got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

void ControlChannel::hang_up() {
  asio::error_code ignored;
  if (by_socket_) hang_up_aside(socket_.release(ignored));
  else socket_.close(ignored);
}

}  // namespace fargpu::server
