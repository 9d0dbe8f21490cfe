#include "content_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <string>
#include <system_error>
#include <vector>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t file_bytes_min = 4096;  // that the smallest file takes of a disk
constexpr std::time_t touched_again_after = 60;

std::uint64_t disk_bytes(std::uint64_t bytes) { return (bytes + file_bytes_min - 1) / file_bytes_min * file_bytes_min; }

/// A file that is read, unless it is none.
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

  bool holds(std::uint64_t bytes) const { return file_ >= 0 && static_cast<std::uint64_t>(status_.st_size) == bytes; }
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

// Beside, and renamed: nobody ever sees half a file.
bool write_whole(const fs::path& path, std::span<const std::byte> bytes) {
  static std::atomic<unsigned> number{0};
  fs::path beside = path;
  beside += "." + std::to_string(::getpid()) + "-" + std::to_string(++number) + ".part";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n <= 0) break;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  std::error_code error;
  if (::close(file) == 0 && bytes.empty()) fs::rename(beside, path, error);
  if (bytes.empty() && !error) return true;
  fs::remove(beside, error);
  return false;
}

// What else lies in the folder is nobody's business here.
bool named_as_block(const std::string& name) {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789abcdef"), name.size());
  return digits == 2 * std::tuple_size_v<ContentName> && (digits == name.size() || name.ends_with(".part"));
}

}  // namespace

ContentStore::ContentStore(fs::path folder, std::uint64_t bytes_max)
    : folder_(std::move(folder)), limit_{bytes_max, bytes_max / file_bytes_min + 1}, account_(folder_) {}

fs::path ContentStore::path_of(const ContentName& name) const {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : name) {
    text += digits[std::to_integer<unsigned>(byte) >> 4];
    text += digits[std::to_integer<unsigned>(byte) & 15];
  }
  return folder_ / text;
}

bool ContentStore::has(const ContentName& name, std::uint64_t bytes) const {
  return Reading(path_of(name)).holds(bytes);
}

bool ContentStore::read(const ContentName& name, std::span<std::byte> into) const {
  const Reading file(path_of(name));
  if (!file.holds(into.size()) || !file.read(into)) return false;
  if (hash_image(into) == name) {
    file.touch();
    return true;
  }
  std::error_code gone;
  if (fs::remove(path_of(name), gone)) account_.give_back({disk_bytes(into.size()), 1});
  return false;
}

bool ContentStore::keep(std::span<const std::byte> bytes) const {
  const FolderAccount::Used more{disk_bytes(bytes.size()), 1};
  if (bytes.empty() || more.bytes > limit_.bytes) return false;
  const fs::path path = path_of(hash_image(bytes));
  if (const Reading there(path); there.holds(bytes.size())) {
    there.touch();
    return true;
  }
  std::error_code ignored;
  for (const fs::path& folder :
       {folder_.parent_path(), folder_})  // ours alone; one that was there is as its owner wants
    if (fs::create_directories(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
  if (!disk_has_room()) return false;
  make_room(more);
  if (write_whole(path, bytes)) return true;
  account_.give_back(more);
  return false;
}

bool ContentStore::disk_has_room() const {
  struct statvfs disk {};
  return ::statvfs(folder_.c_str(), &disk) != 0 || disk.f_bavail > disk.f_blocks / 10;
}

// For a file that is about to be written.
void ContentStore::make_room(FolderAccount::Used more) const {
  if (!account_.charge(more, limit_)) return;
  account_.recount(limit_, [&] {
    const auto room = [](std::uint64_t limit, std::uint64_t needed) {
      const std::uint64_t most = limit - limit / 10;
      return most > needed ? most - needed : 0;
    };
    const FolderAccount::Used left = evict({room(limit_.bytes, more.bytes), room(limit_.files, more.files)});
    return FolderAccount::Used{left.bytes + more.bytes, left.files + more.files};
  });
}

// Looks at all of the folder, and has what was used longest ago go until no more than `most` is left. Returns what is.
FolderAccount::Used ContentStore::evict(FolderAccount::Used most) const {
  struct File {
    fs::file_time_type used;
    std::uint64_t bytes;
    fs::path path;
  };
  std::error_code error;
  std::vector<File> files;
  FolderAccount::Used total;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (!named_as_block(entry.path().filename())) continue;
    const std::uint64_t bytes = entry.file_size(error);
    if (error) continue;  // another worker was quicker
    files.push_back({entry.last_write_time(error), disk_bytes(bytes), entry.path()});
    total.bytes += files.back().bytes;
    ++total.files;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total.bytes <= most.bytes && total.files <= most.files) break;
    fs::remove(file.path, error);
    total.bytes -= file.bytes;
    --total.files;
  }
  return total;
}

}  // namespace fargpu::server
