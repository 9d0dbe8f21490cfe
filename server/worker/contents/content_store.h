#pragma once
// Contents of memory by their names: what any session of a tenant has sent need not be sent again.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "protocol/content_word.h"
#include "server/hashed_files.h"

namespace fargpu::server {

/// Blocks lie as files in a folder that all workers of one tenant share, and that lasts. The kernel's page cache is
/// what holds them in memory, for all of these workers at once. Bytes are hashed when they are written and when they
/// are read: nothing else says what they are. Threads: any; several processes at once.
class ContentStore {
 public:
  /// Above `bytes_max` bytes the blocks used longest ago go, a tenth of the folder at a time. Nothing is kept that
  /// would leave less than a tenth of the disk free.
  ContentStore(std::filesystem::path folder, std::uint64_t bytes_max);

  /// Whether there is such a block, as far as its file's length tells.
  bool has(const ContentName& name, std::uint64_t bytes) const;
  /// Reads it. False if it is not there, or is not what its name says: then the file is removed.
  bool read(const ContentName& name, std::span<std::byte> into) const;
  /// Keeps these bytes under their own name. False if they are not kept. Failure costs a later session a transfer, no
  /// more.
  bool keep(std::span<const std::byte> bytes) const;

 private:
  bool disk_has_room() const;

  const HashedFiles files_;
};

}  // namespace fargpu::server
