#pragma once
// Kernels that order what they do with the whole system: with the program, where both use the same memory.

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/image_hash.h"

namespace fargpu::server {

/// Names of kernels in whose code an atomic operation or a fence has the scope of the whole system. PTX ISA, "Scope";
/// in machine code, from compute capability 7.5 on, the scope is found where the assembler puts it. All kernels of one
/// module count if a function that they may call has such an instruction. What cannot be read has none.
std::set<std::string, std::less<>> system_scope_kernels(std::span<const std::byte> image);

/// What was found in each image. Used by the executor only.
class SystemScope {
 public:
  /// Larger images are not looked at: those of libraries, which have their own ways with memory of the host.
  static constexpr std::size_t image_bytes_max = 16u << 20;

  bool has(const ImageHash& hash, std::span<const std::byte> image, std::string_view kernel);
  /// True once: one kernel of a program is told of.
  bool first() { return !std::exchange(told_, true); }

 private:
  bool told_ = false;
  std::map<ImageHash, std::set<std::string, std::less<>>> found_;
};

}  // namespace fargpu::server
