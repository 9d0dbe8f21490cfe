// Driver calls beside the executor.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "server/worker/call/blocking_calls.h"

using namespace fargpu;
using server::BlockingCalls;

TEST_CASE("whoever takes away what work aside may use waits for all of it, and its ends are still to be collected") {
  Waker waker;
  BlockingCalls aside(waker, [] {});
  aside.wait_for_all();       // for nothing
  constexpr int pieces = 20;  // more than there are threads
  std::atomic<int> worked{0};
  int done = 0;
  for (int i = 0; i < pieces; ++i) {
    aside.run(
        [&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          ++worked;
        },
        [&] { ++done; });
  }
  aside.wait_for_all();
  CHECK(worked == pieces);
  CHECK(done == 0);
  CHECK_FALSE(aside.idle());
  CHECK(aside.collect());
  CHECK(done == pieces);
  CHECK(aside.idle());
}

TEST_CASE("work aside that throws is waited for too") {
  Waker waker;
  BlockingCalls aside(waker, [] {});
  aside.run([] { throw std::bad_alloc(); }, [] {});
  aside.wait_for_all();
  CHECK_THROWS_AS(aside.collect(), std::bad_alloc);
}
