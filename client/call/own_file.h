#pragma once
// Files that a thread of the library opens, reads and closes without touching the program's own descriptors.

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace fargpu::client {

/// Gives the calling thread a table of descriptors of its own, which is empty. What it opens is none of the program's,
/// which may close all it has; and what it closes ends no lock that the program holds on the file (fcntl(2), "POSIX
/// locks"). It has no other descriptors afterwards. False where the kernel cannot (before Linux 5.9).
///
/// Many kernels copy the first 64 descriptors and close the copies, and each file system hears of that as of any close
/// (its `flush`). On a message queue that would end what the process has asked of mq_notify(3), so it is false as well
/// where one of the 64 is a message queue.
bool take_own_descriptors();

/// A clock of the kernel's, in nanoseconds. Tools that show the program another time do not show it here.
std::uint64_t clock_ns(clockid_t clock);
/// Nothing before 1970, and from 2554 on.
std::optional<std::uint64_t> unix_ns(std::int64_t seconds, std::uint32_t nanoseconds);

/// An open file. Calls go to the kernel directly: tools that follow the program's descriptors would take these for
/// them.
class OwnFile {
 public:
  OwnFile(const std::string& path, int flags, unsigned mode = 0);
  ~OwnFile();
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  struct Facts {
    bool regular = false;
    std::uint64_t device = 0, inode = 0, size = 0;
    /// Of the mount: its number of all since the kernel began; before Linux 6.8, one that others may have had; before
    /// 5.8, 0.
    std::uint64_t mount = 0;
    std::uint64_t modified_ns = 0, changed_ns = 0;  ///< Unix time
    unsigned owner = 0, mode = 0, links = 0;
    long file_system = 0;  ///< statfs(2)'s type
  };

  explicit operator bool() const { return descriptor_ >= 0; }
  /// Why it could not be opened.
  int error() const { return error_; }
  /// The file of a descriptor of this thread, for open().
  std::string path_of_descriptor() const;
  /// False: it cannot tell.
  bool facts(Facts& facts) const;
  /// Bytes that were read; 0 at the end, less at a failure.
  long read(std::span<std::byte> into) const;
  /// All of them or false.
  bool read_at(std::uint64_t offset, std::span<std::byte> into) const;
  /// Fails where it would wait for a disk.
  bool read_at_once(std::uint64_t offset, std::span<std::byte> into) const;
  bool write_at(std::uint64_t offset, std::span<const std::byte> from) const;
  /// ioctl(2); 0, or the number of the error.
  int control(unsigned long request, void* argument) const;
  /// 0 if nobody has the file open for writing, maps it so, or is about to. Else the number of an error: EACCES for
  /// files of others.
  int lease() const;

 private:
  const int descriptor_;
  const int error_;
};

}  // namespace fargpu::client
