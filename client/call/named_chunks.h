#pragma once
// Chunks of large copies that are hashed and named to the worker, on threads of the library's own.

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
struct FilePlace;

/// A chunk is copied first. The copy is what is named and what is sent, so a program that changes its memory meanwhile
/// cannot have them differ; and its memory is not needed any more. All functions may be called by any thread.
class NamedChunks {
 public:
  using Way = ContentChoice::Way;
  using Clock = ContentChoice::Clock;
  /// Called on these threads and, `answered`, on the lanes'.
  struct Events {
    std::function<void(const ContentWord&)> say;
    /// The bytes stay until `sent` is called.
    std::function<void(Chunk, std::span<const std::byte>, bool keep, std::function<void()> sent)> send;
    std::function<void(std::uint64_t bytes, Clock::duration took)> hashed;
    std::function<void()> remembered;  ///< in the place of that
    std::function<void(Way, bool known, std::uint64_t bytes)> answered;
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
    std::span<const std::byte> place;  ///< where it lies; nowhere if it has gaps
    Lanes::Told told;                  ///< as of a chunk that is sent
  };
  /// False if there is no memory or thread for it: then it goes as if it had no name.
  bool add(Job job);
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
  struct Copied {
    Job job;
    Memory copy;
  };
  struct Asked {
    Way way;
    std::uint64_t bytes;
    Memory copy;  // of one that is named
  };
  void work();
  void handle(Copied& copied);
  /// Hashes a chunk, and remembers its name if it is of a file.
  ContentName hashed(const Copied& copied, const std::optional<FilePlace>& file);

  const Events events_;
  const std::shared_ptr<Spare> spare_;
  std::unique_ptr<FileNames> files_;
  std::mutex closing_;  // before mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copied> jobs_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Asked> asked_;
  std::vector<std::thread> threads_;
  bool ended_ = false;
};

}  // namespace fargpu::client
