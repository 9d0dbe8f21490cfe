#include "handshake.h"

#include <array>
#include <optional>

#include "frame.h"
#include "message.h"

namespace fargpu {
namespace {

using Clock = std::chrono::steady_clock;

void receive_exactly(Channel& channel, std::span<std::byte> into, Clock::time_point deadline) {
  while (!into.empty()) {
    const std::size_t got = channel.receive_some(into);
    into = into.subspan(got);
    if (got > 0) continue;
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) throw ChannelClosed(channel.peer() + " does not answer");
    channel.wait({.readable = true}, left);
  }
}

}  // namespace

void send_control(Channel& channel, std::uint32_t sequence, const std::function<void(wire::Control::Builder)>& fill) {
  // Room for all that a host tells of itself, on the heap: MessageWriter's builder, which has its first segment elsewhere, looks in the end
  // at further ones, and crashes where it did not get those for the want of memory.
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
}

std::vector<std::byte> receive_control(Channel& channel, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  FrameHeader header;
  receive_exactly(channel, std::as_writable_bytes(std::span(&header, 1)), deadline);
  check_frame_header(header);
  if (header.kind != FrameKind::control || header.bulk_bytes != 0)
    throw ProtocolError(channel.peer() + " does not speak fargpu's protocol");
  std::vector<std::byte> message(header.message_bytes);
  receive_exactly(channel, message, deadline);
  return message;
}

}  // namespace fargpu
