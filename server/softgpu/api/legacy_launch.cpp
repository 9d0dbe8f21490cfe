#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <cstring>

#include "common/limits.h"
#include "driver/module.h"

using namespace fargpu::softgpu;

namespace {

void set_bytes(CUfunction function, int offset, const void* bytes, size_t count) {
  require(offset >= 0 && bytes != nullptr && static_cast<size_t>(offset) + count <= parameter_bytes_max);
  find_function(function)->change_legacy([&](LegacyLaunch& legacy) {
    size_t end = static_cast<size_t>(offset) + count;
    if (legacy.parameters.size() < end) legacy.parameters.resize(end);
    std::memcpy(legacy.parameters.data() + offset, bytes, count);
  });
}

CUresult launch(CUfunction function, int width, int height, CUstream stream) {
  LegacyLaunch legacy;
  CUresult result = entry([&] {
    require(width > 0 && height > 0);
    auto called = find_function(function);
    called->change_legacy([&](LegacyLaunch& set) { legacy = set; });
    // What nobody set is zero.
    legacy.parameter_bytes = std::max(legacy.parameter_bytes, called->kernel().parameter_bytes);
  });
  if (result != CUDA_SUCCESS) return result;
  size_t bytes = legacy.parameter_bytes;
  legacy.parameters.resize(std::max<size_t>(bytes, 1));
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, legacy.parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1, legacy.block[0],
                        legacy.block[1], legacy.block[2], legacy.shared_bytes, stream, nullptr, extra);
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
  return entry([&] {
    require(x > 0 && y > 0 && z > 0);
    find_function(function)->change_legacy([&](LegacyLaunch& legacy) {
      legacy.block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    });
  });
}

CUresult cuFuncSetSharedSize(CUfunction function, unsigned int bytes) {
  return entry(
      [&] { find_function(function)->change_legacy([&](LegacyLaunch& legacy) { legacy.shared_bytes = bytes; }); });
}

CUresult cuParamSetSize(CUfunction function, unsigned int bytes) {
  return entry([&] {
    require(bytes <= parameter_bytes_max);
    find_function(function)->change_legacy([&](LegacyLaunch& legacy) { legacy.parameter_bytes = bytes; });
  });
}

CUresult cuParamSeti(CUfunction function, int offset, unsigned int value) {
  return entry([&] { set_bytes(function, offset, &value, sizeof value); });
}

CUresult cuParamSetf(CUfunction function, int offset, float value) {
  return entry([&] { set_bytes(function, offset, &value, sizeof value); });
}

CUresult cuParamSetv(CUfunction function, int offset, void* bytes, unsigned int count) {
  return entry([&] { set_bytes(function, offset, bytes, count); });
}

CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref) {
  return entry([&] {
    require(unit == CU_PARAM_TR_DEFAULT);
    find_function(function);
  });
}

CUresult cuLaunch(CUfunction function) { return launch(function, 1, 1, nullptr); }

CUresult cuLaunchGrid(CUfunction function, int width, int height) { return launch(function, width, height, nullptr); }

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch(function, width, height, stream);
}
