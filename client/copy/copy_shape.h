#pragma once
// What a copy moves, however the program said it: a shape of rows, and where it lies on each side.

#include <cuda.h>

#include <cstdint>

#include "operations.capnp.h"
#include "protocol/handle.h"

namespace fargpu::client {

class Thread;
struct Context;

/// Rows in memory, one after the other every `pitch` bytes and slices every `slice` bytes; or in an array, from byte x of row y of
/// slice z on.
struct Rows {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0;
  std::uint64_t slice = 0;
  bool known = false;  ///< named as device memory: an address that CUDA does not know is an error
  bool in_array = false;
  Handle array;
  std::uint64_t x = 0;
  std::uint64_t y = 0;
  std::uint64_t z = 0;

  /// The part that begins so many bytes, rows and slices further on.
  Rows from(std::uint64_t column, std::uint64_t row, std::uint64_t slice_number) const;
};

struct Copy {
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;
  Rows target;
  Rows source;
  Context* target_context = nullptr;  ///< of device memory or an array, where the program named it
  Context* source_context = nullptr;
  bool synchronous = false;
  /// When memory of the host is read.
  enum class SourceOrder {
    usual,   ///< pageable memory during the call, pinned memory when the stream gets there
    stream,  ///< when the stream gets there
    early,   ///< during the call
    any,     ///< whenever it suits
  };
  SourceOrder source_order = SourceOrder::usual;
  /// It need not be read when the stream gets there.
  bool out_of_order() const { return source_order == SourceOrder::early || source_order == SourceOrder::any; }

  bool empty() const { return width == 0 || height == 0 || depth == 0; }
  /// Bytes from the first to behind the last, on a side in memory.
  std::uint64_t extent(const Rows& rows) const { return (depth - 1) * rows.slice + (height - 1) * rows.pitch + width; }
  /// Rows that lie behind each other without gaps on both sides become one row.
  void flatten();
};

/// INVALID_VALUE for what the driver calls so: unknown kinds of memory, pitches and heights that are too small.
CUresult read_copy(const CUDA_MEMCPY2D& params, Copy& copy);
CUresult read_copy(const CUDA_MEMCPY3D& params, Copy& copy);
CUresult read_copy(const CUDA_MEMCPY3D_PEER& params, Copy& copy);  ///< but for the contexts

/// The context is where arrays are asked about.
CUresult read_copy(Thread& thread, Context& context, const CUDA_MEMCPY3D_BATCH_OP& params, Copy& copy);

/// Whether the arrays among the sides exist and hold what is copied. `context`: theirs, unless the copy names another.
CUresult check_arrays(Thread& thread, Context& context, const Copy& copy);

void write_side(const Rows& rows, wire::Side::Builder side);
void write_shape(std::uint64_t width, std::uint64_t height, std::uint64_t depth, wire::Shape::Builder shape);

}  // namespace fargpu::client
