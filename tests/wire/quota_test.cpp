// What a session may hold of a device, by whichever way it asks for memory.

#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

constexpr std::size_t mib = 1u << 20;
constexpr std::size_t quota = 64 * mib;
constexpr std::size_t piece = 8 * mib;
constexpr std::size_t pieces = quota / piece;

struct Limited : RemoteContext {
  Limited() : RemoteContext(default_config(), {quota, quota}) {}
};

struct Info {
  std::size_t free = 0, total = 0;
};

Info info() {
  Info now;
  REQUIRE(cuMemGetInfo_v2(&now.free, &now.total) == CUDA_SUCCESS);
  return now;
}

using Release = std::function<void()>;
/// Takes one piece and says how it is given back.
using Take = std::function<CUresult(Release&)>;

// Pieces fit as often as the quota says and not once more, whatever was given back before, and nothing else changes.
void check_path(const Take& take) {
  CHECK(info().total == quota);
  for (int round = 0; round < 2; ++round) {
    std::vector<Release> taken;
    for (std::size_t i = 0; i < pieces; ++i) {
      Release release;
      REQUIRE(take(release) == CUDA_SUCCESS);
      taken.push_back(std::move(release));
    }
    CHECK(info().free == 0);
    Release none;
    CHECK(take(none) == CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr more = 0;
    CHECK(cuMemAlloc_v2(&more, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);  // the error is no more than that
    for (const Release& release : taken) release();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(info().free == quota);
  }
}

CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  return properties;
}

}  // namespace

TEST_CASE("quota: cuMemAlloc") {
  Limited remote;
  check_path([](Release& release) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAlloc_v2(&address, piece);
    release = [address] { CHECK(cuMemFree_v2(address) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: stream-ordered allocation") {
  Limited remote;
  check_path([](Release& release) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAllocAsync(&address, piece, nullptr);
    release = [address] { CHECK(cuMemFreeAsync(address, nullptr) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: a pool of one's own") {
  Limited remote;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  check_path([pool](Release& release) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAllocFromPoolAsync(&address, piece, pool, nullptr);
    release = [address] { CHECK(cuMemFreeAsync(address, nullptr) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: virtual memory management") {
  Limited remote;
  check_path([](Release& release) {
    const CUmemAllocationProp properties = on_device();
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cuMemCreate(&handle, piece, &properties, 0);
    release = [handle] { CHECK(cuMemRelease(handle) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: managed memory") {
  Limited remote;
  check_path([](Release& release) {
    CUdeviceptr address = 0;
    const CUresult result = cuMemAllocManaged(&address, piece, CU_MEM_ATTACH_GLOBAL);
    release = [address] { CHECK(cuMemFree_v2(address) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: arrays") {
  Limited remote;
  check_path([](Release& release) {
    CUDA_ARRAY_DESCRIPTOR description{};
    description.Width = 1024;
    description.Height = piece / 1024;
    description.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    description.NumChannels = 1;
    CUarray array = nullptr;
    const CUresult result = cuArrayCreate_v2(&array, &description);
    release = [array] { CHECK(cuArrayDestroy(array) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: memory of graphs") {
  Limited remote;
  check_path([](Release& release) {
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    params.bytesize = piece;
    CUgraphNode node = nullptr;
    const CUresult result = cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params);
    if (result != CUDA_SUCCESS) CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    release = [graph] { CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS); };
    return result;
  });
}

TEST_CASE("quota: all ways together") {
  Limited remote;
  CUdeviceptr plain = 0, ordered = 0, managed = 0, more = 0;
  REQUIRE(cuMemAlloc_v2(&plain, 2 * piece) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&ordered, 2 * piece, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocManaged(&managed, 2 * piece, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, 2 * piece, &properties, 0) == CUDA_SUCCESS);
  CHECK(info().free == 0);
  CHECK(cuMemAllocAsync(&more, 1, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemFree_v2(managed) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&more, 2 * piece) == CUDA_SUCCESS);
}

TEST_CASE("quota: each device has its own") {
  Limited remote;
  CUdeviceptr here = 0, there = 0;
  REQUIRE(cuMemAlloc_v2(&here, quota) == CUDA_SUCCESS);
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  CHECK(info().free == quota);
  CHECK(cuMemAlloc_v2(&there, quota) == CUDA_SUCCESS);
  CHECK(info().free == 0);
}

TEST_CASE("quota: 64 threads get all there is together, and not a byte more") {
  Limited remote;
  constexpr std::size_t small = 2 * mib;
  std::atomic<std::size_t> got{0}, refused{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 64; ++t) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(remote.context);
      CUdeviceptr address = 0;
      switch (cuMemAlloc_v2(&address, small)) {
        case CUDA_SUCCESS: ++got; break;
        case CUDA_ERROR_OUT_OF_MEMORY: ++refused; break;
        default: ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(got == quota / small);
  CHECK(refused == 64 - quota / small);
  CHECK(info().free == 0);
}

TEST_CASE("quota: the whole of it is what programs take a device for") {
  Limited remote;
  std::size_t bytes = 0;
  CHECK(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS);
  CHECK(bytes == quota);
  CHECK(info().total == quota);
}
