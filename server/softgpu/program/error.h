#pragma once

#include <stdexcept>

namespace fargpu::softgpu::program {

/// Modules cannot become a program of this device: something is missing, or defined twice.
class LinkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A valid instruction that this device does not execute. Kernels that need it must not run.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fargpu::softgpu::program
