#pragma once
// The session's calls in one total order, on their way out.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "client/base/adaptive_mutex.h"
#include "protocol/channel.h"
#include "protocol/compression.h"
#include "protocol/frame.h"

namespace fargpu::client {

/// Bytes that gather, and are not made zeros first.
class Gathered {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }
  /// Room for so many more.
  void reserve(std::size_t more) {
    if (more > capacity_ - size_) [[unlikely]]
      grow(more);
  }
  /// Room for so many more, which count from now on.
  std::byte* extend(std::size_t more) {
    reserve(more);
    return bytes_.get() + std::exchange(size_, size_ + more);
  }
  void append(std::span<const std::byte> more) {
    if (!more.empty()) std::memcpy(extend(more.size()), more.data(), more.size());
  }
  void clear() { size_ = 0; }
  void swap(Gathered& other) {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }
  void drop_front(std::size_t count) {
    std::memmove(bytes_.get(), bytes_.get() + count, size_ - count);
    size_ -= count;
  }

 private:
  void grow(std::size_t more);

  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_ = 0, capacity_ = 0;
};

/// All threads of the program append here, under one short lock, in the order in which their calls happen. Small frames
/// gather in a buffer, which is sent when it is large, when the last sending was a while ago, when somebody waits, or,
/// by the service thread, when it has waited for twice as long. That while grows with the time for which calls have
/// followed one another and nobody has waited, up to where sending takes little of the thread's time. One thread sends
/// at a time, without the lock: others go on appending. Throws ChannelClosed once the connection is lost.
class CommandStream {
 public:
  using Bytes = Channel::Bytes;
  using Clock = std::chrono::steady_clock;

  /// `confirmed` tells how many frames were taken from the worker; `idle_wake` is called (outside of any lock that the
  /// callee could want) when a buffer was begun that somebody must send later.
  CommandStream(Channel& channel, std::function<std::uint32_t()> confirmed, std::function<void()> idle_wake,
                Compression compression);

  enum class Urgency {
    later,  ///< may wait in the buffer
    now,    ///< somebody waits for the answer
  };

  /// Appends one frame and returns its number. `before` runs under the lock with that number, before the frame can
  /// reach the worker: the place to register for the reply. Lent bytes are read before this returns.
  template <class Before>
  std::uint64_t append(FrameHeader header, Bytes message, Bytes bulk, Urgency urgency, Before&& before) {
    std::unique_lock lock(mutex_);
    wait_for_room(lock, bulk);
    const std::uint64_t number = ++last_;
    before(number);
    put(lock, header, message, bulk, number, urgency);
    if (urgency == Urgency::now) run_ended_ = true;
    const bool wake = urgency == Urgency::later && !buffer_.empty();
    lock.unlock();
    if (wake) idle_wake_();
    return number;
  }
  std::uint64_t append(FrameHeader header, Bytes message, Bytes bulk, Urgency urgency) {
    return append(header, message, bulk, urgency, [](std::uint64_t) {});
  }

  /// Does something while no call is appended.
  template <class Action>
  void in_order(Action&& action) const {
    const std::lock_guard lock(mutex_);
    action();
  }

  /// Has what is buffered sent: by this thread, or by the one that is sending now.
  void flush();

  // For the thread that reads: neither waits, for a thread that sends or for a worker that does not read.

  /// Puts a heartbeat behind what is buffered. False if somebody is sending now.
  bool beat();
  enum class Left {
    nothing,
    young,  ///< not overdue, or somebody is sending
    stuck,  ///< the connection takes no more now
  };
  enum class Which {
    all,
    overdue,  ///< if a call would have sent it long ago, had one come
  };
  /// Sends as much of what is buffered as the connection takes. Returns what is still buffered.
  Left flush_some(Which which);

  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  using Lock = std::unique_lock<AdaptiveMutex>;
  void wait_for_room(Lock& lock, Bytes bulk);
  void gather(Gathered& into, FrameHeader header, Bytes message, std::uint64_t number);
  void put(Lock& lock, FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number, Urgency urgency);
  enum class Sending {
    nothing,
    some,  ///< what the connection takes now
    all,   ///< and what is urgent by then
  };
  void begin_buffer();
  bool time_to_send(bool first);
  bool long_enough(Clock::duration gathered, Clock::time_point now) const;
  void send(Lock& lock);
  void send_large(Lock& lock, FrameHeader header, Bytes message, Bytes bulk, std::uint64_t number);
  template <class Transfer>
  void send_outside(Lock& lock, Sending how, Transfer&& transfer);
  template <class Ready>
  void wait_until(Lock& lock, Ready&& ready);

  Channel& channel_;
  const std::function<std::uint32_t()> confirmed_;
  const std::function<void()> idle_wake_;
  mutable AdaptiveMutex mutex_;
  Sending sending_ = Sending::nothing;
  std::condition_variable_any sent_;  // nobody sends any more
  unsigned waiting_ = 0;              // for that
  bool urgent_ = false;
  Gathered buffer_;
  Gathered outgoing_;       // of the thread that sends
  Compressor compressor_;   // of the thread that sends
  std::uint64_t last_ = 1;  // attach was the first frame
  Clock::time_point sent_at_{};
  Clock::time_point begun_at_{};   // the buffer
  Clock::time_point run_at_{};     // calls that follow one another while nobody waits
  bool run_ended_ = true;          // the next call begins one
  Clock::duration send_time_{};    // what a sending takes, about
  Clock::time_point looked_at_{};  // the last time that the clock was read for a call
  unsigned unlooked_ = 0;          // calls since
  unsigned stride_ = 1;            // and how many may be
  std::atomic<std::uint64_t> bytes_sent_{0};
};

}  // namespace fargpu::client
