// Stream capture: what it forbids is decided in the client, as driver 580 decides it.

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Try {
  const char* name;
  std::function<CUresult()> call;
  CUresult wanted;          // in global and thread-local mode
  CUresult wanted_relaxed;  // in relaxed mode
};

}  // namespace

extern "C" CUresult cuMemcpyDtoH_v2_ptds(void* target, CUdeviceptr source, size_t bytes);

TEST_CASE("a synchronous copy on the thread's stream is no part of a capture of that, and breaks it") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned value = 5;
  REQUIRE(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2_ptds(&value, memory, 4) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(value == 5);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuMemcpyDtoH_v2_ptds(&value, memory, 4) == CUDA_SUCCESS);
}

TEST_CASE("a capture is over with its context") {
  RemoteContext remote;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  const bool primary = GENERATE(true, false);
  if (!primary) REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE((primary ? cuDevicePrimaryCtxReset_v2(0) : cuCtxDestroy_v2(context)) == CUDA_SUCCESS);
  if (primary) REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
}

TEST_CASE("a capture is over with the stream where it began") {
  RemoteContext remote;
  CUstream stream = nullptr, joined = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  CUgraph graph = nullptr;
  REQUIRE(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  const bool own = GENERATE(true, false);
  if (!own) REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE((own ? cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
               : cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL)) ==
          CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 1, 64, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(joined, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 2, 64, joined) == CUDA_SUCCESS);
  const std::size_t ended = fake::FakeDriver::instance()->calls("cuStreamEndCapture");
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr more = 0;
  CHECK(cuMemAlloc_v2(&more, 64) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(cuStreamIsCapturing(joined, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(cuMemsetD8Async(memory, 3, 64, joined) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(joined) == CUDA_SUCCESS);
  CHECK(fake::FakeDriver::instance()->calls("cuStreamEndCapture") == ended + 1);
  if (graph) CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("what a stream was given before its capture is done before it counts as done, though the stream goes") {
  RemoteContext remote;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&pinned, 64, 0) == CUDA_SUCCESS);
  std::memset(pinned, 1, 64);
  test::Paused paused;
  REQUIRE(cuMemsetD8Async(memory, 7, 64, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned, memory, 64, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  auto waits = std::async(std::launch::async, [&] {
    const CUresult set = cuCtxSetCurrent(remote.context);
    return set == CUDA_SUCCESS ? cuCtxSynchronize() : set;
  });
  CHECK(waits.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  paused.end();
  CHECK(waits.get() == CUDA_SUCCESS);
  CHECK(static_cast<const unsigned char*>(pinned)[63] == 7);
}

TEST_CASE("a stream goes, and what is captured from there, whatever an earlier call met") {
  RemoteContext remote;
  CUstream stream = nullptr, joined = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(joined, event, 0) == CUDA_SUCCESS);
  remote.driver->script("cuMemsetD8Async", CUDA_ERROR_UNKNOWN, 1);
  REQUIRE(cuMemsetD8Async(memory, 1, 64, joined) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  REQUIRE(cuMemGetAddressRange_v2(&address, &bytes, memory) == CUDA_SUCCESS);
  while (remote.driver->calls("cuMemsetD8Async") == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cuStreamDestroy_v2(stream) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemsetD8Async(memory, 2, 64, joined) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(joined) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuStreamDestroy_v2") == 1);
}

TEST_CASE("what a capture forbids, and what breaks it") {
  RemoteContext remote;
  CUstream stream = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, other) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  unsigned char bytes[64] = {};
  constexpr CUresult ok = CUDA_SUCCESS, unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                     implicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, isolation = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  CUdeviceptr made = 0;
  CUmodule module = nullptr;
  CUstream another = nullptr;
  CUevent fresh = nullptr;
  void* pinned = nullptr;
  std::size_t free = 0, total = 0;
  unsigned long long id = 0;
  const std::vector<Try> tries = {
      {"nothing", [] { return CUDA_SUCCESS; }, ok, ok},
      {"cuMemAlloc", [&] { return cuMemAlloc_v2(&made, 100); }, unsupported, ok},
      {"cuMemFree", [&] { return cuMemFree_v2(made ? made : memory + 1024); }, unsupported, ok},
      {"cuMemHostAlloc", [&] { return cuMemHostAlloc(&pinned, 100, 0); }, unsupported, ok},
      {"cuMemFreeHost", [&] { return cuMemFreeHost(pinned ? pinned : bytes); }, unsupported, ok},
      {"cuMemHostRegister", [&] { return cuMemHostRegister_v2(bytes, 64, 0); }, unsupported, ok},
      {"cuMemHostUnregister", [&] { return cuMemHostUnregister(bytes); }, unsupported, ok},
      {"cuModuleLoadData", [&] { return cuModuleLoadData(&module, test::kernels); }, ok, ok},
      {"cuModuleUnload", [&] { return cuModuleUnload(module); }, unsupported, ok},
      {"cuStreamCreate", [&] { return cuStreamCreate(&another, 0); }, ok, ok},
      {"cuStreamDestroy of another", [&] { return cuStreamDestroy_v2(another); }, ok, ok},
      {"cuEventCreate", [&] { return cuEventCreate(&fresh, 0); }, ok, ok},
      {"cuEventRecord on another", [&] { return cuEventRecord(fresh, other); }, ok, ok},
      {"cuEventQuery", [&] { return cuEventQuery(event); }, unsupported, ok},
      {"cuEventSynchronize", [&] { return cuEventSynchronize(event); }, unsupported, ok},
      {"cuStreamQuery of another", [&] { return cuStreamQuery(other); }, unsupported, ok},
      {"cuStreamQuery of itself", [&] { return cuStreamQuery(stream); }, unsupported, unsupported},
      {"cuStreamQuery of the legacy stream", [&] { return cuStreamQuery(nullptr); }, implicit, implicit},
      {"cuStreamSynchronize of another", [&] { return cuStreamSynchronize(other); }, unsupported, ok},
      {"cuStreamSynchronize of itself", [&] { return cuStreamSynchronize(stream); }, unsupported, unsupported},
      {"cuCtxSynchronize", [&] { return cuCtxSynchronize(); }, unsupported, unsupported},
      {"cuMemcpyHtoD", [&] { return cuMemcpyHtoD_v2(memory, bytes, 64); }, implicit, implicit},
      {"cuMemsetD8", [&] { return cuMemsetD8_v2(memory, 0, 64); }, implicit, implicit},
      {"cuMemsetD8Async on another", [&] { return cuMemsetD8Async(memory, 0, 64, other); }, ok, ok},
      {"cuMemsetD8Async on the legacy stream", [&] { return cuMemsetD8Async(memory, 0, 64, nullptr); }, implicit,
       implicit},
      {"cuMemcpyDtoHAsync on another", [&] { return cuMemcpyDtoHAsync_v2(bytes, memory, 64, other); }, ok, ok},
      {"cuMemGetInfo", [&] { return cuMemGetInfo_v2(&free, &total); }, ok, ok},
      {"cuCtxSetLimit", [&] { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096); }, unsupported, ok},
      {"cuStreamGetId of itself", [&] { return cuStreamGetId(stream, &id); }, unsupported, unsupported},
      {"cuStreamWaitEvent for work outside", [&] { return cuStreamWaitEvent(stream, event, 0); }, isolation, isolation},
  };
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (const Try& t : tries) {
      INFO(t.name << ", mode " << mode);
      const CUresult wanted = mode == CU_STREAM_CAPTURE_MODE_RELAXED ? t.wanted_relaxed : t.wanted;
      REQUIRE(cuStreamBeginCapture_v2(stream, mode) == CUDA_SUCCESS);
      CHECK(t.call() == wanted);
      CUgraph graph = nullptr;
      CHECK(cuStreamEndCapture(stream, &graph) ==
            (wanted == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
      CHECK((graph != nullptr) == (wanted == CUDA_SUCCESS));
      if (graph) CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("a thread's own mode lifts what a capture of another thread forbids") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto elsewhere = [&](CUstreamCaptureMode mode) {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
      CHECK(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
      CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
      CUdeviceptr memory = 0;
      result = cuMemAlloc_v2(&memory, 100);
    }).join();
    return result;
  };
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  CHECK(elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(elsewhere(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  CHECK(elsewhere(CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a capture knows its state, its streams and its thread") {
  RemoteContext remote;
  CUstream stream = nullptr, forked = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&forked, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(cuStreamIsCapturing(forked, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_ERROR_CAPTURED_EVENT);
  cuStreamEndCapture(stream, &graph);
  CHECK(cuStreamWaitEvent(forked, event, 0) == CUDA_ERROR_CAPTURED_EVENT);

  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(forked, event, 0) == CUDA_SUCCESS);
  CHECK(cuStreamIsCapturing(forked, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  std::thread([&] {
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    CUgraph none = nullptr;
    CHECK(cuStreamEndCapture(stream, &none) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  cuuint64_t id = 0;
  std::size_t count = 9;
  const CUgraphNode* dependencies = nullptr;
  CHECK(cuStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &dependencies, &count) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(id != 0);
  CHECK(graph != nullptr);
  CHECK(count == 0);
  CHECK(cuStreamEndCapture(forked, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);  // and that breaks it
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("what is told of a captured stream stays until the stream is asked about again") {
  RemoteContext remote;
  CUstream streams[2] = {};
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  CUgraph graphs[2] = {};
  CUgraphNode nodes[2] = {};
  const CUgraphNode* dependencies[2] = {};
  const CUgraphEdgeData* edges = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::size_t count = 0;
  for (CUstream& stream : streams) {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(memory, 1, 64, stream) == CUDA_SUCCESS);
  }
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuStreamGetCaptureInfo_v3(streams[i], &status, nullptr, &graphs[i], &dependencies[i], &edges, &count) ==
            CUDA_SUCCESS);
    REQUIRE(count == 1);
    nodes[i] = *dependencies[i];
  }
  CHECK(nodes[0] != nodes[1]);
  CHECK(*dependencies[0] == nodes[0]);
  CHECK(*dependencies[1] == nodes[1]);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(streams[1], &graph) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(streams[0], &graph) == CUDA_SUCCESS);
}

TEST_CASE("edge data is missed by a program that asks for dependencies") {
  RemoteContext remote;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned words = 4, value = 7;
  void* arguments[] = {&memory, &words, &value};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernelEx(&config, fill, arguments, nullptr) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  CHECK(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &dependencies, &count) == CUDA_ERROR_LOSSY_QUERY);
  CHECK(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, &count) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  CHECK(count == 1);
  CHECK(cuStreamGetCaptureInfo_v3(stream, &status, nullptr, nullptr, &dependencies, &edges, &count) == CUDA_SUCCESS);
  REQUIRE(edges != nullptr);
  CHECK(edges->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
}

TEST_CASE("a context whose stream has joined a capture of another context is not waited for") {
  RemoteContext remote;
  CUstream stream = nullptr, joined = nullptr;
  CUevent event = nullptr;
  CUcontext other = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);  // and is current
  REQUIRE(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(joined, event, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a capture ends at the worker too, whatever an earlier call met") {
  RemoteContext remote;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  remote.driver->script("cuMemsetD8Async", CUDA_ERROR_UNKNOWN, 1);
  REQUIRE(cuMemsetD8Async(memory, 1, 64, stream) == CUDA_SUCCESS);
  const bool known_before = GENERATE(true, false);
  if (known_before) remote.hear_out();
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_UNKNOWN);
  CHECK(graph == nullptr);
  // Later work is made, and is no part of anything.
  unsigned char byte = 0;
  CHECK(cuMemsetD8Async(memory, 7, 64, stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(&byte, memory, 1) == CUDA_SUCCESS);
  CHECK(byte == 7);
  CHECK(remote.driver->calls("cuStreamEndCapture") == 1);
  CHECK(remote.driver->calls("cuGraphDestroy") == 1);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a capture that the driver calls broken is so, and what was not captured there is no event of it") {
  RemoteContext remote;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned count = 4, value = 7;
  void* arguments[] = {&memory, &count, &value};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  attribute.value.launchCompletionEvent.event = event;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  remote.driver->script("cuLaunchKernelEx", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1);
  CHECK(cuLaunchKernelEx(&config, fill, arguments, nullptr) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(cuMemsetD8Async(memory, 1, 64, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);  // it was not recorded
}
