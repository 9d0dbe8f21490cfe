#include "handshake.h"

#include <kj/exception.h>

#include <array>
#include <new>
#include <optional>
#include <string_view>

#include "frame.h"
#include "message.h"

namespace fargpu {
namespace {

using Clock = std::chrono::steady_clock;

// `received` counts the bytes that have come, for a caller that looks at them when the rest does not come.
void receive_exactly(Channel& channel, std::span<std::byte> into, Clock::time_point deadline, std::size_t& received) {
  while (!into.empty()) {
    const std::size_t got = channel.receive_some(into);
    into = into.subspan(got);
    received += got;
    if (got > 0) continue;
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) throw ChannelSilent(channel.peer() + " does not answer");
    channel.wait({.readable = true}, left);
  }
}

// A service that is no fargpud and begins so is named for the person who mistook its port.
void refuse_other_service(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  if (text.starts_with("HTTP/")) throw ProtocolError("it is a web server: it answers by HTTP");
  if (text.starts_with("SSH-")) throw ProtocolError("it is an SSH server");
  // TLS: an alert, or a handshake.
  if (text.starts_with("\x15\x03") || text.starts_with("\x16\x03"))
    throw ProtocolError("it speaks TLS, which tls:// in front of the host asks for");
}

}  // namespace

void send_control(Channel& channel, std::uint32_t sequence,
                  const std::function<void(wire::Control::Builder)>& fill) try {
  // Room for all that a host tells of itself, on the heap: MessageWriter's builder, which has its first segment
  // elsewhere, looks in the end at further ones, and crashes where it did not get those for the want of memory.
  constexpr unsigned words = 8192;
  capnp::MallocMessageBuilder builder(words);
  fill(builder.getRoot<wire::Control>());
  std::optional<capnp::MallocMessageBuilder> larger;
  if (builder.getSegmentsForOutput().size() > 1) {
    larger.emplace(static_cast<unsigned>(builder.sizeInWords()) + 1, capnp::AllocationStrategy::FIXED_SIZE);
    larger->setRoot(builder.getRoot<wire::Control>().asReader());
  }
  const auto segment = (larger ? *larger : builder).getSegmentsForOutput()[0].asBytes();
  const auto message = std::as_bytes(std::span(segment.begin(), segment.size()));
  FrameHeader header;
  header.kind = FrameKind::control;
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.sequence = sequence;
  const std::array<Channel::Bytes, 2> pieces{std::as_bytes(std::span(&header, 1)), message};
  send_all(channel, pieces);
} catch (const kj::Exception& error) {
  // Want of memory, as the builder tells it: in several lines, and as if something were wrong with the message.
  if (error.getType() == kj::Exception::Type::OVERLOADED) throw std::bad_alloc();
  throw;
}

std::vector<std::byte> receive_control(Channel& channel, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  FrameHeader header;
  const auto first = std::as_writable_bytes(std::span(&header, 1));
  std::size_t received = 0;
  try {
    receive_exactly(channel, first, deadline, received);
  } catch (const ChannelClosed&) {
    refuse_other_service(first.first(received));
    throw;
  }
  refuse_other_service(first);
  check_frame_header(header);
  if (header.kind != FrameKind::control || header.bulk_bytes != 0)
    throw ProtocolError(channel.peer() + " does not speak fargpu's protocol");
  std::vector<std::byte> message(header.message_bytes);
  receive_exactly(channel, message, deadline, received);
  return message;
}

}  // namespace fargpu
