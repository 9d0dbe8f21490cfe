#pragma once
// What a session looks up in the contents that its tenant has sent before, and adds to them, beside its lanes.

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
#include <thread>
#include <vector>

#include "content_store.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

/// Threads of its own hash, read and write, started when there is something to do. Those that keep leave the processors
/// to others. All functions may be called by any thread; functions that are given are called on the desk's.
class ContentDesk {
 public:
  ContentDesk(ContentStore store, HostBudget& budget);
  ~ContentDesk() { end(); }
  ContentDesk(const ContentDesk&) = delete;
  ContentDesk& operator=(const ContentDesk&) = delete;

  using Bytes = std::span<std::byte>;
  /// Looks for a block. If there seems to be one, `place` says where it shall lie (also in memory of a GPU), or nowhere
  /// any more; then `done` has that place, and hears whether the block lies there. Without a block, `done` has no
  /// place.
  void find(const ContentName& name, std::uint64_t bytes, std::function<Bytes()> place,
            std::function<void(Bytes place, bool known)> done);
  /// Only whether there is one.
  void ask(const ContentName& name, std::uint64_t bytes, std::function<void(bool known)> answer);
  /// Copies the bytes, wherever they lie, and keeps them. What there is no room for is not kept: nothing waits for
  /// this. Throws DeviceBytesError.
  void keep(std::span<const std::byte> bytes);

  /// Bytes that were found, and that were kept.
  std::uint64_t known_bytes() const { return known_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

  /// Until what is to be kept is, but no longer than this.
  void finish(std::chrono::milliseconds patience);
  /// No function is called any more afterwards, and nothing more is kept.
  void end();

 private:
  struct Kept {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
    HostCharge charge;
  };
  template <class Work>
  void start(std::vector<std::thread>& threads, Work work);
  /// What a thread reads into that is for memory of a GPU.
  using Room = std::vector<std::byte>;
  bool read(const ContentName& name, Bytes into, Room& room) const;
  void answer_questions();
  void keep_all();

  const ContentStore store_;
  HostBudget& budget_;
  std::atomic<std::uint64_t> known_bytes_{0}, kept_bytes_{0};
  std::mutex mutex_;
  std::condition_variable asked_, given_, kept_;
  std::deque<std::function<void(Room&)>> questions_;
  std::deque<Kept> to_keep_;
  std::size_t waiting_bytes_ = 0;  // of what is to be kept
  bool ended_ = false;
  std::vector<std::thread> answering_, keeping_;
};

}  // namespace fargpu::server
