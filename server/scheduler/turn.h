#pragma once
// What sessions are told of their turns, and what they say of themselves.

#include <chrono>
#include <cstdint>

namespace fargpu::scheduler {

/// Nanoseconds of a clock that only the caller knows. Nothing here reads one.
using Time = std::chrono::nanoseconds;
constexpr Time never = Time::max();

/// How much work is given ahead of what runs.
constexpr Time ahead_usual = std::chrono::milliseconds(2);
/// How much is given ahead where a lease of higher priority may come at any moment and should wait for one kernel only.
constexpr Time ahead_shallow = std::chrono::microseconds(200);

/// What a session may do. Until it hears otherwise, also when it has nothing to do for a while.
struct Turn {
  bool granted = false;      ///< it may give work to its devices
  bool quiet = false;        ///< and need not say what it does: nobody waits for its turns to end
  Time until = never;        ///< it gives none that would begin after this, and having none is the end of the turn
  Time ahead = never;        ///< how much work, as it expects, may be given before earlier work is complete
  std::uint64_t number = 0;  ///< of this word: what the session says after it names it
  bool operator==(const Turn& other) const {  // but for the number
    return granted == other.granted && quiet == other.quiet && until == other.until && ahead == other.ahead;
  }
};

/// What a session says of itself.
struct Activity {
  bool wants = false;  ///< it has work that it may not give to the devices
  bool busy = false;   ///< work that it gave them is not complete
  bool operator==(const Activity&) const = default;
};

}  // namespace fargpu::scheduler
