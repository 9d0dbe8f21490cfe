// Device memory through the wire.

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/call/stats.h"
#include "fixture.h"
#include "hand_made_client.h"
#include "making_room.h"
#include "wrap.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

// What is written to stderr while `body` runs.
template <class Body>
std::string said(Body&& body) {
  const int file = ::memfd_create("stderr", MFD_CLOEXEC), before = ::dup(STDERR_FILENO);
  ::dup2(file, STDERR_FILENO);
  body();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text(static_cast<std::size_t>(::lseek(file, 0, SEEK_END)), '\0');
  CHECK(::pread(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  ::close(file);
  return text;
}

}  // namespace

TEST_CASE("memory is allocated, filled, copied and freed") {
  RemoteContext remote;
  CUdeviceptr a = 0, b = 0;
  REQUIRE(cuMemAlloc_v2(&a, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&b, 1000) == CUDA_SUCCESS);
  CHECK(a % 512 == 0);
  CHECK(b - a == 1024);
  std::vector<unsigned char> out(1000), back(1000);
  std::iota(out.begin(), out.end(), 0);
  REQUIRE(cuMemcpyHtoD_v2(a, out.data(), out.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoD_v2(b, a, 500) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(b + 500, 7, 500) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), b, back.size()) == CUDA_SUCCESS);
  std::fill(out.begin() + 500, out.end(), 7);
  CHECK(back == out);
  CHECK(cuMemFree_v2(a) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(b + 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(b) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(0) == CUDA_SUCCESS);
}

TEST_CASE("memsets of nothing are done, wherever they are, and bring no later failure") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  std::size_t free = 0, total = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 2 << 20) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const std::size_t before = remote.driver->calls("cuMemsetD8Async");
  for (const CUdeviceptr place : {CUdeviceptr{0}, memory, memory + (2 << 20), CUdeviceptr{0x1000}}) {
    CHECK(cuMemsetD8Async(place, 1, 0, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD16Async(place, 1, 0, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD32Async(place, 1, 0, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD2D8Async(place, 64, 1, 0, 5, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD2D32Async(place, 64, 1, 5, 0, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD8_v2(place, 1, 0) == CUDA_SUCCESS);
    CHECK(cuMemsetD2D16_v2(place, 64, 1, 0, 5) == CUDA_SUCCESS);
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);  // which would tell of one
  }
  CHECK(cuMemsetD8Async(memory, 1, 0, reinterpret_cast<CUstream>(0x1234)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(remote.driver->calls("cuMemsetD8Async") == before);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(memory, 1, 0, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuMemsetD8Async") == before + 1);  // the driver knows which nodes it makes
}

TEST_CASE("memsets of rows of wider elements are refused at once where the pitch is not a multiple of these") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (const std::size_t pitch : {std::size_t{65}, std::size_t{66}, std::size_t{68}, SIZE_MAX}) {
    CAPTURE(pitch);
    const CUresult by_two = pitch % 2 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const CUresult by_four = pitch % 4 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (pitch < 4096) CHECK(cuMemsetD2D8Async(memory, pitch, 1, 8, 2, stream) == CUDA_SUCCESS);
    CHECK(cuMemsetD2D16Async(memory, pitch, 1, 8, 2, stream) == by_two);
    CHECK(cuMemsetD2D16_v2(memory, pitch, 1, 8, 2) == by_two);
    CHECK(cuMemsetD2D32Async(memory, pitch, 1, 8, 2, stream) == by_four);
    CHECK(cuMemsetD2D32_v2(memory, pitch, 1, 8, 2) == by_four);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("device addresses that CUDA does not know are refused, not taken for the host's") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  std::vector<unsigned char> host(64), other(64, 3);
  const auto wrong = GENERATE_REF(CUdeviceptr{0x1000}, reinterpret_cast<CUdeviceptr>(other.data()));
  CHECK(cuMemcpyDtoH_v2(host.data(), wrong, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(wrong, host.data(), 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoDAsync_v2(wrong, host.data(), 16, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoD_v2(memory, wrong, 16) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = wrong;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = host.data();
  rows.WidthInBytes = rows.srcPitch = rows.dstPitch = 8;
  rows.Height = 2;
  CHECK(cuMemcpy2D_v2(&rows) == CUDA_ERROR_INVALID_VALUE);
  // A copy that does not say what its addresses are has both sides looked up.
  REQUIRE(cuMemcpy(reinterpret_cast<CUdeviceptr>(host.data()), reinterpret_cast<CUdeviceptr>(other.data()), 64) ==
          CUDA_SUCCESS);
  CHECK(host == other);
}

TEST_CASE("large copies arrive whole, in both directions") {
  RemoteContext remote;
  const std::size_t bytes = (11u << 20) + 13;  // several frames, the last one odd
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  std::vector<unsigned char> out(bytes), back(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.data(), bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(back.data(), memory, bytes, nullptr) == CUDA_SUCCESS);
  CHECK(back == out);
}

TEST_CASE("two- and three-dimensional copies respect pitches") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  std::size_t pitch = 0;
  REQUIRE(cuMemAllocPitch_v2(&memory, &pitch, 100, 20, 4) == CUDA_SUCCESS);
  CHECK(pitch == 512);
  std::vector<unsigned char> host(120 * 20), back(130 * 20, 0);
  std::iota(host.begin(), host.end(), 0);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = host.data();
  in.srcPitch = 120;
  in.srcXInBytes = 3;
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = memory;
  in.dstPitch = pitch;
  in.dstY = 1;
  in.WidthInBytes = 90;
  in.Height = 15;
  REQUIRE(cuMemcpy2D_v2(&in) == CUDA_SUCCESS);
  CUDA_MEMCPY2D out{};
  out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  out.srcDevice = memory;
  out.srcPitch = pitch;
  out.srcY = 1;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = back.data();
  out.dstPitch = 130;
  out.WidthInBytes = 90;
  out.Height = 15;
  REQUIRE(cuMemcpy2DAsync_v2(&out, nullptr) == CUDA_SUCCESS);
  for (std::size_t y = 0; y < 15; ++y) CHECK(std::memcmp(&back[y * 130], &host[y * 120 + 3], 90) == 0);

  CUdeviceptr cube = 0;
  REQUIRE(cuMemAlloc_v2(&cube, 8 * 6 * 5) == CUDA_SUCCESS);
  std::vector<unsigned char> voxels(8 * 6 * 5), seen(8 * 6 * 5, 0);
  std::iota(voxels.begin(), voxels.end(), 1);
  CUDA_MEMCPY3D volume{};
  volume.srcMemoryType = CU_MEMORYTYPE_HOST;
  volume.srcHost = voxels.data();
  volume.srcPitch = 8;
  volume.srcHeight = 6;
  volume.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  volume.dstDevice = cube;
  volume.dstPitch = 8;
  volume.dstHeight = 6;
  volume.WidthInBytes = 5;
  volume.Height = 4;
  volume.Depth = 3;
  volume.srcZ = volume.dstZ = 1;
  volume.srcY = volume.dstY = 2;
  REQUIRE(cuMemcpy3D_v2(&volume) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(seen.data(), cube, seen.size()) == CUDA_SUCCESS);
  for (std::size_t z = 1; z < 4; ++z)
    for (std::size_t y = 2; y < 6; ++y) CHECK(std::memcmp(&seen[(z * 6 + y) * 8], &voxels[(z * 6 + y) * 8], 5) == 0);

  // A picture on the device, copied within it.
  CUdeviceptr other = 0;
  REQUIRE(cuMemAlloc_v2(&other, pitch * 20) == CUDA_SUCCESS);
  CUDA_MEMCPY2D across = out;
  across.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  across.dstDevice = other;
  across.dstPitch = 256;
  REQUIRE(cuMemcpy2D_v2(&across) == CUDA_SUCCESS);
  std::vector<unsigned char> row(90);
  REQUIRE(cuMemcpyDtoH_v2(row.data(), other + 14 * 256, 90) == CUDA_SUCCESS);
  CHECK(std::memcmp(row.data(), &host[14 * 120 + 3], 90) == 0);
}

TEST_CASE("allocations within an arena cost no round trip and freed memory is used again") {
  RemoteContext remote;
  CUdeviceptr first = 0;
  REQUIRE(cuMemAlloc_v2(&first, 100) == CUDA_SUCCESS);
  const std::size_t backed = remote.driver->calls("cuMemCreate");
  std::vector<CUdeviceptr> more(100);
  for (CUdeviceptr& address : more) REQUIRE(cuMemAlloc_v2(&address, 4096) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuMemCreate") == backed);
  for (const CUdeviceptr address : more) REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  CUdeviceptr again = 0;
  REQUIRE(cuMemAlloc_v2(&again, 4096) == CUDA_SUCCESS);
  CHECK(std::find(more.begin(), more.end(), again) != more.end());
}

TEST_CASE("a freed block is not used again before the GPU has passed it") {
  RemoteContext remote;
  CUdeviceptr block = 0, other = 0;
  REQUIRE(cuMemAlloc_v2(&block, 8u << 20) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(block, 1, 1024, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);  // does not wait: nothing comes to the host by itself
  REQUIRE(cuMemAlloc_v2(&other, 8u << 20) == CUDA_SUCCESS);
  CHECK(other != block);
  remote.driver->pause(false);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&other, 8u << 20) == CUDA_SUCCESS);
  CHECK(other == block);
}

TEST_CASE("running out of memory is an error, and what is kept for reuse counts as free") {
  RemoteContext remote;
  std::size_t free_before = 0, total = 0, free_after = 0;
  REQUIRE(cuMemGetInfo_v2(&free_before, &total) == CUDA_SUCCESS);
  CHECK(total == 1u << 30);
  CUdeviceptr most = 0, rest = 0;
  REQUIRE(cuMemAlloc_v2(&most, 900u << 20) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&rest, 200u << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemAlloc_v2(&rest, 100u << 20) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(rest) == CUDA_SUCCESS);  // kept
  REQUIRE(cuMemGetInfo_v2(&free_after, &total) == CUDA_SUCCESS);
  CHECK(free_after == free_before - (900u << 20));
  REQUIRE(cuMemAlloc_v2(&rest, 120u << 20) == CUDA_SUCCESS);  // only if what was kept is given back first
  CHECK(cuMemAlloc_v2(&rest, std::size_t{1} << 45) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAlloc_v2(&rest, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAlloc_v2(nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("what was freed while the GPU works counts as free") {
  RemoteContext remote;
  std::size_t before = 0, after = 0, total = 0;
  CUdeviceptr block = 0, used = 0;
  REQUIRE(cuMemAlloc_v2(&used, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemGetInfo_v2(&before, &total) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&block, 64u << 20) == CUDA_SUCCESS);
  test::Paused paused;
  REQUIRE(cuMemsetD8Async(used, 1, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
  auto works = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    paused.end();
  });
  REQUIRE(cuMemGetInfo_v2(&after, &total) == CUDA_SUCCESS);
  CHECK(after == before);
}

TEST_CASE("copies outside of what the program holds are refused") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  char byte = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 1000) == CUDA_SUCCESS);
  CHECK(cuMemcpyHtoD_v2(memory + 1000, &byte, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(&byte, memory + 999, 2) == CUDA_ERROR_INVALID_VALUE);
  // Nor do they go on into the next allocation.
  CUdeviceptr first = 0, second = 0;
  REQUIRE(cuMemAlloc_v2(&first, 1024) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&second, 1024) == CUDA_SUCCESS);
  REQUIRE(second == first + 1024);
  std::vector<char> bytes(2048);
  CHECK(cuMemcpyHtoD_v2(first, bytes.data(), 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoHAsync_v2(bytes.data(), first + 512, 513, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8_v2(first, 1, 1025) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8Async(first, 1, 1024, nullptr) == CUDA_SUCCESS);
}

TEST_CASE("nobody waits for a copy in that only later work can notice, and later work on any stream finds its bytes") {
  RemoteContext remote;
  CUdeviceptr memory = 0, copy = 0;
  CUstream first = nullptr, second = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&copy, 4096) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto trips = [](CUstream stream) {
    const auto before = client::stats::round_trips();
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    return client::stats::round_trips() - before;
  };
  for (const CUstream stream : {CUstream{}, first}) {
    for (unsigned char value = 1; value < 20; ++value) {
      std::vector<unsigned char> out(4096, value), back(4096);
      REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.data(), out.size(), stream) == CUDA_SUCCESS);
      CHECK(trips(stream) == 0);
      CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
      std::fill(out.begin(), out.end(), 0);
      REQUIRE(cuMemcpyDtoDAsync_v2(copy, memory, out.size(), second) == CUDA_SUCCESS);
      CHECK(trips(second) == 1);
      REQUIRE(cuMemcpyDtoH_v2(back.data(), copy, back.size()) == CUDA_SUCCESS);
      CHECK(back == std::vector<unsigned char>(4096, value));
    }
  }
  // With other work before it, a wait is a wait.
  unsigned char byte = 1;
  REQUIRE(cuMemsetD8Async(memory, 1, 4096, first) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, &byte, 1, first) == CUDA_SUCCESS);
  CHECK(trips(first) == 1);
  REQUIRE(cuMemsetD8Async(memory, 1, 4096, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, &byte, 1, nullptr) == CUDA_SUCCESS);
  CHECK(trips(nullptr) == 1);
  // So it is where another process may look.
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, memory) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, &byte, 1, first) == CUDA_SUCCESS);
  CHECK(trips(first) == 1);
  const auto before = client::stats::round_trips();
  REQUIRE(cuMemcpyHtoD_v2(memory, &byte, 1) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before + 1);
}

TEST_CASE("a copy in that is taken for done behind a host function is done before what comes later") {
  RemoteContext remote;
  CUdeviceptr memory = 0, copy = 0;
  CUstream first = nullptr, second = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&copy, 64) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(first, test::Gate::pass, &gate) == CUDA_SUCCESS);
  unsigned char byte = 7, back = 0;
  // Read when its turn comes, for the function may write it.
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, &byte, 1, second) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  byte = 8;
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 1) == CUDA_SUCCESS);
  CHECK(back == 7);
  gate.open();
  CHECK(cuStreamSynchronize(first) == CUDA_SUCCESS);
}

TEST_CASE("pointer attributes are answered from the map") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 1000) == CUDA_SUCCESS);
  unsigned type = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 10) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, memory + 999) == CUDA_SUCCESS);
  CHECK(base == memory);
  CHECK(bytes == 1000);
  CUcontext context = nullptr;
  CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory) == CUDA_SUCCESS);
  CHECK(context == remote.context);
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAllocAsync(&pooled, 1000, nullptr) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pooled) == CUDA_SUCCESS);
  CHECK(context == nullptr);
  // They need no current context.
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  type = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  int local = 0;
  const auto here = reinterpret_cast<CUdeviceptr>(&local);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, here) == CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  int ordinal = 0, managed = 5;
  CUdeviceptr device = 1;
  void* data[] = {&type, &ordinal, &device, &managed};
  CHECK(cuPointerGetAttributes(4, wanted, data, here) == CUDA_SUCCESS);
  CHECK(type == 0);
  CHECK(ordinal == -2);
  CHECK(device == 0);
  CHECK(managed == 0);
  // The address of the host is nothing for memory of the device, and the address itself for memory that is the
  // program's own.
  CUpointer_attribute host[] = {CU_POINTER_ATTRIBUTE_HOST_POINTER};
  CUdeviceptr answer = 1;
  void* to_answer[] = {&answer};
  CHECK(cuPointerGetAttributes(1, host, to_answer, memory + 10) == CUDA_SUCCESS);
  CHECK(answer == 0);
  CHECK(cuPointerGetAttribute(&answer, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttributes(1, host, to_answer, here) == CUDA_SUCCESS);
  CHECK(answer == here);
  void* pinned = nullptr;
  REQUIRE(cuMemAllocHost_v2(&pinned, 100) == CUDA_SUCCESS);
  const auto pinned_at = reinterpret_cast<CUdeviceptr>(pinned);
  CHECK(cuPointerGetAttributes(1, host, to_answer, pinned_at + 9) == CUDA_SUCCESS);
  CHECK(answer == pinned_at + 9);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  unsigned access = 0;
  CHECK(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, memory) == CUDA_SUCCESS);
  CHECK(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  std::vector<char> registered(4096);
  REQUIRE(cuMemHostRegister_v2(registered.data(), 4096, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                              reinterpret_cast<CUdeviceptr>(registered.data())) == CUDA_SUCCESS);
  CHECK(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);
  CHECK(cuMemHostUnregister(registered.data()) == CUDA_SUCCESS);
}

TEST_CASE("pointers tell in which forms other processes may have their memory") {
  RemoteContext remote;
  const auto types = [](CUdeviceptr pointer) {
    unsigned long long types = ~0ull;
    CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer) == CUDA_SUCCESS);
    return types;
  };
  CUdeviceptr plain = 0, pooled = 0, mapped = 0;
  REQUIRE(cuMemAlloc_v2(&plain, 1000) == CUDA_SUCCESS);
  CHECK(types(plain) == CU_MEM_HANDLE_TYPE_NONE);
  CUmemPoolProps pool_wish{};
  pool_wish.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool_wish.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  pool_wish.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &pool_wish) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocFromPoolAsync(&pooled, 1000, pool, nullptr) == CUDA_SUCCESS);
  CHECK(types(pooled) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUmemAllocationProp wish{};
  wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wish.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wish.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemGenericAllocationHandle allocation{};
  REQUIRE(cuMemCreate(&allocation, 2u << 20, &wish, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&mapped, 2u << 20, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(mapped, 2u << 20, 0, allocation, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(allocation) == CUDA_SUCCESS);
  CHECK(types(mapped) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  unsigned access = 9;
  CHECK(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, mapped) == CUDA_SUCCESS);
  CHECK(access == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CUcontext context = remote.context;
  CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, mapped) == CUDA_SUCCESS);
  CHECK(context == nullptr);
}

TEST_CASE("virtual memory is reserved, created, mapped and given back") {
  RemoteContext remote;
  const std::uint64_t before = remote.driver->memory_bytes();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::size_t granularity = 0;
  REQUIRE(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, 64 * granularity, 0, 0, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0, again = 0;
  REQUIRE(cuMemCreate(&handle, 2 * granularity, &prop, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(range + 4 * granularity, 2 * granularity, 0, handle, 0) == CUDA_SUCCESS);
  unsigned long long flags = 9;
  CHECK(cuMemGetAccess(&flags, &prop.location, range + 6 * granularity - 1) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (const CUdeviceptr nothing : {range, range + 6 * granularity, CUdeviceptr{0x1234000}}) {
    CHECK(cuMemGetAccess(&flags, &prop.location, nothing) == CUDA_ERROR_INVALID_VALUE);
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  }
  CHECK(cuMemGetAccess(&flags, &prop.location, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(range + 5 * granularity, granularity, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  REQUIRE(cuMemSetAccess(range + 4 * granularity, 2 * granularity, &access, 1) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(range + 4 * granularity, 0x01020304, 16) == CUDA_SUCCESS);
  unsigned value = 0;
  REQUIRE(cuMemcpyDtoH_v2(&value, range + 4 * granularity + 60, 4) == CUDA_SUCCESS);
  CHECK(value == 0x01020304);
  REQUIRE(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range + 4 * granularity + 5)) == CUDA_SUCCESS);
  CHECK(again == handle);
  CUmemAllocationProp seen{};
  REQUIRE(cuMemGetAllocationPropertiesFromHandle(&seen, handle) == CUDA_SUCCESS);
  CHECK(seen.location.id == 0);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(cuMemRelease(again) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressFree(range, 64 * granularity) == CUDA_ERROR_INVALID_VALUE);  // something is still mapped
  CHECK(remote.driver->memory_bytes() == before + 2 * granularity);
  CHECK(cuMemUnmap(range + 4 * granularity, granularity) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemUnmap(range + 4 * granularity, 2 * granularity) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(range, 64 * granularity) == CUDA_SUCCESS);
  CHECK(cuMemRelease(again) == CUDA_ERROR_INVALID_VALUE);  // the worker's answer, after all before it
  CHECK(remote.driver->memory_bytes() == before);
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CHECK(cuMemCreate(&handle, granularity, &prop, 0) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a reservation has its alignment, also where it is wished elsewhere") {
  RemoteContext remote;
  constexpr std::size_t piece = 2u << 20, wide = 64 * piece;
  CUdeviceptr range = 0, wished = 0;
  REQUIRE(cuMemAddressReserve(&range, 2 * wide, wide, 0, 0) == CUDA_SUCCESS);
  CHECK(range % wide == 0);
  REQUIRE(cuMemAddressFree(range, 2 * wide) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&wished, piece, wide, range + piece, 0) == CUDA_SUCCESS);
  CHECK(wished % wide == 0);
  REQUIRE(cuMemAddressFree(wished, piece) == CUDA_SUCCESS);
  for (const auto& [alignment, wish] : {std::pair{std::size_t{0}, range + piece}, std::pair{wide, range + wide}}) {
    REQUIRE(cuMemAddressReserve(&wished, piece, alignment, wish, 0) == CUDA_SUCCESS);
    CHECK(wished == wish);
  }
}

TEST_CASE("a link of the GPU to its own host is none to the program's memory") {
  RemoteContext remote;
  int value = 7;
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0) == CUDA_SUCCESS);
  CHECK(value == CU_DEVICE_NUMA_CONFIG_NONE);
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_NUMA_ID, 0) == CUDA_SUCCESS);
  CHECK(value == -1);
  CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(value == 0);
  const CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  unsigned capabilities[] = {7, 7};
  CHECK(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0) == CUDA_SUCCESS);
  CHECK(capabilities[0] == 0);
  CHECK(capabilities[1] == 0);
  CHECK(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory of the host is denied by attributes, and refused without a word") {
  RemoteContext remote;
  const auto attribute = [](CUdevice_attribute which) {
    int value = 7;
    REQUIRE(cuDeviceGetAttribute(&value, which, 0) == CUDA_SUCCESS);
    return value;
  };
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) == -1);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED) == 0);
  CUmemGenericAllocationHandle handle = 0;
  const std::string words = said([&] {
    for (const auto type :
         {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}) {
      CUmemAllocationProp prop{};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location = {type, 0};
      CHECK(cuMemCreate(&handle, 2u << 20, &prop, 0) == CUDA_ERROR_NOT_SUPPORTED);
      std::size_t granularity = 0;
      CHECK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
            CUDA_ERROR_NOT_SUPPORTED);
    }
  });
  CHECK(words == "");
  CHECK(remote.driver->calls("cuMemCreate") == 0);
}

TEST_CASE("batches of decompression go to the driver, with every address checked over its length") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 6, 4096) == CUDA_SUCCESS);
  const auto at = [&](std::size_t offset) { return reinterpret_cast<void*>(memory + offset); };
  const CUmemDecompressParams good{.srcNumBytes = 1000,
                                   .dstNumBytes = 1000,
                                   .dstActBytes = static_cast<cuuint32_t*>(at(4000)),
                                   .src = at(0),
                                   .dst = at(2048),
                                   .algo = CU_MEM_DECOMPRESS_ALGORITHM_SNAPPY,
                                   .padding = {}};
  std::size_t failed = 5;
  CUmemDecompressParams list[2] = {good, good};
  REQUIRE(cuMemBatchDecompressAsync(list, 2, 0, &failed, nullptr) == CUDA_SUCCESS);
  unsigned written = 0;
  REQUIRE(cuMemcpyDtoH_v2(&written, memory + 4000, 4) == CUDA_SUCCESS);
  CHECK(written == 1000);
  // What the driver has to say comes back, with the item.
  list[1].algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  CHECK(cuMemBatchDecompressAsync(list, 2, 0, &failed, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(failed == 1);
  CHECK(cuMemBatchDecompressAsync(list, 2, 0, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  const std::size_t asked = remote.driver->calls("cuMemBatchDecompressAsync");
  remote.driver->script("cuMemBatchDecompressAsync", CUDA_ERROR_NOT_SUPPORTED, 1);
  CHECK(cuMemBatchDecompressAsync(list, 1, 0, &failed, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  constexpr std::size_t none = ~std::size_t{0};
  CHECK(failed == none);

  const auto with = [&](auto&& change) {
    list[1] = good;
    change(list[1]);
    const CUresult result = cuMemBatchDecompressAsync(list, 2, 0, &failed, nullptr);
    CHECK(failed == 1);
    return result;
  };
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  int here = 0;
  CHECK(with([](auto& i) { i.srcNumBytes = 0; }) == invalid);
  CHECK(with([](auto& i) { i.srcNumBytes = ~std::size_t{0}; }) == invalid);
  CHECK(with([](auto& i) { i.srcNumBytes = std::size_t{1} << 30; }) == invalid);
  CHECK(with([](auto& i) { i.dstNumBytes = std::size_t{1} << 30; }) == invalid);
  CHECK(with([&](auto& i) { i.src = &here; }) == invalid);
  CHECK(with([&](auto& i) { i.dst = &here; }) == invalid);
  CHECK(with([&](auto& i) { i.dstActBytes = nullptr; }) == invalid);
  CHECK(with([](auto& i) { i.padding[19] = 1; }) == invalid);
  failed = 5;
  CHECK(cuMemBatchDecompressAsync(list, 0, 0, &failed, nullptr) == invalid);
  CHECK(failed == none);
  CHECK(cuMemBatchDecompressAsync(nullptr, 1, 0, &failed, nullptr) == invalid);
  CHECK(cuMemBatchDecompressAsync(list, 1, 1, &failed, nullptr) == invalid);
  CHECK(cuMemBatchDecompressAsync(list, none, 0, &failed, nullptr) == invalid);
  CHECK(cuMemBatchDecompressAsync(list, 1, 0, &failed, reinterpret_cast<CUstream>(0x770)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(remote.driver->calls("cuMemBatchDecompressAsync") == asked + 1);
}

TEST_CASE("a worker decompresses nothing that the session does not have") {
  HandMadeClient client;
  client.open_context();
  const auto send = [&](std::uint64_t stream, std::uint64_t address, std::uint64_t bytes) {
    client.send_call<wire::Decompress>(Opcode::decompress, [&](wire::Decompress::Builder in) {
      in.setStream(stream);
      auto item = in.initItems(1)[0];
      item.setSource(address);
      item.setSourceBytes(bytes);
      item.setTarget(address);
      item.setWritten(address);
    });
    return client.reply();
  };
  CHECK(send(99, 0x1000'0000'0000, 5) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(send(1, 0x1000'0000'0000, 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(send(1, ~0ull - 3, ~0ull) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory that nobody has asked for yet is bounded, however many threads ask at once") {
  constexpr std::uint64_t piece = 4u << 20;
  constexpr unsigned threads = 16;
  test::HoldBack hold;
  const test::Wrapping wrapping([&](auto channel) { return hold.wrap(std::move(channel)); });
  RemoteContext remote;
  CUdeviceptr address = 0;
  // So that the worker is asked for as many spare pieces as it may be.
  for (int i = 0; i < 20; ++i) REQUIRE(cuMemAlloc_v2(&address, piece) == CUDA_SUCCESS);
  const std::uint64_t before = remote.driver->memory_bytes(), kept = before - 20 * piece;
  REQUIRE(kept <= client::DeviceMemory::spare_bytes_min);
  const auto sent = client::stats::of(Opcode::backMemory).sent.load();
  const std::uint64_t wanted = kept / piece + threads;  // what is kept, and one request of each thread
  hold.begin();
  std::vector<std::future<CUresult>> asking;
  for (unsigned i = 0; i < wanted; ++i)
    asking.push_back(std::async(std::launch::async, [&] {
      CUdeviceptr mine = 0;
      const CUresult bad = cuCtxSetCurrent(remote.context);
      return bad != CUDA_SUCCESS ? bad : cuMemAlloc_v2(&mine, piece);
    }));
  while (client::stats::of(Opcode::backMemory).sent.load() < sent + threads) std::this_thread::yield();
  hold.end();
  for (auto& thread : asking) CHECK(thread.get() == CUDA_SUCCESS);
  CHECK(remote.driver->memory_bytes() <= 20 * piece + wanted * piece + client::DeviceMemory::spare_bytes_min);
}

// A first training step, as PyTorch's allocator sees it, in small: few sizes, many times.
TEST_CASE("a program that grows asks for memory of one size a few times") {
  constexpr std::uint64_t mib = 1u << 20;
  RemoteContext remote;
  const auto before = client::stats::of(Opcode::backMemory).sent.load();
  unsigned allocations = 0;
  std::uint64_t bytes = 0;
  const auto allocate = [&](std::uint64_t size) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc_v2(&address, size) == CUDA_SUCCESS);
    ++allocations;
    bytes += size;
  };
  for (int layer = 0; layer < 12; ++layer) {
    for (const std::uint64_t size : {8 * mib, 2 * mib, 2 * mib, 6 * mib, 4 * mib}) allocate(size);
  }
  const auto asked = client::stats::of(Opcode::backMemory).sent.load() - before;
  CHECK(allocations == 60);
  CHECK(asked <= 20);  // pieces by one, two, four and eight, as far as there is room
  CHECK(remote.driver->memory_bytes() <= bytes + client::DeviceMemory::spare_bytes_min);
}

namespace {

CUmemAllocationProp on_device() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return prop;
}

std::uint64_t trips() {
  const auto answered = [](Opcode opcode) { return client::stats::of(opcode).waited.load(); };
  return answered(Opcode::makeMemory) + answered(Opcode::mapMemory) + answered(Opcode::cuMemSetAccess) +
         answered(Opcode::unmapMemory) + answered(Opcode::finishCopies) + answered(Opcode::cuMemRelease);
}

}  // namespace

// As PyTorch's expandable segments do.
TEST_CASE("a range that grows piece by piece, and shrinks, asks the worker a few times") {
  constexpr std::uint64_t piece = 2u << 20;
  constexpr unsigned pieces = 60;
  RemoteContext remote;
  const std::uint64_t before = remote.driver->memory_bytes(), asked = trips();
  const CUmemAllocationProp prop = on_device();
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, pieces * piece, 0, 0, 0) == CUDA_SUCCESS);
  std::vector<CUmemGenericAllocationHandle> handles(pieces);
  for (unsigned i = 0; i < pieces; ++i) {
    REQUIRE(cuMemCreate(&handles[i], piece, &prop, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(range + i * piece, piece, 0, handles[i], 0) == CUDA_SUCCESS);
    REQUIRE(cuMemSetAccess(range + i * piece, piece, &access, 1) == CUDA_SUCCESS);
  }
  CHECK(std::set(handles.begin(), handles.end()).size() == pieces);
  CHECK(trips() - asked <= pieces / 4);
  unsigned last = 0;
  REQUIRE(cuMemsetD32_v2(range + (pieces - 1) * piece, 7, 1) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&last, range + (pieces - 1) * piece, 4) == CUDA_SUCCESS);
  CHECK(last == 7);
  CHECK(remote.driver->memory_bytes() <= before + pieces * piece + client::DeviceMemory::spare_bytes_min);

  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::uint64_t grown = trips();
  for (unsigned i = 0; i < pieces; ++i) {
    REQUIRE(cuMemUnmap(range + i * piece, piece) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(handles[i]) == CUDA_SUCCESS);
  }
  CHECK(trips() == grown);
  REQUIRE(cuMemAddressFree(range, pieces * piece) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handles[0]) == CUDA_ERROR_INVALID_VALUE);  // the worker's answer, after all before it
  CHECK(remote.driver->memory_bytes() <= before + limits::spares_max * piece);
}

TEST_CASE("memory that came unasked is of the kind that is wanted, and goes where there is no room") {
  constexpr std::uint64_t piece = 2u << 20;
  RemoteContext remote;
  CUmemAllocationProp prop = on_device();
  CUmemGenericAllocationHandle handle = 0;
  for (int i = 0; i < 4; ++i) REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
  const std::uint64_t spare = remote.driver->memory_bytes() - 4 * piece;
  REQUIRE(spare >= piece);
  std::size_t free = 0, total = 0;
  REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  CHECK(total - free == 4 * piece);  // what nobody has asked for is free

  const std::size_t made = remote.driver->calls("cuMemCreate");
  SECTION("another kind is made anew") {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
    CHECK(remote.driver->calls("cuMemCreate") > made);
    CHECK(cuMemCreate(&handle, 2 * piece, &prop, 0) == CUDA_SUCCESS);
  }
  SECTION("the same kind is there") {
    CHECK(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
    CHECK(remote.driver->calls("cuMemCreate") == made);
  }
  SECTION("it is given back before anything is refused, and none comes until the program gives some back") {
    remote.driver->script("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(cuMemCreate(&handle, 3 * piece, &prop, 0) == CUDA_SUCCESS);
    CHECK(remote.driver->memory_bytes() == 7 * piece);
    for (int i = 0; i < 8; ++i) REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
    CHECK(remote.driver->memory_bytes() == 15 * piece);
    // Now that there may be too little for its page tables, a mapping's own answer is the program's.
    remote.driver->script("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, 1);
    CUdeviceptr range = 0;
    REQUIRE(cuMemAddressReserve(&range, piece, 0, 0, 0) == CUDA_SUCCESS);
    CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
    REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
    CHECK(remote.driver->memory_bytes() > 16 * piece);
  }
}

TEST_CASE("what is said of memory that the client cannot know is the driver's word") {
  RemoteContext remote;
  const CUmemAllocationProp prop = on_device();
  constexpr std::uint64_t piece = 4u << 20;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, 4 * piece, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range, piece / 2, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemMap(range, 2 * piece, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemMap(range, piece, piece, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemMap(range, piece, 0, handle + 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemRelease(handle + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  // It lives on, but not by this handle.
  CHECK(cuMemMap(range + piece, piece, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle again = 0;
  REQUIRE(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)) == CUDA_SUCCESS);
  CHECK(cuMemMap(range + piece, piece, 0, again, 0) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(range, 2 * piece) == CUDA_SUCCESS);
  CHECK(cuMemRelease(again) == CUDA_SUCCESS);
  CHECK(cuMemRelease(again) == CUDA_ERROR_INVALID_VALUE);

  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr allocated = 0;
  REQUIRE(cuMemAlloc_v2(&allocated, piece) == CUDA_SUCCESS);
  for (const auto& [address, bytes] :
       {std::pair<CUdeviceptr, std::size_t>{allocated, 0}, {allocated, piece}, {range, 0}}) {
    remote.driver->script("cuMemSetAccess", CUDA_ERROR_INVALID_VALUE, 1);
    CHECK(cuMemSetAccess(address, bytes, &access, 1) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);  // nothing comes late
}

namespace {

/// Pieces of memory in a range, which kernels may use.
struct Mapped {
  static constexpr std::uint64_t piece = 2u << 20;
  explicit Mapped(unsigned pieces) : bytes(pieces * piece) {
    const CUmemAllocationProp prop = on_device();
    const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE(cuMemAddressReserve(&range, bytes, 0, 0, 0) == CUDA_SUCCESS);
    for (unsigned i = 0; i < pieces; ++i) {
      REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
      REQUIRE(cuMemMap(range + i * piece, piece, 0, handle, 0) == CUDA_SUCCESS);
    }
    REQUIRE(cuMemSetAccess(range, bytes, &access, 1) == CUDA_SUCCESS);
  }
  std::uint64_t bytes;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;  ///< of the last
};

}  // namespace

// A copy may be on its way yet of which the program has been told that it is done.
TEST_CASE("a mapping, and access to it, go behind copies that the program takes for done") {
  const bool unmaps = GENERATE(true, false);
  test::Turnstile turns;
  RemoteContext remote(RemoteContext::default_config(), {}, &turns);
  Mapped mapped(1);
  remote.hear_out();
  const std::size_t before = remote.driver->calls(unmaps ? "cuMemUnmap" : "cuMemSetAccess");
  const std::vector<std::byte> data(1 << 16);
  std::function<void()> go_on;
  SECTION("that are held back") {
    REQUIRE(cuMemcpyHtoD_v2(mapped.range, data.data(), data.size()) == CUDA_SUCCESS);
    REQUIRE(turns.heard({.wants = true}));
    go_on = [&] { turns.tell({.granted = true}); };
  }
  SECTION("that the GPU has") {
    turns.tell({.granted = true});
    remote.driver->pause(true);
    REQUIRE(cuMemcpyHtoD_v2(mapped.range, data.data(), data.size()) == CUDA_SUCCESS);
    go_on = [&] { remote.driver->pause(false); };
  }
  const CUmemAccessDesc none{on_device().location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  auto taking = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    if (bad != CUDA_SUCCESS) return bad;
    return unmaps ? cuMemUnmap(mapped.range, mapped.bytes) : cuMemSetAccess(mapped.range, mapped.bytes, &none, 1);
  });
  CHECK(taking.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  CHECK(remote.driver->calls(unmaps ? "cuMemUnmap" : "cuMemSetAccess") == before);
  go_on();
  CHECK(taking.get() == CUDA_SUCCESS);
  if (unmaps) CHECK(cuMemMap(mapped.range, mapped.bytes, 0, mapped.handle, 0) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.driver->calls(unmaps ? "cuMemUnmap" : "cuMemSetAccess") == before + 1);
}

TEST_CASE("mappings go together, with one question at most") {
  RemoteContext remote;
  Mapped mapped(4);
  REQUIRE(cuMemsetD8Async(mapped.range, 1, Mapped::piece, nullptr) == CUDA_SUCCESS);
  const std::uint64_t asked = trips();
  CHECK(cuMemUnmap(mapped.range, mapped.bytes) == CUDA_SUCCESS);
  CHECK(trips() == asked + 1);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuMemUnmap") == 4);
}

TEST_CASE("that there was no room for one call is not taken for another's answer") {
  RemoteContext remote;
  const CUmemAllocationProp prop = on_device();
  Mapped mapped(4);  // with more that nobody has asked for, and that could be given back
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, Mapped::piece, 0, 0, 0) == CUDA_SUCCESS);
  remote.driver->script("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, 1);
  REQUIRE(cuMemMap(range, Mapped::piece, 0, mapped.handle, 0) == CUDA_SUCCESS);
  remote.hear_out();
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, 3 * Mapped::piece, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemCreate(&handle, 3 * Mapped::piece, &prop, 0) == CUDA_SUCCESS);
}

TEST_CASE("where there is little left, a mapping's own answer is waited for") {
  RemoteContext remote(RemoteContext::default_config(), {100 * Mapped::piece, 100 * Mapped::piece});
  const CUmemAllocationProp prop = on_device();
  CUmemGenericAllocationHandle little = 0, much = 0;
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, Mapped::piece, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&little, Mapped::piece, &prop, 0) == CUDA_SUCCESS);
  const std::uint64_t asked = trips();
  REQUIRE(cuMemMap(range, Mapped::piece, 0, little, 0) == CUDA_SUCCESS);
  REQUIRE(trips() == asked);
  REQUIRE(cuMemUnmap(range, Mapped::piece) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&much, 90 * Mapped::piece, &prop, 0) == CUDA_SUCCESS);
  remote.driver->script("cuMemMap", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(cuMemMap(range, Mapped::piece, 0, little, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemMap(range, Mapped::piece, 0, little, 0) == CUDA_SUCCESS);
}

TEST_CASE("memory is held so many times and no more") {
  RemoteContext remote;
  Mapped mapped(1);
  CUmemGenericAllocationHandle again = 0;
  unsigned holds = 1;
  while (holds < 1u << 20 && cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(mapped.range)) == CUDA_SUCCESS)
    ++holds;
  CHECK(holds == 1u << 14);
  CHECK(again == mapped.handle);
  REQUIRE(cuMemUnmap(mapped.range, mapped.bytes) == CUDA_SUCCESS);
  for (; holds > 0; --holds) REQUIRE(cuMemRelease(mapped.handle) == CUDA_SUCCESS);
  CHECK(cuMemRelease(mapped.handle) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->memory_bytes() <= limits::spares_max * Mapped::piece);
}

TEST_CASE("of memory that is to leave its device and cannot, no copy stays at the host") {
  test::make_room = [](const server::RoomWish&) { return true; };
  {
    RemoteContext remote;
    constexpr std::uint64_t bytes = 32u << 20;
    CUdeviceptr memory[3] = {};
    for (unsigned char i = 0; i < 3; ++i) {
      REQUIRE(cuMemAlloc_v2(&memory[i], bytes) == CUDA_SUCCESS);
      REQUIRE(cuMemsetD8_v2(memory[i], static_cast<unsigned char>(i + 1), bytes) == CUDA_SUCCESS);
    }
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    const int file = ::memfd_create("evicted", MFD_CLOEXEC);
    REQUIRE(file >= 0);
    const auto held = [&] {
      struct stat state {};
      ::fstat(file, &state);
      return static_cast<std::uint64_t>(state.st_blocks) * 512;
    };
    const auto soon = [](auto&& condition) {
      for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return condition();
    };
    const std::size_t before = remote.driver->calls("cuMemUnmap");
    remote.driver->script("cuMemUnmap", CUDA_ERROR_UNKNOWN, 1);
    remote.evict({.number = 1,
                  .bytes = {},
                  .disk_bytes_max = 1u << 30,
                  .file = server::Descriptor(::dup(file)),
                  .patience = std::chrono::seconds(20)});
    REQUIRE(soon([&] { return remote.driver->calls("cuMemUnmap") >= before + 3; }));  // all has been copied
    CHECK(soon([&] { return held() == 2 * bytes; }));
    for (unsigned char i = 0; i < 3; ++i) {
      unsigned char last = 0;
      REQUIRE(cuMemcpyDtoH_v2(&last, memory[i] + bytes - 1, 1) == CUDA_SUCCESS);
      CHECK(last == i + 1);
    }
    CHECK(soon([&] { return held() == 0; }));
    ::close(file);
  }
  test::make_room = nullptr;
}
