#pragma once
// Bulk lanes: further connections of a session, over which the contents of memory travel several at once, in chunks.
// What they belong to is said on the session's own connection: a transfer by its number, a chunk by its place in it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "channel.h"
#include "compression.h"
#include "content_word.h"
#include "frame_reader.h"
#include "chunk_count.h"
#include "lane_count.h"
#include "limits.h"
#include "line_rate.h"

namespace fargpu {

/// What becomes of chunks that arrive. Called on the lanes' threads, several at once.
class ChunkHandler {
 public:
  virtual ~ChunkHandler() = default;
  /// Where the chunk shall lie: exactly `bytes`, or nothing if nobody wants it. May wait for room, until
  /// Lanes::close().
  virtual std::span<std::byte> place(Chunk chunk, std::size_t bytes) = 0;
  /// It lies there. Not called for chunks that nobody wanted. `whole`: false if the place could not be written.
  virtual void landed(Chunk chunk, std::span<std::byte> bytes, bool whole) = 0;
  /// Right before that: the other side thinks that these bytes are worth keeping.
  virtual void keep(std::span<const std::byte> bytes);
  /// A word about contents. Both throw ProtocolError unless they are overridden: nobody has agreed on such words.
  virtual void heard(const ContentWord& word);
  /// A lane is of no use any more, and so is the session. Where a lane's thread ends, so it must not throw.
  virtual void lost(const std::string& why) noexcept = 0;
};

/// How a chunk is sent.
struct Sending {
  bool absent = false;  ///< the bytes may be in a file whose pages the process does not have yet, as of a model that is
                        ///< mapped, so that they are brought first, many at once
  bool keep = false;    ///< ChunkHandler::keep
};

/// One end of a session's lanes. Each has a thread that sends and one that receives. All functions may be called by any
/// thread.
class Lanes {
 public:
  explicit Lanes(ChunkHandler& handler, Compression compression = Compression::never)
      : handler_(handler), compression_(compression) {}
  ~Lanes() { close(); }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Takes a connection; so many frames went out and in on it already. Closes it if that fails.
  void add(std::shared_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before);
  std::size_t count() const;
  /// All of them send, whatever the line carries; otherwise LaneCount finds how many do. Before the first is added.
  void use_all();
  /// How many send, of late.
  unsigned in_use() const;
  /// What the line carries, in bytes a second, once that is known.
  std::optional<double> line_rate() const;

  using Bytes = std::span<const std::byte>;
  /// Called on the lane's thread, but not after close().
  struct Told {
    std::function<void()> sent;        ///< when the bytes have left, and are not needed any more
    std::function<void()> unreadable;  ///< before that, if they cannot be read: zeros go in their place, and the other
                                       ///< side has none of these yet
  };
  /// Sends a chunk, by whichever lane is free, from where it lies, which may be memory of a GPU (device_bytes.h).
  void send(Chunk chunk, Bytes bytes, Told told, Sending how = {});
  /// Sends a chunk of so many bytes that `gather` brings together on the lane's thread, in memory of the lane. False:
  /// they cannot be read.
  using Gather = std::function<bool(std::span<std::byte> into)>;
  void send(Chunk chunk, std::size_t bytes, Gather gather, Told told, Sending how = {});
  /// Says a word, before any chunk that waits. It is none of the chunks that given() counts.
  void say(const ContentWord& word);

  /// How many chunks were given to send().
  std::uint64_t given() const { return given_.load(std::memory_order_acquire); }
  /// Waits until the other side's first so many chunks have been taken care of here (low 32 bits of given() there).
  /// False if that takes longer than `silence` without a chunk, once a lane is lost, or after give_up().
  bool wait_taken(std::uint32_t chunks, std::chrono::nanoseconds silence);
  /// Ends that waiting, now and later.
  void give_up();

  /// Whether one of them has no connection just now, and expects one.
  bool resuming() const;
  /// They bring nothing: has those that can go on by new connections do so. False if there are none.
  bool suspect(const std::string& why);

  /// Ends all lanes; returns when their threads have ended.
  void close();

  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    Chunk chunk;
    std::uint32_t ordinal = 0;  // among all chunks of this side, from 1
    Bytes bytes;
    std::size_t gathered_bytes = 0;
    Gather gather;
    Told told;
    Sending how;
  };
  struct Lane {
    std::shared_ptr<Channel> channel;
    std::size_t number = 0;
    std::thread sender, receiver;
    std::condition_variable work;  // for the sender
    bool idle = false;             // it waits for that, and nobody has woken it
  };
  class Arriving;
  class Lent;
  struct Leaving;

  void send_all_jobs(Lane& lane, std::uint32_t sent_before);
  /// What a lane sends next: a word, or else a job.
  struct Next {
    std::optional<ContentWord> word;
    Job job;
    bool more = false;  // enough others wait that this one need not be copied
  };
  bool next(Lane& lane, Next& next, Lent& lent);
  void send_next_word(Leaving& leaving, const ContentWord& word);
  void send_job(Leaving& leaving, Job& job, bool more);
  void wake(std::size_t jobs);
  void receive_all(Channel& channel, std::uint32_t taken_before);
  void add_job(Job job);
  void note_sent(std::uint64_t bytes, std::chrono::nanoseconds took, bool waited,
                 std::chrono::steady_clock::time_point now);
  void note_taken(std::uint32_t ordinal);
  bool closed() const;

  ChunkHandler& handler_;
  const Compression compression_;
  std::mutex closing_;  // before mutex_
  mutable std::mutex mutex_;
  std::deque<ContentWord> words_;
  std::deque<Job> jobs_;
  LaneCount lane_count_;
  LineRate line_rate_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool closed_ = false;
  std::atomic<std::uint64_t> given_{0};
  std::atomic<std::uint64_t> bytes_sent_{0}, bytes_received_{0};
  // Which of the other side's chunks have been taken care of.
  std::mutex taken_mutex_;
  std::condition_variable taken_changed_;
  ChunkCount taken_{limits::lane_gaps_max};
  bool given_up_ = false;
};

}  // namespace fargpu
