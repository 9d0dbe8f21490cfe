#pragma once
// Memory of the program that is still what a file has: docs/concepts/known-contents.md says why that can be shown. All
// of this is for threads with descriptors of their own (own_file.h).

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "own_file.h"

namespace fargpu::client {

/// Bytes of a file that is mapped.
struct FilePlace {
  std::string path;
  std::uint64_t device = 0, inode = 0;
  std::uint64_t offset = 0, bytes = 0;

  bool operator==(const FilePlace&) const = default;
};

/// A mapping of the address space, as proc(5)'s maps has it.
struct FileMapping {
  std::uint64_t begin = 0, end = 0;
  std::string path;  ///< empty: no file
  std::uint64_t device = 0, inode = 0, offset = 0;

  /// A line of it.
  static std::optional<FileMapping> parse(const std::string& line);
  /// The mapping at an address. Takes time with the number of mappings below it, before Linux 6.11.
  static std::optional<FileMapping> at(std::uint64_t address);
  /// As before Linux 6.11.
  static std::optional<FileMapping> in_text(const OwnFile& maps, std::uint64_t address);
  /// Where memory that lies in it is in the file. Nothing if it does not, or there is none.
  std::optional<FilePlace> place_of(std::span<const std::byte> memory) const;
};

/// Whether all pages of this memory are there, and none is one that the program has written in a private mapping.
bool has_pages_of_files(std::span<const std::byte> memory);

/// What no other run of a kernel has. It is asked for each time: a process that is frozen may go on with another one.
using BootId = std::array<char, 36>;
std::optional<BootId> boot_id();

/// What a file was like when nobody could write it.
struct FileState {
  std::uint64_t device = 0, inode = 0, size = 0, modified_ns = 0, changed_ns = 0;
  std::uint64_t mount = 0;
  BootId boot{};

  bool operator==(const FileState&) const = default;
};

/// The file of a place, as it is now.
class FileAtRest {
 public:
  /// Nothing where the path leads elsewhere by now, or the file system does not note what is written to mapped memory.
  static std::unique_ptr<FileAtRest> open(const FilePlace& place);

  /// Nothing if somebody may be writing it, or this cannot be told.
  std::optional<FileState> state() const;
  /// Whether there is never one, because the file is another user's.
  bool has_no_state() const { return file_.lease() == EACCES; }
  /// False where it would wait for a disk.
  bool read(std::uint64_t offset, std::span<std::byte> into) const { return file_.read_at_once(offset, into); }

 private:
  explicit FileAtRest(const std::string& path);

  const OwnFile file_;
};

/// Whether any change from now on gives the file another state, and no other file has had this one.
bool shows_changes(const FileState& state, std::uint64_t now_ns);

}  // namespace fargpu::client
