// Launches by the interface of CUDA 1 to 3.

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Kernels : RemoteContext {
  Kernels() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&mixed, module, "mixed") == CUDA_SUCCESS);
  }
  CUmodule module = nullptr;
  CUfunction fill = nullptr, mixed = nullptr;
};

}  // namespace

TEST_CASE("a launch takes the block, the shared memory and the parameters that were set before") {
  Kernels k;
  unsigned char a = 3;
  std::uint64_t b = 0x123456789abcdef0;
  REQUIRE(cuFuncSetBlockShape(k.mixed, 4, 3, 2) == CUDA_SUCCESS);
  REQUIRE(cuFuncSetSharedSize(k.mixed, 512) == CUDA_SUCCESS);
  REQUIRE(cuParamSetSize(k.mixed, 24) == CUDA_SUCCESS);
  REQUIRE(cuParamSetv(k.mixed, 0, &a, 1) == CUDA_SUCCESS);
  REQUIRE(cuParamSetv(k.mixed, 8, &b, 8) == CUDA_SUCCESS);
  REQUIRE(cuParamSeti(k.mixed, 16, 77) == CUDA_SUCCESS);
  REQUIRE(cuParamSetf(k.mixed, 20, 1.5f) == CUDA_SUCCESS);
  REQUIRE(cuLaunchGrid(k.mixed, 5, 6) == CUDA_SUCCESS);
  // They stay set, and one can be changed alone.
  REQUIRE(cuParamSetf(k.mixed, 20, 2.5f) == CUDA_SUCCESS);
  REQUIRE(cuLaunch(k.mixed) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuLaunchGridAsync(k.mixed, 7, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto launches = k.driver->launches();
  REQUIRE(launches.size() == 3);
  for (const auto& launch : launches) {
    CHECK(launch.kernel == "mixed");
    CHECK(launch.block[0] == 4);
    CHECK(launch.block[1] == 3);
    CHECK(launch.block[2] == 2);
    CHECK(launch.shared_bytes == 512);
    CHECK(launch.grid[2] == 1);
    REQUIRE(launch.parameters.size() == 24);
    CHECK(launch.parameters[0] == std::byte{3});
    CHECK(std::memcmp(&launch.parameters[8], &b, 8) == 0);
    CHECK(launch.parameters[16] == std::byte{77});
  }
  CHECK(launches[0].grid[0] == 5);
  CHECK(launches[0].grid[1] == 6);
  CHECK(launches[1].grid[0] == 1);
  CHECK(launches[2].grid[0] == 7);
  CHECK(launches[2].stream != launches[1].stream);
  const auto last = [](const fake::Launch& launch) {
    float value;
    std::memcpy(&value, &launch.parameters[20], 4);
    return value;
  };
  CHECK(last(launches[0]) == 1.5f);
  CHECK(last(launches[1]) == 2.5f);
}

TEST_CASE("each function has settings of its own") {
  Kernels k;
  CUdeviceptr address = 0;
  REQUIRE(cuMemAlloc_v2(&address, 64) == CUDA_SUCCESS);
  REQUIRE(cuFuncSetBlockShape(k.mixed, 9, 1, 1) == CUDA_SUCCESS);
  REQUIRE(cuFuncSetBlockShape(k.fill, 16, 1, 1) == CUDA_SUCCESS);
  REQUIRE(cuParamSetSize(k.fill, 16) == CUDA_SUCCESS);
  REQUIRE(cuParamSetv(k.fill, 0, &address, 8) == CUDA_SUCCESS);
  REQUIRE(cuParamSeti(k.fill, 8, 16) == CUDA_SUCCESS);
  REQUIRE(cuParamSeti(k.fill, 12, 42) == CUDA_SUCCESS);
  REQUIRE(cuLaunch(k.fill) == CUDA_SUCCESS);
  std::vector<unsigned> words(16);
  REQUIRE(cuMemcpyDtoH_v2(words.data(), address, 64) == CUDA_SUCCESS);
  CHECK(words == std::vector<unsigned>(16, 42));
  CHECK(k.driver->launches().back().block[0] == 16);
}

TEST_CASE("what cannot be launched is refused where it is said") {
  Kernels k;
  CUtexref texture = nullptr;
  REQUIRE(cuTexRefCreate(&texture) == CUDA_SUCCESS);
  CHECK(cuFuncSetBlockShape(k.mixed, 0, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncSetBlockShape(k.mixed, 1, -1, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncSetBlockShape(nullptr, 1, 1, 1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuFuncSetSharedSize(nullptr, 1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuParamSetSize(k.mixed, 1u << 30) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSeti(k.mixed, -4, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSeti(k.mixed, 1 << 30, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSetv(k.mixed, 0, nullptr, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSetv(k.mixed, 0, &texture, 0xffffffff) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSetf(nullptr, 0, 1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuParamSetTexRef(k.mixed, 0, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuParamSetTexRef(k.mixed, CU_PARAM_TR_DEFAULT, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuParamSetTexRef(k.mixed, CU_PARAM_TR_DEFAULT, texture) == CUDA_SUCCESS);
  REQUIRE(cuFuncSetBlockShape(k.mixed, 1, 1, 1) == CUDA_SUCCESS);
  CHECK(cuLaunchGrid(k.mixed, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchGridAsync(k.mixed, 1, -1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuModuleUnload(k.module) == CUDA_SUCCESS);
  CHECK(cuLaunch(k.mixed) == CUDA_ERROR_INVALID_HANDLE);
}
