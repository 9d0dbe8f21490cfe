#pragma once
// Memory of a session that leaves its devices at one time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device_memory.h"
#include "evicted_contents.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

/// What the host gives for contents.
struct EvictedPlace {
  std::unique_ptr<HostBudget> budget;  ///< for them, as the host has said
  std::optional<HostCharge> charge;    ///< of it
  std::unique_ptr<EvictedOnDisk> file;

  /// These are not needed any more.
  void give_up(const EvictedContents& contents);
};

/// Pieces, and what holds their contents until they are back.
struct EvictedPortion {
  std::vector<DeviceMemory::Piece> pieces;
  std::shared_ptr<EvictedPlace> place;
  std::uint64_t offset = 0, store_bytes = 0;  ///< in the session's store; 0 where they are in a file
  std::unique_ptr<EvictedContents> contents;
  bool tried = false;  ///< in this return: there was no room for it

  std::uint64_t bytes(int device) const;
  bool any(const std::function<bool(const DeviceMemory::Piece&)>& is) const;

  /// Whether a piece begins another portion than the one before it.
  using Cut = std::function<bool(const DeviceMemory::Piece& before, const DeviceMemory::Piece& piece)>;
  static Cut each_of(std::uint64_t bytes);
  /// Several, which may return one by one.
  static std::vector<EvictedPortion> divide(EvictedPortion portion, const Cut& cut);
};

/// As many of the pieces as have so many bytes of each device together, and as little more as can be; all of them where
/// `bytes` is empty.
std::vector<DeviceMemory::Piece> enough_of(std::vector<DeviceMemory::Piece> pieces, std::vector<std::uint64_t> bytes);

}  // namespace fargpu::server
