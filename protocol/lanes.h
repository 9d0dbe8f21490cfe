#pragma once
// Bulk lanes: further connections of a session, over which the contents of memory travel several at once, in chunks. What they belong to
// is said on the session's own connection: a transfer by its number, a chunk by its place in it.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "channel.h"
#include "compression.h"
#include "frame_reader.h"
#include "limits.h"

namespace fargpu {

/// Which bytes of which transfer. Chunk n begins at n * limits::lane_chunk_bytes; all but the last are of that size.
struct Chunk {
  std::uint32_t transfer = 0;
  std::uint32_t number = 0;
};

/// Number of chunks that so many bytes make.
constexpr std::uint64_t chunks_of(std::uint64_t bytes) { return (bytes + limits::lane_chunk_bytes - 1) / limits::lane_chunk_bytes; }

/// What becomes of chunks that arrive. Called on the lanes' threads, several at once.
class ChunkHandler {
 public:
  virtual ~ChunkHandler() = default;
  /// Where the chunk shall lie: exactly `bytes`, or nothing if nobody wants it. May wait for room, until Lanes::close().
  virtual std::span<std::byte> place(Chunk chunk, std::size_t bytes) = 0;
  /// It lies there. Not called for chunks that nobody wanted.
  virtual void landed(Chunk chunk, std::span<std::byte> bytes) = 0;
  /// A lane is of no use any more, and so is the session.
  virtual void lost(const std::string& why) = 0;
};

/// One end of a session's lanes. Each has a thread that sends and one that receives. All functions may be called by any thread.
class Lanes {
 public:
  explicit Lanes(ChunkHandler& handler, Compression compression = Compression::never) : handler_(handler), compression_(compression) {}
  ~Lanes() { close(); }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Takes a connection; so many frames went out and in on it already.
  void add(std::unique_ptr<Channel> channel, std::uint32_t sent_before, std::uint32_t taken_before);
  std::size_t count() const;

  /// Sends a chunk, by whichever lane is free, from where it lies; `sent` is called on its thread when the bytes have left. It hears
  /// false if they could not be read; zeros went in their place. After close() it is not called.
  void send(Chunk chunk, std::span<const std::byte> bytes, std::function<void(bool)> sent);

  /// Ends all lanes; returns when their threads have ended.
  void close();

  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  struct Job {
    Chunk chunk;
    std::span<const std::byte> bytes;
    std::function<void(bool)> sent;
  };
  struct Lane {
    std::unique_ptr<Channel> channel;
    std::thread sender, receiver;
  };
  class Arriving;

  void send_all_jobs(Channel& channel, std::uint32_t sequence);
  void receive_all(Channel& channel, std::uint32_t taken_before);
  bool closed() const;

  ChunkHandler& handler_;
  const Compression compression_;
  std::mutex closing_;  // before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool closed_ = false;
  std::atomic<std::uint64_t> bytes_sent_{0}, bytes_received_{0};
};

}  // namespace fargpu
