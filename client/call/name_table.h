#pragma once
// Names of contents of files, for all programs of a user until the machine starts again.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "file_pages.h"
#include "protocol/content_word.h"

namespace fargpu::client {

/// A file of records at places that follow from what they are of. A record is a name, and a hash of the name and of
/// what it is of: whatever else lies there, because it is damaged, half written or of other bytes, is no record.
/// Threads: any with descriptors of their own; several processes at once.
class NameTable {
 public:
  struct Of {
    FileState state;
    std::uint64_t offset = 0, bytes = 0;
  };
  static constexpr std::uint64_t records = 1 << 17;  ///< 128 GiB in chunks of 1 MiB
  static constexpr std::uint64_t ways = 4;           ///< places of a record
  static constexpr std::uint64_t record_bytes = 64;

  /// On a tmpfs, which does not outlast the kernel that counts the files' times, and of this user alone.
  explicit NameTable(std::string path) : path_(std::move(path)) {}
  /// The user's own. Programs with more rights than their user have none.
  static NameTable of_user();

  /// Whether a table can lie there. For any thread.
  bool may_be_used() const;
  /// Whether what lies there is one, if there is anything.
  bool can_be_opened() const;
  std::optional<ContentName> find(const Of& of) const;
  void add(const Of& of, const ContentName& name) const;

 private:
  const std::string path_;
};

}  // namespace fargpu::client
