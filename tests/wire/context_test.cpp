// Contexts belong to threads' stacks in the client; the worker only hears of those that exist.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "client/call/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::Remote;
using test::RemoteContext;

TEST_CASE("a thread has a stack of contexts of its own, and switching costs nothing") {
  Remote remote;
  CUcontext primary = nullptr, made = nullptr, current = nullptr;
  CUdevice device = -1;
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
  CHECK(cuCtxGetDevice_v2(&device, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxPopCurrent_v2(&current) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&made, nullptr, 0, 1) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == made);
  CHECK(cuCtxGetDevice_v2(&device, nullptr) == CUDA_SUCCESS);
  CHECK(device == 1);
  CHECK(cuCtxPushCurrent_v2(primary) == CUDA_SUCCESS);
  CHECK(cuCtxGetDevice_v2(&device, nullptr) == CUDA_SUCCESS);
  CHECK(device == 0);
  CHECK(cuCtxPopCurrent_v2(&current) == CUDA_SUCCESS);
  CHECK(current == primary);
  std::thread([&] {
    CUcontext none = made;
    CHECK(cuCtxGetCurrent(&none) == CUDA_SUCCESS);
    CHECK(none == nullptr);
  }).join();
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == nullptr);
  CHECK(client::stats::round_trips() == before);
  CHECK(cuCtxPushCurrent_v2(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(made) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSetCurrent(made) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x1234)) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("threads that use a context while another one destroys it get an error") {
  Remote remote;
  for (int round = 0; round < 4; ++round) {
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    constexpr std::size_t bytes = 32 << 20;
    REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
    std::atomic<int> copied{0};
    const auto until_refused = [&](auto copy) {
      return std::async(std::launch::async, [&, copy] {
        std::vector<std::byte> mine(bytes);
        CUresult result = cuCtxSetCurrent(context);
        for (; result == CUDA_SUCCESS; ++copied) result = copy(mine.data());
        return result;
      });
    };
    auto out = until_refused([&](void* mine) { return cuMemcpyDtoH_v2(mine, memory, bytes); });
    auto in = until_refused([&](void* mine) { return cuMemcpyHtoD_v2(memory, mine, bytes); });
    auto both = until_refused([&](void* mine) {
      const CUresult bad = cuMemcpyHtoDAsync_v2(memory, mine, bytes, nullptr);
      return bad == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : bad;
    });
    while (copied < 3 + round) std::this_thread::yield();
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
    for (auto* copying : {&out, &in, &both}) {
      const CUresult result = copying->get();
      CAPTURE(result);
      CHECK((result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_HANDLE ||
             result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT));
    }
  }
}

TEST_CASE("a context is closed behind its own work, and not behind what its thread has yet to bring about") {
  RemoteContext remote;
  CUcontext other = nullptr;
  CUstream first = nullptr, second = nullptr;
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 4, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  auto& word = *static_cast<volatile std::uint32_t*>(pinned);
  word = 0;
  CUdeviceptr address = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&address, pinned, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(first, address, 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  REQUIRE(cuLaunchHostFunc(second, sleep, nullptr) == CUDA_SUCCESS);
  auto closes = std::async(std::launch::async, [&] { return cuCtxDestroy_v2(other); });
  CHECK(closes.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  word = 1;
  CHECK(closes.get() == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(first) == CUDA_SUCCESS);
}

TEST_CASE("a context without core dumps, which would be of the host") {
  RemoteContext remote;
  CUcontext context = nullptr;
  for (const unsigned flag : {CU_CTX_COREDUMP_ENABLE, CU_CTX_USER_COREDUMP_ENABLE}) {
    CHECK(cuCtxCreate_v4(&context, nullptr, flag, 0) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuCtxSetFlags(flag) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuDevicePrimaryCtxSetFlags_v2(0, flag) == CUDA_ERROR_NOT_SUPPORTED);
  }
  unsigned flags = 0;
  CHECK(cuCtxGetFlags(&flags) == CUDA_SUCCESS);
  CHECK(flags == CU_CTX_MAP_HOST);
}

TEST_CASE("memory operations wait for their end where the context or the memory says so") {
  RemoteContext remote;
  CUcontext context = remote.context;
  const bool by_context = GENERATE(true, false);
  if (by_context) REQUIRE(cuCtxCreate_v4(&context, nullptr, CU_CTX_SYNC_MEMOPS, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned on = 1;
  if (!by_context) REQUIRE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory) == CUDA_SUCCESS);
  const auto waits = [&](const std::function<CUresult()>& operation) {
    test::Paused paused;
    auto under_way = std::async(std::launch::async, [&] {
      CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
      return operation();
    });
    const bool waited = under_way.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout;
    paused.end();
    CHECK(under_way.get() == CUDA_SUCCESS);
    return waited;
  };
  CHECK(waits([&] { return cuMemsetD32_v2(memory, 5, 16); }));
  CHECK(waits([&] { return cuMemcpyDtoD_v2(memory, memory + 32, 32); }));
  CHECK(!waits([&] { return cuMemsetD32Async(memory, 5, 16, nullptr); }));
}

TEST_CASE("a reset of the primary context leaves its retains to be released") {
  Remote remote;
  CUcontext context = nullptr;
  const auto active = [] {
    unsigned flags = 0;
    int yes = 9;
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &yes) == CUDA_SUCCESS);
    return yes;
  };
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(active() == 0);
  SECTION("which are two") {
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  }
  SECTION("and count with the one that revives it") {
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(active() == 1);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(active() == 0);
  }
}

TEST_CASE("the primary context is counted, and what was made in it goes with it") {
  Remote remote;
  CUcontext first = nullptr, second = nullptr;
  unsigned flags = 9;
  int active = 9;
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  REQUIRE(cuDevicePrimaryCtxRetain(&first, 0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 0) == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
  REQUIRE(cuCtxSetCurrent(first) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  void* pinned = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 3u << 20) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&pinned, 100, 0) == CUDA_SUCCESS);
  CHECK(remote.driver->memory_bytes() > 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  // Memory goes behind the context, when the worker hears of it next.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (remote.driver->memory_bytes() != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK(remote.driver->memory_bytes() == 0);
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr none = 5;
  CHECK(cuMemAlloc_v2(&none, 100) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(none == 0);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 0) == CUDA_SUCCESS);
  CHECK(second == first);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc_v2(&memory, 100) == CUDA_SUCCESS);
}

TEST_CASE("copies of one context under way do not go with another one") {
  test::RemoteContext remote;
  CUdeviceptr memory = 0, elsewhere = 0;
  unsigned got = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(memory, 7, 1) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&elsewhere, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&got, elsewhere, 4) == CUDA_SUCCESS);  // the first copy: through memory of this context
  got = 0;
  test::Paused paused;
  auto copied = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuMemcpyDtoH_v2(&got, memory, 4);
  });
  CHECK(copied.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  paused.end();
  CHECK(copied.get() == CUDA_SUCCESS);
  CHECK(got == 7);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(&got, memory, 4) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(other) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a context that was destroyed stays what a thread has current, however many come after it") {
  test::RemoteContext remote;
  CUcontext first = nullptr, next = nullptr, current = nullptr;
  REQUIRE(cuCtxCreate_v4(&first, nullptr, 0, 0) == CUDA_SUCCESS);
  std::thread([&] {
    CHECK(cuCtxDestroy_v2(first) == CUDA_SUCCESS);
    for (int i = 0; i < 1100; ++i) {
      if (cuCtxCreate_v4(&next, nullptr, 0, 0) != CUDA_SUCCESS || cuCtxDestroy_v2(next) != CUDA_SUCCESS) {
        FAIL_CHECK("context " << i);
        break;
      }
    }
    CHECK(cuCtxCreate_v4(&next, nullptr, 0, 0) == CUDA_SUCCESS);
  }).join();
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == first);
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, 64) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("device questions are answered without asking") {
  Remote remote;
  const auto before = client::stats::round_trips();
  int count = 0, value = 0;
  char name[100] = {};
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 2);
  CHECK(cuDeviceGetName(name, 5, 1) == CUDA_SUCCESS);
  CHECK(std::string(name) == "Fake");
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) == CUDA_SUCCESS);
  CHECK(value == 9);
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 5) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0) == CUDA_ERROR_INVALID_VALUE);
  CUuuid first{}, second{};
  CHECK(cuDeviceGetUuid_v2(&first, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetUuid_v2(&second, 1) == CUDA_SUCCESS);
  CHECK(std::memcmp(&first, &second, sizeof(first)) != 0);
  CHECK(client::stats::round_trips() == before);
}
