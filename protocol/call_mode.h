#pragma once
// Whether the program waits for a call's answer. The spec says it for each call and operation (`mode`).

#include <cstdint>

namespace fargpu {

enum class CallMode : std::uint8_t {
  deferred,  ///< nobody waits: a failure comes back later
  barrier,   ///< the answer is awaited
  cached,    ///< as barrier, once: an equal call is answered from what is kept
  either,    ///< deferred or barrier, as the client decides from what it knows
};

constexpr bool may_defer(CallMode mode) { return mode == CallMode::deferred || mode == CallMode::either; }
constexpr bool may_wait(CallMode mode) { return mode == CallMode::barrier || mode == CallMode::either; }

}  // namespace fargpu
