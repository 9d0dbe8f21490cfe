#pragma once
// Rows of this process's memory that a transfer on the bulk lanes reads or fills.

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/copy.h"
#include "protocol/row_chunks.h"

namespace fargpu::client {

class LaneRows {
 public:
  /// `side` is memory; the shape has one slice. `unsure`: the program may have unmapped the memory while it travels.
  /// `of_no_file`: none of its pages can be a file's.
  LaneRows(const CopySide& side, const CopyShape& shape, bool unsure, bool of_no_file = false)
      : side_(side), chunks_(lane_chunks(shape)), unsure_(unsure), of_no_file_(of_no_file) {}

  std::uint64_t begin() const { return side_.begin(); }
  std::uint64_t end() const { return begin() + side_.extent(chunks_.shape()); }
  bool overlaps(std::uint64_t from, std::uint64_t to) const { return begin() < to && from < end(); }
  /// No gaps between the rows.
  bool packed() const { return side_.packed(chunks_.shape()); }
  bool unsure() const { return unsure_; }
  bool of_no_file() const { return of_no_file_; }

  LaneClass lane_class() const { return fargpu::lane_class(chunks_.shape()); }
  std::uint64_t chunks() const { return chunks_.count(); }
  std::uint64_t bytes_of(std::uint64_t chunk) const { return chunks_.part(chunk).shape.bytes(); }
  /// Where a chunk lies; rows that are not packed lie there with gaps.
  std::span<std::byte> place_of(std::uint64_t chunk) const;
  /// The chunk's bytes behind each other, and back. False: some of the memory cannot be used.
  bool gather(std::uint64_t chunk, std::span<std::byte> into) const;
  bool scatter(std::uint64_t chunk, std::span<const std::byte> bytes) const;
  /// Some bytes of a row, at their address.
  bool write(std::uint64_t address, std::span<const std::byte> bytes) const;

 private:
  CopySide side_;
  RowChunks chunks_;
  bool unsure_, of_no_file_;
};

}  // namespace fargpu::client
