#pragma once
// GPU code as programs hand it to the driver: a bare pointer, whose length must be found. The client sends so much; the
// worker looks again, because the driver believes what an image says of its length.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fargpu {

struct Image {
  std::span<const std::byte> bytes;
  /// It came as the wrapper that nvcc's object files register; `bytes` is the container in it. If that is empty,
  /// because separately compiled code was linked for no GPU and the driver has to do it, the containers to link follow,
  /// each at a multiple of eight bytes.
  bool wrapped = false;
  std::vector<std::byte> joined;  ///< holds `bytes` where they do not lie in the program's memory as they are
};

inline constexpr std::size_t unbounded = ~std::size_t{0};

/// Recognises fatbin wrappers and containers, ELF cubins, and PTX text by their first bytes and finds their length.
/// Nothing if it is none of these, or larger than limits::image_bytes_max. A program's own pointer is trusted to be
/// readable as far as its headers say; of a file only `readable` bytes are looked at, in which a wrapper has no
/// meaning, and the image must lie within them.
std::optional<Image> find_image(const void* pointer, std::size_t readable = unbounded);

/// Whether a reader that takes these bytes for what they begin like stays within them. Text does, if a null follows.
bool keeps_within(std::span<const std::byte> image);

}  // namespace fargpu
