#include "command_stream.h"

#include <algorithm>
#include <array>
#include <new>

#include "client/base/uncancelled.h"
#include "protocol/program_memory.h"

namespace fargpu::client {
namespace {

constexpr std::size_t buffer_bytes = 16u << 10;        // sent when this much has gathered
constexpr std::size_t buffered_bytes_max = 64u << 10;  // while somebody sends
constexpr std::size_t inline_bulk_bytes = 8u << 10;    // smaller bulk is copied, larger is sent from where it lies
constexpr CommandStream::Clock::duration gather_time_min = std::chrono::microseconds(30);
constexpr CommandStream::Clock::duration gather_time_max = std::chrono::microseconds(200);
// One that takes longer has waited.
constexpr CommandStream::Clock::duration send_time_max = std::chrono::microseconds(10);
constexpr auto quick_call = std::chrono::microseconds(2);  // calls that follow one another so
constexpr unsigned quick_stride = 4;                       // read the clock as seldom as this

}  // namespace

CommandStream::CommandStream(Channel& channel, std::function<std::uint32_t()> confirmed,
                             std::function<void()> idle_wake, Compression compression)
    : channel_(channel), confirmed_(std::move(confirmed)), idle_wake_(std::move(idle_wake)), compressor_(compression) {}

template <class Ready>
void CommandStream::wait_until(Lock& lock, Ready&& ready) {
  if (ready()) [[likely]]
    return;
  const Uncancelled uncancelled;
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

void Gathered::grow(std::size_t more) {
  const std::size_t capacity = std::max(2 * buffer_bytes, 2 * (size_ + more));
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(capacity);
  if (size_ > 0) std::memcpy(bytes.get(), bytes_.get(), size_);
  bytes_ = std::move(bytes);
  capacity_ = capacity;
}

// The header tells of the bulk bytes already.
void CommandStream::gather(Gathered& into, FrameHeader header, Bytes message, std::uint64_t number) {
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.sequence = static_cast<std::uint32_t>(number);
  header.confirmed = confirmed_();
  std::byte* const at = into.extend(sizeof(header) + message.size());
  std::memcpy(at, &header, sizeof(header));
  if (!message.empty()) std::memcpy(at + sizeof(header), message.data(), message.size());
}

// If a run of calls lasts t, a sending takes s and there is one every g, sending takes s t/g of it, and a wait at its
// end takes g longer at most. The two together are least where g is the root of s t.
bool CommandStream::long_enough(Clock::duration gathered, Clock::time_point now) const {
  if (gathered <= gather_time_min) return false;
  if (gathered > gather_time_max) return true;
  const auto g = static_cast<double>(gathered.count());
  return g * g > static_cast<double>(send_time_.count()) * static_cast<double>((now - run_at_).count());
}

// After a pause, or a wait, calls may be what somebody outside of this stream waits for: they do not gather for long at
// first.
void CommandStream::begin_buffer() {
  begun_at_ = Clock::now();
  if (run_ended_ || long_enough((begun_at_ - sent_at_) / 2, begun_at_)) run_at_ = begun_at_;
  run_ended_ = false;
}

// A call after a pause goes at once; calls in quick succession gather. Where calls are very quick the clock is not read
// for each.
bool CommandStream::time_to_send(bool first) {
  if (!first && ++unlooked_ < stride_) return false;
  const auto now = first ? begun_at_ : Clock::now();
  stride_ = now - looked_at_ <= (unlooked_ + 1) * quick_call ? quick_stride : 1;
  looked_at_ = now;
  unlooked_ = 0;
  return long_enough(now - sent_at_, now);
}

void CommandStream::put(Lock& lock, FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number,
                        Urgency urgency) {
  header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
  if (bulk.size() > inline_bulk_bytes) {
    send_large(lock, header, message, bulk, number);
    return;
  }
  const bool first = buffer_.empty();
  if (first) begin_buffer();
  const std::size_t padding = padded(bulk.size()) - bulk.size();
  // All at once: a header without its bulk would make the next frame that.
  buffer_.reserve(sizeof(header) + message.size() + bulk.size() + padding);
  gather(buffer_, header, message, number);
  if (!bulk.empty()) {
    std::byte* const at = buffer_.extend(bulk.size() + padding);
    std::memcpy(at, bulk.data(), bulk.size());
    std::memset(at + bulk.size(), 0, padding);
  }
  if (urgency == Urgency::now || buffer_.size() >= buffer_bytes || (sending_ != Sending::some && time_to_send(first)))
    send(lock);
}

// Nobody sends now: there was room for it. Others append behind it while it is compressed and sent.
void CommandStream::send_large(Lock& lock, FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number) {
  static constexpr std::array<std::byte, 8> zeros{};
  urgent_ = false;
  send_outside(lock, Sending::all, [&] {
    const Bytes packed = compressor_.pack(bulk);
    if (!packed.empty()) {
      mark_compressed(header, packed.size());
      bulk = packed;
    }
    gather(outgoing_, header, message, number);
    const std::array<Bytes, 3> pieces{outgoing_.bytes(), bulk, Bytes(zeros).first(padded(bulk.size()) - bulk.size())};
    const auto begin = Clock::now();
    const bool waited = send_all(channel_, pieces);
    compressor_.sent(bulk.size(), !packed.empty(), Clock::now() - begin, waited);
    bytes_sent_.fetch_add(outgoing_.size() + padded(bulk.size()), std::memory_order_relaxed);
    outgoing_.clear();
  });
  if (urgent_) send(lock);
}

// Has what is buffered sent. A thread that sends already, and sends all, goes on with it.
void CommandStream::send(Lock& lock) {
  if (sending_ == Sending::all) {
    urgent_ = true;
    return;
  }
  wait_until(lock, [&] { return sending_ == Sending::nothing; });
  do {
    urgent_ = false;
    const auto begin = Clock::now();
    send_outside(lock, Sending::all, [&] {
      const OwnMemory own;
      const std::array<Bytes, 1> piece{outgoing_.bytes()};
      // The worker always reads, so waiting here ends; others queue behind, which keeps the order.
      send_all(channel_, piece);
      bytes_sent_.fetch_add(outgoing_.size(), std::memory_order_relaxed);
      outgoing_.clear();
    });
    // Through shared memory a sending is a copy, which takes as long if it is made later.
    if (!channel_.shares_memory()) send_time_ += (std::min(sent_at_ - begin, send_time_max) - send_time_) / 8;
  } while (urgent_);
}

// Without the lock. What `transfer` leaves of it comes before what is buffered meanwhile.
template <class Transfer>
void CommandStream::send_outside(Lock& lock, Sending how, Transfer&& transfer) {
  const Uncancelled uncancelled;
  sending_ = how;
  outgoing_.swap(buffer_);
  lock.unlock();
  const auto end = [&] {
    lock.lock();
    sent_at_ = Clock::now();
    if (!outgoing_.empty()) {
      try {
        outgoing_.append(buffer_.bytes());
        outgoing_.swap(buffer_);
      } catch (const std::bad_alloc&) {  // what the worker would miss it can never get
        channel_.close();
      }
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
  run_ended_ = true;
}

bool CommandStream::beat() {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock || sending_ != Sending::nothing) return false;
  FrameHeader header;
  header.kind = FrameKind::heartbeat;
  if (buffer_.empty()) begin_buffer();
  gather(buffer_, header, {}, ++last_);
  return true;
}

CommandStream::Left CommandStream::flush_some(Which which) {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || sending_ != Sending::nothing) return Left::young;
  if (buffer_.empty()) return Left::nothing;
  const auto now = Clock::now();
  if (which == Which::overdue && !long_enough((now - begun_at_) / 2, now)) return Left::young;
  run_ended_ = true;
  bool all = false;
  send_outside(lock, Sending::some, [&] {
    const OwnMemory own;
    const std::array<Bytes, 1> piece{outgoing_.bytes()};
    const std::size_t sent = channel_.send_some(piece);
    bytes_sent_.fetch_add(sent, std::memory_order_relaxed);
    outgoing_.drop_front(sent);
    all = outgoing_.empty();
  });
  if (!all) return Left::stuck;
  return buffer_.empty() ? Left::nothing : Left::young;
}

}  // namespace fargpu::client
