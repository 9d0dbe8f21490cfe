#pragma once

#include <cstddef>

namespace fargpu::softgpu {

/// One variant of a function, for cuGetProcAddress.
struct Procedure {
  const char* name;    // without suffixes
  int version;         // of CUDA that introduced it
  bool is_per_thread;  // for per-thread default streams
  void* function;
};

/// Sorted by name, then version. Generated from the toolkit's headers.
extern const Procedure procedures[];
extern const size_t procedure_count;

}  // namespace fargpu::softgpu
