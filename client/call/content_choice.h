#pragma once
// Which chunks of large copies are named instead of sent, and which the host is to keep: where that gains time.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "client/base/content_cache.h"

namespace fargpu::client {

/// It expects of a chunk what it has heard of those before. What is known has mostly been sent in one piece, and so has
/// what is not: where the host knows nothing of some chunks in a row, the next ones are sent at once, and nothing waits
/// for an answer. Used under a lock.
class ContentChoice {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Way {
    plain,  ///< it is sent, and that is all
    kept,   ///< it is sent, and the host is to keep it
    asked,  ///< the same, and the host is asked whether it knew it
    named,  ///< it is named, and sent only if the host does not know it
  };

  /// `threads` hash at a time.
  ContentChoice(const ContentTerms& terms, unsigned threads) : terms_(terms), threads_(threads) {
    if (terms_.bytes_max == 0) terms_.cache = ContentCache::never;
    allowance_ = terms_.bytes_max;
  }

  /// Of the next chunk. `line_rate`: bytes a second, where that is known.
  Way next(std::uint64_t bytes, std::optional<double> line_rate, Clock::time_point now);
  /// What the host says of a chunk that went this way, and of which it was told at `said`.
  void answered(Way way, bool known, std::uint64_t bytes, Clock::time_point said, Clock::time_point now);
  /// So long one thread took to hash so many bytes.
  void hashed(std::uint64_t bytes, Clock::duration took);

  bool never() const { return terms_.cache == ContentCache::never; }
  bool always() const { return terms_.cache == ContentCache::always; }

 private:
  bool gains(std::uint64_t bytes, std::optional<double> line_rate);
  bool host_keeps_up(std::uint64_t bytes, double line_rate);
  void measure_host(std::uint64_t bytes, Clock::time_point said, Clock::time_point now);
  bool rests(std::uint64_t bytes, Clock::time_point now);
  bool looks_again();

  ContentTerms terms_;
  const unsigned threads_;
  bool expects_known_ = true;
  unsigned unknown_in_row_ = 0;
  unsigned turn_ = 0;  // of those that are not named, some are asked about
  double hash_seconds_per_byte_ = 0;
  std::uint64_t too_fast_bytes_ = 0;  // that the line took since hashing was last measured
  unsigned named_in_row_ = 0;
  // How fast the host brings what it knows, from its disk perhaps.
  double host_seconds_per_byte_ = 0;
  unsigned host_answers_ = 0;  // that this is the average of
  Clock::time_point last_answer_{};
  Clock::duration quickest_ = Clock::duration::max();  // of all answers: what the line takes for them
  bool host_slow_ = false;
  std::uint64_t host_slow_bytes_ = 0, host_look_after_ = measured_again_after;  // that are sent before the next look
  unsigned host_look_ = 0;                                                      // chunks that are left of this one
  // What the host did not know, since it knew enough: then it rests for ever longer.
  std::uint64_t missed_ = 0;
  std::uint64_t allowance_;
  Clock::duration missing_for_{0};
  Clock::time_point last_{};
  std::uint64_t resting_ = 0;  // for so many bytes more
  std::uint64_t rest_next_ = rest_first;

  static constexpr std::uint64_t rest_first = 256u << 20, measured_again_after = 1u << 30;
};

}  // namespace fargpu::client
