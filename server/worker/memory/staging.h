#pragma once
// Pinned memory through which bytes pass between the connection and the GPU.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "driver_table.h"
#include "server/quota/host_budget.h"
#include "server/worker/base/pages.h"

namespace fargpu::server {

/// Parts of memory of somebody else, which may be given back in any order. Used by the executor only.
class StagingSpace {
 public:
  StagingSpace() = default;
  explicit StagingSpace(std::span<std::byte> memory) : memory_(memory), free_bytes_(memory.size()) {
    if (!memory.empty()) free_[0] = memory.size();
  }

  /// A part in one piece, aligned to 64 bytes, or nothing while there is no room. An owner, if it is not 0, has at most
  /// half of what others leave, seven eighths where nobody else has a part, or one part: so a few that give nothing
  /// back, because their streams stand still, stop nobody else.
  std::optional<std::span<std::byte>> take(std::size_t bytes, std::uint64_t owner = 0);
  void give(std::span<std::byte> part);

  bool contains(const std::byte* address) const {
    return address >= memory_.data() && address < memory_.data() + memory_.size();
  }
  bool empty() const { return taken_.empty(); }
  /// How often a part was given back.
  std::uint64_t given() const { return given_; }

 private:
  struct Part {
    std::size_t end;
    std::uint64_t owner;
  };
  void free(std::size_t begin, std::size_t end);

  std::span<std::byte> memory_;
  std::map<std::size_t, Part> taken_;        // by where they begin
  std::map<std::size_t, std::size_t> free_;  // beginnings and ends; none follows another
  std::size_t free_bytes_ = 0;
  std::map<std::uint64_t, std::size_t> owned_;  // bytes
  std::uint64_t given_ = 0;
};

/// Space for each direction, in memory that is pinned in one context, through which that context's copies pass. It is
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
  StagingSpace& in() { return in_; }
  StagingSpace& out() { return out_; }
  /// While there is no room for bytes that arrive: whether there may soon be, because parts come back.
  bool room_may_come(std::chrono::steady_clock::time_point now);
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
  StagingSpace in_;
  StagingSpace out_;
  std::uint64_t given_seen_ = 0;
  std::chrono::steady_clock::time_point given_at_{};
};

}  // namespace fargpu::server
