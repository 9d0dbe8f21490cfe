// The length of GPU code, as the worker looks for it in what a client sent: never beyond what is there.

#include <elf.h>

#include <algorithm>

#include "fuzz.h"
#include "protocol/image.h"

namespace fargpu::fuzz {
namespace {

Input container(std::size_t payload) {
  Input bytes;
  append_value(bytes, std::uint32_t{0xBA55ED50});
  append_value(bytes, std::uint16_t{1});
  append_value(bytes, std::uint16_t{16});
  append_value(bytes, std::uint64_t{payload});
  bytes.resize(bytes.size() + payload);
  return bytes;
}

Input cubin() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = 190;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_phoff = sizeof(header) + 2 * sizeof(Elf64_Shdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  Elf64_Shdr section{};
  section.sh_type = SHT_PROGBITS;
  section.sh_offset = sizeof(header);
  section.sh_size = 100;
  Elf64_Phdr segment{};
  segment.p_type = PT_LOAD;
  segment.p_filesz = 200;
  Input bytes;
  append_value(bytes, header);
  append_value(bytes, section);
  append_value(bytes, section);
  append_value(bytes, segment);
  bytes.resize(400);
  return bytes;
}

Input wrapper() {
  Input bytes;
  append_value(bytes, std::uint32_t{0x466243B1});
  append_value(bytes, std::uint32_t{1});
  bytes.resize(24);
  return bytes;
}

}  // namespace

std::vector<Input> seeds() {
  Input text =
      from_text("// comment\n/* another */ .version 8.0\n.target sm_90\n.address_size 64\n.entry k() { ret; }\n");
  text.push_back(0);
  return {container(0), container(100), cubin(), wrapper(), text};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto image = find_image(bytes.data(), bytes.size())) {
    fuzz::expect(image->bytes.data() == bytes.data() && image->bytes.size() <= bytes.size(),
                 "an image that is longer than what is there");
    fuzz::expect(!image->wrapped, "a wrapper that leads out of a file");
    fuzz::expect(keeps_within(bytes), "an image that is found and does not keep within");
    // What was found is found again in itself.
    const auto again = find_image(image->bytes.data(), image->bytes.size());
    fuzz::expect(again && again->bytes.size() == image->bytes.size(), "an image that is not one by itself");
  }
  (void)keeps_within(bytes);
  return 0;
}
