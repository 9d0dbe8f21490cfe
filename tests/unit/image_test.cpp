// How long a piece of GPU code is that came as a bare pointer.

#include "protocol/image.h"

#include <elf.h>

#include <catch2/catch.hpp>

#include "frames.h"
#include "guarded.h"
#include "protocol/limits.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

template <class T>
void put(Bytes& bytes, std::size_t offset, const T& value) {
  if (bytes.size() < offset + sizeof(value)) bytes.resize(offset + sizeof(value));
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

Bytes container(std::uint64_t payload, std::uint16_t header_bytes = 16) {
  Bytes bytes;
  put(bytes, 0, std::uint32_t{0xBA55ED50});
  put(bytes, 4, std::uint16_t{1});
  put(bytes, 6, header_bytes);
  put(bytes, 8, payload);
  return bytes;
}

// A cubin in outline: header, `sections` section headers, one segment, and room for what they describe.
struct Elf {
  Elf64_Ehdr header{};
  std::vector<Elf64_Shdr> sections;
  std::vector<Elf64_Phdr> segments;

  Elf() {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_machine = 190;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_phentsize = sizeof(Elf64_Phdr);
  }
  void add_section(unsigned type, std::uint64_t offset, std::uint64_t bytes) {
    Elf64_Shdr section{};
    section.sh_type = type;
    section.sh_offset = offset;
    section.sh_size = bytes;
    sections.push_back(section);
  }
  void add_segment(std::uint64_t offset, std::uint64_t bytes) {
    Elf64_Phdr segment{};
    segment.p_type = PT_LOAD;
    segment.p_offset = offset;
    segment.p_filesz = bytes;
    segments.push_back(segment);
  }
  // Tables behind `at`, sections first; the file ends with `size` bytes at least.
  Bytes build(std::size_t size = 0, std::size_t at = sizeof(Elf64_Ehdr)) {
    Bytes bytes(std::max(size, at));
    if (!sections.empty()) {
      header.e_shoff = at;
      if (header.e_shnum == 0) header.e_shnum = static_cast<Elf64_Half>(sections.size());
    }
    for (const Elf64_Shdr& section : sections) put(bytes, at, section), at += sizeof(section);
    if (!segments.empty()) {
      header.e_phoff = at;
      header.e_phnum = static_cast<Elf64_Half>(segments.size());
    }
    for (const Elf64_Phdr& segment : segments) put(bytes, at, segment), at += sizeof(segment);
    put(bytes, 0, header);
    return bytes;
  }
};

std::size_t length(const Bytes& bytes) {
  const auto image = find_image(bytes.data());
  if (!image) return 0;
  CHECK(image->bytes.data() == bytes.data());
  CHECK_FALSE(image->wrapped);
  return image->bytes.size();
}

struct Wrapper {
  std::uint32_t magic = 0x466243B1;
  std::uint32_t version = 1;
  const void* container = nullptr;
  const void* more = nullptr;
};

Bytes text(std::string_view characters) {
  const auto bytes = std::as_bytes(std::span(characters));
  Bytes with_null(bytes.begin(), bytes.end());
  with_null.push_back(std::byte{0});
  return with_null;
}

}  // namespace

TEST_CASE("a fatbin container says its length") {
  CHECK(length(container(0)) == 16);
  CHECK(length(container(1000)) == 1016);
  CHECK(length(container(1000, 64)) == 1064);
  CHECK(length(container(limits::image_bytes_max - 16)) == limits::image_bytes_max);
}

TEST_CASE("a container whose header cannot be is none") {
  CHECK(length(container(1000, 0)) == 0);
  CHECK(length(container(1000, 15)) == 0);
  CHECK(length(container(limits::image_bytes_max + 1)) == 0);
  CHECK(length(container(~std::uint64_t{0})) == 0);
  CHECK(length(container(~std::uint64_t{0} - 15)) == 0);
  Bytes other = container(1000);
  other[0] = std::byte{0x51};
  CHECK(length(other) == 0);
}

TEST_CASE("a wrapper leads to its container") {
  Wrapper wrapper;
  const Bytes inner = container(100);
  wrapper.container = inner.data();
  auto image = find_image(&wrapper);
  REQUIRE(image);
  CHECK(image->wrapped);
  CHECK(image->bytes.data() == inner.data());
  CHECK(image->bytes.size() == 116);
  wrapper.version = 2;
  CHECK(find_image(&wrapper));
  const Bytes not_a_container = pattern(64);
  wrapper.container = not_a_container.data();
  CHECK_FALSE(find_image(&wrapper));
  wrapper.container = nullptr;
  CHECK_FALSE(find_image(&wrapper));
  const Bytes impossible = container(100, 3);
  wrapper.container = impossible.data();
  CHECK_FALSE(find_image(&wrapper));
}

TEST_CASE("an ELF image ends where the furthest of its parts does") {
  Elf elf;
  SECTION("its header, if there is nothing else") { CHECK(length(elf.build()) == 64); }
  SECTION("the section table") {
    elf.add_section(SHT_NULL, 0, 0);
    elf.add_section(SHT_PROGBITS, 64, 10);
    CHECK(length(elf.build(0, 100)) == 100 + 2 * 64);
  }
  SECTION("a section") {
    elf.add_section(SHT_PROGBITS, 300, 77);
    elf.add_section(SHT_STRTAB, 200, 20);
    CHECK(length(elf.build()) == 377);
  }
  SECTION("sections without bytes in the file do not count") {
    elf.add_section(SHT_NOBITS, 300, 1u << 20);
    elf.add_section(SHT_NULL, 300, 1u << 20);
    elf.add_section(0x70000007, 300, 1u << 20);  // variables and shared memory of a relocatable cubin
    elf.add_section(0x7000000a, 300, 1u << 20);
    CHECK(length(elf.build()) == 64 + 4 * 64);
  }
  SECTION("a segment") {
    elf.add_section(SHT_PROGBITS, 300, 77);
    elf.add_segment(400, 1000);
    CHECK(length(elf.build()) == 1400);
  }
  SECTION("the program headers, which some cubins have last") {
    elf.add_section(SHT_PROGBITS, 64, 8);
    elf.add_segment(64, 8);
    elf.add_segment(64, 16);
    CHECK(length(elf.build(0, 500)) == 500 + 64 + 2 * 56);
  }
  SECTION("tables whose entries are larger than those known") {
    elf.add_section(SHT_PROGBITS, 64, 8);
    elf.header.e_shentsize = 80;
    CHECK(length(elf.build()) == 64 + 80);
  }
  SECTION("many sections, whose count stands in the first") {
    elf.add_section(SHT_NULL, 0, 3);
    elf.add_section(SHT_PROGBITS, 500, 5);
    elf.add_section(SHT_PROGBITS, 600, 5);
    Bytes bytes = elf.build();
    put(bytes, offsetof(Elf64_Ehdr, e_shnum), Elf64_Half{0});
    CHECK(length(bytes) == 605);
  }
  SECTION("a first section that says there are none belongs to it") {
    elf.add_section(SHT_PROGBITS, 500, 0);
    Bytes bytes = elf.build();
    put(bytes, offsetof(Elf64_Ehdr, e_shnum), Elf64_Half{0});
    CHECK(length(bytes) == sizeof(Elf64_Ehdr) + sizeof(Elf64_Shdr));
  }
}

TEST_CASE("an ELF image of another machine word, or beyond the limit, is none") {
  Elf elf;
  elf.add_section(SHT_PROGBITS, 64, 8);
  SECTION("32 bits") { elf.header.e_ident[EI_CLASS] = ELFCLASS32; }
  SECTION("big-endian") { elf.header.e_ident[EI_DATA] = ELFDATA2MSB; }
  SECTION("a section too large") { elf.sections[0].sh_size = limits::image_bytes_max; }
  SECTION("a section too far") { elf.sections[0].sh_offset = limits::image_bytes_max; }
  SECTION("a segment too large") { elf.add_segment(0, limits::image_bytes_max + 1); }
  CHECK(length(elf.build()) == 0);
}

TEST_CASE("an ELF image whose tables lie beyond the limit is none, and they are not looked at") {
  Elf elf;
  Bytes bytes = elf.build();
  const std::uint64_t far =
      GENERATE(limits::image_bytes_max + 1, std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{0} - 64);
  SECTION("sections") {
    put(bytes, offsetof(Elf64_Ehdr, e_shoff), far);
    put(bytes, offsetof(Elf64_Ehdr, e_shnum), GENERATE(Elf64_Half{0}, Elf64_Half{1}, Elf64_Half{0xFFFF}));
  }
  SECTION("segments") {
    put(bytes, offsetof(Elf64_Ehdr, e_phoff), far);
    put(bytes, offsetof(Elf64_Ehdr, e_phnum), Elf64_Half{1});
  }
  CHECK(length(bytes) == 0);
}

TEST_CASE("sizes that overflow are no way to a shorter image") {
  CHECK(length(container(limits::image_bytes_max)) == 0);  // with its header it is too long
  Elf elf;
  elf.add_section(SHT_PROGBITS, 64, 8);
  SECTION("a section") {
    elf.sections[0].sh_offset = ~std::uint64_t{0} - 100;
    elf.sections[0].sh_size = 200;
  }
  SECTION("a segment") { elf.add_segment(200, ~std::uint64_t{0} - 100); }
  SECTION("a table of sections, by the count in its first") {
    elf.add_section(SHT_PROGBITS, 64, 8);
    elf.sections[0].sh_size = std::uint64_t{1} << 58;
    Bytes bytes = elf.build();
    put(bytes, offsetof(Elf64_Ehdr, e_shnum), Elf64_Half{0});
    CHECK(length(bytes) == 0);
    return;
  }
  CHECK(length(elf.build()) == 0);
}

TEST_CASE("table entries too small to be any are not looked at") {
  Elf elf;
  elf.add_section(SHT_PROGBITS, 64, 8);
  SECTION("sections") { elf.header.e_shentsize = GENERATE(Elf64_Half{0}, Elf64_Half{63}); }
  SECTION("segments") {
    elf.add_segment(64, 8);
    elf.header.e_phentsize = GENERATE(Elf64_Half{0}, Elf64_Half{55});
  }
  CHECK(length(elf.build()) == 0);
}

TEST_CASE("a file that was cut anywhere is no image, and nothing behind its end is read") {
  Elf elf;
  elf.add_section(SHT_NULL, 0, 0);
  elf.add_section(SHT_PROGBITS, 64, 30);
  elf.add_segment(64, 30);
  const Bytes images[] = {elf.build(), container(40), text("// PTX\n/* of a\nkind */\n.version 8.0\n")};
  for (Bytes whole : images) {
    whole.resize(std::max<std::size_t>(whole.size(), length(whole)));
    const Guarded all(whole);
    const auto image = find_image(all.data(), whole.size());
    REQUIRE(image);
    CHECK(image->bytes.size() == whole.size());
    for (std::size_t cut = 0; cut < whole.size(); ++cut) {
      const Guarded part{std::span<const std::byte>(whole).first(cut)};
      if (find_image(part.data(), cut)) FAIL("cut to " << cut << " of " << whole.size() << " bytes");
    }
  }
}

TEST_CASE("code that was linked for no GPU comes with what is to be linked") {
  Bytes first = container(21), second = container(40);
  first.resize(37);
  second.resize(56);
  put(first, 16, std::uint32_t{1});
  put(second, 16, std::uint32_t{2});
  const Bytes linked = container(100), nothing = container(0);
  const void* list[] = {first.data(), second.data(), nullptr};
  Wrapper wrapper{.version = 2, .container = nothing.data(), .more = list};
  const auto image = find_image(&wrapper);
  REQUIRE(image);
  CHECK(image->wrapped);
  REQUIRE(image->bytes.size() == 16 + 40 + 56);
  CHECK(std::memcmp(image->bytes.data(), nothing.data(), 16) == 0);
  CHECK(std::memcmp(image->bytes.data() + 16, first.data(), 37) == 0);
  CHECK(std::memcmp(image->bytes.data() + 56, second.data(), 56) == 0);
  // The list means nothing in the first version, nor beside code that was linked.
  wrapper.container = linked.data();
  CHECK(find_image(&wrapper)->bytes.size() == 116);
  wrapper.container = nothing.data();
  wrapper.version = 1;
  CHECK(find_image(&wrapper)->bytes.size() == 16);
  wrapper.version = 2;
  const Bytes impossible = container(limits::image_bytes_max - 16);
  list[1] = impossible.data();
  CHECK_FALSE(find_image(&wrapper));
}

TEST_CASE("a wrapper in a file leads nowhere") {
  Bytes bytes;
  put(bytes, 0, std::uint32_t{0x466243B1});
  put(bytes, 4, std::uint32_t{1});
  put(bytes, 8, std::uint64_t{0x10});
  put(bytes, 16, std::uint64_t{0});
  CHECK_FALSE(find_image(bytes.data(), bytes.size()));
}

TEST_CASE("what lies behind an image in a file is left out") {
  Bytes bytes = container(40);
  bytes.resize(1000);
  const auto image = find_image(bytes.data(), bytes.size());
  REQUIRE(image);
  CHECK(image->bytes.size() == 56);
}

TEST_CASE("PTX is a text that begins with its version") {
  for (const std::string_view ptx :
       {".version 8.0\n.target sm_90\n", "\n\n  .version 1.0", "// a comment\n.version 8.0",
        "//\n// two\n\t.version 8.0", "/* long\n one */ .version 8.0", "/**/\r\n.version"}) {
    INFO(ptx);
    CHECK(length(text(ptx)) == ptx.size() + 1);
  }
}

TEST_CASE("a text that is not PTX is none") {
  for (const std::string_view other : {"", " ", "\n", "version", ".versio", ".target sm_90", "/", "/x", "//",
                                       "// .version", "/*", "/* .version", "/* *", "int main() {}"}) {
    INFO(other);
    CHECK(length(text(other)) == 0);
  }
}

TEST_CASE("nothing behind the end of a text is read") {
  for (const std::string_view some : {".version 8.0", "", ".", ".version", "/", "//", "/*", "/* *", "\x7f",
                                      "\x7f"
                                      "EL",
                                      "P", "\xb1"}) {
    const Guarded guarded(text(some));
    const auto image = find_image(guarded.data());
    CHECK(image.has_value() == some.starts_with(".version"));
  }
}

TEST_CASE("other bytes are no image") {
  CHECK(length(pattern(64)) == 0);
  Bytes almost = text(
      "\x7f"
      "ELG");
  almost.resize(64);
  CHECK(length(almost) == 0);
}

TEST_CASE("an image keeps within its bytes, unless a length in it leads out") {
  Bytes container(32);
  const auto put = [&](std::size_t offset, auto value) {
    std::memcpy(container.data() + offset, &value, sizeof(value));
  };
  put(0, std::uint32_t{0xBA55ED50});
  put(6, std::uint16_t{16});
  put(8, std::uint64_t{16});
  CHECK(keeps_within(container));
  put(8, std::uint64_t{17});
  CHECK_FALSE(keeps_within(container));
  CHECK_FALSE(
      keeps_within(std::as_bytes(std::span("\x7f"
                                           "ELF but no more"))));
  CHECK(keeps_within(std::as_bytes(std::span(".version 8.0"))));
  CHECK(keeps_within(std::as_bytes(std::span("neither"))));  // read as text
  CHECK(keeps_within({}));
}
