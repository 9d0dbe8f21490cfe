#include "system_scope.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "protocol/fatbin.h"

namespace fargpu::server {
namespace {

using Names = std::set<std::string, std::less<>>;

// Bounds for one image, as anybody may make one: unpacked code that is looked at, the length of a name, and of all
// names that are kept; and how many images are kept.
constexpr std::uint64_t code_bytes_max = 64u << 20;
constexpr std::size_t name_bytes_max = 8192, names_bytes_max = 256u << 10;
constexpr std::size_t images_max = 128;

/// Keeps names within the bounds.
class Kept {
 public:
  void add(std::string_view name) {
    if (name.size() > name_bytes_max || name.size() > left_ || !names_.emplace(name).second) return;
    left_ -= name.size();
  }
  Names take() { return std::move(names_); }

 private:
  Names names_;
  std::size_t left_ = names_bytes_max;
};

template <class T>
std::optional<T> read(std::string_view bytes, std::uint64_t offset) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// --- machine code ----------------------------------------------------------------------------------------------------

// What ptxas of CUDA 13.0 makes of atomics, reductions and fences for each architecture from 7.5 to 12.0: instructions
// of 16 bytes, the operation in the lowest nine bits, the scope in bits 77 to 80, and that of a fence in bits 76 and
// 77.
constexpr std::array<std::uint32_t, 8> atomics{0x18a, 0x18b, 0x18e, 0x1a2, 0x1a3, 0x1a6, 0x1a8, 0x1a9};
constexpr std::uint32_t fence = 0x192;
constexpr std::uint64_t instruction_bytes = 16;
constexpr unsigned architecture_min = 75;

bool is_system_scope(std::uint64_t low, std::uint64_t high, unsigned architecture) {
  const auto operation = static_cast<std::uint32_t>(low & 0x1ff);
  if (operation == fence) return ((high >> 12) & 3) == 3;
  for (const std::uint32_t atomic : atomics)
    if (operation == atomic) return ((high >> 13) & 15) == (architecture < 80 ? 11u : 10u);
  return false;
}

bool any_system_scope(std::string_view code, unsigned architecture) {
  for (std::uint64_t at = 0; at + instruction_bytes <= code.size(); at += instruction_bytes)
    if (is_system_scope(*read<std::uint64_t>(code, at), *read<std::uint64_t>(code, at + 8), architecture)) return true;
  return false;
}

// Since CUDA 13 the second byte of the flags is the architecture, before that it was the first.
unsigned architecture_of(const Elf64_Ehdr& header) {
  constexpr unsigned char newer_abi = 8;
  return (header.e_ident[EI_ABIVERSION] >= newer_abi ? header.e_flags >> 8 : header.e_flags) & 0xff;
}

/// A file of machine code, whose bytes may be anybody's.
class Cubin {
 public:
  explicit Cubin(std::string_view file) : file_(file), header_(read<Elf64_Ehdr>(file, 0)) {
    if (header_ && (header_->e_shentsize != sizeof(Elf64_Shdr) || header_->e_shoff > file.size())) header_.reset();
  }

  void add_kernels(Kept& names) const {
    const unsigned architecture = header_ ? architecture_of(*header_) : 0;
    if (architecture < architecture_min) return;
    Names kernels;
    bool in_function = false;
    std::uint64_t left = file_.size();  // sections do not overlap
    const auto entries = entries_by_section();
    for (unsigned i = 0; i < header_->e_shnum; ++i) {
      const auto one = section(i);
      if (!one || one->sh_type != SHT_PROGBITS || (one->sh_flags & SHF_EXECINSTR) == 0) continue;
      const auto kernel = entries.find(i);
      const std::string_view code = contents(*one);
      if (code.size() > left) break;
      left -= code.size();
      if (kernel != entries.end()) kernels.insert(kernel->second);
      if (!any_system_scope(code, architecture)) continue;
      if (kernel == entries.end()) in_function = true;
      else names.add(kernel->second);
    }
    if (in_function)
      for (const std::string& name : kernels) names.add(name);
  }

 private:
  std::optional<Elf64_Shdr> section(unsigned number) const {
    return read<Elf64_Shdr>(file_, header_->e_shoff + number * sizeof(Elf64_Shdr));
  }
  std::string_view contents(const Elf64_Shdr& of) const {
    if (of.sh_offset > file_.size() || of.sh_size > file_.size() - of.sh_offset) return {};
    return file_.substr(of.sh_offset, of.sh_size);
  }

  // Kernels have sections of their own, and a mark that functions lack.
  std::map<unsigned, std::string> entries_by_section() const {
    constexpr unsigned char entry_mark = 0x10;
    std::map<unsigned, std::string> entries;
    std::uint64_t left = file_.size();  // nor do names
    for (unsigned i = 0; i < header_->e_shnum; ++i) {
      const auto table = section(i);
      if (!table || table->sh_type != SHT_SYMTAB) continue;
      const auto strings = section(table->sh_link);
      if (!strings) continue;
      const std::string_view symbols = contents(*table), names = contents(*strings);
      for (std::uint64_t at = 0; const auto symbol = read<Elf64_Sym>(symbols, at); at += sizeof(Elf64_Sym)) {
        if ((symbol->st_other & entry_mark) == 0 || symbol->st_name >= names.size()) continue;
        std::string_view name = names.substr(symbol->st_name);
        name = name.substr(0, name.find('\0'));
        if (name.size() > left) break;
        left -= name.size();
        entries.emplace(symbol->st_shndx, name);
      }
      break;
    }
    return entries;
  }

  const std::string_view file_;
  std::optional<Elf64_Ehdr> header_;
};

// --- PTX -------------------------------------------------------------------------------------------------------------

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '.';
}

void add_of_ptx(std::string_view text, Kept& names) {
  constexpr std::string_view kinds[] = {"atom.", "red.", "fence.", "membar.", "st.release."};
  Names kernels;
  std::string kernel;  // in which we are; empty in a function
  bool in_function = false;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_name(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && is_name(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    at = end;
    if (word == ".func") kernel.clear();
    if (word == ".entry") {
      while (at < text.size() && !is_name(text[at])) ++at;
      for (end = at; end < text.size() && is_name(text[end]);) ++end;
      kernel = text.substr(at, end - at);
      kernels.insert(kernel);
      at = end;
    }
    if (word.find(".sys") == word.npos) continue;
    for (const std::string_view kind : kinds)
      if (word.starts_with(kind)) {
        if (kernel.empty()) in_function = true;
        else names.add(kernel);
      }
  }
  if (in_function)
    for (const std::string& name : kernels) names.add(name);
}

void add_of_code(std::string_view code, Kept& names) {
  if (code.starts_with(ELFMAG)) Cubin(code).add_kernels(names);
  else add_of_ptx(code, names);
}

}  // namespace

Names system_scope_kernels(std::span<const std::byte> image) {
  std::string_view rest(reinterpret_cast<const char*>(image.data()), image.size());
  Kept names;
  if (read<std::uint32_t>(rest, 0) != fatbin_magic) {
    add_of_code(rest, names);
    return names.take();
  }
  std::uint64_t left = code_bytes_max;
  try {
    while (read<std::uint32_t>(rest, 0) == fatbin_magic) {
      const std::uint64_t bytes = fatbin_bytes(rest);
      if (bytes > rest.size()) break;
      for (const FatbinPiece& piece : fatbin_pieces(rest.substr(0, bytes))) {
        if (piece.kind != FatbinPiece::elf && piece.kind != FatbinPiece::ptx) continue;
        const std::string code = fatbin_code(piece, left);
        left -= code.size();
        add_of_code(code, names);
      }
      const std::uint64_t next = (bytes + 7) & ~std::uint64_t{7};
      rest.remove_prefix(std::min<std::uint64_t>(next, rest.size()));
    }
  } catch (const FatbinError&) {
    // The driver says what it thinks of it, and the rest is too much.
  }
  return names.take();
}

bool SystemScope::has(const ImageHash& hash, std::span<const std::byte> image, std::string_view kernel) {
  auto found = found_.find(hash);
  if (found == found_.end() && found_.size() >= images_max) found_.clear();
  if (found == found_.end())
    found = found_.emplace(hash, image.size() <= image_bytes_max ? system_scope_kernels(image) : Names{}).first;
  return found->second.contains(kernel);
}

}  // namespace fargpu::server
