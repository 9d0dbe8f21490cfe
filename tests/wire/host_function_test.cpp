// Host functions run in the client, in the stream's order.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::Gate;
using test::RemoteContext;

TEST_CASE("a host function runs behind what was given before and ahead of what comes after") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  Gate gate;
  REQUIRE(cuMemsetD32Async(memory, 1, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 2, 1, stream) == CUDA_SUCCESS);
  gate.wait_entered();
  unsigned value = 0;
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  // The legacy stream does not wait for a non-blocking one.
  REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
  CHECK(value == 1);
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
  CHECK(value == 2);
}

TEST_CASE("an event behind a host function holds other streams that wait for it") {
  RemoteContext remote;
  CUstream first = nullptr, second = nullptr;
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(memory, 0, 1) == CUDA_SUCCESS);
  Gate gate;
  REQUIRE(cuLaunchHostFunc(first, Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 5, 1, second) == CUDA_SUCCESS);
  gate.wait_entered();
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  unsigned value = 7;
  REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
  CHECK(value == 0);
  gate.open();
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
  CHECK(value == 5);
}

TEST_CASE("the legacy stream waits for host functions of blocking streams") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  std::atomic<bool> ran{false};
  REQUIRE(cuLaunchHostFunc(
              stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(memory, 3, 1) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(ran);
}

TEST_CASE("functions of one stream and waits for events between them do not wait for the end of those before") {
  RemoteContext remote;
  CUstream stream = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  static std::atomic<int> ran{0};
  ran = 0;
  const CUhostFn count = [](void*) { ++ran; };
  const auto called = [&](const char* name) { return remote.driver->calls(name); };
  Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  const auto waits = called("cuStreamWaitEvent"), sets = called("cuMemsetD32Async");
  REQUIRE(cuMemsetD32Async(memory, 1, 1, other) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, other) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(stream, count, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 2, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(stream, count, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(called("cuStreamWaitEvent") == waits + 1);
  CHECK(called("cuMemsetD32Async") == sets + 1);
  CHECK(ran == 0);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(ran == 2);
  CHECK(called("cuMemsetD32Async") == sets + 2);
}

TEST_CASE("many host functions run in their order") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  static std::vector<int> order;
  order.clear();
  static int numbers[200];
  for (int i = 0; i < 200; ++i) {
    numbers[i] = i;
    REQUIRE(cuLaunchHostFunc(
                stream, [](void* number) { order.push_back(*static_cast<int*>(number)); }, &numbers[i]) ==
            CUDA_SUCCESS);
  }
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(order.size() == 200);
  for (int i = 0; i < 200; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("host functions may not call CUDA; stream callbacks hear of errors, host functions do not run then") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  static std::atomic<int> result{-1};
  REQUIRE(cuLaunchHostFunc(
              stream,
              [](void*) {
                CUdeviceptr memory = 0;
                result = cuMemAlloc_v2(&memory, 10);
              },
              nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(result == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cuLaunchHostFunc(stream, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamAddCallback(stream, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);

  static std::atomic<int> status{-1};
  static std::atomic<CUstream> told{nullptr};
  REQUIRE(cuStreamAddCallback(
              stream,
              [](CUstream which, CUresult outcome, void*) {
                status = outcome;
                told = which;
              },
              nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(status == CUDA_SUCCESS);
  CHECK(told == stream);
}

TEST_CASE("functions that the worker does not call are waited for no longer") {
  RemoteContext remote;
  const client::Callbacks& callbacks = remote.session().callbacks;
  static std::atomic<int> ran{0};
  ran = 0;
  const CUhostFn count = [](void*) { ++ran; };
  SECTION("on a stream that has failed") {
    CUmodule module = nullptr;
    CUfunction crash = nullptr;
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&crash, module, "crash") == CUDA_SUCCESS);
    REQUIRE(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuLaunchHostFunc(nullptr, count, nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  SECTION("on a stream that the driver has refused") {
    CUstream stream = nullptr;
    remote.driver->script("cuStreamCreate", CUDA_ERROR_NOT_PERMITTED, 1);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CUresult given = cuLaunchHostFunc(stream, count, nullptr);
    if (given == CUDA_ERROR_NOT_PERMITTED) given = cuLaunchHostFunc(stream, count, nullptr);  // that came first
    REQUIRE(given == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() != CUDA_SUCCESS);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (callbacks.any_waiting() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK_FALSE(callbacks.any_waiting());
  CHECK(ran == 0);
}

TEST_CASE("stream callbacks hear that the session is lost, and host functions do not run then") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  static std::atomic<int> ran, status;
  ran = 0;
  status = -1;
  Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 1, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(
              stream, [](void*) { ++ran; }, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamAddCallback(
              stream, [](CUstream, CUresult outcome, void*) { status = outcome; }, nullptr, 0) == CUDA_SUCCESS);
  gate.wait_entered();
  remote.cut();
  CHECK(cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE);
  gate.open();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (status == -1 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(status == CUDA_ERROR_DEVICE_UNAVAILABLE);
  CHECK(ran == 0);
  CHECK(cuStreamAddCallback(
            stream, [](CUstream, CUresult, void*) {}, nullptr, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a function that waits for the program's calls holds up none of them") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  for (unsigned i = 0; i < 100; ++i) {
    unsigned value = 0;
    REQUIRE(cuMemcpyHtoD_v2(memory, &i, 4) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
    CHECK(value == i);
  }
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("functions run while no thread makes a call, and while all do") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  std::atomic<unsigned> ran{0};
  std::atomic<bool> over{false};
  const auto launch = [&] {
    const unsigned before = ran;
    REQUIRE(cuLaunchHostFunc(
                stream, [](void* count) { ++*static_cast<std::atomic<unsigned>*>(count); }, &ran) == CUDA_SUCCESS);
    while (ran == before) std::this_thread::yield();
  };
  for (int i = 0; i < 100; ++i) launch();
  std::vector<std::thread> others;
  std::atomic<unsigned> wrong{0};
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      wrong += cuCtxSetCurrent(context) != CUDA_SUCCESS;
      for (unsigned value; !over;) wrong += cuMemcpyDtoH_v2(&value, memory, 4) != CUDA_SUCCESS;
    });
  for (int i = 0; i < 100; ++i) launch();
  over = true;
  for (std::thread& other : others) other.join();
  CHECK(wrong == 0);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}
