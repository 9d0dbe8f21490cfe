// Images as the software GPU reads them: fatbins and the PTX in them.

#include "fuzz.h"
#include "image/image.h"
#include "ptx/error.h"
#include "ptx/parser.h"

namespace fargpu::fuzz {
namespace {

constexpr std::string_view small = R"(.version 9.0
.target sm_90, texmode_independent
.address_size 64
/* a bit of everything */
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 4 .u32 counters[2][3] = {{1, 2}, {0x10, 3 * (2 + 5)}};
.const .align 8 .b8 table[16] = {generic(counters), 0, 0, 0, 0, 0, 0, 0, 0};
.global .attribute(.managed) .align 8 .u64 where = counters + 8;
.func (.param .b32 result) twice(.param .b32 value) {
  .reg .b32 %r<2>;
  ld.param.u32 %r0, [value];
  add.u32 %r1, %r0, %r0;
  st.param.b32 [result], %r1;
  ret;
}
.visible .entry kernel(.param .u64 .ptr .global .align 8 out, .param .f32 scale)
.maxntid 128, 1, 1
.minnctapersm 2
{
  .reg .pred %p<3>;
  .reg .b32 %r<12>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  setp.lt.s32 %p0|%p1, %r0, 16;
  @!%p0 bra END;
  mov.f32 %f0, 0f3F800000;
  fma.rn.ftz.f32 %f1, %f0, 0d3FF0000000000000, %f0;
  { .param .b32 given; .param .b32 back;
    st.param.b32 [given], %r0;
    call.uni (back), twice, (given);
    ld.param.b32 %r1, [back]; }
  st.global.v2.u32 [%rd0+8], {%r0, %r1};
END:
  bar.sync 0;
  ret;
}
)";

Input fatbin(std::string_view text) {
  Input image;
  append_value(image, std::uint32_t{0xba55ed50});
  append_value(image, std::uint16_t{1});
  append_value(image, std::uint16_t{16});
  append_value(image, std::uint64_t{64 + text.size()});
  Input entry(64);
  const auto put = [&](std::size_t offset, auto value) { std::memcpy(entry.data() + offset, &value, sizeof(value)); };
  put(0, std::uint16_t{1});
  put(4, std::uint32_t{64});
  put(8, std::uint64_t{text.size()});
  put(24, std::uint16_t{0});
  put(26, std::uint16_t{9});
  put(28, std::uint32_t{90});
  image.insert(image.end(), entry.begin(), entry.end());
  image.insert(image.end(), text.begin(), text.end());
  return image;
}

}  // namespace

std::vector<Input> seeds() {
  const std::string linked =
      softgpu::make_linked_image({std::string(small.substr(0, small.find(".func"))), std::string(small)});
  return {from_text(small), fatbin(small), from_text(linked)};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fargpu;
  try {
    const softgpu::Image image = softgpu::read_image(data, size);
    for (const std::string& text : image.texts) {
      try {
        (void)softgpu::ptx::parse(text);
      } catch (const softgpu::ptx::SyntaxError&) {}
    }
  } catch (const softgpu::ImageError&) {}
  try {  // what begins like an image of another kind is not taken for a text
    (void)softgpu::ptx::parse(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const softgpu::ptx::SyntaxError&) {}
  return 0;
}
