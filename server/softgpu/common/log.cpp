#include "common/log.h"

#include <unistd.h>

#include <mutex>
#include <set>
#include <string>

namespace fargpu::softgpu {

void log_line(std::string_view text) {
  // In one write, so that lines of several threads and processes stay whole.
  std::string line = "fargpu-softgpu: " + std::string(text) + "\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

void log_once(const std::string& text) {
  static auto* const mutex = new std::mutex();
  static auto* const logged = new std::set<std::string>();
  const std::lock_guard lock(*mutex);
  if (logged->insert(text).second) log_line(text);
}

}  // namespace fargpu::softgpu
