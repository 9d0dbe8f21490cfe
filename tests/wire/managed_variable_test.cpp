// `__managed__` variables of modules: memory that the driver placed, used by program and kernels at one address.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "fixture.h"

using namespace fargpu;
using test::Remote;
using test::RemoteContext;

namespace {

struct Variables : RemoteContext {
  Variables() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill_kernel, module, "fill32") == CUDA_SUCCESS);
  }
  unsigned* find(const char* name, std::size_t expected) {
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    REQUIRE(cuModuleGetGlobal_v2(&address, &bytes, module, name) == CUDA_SUCCESS);
    CHECK(bytes == expected);
    return reinterpret_cast<unsigned*>(address);
  }
  void fill(unsigned* words, unsigned count, unsigned value) {
    CUdeviceptr address = reinterpret_cast<CUdeviceptr>(words);
    void* arguments[] = {&address, &count, &value};
    REQUIRE(cuLaunchKernel(fill_kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  }
  CUmodule module = nullptr;
  CUfunction fill_kernel = nullptr;
};

}  // namespace

TEST_CASE("a managed variable is read and written by both sides") {
  Variables v;
  unsigned* const words = v.find("managed_words", 4000);
  CHECK(words[0] == 0x11111111);
  CHECK(words[999] == 0x11111111);
  for (unsigned round = 1; round < 4; ++round) {
    words[5] = round;
    v.fill(words + 6, 10, 100 * round);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(words[5] == round);
    CHECK(words[6] == 100 * round);
    CHECK(words[16] == 0x11111111);
    // The GPU has what the program wrote.
    unsigned there = 0;
    REQUIRE(cuMemcpyDtoH_v2(&there, reinterpret_cast<CUdeviceptr>(words + 5), 4) == CUDA_SUCCESS);
    CHECK(there == round);
  }
}

TEST_CASE("variables that share a page keep their own contents") {
  Variables v;
  unsigned* const words = v.find("managed_words", 4000);
  words[0] = 1;  // the page is the program's before the others are known
  unsigned* const flag = v.find("managed_flag", 4);
  CHECK(*flag == 0x22222222);
  unsigned* const table = v.find("managed_table", 200'000);
  CHECK(table[0] == 0x33333333);
  CHECK(table[49'999] == 0x33333333);
  *flag = 7;
  table[49'999] = 8;
  v.fill(table, 10'000, 9);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(words[0] == 1);
  CHECK(words[1] == 0x11111111);
  CHECK(*flag == 7);
  CHECK(table[9'999] == 9);
  CHECK(table[10'000] == 0x33333333);
  CHECK(table[49'999] == 8);
  CHECK(v.find("managed_words", 4000) == words);  // again: nothing changes
  CHECK(words[0] == 1);
}

TEST_CASE("a managed variable is told to be one, and is no allocation") {
  Variables v;
  const CUdeviceptr flag = reinterpret_cast<CUdeviceptr>(v.find("managed_flag", 4));
  unsigned managed = 0;
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, flag) == CUDA_SUCCESS);
  CHECK(managed == 1);
  void* host = nullptr;
  CHECK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, flag) == CUDA_SUCCESS);
  CHECK(host == reinterpret_cast<void*>(flag));
  CHECK(cuMemFree_v2(flag) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync_v2(flag, 4, {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, 0, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamAttachMemAsync(nullptr, flag, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CUdeviceptr table = 0;
  REQUIRE(cuModuleGetGlobal_v2(&table, nullptr, v.module, "table") == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, table) == CUDA_SUCCESS);
  CHECK(managed == 0);
}

TEST_CASE("system calls use managed variables") {
  Variables v;
  unsigned* const words = v.find("managed_words", 4000);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  v.fill(words, 4, 77);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(::write(ends[1], words, 16) == 16);
  unsigned back[4] = {};
  CHECK(::read(ends[0], back, 16) == 16);
  CHECK(back[3] == 77);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("managed variables go with their module") {
  Variables v;
  unsigned* const words = v.find("managed_words", 4000);
  v.find("managed_flag", 4);
  words[0] = 5;
  REQUIRE(cuModuleUnload(v.module) == CUDA_SUCCESS);
  unsigned managed = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(words);
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_ERROR_INVALID_VALUE);
  // Its pages too: nothing can be read there any more.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(::write(ends[1], words, 4) == -1);
  ::close(ends[0]);
  ::close(ends[1]);
  CUmodule other = nullptr;
  REQUIRE(cuModuleLoadData(&other, test::kernels) == CUDA_SUCCESS);
  v.module = other;
  CHECK(v.find("managed_words", 4000)[0] == 0x11111111);
}

TEST_CASE("managed variables of a module that is not unloaded after all keep their contents") {
  Variables v;
  unsigned* const words = v.find("managed_words", 4000);
  words[0] = 5;
  const bool late = GENERATE(true, false);
  if (late) {  // then it is an earlier call's error, and the module goes
    v.driver->script("cuMemsetD8Async", CUDA_ERROR_UNKNOWN, 1);
    CUdeviceptr memory = 0;
    REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(memory, 1, 64, nullptr) == CUDA_SUCCESS);
    while (v.driver->calls("cuMemsetD8Async") == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(cuModuleUnload(v.module) == CUDA_ERROR_UNKNOWN);
    CHECK(v.driver->calls("cuModuleUnload") == 1);
    REQUIRE(cuModuleLoadData(&v.module, test::kernels) == CUDA_SUCCESS);
    v.find("managed_words", 4000)[0] = 5;
  } else {
    v.driver->script("cuModuleUnload", CUDA_ERROR_NOT_PERMITTED, 1);
    REQUIRE(cuModuleUnload(v.module) == CUDA_ERROR_NOT_PERMITTED);
    CHECK(v.find("managed_words", 4000) == words);
  }
  CHECK(words[0] == 5);
  CHECK(words[1] == 0x11111111);
}

TEST_CASE("libraries tell of managed variables by a call of their own") {
  RemoteContext remote;
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  REQUIRE(cuLibraryGetManaged(&address, &bytes, library, "managed_flag") == CUDA_SUCCESS);
  CHECK(bytes == 4);
  CHECK(*reinterpret_cast<unsigned*>(address) == 0x22222222);
  // A variable, but not a managed one.
  CHECK(cuLibraryGetManaged(&address, &bytes, library, "table") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuLibraryGetManaged(nullptr, nullptr, library, "managed_flag") == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLibraryGetManaged(&address, &bytes, nullptr, "managed_flag") == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);  // as CUDA's runtime asks, before it has a context
  CHECK(cuLibraryGetManaged(&address, &bytes, library, "managed_flag") == CUDA_SUCCESS);
  CHECK(cuLibraryGetGlobal(&address, &bytes, library, "managed_flag") == CUDA_ERROR_INVALID_CONTEXT);
  void* function = nullptr;
  CHECK(cuLibraryGetUnifiedFunction(&function, library, "main") == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLibraryGetUnifiedFunction(nullptr, library, "main") == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLibraryGetUnifiedFunction(&function, nullptr, "main") == CUDA_ERROR_INVALID_HANDLE);
  int unified = 1;
  CHECK(cuDeviceGetAttribute(&unified, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0) == CUDA_SUCCESS);
  CHECK(unified == 0);
}

TEST_CASE("a managed variable of a library outlives the context in which it was asked for first") {
  RemoteContext remote;
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUcontext first = nullptr;
  REQUIRE(cuCtxCreate_v4(&first, nullptr, 0, 0) == CUDA_SUCCESS);
  CUdeviceptr address = 0, again = 0;
  REQUIRE(cuLibraryGetManaged(&address, nullptr, library, "managed_words") == CUDA_SUCCESS);
  const bool asked_by_both = GENERATE(true, false);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  if (asked_by_both) {
    REQUIRE(cuLibraryGetManaged(&again, nullptr, library, "managed_words") == CUDA_SUCCESS);
    CHECK(again == address);
  }
  auto* const words = reinterpret_cast<unsigned*>(address);
  words[5] = 7;  // sent by way of the first context
  REQUIRE(cuMemsetD32_v2(address + 24, 9, 1) == CUDA_SUCCESS);
  const bool ours = GENERATE(true, false);
  if (ours) words[7] = 8;  // not sent yet
  REQUIRE(cuCtxDestroy_v2(first) == CUDA_SUCCESS);
  unsigned managed = 0;
  REQUIRE(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS);
  CHECK(managed == 1);
  CUcontext its = nullptr;
  CHECK(cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
  CHECK(its == remote.context);
  CHECK(words[5] == 7);
  CHECK(words[6] == 9);
  CHECK(words[7] == (ours ? 8u : 0x11111111u));
  words[8] = 10;
  unsigned there[4] = {};
  REQUIRE(cuMemcpyDtoH_v2(there, address + 20, 16) == CUDA_SUCCESS);
  CHECK(there[0] == 7);
  CHECK(there[2] == words[7]);
  CHECK(there[3] == 10);
  CHECK(cuLibraryGetManaged(&again, nullptr, library, "managed_words") == CUDA_SUCCESS);
  CHECK(again == address);
  CHECK(words[8] == 10);
  REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a managed variable is there before any context is") {
  Remote remote;
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  REQUIRE(cuLibraryGetManaged(&address, nullptr, library, "managed_flag") == CUDA_SUCCESS);
  auto* const flag = reinterpret_cast<unsigned*>(address);
  CHECK(*flag == 0x22222222);
  *flag = 6;
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  unsigned there = 0;
  REQUIRE(cuMemcpyDtoH_v2(&there, address, 4) == CUDA_SUCCESS);
  CHECK(there == 6);
}

TEST_CASE("a managed variable outside of the band of addresses that is kept for it is refused") {
  RemoteContext remote;
  client::Thread& thread = client::Thread::current();
  client::Session& session = remote.session();
  const auto adopt = [&](std::uint64_t address, std::uint64_t bytes) {
    return session.managed.adopt(thread, *thread.context(), address, bytes);
  };
  CHECK_FALSE(adopt(fake::driver_band - 4, 4));
  CHECK_FALSE(adopt(fake::driver_band + fake::driver_band_bytes - 4, 8));
  CHECK_FALSE(adopt(fake::driver_band, ~std::uint64_t{0}));
  CHECK_FALSE(adopt(fake::driver_band, 0));
}
