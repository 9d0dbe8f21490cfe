// Client and worker on one machine: pinned memory that both have, and large copies by way of such memory.

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>

#include "client/memory/shared_staging.h"
#include "client/call/stats.h"
#include "hand_made_client.h"
#include "protocol/sealed_memory.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

struct SharingContext : RemoteContext {
  explicit SharingContext() : RemoteContext(sharing_config()) {}
  std::uint64_t bytes_sent() { return session().calls.commands.bytes_sent(); }
  std::uint64_t bytes_received() { return session().calls.receiver.bytes_received(); }
};

std::vector<unsigned char> noise(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<unsigned char>((i + seed) * 2654435761u >> 13);
  return all;
}

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  return memory;
}

void* pinned(std::size_t bytes, unsigned flags = 0) {
  void* pointer = nullptr;
  REQUIRE(cuMemHostAlloc(&pointer, bytes, flags) == CUDA_SUCCESS);
  return pointer;
}

// Of memory that is shared; other descriptors come and go with the threads of earlier sessions.
std::size_t open_memory() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry.path(), gone).string().find("memfd:fargpu") != std::string::npos;
  }
  return count;
}

}  // namespace

TEST_CASE("shared pinned memory is what the driver copies from and to, and no bytes travel") {
  SharingContext remote;
  REQUIRE(remote.session().shares_memory());
  const std::size_t bytes = GENERATE(100u, 5u << 20);
  const auto contents = noise(bytes, 1);
  void *const out = pinned(bytes), *const back = pinned(bytes);
  CHECK(remote.driver->calls("cuMemHostRegister_v2") == 2);
  const CUdeviceptr memory = allocate(bytes);
  std::memcpy(out, contents.data(), bytes);
  const std::uint64_t sent = remote.bytes_sent(), received = remote.bytes_received();
  const auto trips = client::stats::round_trips();
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out, bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(back, memory, bytes, nullptr) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == trips);  // they do not wait
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::memcmp(back, contents.data(), bytes) == 0);
  CHECK(remote.bytes_sent() - sent < 2000);
  CHECK(remote.bytes_received() - received < 2000);
  CHECK(remote.driver->last_arguments("cuMemcpyHtoDAsync_v2")[1] == reinterpret_cast<std::uint64_t>(out));
  CHECK(remote.driver->last_arguments("cuMemcpyDtoHAsync_v2")[0] == reinterpret_cast<std::uint64_t>(back));
  // Synchronous forms are over when they return.
  std::memset(out, 7, bytes);
  REQUIRE(cuMemcpyHtoD_v2(memory, out, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back, memory, bytes) == CUDA_SUCCESS);
  CHECK(std::memcmp(out, back, bytes) == 0);
  REQUIRE(cuMemFreeHost(out) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeHost(back) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(nullptr, memory, 0) == CUDA_SUCCESS);
}

TEST_CASE("shared pinned memory is given back at both ends") {
  SharingContext remote;
  const std::size_t before = open_memory();
  void* const first = pinned(100'000);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(cuMemFreeHost(pinned(3u << 20)) == CUDA_SUCCESS);
  }
  void* const second = pinned(100'000);
  static_cast<unsigned char*>(second)[99'999] = 1;
  CHECK(open_memory() == before);
  CHECK(cuMemFreeHost(static_cast<char*>(first) + 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFreeHost(first) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(first) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFreeHost(second) == CUDA_SUCCESS);
  void* const last = pinned(4096);  // by when the worker has given the others back
  CHECK(remote.driver->calls("cuMemHostUnregister") + 1 == remote.driver->calls("cuMemHostRegister_v2"));
  REQUIRE(cuMemFreeHost(last) == CUDA_SUCCESS);
}

TEST_CASE("shared pinned memory begins as zeros, and every page of it may be used") {
  SharingContext remote;
  for (int i = 0; i < 3; ++i) {
    auto* const bytes = static_cast<unsigned char*>(pinned(20'000));
    CHECK(std::count(bytes, bytes + 20'480, 0) == 20'480);
    std::memset(bytes, 9, 20'480);
    REQUIRE(cuMemFreeHost(bytes) == CUDA_SUCCESS);
  }
}

TEST_CASE("what a kernel writes to shared pinned memory is there at once") {
  SharingContext remote;
  auto* const words = static_cast<unsigned*>(pinned(4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr device = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words + 3, 0) == CUDA_SUCCESS);
  CHECK(device == reinterpret_cast<std::uint64_t>(words + 3));
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  unsigned count = 5, value = 77;
  void* arguments[] = {&device, &count, &value};
  words[2] = 41;
  REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  while (__atomic_load_n(&words[7], __ATOMIC_ACQUIRE) != 77) {}
  CHECK(words[2] == 41);
  CHECK(words[8] == 0);
  unsigned flags = 0;
  CHECK(cuMemHostGetFlags(&flags, words) == CUDA_SUCCESS);
  CHECK(flags == CU_MEMHOSTALLOC_DEVICEMAP);
  CHECK(remote.driver->calls("cuMemHostRegister_v2") == 1);
  REQUIRE(cuMemFreeHost(words) == CUDA_SUCCESS);
}

TEST_CASE("a copy from shared pinned memory has the bytes of its turn on the stream") {
  SharingContext remote;
  auto* const bytes = static_cast<unsigned char*>(pinned(64));
  std::memset(bytes, 1, 64);
  const CUdeviceptr memory = allocate(64);
  Gate gate;
  REQUIRE(cuLaunchHostFunc(nullptr, Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, bytes, 64, nullptr) == CUDA_SUCCESS);
  gate.wait_entered();
  std::memset(bytes, 2, 64);
  gate.open();
  unsigned char back[64] = {};
  REQUIRE(cuMemcpyDtoH_v2(back, memory, 64) == CUDA_SUCCESS);
  CHECK((back[0] == 2 && back[63] == 2));
  REQUIRE(cuMemFreeHost(bytes) == CUDA_SUCCESS);
}

TEST_CASE("shared pinned memory goes with its context, without a word") {
  Remote remote(Remote::sharing_config());
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  void* const first = pinned(8192);
  const std::vector<unsigned char> large(3u << 20, 5);  // which goes through the context's shared memory
  const CUdeviceptr memory = allocate(large.size());
  REQUIRE(cuMemcpyHtoD_v2(memory, large.data(), large.size()) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuMemHostUnregister") == 2);
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  void* const second = pinned(8192);
  CHECK(second == first);  // nothing is in the way there
  std::vector<unsigned char> back(large.size());
  const CUdeviceptr again = allocate(large.size());
  REQUIRE(cuMemcpyHtoD_v2(again, large.data(), large.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), again, back.size()) == CUDA_SUCCESS);
  CHECK(back == large);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

TEST_CASE("when the worker cannot pin, there is no memory") {
  SharingContext remote;
  remote.driver->script("cuMemHostRegister_v2", CUDA_ERROR_OUT_OF_MEMORY, 1);
  void* pointer = nullptr;
  CHECK(cuMemHostAlloc(&pointer, 4096, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemHostAlloc(&pointer, std::size_t{1} << 45, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemHostAlloc(&pointer, 4096, 0) == CUDA_SUCCESS);
  static_cast<char*>(pointer)[4095] = 1;
  CHECK(cuMemFreeHost(pointer) == CUDA_SUCCESS);
  // Large copies do without.
  remote.driver->script("cuMemHostRegister_v2", CUDA_ERROR_OUT_OF_MEMORY, 1);
  const auto contents = noise(2u << 20, 3);
  std::vector<unsigned char> back(contents.size());
  const CUdeviceptr memory = allocate(contents.size());
  REQUIRE(cuMemcpyHtoD_v2(memory, contents.data(), contents.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) == CUDA_SUCCESS);
  CHECK(back == contents);
}

TEST_CASE("large copies of ordinary memory go through shared memory, whatever their size and shape") {
  SharingContext remote;
  constexpr std::size_t MiB = 1u << 20;
  static_assert(client::SharedStaging::gains_bytes == MiB / 2 &&
                client::SharedStaging::slot_bytes * client::SharedStaging::slots == 32 * MiB);
  const std::size_t bytes = GENERATE(MiB / 2, 4 * MiB - 1, 4 * MiB + 1, 32 * MiB, 64 * MiB + 12345);
  const auto contents = noise(bytes + 1, 9);
  std::vector<unsigned char> back(bytes + 2, 0xee);
  const CUdeviceptr memory = allocate(bytes);
  const std::uint64_t sent = remote.bytes_sent(), received = remote.bytes_received();
  SECTION("a row") {
    REQUIRE(cuMemcpyHtoD_v2(memory, contents.data() + 1, bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(back.data() + 1, memory, bytes) == CUDA_SUCCESS);
    CHECK(std::equal(back.begin() + 1, back.end() - 1, contents.begin() + 1));
  }
  SECTION("on a stream") {
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, contents.data() + 1, bytes, stream) == CUDA_SUCCESS);
    // There when the call returns.
    REQUIRE(cuMemcpyDtoHAsync_v2(back.data() + 1, memory, bytes, stream) == CUDA_SUCCESS);
    CHECK(std::equal(back.begin() + 1, back.end() - 1, contents.begin() + 1));
    REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  }
  SECTION("registered") {
    auto copy = contents;
    REQUIRE(cuMemHostRegister_v2(copy.data(), copy.size(), 0) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD_v2(memory, copy.data() + 1, bytes) == CUDA_SUCCESS);
    std::fill(copy.begin(), copy.end(), 0);
    REQUIRE(cuMemcpyDtoH_v2(copy.data() + 1, memory, bytes) == CUDA_SUCCESS);
    CHECK(std::equal(copy.begin() + 1, copy.end(), contents.begin() + 1));
    back.front() = back.back() = 0xee;
    REQUIRE(cuMemHostUnregister(copy.data()) == CUDA_SUCCESS);
  }
  CHECK(back.front() == 0xee);
  CHECK(back.back() == 0xee);
  CHECK(remote.bytes_sent() - sent < 30'000);
  CHECK(remote.bytes_received() - received < 30'000);
}

TEST_CASE("packed rows with gaps on the device go through shared memory too") {
  SharingContext remote;
  constexpr std::size_t width = 10'000, height = 700, pitch = 10'240;
  const auto contents = noise(width * height, 4);
  std::vector<unsigned char> back(width * height);
  const CUdeviceptr memory = allocate(pitch * height);
  CUDA_MEMCPY2D copy{};
  copy.WidthInBytes = width;
  copy.Height = height;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = contents.data();
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = pitch;
  const std::uint64_t sent = remote.bytes_sent();
  REQUIRE(cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
  CHECK(remote.bytes_sent() - sent < 30'000);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = back.data();
  copy.dstPitch = width;
  REQUIRE(cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
  CHECK(back == contents);
}

TEST_CASE("several threads copy at once") {
  SharingContext remote;
  std::vector<std::future<bool>> all;
  for (unsigned thread = 0; thread < 4; ++thread) {
    all.push_back(std::async(std::launch::async, [&remote, thread] {
      if (cuCtxSetCurrent(remote.context) != CUDA_SUCCESS) return false;
      const auto contents = noise((9u << 20) + thread, thread);
      std::vector<unsigned char> back(contents.size());
      CUdeviceptr memory = 0;
      bool good = cuMemAlloc_v2(&memory, contents.size()) == CUDA_SUCCESS;
      for (int i = 0; good && i < 5; ++i) {
        std::fill(back.begin(), back.end(), 0);
        good = cuMemcpyHtoD_v2(memory, contents.data(), contents.size()) == CUDA_SUCCESS &&
               cuMemcpyDtoH_v2(back.data(), memory, back.size()) == CUDA_SUCCESS && back == contents;
      }
      return good;
    }));
  }
  for (auto& each : all) CHECK(each.get());
}

TEST_CASE("a large copy that fails says so") {
  SharingContext remote;
  std::vector<unsigned char> bytes(6u << 20);
  const CUdeviceptr memory = allocate(bytes.size());
  REQUIRE(cuMemcpyHtoD_v2(memory, bytes.data(), bytes.size()) == CUDA_SUCCESS);
  remote.driver->script("cuMemcpyDtoHAsync_v2", CUDA_ERROR_LAUNCH_FAILED, 1);
  CHECK(cuMemcpyDtoH_v2(bytes.data(), memory, bytes.size()) == CUDA_ERROR_LAUNCH_FAILED);
}

TEST_CASE("a worker shares what it may and no more") {
  HandMadeClient client(/*host_bytes_max=*/1u << 20, /*shares_memory=*/true);
  client.open_context();
  constexpr std::uint64_t window = HandMadeClient::host_window, window_bytes = std::uint64_t{64} << 30;
  const auto open = [&](std::uint64_t address, std::uint64_t bytes, bool wants_reply = true) {
    client.send_call<wire::OpenHostBlock>(
        Opcode::openHostBlock,
        [&](auto in) {
          in.setAddress(address);
          in.setBytes(bytes);
          in.setShared(true);
        },
        {}, wants_reply);
    return wants_reply ? client.reply() : CUDA_SUCCESS;
  };
  const auto close = [&](std::uint64_t address) {
    client.send_call<wire::CloseHostBlock>(Opcode::closeHostBlock, [&](auto in) { in.setAddress(address); });
    return client.reply();
  };
  CHECK(open(window, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window, 100) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window + 8, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window - 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window + window_bytes - 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window, window_bytes + 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window, ~std::uint64_t{4095}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(0x5000, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window, 2u << 20) == CUDA_ERROR_OUT_OF_MEMORY);  // than the session may take
  CHECK(client.channel().receive_descriptor() == -1);
  REQUIRE(open(window, 512u << 10) == CUDA_SUCCESS);
  const int memory = client.next_descriptor();
  CHECK(is_sealed_memory(memory, 512u << 10));
  CHECK(::ftruncate(memory, 0) != 0);
  ::close(memory);
  CHECK(open(window, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window + (512u << 10) - 4096, 8192) == CUDA_ERROR_INVALID_VALUE);
  CHECK(open(window + (512u << 10), 768u << 10) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(close(window) == CUDA_SUCCESS);
  CHECK(close(window) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(open(window, 512u << 10) == CUDA_SUCCESS);
  // Descriptors that the client does not take end up nowhere, and cost it its memory.
  CUresult result = CUDA_SUCCESS;
  std::uint64_t next = window + (512u << 10);
  for (int i = 0; i < 100 && result == CUDA_SUCCESS; ++i, next += 4096) result = open(next, 4096);
  CHECK((result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY));
  open(next + 4096, 4096, false);
  CHECK(client.worker_end().find("nobody waits") != std::string::npos);
}

TEST_CASE("a worker that shares no memory says so") {
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
    in.setAddress(HandMadeClient::host_window);
    in.setBytes(4096);
    in.setShared(true);
  });
  CHECK(client.reply() == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a client takes no memory that could shrink, and no rings that are none") {
  const bool sealed = GENERATE(true, false);
  auto [near, far] = make_sockets();
  Window device, host;
  std::thread worker([&, far = std::move(far)] {
    const auto message = receive_control(*far, limits::lease_timeout);
    MessageReader reader(message);
    const auto attach = reader.root<wire::Control>().getAttach();
    send_control(*far, 1, [&](wire::Control::Builder control) {
      auto answer = control.initAttachAnswer();
      answer.setProtocolVersion(wire::PROTOCOL_VERSION);
      const auto take = [](wire::Range::Reader offered, wire::Range::Builder taken, Window& window) {
        window = {offered.getBase(), offered.getBytes()};
        taken.setBase(window.base);
        taken.setBytes(window.bytes);
      };
      take(attach.getDeviceWindows()[0], answer.initDeviceWindow(), device);
      take(attach.getHostWindows()[0], answer.initHostWindow(), host);
      answer.initFacts().setDriverVersion(20000);
      answer.setCreditBytes(limits::credit_bytes);
      answer.setRingBytes(sealed ? 5000 : 65536);
    });
    const int memory = sealed ? make_ring_memory(8192) : ::memfd_create("soft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (!sealed) CHECK(::ftruncate(memory, 1 << 20) == 0);
    far->send_descriptor(memory);
    ::close(memory);
  });
  CHECK_THROWS_AS(client::attach(std::move(near), {}, Remote::sharing_config(), "a strange host"), ProtocolError);
  worker.join();
  client::release_window(device);
  client::release_window(host);
}
