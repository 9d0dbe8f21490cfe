#pragma once
// Contents of memory on the session's bulk lanes, between the lanes' threads and the executor.

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "driver_table.h"
#include "server/worker/base/pages.h"
#include "protocol/channel.h"
#include "protocol/lanes.h"
#include "server/worker/objects/streams.h"

namespace fargpu::server {

/// Chunks that arrive lie in slots of memory of their own until the executor has given them on. A chunk may come before the call that it
/// belongs to; then it waits in its slot, and when so many slots are taken, the lanes wait: what is expected has room. Clients therefore put
/// on lanes only what depends on nothing that they have still to do, in the order of the calls.
class WorkerLanes final : ChunkHandler {
 public:
  /// What a transfer does with a chunk, which lies in a slot that must be given back. On the executor.
  using Taker = std::function<void(Chunk chunk, std::span<std::byte> slot)>;
  using Release = std::function<void()>;

  /// The waker brings the executor to collect().
  WorkerLanes(Waker& waker, Compression compression) : waker_(waker), lanes_(*this, compression) {}
  ~WorkerLanes() override;

  /// Takes a lane. Any thread. Throws SystemError if there is no memory for it.
  void add_lane(std::unique_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before);

  bool lanes_full() const { return lanes_.count() >= limits::lanes_max; }

  // --- for the executor ---

  /// The slots are pinned in the current context, unless they are already; copies from them are slower otherwise.
  void pin(DriverTable& driver, const ContextState& context);
  /// The context is about to go.
  void context_closes(DriverTable& driver, const ContextState& context);

  /// `taker` gets the chunks of this transfer, of so many bytes in all, each once, from collect(). Throws ProtocolError for a number that
  /// is in use.
  void receive(std::uint32_t transfer, std::uint64_t bytes, Taker taker);
  void give(std::span<std::byte> slot);
  /// Nobody wants the chunks of this transfer, which come all the same. Throws ProtocolError for a number that is in use, and when so many
  /// do not come.
  void refuse(std::uint32_t transfer, std::uint64_t bytes);

  /// Sends a chunk from where it lies; `release` runs in collect() when it has left.
  void send(Chunk chunk, std::span<const std::byte> bytes, Release release);

  /// Hands over what has happened on the lanes. Returns whether anything had. Throws ProtocolError for chunks that no transfer has, and
  /// ChannelClosed when a lane is lost.
  bool collect();

  /// Ends the lanes.
  void close();

 private:
  struct Receiving {
    std::uint64_t bytes = 0;
    std::uint64_t missing = 0;  // chunks
    std::vector<bool> arrived;
    Taker taker;
  };
  struct Landed {
    Chunk chunk;
    std::span<std::byte> slot;
  };

  std::span<std::byte> place(Chunk chunk, std::size_t bytes) override;
  void landed(Chunk chunk, std::span<std::byte> bytes) override;
  void lost(const std::string& why) override;
  /// What may arrive from now on. Returns what was early.
  std::vector<Landed> expect(std::uint32_t transfer);
  void expect_no_more(std::uint32_t transfer);
  void arrived(const Landed& landed);
  void hand_over(Receiving& transfer, const Landed& landed);
  void drop(std::uint64_t& missing, const Landed& landed);

  Waker& waker_;
  // Used by the executor only.
  std::map<std::uint32_t, Receiving> receiving_;
  std::map<std::uint32_t, std::uint64_t> refused_;  // so many chunks of it are still to come
  std::vector<Landed> early_;                       // whose transfer has not begun
  const ContextState* pinned_in_ = nullptr;
  // Everything below under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  Pages memory_;
  std::vector<std::span<std::byte>> free_;
  std::set<std::uint32_t> expected_;  // those of receiving_ and refused_
  std::vector<Landed> landed_;
  std::vector<Release> left_;
  std::string lost_why_;
  bool closed_ = false;
  Lanes lanes_;  // last: its threads use the rest
};

}  // namespace fargpu::server
