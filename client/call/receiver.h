#pragma once
// What comes from the worker: replies for waiting threads, and what the worker says by itself.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "control.capnp.h"
#include "protocol/channel.h"
#include "protocol/frame_reader.h"
#include "protocol/message.h"
#include "protocol/spare_processors.h"

namespace fargpu::client {

/// A reply somebody waits for. Lives on the waiting thread's stack, registered from before its call can leave until it
/// is done.
struct PendingReply {
  CUresult result = CUDA_SUCCESS;
  std::vector<std::byte> message;  ///< the reply's message, if it has one
  std::span<std::byte> target;     ///< where data frames go, one behind the other
  std::size_t arrived_bytes = 0;   ///< how many came
  bool spoiled = false;            ///< some could not be written there
  std::atomic<bool> done{false};
};

/// What the worker says by itself.
class PushHandler {
 public:
  virtual ~PushHandler() = default;
  /// A control message; `bulk` are the bytes behind it, already in their place. On the receiving thread, with no lock
  /// held.
  virtual void on_push(wire::Control::Reader push, std::span<std::byte> bulk) = 0;
  /// Where the bulk bytes of a Deliver go; empty if there is no such place in a block of ours.
  virtual std::span<std::byte> place_delivery(wire::Deliver::Reader deliver, std::size_t bytes) = 0;
};

/// One thread at a time reads the connection: the first of those that wait for a reply, or else one that attends to
/// what the worker says by itself, or the service thread. It hands replies to the others.
class Receiver final : FrameHandler {
 public:
  /// `spin`: for how long a thread that waits looks for what it waits for before it sleeps, at most.
  Receiver(Channel& channel, PushHandler& pushes, std::chrono::nanoseconds spin);

  /// Registers before the call leaves; `number` is the call's.
  void expect(std::uint64_t number, PendingReply& pending);

  /// How a thread waits that reads the connection.
  enum class Manner {
    spin,   ///< looks for the answer for as long as `spin` says, as the driver does
    sleep,  ///< after a moment it sleeps, as a program may ask of the driver
  };

  /// Waits for it. Throws ChannelClosed when the connection is lost; the reply is then no longer registered.
  void wait(std::uint64_t number, PendingReply& pending, Manner manner = Manner::spin);

  /// The call could not be sent, or not all of it, and the connection is of no use any more. Nothing is written to the
  /// reply, or to where its data would go, after this.
  void forget(std::uint64_t number) noexcept;

  /// Reads what is there, if nobody else is reading, or waits for a reply and so will. Returns true if something came.
  bool serve();

  /// How attending ends.
  enum class Attended {
    ready,
    others,  ///< threads wait for replies, and read
    over,    ///< the session is lost
  };
  /// Reads while nobody waits for a reply, until `ready` holds, by what comes, by what another thread does and signals
  /// to `waker`, or by time. Looks for a while, and then sleeps until something comes. One thread at a time. Throws
  /// ChannelClosed, as waiting does.
  Attended attend(const std::function<bool()>& ready, Waker& waker);

  /// Waits until `ready` holds, which must become true by a push, or by time where it is asked again after so long at
  /// the latest; reads meanwhile. Throws ChannelClosed.
  void wait_until(const std::function<bool()>& ready, Channel::Timeout ask_again = Channel::forever);

  /// Ends all waiting; further waits throw ChannelClosed with this text, or that of the first such call, which it
  /// returns.
  std::string lose(const std::string& why);

  /// Number of the last frame taken from the worker, low 32 bits.
  std::uint32_t confirmed() const { return confirmed_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_received() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) override;
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override;
  template <class Ready>
  void wait_for(Ready&& ready, Manner manner, Channel::Timeout ask_again = Channel::forever);
  template <class Ready>
  void read_until(Ready&& ready, std::chrono::nanoseconds spin, Channel::Timeout ask_again);
  template <class Read>
  void read(std::unique_lock<std::mutex>& lock, Read&& read);
  void let_pass(std::unique_lock<std::mutex>& lock);
  bool over();
  void stop_reading(const std::string& why);

  Channel& channel_;
  PushHandler& pushes_;
  const std::chrono::nanoseconds spin_;
  FrameReader reader_;
  SpareProcessors spare_;

  std::atomic<unsigned> callers_{0};  // threads that wait, and read
  std::atomic<bool> passing_{false};  // the one that reads only takes what is there
  std::mutex mutex_;
  std::condition_variable changed_;  // a reply is done, or nobody reads any more
  bool reading_ = false;
  std::string stopped_why_;  // if it is not empty nothing more is read: a frame may have been left half way to where
                             // nobody wants it now
  bool lost_ = false;
  std::string lost_why_;
  std::unordered_map<std::uint32_t, PendingReply*> pending_;
  std::vector<std::byte> discarded_;  // for bulk bytes that nobody wants
  std::atomic<std::uint32_t> confirmed_{0};
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace fargpu::client
