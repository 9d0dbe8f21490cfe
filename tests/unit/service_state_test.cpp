// Which states a host goes through as it is drained, resumed and stopped.

#include <catch2/catch.hpp>

#include "server/broker/service_state.h"

using fargpu::server::ServiceState;
using State = ServiceState::State;
using std::chrono::seconds;

namespace {
const ServiceState::Time start{seconds(1'800'000'000)};
}

TEST_CASE("a host serves until it is drained, and again when it is resumed") {
  ServiceState state;
  CHECK(state.at(start) == State::serving);
  CHECK(state.refusal(start).empty());
  CHECK(state.drain(start, std::nullopt).empty());
  CHECK(state.at(start) == State::draining);
  CHECK_FALSE(state.until(start));
  CHECK(state.at(start + std::chrono::hours(100'000)) == State::draining);
  CHECK(state.refusal(start).find("drained by its administrator and takes") != std::string::npos);
  CHECK(state.resume(start).empty());
  CHECK(state.serves(start));
  CHECK(state.resume(start) == "this host serves new sessions already");
}

TEST_CASE("a drain with a time ends by itself") {
  ServiceState state;
  REQUIRE(state.drain(start, seconds(60)).empty());
  CHECK(state.until(start) == start + seconds(60));
  CHECK(state.at(start + seconds(59)) == State::draining);
  CHECK(state.refusal(start).find("until 2027-01-15T08:01:00Z") != std::string::npos);
  CHECK(state.at(start + seconds(60)) == State::serving);
  CHECK_FALSE(state.until(start + seconds(60)));
  CHECK(state.refusal(start + seconds(60)).empty());
  CHECK(state.resume(start + seconds(60)) == "this host serves new sessions already");
}

TEST_CASE("draining again changes the time") {
  ServiceState state;
  REQUIRE(state.drain(start, seconds(60)).empty());
  REQUIRE(state.drain(start + seconds(30), seconds(10)).empty());
  CHECK(state.until(start + seconds(30)) == start + seconds(40));
  REQUIRE(state.drain(start + seconds(35), std::nullopt).empty());
  CHECK_FALSE(state.until(start + seconds(35)));
  CHECK(state.at(start + seconds(100)) == State::draining);
}

TEST_CASE("times that make no sense change nothing") {
  ServiceState state;
  CHECK_FALSE(state.drain(start, seconds(0)).empty());
  CHECK_FALSE(state.drain(start, seconds(-1)).empty());
  CHECK_FALSE(state.drain(start, ServiceState::drain_max + seconds(1)).empty());
  CHECK(state.serves(start));
}

TEST_CASE("a host that stops does nothing else any more") {
  for (const bool drained : {false, true}) {
    ServiceState state;
    if (drained) REQUIRE(state.drain(start, seconds(5)).empty());
    state.stop(start + seconds(30));
    CHECK(state.at(start) == State::stopping);
    CHECK(state.until(start) == start + seconds(30));
    CHECK(state.refusal(start) == "this host is shutting down");
    CHECK_FALSE(state.drain(start, std::nullopt).empty());
    CHECK_FALSE(state.resume(start).empty());
    CHECK(state.at(start + std::chrono::hours(1)) == State::stopping);
  }
}
