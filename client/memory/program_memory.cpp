#include "program_memory.h"

#include <mutex>

namespace fargpu::client {

constinit std::array<Window, DeviceWindows::windows_max> DeviceWindows::windows_{};
constinit std::atomic<std::size_t> DeviceWindows::count_{0};

void DeviceWindows::add(const Window& window) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::size_t count = count_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i)
    if (windows_[i].base == window.base) return;
  if (count == windows_max || window.bytes == 0) return;
  windows_[count] = window;
  count_.store(count + 1, std::memory_order_release);
}

}  // namespace fargpu::client
