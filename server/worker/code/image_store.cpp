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

constexpr std::size_t arriving_max = 64;             // images under way at once in one session
constexpr std::size_t unused_bytes_max = 64u << 20;  // of images in memory that nobody holds
constexpr std::size_t found_max = 16;                // names kept of an image
constexpr std::size_t found_name_bytes_max = 1024;
constexpr std::size_t found_bytes_max = found_max * (found_name_bytes_max + 1);
constexpr const char* found_suffix = ".found";
constexpr const char* next_suffix = ".next";
// A private mapping, so that no process that can write the file can change what the driver reads later.
const std::byte* map_copy(std::span<const std::byte> bytes) {
  void* const memory =
      ::mmap(nullptr, bytes.size() + image_end_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memcpy(memory, bytes.data(), bytes.size());
  ::mprotect(memory, bytes.size() + image_end_bytes, PROT_READ);
  return static_cast<const std::byte*>(memory);
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

}  // namespace

ImageStore::ImageStore(std::filesystem::path folder, std::uint64_t bytes_max, HostBudget& budget)
    : files_(std::move(folder), {bytes_max, folder_images_max}, {found_suffix, next_suffix}), budget_(budget) {}

ImageStore::Mapped::~Mapped() { ::munmap(const_cast<std::byte*>(data), bytes + image_end_bytes); }

std::span<const std::byte> ImageStore::found(const ImageHash& hash) const {
  const auto known = mapped_.find(hash);
  return known == mapped_.end() ? std::span<const std::byte>{} : std::span(known->second->data, known->second->bytes);
}

std::shared_ptr<const void> ImageStore::hold(const ImageHash& hash) const {
  const auto known = mapped_.find(hash);
  return known == mapped_.end() ? nullptr : known->second;
}

// A program may load the same image again after it has unloaded it; one that loads ever new ones must find room.
std::optional<HostCharge> ImageStore::take_room(std::uint64_t bytes) {
  const auto unused = [](const auto& image) { return image.second.use_count() == 1; };
  const auto let_go = [&](const auto& image) { return unused(image) && image.second->was_found; };
  std::size_t unused_bytes = 0;
  for (const auto& image : mapped_) unused_bytes += let_go(image) ? image.second->bytes : 0;
  if (unused_bytes > unused_bytes_max) std::erase_if(mapped_, let_go);
  if (auto charge = HostCharge::try_take(budget_, bytes)) return charge;
  std::erase_if(mapped_, unused);
  return HostCharge::take(budget_, bytes);
}

std::span<const std::byte> ImageStore::find(const ImageHash& hash, std::size_t bytes) {
  if (const auto known = mapped_.find(hash); known != mapped_.end()) {
    known->second->was_found = true;
    return known->second->bytes == bytes ? std::span(known->second->data, bytes) : std::span<const std::byte>{};
  }
  if (!files_.any() || bytes == 0 || bytes > limits::image_bytes_max) return {};
  const std::filesystem::path path = files_.path_of(hash);
  // A pipe there holds nobody up.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return {};
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != bytes) {
    ::close(file);
    return {};
  }
  auto charge = take_room(bytes);
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
  Mapped* const image = map(hash, contents, std::move(*charge));
  if (!image) return {};
  image->was_found = true;
  return {image->data, bytes};
}

ImageStore::Received ImageStore::receive(const ImageHash& hash, std::size_t bytes, std::size_t offset,
                                         std::span<const std::byte> part) {
  if (bytes == 0 || bytes > limits::image_bytes_max || offset > bytes || part.size() > bytes - offset)
    return Received::refused;
  if (mapped_.contains(hash)) return Received::taken;
  // It was dropped while another thread sent it, which sends it once more when it asks for the image.
  if (offset > 0 && !arriving_.contains(hash)) return Received::taken;
  Arriving& arriving = arriving_[hash];
  std::vector<std::byte>& contents = arriving.bytes;
  // What another thread has sent already: of which bytes the image is, its hash says in the end.
  if (!contents.empty() && offset + part.size() <= contents.size()) return Received::taken;
  // Parts come in order. One that does not continue its image, or one image too many, drops it.
  const bool other_size = offset != 0 && arriving.charge.bytes() != bytes;
  if (contents.size() != offset || other_size || arriving_.size() > arriving_max) {
    arriving_.erase(hash);
    return Received::refused;
  }
  if (offset == 0) {
    auto charge = take_room(bytes);
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
  if (files_.any() && !files_.add(hash, whole.bytes)) ++not_kept_;
  return Received::taken;
}

ImageStore::Mapped* ImageStore::map(const ImageHash& hash, std::span<const std::byte> bytes, HostCharge charge) {
  const std::byte* const data = map_copy(bytes);
  if (!data) return nullptr;
  auto& image = mapped_[hash];
  image = std::make_shared<Mapped>(data, bytes.size(), std::move(charge));
  return image.get();
}

std::filesystem::path ImageStore::note_of(const ImageHash& hash, const char* suffix) const {
  return files_.path_of(hash).string() + suffix;
}

const std::vector<std::string>& ImageStore::names_found(const ImageHash& hash) {
  const auto [known, asked_first] = found_.try_emplace(hash);
  std::vector<std::string>& names = known->second;
  if (!asked_first || !files_.any()) return names;
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
  if (!files_.any() || !std::filesystem::exists(files_.path_of(hash), ignored)) return;
  const int file = ::open(note_of(hash, found_suffix).c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (file < 0) return;
  const std::string line = name + "\n";
  struct stat status {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::size_t>(status.st_size) + line.size() <= found_bytes_max) {
    if (status.st_size == 0) files_.make_room({HashedFiles::file_bytes_min, 0});
    [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
  }
  ::close(file);
}

const std::vector<std::byte>& ImageStore::next_load(const ImageHash& hash) {
  const auto [known, asked_first] = next_.try_emplace(hash);
  if (asked_first && !!files_.any())
    known->second = read_note(note_of(hash, next_suffix), limits::ahead_request_bytes_max);
  return known->second;
}

void ImageStore::note_next_load(const ImageHash& hash, std::span<const std::byte> request) {
  if (request.size() > limits::ahead_request_bytes_max || std::ranges::equal(next_load(hash), request)) return;
  next_[hash].assign(request.begin(), request.end());
  std::error_code ignored;
  if (!files_.any() || !std::filesystem::exists(files_.path_of(hash), ignored)) return;
  files_.set_note(hash, next_suffix, request);
}

}  // namespace fargpu::server
