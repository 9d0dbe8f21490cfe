#pragma once
// Large copies on the session's bulk lanes.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>

#include "content_choice.h"
#include "lane_rows.h"
#include "named_chunks.h"
#include "protocol/channel.h"
#include "protocol/lanes.h"
#include "stats.h"

namespace fargpu::client {

struct Context;
struct Stream;

/// The stream of a copy, as it was when that was made.
struct CopyStream {
  const Stream* stream = nullptr;  ///< to compare with; it may be gone
  const Context* context = nullptr;
  bool blocking = false;
};

/// Opens the lanes when they are first of use. Threads: any.
class ClientLanes final : ChunkHandler {
 public:
  using Open = std::function<std::shared_ptr<Channel>()>;
  using TellLost = std::function<void(const std::string& why)>;
  struct Wish {
    unsigned lanes = 0;
    bool fixed = false;    ///< all of them are used, however many the line needs
    bool resumed = false;  ///< the session's connections keep what they send, until it is received
  };
  /// `open` connects a lane, on which each side has sent one frame, or throws. `silence`: after which lanes that bring
  /// nothing are lost. `tell_lost` tells the worker that a lane is lost, once, on a thread of the lanes or one that
  /// copies.
  ClientLanes(const Wish& wish, Open open, TellLost tell_lost, Compression compression,
              std::chrono::nanoseconds silence, const ContentTerms& contents = {})
      : wanted_(open ? wish.lanes : 0),
        resumed_(wish.resumed),
        open_(std::move(open)),
        tell_lost_(std::move(tell_lost)),
        silence_(silence),
        choice_(contents, NamedChunks::threads()),
        lanes_(*this, compression) {
    if (wish.fixed) lanes_.use_all();
  }
  ~ClientLanes() override { names_.end(); }

  /// Whether a copy of so many bytes goes by the lanes. `awaited`: nothing else of its thread travels meanwhile.
  /// `to_worker`: its bytes may be known there. Opens them.
  bool takes(std::uint64_t bytes, bool awaited, bool to_worker);

  // --- to the worker ------------------------------------------------------------------------------------------------

  /// What a copy sends. The worker asks for the chunks when it has room for them; a few go unasked
  /// (limits::lane_early_chunks). Where a thread waits until they are read, chunks that will be named are copied before
  /// they are asked for.
  struct Outgoing {
    const LaneRows rows;
    const std::function<void()> unreadable;  ///< told once, before the worker has all bytes, when some cannot be read;
                                             ///< null: somebody waits, and asks
    const CopyStream on;                     ///< of a copy that nobody has waited for yet
    // Under the mutex.
    bool sent = false;        // the call
    std::uint32_t early = 0;  // chunks that go unasked, of the credit for these
    std::uint64_t asked = 0;
    std::uint64_t queued = 0;  // more than were asked for, where some are copied before
    std::uint64_t read = 0;
    std::optional<ContentChoice::Way> way;  // of the next one, if that is chosen
    bool awaited = false;                   // until they are read, which they may be at once
    bool ahead = false;                     // some have been copied before they were asked for
    bool begun = false;                     // the worker has said that it knows of it, and gives the early chunks back
    bool over = false;                      // the worker wants no more
    bool readable = true;
    bool forgotten = false;  // the memory is not the copy's any more

    bool all_read() const { return read == queued && (over || read == rows.chunks()); }
    bool complete() const { return all_read() && begun && (over || asked == rows.chunks()); }
  };
  /// Sends the call that a transfer belongs to, with its number and the number of chunks that come unasked.
  using Call = std::function<CUresult(std::uint32_t transfer, std::uint32_t early)>;
  /// Offers a transfer to the worker. `in_order`: none of it goes unasked. Null if the call fails, whose outcome
  /// `result` has. `unreadable` is called on a thread of the lanes or one that copies. `on`: wait_all_read() asks about
  /// it.
  std::shared_ptr<const Outgoing> offer(const LaneRows& rows, bool in_order, std::function<void()> unreadable,
                                        const CopyStream& on, const Call& call, CUresult& result);
  /// Until all bytes have been read. False if they could not be, after which what arrived is not what was meant. Throws
  /// ChannelClosed.
  bool wait_read(const Outgoing& outgoing);
  using OnStreams = std::function<bool(const CopyStream&)>;
  /// Until all bytes of the copies on these streams whose calls are sent have been read, as far as they could be.
  /// Throws ChannelClosed.
  void wait_all_read(const OnStreams& of);
  /// Whether there is a copy on these streams that is not read, or whose call may be on its way.
  bool reads_any(const OnStreams& of);
  /// The worker has room for the chunks with lower numbers. Of transfers to this process: no more come.
  void wanted(std::uint32_t transfer, std::uint32_t chunks, bool over);

  // --- from the worker ----------------------------------------------------------------------------------------------

  /// Bytes that the worker sends.
  struct Incoming {
    const LaneRows rows;
    const std::function<void(bool written)> done;  ///< once, when all have come; on a thread of the lanes
    // Under the mutex.
    std::vector<bool> begun;
    std::uint64_t missing;
    unsigned writing = 0;    // chunks that are on their way from a lane
    unsigned in_place = 0;   // of these, those that the lane writes where they belong
    bool over = false;       // no more come
    bool forgotten = false;  // nothing is written there any more
    bool written = true;     // what came could be
    bool contested = false;  // another transfer writes some of the same memory

    Incoming(const LaneRows& memory, std::function<void(bool)> when_done)
        : rows(memory), done(std::move(when_done)), begun(rows.chunks()), missing(rows.chunks()) {}
  };
  /// From before the call that asks for them leaves. Null where they cannot come by the lanes, because other bytes do,
  /// to the same memory.
  std::shared_ptr<Incoming> expect(const LaneRows& rows, std::function<void(bool written)> done,
                                   std::uint32_t& transfer);
  /// Until all are there. False if some of the memory could not be written. Throws ChannelClosed.
  bool wait_arrived(const Incoming& incoming);
  /// Nothing is written there any more afterwards.
  void cancel(std::uint32_t transfer);
  /// What follows on the session's connection rests on these chunks: waits for them. Throws ChannelClosed.
  void wait_for_chunks(std::uint32_t chunks);

  /// Whether a copy to the worker still reads some of this memory.
  bool uses(std::uint64_t begin, std::uint64_t end);
  /// The memory is about to become something else: nothing is read or written there any more afterwards.
  void forget(std::uint64_t begin, std::uint64_t end);

  /// Ends all waiting, now and later: threads that wait lose the session with the words of the first call. Returns
  /// whether this is it.
  bool close(const std::string& why) noexcept;
  std::size_t open_lanes() const { return lanes_.count(); }
  /// To the worker; LaneCount.
  unsigned lanes_in_use() const { return lanes_.in_use(); }
  stats::ContentCounts content_counts();
  std::uint64_t bytes_sent() const { return lanes_.bytes_sent(); }
  std::uint64_t bytes_received() const { return lanes_.bytes_received(); }

 private:
  using Lock = std::unique_lock<std::mutex>;
  bool ended();
  std::span<std::byte> place(Chunk chunk, std::size_t bytes) override;
  void landed(Chunk chunk, std::span<std::byte> bytes, bool whole) override;
  void heard(const ContentWord& word) override { names_.heard(word); }
  void lost(const std::string& why) noexcept override;

  std::uint32_t next(LaneClass of) { return 2 * next_++ + static_cast<std::uint32_t>(of); }
  std::uint32_t& early_free(LaneClass of) { return early_free_[static_cast<std::size_t>(of)]; }
  void queue(std::uint32_t transfer, const std::shared_ptr<Outgoing>& outgoing);
  void queue(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing);
  bool queue_ahead(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing);
  ContentChoice::Way choose(Outgoing& outgoing);
  Lanes::Told told_of(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing);
  bool name(const Chunk& chunk, const std::shared_ptr<Outgoing>& outgoing, ContentChoice::Way way, bool ahead);
  NamedChunks::Events name_events();
  void answered(ContentChoice::Way way, bool known, std::uint64_t bytes, ContentChoice::Clock::time_point said);
  void read(std::uint32_t transfer, Outgoing& outgoing);
  template <class Read>
  void wait_until_read(Lock& lock, Read&& all_read);
  void fail(Outgoing& outgoing);
  bool write(const Incoming& incoming, std::uint32_t transfer, std::uint64_t chunk, std::span<const std::byte> bytes);
  bool write_uncontested(const Incoming& incoming, std::uint32_t transfer, std::uint64_t chunk,
                         std::span<const std::byte> bytes);
  void forget_complete();
  void end_stragglers(Lock& lock);

  const unsigned wanted_;
  const bool resumed_;
  const Open open_;
  const TellLost tell_lost_;
  const std::chrono::nanoseconds silence_;
  std::once_flag opened_;
  std::atomic<bool> ready_{false};
  std::mutex contest_;  // held by a thread that writes memory of several transfers; before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t next_ = 1;
  std::array<std::uint32_t, lane_classes> early_free_{early_chunks_of(LaneClass::large),
                                                      early_chunks_of(LaneClass::small)};
  std::map<std::uint32_t, std::shared_ptr<Outgoing>> outgoing_;
  std::map<std::uint32_t, std::shared_ptr<Incoming>> incoming_;  // in the order of their calls
  std::vector<std::vector<std::byte>> spare_;                    // for chunks that do not arrive in their place
  std::map<const std::byte*, std::vector<std::byte>> lent_;      // of these, those that chunks arrive in
  bool ended_ = false;
  std::string why_;
  ContentChoice choice_;
  stats::ContentCounts contents_;
  NamedChunks names_{name_events()};  // its threads use the rest, and end first
  Lanes lanes_;                       // last: its threads use the rest
};

}  // namespace fargpu::client
