// Kernel launches.

#include <catch2/catch.hpp>
#include <cstring>

#include "client/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Kernels : RemoteContext {
  Kernels() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&mixed, module, "mixed") == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  }
  CUresult launch(unsigned block, unsigned shared = 0) {
    void* arguments[] = {&memory, &count, &value};
    return cuLaunchKernel(fill, 1, 1, 1, block, 1, 1, shared, nullptr, arguments, nullptr);
  }
  CUmodule module = nullptr;
  CUfunction fill = nullptr, mixed = nullptr;
  CUdeviceptr memory = 0;
  unsigned count = 8, value = 1;
};

}  // namespace

TEST_CASE("arguments arrive laid out as the kernel wants them, from either form") {
  Kernels k;
  std::uint8_t a = 0xAA;
  std::uint64_t b = 0x0123456789abcdef;
  std::uint16_t c = 0xBEEF;
  float d = 2.5F;
  void* arguments[] = {&a, &b, &c, &d};
  REQUIRE(cuLaunchKernel(k.mixed, 2, 3, 4, 5, 6, 7, 1000, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  unsigned char block[24] = {};
  std::memcpy(block, &a, 1);
  std::memcpy(block + 8, &b, 8);
  std::memcpy(block + 16, &c, 2);
  std::memcpy(block + 20, &d, 4);
  std::size_t size = sizeof(block);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  REQUIRE(cuLaunchKernel(k.mixed, 2, 3, 4, 5, 6, 7, 1000, nullptr, nullptr, extra) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto launches = k.driver->launches();
  REQUIRE(launches.size() == 2);
  for (const auto& launch : launches) {
    CHECK(launch.kernel == "mixed");
    CHECK(launch.grid[2] == 4);
    CHECK(launch.block[1] == 6);
    CHECK(launch.shared_bytes == 1000);
    REQUIRE(launch.parameters.size() == 24);
    CHECK(std::memcmp(launch.parameters.data(), &a, 1) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 8, &b, 8) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 16, &c, 2) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 20, &d, 4) == 0);
  }
}

TEST_CASE("only the first launch of a class waits for the driver's word") {
  Kernels k;
  const auto waited = [] { return client::stats::of(Opcode::launch).waited.load(); };
  const auto before = waited();
  REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == before + 1);
  for (int i = 0; i < 50; ++i) REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == before + 1);
  REQUIRE(k.launch(64) == CUDA_SUCCESS);  // another class
  CHECK(waited() == before + 2);
  CHECK(k.launch(2048) == CUDA_ERROR_INVALID_VALUE);  // refused, each time
  CHECK(k.launch(2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(k.launch(32, 300 * 1024) == CUDA_ERROR_INVALID_VALUE);
  // What was accepted may not be any more once an attribute has changed.
  const auto later = waited();
  REQUIRE(cuFuncSetAttribute(k.fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50) == CUDA_SUCCESS);
  REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == later + 1);
}

TEST_CASE("launches that make no sense are refused in the caller") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CHECK(k.launch(0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 0, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 1, 1 << 20, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(k.module), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  void* extra[] = {CU_LAUNCH_PARAM_END};
  std::size_t bytes = 16;
  void* block[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, block) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernelEx(nullptr, k.fill, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(k.driver->launches().empty());
}

TEST_CASE("launch attributes and cooperative launches reach the driver") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim.x = 2;
  attributes[0].value.clusterDim.y = attributes[0].value.clusterDim.z = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  REQUIRE(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(k.driver->launches().size() == 1);
  CHECK(k.driver->launches()[0].attributes == 2);
  attributes[1].id = static_cast<CUlaunchAttributeID>(999);
  CHECK(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuLaunchCooperativeKernel(k.fill, 8, 1, 1, 1, 1, 1, 0, nullptr, arguments) == CUDA_SUCCESS);
  CHECK(cuLaunchCooperativeKernel(k.fill, 9, 1, 1, 1, 1, 1, 0, nullptr, arguments) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}
