#pragma once
// Memory of a session that leaves its devices at one time.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device_memory.h"
#include "evicted_contents.h"
#include "server/quota/host_budget.h"

namespace fargpu::server {

/// Pieces, and what holds their contents until they are back.
struct EvictedPortion {
  std::vector<DeviceMemory::Piece> pieces;
  std::unique_ptr<HostBudget> budget;         ///< for this portion, as the host has said
  std::optional<HostCharge> charge;           ///< of it
  std::uint64_t offset = 0, store_bytes = 0;  ///< in the session's store
  std::unique_ptr<EvictedOnDisk> file;        ///< or all of this
  std::unique_ptr<EvictedContents> contents;
  bool back = false;

  std::uint64_t bytes(int device) const;
};

/// As many of the pieces as have so many bytes of each device together, and as little more as can be; all of them where
/// `bytes` is empty.
std::vector<DeviceMemory::Piece> enough_of(std::vector<DeviceMemory::Piece> pieces, std::vector<std::uint64_t> bytes);

}  // namespace fargpu::server
