#pragma once
// The sides of a copy as they come from the client: checked, then given to the driver.

#include <cuda.h>

#include <cstdint>

#include "operations.capnp.h"

namespace fargpu::server {

class Session;

/// `depth` slices of `height` rows of `width` bytes.
struct Shape {
  std::uint64_t width = 0;
  std::uint64_t height = 0;
  std::uint64_t depth = 0;

  Shape() = default;
  Shape(std::uint64_t width, std::uint64_t height, std::uint64_t depth) : width(width), height(height), depth(depth) {}
  explicit Shape(wire::Shape::Reader in) : Shape(in.getWidth(), in.getHeight(), in.getDepth()) {}
};

/// Where a shape lies in device memory, or in an array from byte x of row y of slice z on.
struct Side {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0;
  std::uint64_t slice = 0;
  std::uint64_t handle = 0;  ///< of the array
  CUarray array = nullptr;
  std::uint64_t x = 0;
  std::uint64_t y = 0;
  std::uint64_t z = 0;

  /// The part that begins so many bytes and rows further on.
  Side from(std::uint64_t column, std::uint64_t row) const;
  /// Whether the array, if it is one, is still there: for copies that had to wait.
  bool alive(Session& session) const;
};

/// What the client says of a side, and whether the session may copy such a shape there.
CUresult read_side(Session& session, wire::Side::Reader in, const Shape& shape, Side& side);

/// A copy of the shape, whose sides are put into it. On the host rows are packed.
CUDA_MEMCPY3D copy_of(const Shape& shape);
void put_source(const Side& side, CUDA_MEMCPY3D& copy);
void put_target(const Side& side, CUDA_MEMCPY3D& copy);
void put_packed_source(const void* host, CUDA_MEMCPY3D& copy);
void put_packed_target(void* host, CUDA_MEMCPY3D& copy);

}  // namespace fargpu::server
