#include "library_release.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "protocol/version.h"

namespace fargpu::client::cli {
namespace {

constexpr std::size_t headers_max = 256;         // of each kind
constexpr std::size_t note_bytes_max = 1 << 16;  // of all notes of a segment

class File {
 public:
  explicit File(const std::filesystem::path& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error(std::string("it cannot be read (") + std::strerror(errno) + ")");
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Throws if the file has not so many bytes there.
  void read(void* data, std::size_t bytes, std::uint64_t offset) const {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw std::runtime_error(std::string("it cannot be read (") + std::strerror(errno) + ")");
      if (got == 0) throw std::runtime_error("it ends too early; perhaps the disk was full when it was written");
      to += got;
      bytes -= static_cast<std::size_t>(got);
      offset += static_cast<std::uint64_t>(got);
    }
  }

 private:
  int descriptor_;
};

/// The text of the release note among the notes of a segment; empty if there is none.
std::string release_in(const std::vector<char>& notes) {
  const auto padded = [](std::size_t bytes) { return (bytes + 3) & ~std::size_t{3}; };
  for (std::size_t at = 0; notes.size() - at >= sizeof(Elf64_Nhdr);) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data() + at, sizeof(header));
    at += sizeof(header);
    const std::size_t owner = padded(header.n_namesz), all = owner + padded(header.n_descsz);
    if (all > notes.size() - at) break;
    if (header.n_type == release_note_type && header.n_namesz == sizeof(release_note_owner) &&
        std::memcmp(notes.data() + at, release_note_owner, sizeof(release_note_owner)) == 0)
      return {notes.data() + at + owner, ::strnlen(notes.data() + at + owner, header.n_descsz)};
    at += all;
  }
  return {};
}

}  // namespace

std::string library_release(const std::filesystem::path& path) {
  const File file(path);
  Elf64_Ehdr header;
  file.read(&header, sizeof(header), 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_phnum > headers_max || header.e_shnum > headers_max)
    throw std::runtime_error("it is no library");
  // The table of sections is what linkers write last.
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  file.read(sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  file.read(segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff);
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_NOTE) continue;
    std::vector<char> notes(std::min<std::uint64_t>(segment.p_filesz, note_bytes_max));
    file.read(notes.data(), notes.size(), segment.p_offset);
    if (const std::string release = release_in(notes); !release.empty()) return release;
  }
  return {};
}

}  // namespace fargpu::client::cli
