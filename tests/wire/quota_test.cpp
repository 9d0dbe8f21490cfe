// What a session may hold of a device, by whichever way it asks for memory.

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "fixture.h"
#include "making_room.h"

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
    // What graphs held is kept for other graphs, once nothing needs it, until it is asked back.
    for (int i = 0; i < 2000 && info().free != quota; ++i) {
      CHECK(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
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

TEST_CASE("quota: what is kept for reuse makes room for whatever else takes memory") {
  Limited remote;
  constexpr std::size_t large = quota / 8 * 5, rows = large / 1024;  // there is room for one of them
  const auto [name, take] = GENERATE(table<const char*, CUresult (*)()>({
      {"cuMemAlloc",
       [] {
         CUdeviceptr address = 0;
         return cuMemAlloc_v2(&address, large + 2 * mib);  // of another size than what is kept
       }},
      {"cuMemAllocPitch",
       [] {
         CUdeviceptr address = 0;
         std::size_t pitch = 0;
         return cuMemAllocPitch_v2(&address, &pitch, 1024, rows + 2048, 4);
       }},
      {"cuMemAllocManaged",
       [] {
         CUdeviceptr address = 0;
         return cuMemAllocManaged(&address, large + 2 * mib, CU_MEM_ATTACH_GLOBAL);
       }},
      {"cuMemAllocAsync",
       [] {
         CUdeviceptr address = 0;
         return cuMemAllocAsync(&address, large + 2 * mib, nullptr);
       }},
      {"cuMemCreate",
       [] {
         const CUmemAllocationProp properties = on_device();
         CUmemGenericAllocationHandle handle = 0;
         return cuMemCreate(&handle, large, &properties, 0);
       }},
      {"cuMemCreate without a context",
       [] {
         const CUmemAllocationProp properties = on_device();
         CUmemGenericAllocationHandle handle = 0;
         CUcontext current = nullptr;
         REQUIRE(cuCtxPopCurrent_v2(&current) == CUDA_SUCCESS);
         const CUresult result = cuMemCreate(&handle, large, &properties, 0);
         REQUIRE(cuCtxPushCurrent_v2(current) == CUDA_SUCCESS);
         return result;
       }},
      {"cuArrayCreate",
       [] {
         const CUDA_ARRAY_DESCRIPTOR description{1024, rows, CU_AD_FORMAT_UNSIGNED_INT8, 1};
         CUarray array = nullptr;
         return cuArrayCreate_v2(&array, &description);
       }},
      {"cuArray3DCreate",
       [] {
         const CUDA_ARRAY3D_DESCRIPTOR description{1024, rows, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
         CUarray array = nullptr;
         return cuArray3DCreate_v2(&array, &description);
       }},
      {"cuMipmappedArrayCreate",
       [] {
         const CUDA_ARRAY3D_DESCRIPTOR description{1024, rows, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
         CUmipmappedArray array = nullptr;
         return cuMipmappedArrayCreate(&array, &description, 1);
       }},
  }));
  INFO(name);
  CUdeviceptr freed = 0;
  REQUIRE(cuMemAlloc_v2(&freed, large) == CUDA_SUCCESS);
  SECTION("nothing is under way") { REQUIRE(cuMemFree_v2(freed) == CUDA_SUCCESS); }
  SECTION("the GPU may still use it when it is given back") {
    remote.driver->pause(true);
    REQUIRE(cuMemsetD8Async(freed, 1, large, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(freed) == CUDA_SUCCESS);
    remote.driver->pause(false);
  }
  CHECK(take() == CUDA_SUCCESS);
  CHECK(info().free <= quota - large);
  CHECK(take() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("quota: what is kept for reuse makes room for a heap of kernels and for code") {
  Limited remote;
  CUdeviceptr freed = 0;
  REQUIRE(cuMemAlloc_v2(&freed, quota) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(freed) == CUDA_SUCCESS);
  SECTION("a heap") { CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, quota / 2) == CUDA_SUCCESS); }
  SECTION("code, for which only the driver knows whether there is room") {
    remote.driver->script("cuModuleLoadDataEx", CUDA_ERROR_OUT_OF_MEMORY, 1);
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    CHECK(remote.driver->memory_bytes() == 0);
  }
}

TEST_CASE("quota: where nothing is kept nobody is asked twice") {
  Limited remote;
  remote.driver->script("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, 1);
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, piece, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(remote.driver->calls("cuMemCreate") == 1);
}

TEST_CASE("quota: what is released can be had again, whatever else is under way") {
  Limited remote;
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, quota, &properties, 0) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(nullptr, test::Gate::pass, &gate) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, quota, &properties, 0) == CUDA_SUCCESS);
  gate.open();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("quota: where there is not plenty a mapping's own answer is the program's") {
  Limited remote;
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, piece, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, piece, &properties, 0) == CUDA_SUCCESS);
  remote.driver->script("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_SUCCESS);
}

TEST_CASE("quota: what is kept for reuse makes room for several who need some at once") {
  Limited remote;
  const CUmemAllocationProp properties = on_device();
  for (int i = 0; i < 50; ++i) {
    CUdeviceptr freed = 0;
    REQUIRE(cuMemAlloc_v2(&freed, quota) == CUDA_SUCCESS);
    REQUIRE(cuMemFree_v2(freed) == CUDA_SUCCESS);
    const auto make = [&] {
      CUmemGenericAllocationHandle handle = 0;
      cuMemCreate(&handle, quota / 4, &properties, 0);
      return handle;  // 0 if there was no room
    };
    std::array<std::future<CUmemGenericAllocationHandle>, 4> making;
    for (auto& one : making) one = std::async(std::launch::async, make);
    for (auto& one : making) REQUIRE(cuMemRelease(one.get()) == CUDA_SUCCESS);
  }
}

TEST_CASE("quota: what is kept for reuse makes room at once, whatever is held back") {
  Limited remote;
  CUdeviceptr address = 0;
  REQUIRE(cuMemAlloc_v2(&address, quota) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(nullptr, test::Gate::pass, &gate) == CUDA_SUCCESS);
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle handle = 0;
  SECTION("for memory at the same address") { CHECK(cuMemAlloc_v2(&address, quota / 2) == CUDA_SUCCESS); }
  SECTION("for memory without one") { CHECK(cuMemCreate(&handle, quota, &properties, 0) == CUDA_SUCCESS); }
  gate.open();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
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

// --- what the driver takes by itself

TEST_CASE("quota: a heap and a buffer of kernels are charged before the driver makes them") {
  Limited remote;
  constexpr std::size_t heap_at_first = 8 * mib, prints_at_first = mib;
  REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_at_first + 10 * mib) == CUDA_SUCCESS);
  CHECK(info().free == quota - 10 * mib);
  REQUIRE(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, prints_at_first + 2 * mib) == CUDA_SUCCESS);
  CHECK(info().free == quota - 12 * mib);
  CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_at_first + 63 * mib) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, ~std::size_t{0}) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(remote.driver->calls("cuCtxSetLimit") == 2);
  std::size_t heap = 0;
  CHECK(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE) == CUDA_SUCCESS);
  CHECK(heap == heap_at_first + 10 * mib);
  // What it was, it is again where the driver refuses.
  remote.driver->script("cuCtxSetLimit", CUDA_ERROR_INVALID_VALUE, 2);
  CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_at_first + 20 * mib) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, mib) == CUDA_ERROR_INVALID_VALUE);
  CHECK(info().free == quota - 12 * mib);
  // Whether a driver gives back what is more than the new limit nobody knows.
  REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, mib) == CUDA_SUCCESS);
  CHECK(info().free == quota - 12 * mib);
  REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap_at_first + 10 * mib) == CUDA_SUCCESS);
  CHECK(info().free == quota - 12 * mib);
}

TEST_CASE("quota: what kernels that launch kernels need is charged too") {
  Limited remote;
  REQUIRE(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048 + 1024) == CUDA_SUCCESS);
  CHECK(info().free == quota - 4 * mib);
  CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 1u << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3) == CUDA_ERROR_OUT_OF_MEMORY);  // 150 MiB
  REQUIRE(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2) == CUDA_SUCCESS);
  CHECK(info().free == quota - 4 * mib);
}

TEST_CASE("quota: local memory is charged for all threads that a device holds, before the kernel is launched") {
  std::atomic<int> wishes = 0;
  test::make_room = [&](const server::RoomWish&) { return ++wishes > 0; };
  Limited remote;
  constexpr std::size_t threads = 4 * 2048, at_first = 1024;
  CUmodule module = nullptr;
  CUfunction none = nullptr, some = nullptr, much = nullptr;
  REQUIRE(cuModuleLoadData(
              &module,
              ".version 8.0\n.target sm_90\n.address_size 64\n.entry none() { ret; }\n"
              ".entry some() { .local .b8 pool[2048]; ret; }\n.entry much() { .local .b8 pool[16384]; ret; }\n") ==
          CUDA_SUCCESS);
  for (auto& [function, name] : {std::pair{&none, "none"}, {&some, "some"}, {&much, "much"}})
    REQUIRE(cuModuleGetFunction(function, module, name) == CUDA_SUCCESS);
  const auto launch = [](CUfunction function) {
    const CUresult result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;
  };
  CHECK(launch(none) == CUDA_SUCCESS);
  CHECK(info().free == quota);
  CHECK(launch(some) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (2048 - at_first));
  CHECK(launch(some) == CUDA_SUCCESS);
  CHECK(launch(none) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (2048 - at_first));
  CHECK(launch(much) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(remote.driver->launches().size() == 4);
  CHECK(wishes == 0);  // nobody else could make room for what the session may not have
  // The stack that a program asks for is part of the same.
  REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (4096 - at_first));
  CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16384) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (4096 - at_first));
  test::make_room = nullptr;
}

TEST_CASE("quota: a graph's kernels have local memory too") {
  Limited remote;
  CUmodule module = nullptr;
  CUfunction much = nullptr;
  REQUIRE(
      cuModuleLoadData(
          &module, ".version 8.0\n.target sm_90\n.address_size 64\n.entry much() { .local .b8 pool[16384]; ret; }\n") ==
      CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&much, module, "much") == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = much;
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  CUgraphNode node = nullptr;
  CHECK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE(
    "quota: local memory is that of the context in which the kernel runs, whichever is current when it is named") {
  constexpr std::size_t threads = 4 * 2048, at_first = 1024, frame = 4096;
  Limited remote;
  const char* const image =
      ".version 8.0\n.target sm_90\n.address_size 64\n.entry some() { .local .b8 pool[4096]; ret; }\n";
  CUdevice device = 0;
  CUcontext second = nullptr;
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction here = nullptr, there = nullptr;
  CUkernel anywhere = nullptr;
  REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&here, module, "some") == CUDA_SUCCESS);
  REQUIRE(cuLaunchKernel(here, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&second, nullptr, 0, device) == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&there, module, "some") == CUDA_SUCCESS);
  REQUIRE(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&anywhere, library, "some") == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (frame - at_first));
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  SECTION("a function of the other context") { kernel.func = there; }
  SECTION("a kernel, for the other context") {
    kernel.kern = anywhere;
    kernel.ctx = second;
  }
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel) == CUDA_SUCCESS);
  CHECK(info().free == quota - 2 * threads * (frame - at_first));
  REQUIRE(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  CHECK(info().free == quota - threads * (frame - at_first));
}
