// Many launches at once, which threads of the worker share.

#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <thread>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

/// A kernel that writes a word; each stream has a word of its own.
struct Words : RemoteContext {
  static constexpr unsigned streams_count = 4;
  Words() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    // The last one synchronises with the legacy stream.
    for (unsigned i = 0; i < streams_count; ++i)
      REQUIRE(cuStreamCreate(&streams[i], i + 1 < streams_count ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT) ==
              CUDA_SUCCESS);
    for (unsigned i = 0; i < streams_count; ++i) REQUIRE(launch(i, 0) == CUDA_SUCCESS);  // the first one is awaited
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CUdeviceptr word(unsigned stream) const { return memory + 4 * stream; }
  CUresult launch(unsigned stream, unsigned value) {
    CUdeviceptr to = word(stream);
    unsigned count = 1;
    void* arguments[] = {&to, &count, &value};
    return cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, streams[stream], arguments, nullptr);
  }
  /// What was launched for each word, in the driver's order.
  std::vector<std::vector<unsigned>> launched() {
    std::vector<std::vector<unsigned>> values(streams_count);
    for (const fake::Launch& launch : driver->launches()) {
      std::uint64_t to = 0;
      unsigned value = 0;
      std::memcpy(&to, launch.parameters.data(), 8);
      std::memcpy(&value, launch.parameters.data() + 12, 4);
      if (value > 0) values.at((to - memory) / 4).push_back(value);
    }
    return values;
  }
  std::size_t threads() {
    std::set<std::size_t> found;
    for (const fake::Launch& launch : driver->launches()) found.insert(launch.thread);
    return found.size();
  }
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUdeviceptr memory = 0;
  CUstream streams[streams_count] = {};
};

}  // namespace

TEST_CASE("launches of several threads go by several threads, those of a stream in their order") {
  Words w;
  constexpr unsigned count = 2000;
  std::vector<std::thread> threads;
  std::vector<CUresult> results(Words::streams_count, CUDA_SUCCESS);
  for (unsigned i = 0; i < Words::streams_count; ++i) {
    threads.emplace_back([&, i] {
      CUresult result = cuCtxSetCurrent(w.context);
      for (unsigned value = 1; value <= count && result == CUDA_SUCCESS; ++value) result = w.launch(i, value);
      results[i] = result;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(results == std::vector<CUresult>(Words::streams_count, CUDA_SUCCESS));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  std::vector<unsigned> wanted(count);
  for (unsigned i = 0; i < count; ++i) wanted[i] = i + 1;
  for (const auto& values : w.launched()) CHECK(values == wanted);
  CHECK(w.threads() > 1);
}

TEST_CASE("whatever follows launches on a stream finds them done") {
  Words w;
  for (unsigned round = 0; round < 20; ++round) {
    const unsigned last = 1000 * round + 300;
    for (unsigned value = 1000 * round + 1; value <= last; ++value)
      for (unsigned i = 0; i < Words::streams_count; ++i) REQUIRE(w.launch(i, value) == CUDA_SUCCESS);
    for (unsigned i = 0; i < Words::streams_count; ++i) {
      unsigned got = 0;
      REQUIRE(cuMemcpyDtoHAsync_v2(&got, w.word(i), 4, w.streams[i]) == CUDA_SUCCESS);
      REQUIRE(cuStreamSynchronize(w.streams[i]) == CUDA_SUCCESS);
      CHECK(got == last);
    }
    // The legacy stream comes behind what blocking ones were given.
    const unsigned blocking = Words::streams_count - 1;
    for (unsigned value = 0; value < 300; ++value) REQUIRE(w.launch(blocking, last + value) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32_v2(w.word(blocking), 7, 1) == CUDA_SUCCESS);
    unsigned got = 0;
    REQUIRE(cuMemcpyDtoH_v2(&got, w.word(blocking), 4) == CUDA_SUCCESS);
    CHECK(got == 7);
  }
  CHECK(w.threads() > 1);
}

TEST_CASE("a launch that fails among many is told of") {
  Words w;
  w.driver->script("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 1);
  CUresult told = CUDA_SUCCESS;
  for (unsigned value = 1; value <= 500 && told == CUDA_SUCCESS; ++value) told = w.launch(value % 3, value);
  if (told == CUDA_SUCCESS) told = cuCtxSynchronize();
  CHECK(told == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a session ends with launches under way") {
  Words w;
  for (unsigned value = 1; value <= 3000; ++value)
    REQUIRE(w.launch(value % Words::streams_count, value) == CUDA_SUCCESS);
}
