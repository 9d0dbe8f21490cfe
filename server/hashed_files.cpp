#include "hashed_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <tuple>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* part_suffix = ".part";

// Beside, and renamed. What could not be written is not there.
bool write_whole(const fs::path& path, std::span<const std::byte> bytes) {
  static std::atomic<unsigned> number{0};
  fs::path beside = path;
  beside += "." + std::to_string(::getpid()) + "-" + std::to_string(++number) + part_suffix;
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  bool whole = true;
  while (whole && !bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    whole = n > 0;
    if (whole) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  std::error_code error;
  whole = ::close(file) == 0 && whole;
  if (whole) fs::rename(beside, path, error);
  if (whole && !error) return true;
  fs::remove(beside, error);
  return false;
}

bool named_by_hash(const std::string& name) {
  const std::size_t digits = std::min(name.find_first_not_of("0123456789abcdef"), name.size());
  return digits == 2 * std::tuple_size_v<ImageHash> && (digits == name.size() || name.ends_with(part_suffix));
}

}  // namespace

fs::path HashedFiles::path_of(const ImageHash& hash) const {
  constexpr char digits[] = "0123456789abcdef";
  std::string name;
  for (const std::byte byte : hash) {
    name += digits[std::to_integer<unsigned>(byte) >> 4];
    name += digits[std::to_integer<unsigned>(byte) & 15];
  }
  return folder_ / name;
}

void HashedFiles::make_folder() const {
  std::error_code ignored;
  for (const fs::path& folder : {folder_.parent_path(), folder_})
    if (fs::create_directories(folder, ignored)) fs::permissions(folder, fs::perms::owner_all, ignored);
}

bool HashedFiles::add(const ImageHash& hash, std::span<const std::byte> bytes) const {
  const Used more{disk_bytes(bytes.size()), 1};
  if (!any() || more.bytes > limit_.bytes) return false;
  make_folder();
  const fs::path path = path_of(hash);
  std::error_code ignored;
  const bool anew = !fs::exists(path, ignored);
  if (anew) make_room(more);
  if (write_whole(path, bytes)) return true;
  if (anew) account_.give_back(more);
  return false;
}

void HashedFiles::set_note(const ImageHash& hash, const std::string& suffix, std::span<const std::byte> bytes) const {
  const fs::path path = path_of(hash).string() + suffix;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) make_room({disk_bytes(bytes.size()), 0});
  write_whole(path, bytes);
}

void HashedFiles::remove(const ImageHash& hash, std::uint64_t bytes) const {
  std::error_code gone;
  if (fs::remove(path_of(hash), gone)) account_.give_back({disk_bytes(bytes), 1});
}

void HashedFiles::make_room(Used more) const {
  if (!account_.charge(more, limit_)) return;
  account_.recount(limit_, [&] {
    const auto room = [](std::uint64_t limit, std::uint64_t needed) {
      const std::uint64_t most = limit - limit / 10;
      return most > needed ? most - needed : 0;
    };
    const Used left = evict({room(limit_.bytes, more.bytes), room(limit_.files, more.files)});
    return Used{left.bytes + more.bytes, left.files + more.files};
  });
}

bool HashedFiles::is_note(const fs::path& path) const {
  return std::find(notes_.begin(), notes_.end(), path.extension().string()) != notes_.end();
}

// Looks at all of the folder, and has what was used longest ago go until no more than `most` is left. Returns what is.
HashedFiles::Used HashedFiles::evict(Used most) const {
  struct File {
    fs::file_time_type used;
    std::uint64_t bytes;
    fs::path path;
  };
  std::error_code error;
  std::vector<File> files;
  Used total;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (is_note(entry.path())) {
      std::error_code gone;  // with a note that came late
      if (!fs::exists(fs::path(entry.path()).replace_extension(), gone)) fs::remove(entry.path(), gone);
    }
    if (!named_by_hash(entry.path().filename())) continue;
    std::uint64_t bytes = entry.file_size(error);
    if (error) continue;  // another worker was quicker
    bytes = disk_bytes(bytes);
    for (const std::string& suffix : notes_)
      if (const std::uint64_t note = fs::file_size(entry.path().string() + suffix, error); !error)
        bytes += disk_bytes(note);
    error.clear();
    files.push_back({entry.last_write_time(error), bytes, entry.path()});
    total.bytes += bytes;
    ++total.files;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total.bytes <= most.bytes && total.files <= most.files) break;
    fs::remove(file.path, error);
    for (const std::string& suffix : notes_) fs::remove(file.path.string() + suffix, error);
    total.bytes -= file.bytes;
    --total.files;
  }
  return total;
}

}  // namespace fargpu::server
