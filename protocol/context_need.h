#pragma once
// What a call needs of its thread's current context. The spec says it for each call (`context`).

#include <cstdint>

namespace fargpu {

enum class ContextNeed : std::uint8_t {
  current,   ///< INVALID_CONTEXT without one; the worker wants a live one named
  none,      ///< the client names none, unless it acts in another context than the current one
  optional,  ///< the current one if there is one
};

}  // namespace fargpu
