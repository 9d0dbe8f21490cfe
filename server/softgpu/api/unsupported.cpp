#include "api/unsupported.h"

#include <cuda.h>

#include <string>

#include "common/log.h"

namespace fargpu::softgpu {

int unsupported(const char* name) {
  log_once(std::string(name) + " is not supported by the software GPU");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace fargpu::softgpu
