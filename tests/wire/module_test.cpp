// Images, modules, libraries, functions.

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "client/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

std::uint64_t frames(Opcode opcode) { return client::stats::of(opcode).sent.load(); }

}  // namespace

TEST_CASE("an image travels once, however often it is loaded") {
  RemoteContext remote;
  CUmodule first = nullptr, second = nullptr;
  const std::string own = std::string(test::kernels) + "// travels once\n";
  const auto before = frames(Opcode::sendImage);
  REQUIRE(cuModuleLoadData(&first, own.c_str()) == CUDA_SUCCESS);
  CHECK(frames(Opcode::sendImage) == before + 1);
  const std::string copy = own;
  REQUIRE(cuModuleLoadDataEx(&second, copy.c_str(), 0, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(frames(Opcode::sendImage) == before + 1);
  CHECK(first != second);
  CHECK(cuModuleUnload(first) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(first) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuModuleUnload(second) == CUDA_SUCCESS);
}

TEST_CASE("what is no image, or a bad one, is refused, and the compiler's words come back") {
  RemoteContext remote;
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleLoadData(&module, "\x01\x02\x03 neither ELF nor PTX") == CUDA_ERROR_INVALID_IMAGE);
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, "\x7f" "ELF but no more", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  CHECK(cuLibraryGetKernel(&kernel, library, "scale") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  char log[100] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CHECK(cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_90\n syntax error\n", 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log) == "line 1: syntax error");
  CHECK(reinterpret_cast<std::size_t>(values[1]) == 20);
}

TEST_CASE("a log without room is one in which nothing is written") {
  RemoteContext remote;
  char log[100] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CUmodule module = nullptr;
  // A program that passes its arrays twice passes the second time what the driver wrote the first time.
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuModuleLoadDataEx(&module, ".version 8.0\n.entry one(.param .u64 a)\n", 2, options, values) == CUDA_SUCCESS);
    CHECK(values[1] == nullptr);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  }
  std::strcpy(log, "untouched");
  CHECK(cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_90\n syntax error\n", 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log) == "untouched");
  CHECK(values[1] == nullptr);
}

TEST_CASE("separately compiled code is linked by the host's driver") {
  RemoteContext remote;
  const auto container = [](std::string text) {
    text.resize(text.size() + 1);
    std::string bytes("\x50\xED\x55\xBA\x01\x00\x10\x00", 8);
    const std::uint64_t length = text.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    return bytes + text;
  };
  const std::string nothing("\x50\xED\x55\xBA\x01\x00\x10\x00\0\0\0\0\0\0\0\0", 16);
  const std::string first = container(".version 8.0\n.entry one(.param .u64 a)\n");
  const std::string second = container(".version 8.0\n.entry two(.param .u32 b)\n");
  const void* list[] = {first.data(), second.data(), nullptr};
  struct {
    std::uint32_t magic = 0x466243B1;
    std::uint32_t version = 2;
    const void* container;
    const void* more;
  } wrapper{.container = nothing.data(), .more = list};
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  CHECK(cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  CHECK(cuLibraryGetKernel(&kernel, library, "two") == CUDA_SUCCESS);
  CHECK(cuLibraryGetKernel(&kernel, library, "three") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}

TEST_CASE("functions are found by name; those of an unloaded module are unknown") {
  RemoteContext remote;
  CUmodule module = nullptr;
  CUfunction fill = nullptr, again = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&again, module, "fill32") == CUDA_SUCCESS);
  CHECK(again == fill);
  CHECK(cuModuleGetFunction(&again, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetFunction(&again, reinterpret_cast<CUmodule>(1), "fill32") == CUDA_ERROR_INVALID_HANDLE);
  unsigned count = 0;
  CHECK(cuModuleGetFunctionCount(&count, module) == CUDA_SUCCESS);
  CHECK(count == 3);
  CUfunction all[3] = {};
  CHECK(cuModuleEnumerateFunctions(all, 3, module) == CUDA_SUCCESS);
  CHECK(all[0] == fill);
  const char* name = nullptr;
  CHECK(cuFuncGetName(&name, all[1]) == CUDA_SUCCESS);
  CHECK(std::string(name) == "crash");
  std::size_t offset = 9, bytes = 9;
  const auto before = client::stats::round_trips();
  CHECK(cuFuncGetParamInfo(all[0], 1, &offset, &bytes) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(bytes == 4);
  CHECK(cuFuncGetParamInfo(all[0], 3, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client::stats::round_trips() == before);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuFuncGetParamInfo(fill, 0, &offset, &bytes) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a function at the address of an unloaded one has its own parameters") {
  RemoteContext remote;
  for (int round = 0; round < 40; ++round) {
    const bool wide = round % 2 != 0;
    const std::string text = std::string(".version 8.0\n.target sm_90\n.entry ") +
                             (wide ? "one(.param .u64 a, .param .u64 b)" : "two(.param .u32 a)") + "\n// " + std::to_string(round);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, text.c_str()) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&function, module, wide ? "one" : "two") == CUDA_SUCCESS);
    std::uint64_t a = 0x1111111111111111, b = 0x2222222222222222;
    void* arguments[] = {&a, &b};
    REQUIRE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    const auto launches = remote.driver->launches();
    REQUIRE(launches.back().parameters.size() == (wide ? 16 : 4));
    if (wide) CHECK(std::memcmp(launches.back().parameters.data() + 8, &b, 8) == 0);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  }
}

TEST_CASE("libraries have kernels, and kernels functions in each context") {
  RemoteContext remote;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
  unsigned count = 0;
  CHECK(cuLibraryGetKernelCount(&count, library) == CUDA_SUCCESS);
  CHECK(count == 3);
  int value = 0;
  const auto asked = client::stats::round_trips();
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked);  // they came with the kernel
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20, kernel, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client::stats::round_trips() == asked + 1);  // whether it is allowed the driver says
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, kernel, 0) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 1);  // what is surely allowed needs no answer
  // Answers that an attribute may change are asked for again.
  int blocks = 0;
  const auto occupancy = [&] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0); };
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 2);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 60, kernel, 0) == CUDA_SUCCESS);
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 3);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel, 0) == CUDA_SUCCESS);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 65536);
  // Both launch, by the same call.
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned n = 4, word = 3;
  void* arguments[] = {&memory, &n, &word};
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  word = 4;
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  unsigned back = 0;
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 4);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a kernel is found before there is a context, with its parameters") {
  test::Remote remote;
  CUlibrary library = nullptr;
  CUkernel crash = nullptr, fill = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&crash, library, "crash") == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&fill, library, "fill32") == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned n = 4, word = 3, back = 0;
  void* arguments[] = {&memory, &n, &word};
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(fill), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 3);
}

TEST_CASE("variables of modules are device memory while the module is there") {
  RemoteContext remote;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  CUdeviceptr table = 0;
  std::size_t bytes = 0;
  REQUIRE(cuModuleGetGlobal_v2(&table, &bytes, module, "table") == CUDA_SUCCESS);
  CHECK(bytes == 256);
  CHECK(cuModuleGetGlobal_v2(&table, &bytes, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  const float values[] = {1, 2, 3};
  float back[3] = {};
  REQUIRE(cuMemcpyHtoD_v2(table + 16, values, sizeof(values)) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back, table + 16, sizeof(back)) == CUDA_SUCCESS);
  CHECK(back[2] == 3);
  CUmemorytype type{};
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table) == CUDA_ERROR_INVALID_VALUE);
}
