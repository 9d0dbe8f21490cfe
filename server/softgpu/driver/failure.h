#pragma once

#include <cuda.h>

#include <exception>

namespace fargpu::softgpu {

/// Ends an API call with an error code.
class Failure : public std::exception {
 public:
  explicit Failure(CUresult code) : code_(code) {}
  CUresult code() const { return code_; }
  const char* what() const noexcept override { return "driver API error"; }

 private:
  CUresult code_;
};

inline void require(bool condition, CUresult code = CUDA_ERROR_INVALID_VALUE) {
  if (!condition) throw Failure(code);
}

}  // namespace fargpu::softgpu
