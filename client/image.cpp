#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>

#include "protocol/limits.h"

namespace fargpu::client {
namespace {

struct FatbinWrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* container;
  const void* more;  // version 1: file name; version 2: the images before linking, of which `container` is the result
};
constexpr std::uint32_t wrapper_magic = 0x466243B1;

struct FatbinContainer {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  // behind the header
};
constexpr std::uint32_t container_magic = 0xBA55ED50;

template <class T>
T load(const void* pointer, std::size_t offset = 0) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(pointer) + offset, sizeof(value));
  return value;
}

std::optional<std::size_t> container_bytes(const void* pointer) {
  const auto header = load<FatbinContainer>(pointer);
  if (header.header_bytes < sizeof(header) || header.bytes > limits::image_bytes_max) return std::nullopt;
  return header.header_bytes + header.bytes;
}

// The end of whatever lies furthest: tables, sections or segments. Some cubins have their program headers last.
std::optional<std::size_t> elf_bytes(const void* pointer) {
  const auto header = load<Elf64_Ehdr>(pointer);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) return std::nullopt;
  if (header.e_shoff > limits::image_bytes_max || header.e_phoff > limits::image_bytes_max) return std::nullopt;
  std::uint64_t sections = header.e_shnum;
  if (sections == 0 && header.e_shoff != 0) sections = load<Elf64_Shdr>(pointer, header.e_shoff).sh_size;
  if (sections > (1u << 20)) return std::nullopt;
  std::uint64_t end = sizeof(header);
  if (header.e_shoff != 0) end = std::max(end, header.e_shoff + sections * header.e_shentsize);
  if (header.e_phoff != 0) end = std::max(end, header.e_phoff + std::uint64_t{header.e_phnum} * header.e_phentsize);
  for (std::uint64_t i = 0; header.e_shoff != 0 && i < sections; ++i) {
    const auto section = load<Elf64_Shdr>(pointer, header.e_shoff + i * header.e_shentsize);
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL) end = std::max(end, section.sh_offset + section.sh_size);
  }
  for (std::uint64_t i = 0; header.e_phoff != 0 && i < header.e_phnum; ++i) {
    const auto segment = load<Elf64_Phdr>(pointer, header.e_phoff + i * header.e_phentsize);
    end = std::max(end, segment.p_offset + segment.p_filesz);
  }
  if (end > limits::image_bytes_max) return std::nullopt;
  return end;
}

// PTX begins, after comments and blank lines, with a directive. Reads no further than the terminating null.
bool looks_like_ptx(const char* text) {
  while (true) {
    while (std::isspace(static_cast<unsigned char>(*text))) ++text;
    if (text[0] == '/' && text[1] == '/') {
      while (*text && *text != '\n') ++text;
    } else if (text[0] == '/' && text[1] == '*') {
      const char* end = std::strstr(text + 2, "*/");
      if (!end) return false;
      text = end + 2;
    } else {
      return std::strncmp(text, ".version", 8) == 0;
    }
  }
}

}  // namespace

std::optional<Image> find_image(const void* pointer) {
  const auto* first = static_cast<const std::byte*>(pointer);
  const auto image = [&](const void* begin, std::optional<std::size_t> bytes, bool wrapped) -> std::optional<Image> {
    if (!bytes) return std::nullopt;
    return Image{{static_cast<const std::byte*>(begin), *bytes}, wrapped};
  };
  // One byte at a time at first: a short text may end at the end of a page.
  const auto byte = [&](int i) { return static_cast<unsigned char>(first[i]); };
  if (byte(0) == 0xB1 && byte(1) == 0x43 && load<std::uint32_t>(pointer) == wrapper_magic) {
    const auto wrapper = load<FatbinWrapper>(pointer);
    if (!wrapper.container || load<std::uint32_t>(wrapper.container) != container_magic) return std::nullopt;
    return image(wrapper.container, container_bytes(wrapper.container), true);
  }
  if (byte(0) == 0x50 && byte(1) == 0xED && load<std::uint32_t>(pointer) == container_magic)
    return image(pointer, container_bytes(pointer), false);
  if (byte(0) == 0x7F && byte(1) == 'E' && byte(2) == 'L' && byte(3) == 'F') return image(pointer, elf_bytes(pointer), false);
  const auto* text = static_cast<const char*>(pointer);
  if (looks_like_ptx(text)) {
    const std::size_t length = ::strnlen(text, limits::image_bytes_max);
    if (length == limits::image_bytes_max) return std::nullopt;
    return image(pointer, length + 1, false);
  }
  return std::nullopt;
}

}  // namespace fargpu::client
