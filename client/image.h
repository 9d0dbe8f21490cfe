#pragma once
// GPU code as programs hand it to the driver: a bare pointer, whose length must be found.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fargpu::client {

struct Image {
  std::span<const std::byte> bytes;
  /// It came as the wrapper that nvcc's object files register; `bytes` is the container in it.
  bool wrapped = false;
};

/// Recognises fatbin wrappers and containers, ELF cubins, and PTX text by their first bytes and finds their length. Nothing if it
/// is none of these, or larger than limits::image_bytes_max. The pointer is the program's own and is trusted to be readable as
/// far as its own headers say.
std::optional<Image> find_image(const void* pointer);

}  // namespace fargpu::client
