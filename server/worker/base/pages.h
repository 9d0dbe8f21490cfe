#pragma once
// Memory of the worker's own, in whole pages.

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

namespace fargpu::server {

/// Zeros at first. It lies there until this goes.
class Pages {
 public:
  Pages() = default;
  /// Empty if there is no memory.
  explicit Pages(std::size_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) bytes_ = {static_cast<std::byte*>(memory), bytes};
  }
  Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})), place_kept_(other.place_kept_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(place_kept_, other.place_kept_);
    return *this;
  }
  ~Pages() {
    if (empty()) return;
    if (place_kept_)
      ::mmap(bytes_.data(), bytes_.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    else ::munmap(bytes_.data(), bytes_.size());
  }

  bool empty() const { return bytes_.empty(); }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Nothing else will come to lie at its addresses.
  void keep_place() { place_kept_ = true; }

 private:
  std::span<std::byte> bytes_;
  bool place_kept_ = false;
};

}  // namespace fargpu::server
