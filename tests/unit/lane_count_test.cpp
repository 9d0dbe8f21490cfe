// How many lanes a sender uses, on lines whose rate is known.

#include <catch2/catch.hpp>
#include <functional>

#include "protocol/lane_count.h"

namespace fargpu {
namespace {

using namespace std::chrono_literals;

/// Sends through lanes that together carry what `rate` says of their number.
class Line {
 public:
  Line(unsigned lanes, std::function<double(unsigned)> rate) : rate_(std::move(rate)) {
    for (unsigned i = 0; i < lanes; ++i) count.add();
  }
  void carry(std::uint64_t bytes, bool more = true) {
    constexpr std::uint64_t chunk = 1 << 20;
    for (; bytes >= chunk; bytes -= chunk) {
      now_ += std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(static_cast<double>(chunk) / rate_(count.in_use())));
      count.sent(chunk, more, now_);
    }
  }
  void rest(std::chrono::nanoseconds pause) { now_ += pause; }
  void becomes(std::function<double(unsigned)> rate) { rate_ = std::move(rate); }

  LaneCount count;

 private:
  std::function<double(unsigned)> rate_;
  LaneCount::Clock::time_point now_{};
};

constexpr std::uint64_t MiB = 1 << 20;
double of_a_10_gbit_line(unsigned) { return 1.25e9; }
double of_each_lane(unsigned lanes) { return 3.5e9 * lanes; }
double of_four_lanes(unsigned lanes) { return 3.5e9 * std::min(lanes, 4u); }

TEST_CASE("lane count: all lanes are used at first, and where each carries more", "[lane_count]") {
  Line line(8, of_each_lane);
  CHECK(line.count.in_use() == 8);
  line.carry(64 * 1024 * MiB);
  CHECK(line.count.in_use() == 8);
}

TEST_CASE("lane count: a line that one connection fills gets one, within the first half gigabyte", "[lane_count]") {
  Line line(8, of_a_10_gbit_line);
  line.carry(512 * MiB);
  CHECK(line.count.in_use() == 1);
}

TEST_CASE("lane count: as few as are as fast as all", "[lane_count]") {
  Line line(16, of_four_lanes);
  line.carry(2048 * MiB);
  CHECK(line.count.in_use() == 4);
}

TEST_CASE("lane count: a number that is no power of two is halved likewise", "[lane_count]") {
  Line line(7, of_a_10_gbit_line);
  line.carry(512 * MiB);
  CHECK(line.count.in_use() == 1);
}

TEST_CASE("lane count: more are used again where the line has become faster", "[lane_count]") {
  Line line(8, of_a_10_gbit_line);
  line.carry(512 * MiB);
  REQUIRE(line.count.in_use() == 1);
  line.becomes(of_each_lane);
  line.carry(64 * 1024 * MiB);
  CHECK(line.count.in_use() == 8);
}

TEST_CASE("lane count: copies of which nothing waits say nothing of the line", "[lane_count]") {
  Line line(8, of_a_10_gbit_line);
  line.carry(1024 * MiB, false);
  CHECK(line.count.in_use() == 8);
}

TEST_CASE("lane count: pauses between copies do not count as time of the line", "[lane_count]") {
  Line line(8, of_each_lane);
  for (int i = 0; i < 4000; ++i) {
    line.carry(15 * MiB);
    line.carry(MiB, false);
    line.rest(std::chrono::milliseconds(i % 7));
  }
  CHECK(line.count.in_use() == 8);
  line.becomes(of_a_10_gbit_line);
  for (int i = 0; i < 2000; ++i) {
    line.carry(15 * MiB);
    line.carry(MiB, false);
    line.rest(std::chrono::milliseconds(i % 7));
  }
  CHECK(line.count.in_use() == 1);
}

TEST_CASE("lane count: a fixed number is used whatever the line carries", "[lane_count]") {
  Line line(8, of_a_10_gbit_line);
  line.count.fix();
  line.carry(1024 * MiB);
  CHECK(line.count.in_use() == 8);
}

}  // namespace
}  // namespace fargpu
