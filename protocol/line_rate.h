#pragma once
// How much a line carries, seen from its sending end.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace fargpu {

/// What one line carries for several connections. A frame that its connection took at once shows how much room the
/// kernel had, and so does one that waited for a moment only; one that waited longer shows how fast the line is. Used
/// under a lock.
class LineRate {
 public:
  /// Bytes a second. A line that is as fast counts as faster than what sends.
  static constexpr double fast_from = 4e9;

  /// A connection has sent so many bytes, in this time. `waited`: it did not take them at once. `senders`: so many
  /// connections were sending.
  void sent(std::uint64_t bytes, std::chrono::nanoseconds took, bool waited, unsigned senders) {
    const double seconds =
        std::chrono::duration<double>(took).count() / (static_cast<double>(bytes) * std::max(senders, 1u));
    if (!waited || took.count() <= 0 || seconds * fast_from <= 1) {
      at_once_ += bytes;
      if (at_once_ >= fast_after) fast_ = true;
      return;
    }
    at_once_ = 0;
    if (std::exchange(fast_, false)) samples_ = 0;
    // Times are averaged and not rates: a frame of which the kernel took much at once says little of the line.
    seconds_per_byte_ += (seconds - seconds_per_byte_) / std::min(samples_ + 1, samples_most);
    if (samples_ < samples_most) ++samples_;
  }
  /// Bytes a second, less than fast_from or infinite; nothing until enough was sent.
  std::optional<double> bytes_per_second() const {
    if (fast_) return std::numeric_limits<double>::infinity();
    return samples_ >= samples_least ? std::optional(1 / seconds_per_byte_) : std::nullopt;
  }

 private:
  /// A line that takes so much without a wait is faster than what sends.
  static constexpr std::uint64_t fast_after = 96u << 20;
  static constexpr unsigned samples_least = 8, samples_most = 16;

  double seconds_per_byte_ = 0;
  bool fast_ = false;
  unsigned samples_ = 0;
  std::uint64_t at_once_ = 0;
};

}  // namespace fargpu
