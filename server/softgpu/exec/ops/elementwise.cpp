#include "exec/ops/elementwise.h"

namespace fargpu::softgpu::ops {

bool has_wide_vectors() {
  static const bool has_them = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("popcnt");
  }();
  return has_them;
}

}  // namespace fargpu::softgpu::ops
