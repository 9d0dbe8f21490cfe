// How fast a line is, by what its connections took.

#include "protocol/line_rate.h"

#include <catch2/catch.hpp>

using namespace fargpu;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t chunk = 1u << 20;

}  // namespace

TEST_CASE("a line's rate is that of what had to wait") {
  LineRate line;
  CHECK_FALSE(line.bytes_per_second());
  for (int i = 0; i < 8; ++i) line.sent(chunk, 10us, false, 1);  // room of the kernel's
  CHECK_FALSE(line.bytes_per_second());
  for (int i = 0; i < 8; ++i) line.sent(chunk, 1ms, true, 2);
  REQUIRE(line.bytes_per_second());
  CHECK(*line.bytes_per_second() == Approx(2 * 1000.0 * chunk));
  for (int i = 0; i < 100; ++i) line.sent(chunk, 2ms, true, 2);
  CHECK(*line.bytes_per_second() == Approx(1000.0 * chunk).epsilon(0.01));
  for (int i = 0; i < 96; ++i) line.sent(chunk, 10us, false, 1);
  CHECK(*line.bytes_per_second() > 1e15);
  for (int i = 0; i < 8; ++i) line.sent(chunk, 1ms, true, 1);
  CHECK(*line.bytes_per_second() == Approx(1000.0 * chunk));
}

TEST_CASE("chunks that waited for a moment only do not make a line look fast") {
  LineRate line;
  for (int i = 0; i < 64; ++i) line.sent(chunk, i % 2 == 0 ? 10us : 2ms, true, 1);
  REQUIRE(line.bytes_per_second());
  CHECK(*line.bytes_per_second() < 1100.0 * chunk);
}

TEST_CASE("a few frames that the kernel has room for make no line faster") {
  LineRate line;
  for (int i = 0; i < 16; ++i) line.sent(chunk, 335us, true, 1);
  const double rate = line.bytes_per_second().value();
  const bool waited = GENERATE(false, true);  // for a moment
  for (int look = 0; look < 40; ++look) {
    for (int i = 0; i < 7; ++i) line.sent(chunk, 50us, waited, 4);
    CHECK(*line.bytes_per_second() == Approx(rate));
    line.sent(chunk, 335us, true, 1);
  }
  CHECK(*line.bytes_per_second() == Approx(rate));
}
