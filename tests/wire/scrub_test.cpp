// What one session leaves in memory is not there for the next, by whichever way that gets memory.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <vector>

#include "fixture.h"
#include "hand_made_client.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

constexpr std::size_t mib = 1u << 20;
constexpr unsigned char secret = 0x5E;

/// A session on a driver whose memory is as it was left.
struct Tenant : RemoteContext {
  explicit Tenant(bool scrub) : RemoteContext(default_config(), {}, nullptr, {}, scrub) { driver->leave(true); }
};
/// Forgets what was left.
struct Clean {
  ~Clean() { fake::FakeDriver::instance()->leave(false); }
};

using Bytes = std::vector<unsigned char>;

Bytes read_device(CUdeviceptr address, std::size_t bytes) {
  Bytes seen(bytes, 0xFF);
  REQUIRE(cuMemcpyDtoH_v2(seen.data(), address, bytes) == CUDA_SUCCESS);
  return seen;
}

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  REQUIRE(cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS);
  return address;
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return properties;
}

CUdeviceptr map_memory(std::size_t bytes, int device) {
  const CUmemAllocationProp properties = on_device(device);
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  REQUIRE(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemSetAccess(address, bytes, &access, 1) == CUDA_SUCCESS);
  return address;
}

/// One way to get memory and look at it.
struct Path {
  const char* name;
  std::size_t bytes;
  std::function<CUdeviceptr()> get;
};

const std::vector<Path>& paths() {
  static const std::vector<Path> all{
      {"cuMemAlloc, small", 1000, [] { return allocate(1000); }},
      {"cuMemAlloc, large", 32 * mib, [] { return allocate(32 * mib); }},
      {"cuMemAllocAsync", 4 * mib,
       [] {
         CUdeviceptr address = 0;
         REQUIRE(cuMemAllocAsync(&address, 4 * mib, nullptr) == CUDA_SUCCESS);
         return address;
       }},
      {"cuMemCreate", 6 * mib, [] { return map_memory(6 * mib, 0); }},
  };
  return all;
}

std::size_t others(const Bytes& seen) {
  return static_cast<std::size_t>(
      std::count_if(seen.begin(), seen.end(), [](unsigned char byte) { return byte != 0; }));
}

}  // namespace

TEST_CASE("scrub: the next tenant reads zeros where it would read what the one before left") {
  Clean clean;
  for (const bool scrub : {false, true}) {
    for (const Path& path : paths()) {
      CAPTURE(scrub, path.name);
      fake::FakeDriver::instance()->leave(false);
      {
        Tenant first(scrub);
        const CUdeviceptr address = path.get();
        CHECK(others(read_device(address, path.bytes)) == (scrub ? 0 : path.bytes));
        REQUIRE(cuMemsetD8_v2(address, secret, path.bytes) == CUDA_SUCCESS);
        CHECK(others(read_device(address, path.bytes)) == path.bytes);
      }
      Tenant second(scrub);
      const Bytes seen = read_device(path.get(), path.bytes);
      CHECK(others(seen) == (scrub ? 0 : path.bytes));
      if (!scrub) CHECK(seen.front() == secret);
    }
  }
}

TEST_CASE("scrub: memory is not to be seen before it is scrubbed, for its address is nobody's") {
  Clean clean;
  Tenant tenant(true);
  const CUdeviceptr address = allocate(16 * mib);
  const auto scrubbed = tenant.driver->last_arguments("cuMemsetD8Async");
  REQUIRE(scrubbed.size() == 4);
  CHECK(scrubbed[0] != address);
  const auto window = tenant.session().terms.device_window;
  CHECK((scrubbed[0] < window.base || scrubbed[0] >= window.base + window.bytes));
  CHECK(scrubbed[2] == 16 * mib);
  // And is no memory any more.
  CHECK(tenant.driver.table().cuMemUnmap(scrubbed[0], 16 * mib) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr again = allocate(16 * mib);
  CHECK(again != address);
  CHECK(tenant.driver->last_arguments("cuMemsetD8Async")[0] != scrubbed[0]);
}

TEST_CASE("scrub: wherever the driver has addresses") {
  Clean clean;
  Tenant tenant(true);
  tenant.driver->script("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, 4);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, 16 * mib) == CUDA_ERROR_OUT_OF_MEMORY);
  tenant.driver->script("cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY, 2);
  CHECK(cuMemAlloc_v2(&address, 16 * mib) == CUDA_SUCCESS);
  const std::uint64_t region = tenant.driver->last_arguments("cuMemAddressReserve")[3];
  const std::uint64_t place = tenant.driver->last_arguments("cuMemsetD8Async")[0];
  CHECK((place >= region && place < region + (std::uint64_t{1} << 43)));
  // Reserved once, and a place that is taken is passed over.
  const std::size_t reserved = tenant.driver->calls("cuMemAddressReserve");
  tenant.driver->script("cuMemMap", CUDA_ERROR_INVALID_VALUE, 3);
  CHECK(cuMemAlloc_v2(&address, 32 * mib) == CUDA_SUCCESS);
  CHECK(tenant.driver->calls("cuMemAddressReserve") == reserved);
}

TEST_CASE("scrub: what a session frees and takes again costs nothing") {
  Clean clean;
  Tenant tenant(true);
  REQUIRE(cuMemFree_v2(allocate(8 * mib)) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::size_t made = tenant.driver->calls("cuMemCreate"), scrubbed = tenant.driver->calls("cuMemsetD8Async");
  CHECK(scrubbed > 0);
  for (int i = 0; i < 100; ++i) {
    const CUdeviceptr address = allocate(8 * mib);
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  }
  CHECK(tenant.driver->calls("cuMemCreate") == made);
  CHECK(tenant.driver->calls("cuMemsetD8Async") == scrubbed);
}

TEST_CASE("scrub: memory of a device without a context") {
  Clean clean;
  {
    Tenant first(true);
    const CUdeviceptr address = map_memory(2 * mib, 1);
    REQUIRE(cuMemsetD8_v2(address, secret, 2 * mib) == CUDA_SUCCESS);
  }
  Tenant second(true);
  CHECK(others(read_device(map_memory(2 * mib, 1), 2 * mib)) == 0);
}

TEST_CASE("scrub: arrays and mipmapped arrays") {
  Clean clean;
  for (const bool scrub : {false, true}) {
    CAPTURE(scrub);
    Tenant tenant(scrub);
    const auto check = [&](CUarray array, std::size_t width, std::size_t height, std::size_t depth) {
      Bytes seen(width * height * depth, 0);
      CUDA_MEMCPY3D copy{};
      copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
      copy.srcArray = array;
      copy.dstMemoryType = CU_MEMORYTYPE_HOST;
      copy.dstHost = seen.data();
      copy.dstPitch = width;
      copy.dstHeight = height;
      copy.WidthInBytes = width;
      copy.Height = height;
      copy.Depth = depth;
      REQUIRE(cuMemcpy3D_v2(&copy) == CUDA_SUCCESS);
      CHECK(others(seen) == (scrub ? 0 : seen.size()));
    };
    const CUDA_ARRAY3D_DESCRIPTOR box{300, 100, 7, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUarray array = nullptr;
    REQUIRE(cuArray3DCreate_v2(&array, &box) == CUDA_SUCCESS);
    check(array, 300, 100, 7);
    const CUDA_ARRAY3D_DESCRIPTOR large{60'000, 200, 0, CU_AD_FORMAT_UNSIGNED_INT8,
                                        1,      0};  // more than is copied at once
    REQUIRE(cuArray3DCreate_v2(&array, &large) == CUDA_SUCCESS);
    check(array, 60'000, 200, 1);
    const CUDA_ARRAY_DESCRIPTOR line{500, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    REQUIRE(cuArrayCreate_v2(&array, &line) == CUDA_SUCCESS);
    check(array, 500, 1, 1);
    const CUDA_ARRAY3D_DESCRIPTOR levels{64, 32, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUmipmappedArray mipmap = nullptr;
    REQUIRE(cuMipmappedArrayCreate(&mipmap, &levels, 100) == CUDA_SUCCESS);
    for (unsigned level = 0; level < 7; ++level) {
      REQUIRE(cuMipmappedArrayGetLevel(&array, mipmap, level) == CUDA_SUCCESS);
      check(array, std::max(64u >> level, 1u), std::max(32u >> level, 1u), 1);
    }
    // Of which nobody can say where its elements lie.
    const CUDA_ARRAY3D_DESCRIPTOR planes{64, 64, 0, CU_AD_FORMAT_NV12, 3, 0};
    CHECK(cuArray3DCreate_v2(&array, &planes) == (scrub ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS));
  }
}

TEST_CASE("scrub: pinned memory of the worker") {
  Clean clean;
  Tenant tenant(true);
  void* memory = nullptr;
  REQUIRE(cuMemHostAlloc(&memory, mib, 0) == CUDA_SUCCESS);
  const CUdeviceptr device = allocate(mib);
  // The client has written nothing, so that what arrives is what the worker's block holds.
  REQUIRE(cuMemcpyHtoDAsync_v2(device, memory, mib, nullptr) == CUDA_SUCCESS);
  CHECK(others(read_device(device, mib)) == 0);
}

TEST_CASE("scrub: where it fails there is no memory, and nothing is charged") {
  Clean clean;
  Tenant tenant(true);
  std::size_t before = 0, after = 0, total = 0;
  REQUIRE(cuMemGetInfo_v2(&before, &total) == CUDA_SUCCESS);
  for (const char* call : {"cuMemsetD8Async", "cuMemSetAccess", "cuStreamCreateWithPriority", "cuStreamSynchronize"}) {
    CAPTURE(call);
    tenant.driver->script(call, CUDA_ERROR_OUT_OF_MEMORY, 1);
    const CUmemAllocationProp properties = on_device(0);
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, 2 * mib, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    tenant.driver->script(call, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CUdeviceptr address = 0;
    const CUresult plain = cuMemAlloc_v2(&address, 64 * mib);
    CHECK(plain == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemGetInfo_v2(&after, &total) == CUDA_SUCCESS);
    CHECK(after == before);
  }
}

TEST_CASE("scrub: the person is told, once, why there is no memory") {
  test::HandMadeClient client(0, false, true);
  client.open_context();
  const auto& driver = fake::FakeDriver::instance();
  driver->script("cuMemsetD8Async", CUDA_ERROR_LAUNCH_TIMEOUT, 2);
  const auto back = [&] {
    client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
      in.setAddress(0x1000'0000'0000);
      in.setBytes(2 * mib);
    });
    return client.reply();
  };
  CHECK(back() == CUDA_ERROR_LAUNCH_TIMEOUT);
  CHECK(back() == CUDA_ERROR_LAUNCH_TIMEOUT);
  CHECK(back() == CUDA_SUCCESS);
  CHECK(client.printed() ==
        "fargpu: warning: device memory is refused, because it could not be filled with zeros first: the GPU host's "
        "driver answered CUDA_ERROR_FAKE\n");
}
