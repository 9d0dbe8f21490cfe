// Work waits for the session's turn; nothing else does.

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "fixture.h"

using namespace fargpu;
using namespace std::chrono_literals;
using scheduler::Activity;
using scheduler::never;
using scheduler::Turn;

namespace {

constexpr Turn always{.granted = true, .quiet = true};
constexpr Turn open{.granted = true};
constexpr Turn closed{};

scheduler::Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

/// A session of which the first launch, whose answer is waited for, is over.
struct Shared {
  Shared() {
    turns.tell(always);
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(memory, 0, 4096) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(launch(a, 0, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CUresult launch(CUstream stream, unsigned place, unsigned value) {
    CUdeviceptr address = memory + 4 * place;
    unsigned count = 1;
    void* arguments[] = {&address, &count, &value};
    return cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
  }
  // Everything that was sent before is at the worker, and what could be executed is.
  void arrived() { remote.hear_out(); }
  unsigned word(unsigned place) {
    unsigned value = 0;
    REQUIRE(cuMemcpyDtoH_v2(&value, memory + 4 * place, 4) == CUDA_SUCCESS);
    return value;
  }
  // Gives the turn once it is asked for; whether it was. Assertions are for one thread.
  std::future<bool> opened_when_wanted() {
    return std::async(std::launch::async, [this] {
      const bool wanted = turns.heard({.wants = true});
      turns.tell(always);
      return wanted;
    });
  }
  std::size_t launches() { return remote.driver->calls("cuLaunchKernel"); }

  test::Turnstile turns;
  test::RemoteContext remote{test::Remote::default_config(), {}, &turns};
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUdeviceptr memory = 0;
  CUstream a = nullptr, b = nullptr;
};

}  // namespace

TEST_CASE("turns: a session that must ask is answered about everything but work before it has heard") {
  test::Turnstile turns;
  test::RemoteContext remote(test::Remote::default_config(), {}, &turns);
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 7, 4096, stream) == CUDA_SUCCESS);
  CHECK(turns.heard({.wants = true}));
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  turns.tell(always);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("turns: under a quiet one nothing is said") {
  Shared shared;
  const std::size_t before = shared.turns.words();
  for (unsigned i = 0; i < 100; ++i) REQUIRE(shared.launch(shared.a, i, i) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(shared.turns.words() == before);
}

TEST_CASE("turns: work waits in its order, with what is behind it on its stream; the rest goes on") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  const std::size_t before = shared.launches();
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  for (unsigned value = 2; value < 50; ++value) REQUIRE(shared.launch(shared.a, 0, value) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, shared.a) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(shared.b, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync_v2(shared.memory + 4, shared.memory, 4, shared.b) == CUDA_SUCCESS);
  shared.arrived();  // memory needs no turn
  CHECK(shared.turns.heard({.wants = true}));
  CHECK(shared.launches() == before);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(shared.b) == CUDA_ERROR_NOT_READY);
  shared.turns.tell(always);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(shared.launches() == before + 48);
  CHECK(shared.word(0) == 49);
  CHECK(shared.word(1) == 49);
}

TEST_CASE("turns: a time that was not taken yet is not an earlier one") {
  Shared shared;
  CUevent first = nullptr, second = nullptr;
  REQUIRE(cuEventCreate(&first, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&second, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(first, shared.a) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(second, shared.a) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  float milliseconds = 0;
  REQUIRE(cuEventElapsedTime_v2(&milliseconds, first, second) == CUDA_SUCCESS);
  shared.turns.tell(closed);
  shared.arrived();
  REQUIRE(shared.launch(shared.a, 0, 1) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(second, shared.a) == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime_v2(&milliseconds, first, second) == CUDA_ERROR_NOT_READY);
  CHECK(cuEventElapsedTime_v2(&milliseconds, second, first) == CUDA_ERROR_NOT_READY);
  shared.turns.tell(always);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime_v2(&milliseconds, first, second) == CUDA_SUCCESS);
}

TEST_CASE("turns: what has nothing to do says so once, and asks again") {
  Shared shared;
  shared.turns.tell(closed);
  CHECK(shared.turns.heard({}));
  REQUIRE(shared.launch(shared.a, 0, 5) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(shared.a) == CUDA_ERROR_NOT_READY);  // flushes
  CHECK(shared.turns.heard({.wants = true}));
  shared.turns.tell({.granted = true, .until = now() + 20s, .ahead = 1ms});
  REQUIRE(cuStreamSynchronize(shared.a) == CUDA_SUCCESS);
  CHECK(shared.turns.heard({}));
  // Having nothing to do was the end of that turn.
  REQUIRE(shared.launch(shared.a, 0, 6) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(shared.a) == CUDA_ERROR_NOT_READY);
  CHECK(shared.turns.heard({.wants = true}));
  shared.turns.tell(always);
}

TEST_CASE("turns: one without an end stays when there is nothing to do") {
  Shared shared;
  shared.turns.tell(open);
  CHECK(shared.turns.heard({}));
  REQUIRE(shared.launch(shared.a, 0, 5) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(shared.a) == CUDA_SUCCESS);
  CHECK(shared.word(0) == 5);
}

TEST_CASE("turns: a turn that is over by the clock is over") {
  Shared shared;
  shared.turns.tell({.granted = true, .until = now() - 1ms});
  CHECK(shared.turns.heard({}));
  REQUIRE(shared.launch(shared.a, 0, 5) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(shared.a) == CUDA_ERROR_NOT_READY);
  CHECK(shared.turns.heard({.wants = true}));
  shared.turns.tell(always);
  CHECK(shared.word(0) == 5);
}

TEST_CASE("turns: no more is given ahead than the turn allows, but all of it in the end") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  shared.remote.driver->pause(true);
  const std::size_t before = shared.launches();
  for (unsigned i = 0; i < 200; ++i) REQUIRE(shared.launch(shared.a, i, i) == CUDA_SUCCESS);
  shared.arrived();
  shared.turns.tell({.granted = true, .ahead = 200us});
  CHECK(shared.turns.heard({.busy = true}));
  CHECK(shared.launches() < before + 20);
  shared.remote.driver->pause(false);
  REQUIRE(cuStreamSynchronize(shared.a) == CUDA_SUCCESS);
  CHECK(shared.launches() == before + 200);
  CHECK(shared.word(199) == 199);
}

TEST_CASE("turns: what a capture takes up needs none; its graph does") {
  Shared shared;
  shared.turns.tell(closed);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(shared.a, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(shared.launch(shared.a, 0, 77) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(shared.a, &graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, shared.a) == CUDA_SUCCESS);
  shared.arrived();
  CHECK(shared.turns.heard({.wants = true}));
  CHECK(shared.remote.driver->calls("cuGraphLaunch") == 0);
  shared.turns.tell(always);
  REQUIRE(cuStreamSynchronize(shared.a) == CUDA_SUCCESS);
  CHECK(shared.remote.driver->calls("cuGraphLaunch") == 1);
}

TEST_CASE("turns: a capture begins behind what its stream must wait for") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  const unsigned value = 5;
  SECTION("a copy on the legacy stream") { REQUIRE(cuMemcpyHtoD_v2(shared.memory, &value, 4) == CUDA_SUCCESS); }
  SECTION("a launch on the legacy stream") { REQUIRE(shared.launch(nullptr, 0, 5) == CUDA_SUCCESS); }
  SECTION("a launch on the stream") { REQUIRE(shared.launch(stream, 0, 5) == CUDA_SUCCESS); }
  CHECK(shared.turns.heard({.wants = true}));
  auto begun = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(50ms);
    const std::size_t before = shared.remote.driver->calls("cuStreamBeginCapture_v2");
    shared.turns.tell(always);
    return before;
  });
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(begun.get() == 0);
  REQUIRE(shared.launch(stream, 1, 6) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  std::size_t nodes = 0;
  REQUIRE(cuGraphGetNodes(graph, nullptr, &nodes) == CUDA_SUCCESS);
  CHECK(nodes == 1);
  CHECK(shared.word(0) == 5);
  CHECK(shared.word(1) == 0);
}

TEST_CASE("turns: a stream joins a capture behind what it was given before") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  CUevent fork = nullptr;
  REQUIRE(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  const std::size_t launched = shared.launches(), waits = shared.remote.driver->calls("cuStreamWaitEvent");
  REQUIRE(shared.launch(shared.b, 0, 5) == CUDA_SUCCESS);
  CHECK(shared.turns.heard({.wants = true}));
  std::jthread opener([&] {
    std::this_thread::sleep_for(50ms);
    shared.turns.tell(always);
  });
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(shared.a, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(fork, shared.a) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(shared.b, fork, 0) == CUDA_SUCCESS);
  CHECK(shared.launches() == launched + 1);
  CHECK(shared.remote.driver->calls("cuStreamWaitEvent") > waits);
  CHECK(cuStreamEndCapture(shared.a, &graph) == CUDA_SUCCESS);
}

TEST_CASE("turns: a stream that is destroyed takes its waiting work along, done") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  REQUIRE(shared.launch(shared.a, 0, 9) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(shared.a) == CUDA_SUCCESS);
  auto opened = shared.opened_when_wanted();
  REQUIRE(cuCtxSetCurrent(shared.remote.context) == CUDA_SUCCESS);
  CHECK(shared.word(0) == 9);
  CHECK(opened.get());
}

TEST_CASE("turns: a copy to the program waits too, and brings what was waited for") {
  Shared shared;
  shared.turns.tell(closed);
  shared.arrived();
  REQUIRE(shared.launch(shared.a, 0, 31) == CUDA_SUCCESS);
  auto opened = shared.opened_when_wanted();
  unsigned value = 0;
  REQUIRE(cuMemcpyDtoHAsync_v2(&value, shared.memory, 4, shared.a) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(shared.a) == CUDA_SUCCESS);
  CHECK(value == 31);
  CHECK(opened.get());
}

TEST_CASE("turns: a session of which nothing completes is given up") {
  test::RemoteContext remote(test::Remote::default_config(), {}, nullptr, 300ms);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 0, 4096) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 0, 4096, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE);
  remote.driver->pause(false);
}
