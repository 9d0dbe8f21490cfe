#pragma once
// A channel that outlives its connection. Above it nothing notices a break but that time passes: what the other end has
// not received is kept, and sent again on the next connection. docs/internals/resuming.md has the rules.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "channel.h"
#include "sent_log.h"
#include "sleepers.h"
#include "straight_sender.h"

namespace fargpu {

/// Ahead of the bytes of each sending. All numbers are little-endian.
struct ResumableHeader {
  std::uint32_t bytes = 0;     ///< that follow; none: the header is an acknowledgement alone
  std::uint32_t epoch = 0;     ///< of the connection
  std::uint64_t consumed = 0;  ///< bytes of the other direction that are in use at the sender: room for as many more
};
static_assert(sizeof(ResumableHeader) == 16);

/// Both ends of a connection are made into such a channel at the same place of what is said. A break is noticed by
/// whatever thread uses the channel; a new connection is given to resume(). Threads: as Channel, and any for what is
/// said here.
class ResumableChannel final : public Channel {
 public:
  using Clock = std::chrono::steady_clock;

  struct Break {
    std::string why;
    bool ended = false;  ///< the other end closed the connection in order, as the end of a process does
    Clock::time_point at{};
  };
  struct Hooks {
    /// A connection has broken. On the thread that notices, with no lock held.
    std::function<void(const Break&)> broke;
    /// Asked now and then while there is no connection: words give the channel up with them. Null: it waits.
    std::function<std::string(const Break&)> impatience;
  };

  /// `log_bytes`: how much is kept that the other end has not consumed; what is more waits. Equal at both ends.
  ResumableChannel(std::shared_ptr<Channel> connection, std::size_t log_bytes, Hooks hooks);

  /// Ends what there is of the connection. Nothing of it is received any more: returns how many bytes have been, which
  /// the other end must be told. Throws ChannelClosed if the channel is given up.
  std::uint64_t fence();
  /// Goes on by a new connection, after fence(), where the other end has received so many bytes. Throws ProtocolError
  /// if it cannot have, and ChannelClosed if the channel is given up.
  void resume(std::shared_ptr<Channel> connection, std::uint32_t epoch, std::uint64_t peer_received);
  /// Sends what the other end misses; returns when that has left, or the connection has broken too. Until then nothing
  /// else leaves by it.
  void catch_up(const std::shared_ptr<Channel>& connection);
  /// There will be no further connection: every use throws ChannelClosed with these words.
  void give_up(const std::string& why) noexcept;

  /// Says that this end has the channel, before there is anything else to say.
  void show_up();

  std::uint32_t epoch() const;
  bool over() const { return phase_.load(std::memory_order_acquire) == Phase::over; }
  /// Whether something has come by this connection.
  bool heard() const { return heard_.load(std::memory_order_acquire); }
  /// Whether there is something for the other end beyond so many bytes, which it has received.
  bool has_more_than(std::uint64_t peer_received) const {
    return unsent_.load(std::memory_order_acquire) || end_.load(std::memory_order_acquire) > peer_received;
  }
  /// Whether all that has been received was taken by its reader.
  bool all_taken() const { return inbox_bytes_.load(std::memory_order_acquire) == 0; }

  /// For the thread that sends: these bytes, if they are sent next, stay as they are until needs() says that they are
  /// not needed. `more`: much is sent behind them, so they are not copied for sending again until copy_lent() is
  /// called. None: no more is lent. Bytes in memory of a GPU (device_bytes.h) have to be lent, and are never copied
  /// before that.
  void lend(Bytes bytes, bool more);
  /// Whether some of these bytes are still on their way, or may have to be sent again, from where they lie.
  bool needs(Bytes bytes);
  /// Copies what may have to be sent again. Throws DeviceBytesError.
  void copy_lent();
  /// Whether some of these bytes, which were lent, could not be read when they were to be sent again or copied: then
  /// the other end has zeros in their place. Says so once.
  bool lost(Bytes bytes);

  std::size_t send_some(std::span<const Bytes> pieces) override;
  std::size_t receive_some(std::span<std::byte> buffer) override;
  Interest wait(Interest interest, Timeout timeout, Waker* waker = nullptr) override;
  void let_out() noexcept override;
  void close() noexcept override { give_up("the connection is closed"); }
  std::string peer() const override { return peer_; }
  bool resuming() const override;
  bool suspect(const std::string& why) override;
  std::string medium() const override;

 private:
  enum class Phase {
    whole,
    broken,  ///< there is no connection
    over,
  };
  void require_open() const;
  std::shared_ptr<Channel> current() const;
  bool break_off(const std::shared_ptr<Channel>& connection, const Break& what);
  void broke(const std::shared_ptr<Channel>& connection, const std::string& why, bool ended);
  void judge_patience();

  // Under send_mutex_.
  void begin_record(std::size_t bytes);
  std::size_t send_record(Channel& connection, std::span<const Bytes> pieces);
  bool finish_header(Channel& connection);
  std::size_t send_new(Channel& connection, std::span<const Bytes> pieces);
  void log(std::span<const Bytes> pieces, std::size_t bytes);
  void send_missing(Channel& connection);
  bool bounces(const void* address) const;

  // Under receive_mutex_.
  void read_header(const std::byte* at);
  bool fill_raw(Channel& connection);
  template <class Use>
  void use_raw(Use&& use);
  std::size_t receive(Channel& connection, std::span<std::byte> buffer);
  std::size_t receive_straight(Channel& connection, std::span<std::byte> buffer);
  bool keep_some(Channel& connection);
  void keep(Bytes bytes);
  std::size_t take_kept(std::span<std::byte> buffer);

  bool has_room() const;
  void settle_acknowledgement();
  void receive_ahead(const std::shared_ptr<Channel>& connection);
  Interest wait_for_connection(Timeout timeout, Waker* waker);
  Interest wait_on(const std::shared_ptr<Channel>& connection, Interest interest, Timeout timeout, Waker* waker);
  void copy_loans();

  const std::string peer_;
  const std::size_t log_bytes_;
  const Hooks hooks_;

  // The locks are taken in this order: send, receive, state. A connection is put in place under all three, and given up
  // under the last two.
  std::mutex send_mutex_;
  SentLog log_;
  std::vector<Bytes> lost_;  // of what was lent
  Bytes lent_;               // what is sent of these stays as it is
  bool more_ = false;        // and is not copied
  std::uint64_t sent_ = 0;   // of the log, by this connection
  std::array<std::byte, sizeof(ResumableHeader)> header_{};
  std::size_t header_left_ = 0, record_left_ = 0;  // of the record that is being sent
  std::vector<std::byte> send_bounce_;             // of bytes in memory of a GPU, where the connection cannot have them
  std::atomic<std::uint64_t> told_{0};             // consumed, as the other end was told
  std::atomic<std::uint64_t> end_{0};              // of what was ever sent
  std::atomic<bool> unsent_{false};                // what was shown last for sending was not taken
  std::atomic<std::uint64_t> shown_{0};            // of what a connection may have sent: it tells late of some of that
  std::size_t ahead_ = 0;  // bytes that the other end has, and that will be shown for sending once more
  std::atomic<bool> resending_{false};
  std::atomic<bool> acknowledgement_due_{false};

  std::mutex receive_mutex_;
  std::vector<std::byte> raw_;  // as it came: headers and bytes
  std::size_t raw_begin_ = 0, raw_end_ = 0;
  std::size_t record_missing_ = 0;  // of the record that is being received
  std::vector<std::byte> inbox_;    // received while nobody asked
  std::vector<std::byte> receive_bounce_;
  std::size_t inbox_begin_ = 0;
  std::atomic<std::size_t> inbox_bytes_{0};
  std::atomic<std::uint64_t> consumed_{0};
  std::atomic<std::uint64_t> peer_consumed_{0};
  std::atomic<bool> heard_{false};
  std::atomic<unsigned> readers_{0};                                 // threads that wait for something to receive
  std::atomic<unsigned> room_waiters_{0};                            // and for room in the log
  Sleepers sleepers_;                                                // these
  std::atomic<Clock::duration> looked_at_{Clock::duration::zero()};  // at whether the other end is silent

  mutable std::mutex state_mutex_;
  std::atomic<Phase> phase_{Phase::whole};  // changes under the lock
  std::shared_ptr<Channel> connection_;
  StraightSender* straight_;  // the connection, if it can send from where bytes lie
  std::uint32_t epoch_ = 0;
  Break break_;
  std::string over_;
  Waker changed_;  // signalled but while there is no connection
};

/// Has the kernel give up a connection by TCP that is idle and whose other end does not answer, within about five
/// seconds.
void watch_connection(const Channel& connection);

}  // namespace fargpu
