// Textures and surfaces, as objects and as references, through the wire.

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "calls_texture.capnp.h"
#include "fixture.h"
#include "hand_made_client.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

CUarray make_array() {
  const CUDA_ARRAY3D_DESCRIPTOR description{64, 32, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
  CUarray array = nullptr;
  REQUIRE(cuArray3DCreate_v2(&array, &description) == CUDA_SUCCESS);
  return array;
}

CUDA_RESOURCE_DESC resource_of(CUarray array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  return resource;
}

CUDA_RESOURCE_DESC linear(CUdeviceptr address, std::size_t bytes) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = address;
  resource.res.linear.format = CU_AD_FORMAT_FLOAT;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = bytes;
  return resource;
}

CUDA_RESOURCE_DESC picture(CUdeviceptr address, std::size_t width, std::size_t height, std::size_t pitch) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D.devPtr = address;
  resource.res.pitch2D.format = CU_AD_FORMAT_FLOAT;
  resource.res.pitch2D.numChannels = 2;
  resource.res.pitch2D.width = width;
  resource.res.pitch2D.height = height;
  resource.res.pitch2D.pitchInBytes = pitch;
  return resource;
}

CUresult make_texture(const CUDA_RESOURCE_DESC& resource, CUtexObject& texture) {
  const CUDA_TEXTURE_DESC sampling{};
  return cuTexObjectCreate(&texture, &resource, &sampling, nullptr);
}

}  // namespace

TEST_CASE("texture objects are the driver's own values, and tell what they were made of") {
  RemoteContext remote;
  const CUarray array = make_array();
  CUDA_TEXTURE_DESC sampling{};
  sampling.addressMode[0] = CU_TR_ADDRESS_MODE_CLAMP;
  sampling.addressMode[2] = CU_TR_ADDRESS_MODE_BORDER;
  sampling.filterMode = CU_TR_FILTER_MODE_LINEAR;
  sampling.flags = CU_TRSF_NORMALIZED_COORDINATES;
  sampling.maxAnisotropy = 4;
  sampling.mipmapLevelBias = -0.5F;
  sampling.maxMipmapLevelClamp = 3;
  sampling.borderColor[3] = 0.25F;
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
  view.width = 64;
  view.height = 32;
  view.lastLayer = 2;
  const CUDA_RESOURCE_DESC resource = resource_of(array);
  CUtexObject texture = 0, plain = 0;
  REQUIRE(cuTexObjectCreate(&texture, &resource, &sampling, &view) == CUDA_SUCCESS);
  REQUIRE(make_texture(resource, plain) == CUDA_SUCCESS);
  CHECK(plain == texture + 1);  // as the fake driver counts
  CHECK(plain < 1000000);

  CUDA_RESOURCE_DESC resource_back{};
  REQUIRE(cuTexObjectGetResourceDesc(&resource_back, texture) == CUDA_SUCCESS);
  CHECK(resource_back.resType == CU_RESOURCE_TYPE_ARRAY);
  CHECK(resource_back.res.array.hArray == array);
  CUDA_TEXTURE_DESC sampling_back{};
  REQUIRE(cuTexObjectGetTextureDesc(&sampling_back, texture) == CUDA_SUCCESS);
  CHECK(std::memcmp(&sampling_back, &sampling, sizeof(sampling)) == 0);
  CUDA_RESOURCE_VIEW_DESC view_back{};
  REQUIRE(cuTexObjectGetResourceViewDesc(&view_back, texture) == CUDA_SUCCESS);
  CHECK(std::memcmp(&view_back, &view, sizeof(view)) == 0);
  CHECK(cuTexObjectGetResourceViewDesc(&view_back, plain) == CUDA_ERROR_INVALID_VALUE);

  CHECK(cuTexObjectCreate(nullptr, &resource, &sampling, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectCreate(&plain, nullptr, &sampling, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectCreate(&plain, &resource, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  // The array goes first: what the driver remembers of it is nobody's any more.
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  REQUIRE(cuTexObjectGetResourceDesc(&resource_back, texture) == CUDA_SUCCESS);
  CHECK(resource_back.res.array.hArray == nullptr);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  CHECK(cuTexObjectDestroy(texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectDestroy(plain) == CUDA_SUCCESS);
  CHECK(make_texture(resource, plain) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("textures lie in all kinds of memory that the session holds, and in no other") {
  RemoteContext remote;
  const CUDA_ARRAY3D_DESCRIPTOR description{64, 32, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray mipmap = nullptr;
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &description, 3) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC levels{};
  levels.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  levels.res.mipmap.hMipmappedArray = mipmap;
  CUtexObject texture = 0;
  REQUIRE(make_texture(levels, texture) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC back{};
  REQUIRE(cuTexObjectGetResourceDesc(&back, texture) == CUDA_SUCCESS);
  CHECK(back.res.mipmap.hMipmappedArray == mipmap);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);

  CUdeviceptr memory = 0;
  const std::size_t held = 2u << 20;  // the whole of what backs the allocation, so that the next byte is none of ours
  REQUIRE(cuMemAlloc_v2(&memory, 64u << 20) == CUDA_SUCCESS);
  memory += (64u << 20) - held;
  REQUIRE(make_texture(linear(memory, held), texture) == CUDA_SUCCESS);
  REQUIRE(cuTexObjectGetResourceDesc(&back, texture) == CUDA_SUCCESS);
  CHECK(back.res.linear.devPtr == memory);
  CHECK(back.res.linear.sizeInBytes == held);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  REQUIRE(make_texture(picture(memory, 128, held / 1024, 1024), texture) == CUDA_SUCCESS);
  REQUIRE(cuTexObjectGetResourceDesc(&back, texture) == CUDA_SUCCESS);
  CHECK(back.res.pitch2D.numChannels == 2);
  CHECK(back.res.pitch2D.pitchInBytes == 1024);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);

  const std::size_t asked = remote.driver->calls("cuTexObjectCreate");
  const std::uint64_t huge = ~std::uint64_t{0};
  CHECK(make_texture(linear(memory, held + 1), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(linear(memory, huge), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(linear(0, 16), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(picture(memory, 129, held / 1024, 1024), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(picture(memory, 128, held / 1024 + 1, 1024), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(picture(memory, 128, std::uint64_t{1} << 54, 1024), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make_texture(picture(memory, std::uint64_t{1} << 61, 1, 1024), texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuTexObjectCreate") == asked);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
}

TEST_CASE("a texture in pinned memory makes the memory one that kernels reach") {
  RemoteContext remote;
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
  CUtexObject texture = 0;
  REQUIRE(make_texture(linear(reinterpret_cast<CUdeviceptr>(pinned), 4096), texture) == CUDA_SUCCESS);
  CHECK(remote.session().host_memory.any_mapped());
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("objects of others are nobody's") {
  RemoteContext remote;
  const CUarray array = make_array();
  CUtexObject mine = 0, theirs = 0;
  REQUIRE(make_texture(resource_of(array), mine) == CUDA_SUCCESS);
  // Another session of the same GPU would have this one.
  CUDA_RESOURCE_DESC native{};
  native.resType = CU_RESOURCE_TYPE_ARRAY;
  const CUDA_ARRAY3D_DESCRIPTOR description{8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUcontext context = nullptr;
  REQUIRE(remote.driver.table().cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
  REQUIRE(remote.driver.table().cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(remote.driver.table().cuArray3DCreate_v2(&native.res.array.hArray, &description) == CUDA_SUCCESS);
  const CUDA_TEXTURE_DESC sampling{};
  do {
    REQUIRE(remote.driver.table().cuTexObjectCreate(&theirs, &native, &sampling, nullptr) == CUDA_SUCCESS);
  } while (theirs <= mine);  // each context counts by itself
  const std::size_t asked = remote.driver->calls("cuTexObjectDestroy");
  CUDA_RESOURCE_DESC back{};
  for (const CUtexObject value : {theirs, CUtexObject{0}, ~CUtexObject{0}, CUtexObject{handle_of(array).value()}}) {
    // None at all may be destroyed, as programs do with those that they have not made.
    CHECK(cuTexObjectDestroy(value) == (value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE));
    CHECK(cuTexObjectGetResourceDesc(&back, value) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cuSurfObjectDestroy(mine) == CUDA_ERROR_INVALID_VALUE);  // and a texture is no surface
  CHECK(remote.driver->calls("cuTexObjectDestroy") == asked);
  CHECK(remote.driver.table().cuTexObjectDestroy(theirs) == CUDA_SUCCESS);
  CHECK(remote.driver.table().cuArrayDestroy(native.res.array.hArray) == CUDA_SUCCESS);
  CHECK(cuTexObjectDestroy(mine) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("surface objects") {
  RemoteContext remote;
  const CUarray array = make_array();
  const CUDA_RESOURCE_DESC resource = resource_of(array);
  CUsurfObject surface = 0;
  REQUIRE(cuSurfObjectCreate(&surface, &resource) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC back{};
  REQUIRE(cuSurfObjectGetResourceDesc(&back, surface) == CUDA_SUCCESS);
  CHECK(back.res.array.hArray == array);
  CHECK(cuSurfObjectDestroy(surface) == CUDA_SUCCESS);
  CHECK(cuSurfObjectGetResourceDesc(&back, surface) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuSurfObjectDestroy(surface) == CUDA_ERROR_INVALID_VALUE);
  const std::size_t asked = remote.driver->calls("cuSurfObjectDestroy");
  CHECK(cuSurfObjectDestroy(0) == CUDA_SUCCESS);
  CHECK(cuSurfObjectGetResourceDesc(&back, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuSurfObjectDestroy") == asked);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("objects go with their context") {
  test::Remote remote;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  CUtexObject texture = 0;
  REQUIRE(make_texture(resource_of(make_array()), texture) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  const std::size_t asked = remote.driver->calls("cuTexObjectDestroy");
  CHECK(cuTexObjectDestroy(texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuTexObjectDestroy") == asked);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

TEST_CASE("texture references keep what they are told") {
  RemoteContext remote;
  CUtexref reference = nullptr;
  REQUIRE(cuTexRefCreate(&reference) == CUDA_SUCCESS);
  const CUarray array = make_array();
  CUarray array_back = nullptr;
  CHECK(cuTexRefGetArray(&array_back, reference) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuTexRefSetArray(reference, array, CU_TRSA_OVERRIDE_FORMAT) == CUDA_SUCCESS);
  REQUIRE(cuTexRefGetArray(&array_back, reference) == CUDA_SUCCESS);
  CHECK(array_back == array);

  REQUIRE(cuTexRefSetFormat(reference, CU_AD_FORMAT_HALF, 2) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetAddressMode(reference, 1, CU_TR_ADDRESS_MODE_MIRROR) == CUDA_SUCCESS);
  CHECK(cuTexRefSetAddressMode(reference, 3, CU_TR_ADDRESS_MODE_MIRROR) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetMipmapFilterMode(reference, CU_TR_FILTER_MODE_LINEAR) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetMipmapLevelBias(reference, 1.5F) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetMipmapLevelClamp(reference, 1, 7) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetMaxAnisotropy(reference, 8) == CUDA_SUCCESS);
  float border[4] = {1, 2, 3, 4}, border_back[4] = {};
  REQUIRE(cuTexRefSetBorderColor(reference, border) == CUDA_SUCCESS);
  CHECK(cuTexRefSetBorderColor(reference, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuTexRefSetFlags(reference, CU_TRSF_READ_AS_INTEGER) == CUDA_SUCCESS);

  CUarray_format format{};
  int channels = 0, anisotropy = 0;
  REQUIRE(cuTexRefGetFormat(&format, &channels, reference) == CUDA_SUCCESS);
  CHECK(format == CU_AD_FORMAT_HALF);
  CHECK(channels == 2);
  CUaddress_mode mode{};
  REQUIRE(cuTexRefGetAddressMode(&mode, reference, 1) == CUDA_SUCCESS);
  CHECK(mode == CU_TR_ADDRESS_MODE_MIRROR);
  CHECK(cuTexRefGetAddressMode(&mode, reference, 3) == CUDA_ERROR_INVALID_VALUE);
  CUfilter_mode filter{}, between{};
  REQUIRE(cuTexRefGetFilterMode(&filter, reference) == CUDA_SUCCESS);
  REQUIRE(cuTexRefGetMipmapFilterMode(&between, reference) == CUDA_SUCCESS);
  CHECK(filter == CU_TR_FILTER_MODE_LINEAR);
  CHECK(between == CU_TR_FILTER_MODE_LINEAR);
  float bias = 0, least = 0, most = 0;
  REQUIRE(cuTexRefGetMipmapLevelBias(&bias, reference) == CUDA_SUCCESS);
  REQUIRE(cuTexRefGetMipmapLevelClamp(&least, &most, reference) == CUDA_SUCCESS);
  CHECK(bias == 1.5F);
  CHECK(least == 1);
  CHECK(most == 7);
  REQUIRE(cuTexRefGetMaxAnisotropy(&anisotropy, reference) == CUDA_SUCCESS);
  CHECK(anisotropy == 8);
  REQUIRE(cuTexRefGetBorderColor(border_back, reference) == CUDA_SUCCESS);
  CHECK(std::memcmp(border_back, border, sizeof(border)) == 0);
  unsigned flags = 0;
  REQUIRE(cuTexRefGetFlags(&flags, reference) == CUDA_SUCCESS);
  CHECK(flags == CU_TRSF_READ_AS_INTEGER);

  CUmipmappedArray mipmap = nullptr, mipmap_back = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR description{64, 32, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &description, 3) == CUDA_SUCCESS);
  REQUIRE(cuTexRefSetMipmappedArray(reference, mipmap, CU_TRSA_OVERRIDE_FORMAT) == CUDA_SUCCESS);
  REQUIRE(cuTexRefGetMipmappedArray(&mipmap_back, reference) == CUDA_SUCCESS);
  CHECK(mipmap_back == mipmap);
  CHECK(cuTexRefDestroy(reference) == CUDA_SUCCESS);
  CHECK(cuTexRefDestroy(reference) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexRefGetFlags(&flags, reference) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
}

TEST_CASE("texture references look at memory that the session holds") {
  RemoteContext remote;
  CUtexref reference = nullptr;
  REQUIRE(cuTexRefCreate(&reference) == CUDA_SUCCESS);
  CUdeviceptr memory = 0, back = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  std::size_t offset = 7;
  REQUIRE(cuTexRefSetAddress_v2(&offset, reference, memory, 4096) == CUDA_SUCCESS);
  CHECK(offset == 0);
  REQUIRE(cuTexRefSetAddress_v2(&offset, reference, memory + 16, 64) == CUDA_SUCCESS);
  CHECK(offset == 16);
  REQUIRE(cuTexRefSetAddress_v2(nullptr, reference, memory, 4096) == CUDA_SUCCESS);
  REQUIRE(cuTexRefGetAddress_v2(&back, reference) == CUDA_SUCCESS);
  CHECK(back == memory);
  const CUDA_ARRAY_DESCRIPTOR small{16, 16, CU_AD_FORMAT_FLOAT, 1},
      large{16, std::size_t{1} << 54, CU_AD_FORMAT_FLOAT, 1};
  CHECK(cuTexRefSetAddress2D_v3(reference, &small, memory, 256) == CUDA_SUCCESS);
  CHECK(cuTexRefSetAddress2D_v2(reference, &small, memory, 256) == CUDA_SUCCESS);
  CHECK(cuTexRefSetAddress2D_v2(reference, &large, memory, 256) == CUDA_ERROR_INVALID_VALUE);
  const std::size_t asked =
      remote.driver->calls("cuTexRefSetAddress2D_v3") + remote.driver->calls("cuTexRefSetAddress_v2");
  CHECK(cuTexRefSetAddress2D_v3(reference, &large, memory, 1024) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexRefSetAddress_v2(&offset, reference, memory, std::size_t{1} << 50) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexRefSetAddress_v2(&offset, reference, 0x1234, 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(remote.driver->calls("cuTexRefSetAddress2D_v3") + remote.driver->calls("cuTexRefSetAddress_v2") == asked);
  CHECK(cuTexRefDestroy(reference) == CUDA_SUCCESS);
}

TEST_CASE("references of a module are found by name and go with it") {
  RemoteContext remote;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  CUtexref texture = nullptr, again = nullptr;
  CUsurfref surface = nullptr;
  REQUIRE(cuModuleGetTexRef(&texture, module, "picture") == CUDA_SUCCESS);
  REQUIRE(cuModuleGetTexRef(&again, module, "picture") == CUDA_SUCCESS);
  CHECK(texture == again);
  CHECK(cuModuleGetTexRef(&again, module, "none") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetTexRef(&again, module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuModuleGetSurfRef(&surface, module, "canvas") == CUDA_SUCCESS);
  const CUarray array = make_array();
  CUarray back = nullptr;
  REQUIRE(cuSurfRefSetArray(surface, array, 0) == CUDA_SUCCESS);
  REQUIRE(cuSurfRefGetArray(&back, surface) == CUDA_SUCCESS);
  CHECK(back == array);
  CHECK(cuSurfRefSetArray(surface, nullptr, 0) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuSurfRefGetArray(&back, surface) == CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  CHECK(cuTexRefGetFlags(&flags, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
}

TEST_CASE("a worker believes nothing of what a client says of resources") {
  HandMadeClient client;
  client.open_context();
  const auto create = [&](auto&& fill) {
    client.send_call<wire::CuTexObjectCreate>(Opcode::cuTexObjectCreate, [&](auto in) {
      fill(in.initPResDesc());
      in.initPTexDesc();
    });
    return client.reply();
  };
  const std::uint64_t huge = ~std::uint64_t{0};
  for (const std::uint64_t handle : {std::uint64_t{0}, huge, Handle(HandleKind::array, 5, 1).value(),
                                     Handle(HandleKind::array, Handle::worker_index_first, 1).value()}) {
    CHECK(create([&](auto resource) { resource.setResArrayHArray(handle); }) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(create([&](auto resource) {
            resource.setResType(CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
            resource.setResMipmapHMipmappedArray(handle);
          }) == CUDA_ERROR_INVALID_HANDLE);
  }
  for (const std::uint64_t address :
       {std::uint64_t{0}, std::uint64_t{0x1000'0000'0000}, std::uint64_t{0x7fff'ffff'f000}, huge - 100}) {
    CHECK(create([&](auto resource) {
            resource.setResType(CU_RESOURCE_TYPE_LINEAR);
            resource.setResLinearDevPtr(address);
            resource.setResLinearSizeInBytes(4096);
          }) == CUDA_ERROR_INVALID_VALUE);
    CHECK(create([&](auto resource) {
            resource.setResType(CU_RESOURCE_TYPE_PITCH2D);
            resource.setResPitch2DDevPtr(address);
            resource.setResPitch2DFormat(CU_AD_FORMAT_FLOAT);
            resource.setResPitch2DNumChannels(0xffffffff);
            resource.setResPitch2DWidth(huge);
            resource.setResPitch2DHeight(huge);
            resource.setResPitch2DPitchInBytes(huge);
          }) == CUDA_ERROR_INVALID_VALUE);
  }
  // A kind that there is not: nothing of the resource counts, and the driver refuses it.
  CHECK(create([&](auto resource) { resource.setResType(77); }) == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CuTexObjectDestroy>(Opcode::cuTexObjectDestroy, [&](auto in) { in.setTexObject(1); });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("contexts have equal values for their objects, each its own") {
  test::Remote remote;
  CUcontext contexts[2] = {};
  CUarray arrays[2] = {};
  CUtexObject textures[2] = {};
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuCtxCreate_v2(&contexts[i], 0, 0) == CUDA_SUCCESS);
    arrays[i] = make_array();
  }
  // The fake driver counts on from what was in such a context before.
  for (int i = 0; textures[0] == 0 || textures[0] != textures[1];
       i = textures[0] == 0 || textures[0] < textures[1] ? 0 : 1) {
    REQUIRE(cuCtxSetCurrent(contexts[i]) == CUDA_SUCCESS);
    REQUIRE(make_texture(resource_of(arrays[i]), textures[i]) == CUDA_SUCCESS);
  }
  CUDA_RESOURCE_DESC back{};
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuCtxSetCurrent(contexts[i]) == CUDA_SUCCESS);
    REQUIRE(cuTexObjectGetResourceDesc(&back, textures[i]) == CUDA_SUCCESS);
    CHECK(back.res.array.hArray == arrays[i]);
  }
  CHECK(cuTexObjectDestroy(textures[1]) == CUDA_SUCCESS);
  // The other one is there, and only where it was made; elsewhere it may be destroyed, as the driver has it, and stays.
  CHECK(cuTexObjectGetResourceDesc(&back, textures[0]) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectDestroy(textures[0]) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
  REQUIRE(cuTexObjectGetResourceDesc(&back, textures[0]) == CUDA_SUCCESS);
  CHECK(back.res.array.hArray == arrays[0]);
  CHECK(cuTexObjectDestroy(textures[0]) == CUDA_SUCCESS);
  CHECK(cuTexObjectGetResourceDesc(&back, textures[0]) == CUDA_ERROR_INVALID_VALUE);
}
