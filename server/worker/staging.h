#pragma once
// Pinned memory through which bytes pass between the connection and the GPU.

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

namespace fargpu::server {

/// A ring over memory of somebody else. Parts are taken in order and may be given back in any; a part becomes free when all before
/// it are. Used by the executor only.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}

  /// A part in one piece, aligned to 64 bytes, or nothing while there is no room.
  std::optional<std::span<std::byte>> take(std::size_t bytes);
  void give(std::span<std::byte> part);

  bool contains(const std::byte* address) const {
    return address >= memory_.data() && address < memory_.data() + memory_.size();
  }
  bool empty() const { return parts_.empty(); }
  std::size_t capacity() const { return memory_.size(); }
  std::byte* data() const { return memory_.data(); }

 private:
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool free = false;
  };
  std::span<std::byte> memory_;
  std::deque<Part> parts_;  // taken, oldest first
};

}  // namespace fargpu::server
