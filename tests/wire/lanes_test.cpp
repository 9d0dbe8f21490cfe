// Large copies over several connections.

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "client/call/stats.h"
#include "fixture.h"

using namespace fargpu;

namespace {

client::Config with_lanes(unsigned lanes) {
  client::Config config = test::Remote::default_config();
  config.lanes = lanes;
  config.transport = client::Transport::automatic;  // with shared memory there are none
  return config;
}

std::vector<unsigned char> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> bytes(count);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

constexpr std::size_t size = (9u << 20) + 4321;  // the last chunk is a small one

}  // namespace

TEST_CASE("large copies go by the bulk lanes, and what arrives is what was sent") {
  test::RemoteContext remote(with_lanes(3));
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  const auto out = random_bytes(size, 1);
  std::vector<unsigned char> back(size);
  const auto own = remote.session().calls.commands.bytes_sent();
  REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), size) == CUDA_SUCCESS);
  CHECK(remote.session().calls.commands.bytes_sent() - own < 4096);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_SUCCESS);
  CHECK(remote.session().lanes.bytes_sent() + remote.session().lanes.content_counts().known_bytes >= size);
  CHECK(remote.session().lanes.bytes_received() >= size);
  CHECK(back == out);
}

TEST_CASE("pinned memory goes by the lanes too") {
  test::RemoteContext remote(with_lanes(2));
  CUdeviceptr memory = 0;
  void *from = nullptr, *to = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&from, size, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&to, size, 0) == CUDA_SUCCESS);
  const auto bytes = random_bytes(size, 2);
  std::memcpy(from, bytes.data(), size);
  REQUIRE(cuMemcpyHtoD_v2(memory, from, size) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(to, memory, size) == CUDA_SUCCESS);
  CHECK(remote.session().lanes.bytes_sent() >= size);
  CHECK(std::memcmp(from, to, size) == 0);
  CHECK(cuMemFreeHost(from) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(to) == CUDA_SUCCESS);
}

TEST_CASE("without lanes, with one, and for small copies the session's own connection serves") {
  const unsigned lanes = GENERATE(0u, 1u, 4u);
  client::Config config = with_lanes(lanes);
  config.content_cache = client::ContentCache::never;  // which would gain by one
  test::RemoteContext remote(config);
  const std::size_t bytes = lanes < 2 ? size : limits::lane_copy_bytes_min - 1;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  const auto out = random_bytes(size, 3);
  std::vector<unsigned char> back(size);
  REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, out.data(), bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, bytes) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), out.data(), bytes) == 0);
  CHECK(remote.session().lanes.bytes_sent() == 0);
  CHECK(remote.session().lanes.bytes_received() == 0);
}

TEST_CASE(
    "contents travel compressed both ways, by lanes and by the session's own connection, and arrive as they were") {
  client::Config config = with_lanes(GENERATE(0u, 3u));
  config.compression = Compression::always;
  test::RemoteContext remote(config);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  std::vector<unsigned char> out(size), back(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<unsigned char>(i / 50);
  const auto travelled = [&] {
    return remote.session().calls.commands.bytes_sent() + remote.session().lanes.bytes_sent() +
           remote.session().calls.receiver.bytes_received() + remote.session().lanes.bytes_received();
  };
  const auto before = travelled();
  REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), size) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_SUCCESS);
  CHECK(travelled() - before < size / 2);
  CHECK(back == out);
  // What does not compress goes between.
  const auto random = random_bytes(size, 30);
  REQUIRE(cuMemcpyHtoD_v2(memory, random.data(), size) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_SUCCESS);
  CHECK(back == random);
  // Pinned memory, which the worker asks for when the stream gets there, and delivers.
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, size, 0) == CUDA_SUCCESS);
  std::memcpy(pinned, out.data(), size);
  const auto asynchronously = travelled();
  REQUIRE(cuMemcpyHtoDAsync_v2(memory, pinned, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  std::memset(pinned, 0, size);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned, memory, size, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(travelled() - asynchronously < size / 2);
  CHECK(std::memcmp(pinned, out.data(), size) == 0);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("work of other streams comes behind a copy on the lanes that was synchronous") {
  test::RemoteContext remote(with_lanes(4));
  CUdeviceptr memory = 0, copy = 0;
  CUstream other{};
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&copy, size) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (unsigned round = 0; round < 5; ++round) {
    const auto out = random_bytes(size, 10 + round);
    std::vector<unsigned char> back(size);
    REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), size) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoDAsync_v2(copy, memory, size, other) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(back.data(), copy, size) == CUDA_SUCCESS);
    CHECK(back == out);
  }
}

TEST_CASE("several threads copy by the lanes at once") {
  test::RemoteContext remote(with_lanes(4));
  std::vector<std::thread> threads;
  std::vector<int> equal(6);
  for (unsigned t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      CUdeviceptr memory = 0;
      if (cuCtxSetCurrent(remote.context) != CUDA_SUCCESS || cuMemAlloc_v2(&memory, size) != CUDA_SUCCESS) return;
      const auto out = random_bytes(size, 20 + t);
      std::vector<unsigned char> back(size);
      for (int round = 0; round < 3; ++round) {
        std::fill(back.begin(), back.end(), 0);
        if (cuMemcpyHtoD_v2(memory, out.data(), size) != CUDA_SUCCESS ||
            cuMemcpyDtoH_v2(back.data(), memory, size) != CUDA_SUCCESS)
          return;
        equal[t] += back == out;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : equal) CHECK(count == 3);
}

TEST_CASE("copies that together are more than the worker has room for do not wait for each other") {
  test::RemoteContext remote(with_lanes(4));
  constexpr std::size_t much = 48u << 20;
  const auto out = random_bytes(much, 30);
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      CUdeviceptr memory = 0;
      CUstream stream = nullptr;
      if (cuCtxSetCurrent(remote.context) != CUDA_SUCCESS || cuMemAlloc_v2(&memory, much) != CUDA_SUCCESS ||
          cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return;
      for (int round = 0; round < 5; ++round)
        done +=
            cuMemcpyHtoD_v2(memory, out.data(), much) == CUDA_SUCCESS && cuStreamSynchronize(stream) == CUDA_SUCCESS;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(done == 20);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a copy on the lanes that the driver refuses is reported, and the next one goes") {
  test::RemoteContext remote(with_lanes(2));
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  const auto out = random_bytes(size, 4);
  std::vector<unsigned char> back(size);
  remote.driver->script("cuMemcpyDtoHAsync_v2", CUDA_ERROR_UNKNOWN, 1);
  CHECK(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_ERROR_UNKNOWN);
  REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), size) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, size) == CUDA_SUCCESS);
  CHECK(back == out);
}

TEST_CASE("copies on the lanes that the worker refuses leave room for others") {
  test::RemoteContext remote(with_lanes(2));
  constexpr std::size_t much = 4u << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0, memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, much) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressReserve(&range, much, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, much, &prop, 0) == CUDA_SUCCESS);
  // The client is told late that nothing is there.
  remote.driver->script("cuMemMap", CUDA_ERROR_UNKNOWN, 1);
  REQUIRE(cuMemMap(range, much, 0, handle, 0) == CUDA_SUCCESS);
  (void)cuMemSetAccess(range, much, &access, 1);
  const auto out = random_bytes(much, 6);
  for (int i = 0; i < 20; ++i) {
    const CUresult copied = cuMemcpyHtoD_v2(range, out.data(), much), then = cuCtxSynchronize();
    CHECK((copied != CUDA_SUCCESS || then != CUDA_SUCCESS));
  }
  for (int i = 0; i < 20 && cuCtxSynchronize() != CUDA_SUCCESS; ++i)
    continue;  // each call above may have something to say
  CHECK(cuMemcpyHtoD_v2(memory, out.data(), much) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a session whose connection is cut while its lanes are at work is lost, and nothing hangs") {
  test::RemoteContext remote(with_lanes(2));
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, size) == CUDA_SUCCESS);
  const auto out = random_bytes(size, 5);
  REQUIRE(cuMemcpyHtoD_v2(memory, out.data(), size) == CUDA_SUCCESS);
  std::thread cutter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    remote.cut();
  });
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; result == CUDA_SUCCESS && i < 10000; ++i) result = cuMemcpyHtoD_v2(memory, out.data(), size);
  CHECK(result == CUDA_ERROR_DEVICE_UNAVAILABLE);
  cutter.join();
}
