// Calls with sizes and addresses of 32 bits, as programs of CUDA 2 and 3.1 make them.

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "client/tables/proc_table.h"
#include "fixture.h"

using namespace fargpu;
using test::Remote;
using test::RemoteContext;

namespace {

/// With a context of that time current.
struct Narrow : Remote {
  explicit Narrow(std::vector<std::uint64_t> memory_limits = {}) : Remote(default_config(), std::move(memory_limits)) {
    REQUIRE(cuCtxCreate(&context, 0, 0) == CUDA_SUCCESS);
  }
  ~Narrow() { cuCtxDestroy_v2(context); }
  CUcontext context = nullptr;
};

}  // namespace

TEST_CASE("calls of 32 bits work in contexts of that time only") {
  RemoteContext remote;
  unsigned free = 7, total = 7;
  CHECK(cuMemGetInfo(&free, &total) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(free == 0);
  CUcontext old = nullptr;
  CHECK(cuCtxCreate(nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxCreate(&old, 0, 9) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(cuCtxCreate(&old, 0, 0) == CUDA_SUCCESS);
  unsigned version = 0;
  CHECK(cuCtxGetApiVersion(old, &version) == CUDA_SUCCESS);
  CHECK(version == 3010);
  CHECK(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  CHECK(total == 1u << 30);
  CHECK(cuMemGetInfo(&free, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxGetApiVersion(remote.context, &version) == CUDA_SUCCESS);
  CHECK(version == 3020);
  CHECK(cuCtxDestroy(old) == CUDA_SUCCESS);
  CHECK(cuMemGetInfo(&free, &total) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("sizes of more than 32 bits are told as the largest of 32 bits") {
  Narrow remote({6ull << 30, 6ull << 30});
  std::size_t free = 0, total = 0;
  REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  unsigned narrow_free = 0, narrow_total = 0;
  REQUIRE(cuMemGetInfo(&narrow_free, &narrow_total) == CUDA_SUCCESS);
  const auto most = [](std::size_t bytes) { return static_cast<unsigned>(std::min<std::size_t>(bytes, 0xffffffff)); };
  CHECK(narrow_free == most(free));
  CHECK(narrow_total == most(total));
  CHECK(cuDeviceTotalMem(&narrow_total, 0) == CUDA_SUCCESS);
  REQUIRE(cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS);
  CHECK(narrow_total == most(total));
}

TEST_CASE("memory whose address has more than 32 bits is given back, and the program told that there is none") {
  Narrow remote;
  unsigned before = 0, after = 0, pitch = 0, total = 0;
  REQUIRE(cuMemGetInfo(&before, &total) == CUDA_SUCCESS);
  CUdeviceptr_v1 address = 5;
  CHECK(cuMemAlloc(&address, 1000) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAllocPitch(&address, &pitch, 100, 10, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(address == 0);
  CHECK(cuMemAlloc(nullptr, 1000) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemGetInfo(&after, &total) == CUDA_SUCCESS);
  CHECK(after == before);
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  unsigned bytes = 0;
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "table") == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("addresses of 32 bits are those of 64 with zeros before them") {
  Narrow remote;
  constexpr CUdeviceptr_v1 nowhere = 0x10000;
  char bytes[8] = {};
  CUdeviceptr_v1 base = 0;
  unsigned size = 0;
  CHECK(cuMemcpyHtoD(nowhere, bytes, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH(bytes, nowhere, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoD(nowhere, nowhere, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoDAsync(nowhere, bytes, 8, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoHAsync(bytes, nowhere, 8, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoDAsync(nowhere, nowhere, 8, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(nowhere) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree(0) == CUDA_SUCCESS);
  CHECK(cuMemGetAddressRange(&base, &size, nowhere) != CUDA_SUCCESS);
  // What the driver would say of such memory comes with the next wait.
  const auto set = [](CUresult result) { return result != CUDA_SUCCESS ? result : cuCtxSynchronize(); };
  CHECK(set(cuMemsetD8(nowhere, 1, 8)) != CUDA_SUCCESS);
  CHECK(set(cuMemsetD16(nowhere, 1, 8)) != CUDA_SUCCESS);
  CHECK(set(cuMemsetD32(nowhere, 1, 8)) != CUDA_SUCCESS);
  CHECK(set(cuMemsetD2D8(nowhere, 64, 1, 8, 2)) != CUDA_SUCCESS);
  CHECK(set(cuMemsetD2D16(nowhere, 64, 1, 8, 2)) != CUDA_SUCCESS);
  CHECK(set(cuMemsetD2D32(nowhere, 64, 1, 8, 2)) != CUDA_SUCCESS);
}

TEST_CASE("arrays are made, described and copied with sizes of 32 bits") {
  Narrow remote;
  const CUDA_ARRAY_DESCRIPTOR_v1 flat{16, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray array = nullptr, deep = nullptr;
  REQUIRE(cuArrayCreate(&array, &flat) == CUDA_SUCCESS);
  CHECK(cuArrayCreate(&array, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_DESCRIPTOR_v1 seen{};
  REQUIRE(cuArrayGetDescriptor(&seen, array) == CUDA_SUCCESS);
  CHECK(cuArrayGetDescriptor(nullptr, array) == CUDA_ERROR_INVALID_VALUE);
  CHECK(seen.Width == 16);
  CHECK(seen.Height == 4);
  CHECK(seen.Format == CU_AD_FORMAT_UNSIGNED_INT8);
  CHECK(seen.NumChannels == 1);
  const CUDA_ARRAY3D_DESCRIPTOR_v1 wanted{16, 4, 2, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  REQUIRE(cuArray3DCreate(&deep, &wanted) == CUDA_SUCCESS);
  CUDA_ARRAY3D_DESCRIPTOR_v1 full{};
  REQUIRE(cuArray3DGetDescriptor(&full, deep) == CUDA_SUCCESS);
  CHECK(full.Depth == 2);

  std::vector<unsigned char> bytes(16 * 4), back(16 * 4);
  std::iota(bytes.begin(), bytes.end(), 1);
  CUDA_MEMCPY2D_v1 in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = bytes.data();
  in.srcPitch = 16;
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  in.dstArray = array;
  in.WidthInBytes = 16;
  in.Height = 4;
  REQUIRE(cuMemcpy2D(&in) == CUDA_SUCCESS);
  CHECK(cuMemcpy2D(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D_v1 out{};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.srcXInBytes = 4;
  out.srcY = 1;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = back.data();
  out.dstPitch = 12;
  out.WidthInBytes = 12;
  out.Height = 3;
  out.Depth = 1;
  REQUIRE(cuMemcpy3D(&out) == CUDA_SUCCESS);
  for (unsigned y = 0; y < 3; ++y) CHECK(std::memcmp(&back[y * 12], &bytes[(y + 1) * 16 + 4], 12) == 0);

  std::fill(back.begin(), back.end(), 0);
  REQUIRE(cuMemcpyHtoA(array, 0, bytes.data() + 8, 8) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoA(array, 8, array, 0, 8) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoH(back.data(), array, 0, 16) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), bytes.data() + 8, 8) == 0);
  CHECK(std::memcmp(back.data() + 8, bytes.data() + 8, 8) == 0);
  CHECK(cuMemcpyAtoD(0x10000, array, 0, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoA(array, 0, 0x10000, 8) == CUDA_ERROR_INVALID_VALUE);

  void* pinned = nullptr;
  REQUIRE(cuMemAllocHost(&pinned, 64) == CUDA_SUCCESS);
  std::memcpy(pinned, bytes.data(), 64);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoAAsync(array, 0, pinned, 16, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoHAsync(static_cast<char*>(pinned) + 32, array, 0, 16, stream) == CUDA_SUCCESS);
  in.srcHost = pinned;
  in.Height = 1;
  REQUIRE(cuMemcpy2DAsync(&in, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpy2DUnaligned(&in) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  out = {};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = back.data();
  out.WidthInBytes = 16;
  out.Height = out.Depth = 1;
  REQUIRE(cuMemcpy3DAsync(&out, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), bytes.data(), 16) == 0);
  CHECK(std::memcmp(static_cast<char*>(pinned) + 32, bytes.data(), 16) == 0);
  CUdeviceptr_v1 device = 0;
  CHECK(cuMemHostGetDevicePointer(&device, pinned, 0) == CUDA_ERROR_NOT_SUPPORTED);  // it has more than 32 bits
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("texture references take and tell addresses of 32 bits") {
  Narrow remote;
  CUtexref texture = nullptr;
  REQUIRE(cuTexRefCreate(&texture) == CUDA_SUCCESS);
  unsigned offset = 0;
  const CUDA_ARRAY_DESCRIPTOR_v1 flat{16, 4, CU_AD_FORMAT_FLOAT, 1};
  CHECK(cuTexRefSetAddress(&offset, texture, 0x10000, 64) != CUDA_SUCCESS);  // no memory of the session
  CHECK(cuTexRefSetAddress2D(texture, &flat, 0x10000, 64) != CUDA_SUCCESS);
  CHECK(cuTexRefSetAddress2D(texture, nullptr, 0x10000, 64) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr wide = 0;
  CUdeviceptr_v1 narrow = 3;
  REQUIRE(cuMemAlloc_v2(&wide, 4096) == CUDA_SUCCESS);
  std::size_t wide_offset = 0;
  REQUIRE(cuTexRefSetAddress_v2(&wide_offset, texture, wide, 64) == CUDA_SUCCESS);
  CHECK(cuTexRefGetAddress(&narrow, texture) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(narrow == 0);
}

TEST_CASE("cuGetProcAddress gives the calls of 32 bits to programs of that time") {
  const auto find = [](const char* name, int version) { return client::find_proc(name, version, false).function; };
  CHECK(find("cuMemAlloc", 2000) == reinterpret_cast<void*>(&cuMemAlloc));
  CHECK(find("cuMemAlloc", 3010) == reinterpret_cast<void*>(&cuMemAlloc));
  CHECK(find("cuMemAlloc", 3020) == reinterpret_cast<void*>(&cuMemAlloc_v2));
  CHECK(find("cuCtxCreate", 3010) == reinterpret_cast<void*>(&cuCtxCreate));
  CHECK(find("cuTexRefSetAddress2D", 3010) == reinterpret_cast<void*>(&cuTexRefSetAddress2D));
  CHECK(find("cuTexRefSetAddress2D", 4010) == reinterpret_cast<void*>(&cuTexRefSetAddress2D_v3));
}
