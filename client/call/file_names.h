#pragma once
// Names of chunks that lie in memory as a file has them: found without hashing, where an earlier program has learnt
// them.

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
#include <utility>

#include "file_pages.h"
#include "name_table.h"

namespace fargpu::client {

/// One thread finds, and one with a low priority reads files and adds to the table. They start when they are of use,
/// and have descriptors of their own. All functions may be called by any thread.
class FileNames {
 public:
  using Memory = std::shared_ptr<std::byte[]>;
  struct Found {
    std::optional<FilePlace> place;   ///< where the memory's pages are a file's
    std::optional<ContentName> name;  ///< what that file has there
  };

  static constexpr std::chrono::nanoseconds patience = std::chrono::milliseconds(20);
  /// Of the processor's time; half of what hashing a chunk takes.
  static constexpr std::chrono::nanoseconds finding_most = std::chrono::microseconds(300);

  /// A question waits for its answer as long as `most`. Where finding a mapping takes more of the processor than
  /// `finding`, none is looked for during the next second.
  explicit FileNames(NameTable table, std::chrono::nanoseconds most = patience,
                     std::chrono::nanoseconds finding = finding_most)
      : table_(std::move(table)),
        patience_ns_(static_cast<std::uint64_t>(most.count())),
        finding_most_ns_(static_cast<std::uint64_t>(finding.count())) {}
  ~FileNames();
  /// As the destructor, but without a wait for a thread that hangs. That one keeps what it needs.
  static void end(std::unique_ptr<FileNames> names);
  FileNames(const FileNames&) = delete;
  FileNames& operator=(const FileNames&) = delete;

  /// Of memory that is the program's until this returns, and whose pages have been read.
  Found find(std::span<const std::byte> memory);
  /// Has the name of a place be known to later programs, if the file has these bytes there.
  void learn(const FilePlace& place, const ContentName& name, Memory bytes);
  /// Has the name of what the file that is mapped here has be known to them, if one is; the memory is not read.
  void learn(std::span<const std::byte> memory);
  /// Until all is learnt that is to be (tests).
  void finish();

 private:
  struct Lesson {
    FilePlace place;
    std::optional<ContentName> name;
    Memory bytes;
  };
  using Work = std::deque<std::function<void()>>;
  class Answer;
  bool start();
  void give_up();
  void add_lesson(Lesson lesson);
  void serve(Work& work, std::condition_variable& changed);
  std::optional<FilePlace> place_of(std::span<const std::byte> memory);
  Found find_now(std::span<const std::byte> memory);
  void learn_now(const Lesson& lesson, std::span<std::byte> room);
  void note_lease(const FilePlace& place, const FileAtRest& file);
  bool has_no_lease(const FilePlace& place);

  const NameTable table_;
  const std::uint64_t patience_ns_, finding_most_ns_;
  std::mutex mutex_;
  std::condition_variable asked_, taught_, done_;
  Work questions_, lessons_;
  std::size_t underway_ = 0, running_ = 0;
  bool ended_ = false;
  bool unusable_ = false;
  // Times are the kernel's CLOCK_MONOTONIC.
  std::uint64_t slow_until_ns_ = 0;
  struct {
    std::uint64_t device = 0, inode = 0, until_ns = 0;
  } no_lease_;  // the last file that the kernel gives no lease of
  std::thread finding_, learning_;
  // Of the thread that finds: memory that is none of a file whose names can be known, for a while.
  FileMapping no_file_;
  std::uint64_t no_file_until_ns_ = 0;
};

}  // namespace fargpu::client
