// Streams, events, and errors that come late.

#include <atomic>
#include <chrono>
#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "client/call/stats.h"
#include "fixture.h"
#include "protocol/limits.h"
#include "tests/fake_driver/faults.h"

using namespace fargpu;
using test::Remote;
using test::RemoteContext;

namespace {

CUstream new_stream(unsigned flags = CU_STREAM_DEFAULT) {
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
  return stream;
}

CUevent new_event(unsigned flags = CU_EVENT_DEFAULT) {
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, flags) == CUDA_SUCCESS);
  return event;
}

CUfunction crashing_kernel() {
  CUmodule module = nullptr;
  CUfunction crash = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&crash, module, "crash") == CUDA_SUCCESS);
  return crash;
}

CUdeviceptr new_memory(std::size_t bytes = 4096) {
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  return memory;
}

}  // namespace

TEST_CASE("creating streams and events and giving them work costs no round trip") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const auto before = client::stats::round_trips();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  CHECK(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy_v2(new_stream()) == CUDA_SUCCESS);
  CHECK(cuEventDestroy_v2(new_event()) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before + 1);
  CHECK(remote.driver->calls("cuMemsetD8Async") == 1);
}

TEST_CASE("what is known to be done is not asked for again") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);
  REQUIRE(cuMemsetD8Async(memory, 2, 100, stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);  // the fake GPU is done at once, but that has to be asked
  CHECK(client::stats::round_trips() == before + 1);
}

TEST_CASE("queries tell of work that is not done") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  remote.driver->pause(false);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

// Polls until the answer is another one.
static CUresult poll(CUevent event) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  CUresult result = CUDA_ERROR_NOT_READY;
  while (result == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < end) result = cuEventQuery(event);
  return result;
}

TEST_CASE("a program that polls an event waits for one answer, and none about later records") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  for (int i = 0; i < 100; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(client::stats::round_trips() == before + 1);
  REQUIRE(cuMemsetD8Async(memory, 2, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(client::stats::round_trips() == before + 1);
  remote.driver->pause(false);
  CHECK(poll(event) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before + 1);
  const auto asked = [] { return client::stats::of(Opcode::watchEvent).sent.load(); };
  const auto asked_before = asked();
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(asked() == asked_before + 1);  // the program has not asked about the first of them
  CHECK(poll(event) == CUDA_SUCCESS);
}

TEST_CASE("the bytes of a copy are there when a polled event says so, again and again") {
  RemoteContext remote;
  constexpr std::size_t bytes = 4096;
  const CUdeviceptr memory = new_memory(bytes);
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  void* host = nullptr;
  REQUIRE(cuMemAllocHost_v2(&host, bytes) == CUDA_SUCCESS);
  const auto* const seen = static_cast<const unsigned char*>(host);
  for (unsigned i = 1; i < 100; ++i) {
    REQUIRE(cuMemsetD8Async(memory, static_cast<unsigned char>(i), bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(host, memory, bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    REQUIRE(poll(event) == CUDA_SUCCESS);
    REQUIRE((seen[0] == i && seen[bytes - 1] == i));
  }
}

TEST_CASE("a polled event may be recorded in a capture before its last record has happened") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream(), captured = new_stream();
  const CUevent event = new_event();
  const bool held = GENERATE(false, true);
  test::Gate gate;
  {
    const test::Paused paused;
    REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    if (held) {
      REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
    }
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, captured) == CUDA_SUCCESS);
    remote.hear_out();
  }
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  remote.hear_out();
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(poll(event) == CUDA_SUCCESS);
}

TEST_CASE("a program that polls an event which the host could not make hears of that, and does not poll for ever") {
  RemoteContext remote;
  const CUstream stream = new_stream();
  remote.hear_out();
  CUevent event = nullptr;
  fake::fail_call(1, CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  remote.hear_out();
  REQUIRE(std::string(fake::failed_call()) == "cuEventCreate");
  fake::fail_call(0, CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(poll(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(poll(event) == CUDA_ERROR_INVALID_HANDLE);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);  // with a query behind it, which is refused too
    remote.hear_out();
    CHECK(poll(event) == CUDA_ERROR_INVALID_HANDLE);  // of the record
    CHECK(poll(event) == CUDA_ERROR_INVALID_HANDLE);
  }
  const CUevent other = new_event();
  REQUIRE(cuEventRecord(other, stream) == CUDA_SUCCESS);
  CHECK(poll(other) == CUDA_SUCCESS);
}

TEST_CASE("a polled event that is recorded again tells of the failure of its work") {
  RemoteContext remote;
  const CUfunction crash = crashing_kernel();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(new_memory(), 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  remote.driver->pause(false);
  CHECK(poll(event) == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(poll(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a polled event that is recorded again is not taken for done when its first record is") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  remote.driver->pause(false);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  remote.hear_out();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 2, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 10; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  remote.driver->pause(false);
  CHECK(poll(event) == CUDA_SUCCESS);
}

TEST_CASE("a program that polls an event hears of a record that is held back") {
  RemoteContext remote;
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  test::Gate first, second;
  REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &first) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  first.wait_entered();
  for (int i = 0; i < 10; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  SECTION("once") {
    first.open();
    CHECK(poll(event) == CUDA_SUCCESS);
  }
  SECTION("again, while the first record is held back") {
    REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &second) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    first.open();
    second.wait_entered();
    for (int i = 0; i < 10; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    second.open();
    CHECK(poll(event) == CUDA_SUCCESS);
  }
  SECTION("and is destroyed meanwhile") {
    CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
    first.open();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    remote.hear_out();
  }
}

TEST_CASE("a polled event may be destroyed before it happens") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  remote.driver->pause(false);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  remote.hear_out();
  CHECK(remote.driver->calls("cuEventDestroy_v2") >= 1);
}

TEST_CASE("what is destroyed is gone, also where the call tells of an earlier failure") {
  RemoteContext remote;
  const auto fail_earlier = [] {
    client::Thread::deliver_error(client::Thread::current().id(), CUDA_ERROR_INVALID_VALUE, "a test");
  };
  const CUevent event = new_event();
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = shape.Height = 4;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  REQUIRE(cuArrayCreate_v2(&array, &shape) == CUDA_SUCCESS);
  remote.hear_out();
  const auto done = [&](const char* call) { return remote.driver->calls(call); };
  const auto graphs = done("cuGraphDestroy"), arrays = done("cuArrayDestroy");
  fail_earlier();
  CHECK(cuEventDestroy_v2(event) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  fail_earlier();
  CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
  fail_earlier();
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
  remote.hear_out();
  CHECK(done("cuGraphDestroy") == graphs + 1);
  CHECK(done("cuArrayDestroy") == arrays + 1);
}

TEST_CASE("waits end when the GPU is done, and other threads are served meanwhile") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  std::atomic<bool> waited{false};
  std::thread waiter([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    waited = true;
  });
  for (int i = 0; i < 20; ++i) {
    std::size_t free = 0, total = 0;
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  }
  CHECK(!waited);
  remote.driver->pause(false);
  waiter.join();
  CHECK(waited);
}

TEST_CASE("what a destroyed stream was given is waited for") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  std::vector<std::future<CUresult>> waiting;
  test::Paused paused;
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  const auto in_context = [&](auto call) {
    return std::async(std::launch::async, [&remote, call] {
      const CUresult bad = cuCtxSetCurrent(remote.context);
      return bad != CUDA_SUCCESS ? bad : call();
    });
  };
  // Maybe from before its end, maybe not.
  waiting.push_back(in_context([stream] { return cuStreamSynchronize(stream); }));
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  waiting.push_back(in_context([] { return cuCtxSynchronize(); }));
  CHECK(waiting[1].wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  CHECK(remote.driver->calls("cuStreamDestroy_v2") == 0);
  // Nor is memory used again that its work may use.
  REQUIRE(cuMemFree_v2(memory) == CUDA_SUCCESS);
  for (int i = 0; i < 20; ++i) remote.hear_out();
  CHECK(new_memory() != memory);
  paused.end();
  CHECK(waiting[1].get() == CUDA_SUCCESS);
  const CUresult of_stream = waiting[0].get();
  CHECK((of_stream == CUDA_SUCCESS || of_stream == CUDA_ERROR_INVALID_HANDLE));
  for (int i = 0; i < 1000 && remote.driver->calls("cuStreamDestroy_v2") == 0; ++i) remote.hear_out();
  CHECK(remote.driver->calls("cuStreamDestroy_v2") == 1);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a context goes with streams that were destroyed before their work was done") {
  RemoteContext remote;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  remote.driver->pause(false);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a context is closed whatever an earlier call has to say") {
  RemoteContext remote;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr memory = new_memory();
  remote.driver->script("cuMemsetD8Async", CUDA_ERROR_INVALID_VALUE, 1);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, nullptr) == CUDA_SUCCESS);
  remote.hear_out();
  CHECK(cuCtxDestroy_v2(context) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuCtxDestroy_v2") == 1);
}

TEST_CASE("events: an unrecorded one is complete, times need two records, destroyed ones are unknown") {
  RemoteContext remote;
  const CUevent begin = new_event(), end = new_event();
  CHECK(cuEventQuery(begin) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(begin) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(begin, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(end, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventSynchronize(end) == CUDA_SUCCESS);
  float milliseconds = 0;
  CHECK(cuEventElapsedTime_v2(&milliseconds, begin, end) == CUDA_SUCCESS);
  CHECK(milliseconds == 1.5F);
  CHECK(cuEventElapsedTime_v2(nullptr, begin, end) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventDestroy_v2(begin) == CUDA_SUCCESS);
  CHECK(cuEventDestroy_v2(begin) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(begin, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventQuery(begin) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamWaitEvent(nullptr, begin, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("times of many pairs of events are asked for together") {
  RemoteContext remote;
  constexpr std::size_t pairs = 300;
  std::vector<std::pair<CUevent, CUevent>> events(pairs);
  for (auto& [begin, end] : events) {
    REQUIRE(cuEventCreate(&begin, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
    REQUIRE(cuEventCreate(&end, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  }
  const auto record = [&](std::size_t i) {
    REQUIRE(cuEventRecord(events[i].first, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(events[i].second, nullptr) == CUDA_SUCCESS);
  };
  float milliseconds = 0;
  const auto trips = [&](std::size_t i, CUresult wanted = CUDA_SUCCESS) {
    const auto before = client::stats::round_trips();
    milliseconds = 0;
    CHECK(cuEventElapsedTime_v2(&milliseconds, events[i].first, events[i].second) == wanted);
    CHECK(milliseconds == (wanted == CUDA_SUCCESS ? 1.5F : 0));
    return client::stats::round_trips() - before;
  };
  for (std::size_t i = 0; i < pairs; ++i) record(i);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  for (std::size_t i = 0; i < pairs; ++i) trips(i);
  CHECK(client::stats::round_trips() - before == 3);
  CHECK(trips(pairs - 1) == 0);
  record(pairs - 1);
  CHECK(trips(pairs - 1) == 1);

  SECTION("what has not happened is asked for again") {
    remote.driver->pause(true);
    for (std::size_t i = 0; i < 4; ++i) record(i);
    CHECK(trips(0, CUDA_ERROR_NOT_READY) == 1);
    CHECK(trips(1, CUDA_ERROR_NOT_READY) == 1);
    CHECK(trips(2, CUDA_ERROR_NOT_READY) == 1);
    remote.driver->pause(false);
    CHECK(trips(2) == 1);
    CHECK(trips(3) == 1);
  }
  SECTION("an event that is gone has no time") {
    CHECK(cuEventDestroy_v2(events[0].second) == CUDA_SUCCESS);
    CHECK(trips(0, CUDA_ERROR_INVALID_HANDLE) == 0);
  }
}

TEST_CASE("stale, foreign and made-up handles are refused where they are used") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy_v2(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemsetD8Async(memory, 1, 1, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamSynchronize(reinterpret_cast<CUstream>(event)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamSynchronize(reinterpret_cast<CUstream>(0xdeadbeef)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamDestroy_v2(CU_STREAM_LEGACY) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(reinterpret_cast<CUevent>(8), nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("streams keep what they were made with") {
  RemoteContext remote;
  CUstream stream = nullptr;
  int least = 0, greatest = 0, priority = 0;
  unsigned flags = 0;
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest - 100) == CUDA_SUCCESS);
  CHECK(cuStreamGetPriority(stream, &priority) == CUDA_SUCCESS);
  CHECK(priority == greatest);
  CHECK(cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(cuStreamGetCtx(stream, &context) == CUDA_SUCCESS);
  CHECK(context == remote.context);
  unsigned long long first = 0, second = 0;
  CHECK(cuStreamGetId(stream, &first) == CUDA_SUCCESS);
  CHECK(cuStreamGetId(nullptr, &second) == CUDA_SUCCESS);
  CHECK(first != second);
  CHECK(cuStreamCreate(&stream, 77) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the per-thread default stream is each thread's own") {
  RemoteContext remote;
  unsigned long long mine = 0, other = 0;
  CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &mine) == CUDA_SUCCESS);
  std::thread([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  }).join();
  CHECK(mine != other);
}

TEST_CASE("a failure that nobody waited for comes back once, to the thread that made the call") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  remote.driver->script("cuMemsetD8Async", CUDA_ERROR_NOT_PERMITTED, 1);
  REQUIRE(cuMemsetD8Async(memory, 1, 100, nullptr) == CUDA_SUCCESS);
  std::thread([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  }).join();
  CHECK(cuCtxSynchronize() == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a failure of a thread that has ended comes back once, to another one") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const bool has_come = GENERATE(false, true);  // when the thread ends
  remote.driver->script("cuMemsetD8Async", CUDA_ERROR_NOT_PERMITTED, 1);
  std::thread([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    CHECK(cuMemsetD8Async(memory, 1, 100, nullptr) == CUDA_SUCCESS);
    if (has_come) remote.hear_out();
  }).join();
  CHECK(cuCtxSynchronize() == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("what is known to be done is no success in a context that has failed, and no handle is used up there") {
  RemoteContext remote;
  const CUfunction crash = crashing_kernel();
  const CUstream stream = new_stream();
  const CUevent event = new_event();
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuEventSynchronize(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  constexpr std::uint32_t many = 4000;
  std::uint32_t others = 0;
  for (std::uint32_t i = 0; i < many; ++i) {
    CUstream more = nullptr;
    CUevent again = nullptr;
    others += cuStreamCreate(&more, 0) != CUDA_ERROR_ILLEGAL_ADDRESS;
    others += cuEventCreate(&again, 0) != CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  CHECK(others == 0);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(handle_of(new_stream()).index() < many / 2);  // so many wait in line before one is used again
  CHECK(handle_of(new_event()).index() < many / 2);
}

TEST_CASE("a kernel that crashes takes its context with it, and a reset brings a new one") {
  RemoteContext remote;
  const CUfunction crash = crashing_kernel();
  const CUdeviceptr memory = new_memory();
  REQUIRE(cuLaunchKernel(crash, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuMemsetD8_v2(memory, 0, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr more = 0;
  CHECK(cuMemAlloc_v2(&more, 10) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&more, 10) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a long queue waits for the GPU instead of growing without end") {
  RemoteContext remote;
  const CUdeviceptr memory = new_memory();
  const CUstream stream = new_stream();
  remote.driver->pause(true);
  constexpr int items = 20000;
  std::atomic<int> given{0};
  std::thread giver([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    for (int i = 0; i < items; ++i) {
      if (cuMemsetD8Async(memory, 1, 1, stream) != CUDA_SUCCESS) break;
      ++given;
    }
  });
  // The driver blocks at 1,021 launches, so the worker must never be near that.
  const auto reached = [&] { return remote.driver->calls("cuMemsetD8Async"); };
  std::size_t last = 0;
  while (reached() == 0 || reached() != last) {
    last = reached();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(given <= static_cast<int>(limits::stream_credit_max));  // more than usual where answers take long
  CHECK(reached() < 1000);
  remote.driver->pause(false);
  giver.join();
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuMemsetD8Async") == items);
}

TEST_CASE("attributes of streams are the driver's, and the priority among them is known here too") {
  RemoteContext remote;
  CUstream first = nullptr, second = nullptr;
  REQUIRE(cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, -1) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  REQUIRE(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value) == CUDA_SUCCESS);
  value = {};
  value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(0x1234);
  value.accessPolicyWindow.num_bytes = 4096;
  value.accessPolicyWindow.hitRatio = 0.5F;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  REQUIRE(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value) == CUDA_SUCCESS);
  value = {};
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  REQUIRE(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value) == CUDA_SUCCESS);
  REQUIRE(cuStreamCopyAttributes(second, first) == CUDA_SUCCESS);
  for (CUstream stream : {first, second}) {
    REQUIRE(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value) == CUDA_SUCCESS);
    CHECK(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    REQUIRE(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value) == CUDA_SUCCESS);
    CHECK(value.accessPolicyWindow.base_ptr == reinterpret_cast<void*>(0x1234));
    CHECK(value.accessPolicyWindow.num_bytes == 4096);
    CHECK(value.accessPolicyWindow.hitRatio == 0.5F);
    REQUIRE(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, &value) == CUDA_SUCCESS);
    CHECK(value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
    int priority = 0;
    REQUIRE(cuStreamGetPriority(stream, &priority) == CUDA_SUCCESS);
    CHECK(priority == -1);
  }
  value = {};
  value.priority = -2;
  REQUIRE(cuStreamSetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) == CUDA_SUCCESS);
  int priority = 0;
  REQUIRE(cuStreamGetPriority(second, &priority) == CUDA_SUCCESS);
  CHECK(priority == -2);
  REQUIRE(cuStreamGetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) == CUDA_SUCCESS);
  CHECK(value.priority == -2);
  CHECK(cuStreamGetAttribute(first, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &value) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamSetAttribute(first, static_cast<CUstreamAttrID>(5000), &value) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamGetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamGetAttribute(reinterpret_cast<CUstream>(0x50), CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamCopyAttributes(first, reinterpret_cast<CUstream>(0x50)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an attribute is set behind launches that are held back") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 64, 0) == CUDA_SUCCESS);
  std::atomic_ref flag(*static_cast<unsigned*>(pinned));
  flag = 0;
  REQUIRE(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(pinned), 1, 0) == CUDA_SUCCESS);
  CUstreamAttrValue value{};
  value.priority = -1;
  REQUIRE(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) == CUDA_SUCCESS);  // does not wait
  CHECK(remote.driver->calls("cuStreamSetAttribute") == 0);
  flag = 1;
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuStreamSetAttribute") == 1);
}

TEST_CASE("an event over a whole context") {
  RemoteContext remote;
  CUstream first = nullptr, second = nullptr;
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxRecordEvent(remote.context, event) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuCtxRecordEvent") == 1);

  // What is held back counts: the record, and all that waits for it.
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 64, 0) == CUDA_SUCCESS);
  std::atomic_ref flag(*static_cast<unsigned*>(pinned));
  flag = 0;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 8) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 1, 2, second) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(first, reinterpret_cast<CUdeviceptr>(pinned), 1, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxRecordEvent(remote.context, event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuCtxWaitEvent(remote.context, event) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 2, 1, second) == CUDA_SUCCESS);
  CUstream later = nullptr;
  REQUIRE(cuStreamCreate(&later, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory + 4, 2, 1, later) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(later) == CUDA_ERROR_NOT_READY);
  flag = 1;
  REQUIRE(cuEventSynchronize(event) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  unsigned back[2] = {};
  REQUIRE(cuMemcpyDtoH_v2(back, memory, 8) == CUDA_SUCCESS);
  CHECK(back[0] == 2);
  CHECK(back[1] == 2);
  CHECK(remote.driver->calls("cuCtxWaitEvent") == 1);

  CHECK(cuCtxRecordEvent(remote.context, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuCtxRecordEvent(reinterpret_cast<CUcontext>(0x70), event) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxWaitEvent(remote.context, reinterpret_cast<CUevent>(0x70)) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuCtxRecordEvent(remote.context, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  REQUIRE(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuCtxWaitEvent(remote.context, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
