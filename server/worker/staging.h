#pragma once
// Pinned memory through which bytes pass between the connection and the GPU.

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

#include "driver_table.h"

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

  bool contains(const std::byte* address) const { return address >= memory_.data() && address < memory_.data() + memory_.size(); }
  bool empty() const { return parts_.empty(); }

 private:
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool free = false;
  };
  std::span<std::byte> memory_;
  std::deque<Part> parts_;  // taken, oldest first
};

/// A ring for each direction, in pinned memory of one context, through which that context's copies pass: it dies with them. Used by the
/// executor only.
class Staging {
 public:
  explicit Staging(DriverTable& driver) : driver_(driver) {}

  /// Makes the memory when it is first needed, while the context is current. False if there is none.
  bool ready();
  StagingRing& in() { return in_; }
  StagingRing& out() { return out_; }
  /// Gives back a frame's bulk bytes if that is where they were received.
  void give_in(std::span<std::byte> bulk);

  /// The context goes. Whatever still passes through the memory is of no use any more.
  void drop();

 private:
  DriverTable& driver_;
  void* memory_ = nullptr;
  StagingRing in_;
  StagingRing out_;
};

}  // namespace fargpu::server
