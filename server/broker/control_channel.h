#pragma once
// A client's connection as a channel of control messages: frames, plain or by TLS, over TCP or a Unix socket.

#include <asio.hpp>
#include <asio/ssl.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "control.capnp.h"
#include "protocol/frame.h"
#include "protocol/message.h"

namespace fargpu::server {

class ControlChannel {
 public:
  explicit ControlChannel(asio::io_context& io) : socket_(io) {}

  void open(asio::ip::tcp::socket socket);
  void open(asio::local::stream_protocol::socket socket);
  /// Whether it is a Unix socket.
  bool by_socket() const { return by_socket_; }
  /// The next byte, which stays where it is; nothing if there is none any more.
  asio::awaitable<std::optional<unsigned char>> peek();
  /// TLS from here on, once the handshake is done.
  asio::awaitable<asio::error_code> encrypt(std::shared_ptr<asio::ssl::context> context);
  SSL* tls() { return tls_->native_handle(); }

  /// Reads the next frame's message; false at the end of the connection. Throws ProtocolError and asio::system_error.
  asio::awaitable<bool> read_frame();
  /// The message that was read last.
  const std::vector<std::byte>& message() const { return message_; }
  /// Whether a frame has come, or begun.
  bool heard() const { return received_ != 0; }
  /// Whether the connection broke and did not end.
  bool broke() const { return broke_; }

  template <class Fill>
  asio::awaitable<void> send(Fill&& fill) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    const auto message = writer.finish();
    FrameHeader header;
    header.kind = FrameKind::control;
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    header.sequence = ++sequence_;
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(&header, sizeof(header)),
                                                    asio::buffer(message.data(), message.size())};
    if (tls_) co_await asio::async_write(*tls_, buffers, asio::use_awaitable);
    else co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  }

  /// Whether the client is still there, as far as that can be seen without waiting.
  bool client_is_there();
  /// The descriptor, for another to go on with.
  int release() { return socket_.release(); }
  void hang_up();

 private:
  using Socket = asio::generic::stream_protocol::socket;
  asio::awaitable<void> read(asio::mutable_buffer buffer, asio::error_code& error);
  asio::awaitable<void> read_from_user(asio::mutable_buffer buffer, asio::error_code& error);

  Socket socket_;
  std::shared_ptr<asio::ssl::context> context_;    // that this connection began with
  std::optional<asio::ssl::stream<Socket&>> tls_;  // over socket_, once there is a handshake
  bool by_socket_ = false;
  bool broke_ = false;
  std::uint32_t sequence_ = 0;
  std::uint32_t received_ = 0;
  std::vector<std::byte> message_;
};

}  // namespace fargpu::server
