#pragma once
// A channel carries bytes between two ends, in order and without loss, until it is closed. What is above it sends
// frames and does not know whether they travel by TCP, through shared memory or within one process.

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace fargpu {

/// Wakes a thread out of Channel::wait. Signals are remembered until drained.
class Waker {
 public:
  Waker();
  ~Waker();
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  void signal() noexcept;  ///< any thread; also from a forked child's point of view harmless
  void drain() noexcept;
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

class Channel {
 public:
  using Bytes = std::span<const std::byte>;
  using Timeout = std::chrono::nanoseconds;
  static constexpr Timeout forever{-1};

  struct Interest {
    bool readable = false;
    bool writable = false;
  };

  virtual ~Channel() = default;

  /// Sends what fits without waiting; returns the number of bytes taken, from the first piece on. One sender at a time.
  /// A piece in memory that cannot be read is an error of the caller: throws SystemError with nothing of it sent.
  /// Throws ChannelClosed.
  virtual std::size_t send_some(std::span<const Bytes> pieces) = 0;

  /// Receives what is there without waiting, at most buffer.size() bytes; 0 if nothing is. One receiver at a time.
  /// Throws ChannelClosed once the other end is gone and everything it sent was received.
  virtual std::size_t receive_some(std::span<std::byte> buffer) = 0;

  /// Waits until the channel is ready for one of the interests (or is closed), the waker was signalled, or the time is
  /// over. Returns what is ready. Any number of threads may wait at once.
  virtual Interest wait(Interest interest, Timeout timeout, Waker* waker = nullptr) = 0;

  // --- on channels that outlive their connection (resumable_channel.h) ---------------------------------------------

  /// Whether there is no connection just now, and one is expected.
  virtual bool resuming() const { return false; }
  /// The connection brings nothing: gives it up for a new one. False if there will be none.
  virtual bool suspect(const std::string&) { return false; }

  /// Before a process ends that has sent its last: returns when that does not need the process any more, or after a
  /// moment. Any thread.
  virtual void let_out() noexcept {}

  /// Ends the connection for both ends; threads in wait() return. May be called from any thread, more than once.
  virtual void close() noexcept = 0;

  /// The descriptor of the connection; -1 if it has none.
  virtual int descriptor() const { return -1; }

  /// The name of the other end, for messages.
  virtual std::string peer() const = 0;

  // --- beside the bytes: descriptors, on channels between processes of one machine ----------------------------------

  /// Whether descriptors can be passed.
  virtual bool passes_descriptors() const { return false; }
  /// Passes one to the other end, which gets one of its own, without waiting; false if there is no room, or no way. One
  /// thread at a time.
  virtual bool send_descriptor(int) { return false; }
  /// The next that was passed and has arrived, which the caller then owns; -1 if none is there. Of those that nobody
  /// takes only a few are kept. As receive_some: one receiver at a time, which may be another than that of the bytes if
  /// these go through shared memory.
  virtual int receive_descriptor() { return -1; }

  /// Whether bytes go through shared memory.
  virtual bool shares_memory() const { return false; }

  /// What the bytes go by, for people.
  virtual std::string medium() const { return "TCP"; }
};

/// A connected stream socket (TCP or Unix); takes ownership of the descriptor and makes it non-blocking.
std::unique_ptr<Channel> make_socket_channel(int descriptor, std::string peer);

/// A channel through two rings in shared memory, between the ends of `socket`, which wakes a sleeping end, tells when
/// the other end is gone, and passes descriptors. `memory` is what make_ring_memory() made, here or at the other end;
/// it is mapped here, and its descriptor is the caller's still. `first`: this end writes the first ring and the other
/// end the second. Throws ProtocolError if the memory is not what it should be.
std::unique_ptr<Channel> make_shared_channel(std::shared_ptr<Channel> socket, int memory, std::size_t ring_bytes,
                                             bool first);

/// Sealed memory for two rings; the caller owns the descriptor. Throws SystemError.
int make_ring_memory(std::size_t ring_bytes);

/// The two ends of a channel within this process. `capacity_bytes` bounds what is under way in each direction.
std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_memory_channel(std::size_t capacity_bytes = 256u
                                                                                                               << 10);

/// Sends everything, waiting as long as it takes; reads nothing meanwhile. Returns whether it had to wait. Throws
/// ChannelClosed.
bool send_all(Channel& channel, std::span<const Channel::Bytes> pieces);

}  // namespace fargpu
