#pragma once
// How many lanes a sender uses, found by measurement: a line of 10 Gbit/s is filled by one connection, the loopback and
// faster networks by several. Each lane in use costs a thread on both sides and processor time of the program's
// machine.

#include <chrono>
#include <cstdint>
#include <vector>

namespace fargpu {

/// One direction's. Begins with all lanes, so that short programs lose nothing, and halves the number for as long as
/// the line stays nearly as fast. Later it looks again, both ways, because lines and their other users change. Used
/// under a lock.
class LaneCount {
 public:
  using Clock = std::chrono::steady_clock;

  /// So many more lanes there are. The number in use begins anew with all of them.
  void add();
  /// As many as there are, always.
  void fix() { fixed_ = true; }

  unsigned all() const { return all_; }
  unsigned in_use() const { return all_ == 0 ? 0 : levels_[level_]; }

  /// A lane has sent so many bytes. `more`: others wait to be sent. What is measured is the rate while some wait.
  void sent(std::uint64_t bytes, bool more, Clock::time_point now);

 private:
  void measured(double rate);
  void begin_measurement();

  bool fixed_ = false;
  unsigned all_ = 0;
  std::vector<unsigned> levels_;   // numbers of lanes, from all of them down to one
  std::size_t level_ = 0;          // in use
  std::size_t best_ = 0;           // equal to level_ unless that is on trial
  double best_rate_ = 0;           // bytes a second
  std::uint64_t until_trial_ = 0;  // so many medians more
  bool fewer_next_ = true;         // which way the next trial goes, where both are possible
  std::vector<double> rates_;      // measurements of which the median will be taken
  // What is being measured.
  bool measuring_ = false;  // something has waited since since_
  Clock::time_point since_{};
  Clock::duration took_{0};
  std::uint64_t bytes_ = 0;
};

}  // namespace fargpu
