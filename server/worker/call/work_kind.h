#pragma once
// Kinds of work: calls of one kind may be expected to take the GPU as long.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "call.h"
#include "operations.capnp.h"

namespace fargpu::server {

using WorkKind = std::uint64_t;

namespace work_kinds {

constexpr WorkKind unknown = 1;  ///< 0 stands for work that the GPU is not busy with

inline std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  return (seed ^ value) * 0x9e37'79b9'7f4a'7c15 + (seed >> 29);
}
inline std::uint64_t part(std::uint64_t value) { return value; }
/// Copies of about one size are alike.
inline std::uint64_t part(wire::Copy::Reader copy) {
  return std::bit_width(copy.getWidth() * copy.getHeight() * std::max<std::uint64_t>(1, copy.getDepth()));
}

}  // namespace work_kinds

/// The kind of a call, by what makes calls of its opcode alike.
template <class... Parts>
WorkKind work_kind(const Call& call, const Parts&... parts) {
  std::uint64_t kind = work_kinds::mix(0, call.id().opcode);
  ((kind = work_kinds::mix(kind, work_kinds::part(parts))), ...);
  return kind | 2;  // neither of the two that are not kinds of calls
}

}  // namespace fargpu::server
