#include "api/unsupported.h"

#include <cuda.h>

#include <mutex>
#include <set>
#include <string>

#include "common/log.h"

namespace fargpu::softgpu {

int unsupported(const char* name) {
  static auto* mutex = new std::mutex();
  static auto* logged = new std::set<std::string>();
  std::lock_guard lock(*mutex);
  if (logged->insert(name).second)
    log_line(std::string(name) + " is not supported by the software GPU");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace fargpu::softgpu
