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

  explicit FileNames(NameTable table) : table_(std::move(table)) {}
  ~FileNames();
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
  bool start();
  void add_lesson(Lesson lesson);
  void serve(Work& work, std::condition_variable& changed);
  std::optional<FilePlace> place_of(std::span<const std::byte> memory);
  Found find_now(std::span<const std::byte> memory);
  void learn_now(const Lesson& lesson, std::span<std::byte> room) const;

  const NameTable table_;
  std::mutex mutex_;
  std::condition_variable asked_, taught_, done_;
  Work questions_, lessons_;
  std::size_t underway_ = 0;
  bool ended_ = false;
  bool unusable_ = false;
  std::thread finding_, learning_;
  // Of the thread that finds: memory that is none of a file whose names can be known, for a while.
  FileMapping no_file_;
  std::chrono::steady_clock::time_point no_file_until_{};
};

}  // namespace fargpu::client
