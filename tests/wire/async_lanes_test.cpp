// Asynchronous copies on the bulk lanes: what they carry, and that each comes in its place.

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;

namespace {

client::Config with_lanes(unsigned lanes) {
  client::Config config = test::Remote::default_config();
  config.lanes = lanes;
  config.transport = client::Transport::automatic;  // with shared memory there are none
  return config;
}

constexpr std::size_t size = (9u << 20) + 4321;

void fill(void* memory, std::size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  auto* const to = static_cast<unsigned char*>(memory);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(to + i, &word, std::min<std::size_t>(8, bytes - i));
  }
}

struct Pinned {
  explicit Pinned(std::size_t bytes) : bytes(bytes) { REQUIRE(cuMemHostAlloc(&memory, bytes, 0) == CUDA_SUCCESS); }
  ~Pinned() { cuMemFreeHost(memory); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  unsigned char* at(std::size_t offset) const { return static_cast<unsigned char*>(memory) + offset; }
  void* memory = nullptr;
  const std::size_t bytes;
};

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  return memory;
}

/// What goes over the session's own connection, either way.
std::uint64_t by_session(test::Remote& remote) {
  return remote.session().calls.commands.bytes_sent() + remote.session().calls.receiver.bytes_received();
}

}  // namespace

TEST_CASE("asynchronous copies of pinned memory go by the lanes") {
  test::RemoteContext remote(with_lanes(3));
  const CUdeviceptr memory = allocate(size);
  const Pinned from(size), to(size);
  fill(from.memory, size, 1);
  const auto before = by_session(remote);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, from.memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(std::memcmp(from.memory, to.memory, size) == 0);
  CHECK(by_session(remote) - before < 8192);
  CHECK(remote.session().lanes.bytes_sent() >= size);
  CHECK(remote.session().lanes.bytes_received() >= size);
}

TEST_CASE("a wait for copies of pinned memory ends when they have been read, and later work comes behind them") {
  test::RemoteContext remote(with_lanes(3));
  const Pinned pinned(size), to(size);
  std::vector<unsigned char> mine(size), expected(size);
  const bool registered = GENERATE(false, true);
  if (registered) REQUIRE(cuMemHostRegister_v2(mine.data(), size, 0) == CUDA_SUCCESS);
  unsigned char* const from = registered ? mine.data() : pinned.at(0);
  CUstream blocking{}, other{};
  REQUIRE(cuStreamCreate(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUstream stream = GENERATE_REF(CUstream{nullptr}, blocking, other);
  const CUdeviceptr memory = allocate(size), copy = allocate(size);
  for (unsigned round = 0; round < 10; ++round) {
    fill(from, size, 50 + round);
    std::memcpy(expected.data(), from, size);
    const CUstream copies = stream ? stream : blocking;  // for which a wait for the legacy stream waits too
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, from, size / 2, copies) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory + size / 2, from + size / 2, size - size / 2, copies) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    std::memset(from, 0xEE, size);
    REQUIRE(cuMemcpyDtoDAsync_v2(copy, memory, size, other) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, copy, size, other) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(std::memcmp(expected.data(), to.memory, size) == 0);
  }
  if (registered) CHECK(cuMemHostUnregister(mine.data()) == CUDA_SUCCESS);
}

TEST_CASE("a wait for a stream is one for copies that it comes behind by the legacy stream") {
  test::RemoteContext remote(with_lanes(3));
  const Pinned from(size), small(4096);
  std::vector<unsigned char> expected(size), back(size);
  CUstream first{}, last{};
  REQUIRE(cuStreamCreate(&first, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&last, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  const CUdeviceptr memory = allocate(size), other = allocate(4096);
  const CUstream stream = GENERATE_REF(CUstream{nullptr}, first);
  for (unsigned round = 0; round < 10; ++round) {
    fill(from.memory, size, 70 + round);
    std::memcpy(expected.data(), from.memory, size);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, from.memory, size, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(other, small.memory, 4096, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(other, small.memory, 4096, last) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(last) == CUDA_SUCCESS);
    std::memset(from.memory, 0xEE, size);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_SUCCESS);
    CHECK(back == expected);
  }
}

TEST_CASE("a wait for a blocking stream is none for copies of others that it does not come behind") {
  test::RemoteContext remote(with_lanes(3));
  constexpr std::size_t large = 96u << 20;  // more than the worker has room for at a time
  const Pinned from(large), small(4096);
  const CUdeviceptr memory = allocate(large), other = allocate(4096);
  CUstream first{}, last{};
  REQUIRE(cuStreamCreate(&first, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&last, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  test::Paused paused;
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, from.memory, large, first) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(other, small.memory, 4096, last) == CUDA_SUCCESS);
  auto waiting = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuStreamSynchronize(last);
  });
  CHECK(waiting.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  auto behind = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuStreamSynchronize(first);
  });
  // What is named is read ahead, however much it is.
  if (!std::getenv("FARGPU_TEST_CONTENTS"))
    CHECK(behind.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  paused.end();
  CHECK(waiting.get() == CUDA_SUCCESS);
  CHECK(behind.get() == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a copy comes behind one that a graph made to the same memory") {
  test::RemoteContext remote(with_lanes(3));
  constexpr std::size_t large = 24u << 20, end_bytes = 1u << 20;
  const Pinned to(large);
  const CUdeviceptr first = allocate(large), second = allocate(end_bytes);
  REQUIRE(cuMemsetD8_v2(first, 1, large) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(second, 2, end_bytes) == CUDA_SUCCESS);
  CUgraph graph{};
  CUgraphNode node{};
  CUgraphExec exec{};
  CUstream stream{};
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = first;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to.memory;
  copy.WidthInBytes = large;
  copy.Height = copy.Depth = 1;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, remote.context) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  const std::vector<unsigned char> expected(end_bytes, 2);
  unsigned char* const end = to.at(large - end_bytes);
  for (int round = 0; round < 20; ++round) {
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(end, second, end_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(std::memcmp(end, expected.data(), end_bytes) == 0);
  }
}

TEST_CASE("a wait for a stream with copies of pinned memory waits for the GPU only where that can be noticed") {
  test::RemoteContext remote(with_lanes(3));
  const Pinned from(size);
  const CUdeviceptr memory = allocate(size);
  CUstream stream{};
  CUevent event{};
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  CUstream other{};
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const bool with_event = GENERATE(false, true), with_function = GENERATE(false, true);
  const bool noticed = with_event || with_function;
  test::Gate gate;
  test::Paused paused;
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, from.memory, size, stream) == CUDA_SUCCESS);
  if (with_event) REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  // Work behind the function would go on when the program has heard that the copy is over.
  if (with_function) REQUIRE(cuLaunchHostFunc(other, test::Gate::pass, &gate) == CUDA_SUCCESS);
  auto waiting = std::async(std::launch::async, [&] {
    const CUresult bad = cuCtxSetCurrent(remote.context);
    return bad != CUDA_SUCCESS ? bad : cuStreamSynchronize(stream);
  });
  if (noticed) CHECK(waiting.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  else CHECK(waiting.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  paused.end();
  CHECK(waiting.get() == CUDA_SUCCESS);
  gate.open();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("an asynchronous copy of pageable memory has been read when its call returns") {
  test::RemoteContext remote(with_lanes(3));
  const CUdeviceptr memory = allocate(size);
  std::vector<unsigned char> out(size), back(size);
  fill(out.data(), size, 2);
  const auto sent = out;
  const auto before = by_session(remote);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.data(), size, nullptr) == CUDA_SUCCESS);
  std::fill(out.begin(), out.end(), 0);
  REQUIRE(cuMemcpyDtoHAsync_v2(back.data(), memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(back == sent);
  CHECK(by_session(remote) - before < 8192);
}

TEST_CASE("memory that was registered is copied like pinned memory") {
  test::RemoteContext remote(with_lanes(2));
  const CUdeviceptr memory = allocate(size);
  std::vector<unsigned char> from(size), to(size);
  fill(from.data(), size, 3);
  REQUIRE(cuMemHostRegister_v2(from.data(), size, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemHostRegister_v2(to.data(), size, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, from.data(), size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(to.data(), memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemHostUnregister(from.data()) == CUDA_SUCCESS);  // which waits
  REQUIRE(cuMemHostUnregister(to.data()) == CUDA_SUCCESS);
  CHECK(from == to);
  CHECK(remote.session().lanes.bytes_received() >= size);
}

TEST_CASE("rows with gaps go by the lanes, and the gaps stay as they are") {
  test::RemoteContext remote(with_lanes(3));
  const bool wide = GENERATE(false, true);
  const std::size_t width = wide ? (1u << 20) + 100 : 3000, height = wide ? 5 : 1500, pitch = width + 96;
  const bool registered = GENERATE(false, true);
  const CUdeviceptr memory = allocate(width * height);
  std::vector<unsigned char> mine(pitch * height, 0xAA);
  const Pinned from(pitch * height), pinned(pitch * height);
  unsigned char* const to = registered ? mine.data() : pinned.at(0);
  if (registered) REQUIRE(cuMemHostRegister_v2(mine.data(), mine.size(), 0) == CUDA_SUCCESS);
  std::memset(to, 0xAA, pitch * height);
  fill(from.memory, pitch * height, 4);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from.memory;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = width;
  copy.WidthInBytes = width;
  copy.Height = height;
  REQUIRE(cuMemcpy2DAsync_v2(&copy, nullptr) == CUDA_SUCCESS);
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = pitch;
  REQUIRE(cuMemcpy2DAsync_v2(&copy, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  bool rows = true, gaps = true;
  for (std::size_t y = 0; y < height; ++y) {
    rows = rows && std::memcmp(to + y * pitch, from.at(y * pitch), width) == 0;
    for (std::size_t x = width; x < pitch; ++x) gaps = gaps && to[y * pitch + x] == 0xAA;
  }
  CHECK(rows);
  CHECK(gaps);
  CHECK(remote.session().lanes.bytes_received() >= width * height);
  if (registered) CHECK(cuMemHostUnregister(mine.data()) == CUDA_SUCCESS);
}

namespace {

/// Changes pinned memory when the stream gets there.
struct Change {
  unsigned char* memory;
  std::size_t bytes;
  static void CUDA_CB run(void* self) {
    const auto* const change = static_cast<Change*>(self);
    for (std::size_t i = 0; i < change->bytes; i += 97)
      change->memory[i] = static_cast<unsigned char>(change->memory[i] * 5 + 1);
  }
};

}  // namespace

// Copies, fills and functions of the host in any order on one stream, and the same done here.
TEST_CASE("whatever follows whatever on a stream, each copy reads and writes in its place") {
  test::RemoteContext remote(with_lanes(GENERATE(0u, 1u, 4u)));
  constexpr std::size_t room = 6u << 20;
  const Pinned one(room), two(room);
  const CUdeviceptr memory = allocate(room);
  CUstream stream{};
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t bound) {
      return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
    };
    fill(one.memory, room, seed);
    fill(two.memory, room, seed + 100);
    std::vector<unsigned char> hosts[2], device(room, 7);
    hosts[0].assign(one.at(0), one.at(room));
    hosts[1].assign(two.at(0), two.at(room));
    REQUIRE(cuMemsetD8Async(memory, 7, room, stream) == CUDA_SUCCESS);
    std::vector<std::unique_ptr<Change>> changes;
    for (int step = 0; step < 60; ++step) {
      const std::size_t bytes = 1 + below(step % 3 == 0 ? room / 64 : room / 2);
      const std::size_t at = below(room - bytes + 1), from = below(room - bytes + 1);
      const unsigned which = static_cast<unsigned>(below(2));
      unsigned char* const host = (which ? two : one).at(0);
      switch (below(6)) {
        case 0:
        case 1:
          REQUIRE(cuMemcpyHtoDAsync_v2(memory + at, host + from, bytes, stream) == CUDA_SUCCESS);
          std::memcpy(device.data() + at, hosts[which].data() + from, bytes);
          break;
        case 2:
        case 3:
          REQUIRE(cuMemcpyDtoHAsync_v2(host + at, memory + from, bytes, stream) == CUDA_SUCCESS);
          std::memcpy(hosts[which].data() + at, device.data() + from, bytes);
          break;
        case 4:
          REQUIRE(cuMemsetD8Async(memory + at, static_cast<unsigned char>(step), bytes, stream) == CUDA_SUCCESS);
          std::memset(device.data() + at, step, bytes);
          break;
        default: {
          if (step % 4) break;
          changes.push_back(std::make_unique<Change>(Change{host + at, bytes}));
          REQUIRE(cuLaunchHostFunc(stream, Change::run, changes.back().get()) == CUDA_SUCCESS);
          Change here{hosts[which].data() + at, bytes};
          Change::run(&here);
        }
      }
    }
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(std::memcmp(hosts[0].data(), one.memory, room) == 0);
    CHECK(std::memcmp(hosts[1].data(), two.memory, room) == 0);
    REQUIRE(cuMemcpyDtoH_v2(one.memory, memory, room) == CUDA_SUCCESS);
    CHECK(std::memcmp(device.data(), one.memory, room) == 0);
  }
}

TEST_CASE("nothing tells of a copy before its bytes are there") {
  test::RemoteContext remote(with_lanes(4));
  const Pinned to(size), small(64);
  const CUdeviceptr memory = allocate(size);
  CUstream stream{}, other{};
  CUevent event{};
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  const int teller = GENERATE(0, 1, 2, 3, 4, 5);
  for (unsigned char round = 1; round < 20; ++round) {
    REQUIRE(cuMemsetD8Async(memory, round, size, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, memory, size, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
    CUresult result = CUDA_ERROR_NOT_READY;
    switch (teller) {
      case 0: result = cuStreamSynchronize(other); break;
      case 1:
        while (result == CUDA_ERROR_NOT_READY) result = cuEventQuery(event);
        break;
      case 2:
        while (result == CUDA_ERROR_NOT_READY) result = cuStreamQuery(other);
        break;
      case 3: result = cuEventSynchronize(event); break;
      case 4: {
        test::Gate gate;
        gate.open();
        REQUIRE(cuLaunchHostFunc(other, test::Gate::pass, &gate) == CUDA_SUCCESS);
        gate.wait_entered();
        result = CUDA_SUCCESS;
        CHECK(to.at(0)[size - 1] == round);
        REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);  // the gate goes
        break;
      }
      default:
        result = cuMemcpyDtoHAsync_v2(small.memory, memory, 64, other) == CUDA_SUCCESS ? cuCtxSynchronize()
                                                                                       : CUDA_ERROR_UNKNOWN;
    }
    REQUIRE(result == CUDA_SUCCESS);
    bool all = true;
    for (std::size_t i = 0; i < size; i += 511) all = all && to.at(0)[i] == round;
    CHECK(all);
    CHECK(to.at(0)[size - 1] == round);
  }
}

TEST_CASE("copies to the same memory leave what the last one brought") {
  test::RemoteContext remote(with_lanes(4));
  const Pinned to(size);
  const CUdeviceptr memory = allocate(size);
  std::vector<unsigned char> expected(size);
  for (unsigned char round = 1; round < 8; ++round) {
    for (unsigned char n = 0; n < 12; ++n) {
      const std::size_t begin = n * 300'000u, bytes = size - begin - n * 100'000u;
      REQUIRE(cuMemsetD8Async(memory, static_cast<unsigned char>(round * 20 + n), size, nullptr) == CUDA_SUCCESS);
      REQUIRE(cuMemcpyDtoHAsync_v2(to.at(begin), memory, bytes, nullptr) == CUDA_SUCCESS);
      std::memset(expected.data() + begin, round * 20 + n, bytes);
    }
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CHECK(std::memcmp(to.memory, expected.data(), size) == 0);
  }
}

TEST_CASE("many copies wait behind a function of the host, and others pass them") {
  test::RemoteContext remote(with_lanes(3));
  constexpr std::size_t bytes = 2u << 20, copies = 40;
  const Pinned from(bytes * copies), to(bytes);
  const CUdeviceptr memory = allocate(bytes * copies), elsewhere = allocate(bytes);
  fill(from.memory, from.bytes, 9);
  CUstream stream{}, other{};
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  for (std::size_t n = 0; n < copies; ++n)
    REQUIRE(cuMemcpyHtoDAsync_v2(memory + n * bytes, from.at(n * bytes), bytes, stream) == CUDA_SUCCESS);
  gate.wait_entered();
  for (int round = 0; round < 20; ++round) {
    fill(to.memory, bytes, 50u + static_cast<unsigned>(round));
    std::vector<unsigned char> sent(to.at(0), to.at(bytes));
    REQUIRE(cuMemcpyHtoDAsync_v2(elsewhere, to.memory, bytes, other) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    std::memset(to.memory, 0, bytes);
    REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, elsewhere, bytes, other) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(std::memcmp(sent.data(), to.memory, bytes) == 0);
  }
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  std::vector<unsigned char> back(from.bytes);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), from.memory, back.size()) == 0);
}

TEST_CASE("memory that is unmapped while a copy is on its way makes an error, and nothing else") {
  test::RemoteContext remote(with_lanes(2));
  const CUdeviceptr memory = allocate(size), other = allocate(size);
  constexpr std::size_t bytes = 8u << 20;
  void* const mine = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mine != MAP_FAILED);
  std::memset(mine, 1, bytes);
  REQUIRE(cuMemHostRegister_v2(mine, bytes, 0) == CUDA_SUCCESS);
  const bool in = GENERATE(true, false);
  CUstream stream{};
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  if (in) REQUIRE(cuMemcpyHtoDAsync_v2(memory, mine, bytes, stream) == CUDA_SUCCESS);
  else REQUIRE(cuMemcpyDtoHAsync_v2(mine, memory, bytes, stream) == CUDA_SUCCESS);
  gate.wait_entered();
  ::mprotect(mine, bytes, PROT_NONE);
  gate.open();
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  const Pinned from(size), to(size);
  fill(from.memory, size, 5);
  REQUIRE(cuMemcpyHtoDAsync_v2(other, from.memory, size, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, other, size, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(std::memcmp(from.memory, to.memory, size) == 0);
  ::mprotect(mine, bytes, PROT_READ | PROT_WRITE);
  CHECK(cuMemHostUnregister(mine) == CUDA_SUCCESS);
  ::munmap(mine, bytes);
}

TEST_CASE("a copy in whose target some pages cannot be written is told so, and the lanes go on") {
  test::RemoteContext remote(with_lanes(3));
  constexpr std::size_t bytes = 8u << 20;
  const CUdeviceptr memory = allocate(bytes);
  auto* const mine =
      static_cast<unsigned char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(mine != MAP_FAILED);
  REQUIRE(cuMemHostRegister_v2(mine, bytes, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 8, bytes, nullptr) == CUDA_SUCCESS);
  ::mprotect(mine + (3u << 20), 4096, PROT_READ);
  REQUIRE(cuMemcpyDtoHAsync_v2(mine, memory, bytes, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(mine[0] == 8);
  CHECK(mine[bytes - 1] == 8);
  ::mprotect(mine + (3u << 20), 4096, PROT_READ | PROT_WRITE);
  REQUIRE(cuMemcpyDtoH_v2(mine, memory, bytes) == CUDA_SUCCESS);
  CHECK(mine[3u << 20] == 8);
  CHECK(cuMemHostUnregister(mine) == CUDA_SUCCESS);
  ::munmap(mine, bytes);
}

TEST_CASE("a copy from the device that the driver refuses is told late, and its memory can be used again") {
  test::RemoteContext remote(with_lanes(2));
  const CUdeviceptr memory = allocate(size);
  const Pinned to(size);
  std::memset(to.memory, 3, size);
  REQUIRE(cuMemcpyHtoD_v2(memory, to.memory, size) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  remote.driver->script("cuMemcpyDtoHAsync_v2", CUDA_ERROR_UNKNOWN, 1);
  REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, memory, size, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_UNKNOWN);
  std::memset(to.memory, 0, size);
  REQUIRE(cuMemcpyDtoHAsync_v2(to.memory, memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(to.at(0)[size - 1] == 3);
  std::memset(to.memory, 4, size);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, to.memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("kernels see memory that copies on the lanes have written, once they use it") {
  test::RemoteContext remote(with_lanes(2));
  constexpr std::size_t bytes = 700'000;
  const CUdeviceptr memory = allocate(bytes);
  std::vector<unsigned char> block(bytes);  // pages of its own at the worker, though that is in this process
  REQUIRE(cuMemHostRegister_v2(block.data(), bytes, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(memory, 6, bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync_v2(block.data(), memory, bytes, nullptr) == CUDA_SUCCESS);
  CUdeviceptr seen = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&seen, block.data(), 0) == CUDA_SUCCESS);
  CHECK(remote.session().lanes.bytes_received() >= bytes);
  CHECK(block[bytes - 1] == 6);
  block[5] = 9;
  REQUIRE(cuMemcpyDtoDAsync_v2(memory, seen, bytes, nullptr) == CUDA_SUCCESS);
  std::vector<unsigned char> back(bytes);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, bytes) == CUDA_SUCCESS);
  CHECK(back[5] == 9);
  CHECK(back[bytes - 1] == 6);
  CHECK(cuMemHostUnregister(block.data()) == CUDA_SUCCESS);
}

TEST_CASE("a session that is cut while asynchronous copies are on its lanes is lost, and its memory can be freed") {
  for (int cut_after_us : {0, 100, 1000, 5000}) {
    test::RemoteContext remote(with_lanes(3));
    const CUdeviceptr memory = allocate(size);
    const Pinned from(size), to(size);
    fill(from.memory, size, 11);
    std::thread cutter([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(cut_after_us));
      remote.cut();
    });
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; result == CUDA_SUCCESS && i < 10000; ++i) {
      result = cuMemcpyHtoDAsync_v2(memory, from.memory, size, nullptr);
      if (result == CUDA_SUCCESS) result = cuMemcpyDtoHAsync_v2(to.memory, memory, size, nullptr);
      if (result == CUDA_SUCCESS && i % 3 == 2) result = cuStreamSynchronize(nullptr);
    }
    CHECK(result == CUDA_ERROR_DEVICE_UNAVAILABLE);
    cutter.join();
  }
}
