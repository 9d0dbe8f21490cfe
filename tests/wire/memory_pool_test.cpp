// Stream-ordered allocation through the wire.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

constexpr std::size_t mib = 1u << 20;

cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = ~0ull;
  REQUIRE(cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS);
  return value;
}

CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  return pool;
}

CUmemoryPool new_pool(std::size_t max_bytes = 0) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  properties.maxSize = max_bytes;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  return pool;
}

struct Streams {
  Streams() {
    REQUIRE(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
  CUstream a = nullptr, b = nullptr;
};

}  // namespace

TEST_CASE("stream-ordered memory is memory like any other") {
  RemoteContext remote;
  CUdeviceptr block = 0;
  REQUIRE(cuMemAllocAsync(&block, 1000, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(block, 9, 1000, nullptr) == CUDA_SUCCESS);
  std::vector<unsigned char> back(1000);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), block, back.size()) == CUDA_SUCCESS);
  CHECK(back == std::vector<unsigned char>(1000, 9));
  CUmemoryPool pool = nullptr;
  CHECK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block) == CUDA_SUCCESS);
  CHECK(pool == default_pool());
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 1000);
  CHECK(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(block, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1000);

  REQUIRE(cuMemAllocAsync(&block, 1000, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(block) == CUDA_SUCCESS);  // either way of freeing, for either way of allocating
  REQUIRE(cuMemAlloc_v2(&block, 1000) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
}

TEST_CASE("a block freed on a stream is used again on that stream at once, on others when the GPU is past") {
  RemoteContext remote;
  const Streams streams;
  const std::size_t bytes = GENERATE(std::size_t{3000}, 8 * mib);
  CUdeviceptr first = 0, same = 0, other = 0;
  REQUIRE(cuMemAllocAsync(&first, bytes, streams.a) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(first, 1, bytes, streams.a) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, streams.a) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&other, bytes, streams.b) == CUDA_SUCCESS);
  CHECK(other != first);
  REQUIRE(cuMemAllocAsync(&same, bytes, streams.a) == CUDA_SUCCESS);
  CHECK(same == first);
  REQUIRE(cuMemFreeAsync(same, streams.a) == CUDA_SUCCESS);
  remote.driver->pause(false);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&other, bytes, streams.b) == CUDA_SUCCESS);
  CHECK(other == first);
}

TEST_CASE("a block freed on a blocking stream is not another's while the legacy stream uses it") {
  RemoteContext remote;
  CUstream blocking = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&blocking, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr first = 0, second = 0, third = 0;
  REQUIRE(cuMemAllocAsync(&first, 8 * mib, blocking) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemsetD8Async(first, 1, 8 * mib, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, blocking) == CUDA_SUCCESS);
  for (int i = 0; i < 20; ++i) {  // what the worker tells would have come by then
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(cuStreamQuery(other) == CUDA_SUCCESS);
  }
  REQUIRE(cuMemAllocAsync(&second, 8 * mib, other) == CUDA_SUCCESS);
  CHECK(second != first);
  remote.driver->pause(false);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&third, 8 * mib, other) == CUDA_SUCCESS);
  CHECK(third == first);
}

TEST_CASE("blocks freed on an idle stream are not others' before copies to them are made that have returned") {
  RemoteContext remote;
  const Streams streams;
  CUdeviceptr first = 0, second = 0;
  REQUIRE(cuMemAllocAsync(&first, 8 * mib, streams.a) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&second, 8 * mib, streams.a) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::vector<unsigned char> bytes(4096, 7);
  remote.driver->pause(true);
  for (const CUdeviceptr block : {first, second})
    REQUIRE(cuMemcpyHtoD_v2(block, bytes.data(), bytes.size()) == CUDA_SUCCESS);
  for (const CUdeviceptr block : {first, second}) REQUIRE(cuMemFreeAsync(block, streams.a) == CUDA_SUCCESS);
  for (int i = 0; i < 20; ++i) {  // what the worker tells would have come by then
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(cuStreamQuery(streams.b) == CUDA_SUCCESS);
  }
  for (int i = 0; i < 2; ++i) {
    CUdeviceptr other = 0;
    REQUIRE(cuMemAllocAsync(&other, 8 * mib, streams.b) == CUDA_SUCCESS);
    CHECK(other != first);
    CHECK(other != second);
  }
  remote.driver->pause(false);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("memory of pools outlasts the context that it was allocated in") {
  RemoteContext remote;
  const std::size_t bytes = GENERATE(std::size_t{3000}, 8 * mib);
  const bool of_primary = GENERATE(false, true);
  CUcontext made = nullptr, other = nullptr, of = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&made, nullptr, 0, 0) == CUDA_SUCCESS);
  if (of_primary) REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  const CUmemoryPool pool = new_pool();
  CUdeviceptr ordered = 0, of_pool = 0, plain = 0;
  REQUIRE(cuMemAllocAsync(&ordered, bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocFromPoolAsync(&of_pool, bytes, pool, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&plain, bytes) == CUDA_SUCCESS);
  for (const CUdeviceptr address : {ordered, of_pool, plain}) REQUIRE(cuMemsetD8_v2(address, 9, bytes) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE((of_primary ? cuDevicePrimaryCtxReset_v2(0) : cuCtxDestroy_v2(made)) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(plain) == CUDA_ERROR_INVALID_VALUE);
  if (of_primary) {  // which takes all that was allocated in it
    for (const CUdeviceptr address : {ordered, of_pool}) CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    return;
  }
  CHECK(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == bytes);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == bytes);
  for (int i = 0; i < 4; ++i) {
    CUdeviceptr fresh = 0;
    REQUIRE((i % 2 == 0 ? cuMemAllocAsync(&fresh, bytes, nullptr)
                        : cuMemAllocFromPoolAsync(&fresh, bytes, pool, nullptr)) == CUDA_SUCCESS);
    CHECK(fresh != ordered);
    CHECK(fresh != of_pool);
    CHECK(cuMemsetD8_v2(fresh, 1, bytes) == CUDA_SUCCESS);
  }
  std::vector<unsigned char> back(bytes);
  for (const CUdeviceptr address : {ordered, of_pool}) {
    REQUIRE(cuMemcpyDtoH_v2(back.data(), address, bytes) == CUDA_SUCCESS);
    CHECK(back == std::vector<unsigned char>(bytes, 9));
    of = made;
    CHECK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
    CHECK(of == nullptr);
  }
  // Freed either way, also while work uses it.
  test::Paused paused;
  for (const CUdeviceptr address : {ordered, of_pool})
    CHECK(cuMemsetD8Async(address, 7, bytes, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(ordered, nullptr) == CUDA_SUCCESS);
  CUdeviceptr fresh = 0;
  CHECK(cuMemAllocFromPoolAsync(&fresh, bytes, pool, nullptr) == CUDA_SUCCESS);
  CHECK(fresh != of_pool);
  paused.end();
  CHECK(cuMemFree_v2(of_pool) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(of_pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 3 * bytes);
}

TEST_CASE("a loop of allocating and freeing asks the worker once") {
  RemoteContext remote;
  const Streams streams;
  const std::size_t before = remote.driver->calls("cuMemCreate");
  for (int i = 0; i < 50; ++i) {
    CUdeviceptr large = 0, small = 0;
    REQUIRE(cuMemAllocAsync(&large, 10 * mib, streams.a) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&small, 5000, streams.a) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(large, 1, 10 * mib, streams.a) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(large, streams.a) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(small, streams.a) == CUDA_SUCCESS);
    if (i % 10 == 9) REQUIRE(cuStreamSynchronize(streams.a) == CUDA_SUCCESS);
  }
  CHECK(remote.driver->calls("cuMemCreate") - before == 2);
}

TEST_CASE("a pool has what was freed on a stream of copies when the program has waited for the stream") {
  RemoteContext remote;
  CUmemoryPool pool = nullptr;
  CUstream stream = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  cuuint64_t all = ~cuuint64_t{0}, reserved = 1;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) == CUDA_SUCCESS);
  const std::vector<char> values(1 << 20);
  for (int round = 0; round < 20; ++round) {
    CUdeviceptr memory = 0;
    REQUIRE(cuMemAllocAsync(&memory, values.size(), stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, values.data(), values.size(), stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(memory, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS);
    CHECK(reserved == 0);
  }
}

TEST_CASE("a pool keeps as much as its threshold when the program waits, and what trimming leaves") {
  RemoteContext remote;
  const CUmemoryPool pool = default_pool();
  cuuint64_t threshold = 128 * mib;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == threshold);
  std::vector<CUdeviceptr> blocks(6);  // each in a chunk of 64 MiB, as the driver would have it
  for (CUdeviceptr& block : blocks) REQUIRE(cuMemAllocAsync(&block, 40 * mib, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 240 * mib);
  for (const CUdeviceptr block : blocks) REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 384 * mib);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 128 * mib);
  REQUIRE(cuMemPoolTrimTo(pool, 60 * mib) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 64 * mib);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 384 * mib);
  cuuint64_t zero = 0, one = 1;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 64 * mib);
}

TEST_CASE("a wait has a pool give back what is above a threshold that was lowered") {
  RemoteContext remote;
  CUmemoryPool pool = new_pool(), host_pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  REQUIRE(cuMemPoolCreate(&host_pool, &properties) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  for (const CUmemoryPool one : {pool, host_pool}) {
    cuuint64_t threshold = ~cuuint64_t{0};
    REQUIRE(cuMemPoolSetAttribute(one, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
    CUdeviceptr block = 0;
    REQUIRE(cuMemAllocFromPoolAsync(&block, 4 * mib, one, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CHECK(attribute(one, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 4 * mib);
    threshold = 0;
    REQUIRE(cuMemPoolSetAttribute(one, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
    CHECK(attribute(one, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 4 * mib);
    REQUIRE(cuMemsetD8Async(memory, 0, 64, nullptr) == CUDA_SUCCESS);  // for the wait
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CHECK(attribute(one, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  }
}

TEST_CASE("memory of pools that is free beyond the threshold counts as free") {
  RemoteContext remote;
  std::size_t before = 0, after = 0, total = 0;
  REQUIRE(cuMemGetInfo_v2(&before, &total) == CUDA_SUCCESS);
  CUdeviceptr block = 0;
  REQUIRE(cuMemAllocAsync(&block, 64 * mib, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemGetInfo_v2(&after, &total) == CUDA_SUCCESS);
  CHECK(before - after == 64 * mib);
  REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemGetInfo_v2(&after, &total) == CUDA_SUCCESS);
  CHECK(before == after);
}

TEST_CASE("what pools hold does not stand in the way of other allocations") {
  RemoteContext remote;
  CUdeviceptr block = 0, large = 0;
  cuuint64_t everything = ~0ull;
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&block, 600 * mib, nullptr) == CUDA_SUCCESS);  // of 1 GiB
  CHECK(cuMemAlloc_v2(&large, 600 * mib) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&large, 600 * mib) == CUDA_SUCCESS);
}

TEST_CASE("pools of the program's own") {
  RemoteContext remote;
  const CUmemoryPool pool = new_pool(16 * mib);
  CUmemoryPool current = nullptr;
  REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  CHECK(current == default_pool());
  REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
  CUdeviceptr a = 0, b = 0;
  REQUIRE(cuMemAllocAsync(&a, 10 * mib, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 10 * mib);
  CHECK(cuMemAllocFromPoolAsync(&b, 10 * mib, pool, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);  // its largest size
  REQUIRE(cuMemAllocFromPoolAsync(&b, 10 * mib, default_pool(), nullptr) == CUDA_SUCCESS);

  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  CHECK(current == default_pool());
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolDestroy(default_pool()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocFromPoolAsync(&b, 100, pool, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemsetD8Async(a, 1, 10 * mib, nullptr) == CUDA_SUCCESS);  // what came from it stays until it is freed
  REQUIRE(cuMemFreeAsync(a, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("bad arguments to pools") {
  RemoteContext remote;
  CUdeviceptr block = 0;
  CUmemoryPool pool = nullptr;
  const auto nothing = reinterpret_cast<CUmemoryPool>(&pool);
  CHECK(cuMemAllocAsync(nullptr, 10, nullptr) == CUDA_ERROR_INVALID_VALUE);
  block = 1;
  CHECK(cuMemAllocAsync(&block, 0, nullptr) == CUDA_SUCCESS);
  CHECK(block == 0);
  CHECK(cuMemAllocAsync(&block, ~std::size_t{0}, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemAllocFromPoolAsync(&block, 10, nothing, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetDefaultMemPool(&pool, 99) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuMemPoolTrimTo(nothing, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemPoolProps properties{};
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 5};
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
  properties.location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_NOT_SUPPORTED);
  CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemPoolSetAccess(default_pool(), &access, 1) == CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK(cuMemPoolSetAccess(default_pool(), &access, 1) == CUDA_ERROR_INVALID_DEVICE);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CHECK(cuMemPoolSetAccess(default_pool(), &access, 1) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a pool in host memory gives pinned memory, in the order of streams") {
  RemoteContext remote;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = GENERATE(CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA), .id = 0};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK(cuMemPoolGetAccess(&flags, pool, &properties.location) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(cuMemPoolGetAccess(&flags, default_pool(), &properties.location) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUdeviceptr block = 0, device = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&block, 1000, pool, stream) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4096);
  auto* const words = reinterpret_cast<unsigned*>(block);
  for (unsigned i = 0; i < 250; ++i) words[i] = i;
  unsigned type = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_HOST);
  REQUIRE(cuMemAlloc_v2(&device, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAsync(device, block, 1000, stream) == CUDA_SUCCESS);
  unsigned back[250] = {};
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back, device, 1000) == CUDA_SUCCESS);
  CHECK(back[249] == 249);
  CHECK(cuMemFreeHost(words) == CUDA_ERROR_INVALID_VALUE);  // it is the pool's
  // What is kept is used again.
  cuuint64_t threshold = 1 << 20;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(device, 0, 1000, stream) == CUDA_SUCCESS);  // for the wait
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 4096);
  CUdeviceptr again = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&again, 4000, pool, stream) == CUDA_SUCCESS);
  CHECK(again == block);
  CHECK(cuMemFreeAsync(again + 8, stream) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree_v2(again) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&block, 1000, pool, stream) == CUDA_ERROR_INVALID_VALUE);
  CUmemLocation host{.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  REQUIRE(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_SUCCESS);
  CHECK(pool != default_pool());
  REQUIRE(cuMemAllocFromPoolAsync(&block, 5000, pool, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a block of a pool in host memory is not another's before its stream is there") {
  RemoteContext remote;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  properties.maxSize = 8192;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  cuuint64_t threshold = 1 << 20;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr device = 0, first = 0, second = 0, third = 0;
  REQUIRE(cuMemAlloc_v2(&device, 4096) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocFromPoolAsync(&first, 4096, pool, stream) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemcpyAsync(device, first, 4096, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(first, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  REQUIRE(cuMemAllocFromPoolAsync(&second, 4096, pool, stream) == CUDA_SUCCESS);
  CHECK(second != first);
  CHECK(cuMemAllocFromPoolAsync(&third, 4096, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  remote.driver->pause(false);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocFromPoolAsync(&third, 4096, pool, stream) == CUDA_SUCCESS);
  CHECK(third == first);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 8192);
  // Of a pool that is destroyed what is in use stays until it is freed.
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  std::memset(reinterpret_cast<void*>(second), 7, 4096);
  CHECK(cuMemFree_v2(second) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(third) == CUDA_SUCCESS);
}

TEST_CASE("pools are found and set by location and kind of memory") {
  RemoteContext remote;
  CUmemLocation here{};
  here.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemGetDefaultMemPool(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_SUCCESS);
  CHECK(pool == default_pool());
  const CUmemoryPool other = new_pool();
  REQUIRE(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, other) == CUDA_SUCCESS);
  REQUIRE(cuMemGetMemPool(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_SUCCESS);
  CHECK(pool == other);
  CUdeviceptr block = 0;
  REQUIRE(cuMemAllocAsync(&block, 100, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(other, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 100);
  CHECK(cuMemGetDefaultMemPool(&pool, nullptr, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE);
  here.id = 40;
  CHECK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, other) == CUDA_ERROR_INVALID_DEVICE);
}
