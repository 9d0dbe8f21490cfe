#pragma once
// Memory of which this process and the GPU's host each have pages, at the same addresses:
// which side has the newest bytes, and fetching them
// when the program touches a page.

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "client/connect/windows.h"
#include "client/stream/whole_system_work.h"
#include "watched.h"

namespace fargpu::client {

class Calls;
class Contexts;
class Thread;
struct Context;

/// Contents move in granules. One is *shared* while both sides hold the same bytes (the program may read it), *ours*
/// while the program may have written it, *theirs* while the GPU may have. Before work that may use the memory
/// everything of ours is sent and becomes theirs; a page of theirs is fetched when the program touches it, which a
/// fault tells. The pages are those of one memory file, mapped twice: where the program sees them, with changing
/// protection, and where bytes come and go without another thread seeing half of them. Threads: any, also within a
/// fault.
class PagedMemory : public WatchedPages {
 public:
  static constexpr std::uint64_t granule_bytes = 64u << 10;  ///< of all but very large blocks

  /// Whether the program and the GPU use the memory in turns, as CUDA demands of managed memory where it cannot be
  /// shared, or at the same time.
  enum class Use { in_turns, at_once };

  struct Parts {
    Calls& calls;
    Contexts& contexts;
    WholeSystemWork& whole_system_work;
  };
  /// Everything lies within these windows.
  PagedMemory(const Parts& parts, const char* name, const std::array<Window, 2>& windows, Use use);
  PagedMemory(const PagedMemory&) = delete;
  PagedMemory& operator=(const PagedMemory&) = delete;

  /// Whether there was ever a block.
  bool exists() const { return exists_.load(std::memory_order_relaxed); }

  /// Work that may use this memory is about to be submitted.
  void before_work(Thread& thread) {
    // Where turns are taken, a thread that is about to open a page must be met.
    if (touched_.load() || (exists() && whole_system_work_.exists())) hand_over(thread);
  }
  /// On return the worker has made the changes that were sent, and has told of words that both sides had changed.
  void settle_changes(Thread& thread);
  /// The program has waited for work, or waits for it: what it saw while that was running may be old, and what it wrote
  /// is waited for. On return the worker has told of the words that both sides had changed.
  void after_wait(Thread& thread) {
    if (!exists()) return;
    const auto is = [](const std::atomic<bool>& flag) { return flag.load(std::memory_order_relaxed); };
    if (is(touched_while_busy_) || is(unheard_) || (is(touched_) && overtaken())) [[unlikely]]
      have_waited(thread);
  }

  /// In a child of a fork: what this process had is the child's own.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  void become_private();

  bool covers(std::uint64_t address) const override { return within(address, address + 1); }
  bool fault(std::uint64_t address, bool writing) override;
  void touch(std::uint64_t address, std::uint64_t bytes, bool writing) override;

 protected:
  enum class State : std::uint8_t { theirs, fresh, shared, ours };
  struct Block {
    virtual ~Block() = default;
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;  // whole pages
    std::uint64_t granule = granule_bytes;
    Context* context = nullptr;
    std::byte* alias = nullptr;
    std::vector<State> states;
    // Contents from before the program wrote while the GPU was busy.
    std::map<std::size_t, std::vector<std::byte>> twins;
    // Where the program goes through the block in order, as several threads that fill a part each do.
    struct Run {
      std::size_t next = 0;   // the granule behind its last fetch
      std::size_t ahead = 1;  // granules to fetch at once; grows while the run goes on
    };
    std::array<Run, 8> runs;
    std::size_t oldest_run = 0;
  };

  /// Nothing of this exists in programs that use no such memory: before the first block.
  void prepare();
  /// Gives `block` its states and its second mapping. False if there is no room.
  bool make_alias(Block& block, State state);
  /// Puts its pages where the program sees them. False if there is no room.
  bool make_visible(const Block& block, int access);
  /// The second mapping of a block that became nothing goes.
  void drop_alias(const Block& block);
  /// The block goes, and its contents; the addresses stay reserved.
  void drop(const Block& block);
  /// Its contents stay, for this process alone: nobody else's pages change with them.
  void make_private(const Block& block) const;
  Block* find(std::uint64_t address) const;
  std::uint64_t offset_of(std::size_t granule, const Block& block) const;

  /// The worker gets, or gives, a part of the block's newest contents, by way of its alias.
  virtual void send_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) = 0;
  virtual void fetch_range(Thread& thread, Block& block, std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Sends what the program has changed of a part since it was `known`, where the GPU may have changed the part too,
  /// and has the worker tell of words that both have changed (`unheard_`). False, with nothing sent, if the worker does
  /// not compare.
  virtual bool send_changes(Thread& thread, Block& block, std::uint64_t offset, std::span<const std::byte> known) = 0;
  /// Waits for an answer that comes behind what the worker tells of them; under the lock.
  virtual void ask_behind_changes(Thread& thread) = 0;
  /// The program touched pages while the GPU was at work.
  virtual void touched_early() {}
  /// What had to be sent is on its way; under the lock.
  virtual void handed_over(Thread&) {}

  Calls& calls_;
  Contexts& contexts_;
  WholeSystemWork& whole_system_work_;
  mutable std::mutex mutex_;  // everything below, and what derived classes have
  std::map<std::uint64_t, std::unique_ptr<Block>> blocks_;
  std::atomic<bool> exists_{false};
  std::atomic<bool> touched_{false};  // something is not theirs
  std::atomic<bool> touched_while_busy_{false};
  std::atomic<bool> unheard_{false};  // the worker may have to tell of words that both sides changed

 private:
  void hand_over(Thread& thread);
  void have_waited(Thread& thread);
  bool overtaken() const;
  bool within(std::uint64_t begin, std::uint64_t end) const;
  bool open_in_turn(std::unique_lock<std::mutex>& lock, WholeSystemWork::Look& look, std::uint64_t address,
                    bool writing);
  struct Granules {
    std::size_t first, end;
  };
  void send(Thread& thread, Block& block);
  void send_granules(Thread& thread, Block& block, Granules some, bool at_once);
  void open_as_they_are(const Block& block, std::size_t first) const noexcept;
  void compare(Thread& thread, Block& block, std::uint64_t offset, std::span<const std::byte> known);
  void fetch(Thread& thread, Block& block, std::size_t granule);
  void open(Block& block, std::size_t granule, bool writing);
  /// False where the process has as many mappings as it may have (vm.max_map_count).
  bool try_protect(const Block& block, std::size_t first, std::size_t end, int access) const;
  void protect(const Block& block, std::size_t first, std::size_t end, int access) const;
  /// These and those on one side of them up to the next that is `open`, or all that are `between`: together they take
  /// no further mapping. `between`: the state of all that are added.
  Granules up_to_next(const Block& block, Granules some, State open, State between) const;
  off_t place_in_file(std::uint64_t address) const;

  const char* const name_;
  const std::array<Window, 2> windows_;
  const Use use_;
  std::atomic<std::uint64_t> touched_at_{0};  // submissions when the first of what is not theirs was touched
  int file_ = -1;  // as long as the windows, one behind the other; only what is touched takes memory
};

}  // namespace fargpu::client
