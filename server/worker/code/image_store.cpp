#include "image_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <system_error>

#include "protocol/limits.h"

namespace fargpu::server {
namespace {

constexpr std::size_t arriving_max = 16;  // images under way at once in one session
constexpr std::size_t found_max = 16;     // names kept of an image
constexpr std::size_t found_name_bytes_max = 1024;
constexpr std::size_t found_bytes_max = found_max * (found_name_bytes_max + 1);
constexpr const char* found_suffix = ".found";
constexpr const char* next_suffix = ".next";
constexpr std::uint64_t file_bytes_min = 4096;  // that the smallest file takes of a disk

std::uint64_t disk_bytes(std::uint64_t file_bytes) {
  return (file_bytes + file_bytes_min - 1) / file_bytes_min * file_bytes_min;
}

// A private mapping, so that no process that can write the file can change what the driver reads later.
const std::byte* map_copy(std::span<const std::byte> bytes) {
  void* const memory =
      ::mmap(nullptr, bytes.size() + image_end_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memcpy(memory, bytes.data(), bytes.size());
  ::mprotect(memory, bytes.size() + image_end_bytes, PROT_READ);
  return static_cast<const std::byte*>(memory);
}

// What else lies in the folder is nobody's business here.
bool named_as_image(const std::filesystem::path& path) {
  const std::string name = path.filename();
  const std::size_t digits = std::min(name.find_first_not_of("0123456789abcdef"), name.size());
  return digits == 2 * std::tuple_size_v<ImageHash> && (digits == name.size() || name.ends_with(".part"));
}

// What a small file holds, as far as it may; nothing if there is none.
std::vector<std::byte> read_note(const std::filesystem::path& path, std::size_t bytes_max) {
  std::vector<std::byte> contents(bytes_max);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  const ssize_t bytes = file < 0 ? 0 : ::read(file, contents.data(), contents.size());
  if (file >= 0) ::close(file);
  contents.resize(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
  return contents;
}

// Beside, and renamed: nobody ever sees half a file. What could not be written is not there.
void write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::path beside = path;
  beside += "." + std::to_string(::getpid()) + ".part";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(file, bytes.data() + written, bytes.size() - written);
    if (n <= 0) break;
    written += static_cast<std::size_t>(n);
  }
  ::close(file);
  std::error_code error;
  if (written == bytes.size()) std::filesystem::rename(beside, path, error);
  else std::filesystem::remove(beside, error);
}

}  // namespace

ImageStore::ImageStore(std::filesystem::path folder, std::uint64_t bytes_max, HostBudget& budget)
    : folder_(std::move(folder)), limit_{bytes_max, folder_images_max}, account_(folder_), budget_(budget) {}

ImageStore::~ImageStore() {
  for (const auto& [hash, image] : mapped_) ::munmap(const_cast<std::byte*>(image.data), image.bytes + image_end_bytes);
}

std::span<const std::byte> ImageStore::find(const ImageHash& hash, std::size_t bytes) {
  if (const auto known = mapped_.find(hash); known != mapped_.end())
    return known->second.bytes == bytes ? std::span(known->second.data, bytes) : std::span<const std::byte>{};
  if (folder_.empty() || bytes == 0 || bytes > limits::image_bytes_max) return {};
  const std::filesystem::path path = path_of(hash);
  // A pipe there holds nobody up.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return {};
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != bytes) {
    ::close(file);
    return {};
  }
  auto charge = HostCharge::take(budget_, bytes);
  if (!charge) {
    ::close(file);
    return {};
  }
  std::vector<std::byte> contents(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    const ssize_t got = ::read(file, contents.data() + have, bytes - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  ::futimens(file, nullptr);  // used now: eviction takes the oldest
  ::close(file);
  if (have != bytes || hash_image(contents) != hash) return {};
  const std::byte* const data = map(hash, contents, std::move(*charge));
  return data ? std::span(data, bytes) : std::span<const std::byte>{};
}

ImageStore::Received ImageStore::receive(const ImageHash& hash, std::size_t bytes, std::size_t offset,
                                         std::span<const std::byte> part) {
  if (bytes == 0 || bytes > limits::image_bytes_max || offset > bytes || part.size() > bytes - offset)
    return Received::refused;
  if (mapped_.contains(hash)) return Received::taken;
  Arriving& arriving = arriving_[hash];
  std::vector<std::byte>& contents = arriving.bytes;
  // Parts come in order. One that does not continue its image, or one image too many, drops it.
  if (contents.size() != offset || arriving_.size() > arriving_max) {
    arriving_.erase(hash);
    return Received::refused;
  }
  if (offset == 0) {
    auto charge = HostCharge::take(budget_, bytes);
    if (!charge) {
      arriving_.erase(hash);
      return Received::no_room;
    }
    arriving.charge = std::move(*charge);
    contents.reserve(bytes);
  }
  contents.insert(contents.end(), part.begin(), part.end());
  if (contents.size() < bytes) return Received::taken;
  Arriving whole = std::move(arriving);
  arriving_.erase(hash);
  if (hash_image(whole.bytes) != hash) return Received::refused;
  if (!map(hash, whole.bytes, std::move(whole.charge))) return Received::no_room;
  keep_on_disk(hash, whole.bytes);
  return Received::taken;
}

const std::byte* ImageStore::map(const ImageHash& hash, std::span<const std::byte> bytes, HostCharge charge) {
  const std::byte* const data = map_copy(bytes);
  if (data) mapped_[hash] = {data, bytes.size(), std::move(charge)};
  return data;
}

std::filesystem::path ImageStore::path_of(const ImageHash& hash) const {
  constexpr char digits[] = "0123456789abcdef";
  std::string name;
  for (const std::byte byte : hash) {
    name += digits[std::to_integer<unsigned>(byte) >> 4];
    name += digits[std::to_integer<unsigned>(byte) & 15];
  }
  return folder_ / name;
}

std::filesystem::path ImageStore::note_of(const ImageHash& hash, const char* suffix) const {
  return path_of(hash).string() + suffix;
}

// Failure costs a later session a transfer, no more.
void ImageStore::keep_on_disk(const ImageHash& hash, std::span<const std::byte> bytes) {
  const FolderAccount::Used more{disk_bytes(bytes.size()), 1};
  if (folder_.empty() || more.bytes > limit_.bytes) return;
  std::error_code ignored;
  if (std::filesystem::create_directories(folder_, ignored))  // ours alone; one that was there is as its owner wants it
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all, ignored);
  if (!std::filesystem::exists(path_of(hash), ignored)) make_room(more);
  write_whole(path_of(hash), bytes);
}

// For a file that is about to be written. Looking at the whole folder makes room for the next tenth of it too.
void ImageStore::make_room(FolderAccount::Used more) {
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
FolderAccount::Used ImageStore::evict(FolderAccount::Used most) const {
  struct File {
    std::filesystem::file_time_type used;
    std::uint64_t bytes;
    std::filesystem::path path;
  };
  std::error_code error;
  std::vector<File> files;
  FolderAccount::Used total;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (const auto suffix = entry.path().extension(); suffix == found_suffix || suffix == next_suffix) {
      std::error_code gone;  // with a note that came late
      if (!std::filesystem::exists(std::filesystem::path(entry.path()).replace_extension(), gone))
        std::filesystem::remove(entry.path(), gone);
    }
    if (!named_as_image(entry.path())) continue;
    std::uint64_t bytes = entry.file_size(error);
    if (error) continue;
    bytes = disk_bytes(bytes);
    for (const char* const suffix : {found_suffix, next_suffix})
      if (const std::uint64_t note = std::filesystem::file_size(entry.path().string() + suffix, error); !error)
        bytes += disk_bytes(note);
    error.clear();
    files.push_back({entry.last_write_time(error), bytes, entry.path()});
    total.bytes += bytes;
    ++total.files;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total.bytes <= most.bytes && total.files <= most.files) break;
    std::filesystem::remove(file.path, error);
    for (const char* const suffix : {found_suffix, next_suffix})
      std::filesystem::remove(file.path.string() + suffix, error);
    total.bytes -= file.bytes;
    --total.files;
  }
  return total;
}

const std::vector<std::string>& ImageStore::names_found(const ImageHash& hash) {
  const auto [known, asked_first] = found_.try_emplace(hash);
  std::vector<std::string>& names = known->second;
  if (!asked_first || folder_.empty()) return names;
  const std::vector<std::byte> text = read_note(note_of(hash, found_suffix), found_bytes_max);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  for (std::string name; names.size() < found_max && std::getline(lines, name);)
    if (!lines.eof() && !name.empty() && name.size() <= found_name_bytes_max)
      names.push_back(name);  // a line that is still being written has no end
  return names;
}

// Lines are appended in one piece each, so that sessions that write at once do not mix them. Failure costs a later
// session a question.
void ImageStore::note_found(const ImageHash& hash, const std::string& name) {
  names_found(hash);
  std::vector<std::string>& names = found_[hash];
  if (names.size() >= found_max || name.empty() || name.size() > found_name_bytes_max || name.find('\n') != name.npos ||
      std::find(names.begin(), names.end(), name) != names.end())
    return;
  names.push_back(name);
  std::error_code ignored;
  if (folder_.empty() || !std::filesystem::exists(path_of(hash), ignored)) return;
  const int file = ::open(note_of(hash, found_suffix).c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (file < 0) return;
  const std::string line = name + "\n";
  struct stat status {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::size_t>(status.st_size) + line.size() <= found_bytes_max) {
    if (status.st_size == 0) make_room({file_bytes_min, 0});
    [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  }
  ::close(file);
}

const std::vector<std::byte>& ImageStore::next_load(const ImageHash& hash) {
  const auto [known, asked_first] = next_.try_emplace(hash);
  if (asked_first && !folder_.empty())
    known->second = read_note(note_of(hash, next_suffix), limits::ahead_request_bytes_max);
  return known->second;
}

void ImageStore::note_next_load(const ImageHash& hash, std::span<const std::byte> request) {
  if (request.size() > limits::ahead_request_bytes_max || std::ranges::equal(next_load(hash), request)) return;
  next_[hash].assign(request.begin(), request.end());
  std::error_code ignored;
  if (folder_.empty() || !std::filesystem::exists(path_of(hash), ignored)) return;
  if (!std::filesystem::exists(note_of(hash, next_suffix), ignored)) make_room({disk_bytes(request.size()), 0});
  write_whole(note_of(hash, next_suffix), request);
}

}  // namespace fargpu::server
