#include "command_stream.h"

#include <array>

namespace fargpu::client {
namespace {

constexpr std::size_t buffer_bytes = 16u << 10;        // sent when this much has gathered
constexpr std::size_t inline_bulk_bytes = 8u << 10;    // smaller bulk is copied, larger is sent from where it lies
constexpr auto gather_time = std::chrono::microseconds(30);

}  // namespace

CommandStream::CommandStream(Channel& channel, std::function<std::uint32_t()> confirmed,
                             std::function<void()> idle_wake)
    : channel_(channel), confirmed_(std::move(confirmed)), idle_wake_(std::move(idle_wake)) {
  buffer_.reserve(2 * buffer_bytes);
}

void CommandStream::gather(FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number) {
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
  header.sequence = static_cast<std::uint32_t>(number);
  header.confirmed = confirmed_();
  if (buffer_.empty()) begun_at_ = Clock::now();
  const auto* begin = reinterpret_cast<const std::byte*>(&header);
  buffer_.insert(buffer_.end(), begin, begin + sizeof(header));
  buffer_.insert(buffer_.end(), message.begin(), message.end());
}

void CommandStream::put(FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number,
                        Urgency urgency) {
  gather(header, message, bulk, number);
  const std::size_t padding = padded(bulk.size()) - bulk.size();
  if (bulk.size() > inline_bulk_bytes) {
    send(bulk, padding);
    return;
  }
  buffer_.insert(buffer_.end(), bulk.begin(), bulk.end());
  buffer_.insert(buffer_.end(), padding, std::byte{0});
  // A call after a pause goes at once; calls in quick succession gather.
  if (urgency == Urgency::now || buffer_.size() >= buffer_bytes || Clock::now() - sent_at_ > gather_time)
    send({}, 0);
}

void CommandStream::send(Bytes more, std::size_t padding) {
  static constexpr std::array<std::byte, 8> zeros{};
  const std::array<Bytes, 3> pieces{Bytes(buffer_), more, Bytes(zeros).first(padding)};
  const std::size_t bytes = buffer_.size() + more.size() + padding;
  // The worker always reads, so waiting here with the lock held ends; others queue behind, which keeps the order.
  send_all(channel_, pieces);
  buffer_.clear();
  sent_at_ = Clock::now();
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
}

void CommandStream::flush() {
  const std::lock_guard lock(mutex_);
  if (!buffer_.empty()) send({}, 0);
}

bool CommandStream::beat() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  FrameHeader header;
  header.kind = FrameKind::heartbeat;
  gather(header, {}, {}, ++last_);
  return true;
}

CommandStream::Left CommandStream::flush_older_than(Clock::duration age) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return Left::young;
  if (buffer_.empty()) return Left::nothing;
  if (Clock::now() - begun_at_ < age) return Left::young;
  const std::array<Bytes, 1> piece{Bytes(buffer_)};
  const std::size_t sent = channel_.send_some(piece);
  bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(sent));
  if (!buffer_.empty()) return Left::stuck;
  sent_at_ = Clock::now();
  return Left::nothing;
}

}  // namespace fargpu::client
