// How much of a flood is told, and when its source is shut out.

#include "server/broker/connection_failures.h"

#include <catch2/catch.hpp>

using namespace fargpu::server;
using namespace std::chrono_literals;

TEST_CASE("failures: a few are told, then no more, until the minute is over") {
  ConnectionFailures failures(1000);
  const ConnectionFailures::Clock::time_point begin{1h};
  std::uint64_t alone = 0, last = 0, silent = 0;
  for (int i = 0; i < 500; ++i) {
    switch (failures.add("10.0.0.1", begin + 10ms * i)) {
      case ConnectionFailures::Told::alone: ++alone; break;
      case ConnectionFailures::Told::last: ++last; break;
      case ConnectionFailures::Told::not_any_more: ++silent; break;
      case ConnectionFailures::Told::shut_out: FAIL("of 1000 only"); break;
    }
  }
  CHECK(alone == ConnectionFailures::told_max - 1);
  CHECK(last == 1);
  CHECK(silent == 500 - ConnectionFailures::told_max);
  CHECK(failures.add("10.0.0.2", begin + 1s) == ConnectionFailures::Told::alone);
  CHECK(failures.add("10.0.0.1", begin + 61s) == ConnectionFailures::Told::alone);
}

TEST_CASE("failures: who goes too far is shut out, once told, for the rest of the minute, and nobody else") {
  ConnectionFailures failures(50);
  const ConnectionFailures::Clock::time_point begin{1h};
  for (int i = 0; i < 49; ++i) CHECK(failures.add("10.0.0.1", begin) != ConnectionFailures::Told::shut_out);
  CHECK_FALSE(failures.shut_out("10.0.0.1", begin));
  CHECK(failures.add("10.0.0.1", begin + 1s) == ConnectionFailures::Told::shut_out);
  CHECK(failures.add("10.0.0.1", begin + 2s) == ConnectionFailures::Told::not_any_more);
  CHECK(failures.shut_out("10.0.0.1", begin + 59s));
  CHECK_FALSE(failures.shut_out("10.0.0.2", begin + 59s));
  CHECK_FALSE(failures.shut_out("10.0.0.1", begin + 60s));
}

TEST_CASE("failures: any number of sources takes no more memory than so many") {
  ConnectionFailures failures(2);
  const ConnectionFailures::Clock::time_point begin{1h};
  for (std::size_t i = 0; i < 3 * ConnectionFailures::sources_max; ++i)
    failures.add("source " + std::to_string(i), begin + 1us * i);
  CHECK(failures.add("source 0", begin + 1s) == ConnectionFailures::Told::alone);  // forgotten
  failures.add("source 0", begin + 1s);
  CHECK(failures.shut_out("source 0", begin + 2s));
}
