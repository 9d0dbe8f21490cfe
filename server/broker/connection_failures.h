#pragma once
// Connections that come to nothing, counted by where they come from, so that a flood costs the host little and its log
// less.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace fargpu::server {

/// Connections that were refused, cut off or never said anything, by source and minute. Used by the broker's one
/// thread.
class ConnectionFailures {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto period = std::chrono::minutes(1);
  static constexpr std::uint64_t told_max = 10;  ///< of a source and minute that have a line of their own
  static constexpr std::size_t sources_max = 4096;

  /// `most`: of one source in a minute; beyond that it is shut out for the rest of it.
  explicit ConnectionFailures(std::uint64_t most) : most_(most) {}

  enum class Told {
    alone,  ///< worth a line
    last,   ///< of its source for this minute
    not_any_more,
    shut_out  ///< the source, from now on
  };
  Told add(const std::string& source, Clock::time_point now);
  bool shut_out(const std::string& source, Clock::time_point now) const;

 private:
  struct Source {
    Clock::time_point since;
    std::uint64_t count = 0;
  };
  void forget(Clock::time_point now);

  const std::uint64_t most_;
  std::map<std::string, Source> sources_;
};

}  // namespace fargpu::server
