#pragma once
// Text for people, put together where nothing may throw: where a thread ends, or what failed is told.

#include <exception>
#include <string>

namespace fargpu {

/// The parts, one behind the other; "out of memory" where there is none for them.
template <class... Parts>
std::string words(const Parts&... parts) noexcept {
  try {
    std::string text;
    ((text += parts), ...);
    return text;
  } catch (const std::exception&) {
    return "out of memory";  // so short that it needs none
  }
}

}  // namespace fargpu
