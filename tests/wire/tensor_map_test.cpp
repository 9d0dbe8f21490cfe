// Tensor maps: the driver's opaque words come back to the program.

#include <catch2/catch.hpp>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

constexpr cuuint64_t sizes[] = {64, 32, 16, 8}, strides[] = {128, 4096, 65536};
constexpr cuuint32_t box[] = {8, 8, 4, 4}, ones[] = {1, 1, 1, 1};
constexpr int lower[] = {-1, -2}, upper[] = {3, 4};

struct Tensor : RemoteContext {
  Tensor() { REQUIRE(cuMemAlloc_v2(&memory, 1 << 20) == CUDA_SUCCESS); }
  void* address() const { return reinterpret_cast<void*>(memory); }
  CUdeviceptr memory = 0;
  CUtensorMap map{};
};

}  // namespace

TEST_CASE("a tensor map is what the driver makes of its parts") {
  Tensor t;
  SECTION("tiled") {
    REQUIRE(cuTensorMapEncodeTiled(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, t.address(), sizes, strides, box, ones,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  }
  SECTION("image to column") {
    REQUIRE(cuTensorMapEncodeIm2col(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, t.address(), sizes, strides, lower,
                                    upper, 8, 32, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                    CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    CHECK(t.map.opaque[8] == static_cast<cuuint64_t>(-997));
    CHECK(t.map.opaque[9] == static_cast<cuuint64_t>(-1996));
    CHECK(t.map.opaque[12] == 8032);
  }
  SECTION("image to column, wide") {
    REQUIRE(cuTensorMapEncodeIm2colWide(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, t.address(), sizes, strides, 5, 6,
                                        8, 32, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
                                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    CHECK(t.map.opaque[8] == 5006);
    CHECK(t.map.opaque[12] == 8032);
  }
  CHECK(t.map.opaque[0] == t.memory);
  for (unsigned i = 0; i < 4; ++i) CHECK(t.map.opaque[1 + i] == sizes[i]);
  const cuuint64_t kept = t.map.opaque[1];
  REQUIRE(cuTensorMapReplaceAddress(&t.map, reinterpret_cast<void*>(t.memory + 4096)) == CUDA_SUCCESS);
  CHECK(t.map.opaque[0] == t.memory + 4096);
  CHECK(t.map.opaque[1] == kept);
}

TEST_CASE("a tensor map needs its parts") {
  Tensor t;
  // The driver would read as many sizes as the rank says, and none have come.
  const std::size_t asked = t.driver->calls("cuTensorMapEncodeTiled");
  CHECK(cuTensorMapEncodeTiled(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 0x80000003, t.address(), sizes, strides, box,
                               ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
  // Lists are read only as far as a tensor can have dimensions.
  for (const cuuint32_t rank : {0u, 6u, 1000u, 0xffffffffu})
    CHECK(cuTensorMapEncodeTiled(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, t.address(), sizes, strides, box, ones,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
  for (const cuuint32_t rank : {0u, 2u, 6u, 1000u, 0xffffffffu}) {
    CHECK(cuTensorMapEncodeIm2col(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, t.address(), sizes, strides, lower,
                                  upper, 8, 32, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuTensorMapEncodeIm2colWide(&t.map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, t.address(), sizes, strides, 5, 6,
                                      8, 32, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
                                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(t.driver->calls("cuTensorMapEncodeTiled") == asked);
  CHECK(cuTensorMapEncodeTiled(nullptr, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, t.address(), sizes, strides, box, ones,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTensorMapReplaceAddress(nullptr, t.address()) == CUDA_ERROR_INVALID_VALUE);
}
