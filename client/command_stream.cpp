#include "command_stream.h"

#include <algorithm>
#include <array>

namespace fargpu::client {
namespace {

constexpr std::size_t buffer_bytes = 16u << 10;        // sent when this much has gathered
constexpr std::size_t buffered_bytes_max = 64u << 10;  // while somebody sends
constexpr std::size_t inline_bulk_bytes = 8u << 10;    // smaller bulk is copied, larger is sent from where it lies
constexpr auto gather_time = std::chrono::microseconds(30);

}  // namespace

CommandStream::CommandStream(Channel& channel, std::function<std::uint32_t()> confirmed,
                             std::function<void()> idle_wake)
    : channel_(channel), confirmed_(std::move(confirmed)), idle_wake_(std::move(idle_wake)) {
  buffer_.reserve(2 * buffer_bytes);
  outgoing_.reserve(2 * buffer_bytes);
}

template <class Ready>
void CommandStream::wait_until(Lock& lock, Ready&& ready) {
  if (ready()) [[likely]]
    return;
  ++waiting_;
  sent_.wait(lock, ready);
  --waiting_;
}

// Large bulk is sent by the thread that has it, right behind its header.
void CommandStream::wait_for_room(Lock& lock, Bytes bulk) {
  wait_until(lock, [&] {
    return sending_ == Sending::nothing || (bulk.size() <= inline_bulk_bytes && buffer_.size() < buffered_bytes_max);
  });
}

void CommandStream::gather(FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number) {
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
  header.sequence = static_cast<std::uint32_t>(number);
  header.confirmed = confirmed_();
  const auto* begin = reinterpret_cast<const std::byte*>(&header);
  buffer_.insert(buffer_.end(), begin, begin + sizeof(header));
  buffer_.insert(buffer_.end(), message.begin(), message.end());
}

void CommandStream::put(Lock& lock, FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number, Urgency urgency) {
  const auto now = Clock::now();
  if (buffer_.empty()) begun_at_ = now;
  gather(header, message, bulk, number);
  const std::size_t padding = padded(bulk.size()) - bulk.size();
  if (bulk.size() > inline_bulk_bytes) {
    send(lock, bulk, padding);
    return;
  }
  buffer_.insert(buffer_.end(), bulk.begin(), bulk.end());
  buffer_.insert(buffer_.end(), padding, std::byte{0});
  // A call after a pause goes at once; calls in quick succession gather.
  if (urgency == Urgency::now || buffer_.size() >= buffer_bytes || now - sent_at_ > gather_time) send(lock);
}

// Has what is buffered sent. Whoever sends already, and sends all, goes on with it.
void CommandStream::send(Lock& lock, Bytes more, std::size_t padding) {
  if (sending_ == Sending::all) {
    urgent_ = true;
    return;
  }
  wait_until(lock, [&] { return sending_ == Sending::nothing; });
  static constexpr std::array<std::byte, 8> zeros{};
  do {
    urgent_ = false;
    send_outside(lock, Sending::all, [&] {
      const std::array<Bytes, 3> pieces{Bytes(outgoing_), more, Bytes(zeros).first(padding)};
      // The worker always reads, so waiting here ends; others queue behind, which keeps the order.
      send_all(channel_, pieces);
      bytes_sent_.fetch_add(outgoing_.size() + more.size() + padding, std::memory_order_relaxed);
      outgoing_.clear();
    });
    more = {};
    padding = 0;
  } while (urgent_);
}

// Without the lock. What `transfer` leaves of it comes before what is buffered meanwhile.
template <class Transfer>
void CommandStream::send_outside(Lock& lock, Sending how, Transfer&& transfer) {
  sending_ = how;
  outgoing_.swap(buffer_);
  lock.unlock();
  const auto end = [&] {
    lock.lock();
    sent_at_ = Clock::now();
    if (!outgoing_.empty()) {
      outgoing_.insert(outgoing_.end(), buffer_.begin(), buffer_.end());
      outgoing_.swap(buffer_);
      outgoing_.clear();
    }
    sending_ = Sending::nothing;
    if (waiting_ > 0) sent_.notify_all();
  };
  try {
    transfer();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void CommandStream::flush() {
  Lock lock(mutex_);
  if (!buffer_.empty()) send(lock);
}

bool CommandStream::beat() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock || sending_ != Sending::nothing) return false;
  FrameHeader header;
  header.kind = FrameKind::heartbeat;
  if (buffer_.empty()) begun_at_ = Clock::now();
  gather(header, {}, {}, ++last_);
  return true;
}

CommandStream::Left CommandStream::flush_older_than(Clock::duration age) {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || sending_ != Sending::nothing) return Left::young;
  if (buffer_.empty()) return Left::nothing;
  if (Clock::now() - begun_at_ < age) return Left::young;
  bool all = false;
  send_outside(lock, Sending::some, [&] {
    const std::array<Bytes, 1> piece{Bytes(outgoing_)};
    const std::size_t sent = channel_.send_some(piece);
    bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent));
    all = outgoing_.empty();
  });
  if (!all) return Left::stuck;
  return buffer_.empty() ? Left::nothing : Left::young;
}

}  // namespace fargpu::client
