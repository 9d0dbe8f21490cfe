#pragma once
// How much a line carries, seen from its sending end.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>

namespace fargpu {

/// Of several connections by one line. A frame that its connection took at once shows how much room the kernel had; one
/// that had to wait shows how fast the line is. Used under a lock.
class LineRate {
 public:
  /// A connection has sent so many bytes, in this time. `waited`: it did not take them at once. `senders`: so many
  /// connections were sending.
  void sent(std::uint64_t bytes, std::chrono::nanoseconds took, bool waited, unsigned senders) {
    if (!waited || took.count() <= 0) {
      at_once_ += bytes;
      if (at_once_ >= fast_after) rate_ = std::numeric_limits<double>::infinity();
      return;
    }
    at_once_ = 0;
    const double rate =
        static_cast<double>(bytes) * std::max(senders, 1u) / std::chrono::duration<double>(took).count();
    if (rate_ > std::numeric_limits<double>::max()) samples_ = 0;
    rate_ = samples_ == 0 ? rate : rate_ + (rate - rate_) / std::min(samples_ + 1, samples_most);
    if (samples_ < samples_most) ++samples_;
  }
  /// Bytes a second; nothing until enough was sent.
  std::optional<double> bytes_per_second() const {
    return samples_ >= samples_least || rate_ > std::numeric_limits<double>::max() ? std::optional(rate_)
                                                                                   : std::nullopt;
  }

 private:
  /// A line that takes so much without a wait is faster than what sends.
  static constexpr std::uint64_t fast_after = 96u << 20;
  static constexpr unsigned samples_least = 8, samples_most = 16;

  double rate_ = 0;
  unsigned samples_ = 0;
  std::uint64_t at_once_ = 0;
};

}  // namespace fargpu
