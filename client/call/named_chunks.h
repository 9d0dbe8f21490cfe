#pragma once
// Chunks of large copies that are hashed and named to the worker, on threads of the library's own and those of the
// program that wait.

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "content_choice.h"
#include "protocol/content_word.h"
#include "protocol/lanes.h"

namespace fargpu::client {

class FileNames;

/// A chunk is copied first. The copy is what is named and what is sent, so a program that changes its memory meanwhile
/// cannot have them differ; and the program may change or free its memory then. Copying goes before hashing, because
/// programs wait for it. All functions may be called by any thread.
class NamedChunks {
 public:
  using Way = ContentChoice::Way;
  using Clock = ContentChoice::Clock;
  /// Called on all these threads and, `answered`, on the lanes'.
  struct Events {
    std::function<void(const ContentWord&)> say;
    /// The bytes stay until `sent` is called.
    std::function<void(Chunk, std::span<const std::byte>, bool keep, std::function<void()> sent)> send;
    std::function<void(std::uint64_t bytes, Clock::duration took)> hashed;
    std::function<void()> remembered;  ///< in the place of that
    std::function<void(Way, bool known, std::uint64_t bytes, Clock::time_point said)> answered;
    /// A chunk could not be handled, most likely for want of memory: it will be missing.
    std::function<void(const std::string& why)> failed;
  };
  explicit NamedChunks(Events events);
  ~NamedChunks();
  NamedChunks(const NamedChunks&) = delete;
  NamedChunks& operator=(const NamedChunks&) = delete;

  struct Job {
    Chunk chunk;
    std::uint64_t bytes = 0;
    Way way = Way::named;  ///< or `asked`
    std::function<bool(std::span<std::byte> into)> gather;
    std::span<const std::byte> place;  ///< where it lies; nowhere if it has gaps, or can be of no file
    Lanes::Told told;                  ///< as of a chunk that is sent
  };
  /// False if there is no memory or thread for it, or there are many copies: then it goes as if it had no name.
  /// `ahead`: its memory is copied and hashed now, and nothing is said or sent before `want`; fewer copies are many
  /// then.
  bool add(Job job, bool ahead);
  /// The chunks of a transfer with lower numbers may leave; `over`: and no others.
  void want(std::uint32_t transfer, std::uint64_t chunks, bool over);
  /// Copies the chunk that is to be copied next, for a thread that waits for that. False if there is none.
  bool gather_next();
  /// A chunk that is sent without a name. Its name is remembered for later programs if it is of a file.
  void learn(std::span<const std::byte> place);
  /// An answer. Throws ProtocolError if nothing has asked.
  void heard(const ContentWord& word);
  /// No further chunk is begun.
  void give_up();
  /// No further chunk is begun, and nothing is called or read any more afterwards.
  void end();

  /// How many of them hash at a time.
  static unsigned threads();

 private:
  /// Memory of chunks that comes back, and of which some stays for the next ones.
  class Spare;
  using Memory = std::shared_ptr<std::byte[]>;
  /// A chunk, from its memory to its word.
  struct Underway;
  using Held = std::shared_ptr<Underway>;
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // transfer and number
  struct Asked {
    Way way;
    std::uint64_t bytes;
    Memory copy;  // of one that is named
    Clock::time_point said;
  };
  void work();
  void do_first(std::deque<Held>& jobs, std::unique_lock<std::mutex>& lock);
  void gather(const Held& one);
  void hash(const Held& one);
  void leave(const Held& one);
  void go(const Underway& one);
  void send(const Underway& one, bool keep);
  bool looks_for_file();

  const Events events_;
  const std::shared_ptr<Spare> spare_;
  std::unique_ptr<FileNames> files_;
  std::mutex closing_;  // before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Held> to_gather_, to_hash_;
  std::map<Key, Held> ahead_;  // that may not leave yet
  std::map<Key, Asked> asked_;
  std::vector<std::thread> threads_;
  unsigned helping_ = 0;  // threads of the program that copy
  bool ended_ = false;
  std::atomic<unsigned> no_file_in_row_{0}, turn_{0};
};

}  // namespace fargpu::client
