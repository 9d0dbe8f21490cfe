#pragma once
// Pinned memory through which bytes pass between the connection and the GPU.

#include <cstddef>
#include <deque>
#include <optional>
#include <span>

#include "driver_table.h"
#include "server/quota/host_budget.h"
#include "server/worker/base/pages.h"

namespace fargpu::server {

/// A ring over memory of somebody else. Parts are taken in order and may be given back in any; a part becomes free when
/// all before it are. Used by the executor only.
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

 private:
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool free = false;
  };
  std::span<std::byte> memory_;
  std::deque<Part> parts_;  // taken, oldest first
};

/// A ring for each direction, in memory that is pinned in one context, through which that context's copies pass. It is
/// pinned no more once the context goes, but lies there for as long as anybody holds this: what is under way on the
/// connection is read and written yet. Used by the executor only.
class Staging {
 public:
  /// With a budget it is charged for.
  Staging(DriverTable& driver, HostBudget* budget) : driver_(driver), budget_(budget) {}
  ~Staging();
  Staging(const Staging&) = delete;

  /// Makes the memory when it is first needed, while the context is current. False if there is none.
  bool ready();
  StagingRing& in() { return in_; }
  StagingRing& out() { return out_; }
  /// Gives back a frame's bulk bytes if that is where they were received.
  void give_in(std::span<std::byte> bulk);

  /// The context, which is current, goes: nothing more is taken.
  void unpin();

 private:
  DriverTable& driver_;
  HostBudget* const budget_;
  HostCharge charge_;
  Pages memory_;
  bool pinned_ = false;
  StagingRing in_;
  StagingRing out_;
};

}  // namespace fargpu::server
