#include "life.h"

namespace fargpu::client {

constinit std::atomic<Life> current_life{Life::unborn};

CUresult unavailable() {
  switch (life()) {
    case Life::ready:
    case Life::several: return CUDA_SUCCESS;
    case Life::lost: return CUDA_ERROR_DEVICE_UNAVAILABLE;
    case Life::ended: return CUDA_ERROR_DEINITIALIZED;
    case Life::unborn:
    case Life::forked: break;
  }
  return CUDA_ERROR_NOT_INITIALIZED;
}

}  // namespace fargpu::client
