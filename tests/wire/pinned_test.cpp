// Pinned and registered host memory: whose bytes a copy takes, and when.

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <vector>

#include "client/call/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Pinned {
  explicit Pinned(std::size_t bytes, unsigned flags = 0) {
    REQUIRE(cuMemHostAlloc(&pointer, bytes, flags) == CUDA_SUCCESS);
  }
  ~Pinned() { CHECK(cuMemFreeHost(pointer) == CUDA_SUCCESS); }
  unsigned char* bytes() const { return static_cast<unsigned char*>(pointer); }
  void* pointer = nullptr;
};

/// Memory that a worker in this process maps elsewhere, and not over these pages.
struct Registered {
  explicit Registered(std::size_t bytes) : memory(bytes, 1) {
    REQUIRE(cuMemHostRegister_v2(memory.data(), bytes, 0) == CUDA_SUCCESS);
  }
  ~Registered() { CHECK(cuMemHostUnregister(memory.data()) == CUDA_SUCCESS); }
  std::vector<unsigned char> memory;
};

}  // namespace

TEST_CASE("copies from and to pinned memory") {
  RemoteContext remote;
  const std::size_t bytes = GENERATE(100u, 5u << 20);
  Pinned out(bytes), back(bytes);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  for (std::size_t i = 0; i < bytes; ++i) out.bytes()[i] = static_cast<unsigned char>(i * 31);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.pointer, bytes, nullptr) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  REQUIRE(cuMemcpyDtoHAsync_v2(back.pointer, memory, bytes, nullptr) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);  // it does not wait
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::memcmp(out.pointer, back.pointer, bytes) == 0);
}

TEST_CASE("large pinned memory has large pages, where the system has such") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) return;
  RemoteContext remote;
  const Pinned large(5u << 20);
  const auto address = reinterpret_cast<std::uintptr_t>(large.pointer);
  CHECK(address % (2u << 20) == 0);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  std::uintptr_t begin = 0, end = 0;
  bool found = false, is_private = false, asked_for = false;
  while (std::getline(maps, line)) {
    char dash = 0;
    std::uintptr_t from = 0, to = 0;
    std::istringstream words(line);
    if (std::string modes; words >> std::hex >> from >> dash >> to >> modes && dash == '-') {
      begin = from, end = to;
      if (begin <= address && address < end) found = true, is_private = modes.ends_with('p');
    } else if (begin <= address && address < end && line.starts_with("VmFlags:")) {
      asked_for = line.find(" hg") != std::string::npos;
    }
  }
  REQUIRE(found);
  CHECK(asked_for == is_private);  // what is shared with the worker is the worker's
}

TEST_CASE("pinned memory is freed and made again while another context is behind a function of the program") {
  RemoteContext remote;
  CUcontext other = nullptr;
  void* first = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&first, 4096, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(first, memory, 4096, nullptr) == CUDA_SUCCESS);  // the host has it now
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  std::promise<void> allowed;
  auto allow = std::make_pair(allowed.get_future(), 0);
  REQUIRE(cuLaunchHostFunc(
              nullptr, [](void* waits) { static_cast<decltype(allow)*>(waits)->first.wait(); }, &allow) ==
          CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  auto freed = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuMemFreeHost(first);
  });
  CHECK(freed.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  allowed.set_value();
  CHECK(freed.get() == CUDA_SUCCESS);
  const Pinned out(4096), back(4096);
  std::memset(out.pointer, 7, 4096);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.pointer, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(back.pointer, memory, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::memcmp(out.pointer, back.pointer, 4096) == 0);
  CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
}

TEST_CASE("registered memory is unregistered while a copy of another context is on its way to it") {
  RemoteContext remote;
  const std::size_t bytes = GENERATE(4096u, 5u << 20);  // by the host's copy of the block, and by lanes
  std::vector<unsigned char> memory(bytes, 1);
  REQUIRE(cuMemHostRegister_v2(memory.data(), bytes, 0) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUdeviceptr from = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&from, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(from, 9, bytes) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  REQUIRE(cuMemcpyDtoHAsync_v2(memory.data(), from, bytes, stream) == CUDA_SUCCESS);
  auto unregistered = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuMemHostUnregister(memory.data());
  });
  CHECK(unregistered.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  gate.open();
  CHECK(unregistered.get() == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(std::count(memory.begin(), memory.end(), 9) == static_cast<std::ptrdiff_t>(bytes));
  CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
}

TEST_CASE("neither copies of pinned memory nor other contexts wait for a function of the program") {
  RemoteContext remote;
  CUcontext other = nullptr;
  CUstream behind = nullptr;
  CUdeviceptr memory = 0;
  unsigned back = 0;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&behind, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  const Pinned out(4096);
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(behind, test::Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  std::memset(out.pointer, 7, 4096);
  CHECK(cuMemcpyHtoDAsync_v2(memory, out.pointer, 4096, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(&back, memory, sizeof(back)) == CUDA_SUCCESS);
  CHECK(back == 0x07070707);
  gate.open();
  CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
}

TEST_CASE("bytes that a copy has just written to pinned memory can be copied on without waiting") {
  RemoteContext remote;
  CUdeviceptr first = 0, second = 0;
  REQUIRE(cuMemAlloc_v2(&first, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&second, 4096) == CUDA_SUCCESS);
  Pinned between(4096);
  std::memset(between.pointer, 1, 4096);
  REQUIRE(cuMemsetD8Async(first, 9, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(between.pointer, first, 2048, nullptr) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  REQUIRE(cuMemcpyHtoDAsync_v2(second, between.pointer, 4096, nullptr) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);
  std::vector<unsigned char> back(4096);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), second, 4096) == CUDA_SUCCESS);
  CHECK(std::count(back.begin(), back.begin() + 2048, 9) == 2048);
  CHECK(std::count(back.begin() + 2048, back.end(), 1) == 2048);
}

TEST_CASE("a copy behind a host function takes what that function wrote") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  Pinned pinned(64);
  std::memset(pinned.pointer, 1, 64);
  REQUIRE(cuLaunchHostFunc(
              nullptr, [](void* to) { std::memset(to, 2, 64); }, pinned.pointer) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, pinned.pointer, 64, nullptr) == CUDA_SUCCESS);
  unsigned char back[64] = {};
  REQUIRE(cuMemcpyDtoH_v2(back, memory, 64) == CUDA_SUCCESS);
  CHECK(back[0] == 2);
  CHECK(back[63] == 2);
}

TEST_CASE("pageable bytes are those of the moment of the call") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned char bytes[64], back[64];
  std::memset(bytes, 1, sizeof(bytes));
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, bytes, 64, nullptr) == CUDA_SUCCESS);
  std::memset(bytes, 2, sizeof(bytes));
  REQUIRE(cuMemcpyDtoHAsync_v2(back, memory, 64, nullptr) == CUDA_SUCCESS);
  CHECK(back[0] == 1);  // there when the call returns
}

TEST_CASE("kernels write to registered memory, and the program sees it after a synchronisation") {
  RemoteContext remote;
  std::vector<unsigned> words(1000, 1);
  REQUIRE(cuMemHostRegister_v2(words.data(), words.size() * 4, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  CUdeviceptr device = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words.data() + 10, 0) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  unsigned count = 5, value = 77;
  void* arguments[] = {&device, &count, &value};
  words[500] = 42;  // the program's own change is not lost
  REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(words[9] == 1);
  CHECK(words[10] == 77);
  CHECK(words[14] == 77);
  CHECK(words[15] == 1);
  CHECK(words[500] == 42);
  // The other way: a copy on the device reads what the program wrote last.
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  words[10] = 5;
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, &words[10], 4, nullptr) == CUDA_SUCCESS);
  unsigned back = 0;
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 5);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(words.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK(cuMemHostGetDevicePointer_v2(&device, words.data(), 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory is there for kernels once its device pointer alone is asked for") {
  RemoteContext remote;
  std::vector<unsigned> words(1u << 20, 1);  // small memory may be mapped at once
  REQUIRE(cuMemHostRegister_v2(words.data(), words.size() * 4, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  const auto here = reinterpret_cast<CUdeviceptr>(words.data());
  const auto mapped = [&] { return remote.session().host_memory.mapped(here); };
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  CUdeviceptr among_others = 0, alone = 0, device = 0;
  void* answer = &among_others;
  REQUIRE(cuPointerGetAttributes(1, &asked, &answer, here + 8) == CUDA_SUCCESS);
  CHECK_FALSE(mapped());
  REQUIRE(cuPointerGetAttribute(&alone, asked, here + 8) == CUDA_SUCCESS);
  CHECK(mapped());
  CHECK(alone == among_others);
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words.data(), 0) == CUDA_SUCCESS);
  CHECK(alone == device + 8);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);
}

TEST_CASE("registered memory that kernels use may be large") {
  RemoteContext remote;
  std::vector<unsigned> words(3u << 20, 1);  // several frames each way
  REQUIRE(cuMemHostRegister_v2(words.data(), words.size() * 4, 0) == CUDA_SUCCESS);
  CUdeviceptr device = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words.data(), 0) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  const auto launch = [&](CUdeviceptr at, unsigned count, unsigned value) {
    void* arguments[] = {&at, &count, &value};
    REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  };
  launch(device + 40, static_cast<unsigned>(words.size()) - 20, 5);
  words[3] = 7;
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(words[3] == 7);
  CHECK(words[9] == 1);
  CHECK(std::count(words.begin(), words.end(), 5u) == static_cast<std::ptrdiff_t>(words.size() - 20));
  // What has not changed does not travel.
  const auto sent = remote.session().calls.commands.bytes_sent(),
             received = remote.session().calls.receiver.bytes_received();
  words[2u << 20] = 8;
  launch(device, 1, 9);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(words[0] == 9);
  CHECK(words[2u << 20] == 8);
  CHECK(remote.session().calls.commands.bytes_sent() - sent < 4096);
  CHECK(remote.session().calls.receiver.bytes_received() - received < 4096);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, words.size() * 4) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, words.data(), words.size() * 4, nullptr) == CUDA_SUCCESS);
  std::vector<unsigned> back(words.size());
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size() * 4) == CUDA_SUCCESS);
  CHECK(back == words);
  launch(device, 1, 10);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);  // waits
  CHECK(words[0] == 10);
}

TEST_CASE("a copy to pinned memory is there before kernels see it") {
  RemoteContext remote;
  std::vector<unsigned> words(1u << 20, 1);
  REQUIRE(cuMemHostRegister_v2(words.data(), words.size() * 4, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0, device = 0;
  REQUIRE(cuMemAlloc_v2(&memory, words.size() * 4) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 6, words.size(), nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(words.data(), memory, words.size() * 4, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words.data(), 0) == CUDA_SUCCESS);
  unsigned back = 0;
  REQUIRE(cuMemcpyDtoH_v2(&back, device + words.size() * 4 - 4, 4) == CUDA_SUCCESS);
  CHECK(back == 6);
  CHECK(words.back() == 6);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);
}

TEST_CASE("pinned memory comes into the sight of kernels when no copy of another thread to it is under way") {
  using std::chrono_literals::operator""ms;
  RemoteContext remote;
  if (remote.session().shares_memory()) return;  // both have the same pages
  Registered pinned(64u << 10);
  CUstream first = nullptr, second = nullptr, third = nullptr;
  for (CUstream* const stream : {&first, &second, &third})
    REQUIRE(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 9, 64) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  test::Gate before, meanwhile;
  REQUIRE(cuLaunchHostFunc(first, test::Gate::pass, &before) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned.memory.data(), memory, 32, first) == CUDA_SUCCESS);
  auto used = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS
               ? bad
               : cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(pinned.memory.data() + 4096), 5, 16, third);
  });
  CHECK(used.wait_for(50ms) == std::future_status::timeout);
  REQUIRE(cuLaunchHostFunc(second, test::Gate::pass, &meanwhile) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned.memory.data() + 32, memory, 32, second) == CUDA_SUCCESS);
  before.open();
  CHECK(used.wait_for(50ms) == std::future_status::timeout);
  meanwhile.open();
  CHECK(used.get() == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(std::count(pinned.memory.data(), pinned.memory.data() + 64, 9) == 64);
  CHECK(pinned.memory[64] == 1);
  CHECK(pinned.memory[4096] == 5);
  for (CUstream stream : {first, second, third}) CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

TEST_CASE("pinned memory that the GPU's host had no room for is tried again by the next copy") {
  RemoteContext remote;
  if (remote.session().shares_memory()) return;  // it has room from the beginning
  const Pinned pinned(4096);
  CUdeviceptr memory = 0;
  unsigned char word[4] = {};
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 9, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(word, memory, 4) == CUDA_SUCCESS);
  std::memset(pinned.pointer, 1, 4096);
  remote.driver->script("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 3);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuMemcpyDtoHAsync_v2(pinned.pointer, memory, 64, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CHECK(pinned.bytes()[0] == 1);
  }
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned.pointer, memory, 64, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::count(pinned.bytes(), pinned.bytes() + 64, 9) == 64);
}

TEST_CASE("pinned memory that found room late is of its own context, and not of the one that copies") {
  RemoteContext remote;
  if (remote.session().shares_memory()) return;  // it has room from the beginning
  const Pinned pinned(4096);
  CUdeviceptr memory = 0, others = 0;
  CUcontext other = nullptr;
  unsigned char word[4] = {};
  const auto fill = [&](CUdeviceptr& address, unsigned char value) {
    REQUIRE(cuMemAlloc_v2(&address, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(address, value, 64) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(word, address, 4) == CUDA_SUCCESS);
  };
  const auto copy = [&](CUdeviceptr from) {
    REQUIRE(cuMemcpyDtoHAsync_v2(pinned.pointer, from, 64, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  };
  fill(memory, 9);
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  fill(others, 7);
  remote.driver->script("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  copy(others);
  CHECK(std::count(pinned.bytes(), pinned.bytes() + 64, 7) == 64);
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  copy(memory);
  CHECK(std::count(pinned.bytes(), pinned.bytes() + 64, 9) == 64);
}

TEST_CASE("copies go on to pinned memory for which kernels found no room") {
  RemoteContext remote;
  if (remote.session().shares_memory()) return;  // it has room from the beginning
  Registered pinned(4096);
  CUdeviceptr memory = 0;
  unsigned char word[4] = {};
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 9, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(word, memory, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned.memory.data(), memory, 32, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  remote.driver->script("cuMemHostRegister_v2", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pinned.memory.data()), 5, 8, nullptr) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned.memory.data() + 32, memory, 32, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::count(pinned.memory.data(), pinned.memory.data() + 64, 9) == 64);
  CHECK(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pinned.memory.data()), 5, 8, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(pinned.memory[7] == 5);
}

TEST_CASE("a memset may go to registered memory") {
  RemoteContext remote;
  std::vector<unsigned> words(64, 1);
  REQUIRE(cuMemHostRegister_v2(words.data(), words.size() * 4, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(reinterpret_cast<CUdeviceptr>(words.data()), 9, 32) == CUDA_SUCCESS);
  CHECK(words[0] == 9);  // the synchronous form waits where the host sees the outcome
  CHECK(words[31] == 9);
  CHECK(words[32] == 1);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);
}

TEST_CASE("host memory: what is refused") {
  RemoteContext remote;
  void* pointer = nullptr;
  CHECK(cuMemHostAlloc(&pointer, 0, 0) == CUDA_SUCCESS);
  CHECK(pointer == nullptr);
  CHECK(cuMemHostAlloc(&pointer, 10, 0x80) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostAlloc(nullptr, 10, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostAlloc(&pointer, std::size_t{1} << 50, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemFreeHost(&pointer) == CUDA_ERROR_INVALID_VALUE);
  std::vector<unsigned char> bytes(8192);
  REQUIRE(cuMemHostRegister_v2(bytes.data() + 3, 100, 0) == CUDA_SUCCESS);  // need not be aligned
  CHECK(cuMemHostRegister_v2(bytes.data() + 50, 100, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(cuMemHostUnregister(bytes.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK(cuMemHostUnregister(bytes.data() + 3) == CUDA_SUCCESS);
  // Ranges that wrap, or are not all there.
  void* const pages = ::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(::munmap(static_cast<std::byte*>(pages) + 4096, 4096) == 0);
  for (const std::size_t length : {~std::size_t{0}, ~std::size_t{0} - 4095, std::size_t{1} << 63, std::size_t{1} << 47,
                                   std::size_t{4097}, std::size_t{3 * 4096}})
    CHECK(cuMemHostRegister_v2(pages, length, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostRegister_v2(pages, 4096, 0) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(pages) == CUDA_SUCCESS);
  ::munmap(pages, 4096);
  ::munmap(static_cast<std::byte*>(pages) + 2 * 4096, 4096);
}
