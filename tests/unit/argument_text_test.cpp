// FARGPU_LOG=trace: arguments as text.

#include "client/call/argument_text.h"

#include <catch2/catch.hpp>

#include <array>

using namespace fargpu;
using namespace fargpu::client;

namespace {

// A handle of the kernel "fill".
CUfunction fill() { return reinterpret_cast<CUfunction>(0x10); }

template <class... Arguments>
std::string text(Symbol symbol, CUresult result, const Arguments&... arguments) {
  const std::array<std::uint64_t, sizeof...(arguments)> raw{raw_argument(arguments)...};
  return argument_text(symbol, raw, result,
                       [](Handle handle) { return handle.value() == 0x10 ? std::string("fill") : std::string(); });
}

template <class T>
T at(std::uintptr_t address) {
  return reinterpret_cast<T>(address);
}

}  // namespace

TEST_CASE("arguments: sizes, addresses and streams") {
  CHECK(text(Symbol::cuMemsetD32Async, CUDA_SUCCESS, CUdeviceptr{0x302000000}, 7u, std::size_t{4096}, CUstream{}) ==
        "dstDevice=0x302000000, ui=7, N=4096, hStream=0");
  CHECK(text(Symbol::cuStreamSynchronize, CUDA_SUCCESS, CU_STREAM_LEGACY) == "hStream=CU_STREAM_LEGACY");
  CHECK(text(Symbol::cuStreamSynchronize, CUDA_SUCCESS, CU_STREAM_PER_THREAD) == "hStream=CU_STREAM_PER_THREAD");
  CHECK(text(Symbol::cuStreamSynchronize, CUDA_SUCCESS, at<CUstream>(0x55)) == "hStream=0x55");
  CHECK(text(Symbol::cuCtxSynchronize, CUDA_SUCCESS).empty());
}

TEST_CASE("arguments: what a call has written is shown where it has succeeded") {
  CUdeviceptr made = 0x302000000;
  CHECK(text(Symbol::cuMemAlloc_v2, CUDA_SUCCESS, &made, std::size_t{64}) == "*dptr=0x302000000, bytesize=64");
  CHECK(text(Symbol::cuMemAlloc_v2, CUDA_ERROR_OUT_OF_MEMORY, at<CUdeviceptr*>(0x8), std::size_t{64}) ==
        "dptr=0x8, bytesize=64");
  CHECK(text(Symbol::cuMemAlloc_v2, CUDA_ERROR_INVALID_VALUE, static_cast<CUdeviceptr*>(nullptr), std::size_t{64}) ==
        "dptr=0, bytesize=64");
  CUcontext context = at<CUcontext>(0x77);
  CHECK(text(Symbol::cuCtxGetCurrent, CUDA_SUCCESS, &context) == "*pctx=0x77");
  int major = 9;
  CHECK(text(Symbol::cuDeviceGetAttribute, CUDA_SUCCESS, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) ==
        "*pi=9, attrib=CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev=0");
}

TEST_CASE("arguments: enums by their names, and by numbers that have none") {
  int value = -1;
  CHECK(text(Symbol::cuDeviceGetAttribute, CUDA_ERROR_INVALID_VALUE, &value, static_cast<CUdevice_attribute>(-5), -2)
            .ends_with("attrib=-5, dev=-2"));
  float elapsed = 1.5F;
  CHECK(text(Symbol::cuEventElapsedTime_v2, CUDA_SUCCESS, &elapsed, at<CUevent>(0x1), at<CUevent>(0x2))
            .starts_with("*pMilliseconds=1.5, "));
}

TEST_CASE("arguments: kernels and their grids") {
  CHECK(text(Symbol::cuLaunchKernel, CUDA_SUCCESS, fill(), 4u, 1u, 1u, 256u, 1u, 1u, 0u, CUstream{},
             static_cast<void**>(nullptr), static_cast<void**>(nullptr)) ==
        "f=fill, gridDimX=4, gridDimY=1, gridDimZ=1, blockDimX=256, blockDimY=1, blockDimZ=1, sharedMemBytes=0, "
        "hStream=0, kernelParams=0, extra=0");
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.hStream = CU_STREAM_LEGACY;
  CHECK(text(Symbol::cuLaunchKernelEx, CUDA_SUCCESS, &config, at<CUfunction>(0x11), static_cast<void**>(nullptr),
             static_cast<void**>(nullptr)) ==
        "config={gridDimX=4, hStream=CU_STREAM_LEGACY}, f=0x11, kernelParams=0, extra=0");
}

TEST_CASE("arguments: structs, by address and by value") {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = at<const void*>(0x1000);
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = 0x302000000;
  copy.WidthInBytes = 16;
  copy.Height = 2;
  CHECK(text(Symbol::cuMemcpy2D_v2, CUDA_SUCCESS, &copy) ==
        "pCopy={srcMemoryType=CU_MEMORYTYPE_HOST, srcHost=0x1000, dstMemoryType=CU_MEMORYTYPE_DEVICE, "
        "dstDevice=0x302000000, WidthInBytes=16, Height=2}");
  CHECK(text(Symbol::cuMemcpy2D_v2, CUDA_ERROR_INVALID_VALUE, static_cast<const CUDA_MEMCPY2D*>(nullptr)) == "pCopy=0");
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  CHECK(text(Symbol::cuMemPrefetchAsync_v2, CUDA_SUCCESS, CUdeviceptr{0x1}, std::size_t{2}, location, 0u, CUstream{}) ==
        "devPtr=0x1, count=2, location={type=CU_MEM_LOCATION_TYPE_DEVICE, id=1}, flags=0, hStream=0");
}

TEST_CASE("arguments: texts on one line and of bounded length") {
  CUfunction function = fill();
  const std::string name = "two\nlines" + std::string(1000, 'x');
  const std::string shown = text(Symbol::cuModuleGetFunction, CUDA_SUCCESS, &function, at<CUmodule>(0x3), name.c_str());
  CHECK(shown.starts_with("*hfunc=fill, hmod=0x3, name=\"two"));
  CHECK(shown.find('\n') == std::string::npos);
  CHECK(shown.size() < 400);
  CHECK(text(Symbol::cuModuleGetFunction, CUDA_ERROR_INVALID_VALUE, at<CUfunction*>(0x8), at<CUmodule>(0x3),
             static_cast<const char*>(nullptr)) == "hfunc=0x8, hmod=0x3, name=0");
}

TEST_CASE("arguments: lists by their length, the first of many") {
  const std::array<CUgraphNode, 10> nodes{at<CUgraphNode>(0x1), at<CUgraphNode>(0x2)};
  CUgraphNode made = at<CUgraphNode>(0x9);
  const auto added = [&](std::size_t count) {
    return text(Symbol::cuGraphAddDependencies_v2, CUDA_SUCCESS, at<CUgraph>(0x5), nodes.data(), nodes.data(),
                static_cast<const CUgraphEdgeData*>(nullptr), count);
  };
  CHECK(added(2) == "hGraph=0x5, from=[0x1, 0x2], to=[0x1, 0x2], edgeData=0, numDependencies=2");
  CHECK(added(0) == "hGraph=0x5, from=[], to=[], edgeData=0, numDependencies=0");
  CHECK(added(10).find("[0x1, 0x2, 0, 0, 0, 0, 0, 0, ...]") != std::string::npos);
  // Of what the spec tells no length, the address.
  CHECK(text(Symbol::cuGraphAddEmptyNode, CUDA_SUCCESS, &made, at<CUgraph>(0x5), at<const CUgraphNode*>(0x6),
             std::size_t{1}) == "*phGraphNode=0x9, hGraph=0x5, dependencies=0x6, numDependencies=1");
}
