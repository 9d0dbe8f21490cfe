#include "content_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <ctime>
#include <optional>
#include <utility>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t touched_again_after = 60;

/// The file of a block, unless there is none.
class Reading {
 public:
  // A pipe there holds nobody up.
  explicit Reading(const fs::path& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    if (file_ >= 0 && (::fstat(file_, &status_) != 0 || !S_ISREG(status_.st_mode))) status_.st_size = -1;
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() {
    if (file_ >= 0) ::close(file_);
  }

  /// Of the file; nothing without one.
  std::optional<std::uint64_t> size() const {
    return file_ >= 0 && status_.st_size >= 0 ? std::optional<std::uint64_t>(status_.st_size) : std::nullopt;
  }
  bool holds(std::uint64_t bytes) const { return size() == bytes; }
  bool read(std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = ::read(file_, into.data(), into.size());
      if (got <= 0) return false;
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  /// It is used now: those used longest ago go first.
  void touch() const {
    if (std::time(nullptr) - status_.st_mtime > touched_again_after) ::futimens(file_, nullptr);
  }

 private:
  const int file_;
  struct stat status_ {};
};

}  // namespace

ContentStore::ContentStore(fs::path folder, std::uint64_t bytes_max)
    : files_(std::move(folder), {bytes_max, bytes_max / HashedFiles::file_bytes_min + 1}) {}

bool ContentStore::has(const ContentName& name, std::uint64_t bytes) const {
  return Reading(files_.path_of(name)).holds(bytes);
}

bool ContentStore::read(const ContentName& name, std::span<std::byte> into) const {
  const Reading file(files_.path_of(name));
  if (!file.holds(into.size()) || !file.read(into)) return false;
  if (name_content(into) != name) {
    files_.remove(name, into.size());
    return false;
  }
  file.touch();
  return true;
}

bool ContentStore::keep(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return false;
  const ContentName name = name_content(bytes);
  if (const Reading there(files_.path_of(name)); there.holds(bytes.size())) {
    there.touch();
    return true;
  } else if (there.size()) {
    files_.remove(name, *there.size());
  }
  files_.make_folder();
  return disk_has_room() && files_.add(name, bytes);
}

bool ContentStore::disk_has_room() const {
  struct statvfs disk {};
  return ::statvfs(files_.folder().c_str(), &disk) != 0 || disk.f_bavail > disk.f_blocks / 10;
}

}  // namespace fargpu::server
