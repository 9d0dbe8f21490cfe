#pragma once
// Bytes that end where memory ends, so that reading behind them is a fault and no luck.

#include <sys/mman.h>

#include <cstring>
#include <span>

#include "frames.h"

namespace fargpu::test {

class Guarded {
 public:
  explicit Guarded(std::span<const std::byte> bytes) : pages_((bytes.size() + page - 1) / page * page + page) {
    memory_ =
        static_cast<std::byte*>(::mmap(nullptr, pages_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    begin_ = memory_ + (pages_ - page) - bytes.size();
    if (!bytes.empty()) std::memcpy(begin_, bytes.data(), bytes.size());
    ::mprotect(memory_ + (pages_ - page), page, PROT_NONE);
  }
  ~Guarded() { ::munmap(memory_, pages_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  const std::byte* data() const { return begin_; }

 private:
  static constexpr std::size_t page = 4096;
  std::size_t pages_;
  std::byte* memory_;
  std::byte* begin_;
};

}  // namespace fargpu::test
