// Sizes that come from strangers.

#include <catch2/catch.hpp>

#include "protocol/extent.h"

using namespace fargpu;

namespace {
constexpr std::uint64_t most = ~std::uint64_t{0};
}

TEST_CASE("rows span from the first byte to behind the last") {
  CHECK(extent_of_rows(10, 4, 1, 0) == 40);
  CHECK(extent_of_rows(10, 4, 3, 100) == 240);
  CHECK(extent_of_rows(0, 4, 3, 100) == 0);
  CHECK(extent_of_rows(10, 4, 0, 100) == 0);
  CHECK(extent_of_rows(most, 1, 1, most) == most);  // all there is
}

TEST_CASE("what does not fit in a number is more than there is") {
  CHECK(extent_of_rows(most / 4 + 1, 4, 1, 0) == most);
  CHECK(extent_of_rows(1, 1, most, most) == most);
  CHECK(extent_of_rows(16, 1, (std::uint64_t{1} << 32) + 1, std::uint64_t{1} << 32) == most);
  CHECK(extent_of_rows(most, most, most, most) == most);
}

TEST_CASE("elements of arrays") {
  CHECK(element_bytes(CU_AD_FORMAT_UNSIGNED_INT8, 4) == 4);
  CHECK(element_bytes(CU_AD_FORMAT_HALF, 2) == 4);
  CHECK(element_bytes(CU_AD_FORMAT_FLOAT, 4) == 16);
  CHECK(element_bytes(CU_AD_FORMAT_UNORM_INT16X4, 4) == 8);
  CHECK(element_bytes(CU_AD_FORMAT_BC1_UNORM, 4) == 0);
  CHECK(element_bytes(static_cast<CUarray_format>(77), 4) == 0);
}

TEST_CASE("arrays hold boxes within them") {
  const CUDA_ARRAY3D_DESCRIPTOR volume{16, 8, 4, CU_AD_FORMAT_FLOAT, 1, 0},
      row{16, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, blocks{16, 8, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0};
  CHECK(array_has(volume, 0, 0, 0, 64, 8, 4));
  CHECK(array_has(volume, 32, 7, 3, 32, 1, 1));
  CHECK_FALSE(array_has(volume, 33, 7, 3, 32, 1, 1));
  CHECK_FALSE(array_has(volume, 32, 8, 3, 32, 1, 1));
  CHECK_FALSE(array_has(volume, 32, 7, 4, 32, 1, 1));
  CHECK_FALSE(array_has(volume, most, 0, 0, 2, 1, 1));
  CHECK_FALSE(array_has(volume, 0, 1, 0, 64, most, 1));
  CHECK(array_has(row, 4, 0, 0, 12, 1, 1));
  CHECK_FALSE(array_has(row, 4, 0, 0, 12, 2, 1));
  CHECK(array_has(blocks, 0, 0, 0, 32, 2, 1));
  CHECK_FALSE(array_has(blocks, most - 5, 0, 0, 32, 2, 1));
  CHECK(array_has(blocks, 0, 0, 0, 256, 24, 1));
  CHECK_FALSE(array_has(blocks, 0, 0, 0, 257, 2, 1));
  CHECK_FALSE(array_has(blocks, 0, 0, 0, 32, 25, 1));
}
