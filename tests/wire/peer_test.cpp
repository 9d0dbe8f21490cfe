// Two devices of one session: access to each other's memory, and copies between them.

#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;

namespace {

struct Two : test::RemoteContext {
  Two() {
    REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&here, bytes) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent_v2(other) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&there, bytes) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
    std::iota(sent.begin(), sent.end(), 1u);
    REQUIRE(cuMemcpyHtoD_v2(here, sent.data(), bytes) == CUDA_SUCCESS);
    accesses = driver->calls("cuMemSetAccess");
  }
  /// How often the driver was asked since then to change which devices reach memory.
  std::size_t accesses_set() { return driver->calls("cuMemSetAccess") - accesses; }
  std::vector<unsigned> received() {
    std::vector<unsigned> words(sent.size());
    REQUIRE(cuMemcpyDtoH_v2(words.data(), there, bytes) == CUDA_SUCCESS);
    return words;
  }

  static constexpr std::size_t bytes = 4 << 20;
  CUcontext other = nullptr;
  CUdeviceptr here = 0, there = 0;
  std::vector<unsigned> sent = std::vector<unsigned>(bytes / 4);
  std::size_t accesses = 0;
};

}  // namespace

TEST_CASE("access of one device to another's memory holds for present and later memory") {
  Two two;
  int can = 0, value = 0;
  CHECK(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
  CHECK(can == 1);
  CHECK(cuDeviceCanAccessPeer(&can, 1, 1) == CUDA_SUCCESS);
  CHECK(can == 0);
  CHECK(cuDeviceCanAccessPeer(&can, 0, 2) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 1) == CUDA_SUCCESS);
  CHECK(value == 3);
  CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED, 0, 1) ==
        CUDA_SUCCESS);
  CHECK(value == 1);
  CHECK(cuDeviceGetP2PAttribute(&value, static_cast<CUdevice_P2PAttribute>(6), 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0) == CUDA_ERROR_INVALID_DEVICE);

  CHECK(cuCtxEnablePeerAccess(two.other, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxEnablePeerAccess(nullptr, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxEnablePeerAccess(two.context, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK(cuCtxDisablePeerAccess(two.other) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  REQUIRE(cuCtxEnablePeerAccess(two.other, 0) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == 1);  // what is there: one piece of device 1
  CHECK(cuCtxEnablePeerAccess(two.other, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);

  REQUIRE(cuCtxSetCurrent(two.other) == CUDA_SUCCESS);
  CUdeviceptr later = 0;
  // Of another size: with one of the same a spare would come.
  REQUIRE(cuMemAlloc_v2(&later, 2 * Two::bytes) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == 3);                                                    // its own device and the peer
  CHECK(cuCtxDisablePeerAccess(two.context) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);  // it is the other's
  REQUIRE(cuCtxSetCurrent(two.context) == CUDA_SUCCESS);
  REQUIRE(cuCtxDisablePeerAccess(two.other) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == 5);
  CHECK(cuCtxDisablePeerAccess(two.other) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST_CASE("access is taken away when the last that asked for it no longer does") {
  Two two;
  CUcontext second = nullptr;
  REQUIRE(cuCtxEnablePeerAccess(two.other, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxEnablePeerAccess(two.other, 0) == CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  CUmemAccess_flags seen{};
  CHECK(cuMemPoolGetAccess(&seen, pool, &access.location) == CUDA_SUCCESS);
  CHECK(seen == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(two.accesses_set() == 1);
  REQUIRE(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(two.context) == CUDA_SUCCESS);
  REQUIRE(cuCtxDisablePeerAccess(two.other) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == 1);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == 2);
}

TEST_CASE("peers reach memory of a pool that was destroyed as long as it is in use") {
  Two two;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent_v2(two.other) == CUDA_SUCCESS);
  CUdeviceptr block = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&block, Two::bytes, pool, nullptr) == CUDA_SUCCESS);
  const std::size_t before = two.accesses_set();
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(two.accesses_set() == before);
  REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (two.accesses_set() == before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(two.accesses_set() > before);
  REQUIRE(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
}

TEST_CASE("access that the driver refuses is not enabled") {
  Two two;
  two.driver->script("cuMemSetAccess", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 1);
  CHECK(cuCtxEnablePeerAccess(two.other, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK(cuCtxDisablePeerAccess(two.other) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CHECK(cuCtxEnablePeerAccess(two.other, 0) == CUDA_SUCCESS);
}

TEST_CASE("copies between devices go by the driver's form for that, however the program says it") {
  Two two;
  const auto peer_copies = [&] { return two.driver->calls("cuMemcpyPeerAsync"); };
  SECTION("between contexts") {
    REQUIRE(cuMemcpyPeer(two.there, two.other, two.here, two.context, Two::bytes) == CUDA_SUCCESS);
  }
  SECTION("on a stream") {
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyPeerAsync(two.there, two.other, two.here, two.context, Two::bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  }
  SECTION("by addresses") { REQUIRE(cuMemcpy(two.there, two.here, Two::bytes) == CUDA_SUCCESS); }
  CHECK(two.received() == two.sent);
  CHECK(peer_copies() == 1);
}

TEST_CASE("boxes are copied between devices") {
  Two two;
  REQUIRE(cuMemsetD8_v2(two.there, 0, Two::bytes) == CUDA_SUCCESS);
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = two.here;
  copy.srcContext = two.context;
  copy.srcPitch = 1024;
  copy.srcHeight = 8;
  copy.dstDevice = two.there;
  copy.dstContext = two.other;
  copy.dstPitch = 512;
  copy.dstHeight = 4;
  copy.WidthInBytes = 64;
  copy.Height = 4;
  copy.Depth = 2;
  SECTION("at once") { REQUIRE(cuMemcpy3DPeer(&copy) == CUDA_SUCCESS); }
  SECTION("on a stream") { REQUIRE(cuMemcpy3DPeerAsync(&copy, nullptr) == CUDA_SUCCESS); }
  const auto words = two.received();
  CHECK(two.driver->calls("cuMemcpy3DPeerAsync") == 1);
  std::size_t wrong = 0;
  for (std::size_t z = 0; z < 2; ++z)
    for (std::size_t y = 0; y < 4; ++y)
      for (std::size_t x = 0; x < 16; ++x) wrong += words[z * 512 + y * 128 + x] != two.sent[z * 2048 + y * 256 + x];
  CHECK(wrong == 0);
  CHECK(words[16] == 0);
}

TEST_CASE("copies between contexts name contexts that there are") {
  Two two;
  CHECK(cuMemcpyPeer(two.there, nullptr, two.here, two.context, 4) == CUDA_SUCCESS);  // null is the current one
  CHECK(cuMemcpyPeerAsync(two.there, two.other, two.here, reinterpret_cast<CUcontext>(8), 4, nullptr) ==
        CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemcpyPeer(two.there, two.other, 8, two.context, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpy3DPeer(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.WidthInBytes = copy.Height = copy.Depth = 1;
  copy.srcDevice = two.here;
  copy.dstDevice = two.there;
  copy.srcContext = two.context;
  copy.dstContext = reinterpret_cast<CUcontext>(8);
  CHECK(cuMemcpy3DPeerAsync(&copy, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
}
