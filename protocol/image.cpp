#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>

#include "fatbin.h"
#include "limits.h"

namespace fargpu {
namespace {

constexpr std::size_t container_alignment = 8;

/// What may be looked at: so much of a file, or, behind a program's bare pointer, as much as any image can have. It is
/// read in small steps, because what is no image may end at the end of a page.
class Source {
 public:
  Source(const void* begin, std::size_t readable)
      : begin_(static_cast<const std::byte*>(begin)), readable_(std::min(readable, limits::image_bytes_max)) {}

  /// False if it does not lie within what may be looked at, or within any image.
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= readable_ && bytes <= readable_ - offset;
  }

  template <class T>
  bool load(std::uint64_t offset, T& value) const {
    if (!holds(offset, sizeof(value))) return false;
    std::memcpy(&value, begin_ + offset, sizeof(value));
    return true;
  }
  bool begins_with(std::initializer_list<unsigned char> bytes, std::uint64_t offset = 0) const {
    for (const unsigned char byte : bytes)
      if (!holds(offset, 1) || std::to_integer<unsigned char>(begin_[offset++]) != byte) return false;
    return true;
  }
  /// Where the text that goes on at `offset` has its null; behind everything if it has none.
  std::uint64_t null_after(std::uint64_t offset) const {
    return offset + ::strnlen(reinterpret_cast<const char*>(begin_) + offset, readable_ - offset);
  }

 private:
  const std::byte* begin_;
  std::size_t readable_;
};

std::optional<std::size_t> container_bytes(const Source& source) {
  FatbinContainer header;
  if (!source.load(0, header) || header.magic != fatbin_magic || header.header_bytes < sizeof(header) ||
      !source.holds(header.header_bytes, header.bytes))
    return std::nullopt;
  return header.header_bytes + header.bytes;
}

// Containers one behind the other, the first of them that of the wrapper.
std::optional<Image> join_containers(const FatbinWrapper& wrapper) {
  Image image{{}, true, {}};
  const auto add = [&](const void* container) {
    const auto bytes = container_bytes(Source(container, unbounded));
    const std::size_t offset = (image.joined.size() + container_alignment - 1) & ~(container_alignment - 1);
    if (!bytes || *bytes > limits::image_bytes_max - std::min(offset, limits::image_bytes_max)) return false;
    image.joined.resize(offset + *bytes);
    std::memcpy(image.joined.data() + offset, container, *bytes);
    return true;
  };
  if (!add(wrapper.container)) return std::nullopt;
  for (auto* list = static_cast<const void* const*>(wrapper.more); *list; ++list)
    if (!add(*list)) return std::nullopt;
  image.bytes = image.joined;
  return image;
}

// Of sections that a file has no bytes of. Relocatable cubins have types of their own for variables and for shared
// memory, as ptxas of CUDA 13.0 shows for compute capabilities 7.5 to 12.0.
bool has_no_bytes(std::uint32_t section_type) {
  constexpr std::uint32_t cuda_variables = 0x70000007, cuda_shared = 0x7000000a;
  return section_type == SHT_NOBITS || section_type == SHT_NULL || section_type == cuda_variables ||
         section_type == cuda_shared;
}

// The end of whatever lies furthest: tables, sections or segments. Some cubins have their program headers last.
std::optional<std::size_t> elf_bytes(const Source& source) {
  Elf64_Ehdr header;
  if (!source.begins_with({ELFCLASS64, ELFDATA2LSB}, EI_CLASS) || !source.load(0, header)) return std::nullopt;
  std::uint64_t end = sizeof(header);
  const auto reach = [&](std::uint64_t offset, std::uint64_t bytes) {
    if (!source.holds(offset, bytes)) return false;
    end = std::max(end, offset + bytes);
    return true;
  };
  if (header.e_shoff != 0) {
    Elf64_Shdr section;
    if (header.e_shentsize < sizeof(section)) return std::nullopt;
    std::uint64_t sections = header.e_shnum;
    if (sections == 0) {  // too many for the header: the first one says how many
      if (!source.load(header.e_shoff, section) || !reach(header.e_shoff, sizeof(section))) return std::nullopt;
      sections = section.sh_size;
    }
    if (sections > limits::image_bytes_max || !reach(header.e_shoff, sections * header.e_shentsize))
      return std::nullopt;
    for (std::uint64_t i = 0; i < sections; ++i) {
      source.load(header.e_shoff + i * header.e_shentsize, section);
      if (!has_no_bytes(section.sh_type) && !reach(section.sh_offset, section.sh_size)) return std::nullopt;
    }
  }
  if (header.e_phoff != 0 && header.e_phnum != 0) {
    Elf64_Phdr segment;
    if (header.e_phentsize < sizeof(segment) ||
        !reach(header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize))
      return std::nullopt;
    for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
      source.load(header.e_phoff + i * header.e_phentsize, segment);
      if (!reach(segment.p_offset, segment.p_filesz)) return std::nullopt;
    }
  }
  return end;
}

// PTX begins, after comments and blank lines, with a directive, and ends with a null, behind which nothing is read.
std::optional<std::size_t> ptx_bytes(const Source& source) {
  const auto at = [&](std::uint64_t offset) {
    unsigned char character = 0;
    source.load(offset, character);
    return character;
  };
  std::uint64_t offset = 0;
  while (!source.begins_with({'.', 'v', 'e', 'r', 's', 'i', 'o', 'n'}, offset)) {
    if (std::isspace(at(offset))) {
      ++offset;
    } else if (source.begins_with({'/', '/'}, offset)) {
      while (at(offset) && at(offset) != '\n') ++offset;
    } else if (source.begins_with({'/', '*'}, offset)) {
      offset += 2;
      while (at(offset) && !source.begins_with({'*', '/'}, offset)) ++offset;
      if (!at(offset)) return std::nullopt;
      offset += 2;
    } else {
      return std::nullopt;
    }
  }
  const std::uint64_t null = source.null_after(offset);
  if (!source.holds(null, 1)) return std::nullopt;
  return null + 1;
}

}  // namespace

std::optional<Image> find_image(const void* pointer, std::size_t readable) {
  const auto image = [](const void* begin, std::optional<std::size_t> bytes, bool wrapped) -> std::optional<Image> {
    if (!bytes) return std::nullopt;
    return Image{{static_cast<const std::byte*>(begin), *bytes}, wrapped, {}};
  };
  const Source source(pointer, readable);
  if (source.begins_with({0xB1, 0x43, 0x62, 0x46})) {
    FatbinWrapper wrapper;
    // Only a program's own memory can hold a pointer that leads anywhere.
    if (readable != unbounded || !source.load(0, wrapper) || !wrapper.container) return std::nullopt;
    auto found = image(wrapper.container, container_bytes(Source(wrapper.container, unbounded)), true);
    const bool unlinked =
        found && found->bytes.size() <= sizeof(FatbinContainer) && wrapper.version == 2 && wrapper.more;
    return unlinked ? join_containers(wrapper) : std::move(found);
  }
  if (source.begins_with({0x50, 0xED, 0x55, 0xBA})) return image(pointer, container_bytes(source), false);
  if (source.begins_with({0x7F, 'E', 'L', 'F'})) return image(pointer, elf_bytes(source), false);
  return image(pointer, ptx_bytes(source), false);
}

bool keeps_within(std::span<const std::byte> image) {
  const Source source(image.data(), image.size());
  const bool has_lengths = source.begins_with({0xB1, 0x43, 0x62, 0x46}) ||
                           source.begins_with({0x50, 0xED, 0x55, 0xBA}) || source.begins_with({0x7F, 'E', 'L', 'F'});
  return !has_lengths || find_image(image.data(), image.size());
}

}  // namespace fargpu
