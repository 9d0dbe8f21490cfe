#include "content_store.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <ctime>
#include <optional>
#include <utility>

namespace fargpu::server {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t touched_again_after = 60;

using Tag = std::array<std::byte, ContentStore::tag_bytes>;

// Poly1305 takes a key for one message. It is derived from the name, which no other bytes have. Where OpenSSL has no
// Poly1305 there is no tag, and the bytes are hashed.
std::optional<Tag> tag_of(const ContentKey& key, const ContentName& name, std::span<const std::byte> bytes) {
  std::array<unsigned char, 32> once;
  std::array<unsigned char, sizeof(Tag)> tag;
  std::size_t length = 0;
  const auto* const message = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const text = reinterpret_cast<const unsigned char*>(name.data());
  if (!::EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, key.data(), key.size(), text, name.size(), once.data(),
                   once.size(), &length) ||
      !::EVP_Q_mac(nullptr, "POLY1305", nullptr, nullptr, nullptr, once.data(), once.size(), message, bytes.size(),
                   tag.data(), tag.size(), &length))
    return std::nullopt;
  return std::bit_cast<Tag>(tag);
}

/// The file of a block, unless there is none.
class Reading {
 public:
  // A pipe there holds nobody up.
  explicit Reading(const fs::path& path, int how = O_RDONLY)
      : file_(::open(path.c_str(), how | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
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
  bool holds(std::uint64_t bytes) const { return size() == bytes + sizeof(Tag); }
  bool read(std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = ::read(file_, into.data(), into.size());
      if (got <= 0) return false;
      into = into.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  /// Writes behind a block of so many bytes. What is not written is missed by nobody.
  void write_tag(std::uint64_t bytes, const Tag& tag) const {
    if (::pwrite(file_, tag.data(), tag.size(), static_cast<off_t>(bytes)) < 0) return;
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

ContentStore::ContentStore(fs::path folder, std::uint64_t bytes_max, const ContentKey& key)
    : files_(std::move(folder), {bytes_max, bytes_max / HashedFiles::file_bytes_min + 1}), key_(key) {}

bool ContentStore::has(const ContentName& name, std::uint64_t bytes) const {
  return Reading(files_.path_of(name)).holds(bytes);
}

bool ContentStore::read(const ContentName& name, std::span<std::byte> into) const {
  const fs::path path = files_.path_of(name);
  const Reading file(path);
  Tag tag{};
  if (!file.holds(into.size()) || !file.read(into) || !file.read(tag)) return false;
  const std::optional<Tag> right = tag_of(key_, name, into);
  if (right && ::CRYPTO_memcmp(right->data(), tag.data(), tag.size()) == 0) {
    file.touch();
    return true;
  }
  // The key of a broker before this one, or damage.
  if (hash_image(into) != name) {
    files_.remove(name, into.size() + sizeof(Tag));
    return false;
  }
  file.touch();
  if (const Reading again(path, O_WRONLY); right && again.holds(into.size())) again.write_tag(into.size(), *right);
  return true;
}

bool ContentStore::keep(std::span<const std::byte> bytes) const {
  if (bytes.empty()) return false;
  const ContentName name = hash_image(bytes);
  if (const Reading there(files_.path_of(name)); there.holds(bytes.size())) {
    there.touch();
    return true;
  } else if (there.size()) {
    files_.remove(name, *there.size());
  }
  files_.make_folder();
  return disk_has_room() && files_.add(name, bytes, tag_of(key_, name, bytes).value_or(Tag{}));
}

bool ContentStore::disk_has_room() const {
  struct statvfs disk {};
  return ::statvfs(files_.folder().c_str(), &disk) != 0 || disk.f_bavail > disk.f_blocks / 10;
}

}  // namespace fargpu::server
