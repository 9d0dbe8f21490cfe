// Functions of the program: when they count as over, and what becomes of those that no stream gets to.

#include "client/stream/callbacks.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <vector>

using namespace fargpu::client;

namespace {

/// Nothing here may go while the thread runs, which is for ever.
struct Parts {
  std::atomic<unsigned> told{0};
  std::atomic<bool> waited{false};  // when the worker was told
  Callbacks callbacks{[] {},
                      [this](std::uint64_t) {
                        waited = callbacks.any_waiting();
                        ++told;
                      }};

  static Parts& make() { return *new Parts; }
  /// Returns when the thread has done what it has to do.
  void finish() {
    std::promise<void> done;
    callbacks.thread().run([&] { done.set_value(); });
    done.get_future().wait();
  }
};

}  // namespace

TEST_CASE("a function may still write until the worker has been told of its end") {
  Parts& parts = Parts::make();
  SECTION("one that runs here") {
    std::atomic<bool> ran{false};
    const auto number = parts.callbacks.add([&](CUresult) { ran = true; });
    CHECK(parts.callbacks.any_waiting());
    parts.callbacks.due(number, CUDA_SUCCESS);
    parts.finish();
    CHECK(ran);
  }
  SECTION("something else that work waits for") {
    bool reached = false;
    const auto number = parts.callbacks.open([&] { reached = true; });
    parts.callbacks.due(number, CUDA_SUCCESS);
    CHECK(reached);
    CHECK(parts.callbacks.any_waiting());
    parts.callbacks.close(number);
  }
  CHECK(parts.told == 1);
  CHECK(parts.waited);
  CHECK_FALSE(parts.callbacks.any_waiting());
}

TEST_CASE("of functions that are not called, those run that always do, with the error, and nobody is told") {
  Parts& parts = Parts::make();
  static std::vector<CUresult> heard;
  heard.clear();
  const auto hear = [](CUresult result) { heard.push_back(result); };
  const auto function = parts.callbacks.add(hear), callback = parts.callbacks.add(hear, /*always=*/true);
  SECTION("the worker skips them") {
    parts.callbacks.skip(function, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(parts.callbacks.any_waiting());
    parts.callbacks.skip(callback, CUDA_ERROR_ILLEGAL_ADDRESS);
    parts.callbacks.skip(callback, CUDA_ERROR_ILLEGAL_ADDRESS);
    parts.finish();
    CHECK(heard == std::vector{CUDA_ERROR_ILLEGAL_ADDRESS});
  }
  SECTION("the session is lost") {
    parts.callbacks.lost(CUDA_ERROR_DEVICE_UNAVAILABLE, /*tells=*/true);
    parts.finish();
    CHECK(heard == std::vector{CUDA_ERROR_DEVICE_UNAVAILABLE});
  }
  SECTION("the program leaves") {
    parts.callbacks.lost(CUDA_ERROR_DEVICE_UNAVAILABLE, /*tells=*/false);
    parts.finish();
    CHECK(heard.empty());
  }
  CHECK_FALSE(parts.callbacks.remove(callback));
  CHECK_FALSE(parts.callbacks.any_waiting());
  CHECK(parts.told == 0);
}
