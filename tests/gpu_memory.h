#pragma once
// Memory of a GPU where there is none: the processor cannot touch it, and its owner copies it by other addresses.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "protocol/device_bytes.h"

namespace fargpu::test {

class GpuMemory {
 public:
  explicit GpuMemory(std::size_t bytes) : bytes_(bytes) {
    const int file = ::memfd_create("gpu-memory", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("no memory");
    const auto map = [&](int protection) {
      void* const place = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
      if (place == MAP_FAILED) throw std::runtime_error("no memory");
      return static_cast<std::byte*>(place);
    };
    place_ = map(PROT_NONE);
    behind_ = map(PROT_READ | PROT_WRITE);
    ::close(file);
    {
      const std::lock_guard lock(all().mutex);
      all().memories.push_back(this);
    }
    DeviceBytes::add(this->bytes(), [this](DeviceBytes::Way, void* to, const void* from, std::size_t size) {
      ++copies;
      if (broken) return false;
      std::memcpy(reached(to), reached(const_cast<void*>(from)), size);
      return true;
    });
  }
  ~GpuMemory() {
    DeviceBytes::remove(place_);
    {
      const std::lock_guard lock(all().mutex);
      std::erase(all().memories, this);
    }
    ::munmap(place_, bytes_);
    ::munmap(behind_, bytes_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::span<std::byte> bytes() const { return {place_, bytes_}; }
  /// Where the test reads and writes what the GPU has there.
  std::span<std::byte> behind() const { return {behind_, bytes_}; }

  std::atomic<bool> broken{false};  ///< the GPU copies nothing any more
  std::atomic<unsigned> copies{0};

 private:
  struct All {
    std::mutex mutex;
    std::vector<GpuMemory*> memories;
  };
  static All& all() {
    static All all;
    return all;
  }
  // Where the test's GPU finds it.
  static std::byte* reached(void* address) {
    auto* const at = static_cast<std::byte*>(address);
    const std::lock_guard lock(all().mutex);
    for (const GpuMemory* const memory : all().memories)
      if (at >= memory->place_ && at < memory->place_ + memory->bytes_) return memory->behind_ + (at - memory->place_);
    return at;
  }

  const std::size_t bytes_;
  std::byte *place_ = nullptr, *behind_ = nullptr;
};

}  // namespace fargpu::test
