#pragma once
// A folder of files that are named by the hash of their contents, bounded: those used longest ago go first.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "folder_account.h"
#include "protocol/image_hash.h"

namespace fargpu::server {

/// Processes and threads may use a folder at the same time. Whether contents are what their name says is the caller's
/// to check. What else lies in the folder stays.
class HashedFiles {
 public:
  using Used = FolderAccount::Used;
  static constexpr std::uint64_t file_bytes_min = 4096;  ///< that the smallest file takes of a disk

  /// Above `limit` files go, a tenth of the folder at a time, so that looking at all of them is rare. `notes`: suffixes
  /// of further files, which come and go with the file that they belong to. An empty folder keeps nothing.
  HashedFiles(std::filesystem::path folder, Used limit, std::vector<std::string> notes = {})
      : folder_(std::move(folder)), limit_(limit), notes_(std::move(notes)), account_(folder_) {}

  bool any() const { return !folder_.empty(); }
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path path_of(const ImageHash& hash) const;
  /// What a file of so many bytes takes of the disk.
  static std::uint64_t disk_bytes(std::uint64_t bytes) {
    return (bytes + file_bytes_min - 1) / file_bytes_min * file_bytes_min;
  }

  /// Makes the folder, for its owner alone; one that was there stays as its owner wants it.
  void make_folder() const;
  /// Writes the file of these contents; nobody ever sees half of it. False if it is not there then.
  bool add(const ImageHash& hash, std::span<const std::byte> bytes) const;
  /// Writes a note whole, over the one that was there.
  void set_note(const ImageHash& hash, const std::string& suffix, std::span<const std::byte> bytes) const;
  /// Removes a file of so many bytes.
  void remove(const ImageHash& hash, std::uint64_t bytes) const;
  /// For what is about to be written.
  void make_room(Used more) const;

 private:
  bool is_note(const std::filesystem::path& path) const;
  Used evict(Used most) const;

  const std::filesystem::path folder_;
  const Used limit_;
  const std::vector<std::string> notes_;
  const FolderAccount account_;
};

}  // namespace fargpu::server
