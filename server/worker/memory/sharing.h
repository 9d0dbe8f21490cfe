#pragma once
// What a session shares with other sessions of its host, and what it has of theirs.

#include <cuda.h>

#include <map>
#include <memory>

#include "device_memory.h"
#include "server/exchange.h"

namespace fargpu::server {

/// Used by the executor only.
class Sharing {
 public:
  /// `exchange`: null where there are no other sessions. It outlives everything that is shared.
  Sharing(DriverTable& driver, DeviceMemory& memory, Exchange* exchange)
      : driver_(driver), memory_(memory), exchange_(exchange) {}

  struct Shared {
    ShareKey key{};
    std::uint64_t bytes = 0;  ///< of memory
  };
  /// The piece of memory at this address, or behind this handle. Asked again, it has the same key. When the session
  /// gives the memory up, new sessions no longer get it; those that have it keep it.
  CUresult share_memory(std::uint64_t address, Shared& shared);
  CUresult share_allocation(CUmemGenericAllocationHandle handle, Shared& shared);
  CUresult share_event(std::uint64_t handle, CUevent event, Shared& shared);
  void event_gone(std::uint64_t handle) { events_.erase(handle); }

  CUresult open_memory(const ShareKey& key, std::uint64_t address, std::uint64_t bytes, int for_device, int& device);
  CUresult import(const ShareKey& key, CUmemGenericAllocationHandle& handle);
  CUresult open_event(const ShareKey& key, CUevent& event);

 private:
  struct Name;       // held by what is shared; its end takes it back
  struct Loan;       // held by memory of another session; its end tells that it is held no more
  struct Companion;  // of memory's charge
  static Companion& companion_of(Charge& charge);
  CUresult share(const SharedThing& thing, const ShareKey* came_by, std::shared_ptr<Name>& name);
  CUresult fetch(const ShareKey& key, bool memory, SharedThing& thing);
  CUresult import(const ShareKey& key, const SharedThing& thing, CUmemGenericAllocationHandle& handle);

  DriverTable& driver_;
  DeviceMemory& memory_;
  Exchange* const exchange_;
  const std::shared_ptr<std::size_t> count_ = std::make_shared<std::size_t>(0);
  std::map<std::uint64_t, std::shared_ptr<Name>> events_;  // by handle
};

}  // namespace fargpu::server
