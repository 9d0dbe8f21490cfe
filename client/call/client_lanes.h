#pragma once
// Large copies on the session's bulk lanes.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "protocol/channel.h"
#include "protocol/lanes.h"

namespace fargpu::client {

/// Opens the lanes when they are first of use. Threads: any.
class ClientLanes final : ChunkHandler {
 public:
  /// `open` connects a lane, on which each side has sent one frame, or throws.
  ClientLanes(unsigned lanes, std::function<std::unique_ptr<Channel>()> open, Compression compression)
      : wanted_(open ? lanes : 0), open_(std::move(open)), lanes_(*this, compression) {}

  /// Whether a copy of so many bytes goes by the lanes. Opens them.
  bool takes(std::uint64_t bytes);

  /// Number of a new transfer, for the call that it belongs to.
  std::uint32_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  /// Sends all bytes; they have been read when this returns. False if they could not be, after which what arrived is not what was meant.
  /// Before, `call` sends the call that they belong to, or returns that it did not, and nothing is sent. Transfers go by the lanes in the
  /// order of their calls: the worker has room for so much of what it does not expect yet. Throws ChannelClosed.
  bool send(std::uint32_t transfer, std::span<const std::byte> bytes, const std::function<bool()>& call);

  /// Bytes that the worker sends. Lives on the stack of the thread that waits for them.
  class Arrival {
   public:
    /// From before the call that asks for them leaves.
    Arrival(ClientLanes& bulk, std::span<std::byte> target);
    ~Arrival();  ///< nothing is written there any more afterwards
    Arrival(const Arrival&) = delete;
    Arrival& operator=(const Arrival&) = delete;
    std::uint32_t transfer() const { return transfer_; }
    /// Until all are there. Throws ChannelClosed.
    void wait();

   private:
    friend class ClientLanes;
    ClientLanes& bulk_;
    const std::uint32_t transfer_;
    const std::span<std::byte> target_;
    // Under the mutex.
    std::uint64_t arrived_bytes_ = 0;
    unsigned writing_ = 0;  // lanes that write there now
    bool wanted_ = true;
  };

  /// Ends all waiting, now and later: who waits loses the session with these words.
  void close(const std::string& why);
  std::uint64_t bytes_sent() const { return lanes_.bytes_sent(); }
  std::uint64_t bytes_received() const { return lanes_.bytes_received(); }

 private:
  std::span<std::byte> place(Chunk chunk, std::size_t bytes) override;
  void landed(Chunk chunk, std::span<std::byte> bytes) override;
  void lost(const std::string& why) override;

  const unsigned wanted_;
  const std::function<std::unique_ptr<Channel>()> open_;
  std::once_flag opened_;
  std::atomic<bool> ready_{false};
  std::atomic<std::uint32_t> next_{1};
  std::mutex order_;  // from a call until its bytes are on the lanes; taken before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Arrival*> arrivals_;
  bool ended_ = false;
  std::string why_;
  Lanes lanes_;  // last: its threads use the rest
};

}  // namespace fargpu::client
