// Two sessions in one process, with two workers over the fake driver: which call goes to which, and what becomes of the
// one when the other is lost.

#include <algorithm>
#include <chrono>
#include <thread>

#include "calls_stream.capnp.h"
#include "several.h"

namespace fargpu::test {
namespace {

TEST_CASE("a session begins when one of its devices is first used") {
  Several several;
  int count = 0, processors = 0, active = 1, peer = 1;
  unsigned flags = 0;
  CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 3);
  char first[32], second[32];
  CHECK(cuDeviceGetPCIBusId(first, sizeof first, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetPCIBusId(second, sizeof second, 1) == CUDA_SUCCESS);
  CHECK(std::string(first) != second);
  CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(cuDeviceCanAccessPeer(&peer, 0, 1) == CUDA_SUCCESS);
  CHECK(peer == 0);
  CHECK_FALSE(several.hosts[0]->begun());
  CHECK_FALSE(several.hosts[1]->begun());
  several.use(other_device);
  CHECK_FALSE(several.hosts[0]->begun());
  CHECK(several.hosts[1]->begun());
  CUdevice device = -1;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == other_device);
  CHECK(cuDevicePrimaryCtxRetain(nullptr, 3) != CUDA_SUCCESS);
  CUcontext none = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&none, 3) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("handles and addresses name their session") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  CHECK(one.context != other.context);
  CHECK(one.stream != other.stream);
  CHECK(one.event != other.event);
  CHECK(one.memory != other.memory);
  CHECK(several.hosts[0]->session().terms.device_window.contains(one.memory));
  CHECK(several.hosts[1]->session().terms.device_window.contains(other.memory));
  // The other one is current.
  CHECK(cuMemsetD32_v2(one.memory, 17, 4) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(one.memory + 16, 18, 4, one.stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(one.event) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(one.stream) == CUDA_SUCCESS);
  CHECK(word_at(one.memory) == 17);
  CHECK(word_at(one.memory + 16) == 18);
  CUcontext current = nullptr;
  CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == other.context);
  // What belongs together must be of one.
  CHECK(cuEventRecord(one.event, other.stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(other.event, one.stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemsetD32Async(one.memory, 1, 4, other.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(one.memory, other.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxEnablePeerAccess(one.context, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK(cuMemFree_v2(one.memory) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(one.memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamDestroy_v2(one.stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(one.stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamQuery(other.stream) == CUDA_SUCCESS);
}

TEST_CASE("a worker takes no handle of another session") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  client::Thread& thread = client::Thread::current();
  client::RemoteCall<wire::CuStreamSynchronize> call(several.hosts[1]->session().calls, thread, thread.context());
  call.in().setHStream(handle_of(one.stream).value());
  CHECK(call.wait() == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a library is loaded where its kernels are launched") {
  Several several;
  const Side one(several, 0);
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  REQUIRE(cuLibraryLoadData(&library, kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_SUCCESS);
  const Side other(several, other_device);
  for (const Side* const side : {&one, &other}) {
    CUdeviceptr address = side->memory;
    unsigned count = 8, value = 0x1234;
    void* arguments[] = {&address, &count, &value};
    REQUIRE(cuCtxSetCurrent(side->context) == CUDA_SUCCESS);
    REQUIRE(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, side->stream, arguments,
                           nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(side->stream) == CUDA_SUCCESS);
    CHECK(word_at(side->memory + 4) == 0x1234);
  }
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("copies and waits go between sessions in the order of their streams") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  CHECK(cuMemsetD32_v2(one.memory, 3, Side::bytes / 4) == CUDA_SUCCESS);
  CHECK(cuMemcpyPeer(other.memory, other.context, one.memory, one.context, Side::bytes) == CUDA_SUCCESS);
  CHECK(word_at(other.memory + Side::bytes - 4) == 3);
  Paused paused;  // the GPU: nothing of what follows may wait for it
  CHECK(cuMemsetD32Async(one.memory, 4, 16, one.stream) == CUDA_SUCCESS);
  CHECK(cuMemcpyAsync(other.memory, one.memory, 64, one.stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(one.memory, 5, 16, one.stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoDAsync_v2(other.memory + 64, other.memory, 64, other.stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(other.stream) == CUDA_ERROR_NOT_READY);
  paused.end();
  CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
  CHECK(word_at(other.memory + 64 + 60) == 4);
  CHECK(word_at(one.memory) == 5);
  CHECK(cuMemcpyAsync(other.memory, one.memory + Side::bytes, 64, one.stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies of one session from and to pinned memory of another have their time in the stream") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  constexpr std::size_t bytes = 4096;
  REQUIRE(cuCtxSetCurrent(one.context) == CUDA_SUCCESS);
  void* memory = nullptr;
  REQUIRE(cuMemHostAlloc(&memory, bytes, 0) == CUDA_SUCCESS);
  auto* const words = static_cast<unsigned*>(memory);
  std::fill_n(words, bytes / 4, 1);
  CHECK(cuMemsetD32_v2(one.memory, 2, bytes / 4) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(other.context) == CUDA_SUCCESS);
  {
    Paused paused;
    CHECK(cuMemcpyDtoHAsync_v2(memory, one.memory, bytes, one.stream) == CUDA_SUCCESS);
    CHECK(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync_v2(other.memory, memory, bytes, other.stream) == CUDA_SUCCESS);
  }
  CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
  CHECK(word_at(other.memory) == 2);
  CHECK(word_at(other.memory + bytes - 4) == 2);
  // A function of the program writes it, on either stream.
  for (const CUstream stream : {one.stream, other.stream}) {
    std::fill_n(words, bytes / 4, 3);
    CHECK(cuLaunchHostFunc(
              stream,
              [](void* place) {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                *static_cast<unsigned*>(place) = 4;
              },
              memory) == CUDA_SUCCESS);
    CHECK(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync_v2(other.memory, memory, bytes, other.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
    CHECK(word_at(other.memory) == 4);
    CHECK(word_at(other.memory + 4) == 3);
  }
  {
    Paused paused;  // nobody waits for what is written
    CHECK(cuMemsetD32Async(other.memory, 5, bytes / 4, other.stream) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoHAsync_v2(memory, other.memory, bytes, other.stream) == CUDA_SUCCESS);
    CHECK(words[1] == 3);
  }
  CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
  CHECK(words[0] == 5);
  CHECK(words[bytes / 4 - 1] == 5);
  CHECK(cuMemFreeHost(memory) == CUDA_SUCCESS);
}

TEST_CASE("a session that is lost leaves the other as it is") {
  for (const unsigned lost : {0u, 1u}) {
    Several several;
    const Side sides[] = {Side(several, 0), Side(several, other_device)};
    const Side& gone = sides[lost];
    const Side& there = sides[1 - lost];
    {
      Paused paused;
      // What waits for the lost one goes on, and the program hears of it.
      CHECK(cuMemsetD32Async(gone.memory, 4, 16, gone.stream) == CUDA_SUCCESS);
      CHECK(cuEventRecord(gone.event, gone.stream) == CUDA_SUCCESS);
      CHECK(cuStreamWaitEvent(there.stream, gone.event, 0) == CUDA_SUCCESS);
      several.hosts[lost]->cut();
      while (!client::process().pool()->lost(several.hosts[lost]->session())) std::this_thread::yield();
      // While the event has not happened: its worker, which lives a moment longer, would tell of it.
      CHECK(cuStreamSynchronize(there.stream) == CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    CHECK(cuStreamSynchronize(there.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(gone.stream) == CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK(cuMemcpyAsync(there.memory, gone.memory, 64, there.stream) == CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK(cuCtxSetCurrent(gone.context) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK(cuCtxSetCurrent(there.context) == CUDA_SUCCESS);
    CHECK(cuMemsetD32_v2(there.memory, 9, 4) == CUDA_SUCCESS);
    CHECK(word_at(there.memory) == 9);
  }
}

}  // namespace
}  // namespace fargpu::test
