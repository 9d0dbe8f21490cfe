#pragma once
// How many of something there are at the moment.

#include <atomic>
#include <utility>

namespace fargpu::client {

/// One of a count, for as long as it lives; an empty one is of none. The count outlives it. Threads: any, one at a
/// time.
class Counted {
 public:
  Counted() = default;
  explicit Counted(std::atomic<unsigned>& count) : count_(&count) { ++count; }
  Counted(Counted&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
  Counted& operator=(Counted&& other) noexcept {
    std::swap(count_, other.count_);
    return *this;
  }
  ~Counted() {
    if (count_) [[unlikely]]
      --*count_;
  }

 private:
  std::atomic<unsigned>* count_ = nullptr;
};

}  // namespace fargpu::client
