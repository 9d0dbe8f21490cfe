#pragma once
// So many and no more.

#include <cstddef>
#include <utility>

namespace fargpu::server {

/// Counts what there may be only so many of. Used by one thread; outlives its parts.
class Count {
 public:
  explicit Count(std::size_t most) : most_(most) {}

  /// One of them, until it goes. False if it is none.
  class Part {
   public:
    Part() = default;
    Part(Part&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Part& operator=(Part&& other) noexcept {
      std::swap(count_, other.count_);
      return *this;
    }
    ~Part() {
      if (count_) --count_->taken_;
    }
    explicit operator bool() const { return count_ != nullptr; }

   private:
    friend class Count;
    explicit Part(Count* count) : count_(count) {}
    Count* count_ = nullptr;
  };
  Part take() {
    if (taken_ >= most_) return Part();
    ++taken_;
    return Part(this);
  }

 private:
  const std::size_t most_;
  std::size_t taken_ = 0;
};

}  // namespace fargpu::server
