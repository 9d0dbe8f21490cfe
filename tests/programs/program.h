#pragma once

// What the programs of this folder share. Each is complete: it computes something on the GPU, computes it on the CPU
// too, and says whether both agree. Its one argument, a whole number, makes the work so many times larger (default: 1,
// which the software GPU does in seconds).

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CUDA(call) ::program::check((call), #call, __FILE__, __LINE__)
#define HOLDS(condition) ::program::expect((condition), #condition, __FILE__, __LINE__)

namespace program {

inline void check(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::printf("%s:%d: %s: %s (%s)\n", file, line, call, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

inline void expect(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  std::printf("%s:%d: %s does not hold\n", file, line, condition);
  std::exit(1);
}

/// How many times larger the work is.
inline int scale(int count, char** words) {
  const int asked = count > 1 ? std::atoi(words[1]) : 1;
  if (asked >= 1 && asked <= 1024) return asked;
  std::fprintf(stderr, "usage: %s [SCALE]\nSCALE is a whole number from 1 to 1024\n", words[0]);
  std::exit(2);
}

/// The last line of a program whose checks all held, and its exit code.
inline int passed(const char* what) {
  CUDA(cudaDeviceSynchronize());
  std::printf("%s\nPASSED\n", what);
  return 0;
}

}  // namespace program
