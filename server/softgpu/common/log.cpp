#include "common/log.h"

#include <unistd.h>

#include <string>

namespace fargpu::softgpu {

void log_line(std::string_view text) {
  // In one write, so that lines of several threads and processes stay whole.
  std::string line = "fargpu-softgpu: " + std::string(text) + "\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace fargpu::softgpu
