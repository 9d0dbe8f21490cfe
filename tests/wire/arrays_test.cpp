// Arrays and mipmapped arrays through the wire, and copies from and to them.

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "calls_array.capnp.h"
#include "fixture.h"
#include "hand_made_client.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

constexpr std::uint64_t page = 64u << 10;  // the fake driver's arrays take whole ones

CUDA_ARRAY3D_DESCRIPTOR describe(std::size_t width, std::size_t height, std::size_t depth, unsigned channels = 1,
                                 unsigned flags = 0) {
  return {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT8, channels, flags};
}

CUarray make(std::size_t width, std::size_t height, std::size_t depth = 0, unsigned channels = 1, unsigned flags = 0) {
  const CUDA_ARRAY3D_DESCRIPTOR description = describe(width, height, depth, channels, flags);
  CUarray array = nullptr;
  REQUIRE(cuArray3DCreate_v2(&array, &description) == CUDA_SUCCESS);
  return array;
}

CUDA_MEMCPY2D to_array(const void* host, std::size_t pitch, CUarray array, std::size_t width, std::size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

CUDA_MEMCPY2D from_array(CUarray array, void* host, std::size_t pitch, std::size_t width, std::size_t height) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host;
  copy.dstPitch = pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

std::vector<unsigned char> numbers(std::size_t count, unsigned first = 0) {
  std::vector<unsigned char> bytes(count);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(first));
  return bytes;
}

}  // namespace

TEST_CASE("arrays are made, described and destroyed") {
  RemoteContext remote;
  const CUDA_ARRAY_DESCRIPTOR plain{64, 32, CU_AD_FORMAT_FLOAT, 4};
  CUarray array = nullptr;
  REQUIRE(cuArrayCreate_v2(&array, &plain) == CUDA_SUCCESS);
  CHECK(handle_of(array).well_formed(HandleKind::array));
  CUDA_ARRAY_DESCRIPTOR seen{};
  REQUIRE(cuArrayGetDescriptor_v2(&seen, array) == CUDA_SUCCESS);
  CHECK(seen.Width == 64);
  CHECK(seen.Height == 32);
  CHECK(seen.Format == CU_AD_FORMAT_FLOAT);
  CHECK(seen.NumChannels == 4);
  REQUIRE(cuArrayGetDescriptor_v2(&seen, array) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuArrayGetDescriptor_v2") == 1);  // remembered
  CUDA_ARRAY3D_DESCRIPTOR full{};
  REQUIRE(cuArray3DGetDescriptor_v2(&full, array) == CUDA_SUCCESS);
  CHECK(full.Depth == 0);
  CHECK(cuArrayCreate_v2(nullptr, &plain) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayCreate_v2(&array, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuArrayDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuArrayGetDescriptor_v2(&seen, array) == CUDA_ERROR_INVALID_HANDLE);  // and forgotten
  const CUDA_ARRAY3D_DESCRIPTOR impossible = describe(64, 64, 0, 3);
  CHECK(cuArray3DCreate_v2(&array, &impossible) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("pictures go to arrays and back") {
  RemoteContext remote;
  const CUarray array = make(40, 20, 0, 4);
  const auto picture = numbers(200 * 20);
  CUDA_MEMCPY2D in = to_array(picture.data(), 200, array, 160, 20);
  in.srcXInBytes = 8;
  REQUIRE(cuMemcpy2D_v2(&in) == CUDA_SUCCESS);
  std::vector<unsigned char> packed(100 * 10), spaced(130 * 10, 0xEE);
  for (const std::size_t pitch : {std::size_t{100}, std::size_t{130}}) {
    auto& back = pitch == 100 ? packed : spaced;
    CUDA_MEMCPY2D out = from_array(array, back.data(), pitch, 100, 10);
    out.srcXInBytes = 12;
    out.srcY = 5;
    REQUIRE((pitch == 100 ? cuMemcpy2D_v2(&out) : cuMemcpy2DUnaligned_v2(&out)) == CUDA_SUCCESS);
    for (std::size_t y = 0; y < 10; ++y) CHECK(std::memcmp(&back[y * pitch], &picture[(y + 5) * 200 + 20], 100) == 0);
  }
  CHECK(spaced[100] == 0xEE);  // between the rows
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("rows of arrays are copied to and from everything") {
  RemoteContext remote;
  const CUarray row = make(1000, 0), other = make(1000, 1);
  const auto bytes = numbers(600, 3);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoA_v2(row, 100, bytes.data(), 600) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoA_v2(other, 50, row, 200, 300) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoD_v2(memory, other, 60, 200) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoA_v2(row, 0, memory + 10, 100) == CUDA_SUCCESS);
  std::vector<unsigned char> back(100), later(50);
  REQUIRE(cuMemcpyAtoH_v2(back.data(), row, 0, 100) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), &bytes[120], 100) == 0);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoAAsync_v2(other, 0, bytes.data(), 50, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoHAsync_v2(later.data(), other, 10, 40, stream) == CUDA_SUCCESS);
  CHECK(std::memcmp(later.data(), &bytes[10], 40) == 0);
  for (const CUarray array : {row, other}) CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("volumes, layers and pictures within device memory keep their shape") {
  RemoteContext remote;
  const CUarray volume = make(16, 8, 6), layers = make(16, 8, 6, 1, CUDA_ARRAY3D_LAYERED);
  const auto voxels = numbers(16 * 8 * 6);
  CUDA_MEMCPY3D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = voxels.data();
  in.srcPitch = 16;
  in.srcHeight = 8;
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  in.dstArray = volume;
  in.WidthInBytes = 16;
  in.Height = 8;
  in.Depth = 6;
  REQUIRE(cuMemcpy3D_v2(&in) == CUDA_SUCCESS);

  CUDA_MEMCPY3D across{};
  across.srcMemoryType = across.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  across.srcArray = volume;
  across.dstArray = layers;
  across.srcZ = 3;
  across.dstZ = 1;
  across.dstY = 2;
  across.WidthInBytes = 16;
  across.Height = 4;
  across.Depth = 2;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::size_t before = remote.driver->calls("cuMemcpy3DAsync_v2");
  REQUIRE(cuMemcpy3DAsync_v2(&across, nullptr) == CUDA_SUCCESS);

  CUdeviceptr cube = 0;
  std::size_t pitch = 0;
  REQUIRE(cuMemAllocPitch_v2(&cube, &pitch, 16, 8 * 6, 4) == CUDA_SUCCESS);
  CUDA_MEMCPY3D out = across;
  out.srcArray = layers;
  out.srcZ = 1;
  out.srcY = 2;
  out.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  out.dstDevice = cube;
  out.dstPitch = pitch;
  out.dstHeight = 8;
  out.dstZ = 0;
  out.dstY = 1;
  REQUIRE(cuMemcpy3D_v2(&out) == CUDA_SUCCESS);
  std::vector<unsigned char> back(16);
  for (std::size_t z = 0; z < 2; ++z) {
    for (std::size_t y = 0; y < 4; ++y) {
      REQUIRE(cuMemcpyDtoH_v2(back.data(), cube + (z * 8 + y + 1) * pitch, 16) == CUDA_SUCCESS);
      CHECK(std::memcmp(back.data(), &voxels[((z + 3) * 8 + y) * 16], 16) == 0);
    }
  }
  CHECK(remote.driver->calls("cuMemcpy3DAsync_v2") == before + 2);  // within the GPU's memory each is one copy
  // Without pitch and height there are no gaps.
  std::vector<unsigned char> packed(16 * 8 * 2);
  CUDA_MEMCPY3D plain{};
  plain.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  plain.srcArray = volume;
  plain.srcZ = 4;
  plain.dstMemoryType = CU_MEMORYTYPE_HOST;
  plain.dstHost = packed.data();
  plain.WidthInBytes = 16;
  plain.Height = 8;
  plain.Depth = 2;
  REQUIRE(cuMemcpy3D_v2(&plain) == CUDA_SUCCESS);
  CHECK(std::memcmp(packed.data(), &voxels[4 * 8 * 16], packed.size()) == 0);
  out.dstHeight = 3;  // slices would overlap
  CHECK(cuMemcpy3D_v2(&out) == CUDA_ERROR_INVALID_VALUE);
  in.dstLOD = 1;
  CHECK(cuMemcpy3D_v2(&in) == CUDA_ERROR_INVALID_VALUE);
  for (const CUarray array : {volume, layers}) CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("large pictures arrive whole") {
  RemoteContext remote;
  const std::size_t width = 8000, height = 1500;  // several frames
  const CUarray array = make(width, height);
  std::vector<unsigned char> picture(width * height), back(width * height);
  for (std::size_t i = 0; i < picture.size(); ++i) picture[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  const CUDA_MEMCPY2D in = to_array(picture.data(), width, array, width, height);
  const CUDA_MEMCPY2D out = from_array(array, back.data(), width, width, height);
  REQUIRE(cuMemcpy2D_v2(&in) == CUDA_SUCCESS);
  REQUIRE(cuMemcpy2D_v2(&out) == CUDA_SUCCESS);
  CHECK(back == picture);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("levels of mipmapped arrays are arrays, as long as the whole lives") {
  RemoteContext remote;
  const CUDA_ARRAY3D_DESCRIPTOR description = describe(64, 32, 0);
  CUmipmappedArray mipmap = nullptr;
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &description, 4) == CUDA_SUCCESS);
  CUarray level = nullptr, again = nullptr;
  REQUIRE(cuMipmappedArrayGetLevel(&level, mipmap, 2) == CUDA_SUCCESS);
  REQUIRE(cuMipmappedArrayGetLevel(&again, mipmap, 2) == CUDA_SUCCESS);
  CHECK(again == level);
  CUDA_ARRAY3D_DESCRIPTOR seen{};
  REQUIRE(cuArray3DGetDescriptor_v2(&seen, level) == CUDA_SUCCESS);
  CHECK(seen.Width == 16);
  CHECK(seen.Height == 8);
  const auto bytes = numbers(16 * 8);
  std::vector<unsigned char> back(16 * 8);
  const CUDA_MEMCPY2D in = to_array(bytes.data(), 16, level, 16, 8), out = from_array(level, back.data(), 16, 16, 8);
  REQUIRE(cuMemcpy2D_v2(&in) == CUDA_SUCCESS);
  REQUIRE(cuMemcpy2D_v2(&out) == CUDA_SUCCESS);
  CHECK(back == bytes);
  CHECK(cuMipmappedArrayGetLevel(&again, mipmap, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(level) == CUDA_ERROR_INVALID_HANDLE);  // it goes with the whole
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuArray3DGetDescriptor_v2(&seen, level) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemcpy2D_v2(&in) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("planes of pictures are arrays, and what the whole holds only the driver knows") {
  RemoteContext remote;
  const CUDA_ARRAY3D_DESCRIPTOR description{64, 32, 0, CU_AD_FORMAT_NV12, 1, 0};
  CUarray picture = nullptr, colour = nullptr;
  REQUIRE(cuArray3DCreate_v2(&picture, &description) == CUDA_SUCCESS);
  REQUIRE(cuArrayGetPlane(&colour, picture, 1) == CUDA_SUCCESS);
  CHECK(cuArrayGetPlane(&colour, picture, 2) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY3D_DESCRIPTOR seen{};
  REQUIRE(cuArray3DGetDescriptor_v2(&seen, colour) == CUDA_SUCCESS);
  CHECK(seen.Width == 32);
  CHECK(seen.NumChannels == 2);
  const auto bytes = numbers(64);
  std::vector<unsigned char> back(64);
  REQUIRE(cuMemcpyHtoA_v2(colour, 0, bytes.data(), 64) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoH_v2(back.data(), colour, 0, 64) == CUDA_SUCCESS);
  CHECK(back == bytes);
  const std::size_t asked = remote.driver->calls("cuMemcpy3DAsync_v2");
  CHECK(cuMemcpyAtoH_v2(back.data(), picture, 0, 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuMemcpy3DAsync_v2") == asked + 1);
  CHECK(cuArrayDestroy(picture) == CUDA_SUCCESS);
  CHECK(cuArray3DGetDescriptor_v2(&seen, colour) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("arrays without memory tell what they need") {
  RemoteContext remote;
  const std::uint64_t before = remote.driver->memory_bytes();
  const CUarray array = make(1000, 1000, 0, 1, CUDA_ARRAY3D_DEFERRED_MAPPING),
                sparse = make(512, 512, 0, 1, CUDA_ARRAY3D_SPARSE);
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs{};
  REQUIRE(cuArrayGetMemoryRequirements(&needs, array, 0) == CUDA_SUCCESS);
  CHECK(needs.size == (1000 * 1000 + page - 1) / page * page);
  CHECK(needs.alignment == page);
  CHECK(cuArrayGetMemoryRequirements(&needs, array, 7) == CUDA_ERROR_INVALID_DEVICE);
  CUDA_ARRAY_SPARSE_PROPERTIES properties{};
  REQUIRE(cuArrayGetSparseProperties(&properties, sparse) == CUDA_SUCCESS);
  CHECK(properties.tileExtent.width == 128);
  CHECK(properties.miptailSize == page);
  const CUDA_ARRAY3D_DESCRIPTOR description = describe(64, 64, 0, 1, CUDA_ARRAY3D_DEFERRED_MAPPING);
  CUmipmappedArray mipmap = nullptr;
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &description, 2) == CUDA_SUCCESS);
  REQUIRE(cuMipmappedArrayGetMemoryRequirements(&needs, mipmap, 0) == CUDA_SUCCESS);
  CHECK(needs.size == 2 * page);
  CHECK(cuMipmappedArrayGetSparseProperties(&properties, mipmap) == CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY3D_DESCRIPTOR tiles = describe(512, 512, 0, 1, CUDA_ARRAY3D_SPARSE);
  CUmipmappedArray tiled = nullptr;
  REQUIRE(cuMipmappedArrayCreate(&tiled, &tiles, 5) == CUDA_SUCCESS);
  REQUIRE(cuMipmappedArrayGetSparseProperties(&properties, tiled) == CUDA_SUCCESS);
  CHECK(properties.miptailFirstLevel == 3);
  CHECK(cuMipmappedArrayDestroy(tiled) == CUDA_SUCCESS);
  CHECK(remote.driver->memory_bytes() == before);
  for (const CUarray one : {array, sparse}) CHECK(cuArrayDestroy(one) == CUDA_SUCCESS);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
}

TEST_CASE("copies beyond an array are refused at once") {
  RemoteContext remote;
  const CUarray array = make(64, 32, 4);
  std::vector<unsigned char> host(64 * 32 * 4);
  CUDA_MEMCPY2D in = to_array(host.data(), 64, array, 64, 32);
  REQUIRE(cuMemcpy2DAsync_v2(&in, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::size_t before = remote.driver->calls("cuMemcpy3DAsync_v2");
  const std::size_t huge = ~std::size_t{0};
  in.dstXInBytes = 1;
  CHECK(cuMemcpy2DAsync_v2(&in, nullptr) == CUDA_ERROR_INVALID_VALUE);
  in.dstXInBytes = huge;
  CHECK(cuMemcpy2DAsync_v2(&in, nullptr) == CUDA_ERROR_INVALID_VALUE);
  in.dstXInBytes = 0;
  in.dstY = 1;
  CHECK(cuMemcpy2DAsync_v2(&in, nullptr) == CUDA_ERROR_INVALID_VALUE);
  in.dstY = huge - 30;
  CHECK(cuMemcpy2DAsync_v2(&in, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoA_v2(array, 60, host.data(), 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyAtoH_v2(host.data(), array, huge, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyAtoA_v2(array, 0, array, 32, 33) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D volume{};
  volume.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  volume.srcArray = array;
  volume.srcZ = 2;
  volume.dstMemoryType = CU_MEMORYTYPE_HOST;
  volume.dstHost = host.data();
  volume.dstPitch = 64;
  volume.dstHeight = 32;
  volume.WidthInBytes = 64;
  volume.Height = 32;
  volume.Depth = 3;
  CHECK(cuMemcpy3D_v2(&volume) == CUDA_ERROR_INVALID_VALUE);
  volume.srcArray = nullptr;
  CHECK(cuMemcpy3D_v2(&volume) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemcpyHtoA_v2(nullptr, 0, host.data(), 5) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemcpyAtoD_v2(0, array, 0, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuMemcpy3DAsync_v2") == before);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("pinned pictures travel in the stream's order, and nobody waits") {
  RemoteContext remote;
  const CUarray first = make(64, 32), second = make(64, 32);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 64 * 32, 0) == CUDA_SUCCESS);
  auto* const bytes = static_cast<unsigned char*>(pinned);
  const auto picture = numbers(64 * 32, 9);
  const CUDA_MEMCPY2D fill = to_array(picture.data(), 64, first, 64, 32);
  REQUIRE(cuMemcpy2D_v2(&fill) == CUDA_SUCCESS);
  std::memset(bytes, 0, 64 * 32);

  remote.driver->pause(true);  // nothing comes back from here on
  const CUDA_MEMCPY2D out = from_array(first, pinned, 64, 64, 32);
  REQUIRE(cuMemcpy2DAsync_v2(&out, stream) == CUDA_SUCCESS);
  // What was just copied out goes on into the other array, though it is not here yet: whole, by rows, and a part of a
  // row.
  std::vector<unsigned char> back(64 * 32);
  for (const std::size_t width : {std::size_t{64}, std::size_t{60}}) {
    const CUDA_MEMCPY2D in = to_array(pinned, 64, second, width, 32);
    REQUIRE(cuMemcpy2DAsync_v2(&in, stream) == CUDA_SUCCESS);
  }
  if (!remote.session().shares_memory()) CHECK(bytes[0] == 0);  // else it is the driver's own, which copies at once
  remote.driver->pause(false);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(std::memcmp(bytes, picture.data(), 64 * 32) == 0);
  const CUDA_MEMCPY2D look = from_array(second, back.data(), 64, 64, 32);
  REQUIRE(cuMemcpy2D_v2(&look) == CUDA_SUCCESS);
  CHECK(back == picture);

  // A row of which one half is on its way here and the other was written here: neither is lost.
  std::memset(bytes, 1, 64);
  REQUIRE(cuMemcpyAtoHAsync_v2(bytes, first, 0, 30, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoAAsync_v2(second, 0, bytes, 64, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyAtoH_v2(back.data(), second, 0, 64) == CUDA_SUCCESS);
  CHECK(std::memcmp(back.data(), picture.data(), 30) == 0);
  CHECK(back[30] == 1);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  for (const CUarray array : {first, second}) CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("two-dimensional copies from pinned memory take what the worker holds") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 8192) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  std::memset(pinned, 0, 4096);
  REQUIRE(cuMemsetD8_v2(memory, 5, 4096) == CUDA_SUCCESS);
  remote.driver->pause(true);
  REQUIRE(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream) == CUDA_SUCCESS);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = pinned;
  in.srcPitch = 128;
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = memory + 4096;
  in.dstPitch = 64;
  in.WidthInBytes = 64;
  in.Height = 32;
  REQUIRE(cuMemcpy2DAsync_v2(&in, stream) == CUDA_SUCCESS);
  remote.driver->pause(false);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  std::vector<unsigned char> back(2048);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory + 4096, back.size()) == CUDA_SUCCESS);
  CHECK(back == std::vector<unsigned char>(2048, 5));
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("arrays are charged before they are made, and credited when they go") {
  const std::uint64_t limit = 8u << 20;
  RemoteContext remote(RemoteContext::default_config(), {limit, limit});
  const std::uint64_t before = remote.driver->memory_bytes();
  const CUarray array = make(2048, 1024, 3);  // 6 MiB
  CHECK(remote.driver->memory_bytes() == before + (6u << 20));
  CUarray other = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR too_much = describe(2048, 1025, 0), rest = describe(2048, 1024, 0);
  const std::size_t asked = remote.driver->calls("cuArray3DCreate_v2");
  CHECK(cuArray3DCreate_v2(&other, &too_much) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(remote.driver->calls("cuArray3DCreate_v2") == asked + 1);  // for its needs only
  REQUIRE(cuArray3DCreate_v2(&other, &rest) == CUDA_SUCCESS);      // to the byte
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, 100) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuArrayDestroy(other) == CUDA_SUCCESS);
  // What the driver could not make is not charged.
  remote.driver->script("cuArray3DCreate_v2", CUDA_ERROR_NOT_SUPPORTED, 1);  // the question: then the elements count
  REQUIRE(cuArray3DCreate_v2(&other, &rest) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(other) == CUDA_SUCCESS);
  remote.driver->script("cuArray3DCreate_v2", CUDA_ERROR_INVALID_VALUE, 2);
  CHECK(cuArray3DCreate_v2(&other, &rest) == CUDA_ERROR_INVALID_VALUE);
  CUmipmappedArray mipmap = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR levels = describe(1024, 1024, 0);
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &levels, 4) == CUDA_SUCCESS);
  CHECK(cuArray3DCreate_v2(&other, &rest) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 100) == CUDA_SUCCESS);
  CHECK(cuArray3DCreate_v2(&other, &rest) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  REQUIRE(cuArray3DCreate_v2(&other, &rest) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(other) == CUDA_SUCCESS);
}

TEST_CASE("arrays go with their context, and so does what they are charged") {
  const std::uint64_t limit = 4u << 20;
  test::Remote remote(test::Remote::default_config(), {limit, limit});
  for (int round = 0; round < 3; ++round) {
    CUcontext context = nullptr;
    REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
    const CUarray array = make(2048, 2048);
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
    REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
    CUDA_ARRAY3D_DESCRIPTOR seen{};
    CHECK(cuArray3DGetDescriptor_v2(&seen, array) == CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  }
}

TEST_CASE("arrays are neither made nor destroyed during a capture") {
  RemoteContext remote;
  const CUarray array = make(64, 64);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto capture = [&](auto&& call) {
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  };
  capture([&] { return cuArrayDestroy(array); });
  capture([] {
    const CUDA_ARRAY_DESCRIPTOR description{8, 8, CU_AD_FORMAT_FLOAT, 1};
    CUarray made = nullptr;
    return cuArrayCreate_v2(&made, &description);
  });
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("a worker believes nothing of what a client says of arrays") {
  HandMadeClient client;
  client.open_context();
  client.send_call<wire::CuArray3DCreateV2>(Opcode::cuArray3DCreate_v2, [](auto in) {
    auto array = in.initPAllocateArray();
    array.setWidth(64);
    array.setHeight(32);
    array.setFormat(CU_AD_FORMAT_UNSIGNED_INT8);
    array.setNumChannels(1);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  const std::uint64_t array = Handle(HandleKind::array, Handle::worker_index_first, 1).value();
  const auto copy = [&](std::uint64_t handle, std::uint64_t x, std::uint64_t y, std::uint64_t z, std::uint64_t width,
                        std::uint64_t height, std::uint64_t depth, std::size_t bulk_bytes) {
    const std::vector<std::byte> bulk(bulk_bytes);
    client.send_call<wire::CopyIn>(
        Opcode::copyIn,
        [&](wire::CopyIn::Builder in) {
          in.setStream(1);
          encode({width, height, depth}, {}, {.kind = CopySide::Kind::array, .place = handle, .x = x, .y = y, .z = z},
                 in.initCopy());
        },
        bulk);
    return client.reply();
  };
  CHECK(copy(array, 0, 0, 0, 64, 32, 1, 2048) == CUDA_SUCCESS);
  const std::uint64_t huge = ~std::uint64_t{0};
  CHECK(copy(array, 1, 0, 0, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, huge, 0, 0, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, 0, huge - 30, 0, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, 0, 0, 1, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, 0, 0, 0, 64, 16, 2, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, 0, 0, 0, std::uint64_t{1} << 33, std::uint64_t{1} << 31, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(copy(array, 0, 0, 0, 0, 32, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  for (const std::uint64_t handle : {std::uint64_t{0}, huge, array + 16, array - 16,
                                     Handle(HandleKind::mipmap, Handle::worker_index_first, 1).value()})
    CHECK(copy(handle, 0, 0, 0, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_HANDLE);
  // Sizes whose product is none.
  for (const std::uint64_t side : {huge, std::uint64_t{1} << 32}) {
    client.send_call<wire::CuArray3DCreateV2>(Opcode::cuArray3DCreate_v2, [&](auto in) {
      auto description = in.initPAllocateArray();
      description.setWidth(side);
      description.setHeight(side);
      description.setDepth(side);
      description.setFormat(CU_AD_FORMAT_FLOAT);
      description.setNumChannels(4);
    });
    CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  }
  client.send_call<wire::CuArrayDestroy>(Opcode::cuArrayDestroy, [&](auto in) { in.setHArray(array); });
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(copy(array, 0, 0, 0, 64, 32, 1, 2048) == CUDA_ERROR_INVALID_HANDLE);
}

namespace {

// Arrays without memory, and memory for them.
struct Mappable : RemoteContext {
  explicit Mappable(std::vector<std::uint64_t> limits = {}) : RemoteContext(default_config(), std::move(limits)) {
    before = driver->memory_bytes();
    array = make(256, 128, 0, 1, CUDA_ARRAY3D_SPARSE);
    const CUDA_ARRAY3D_DESCRIPTOR description = describe(256, 128, 0, 1, CUDA_ARRAY3D_SPARSE);
    REQUIRE(cuMipmappedArrayCreate(&mipmap, &description, 2) == CUDA_SUCCESS);
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    REQUIRE(cuMemCreate(&pool, 2u << 20, &prop, 0) == CUDA_SUCCESS);
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = array;
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    info.subresource.sparseLevel = {0, 0, 0, 0, 0, 256, 128, 1};
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = pool;
    info.deviceBitMask = 1;
  }
  CUresult map() { return cuMemMapArrayAsync(&info, 1, nullptr); }
  CUresult fill() {
    const CUDA_MEMCPY2D in = to_array(picture.data(), 256, array, 256, 128);
    const CUresult result = cuMemcpy2D_v2(&in);
    return result == CUDA_SUCCESS ? cuCtxSynchronize() : result;  // what the driver says of it comes late
  }
  std::uint64_t before = 0;
  CUarray array = nullptr;
  CUmipmappedArray mipmap = nullptr;
  CUmemGenericAllocationHandle pool = 0;
  CUarrayMapInfo info{};
  const std::vector<unsigned char> picture = numbers(256 * 128, 3);
};

}  // namespace

TEST_CASE("memory is mapped into sparse arrays, and taken away again") {
  Mappable m;
  int can = 0;
  CHECK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(can == 1);
  CHECK(m.fill() == CUDA_ERROR_INVALID_VALUE);  // nothing there
  REQUIRE(m.map() == CUDA_SUCCESS);
  REQUIRE(m.fill() == CUDA_SUCCESS);
  std::vector<unsigned char> back(256 * 128);
  const CUDA_MEMCPY2D out = from_array(m.array, back.data(), 256, 256, 128);
  REQUIRE(cuMemcpy2D_v2(&out) == CUDA_SUCCESS);
  CHECK(back == m.picture);
  CUarrayMapInfo both[2] = {m.info, m.info};
  both[0].memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  both[0].memHandle.memHandle = 0;
  both[1].resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  both[1].resource.mipmap = m.mipmap;
  both[1].subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  both[1].subresource.miptail = {0, 0, page};
  both[1].offset = page;
  REQUIRE(cuMemMapArrayAsync(both, 2, nullptr) == CUDA_SUCCESS);
  CHECK(m.fill() == CUDA_ERROR_INVALID_VALUE);
  CUarray level = nullptr;
  REQUIRE(cuMipmappedArrayGetLevel(&level, m.mipmap, 0) == CUDA_SUCCESS);
  const CUDA_MEMCPY2D in = to_array(m.picture.data(), 256, level, 256, 128);
  CHECK(cuMemcpy2D_v2(&in) == CUDA_SUCCESS);
}

TEST_CASE("memory in an array is charged for as long as the array lives") {
  const std::uint64_t limit = 3u << 20;
  Mappable m({limit, limit});
  REQUIRE(m.map() == CUDA_SUCCESS);
  CHECK(cuMemRelease(m.pool) == CUDA_SUCCESS);
  CHECK(m.driver->memory_bytes() == m.before + (2u << 20));  // the array has it
  CUdeviceptr more = 0;
  CHECK(cuMemAlloc_v2(&more, 2u << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuArrayDestroy(m.array) == CUDA_SUCCESS);
  CHECK(m.driver->memory_bytes() == m.before);
  CHECK(cuMemAlloc_v2(&more, 2u << 20) == CUDA_SUCCESS);
}

TEST_CASE("memory that is taken out of an array is charged no longer once the stream has passed that") {
  const bool same_stream = GENERATE(true, false);  // of others nobody knows which came first
  const std::uint64_t limit = 3u << 20;
  Mappable m({limit, limit});
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(m.map() == CUDA_SUCCESS);
  CHECK(cuMemRelease(m.pool) == CUDA_SUCCESS);
  m.info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  m.info.memHandle.memHandle = 0;
  REQUIRE(cuMemMapArrayAsync(&m.info, 1, same_stream ? nullptr : other) == CUDA_SUCCESS);
  CHECK(m.driver->memory_bytes() == m.before);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr more = 0;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (int tries = 0; tries < (same_stream ? 500 : 5) && result == CUDA_ERROR_OUT_OF_MEMORY; ++tries) {
    if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    result = cuMemAlloc_v2(&more, 2u << 20);
  }
  CHECK(result == (same_stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
  CHECK(cuArrayDestroy(m.array) == CUDA_SUCCESS);
  if (!same_stream) CHECK(cuMemAlloc_v2(&more, 2u << 20) == CUDA_SUCCESS);
}

TEST_CASE("what cannot be mapped into an array") {
  Mappable m;
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  CHECK(cuMemMapArrayAsync(nullptr, 1, nullptr) == invalid);
  CHECK(cuMemMapArrayAsync(&m.info, 0, nullptr) == invalid);
  CHECK(cuMemMapArrayAsync(&m.info, ~0u, nullptr) == invalid);
  CHECK(cuMemMapArrayAsync(&m.info, 1, reinterpret_cast<CUstream>(0x770)) == CUDA_ERROR_INVALID_HANDLE);
  const auto with = [&](auto&& change) {
    const CUarrayMapInfo good = m.info;
    change(m.info);
    const CUresult result = m.map();
    m.info = good;
    return result;
  };
  CHECK(with([](auto& i) { i.deviceBitMask = 2; }) == invalid);  // not the stream's
  CHECK(with([](auto& i) { i.deviceBitMask = 3; }) == invalid);
  CHECK(with([](auto& i) { i.deviceBitMask = 0; }) == invalid);
  CHECK(with([](auto& i) { i.flags = 1; }) == invalid);
  CHECK(with([](auto& i) { i.reserved[1] = 1; }) == invalid);
  CHECK(with([](auto& i) { i.resourceType = CU_RESOURCE_TYPE_LINEAR; }) == invalid);
  CHECK(with([](auto& i) { i.resource.array = nullptr; }) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(with([](auto& i) { i.subresourceType = static_cast<CUarraySparseSubresourceType>(7); }) == invalid);
  CHECK(with([](auto& i) { i.memOperationType = static_cast<CUmemOperationType>(7); }) == invalid);
  CHECK(with([](auto& i) { i.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP; }) == invalid);  // of memory
  CHECK(with([](auto& i) { i.memHandleType = static_cast<CUmemHandleType>(7); }) == invalid);
  CHECK(with([](auto& i) { i.memHandle.memHandle = 5; }) == invalid);
  CHECK(with([](auto& i) { i.offset = 2u << 20; }) == invalid);  // behind the memory
  CHECK(m.driver->calls("cuMemMapArrayAsync") == 0);
  const CUarray plain = make(64, 64);
  CHECK(with([&](auto& i) { i.resource.array = plain; }) == invalid);  // the driver's word
  CHECK(m.driver->calls("cuMemMapArrayAsync") == 1);
}

TEST_CASE("a worker maps nothing into an array that the session does not have") {
  HandMadeClient client;
  client.open_context();
  const auto send = [&](std::uint64_t stream, std::uint64_t array, std::uint64_t mipmap, unsigned count = 1) {
    client.send_call<wire::MapArrays>(Opcode::mapArrays, [&](wire::MapArrays::Builder in) {
      in.setStream(stream);
      auto list = in.initItems(count);
      for (unsigned i = 0; i < count; ++i) {
        list[i].setArray(array);
        list[i].setMipmap(mipmap);
        list[i].setAllocation(77);
      }
    });
    return client.reply();
  };
  CHECK(send(99, 5, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(send(1, 5, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(send(1, 0, 5) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(send(1, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}
