#pragma once
// Lists that a client sends, and how long they may be.

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "protocol/errors.h"
#include "protocol/limits.h"

namespace fargpu::server {

/// Number of elements of a list that a client sent; throws ProtocolError beyond what is allowed.
inline std::size_t list_size(std::uint64_t n) {
  if (n > limits::array_elements_max) throw ProtocolError("a list of " + std::to_string(n) + " elements");
  return static_cast<std::size_t>(n);
}

/// How many elements the list of a count has. The driver reads as many as the count says: one that no list can have is
/// none's.
template <class Number>
std::size_t list_elements(Number number) {
  const bool possible = static_cast<std::make_signed_t<Number>>(number) >= 0 &&
                        static_cast<std::uint64_t>(number) <= limits::array_elements_max;
  return possible ? static_cast<std::size_t>(number) : std::numeric_limits<std::size_t>::max();
}

}  // namespace fargpu::server
