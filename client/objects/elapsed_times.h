#pragma once
// Times between events. Programs that measure (Triton's autotuner, benchmarks) record hundreds of pairs of events, wait
// once, and then ask for the time of each pair: what they are about to ask for is asked along.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::client {

/// Threads: any.
class ElapsedTimes {
 public:
  /// A record of an event, by the call that made it.
  struct Record {
    std::uint64_t call = 0;
    Handle event;
  };
  struct Pair {
    Record start, end;
  };

  /// An event with timing was recorded.
  void recorded(const Record& record);
  /// The program asks for the time of a pair; what it is, if it is known. If not, `pairs` becomes this one and those
  /// that it asks for next if it goes on through its records as it did: none the first time.
  std::optional<float> ask(const Pair& pair, std::vector<Pair>& pairs);
  /// The times of such pairs, in place of those known before. Of one that is not known yet it is not a number.
  void learn(const std::vector<Pair>& pairs, const std::vector<float>& milliseconds);

 private:
  static constexpr std::size_t records_max = 8192;
  static constexpr std::size_t ahead_max = 256;

  std::optional<std::size_t> place_of(const Record& record) const;

  std::mutex mutex_;
  std::deque<Record> records_;  // the last ones, by their calls
  std::size_t forgotten_ = 0;   // records before them
  struct Places {
    std::size_t start, end;
  };
  std::optional<Places> asked_;                                     // last, counted from the first record ever
  std::map<std::pair<std::uint64_t, std::uint64_t>, float> known_;  // by the calls of both records
};

}  // namespace fargpu::client
