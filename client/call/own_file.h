#pragma once
// Files that a thread of the library opens, reads and closes without touching the program's own descriptors.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fargpu::client {

/// Gives the calling thread a table of descriptors of its own, which is empty. What it opens is none of the program's,
/// which may close all it has; and what it closes ends no lock that the program holds on the file (fcntl(2), "POSIX
/// locks"). It has no other descriptors afterwards. False where the kernel cannot (before Linux 5.9).
bool take_own_descriptors();

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
    std::uint64_t modified_ns = 0, changed_ns = 0;  ///< Unix time
    unsigned owner = 0, mode = 0, links = 0;
    long file_system = 0;  ///< statfs(2)'s type
  };

  explicit operator bool() const { return descriptor_ >= 0; }
  /// The file of a descriptor of this thread, for open().
  std::string path_of_descriptor() const;
  /// False: it cannot tell.
  bool facts(Facts& facts) const;
  /// Bytes that were read; 0 at the end, less at a failure.
  long read(std::span<std::byte> into) const;
  /// All of them or false.
  bool read_at(std::uint64_t offset, std::span<std::byte> into) const;
  bool write_at(std::uint64_t offset, std::span<const std::byte> from) const;
  /// ioctl(2); 0, or the number of the error.
  int control(unsigned long request, void* argument) const;
  /// Whether nobody has the file open for writing, maps it so, or is about to. False as well where that cannot be
  /// shown, such as for files of others.
  bool nobody_writes() const;

 private:
  const int descriptor_;
};

}  // namespace fargpu::client
