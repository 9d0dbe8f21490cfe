#pragma once
// How rows of bytes are divided into chunks, which both sides of a transfer compute alike.

#include <algorithm>
#include <cstdint>

#include "copy.h"
#include "limits.h"

namespace fargpu {

/// Chunks of rows in one slice: some whole rows each, or, of rows that are too long, pieces of about equal length.
class RowChunks {
 public:
  /// The shape has one slice, and neither of its numbers is 0. No chunk has more bytes than `chunk_bytes_max`.
  RowChunks(const CopyShape& shape, std::uint64_t chunk_bytes_max)
      : shape_(shape),
        pieces_((shape.width - 1) / chunk_bytes_max + 1),
        piece_bytes_(pieces_ == 1 ? shape.width : std::min(chunk_bytes_max, (shape.width / pieces_ + 64) / 64 * 64)),
        rows_(pieces_ == 1 ? std::max<std::uint64_t>(1, chunk_bytes_max / shape.width) : 1) {
    pieces_ = (shape.width - 1) / piece_bytes_ + 1;
  }

  struct Part {
    CopyShape shape;
    std::uint64_t column, row;  ///< where it begins, in bytes and rows
  };
  std::uint64_t count() const { return pieces_ * ((shape_.height - 1) / rows_ + 1); }
  Part part(std::uint64_t number) const {
    const std::uint64_t column = number % pieces_ * piece_bytes_, row = number / pieces_ * rows_;
    return {{std::min(piece_bytes_, shape_.width - column), std::min(rows_, shape_.height - row)}, column, row};
  }
  const CopyShape& shape() const { return shape_; }

 private:
  CopyShape shape_;
  std::uint64_t pieces_;       // of a row
  std::uint64_t piece_bytes_;  // of all but the last
  std::uint64_t rows_;         // of a chunk
};

/// Transfers on the bulk lanes are of two classes, which have room of their own: a large one fills the line by itself,
/// of small ones several are on their way.
enum class LaneClass : std::uint8_t { large, small };
inline constexpr std::size_t lane_classes = 2;
/// Told by a transfer's number.
constexpr LaneClass lane_class(std::uint32_t transfer) { return transfer & 1 ? LaneClass::small : LaneClass::large; }
inline LaneClass lane_class(const CopyShape& shape) {
  return shape.bytes() < limits::lane_large_bytes ? LaneClass::small : LaneClass::large;
}
constexpr std::size_t chunk_bytes_of(LaneClass of) {
  return of == LaneClass::small ? limits::lane_small_chunk_bytes : limits::lane_chunk_bytes;
}
constexpr std::uint32_t early_chunks_of(LaneClass of) {
  return of == LaneClass::small ? limits::lane_early_small_chunks : limits::lane_early_chunks;
}

inline RowChunks lane_chunks(const CopyShape& shape) { return RowChunks(shape, chunk_bytes_of(lane_class(shape))); }

}  // namespace fargpu
