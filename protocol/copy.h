#pragma once
// What a copy moves: a shape of rows, and where it lies on each side. One model for programs (CUDA_MEMCPY3D and its
// relatives), for the wire (wire::Copy) and for the driver.

#include <cuda.h>

#include <cstdint>
#include <optional>

#include "operations.capnp.h"

namespace fargpu {

/// `depth` slices of `height` rows of `width` bytes.
struct CopyShape {
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;

  bool empty() const { return width == 0 || height == 0 || depth == 0; }
  /// All rows, behind each other. No memory is as long as the largest number, which stands for all that do not fit.
  std::uint64_t bytes() const;
};

/// One side of a copy.
struct CopySide {
  enum class Kind : std::uint8_t {
    // On the wire, where protocol/operations.capnp says what each is.
    frame,
    device,
    array,
    block,
    part,
    pull,
    lanes,
    peer,
    changes,
    // Between a program and the client, or the worker and the driver.
    host,     ///< ordinary memory at an address
    unified,  ///< memory at an address, which tells what memory it is
  };
  Kind kind = Kind::frame;
  std::uint64_t place = 0;  ///< address, array, or number
  std::uint64_t level = 0;  ///< of an array
  std::uint64_t x = 0;      ///< bytes
  std::uint64_t y = 0;
  std::uint64_t z = 0;
  std::uint64_t pitch = 0;
  std::uint64_t height = 0;  ///< rows from one slice to the next

  bool in_array() const { return kind == Kind::array; }
  std::uint64_t slice() const { return pitch * height; }
  // Of a side in memory:
  std::uint64_t row(std::uint64_t number, std::uint64_t slice_number) const {
    return place + (z + slice_number) * slice() + (y + number) * pitch + x;
  }
  std::uint64_t begin() const { return row(0, 0); }
  /// Bytes from the first to behind the last of a shape that is not empty.
  std::uint64_t extent(const CopyShape& shape) const {
    return (shape.depth - 1) * slice() + (shape.height - 1) * pitch + shape.width;
  }
  /// Whether the rows of a shape one slice deep lie behind each other without gaps.
  bool packed(const CopyShape& shape) const { return shape.height == 1 || pitch == shape.width; }

  /// Rows behind each other in ordinary memory.
  static CopySide packed_at(const void* memory, const CopyShape& shape) {
    return {.kind = Kind::host,
            .place = reinterpret_cast<std::uint64_t>(memory),
            .pitch = shape.width,
            .height = shape.height};
  }

  /// The part of a side in memory or in an array that begins so many bytes, rows and slices further on. In memory its
  /// place is its beginning.
  CopySide from(std::uint64_t column, std::uint64_t row, std::uint64_t slice) const;
};

/// `Params`: CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER, of which the contexts are the caller's. Nothing for a kind of memory
/// that does not exist.
template <class Params>
CopyShape shape_of(const Params& params);
template <class Params>
std::optional<CopySide> source_of(const Params& params);
template <class Params>
std::optional<CopySide> target_of(const Params& params);
/// The sides must be memory or arrays.
template <class Params>
Params cuda_copy(const CopyShape& shape, const CopySide& source, const CopySide& target);
/// The older struct as the one that has all fields.
CUDA_MEMCPY3D volume_of(const CUDA_MEMCPY2D& params);

/// Sides must be of kinds that travel. One that is `frame` is left out.
void encode(const CopyShape& shape, const CopySide& source, const CopySide& target, wire::Copy::Builder copy);
void encode(const CopySide& side, wire::CopySide::Builder out);
CopyShape shape_of(wire::Copy::Reader copy);
CopySide decode(wire::CopySide::Reader side);

}  // namespace fargpu
