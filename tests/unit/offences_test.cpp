// How much of a flood is told, and when its source is shut out.

#include "server/broker/offences.h"

#include <catch2/catch.hpp>

using namespace fargpu::server;
using namespace std::chrono_literals;

TEST_CASE("offences: a few are told, then no more, until the minute is over") {
  Offences offences(1000);
  const Offences::Clock::time_point begin{1h};
  std::uint64_t alone = 0, last = 0, silent = 0;
  for (int i = 0; i < 500; ++i) {
    switch (offences.add("10.0.0.1", begin + 10ms * i)) {
      case Offences::Told::alone: ++alone; break;
      case Offences::Told::last: ++last; break;
      case Offences::Told::not_any_more: ++silent; break;
      case Offences::Told::shut_out: FAIL("of 1000 only"); break;
    }
  }
  CHECK(alone == Offences::told_max - 1);
  CHECK(last == 1);
  CHECK(silent == 500 - Offences::told_max);
  CHECK(offences.add("10.0.0.2", begin + 1s) == Offences::Told::alone);
  CHECK(offences.add("10.0.0.1", begin + 61s) == Offences::Told::alone);
}

TEST_CASE("offences: who goes too far is shut out, once told, for the rest of the minute, and nobody else") {
  Offences offences(50);
  const Offences::Clock::time_point begin{1h};
  for (int i = 0; i < 49; ++i) CHECK(offences.add("10.0.0.1", begin) != Offences::Told::shut_out);
  CHECK_FALSE(offences.shut_out("10.0.0.1", begin));
  CHECK(offences.add("10.0.0.1", begin + 1s) == Offences::Told::shut_out);
  CHECK(offences.add("10.0.0.1", begin + 2s) == Offences::Told::not_any_more);
  CHECK(offences.shut_out("10.0.0.1", begin + 59s));
  CHECK_FALSE(offences.shut_out("10.0.0.2", begin + 59s));
  CHECK_FALSE(offences.shut_out("10.0.0.1", begin + 60s));
}

TEST_CASE("offences: any number of sources takes no more memory than so many") {
  Offences offences(2);
  const Offences::Clock::time_point begin{1h};
  for (std::size_t i = 0; i < 3 * Offences::sources_max; ++i) offences.add("source " + std::to_string(i), begin + 1us * i);
  CHECK(offences.add("source 0", begin + 1s) == Offences::Told::alone);  // forgotten
  offences.add("source 0", begin + 1s);
  CHECK(offences.shut_out("source 0", begin + 2s));
}
