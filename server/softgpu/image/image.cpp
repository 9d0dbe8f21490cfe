#include "image/image.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "common/limits.h"
#include "image/program_memory.h"
#include "protocol/fatbin.h"

namespace fargpu::softgpu {
namespace {

constexpr uint32_t wrapper_magic = 0x466243b1;
constexpr uint32_t elf_magic = 0x464c457f;
constexpr uint64_t entry_header_bytes = 64;
constexpr uint64_t elf_header_bytes = 64;
constexpr size_t wrapped_containers_max = 4096;

// A container with this architecture number in its entries holds texts to be linked, not
// alternatives; only make_linked_image() writes it.
constexpr uint32_t linked_architecture = 0xfa790;

[[noreturn]] void fail_invalid(const std::string& reason) { throw ImageError(ImageError::Kind::invalid_image, reason); }
[[noreturn]] void fail_no_binary() {
  throw ImageError(ImageError::Kind::no_binary,
                   "the image has no PTX that this device can run; compile with PTX for compute capability 9.0 "
                   "or below (nvcc -gencode arch=compute_90,code=compute_90)");
}

/// Little-endian numbers at offsets of a piece of memory, with its bounds checked.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T read(uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) fail_invalid("the image ends within a header");
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

 private:
  std::string_view bytes_;
};

/// Without the padding behind it.
std::string text_of(const FatbinPiece& piece) {
  std::string text = fatbin_code(piece);
  return text.substr(0, text.find('\0'));
}

/// True for a text of an architecture-specific target (sm_90a), which runs there only.
bool is_specific(std::string_view text) {
  size_t target = text.find(".target");
  if (target == std::string_view::npos) return false;
  size_t digits = text.find_first_of("0123456789", target);
  if (digits == std::string_view::npos) return false;
  size_t end = text.find_first_not_of("0123456789", digits);
  return end != std::string_view::npos && (text[end] == 'a' || text[end] == 'f');
}

/// The texts of a container: the best alternative, or all to be linked. Nothing if none fits.
std::vector<std::string> texts_of_container(std::string_view container) {
  std::vector<std::string> linked;
  std::optional<std::string> best;
  uint32_t best_architecture = 0;
  for (const FatbinPiece& entry : fatbin_pieces(container)) {
    if (entry.kind != FatbinPiece::ptx) continue;
    if (entry.architecture == linked_architecture) {
      linked.push_back(text_of(entry));
      continue;
    }
    if (entry.architecture > compute_capability_number || entry.architecture < best_architecture) continue;
    std::string text = text_of(entry);
    if (is_specific(text) && entry.architecture != compute_capability_number) continue;
    // Of two texts for one architecture the one for exactly this device is the better one.
    bool is_better = !best || entry.architecture > best_architecture || is_specific(text);
    if (!is_better) continue;
    best = std::move(text);
    best_architecture = entry.architecture;
  }
  if (!linked.empty()) return linked;
  if (!best) return {};
  return {std::move(*best)};
}

std::string copy_container(const void* data) {
  auto header = copy_program_memory(data, fatbin_header_bytes);
  if (!header) fail_invalid("the image cannot be read");
  if (Reader(*header).read<uint32_t>(0) != fatbin_magic) fail_invalid("not a fatbin");
  auto container = copy_program_memory(data, fatbin_bytes(*header));
  if (!container) fail_invalid("the image ends before the size in its header");
  return std::move(*container);
}

/// Version 1 of the wrapper points to one container. Version 2 also lists the containers that
/// were linked to it, for devices that must link again because the result has no code for them.
Image read_wrapper(const void* data) {
  auto wrapper = copy_program_memory(data, 24);
  if (!wrapper) fail_invalid("the image cannot be read");
  Reader reader(*wrapper);
  uint32_t version = reader.read<uint32_t>(4);
  if (version != 1 && version != 2) fail_invalid("unknown version of a fatbin wrapper");
  auto contents = reader.read<const void*>(8);
  auto list = reader.read<const void*>(16);
  Image image;
  if (contents != nullptr) image.texts = texts_of_container(copy_container(contents));
  if (!image.texts.empty() || version == 1 || list == nullptr) return image;
  for (size_t i = 0; i < wrapped_containers_max; ++i) {
    auto entry = copy_program_memory(static_cast<const char*>(list) + i * sizeof(void*), sizeof(void*));
    if (!entry) fail_invalid("the list of a fatbin wrapper cannot be read");
    auto container = Reader(*entry).read<const void*>(0);
    if (container == nullptr) break;
    for (std::string& text : texts_of_container(copy_container(container))) image.texts.push_back(std::move(text));
  }
  return image;
}

bool looks_like_text(std::string_view start) {
  return std::all_of(start.begin(), start.end(), [](char c) {
    return c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == '\v' || (c >= ' ' && c <= '~');
  });
}

/// Every PTX text begins with its version, behind nothing but comments.
bool begins_like_ptx(std::string_view text) {
  for (;;) {
    size_t start = text.find_first_not_of(" \t\r\n\f\v");
    text.remove_prefix(std::min(start, text.size()));
    std::string_view end_of_comment = text.starts_with("//") ? "\n" : "*/";
    if (!text.starts_with("//") && !text.starts_with("/*")) return text.starts_with(".version");
    size_t end = text.find(end_of_comment, 2);
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + end_of_comment.size());
  }
}

Image image_of_text(std::string text) {
  if (!begins_like_ptx(text)) fail_invalid("the image is neither PTX nor a fatbin");
  return {{std::move(text)}};
}

/// An ELF file: device code without PTX if it says so.
[[noreturn]] void fail_elf(std::string_view header) {
  constexpr uint16_t machine_cuda = 190;
  if (Reader(header).read<uint16_t>(18) == machine_cuda) fail_no_binary();
  fail_invalid("the image is an ELF file, but no device code");
}

Image checked(Image image) {
  if (image.texts.empty()) fail_no_binary();
  return image;
}

template <class T>
void append_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Image read_image(const void* data) try {
  auto start = copy_program_memory(data, 4);
  if (!start) fail_invalid("the image cannot be read");
  switch (Reader(*start).read<uint32_t>(0)) {
    case wrapper_magic: return checked(read_wrapper(data));
    case fatbin_magic: return checked({texts_of_container(copy_container(data))});
    case elf_magic: {
      auto header = copy_program_memory(data, elf_header_bytes);
      if (!header) fail_invalid("the image cannot be read");
      fail_elf(*header);
    }
    default: break;
  }
  if (!looks_like_text(*start)) fail_invalid("the image is neither PTX nor a fatbin");
  auto text = copy_program_text(data);
  if (!text) fail_invalid("the PTX text does not end");
  return image_of_text(std::move(*text));
} catch (const FatbinError& error) {
  fail_invalid(error.what());
}

Image read_image(const void* data, uint64_t bytes) try {
  auto copied = copy_program_memory(data, bytes);
  if (!copied || copied->size() < 4) fail_invalid("the image cannot be read");
  switch (Reader(*copied).read<uint32_t>(0)) {
    case wrapper_magic: return checked(read_wrapper(data));
    case fatbin_magic: {
      if (fatbin_bytes(*copied) > copied->size()) fail_invalid("the image ends before the size in its header");
      return checked({texts_of_container(std::string_view(*copied).substr(0, fatbin_bytes(*copied)))});
    }
    case elf_magic: fail_elf(*copied);
    default: break;
  }
  return image_of_text(copied->substr(0, copied->find('\0')));
} catch (const FatbinError& error) {
  fail_invalid(error.what());
}

std::string make_linked_image(const std::vector<std::string>& texts) {
  std::string entries;
  for (const std::string& text : texts) {
    uint64_t padded = (text.size() + 8) / 8 * 8;  // at least one zero behind the text
    append_number<uint16_t>(entries, FatbinPiece::ptx);
    append_number<uint16_t>(entries, 0x0101);
    append_number<uint32_t>(entries, entry_header_bytes);
    append_number<uint64_t>(entries, padded);
    append_number<uint64_t>(entries, 0);
    append_number<uint32_t>(entries, 0);
    append_number<uint32_t>(entries, linked_architecture);
    append_number<uint64_t>(entries, 0);
    append_number<uint64_t>(entries, 0x11);
    append_number<uint64_t>(entries, 0);
    append_number<uint64_t>(entries, 0);
    entries += text;
    entries.append(padded - text.size(), '\0');
  }
  std::string container;
  append_number<uint32_t>(container, fatbin_magic);
  append_number<uint16_t>(container, 1);
  append_number<uint16_t>(container, fatbin_header_bytes);
  append_number<uint64_t>(container, entries.size());
  return container + entries;
}

}  // namespace fargpu::softgpu
