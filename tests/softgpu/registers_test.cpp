// Registers share places of a frame; lanes must not notice.

#include <catch2/catch.hpp>

#include <vector>

#include "driver.h"

using namespace softgpu_tests;

// The even lanes hold a 16-bit register across the wait in which the odd ones set a predicate.
TEST_CASE("registers of different widths keep their values while lanes are apart") {
  Context context;
  Kernel kernel(R"(.version 7.8
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 out) {
  .reg .pred %is_odd, %has_two;
  .reg .b16 %short;
  .reg .b32 %tid, %value;
  .reg .b64 %at, %offset;
  ld.param.u64 %at, [out];
  mov.u32 %tid, %tid.x;
  mul.wide.u32 %offset, %tid, 4;
  add.u64 %at, %at, %offset;
  and.b32 %value, %tid, 1;
  setp.ne.u32 %is_odd, %value, 0;
  @%is_odd bra ODD;
  cvt.u16.u32 %short, %tid;
  not.b16 %short, %short;
  bar.warp.sync 0xffffffff;
  cvt.u32.u16 %value, %short;
  bra.uni STORE;
ODD:
  and.b32 %value, %tid, 2;
  setp.ne.u32 %has_two, %value, 0;
  bar.warp.sync 0xffffffff;
  selp.u32 %value, 1, 0, %has_two;
STORE:
  st.global.u32 [%at], %value;
  ret;
})");
  Memory out(32 * 4);
  REQUIRE_OK(kernel.launch(1, 32, nullptr, out.address()));
  std::vector<uint32_t> values(32);
  REQUIRE_OK(CU(cuMemcpyDtoH)(values.data(), out.address(), 32 * 4));
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(values[lane] == (lane % 2 == 0 ? 0xffff ^ lane : lane / 2 % 2));
}
