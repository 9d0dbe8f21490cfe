#pragma once
// Pinned memory through which bytes pass between the connection and the GPU.

#include <cstddef>
#include <deque>
#include <list>
#include <optional>
#include <span>

#include "contexts.h"
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

/// A ring for each direction, in pinned memory that is made when it is first needed. It dies with the context it was made in, though copies
/// of all contexts pass through it: whoever closes a context lets staging leave it first. Used by the executor only.
class Staging {
 public:
  Staging(DriverTable& driver, Contexts& contexts) : driver_(driver), contexts_(contexts) {}

  /// False while there is no context to make it in, or no memory.
  bool ready();
  /// Parts of the rings, as StagingRing::take(), once they are ready.
  std::optional<std::span<std::byte>> take_in(std::size_t bytes) { return rings_.back().in.take(bytes); }
  std::optional<std::span<std::byte>> take_out(std::size_t bytes) { return rings_.back().out.take(bytes); }
  /// Whether it is part of a ring.
  bool holds(const std::byte* address) const;
  /// Gives back a part, or what was received elsewhere, with which nothing happens.
  void give(std::span<std::byte> part);

  /// From here on other memory than the context's is taken. Whether nothing passes through that any more.
  bool leave(const ContextState& context);
  /// The memory outlives a context that was part of another one.
  void inherit(const ContextState& context, ContextState& heir);
  /// Whatever still passes through its memory is of no use any more.
  void context_closes(const ContextState& context);

 private:
  struct Rings {
    void* memory = nullptr;
    ContextState* context = nullptr;
    StagingRing in;
    StagingRing out;
    bool left = false;
  };

  DriverTable& driver_;
  Contexts& contexts_;
  std::list<Rings> rings_;  // the last one is taken from, unless it is left
};

}  // namespace fargpu::server
