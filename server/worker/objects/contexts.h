#pragma once
// The session's contexts and streams, and which context is current to the executor.

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/worker/memory/device_memory.h"
#include "driver_table.h"
#include "server/quota/host_budget.h"
#include "server/worker/base/partition.h"
#include "protocol/handle.h"
#include "streams.h"

namespace fargpu::server {

/// Used by the executor only. Closing contexts is the session's: much else goes with them.
class Contexts {
 public:
  /// Memory for copies is free for one context, and charged to the budget for further ones.
  /// `devices`: the driver's ordinals, in the session's order; `parts` of each device, the groups of multiprocessors
  /// that are the session's. `origin`: of all its handles.
  Contexts(DriverTable& driver, Ledger& ledger, HostBudget& budget, const std::vector<int>& devices,
           const std::vector<std::vector<CUdevResource>>& parts, unsigned origin = 0);

  /// The session's ordinal to the driver's; -1 if there is none.
  int driver_ordinal(int ordinal) const;
  /// The session's part of a device, by its number in the session; null where it has all of it.
  Partition* partition(int device);

  /// The flags of a program's context that its host's driver is told. Waiting is done by polling events here, so how
  /// the driver would wait does not matter; spinning in it never happens. A core dump would hold memory of this
  /// process.
  static unsigned driver_flags(unsigned flags) {
    return flags & ~unsigned{CU_CTX_SCHED_MASK | CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE};
  }
  CUresult open(Handle handle, int device, bool primary, unsigned flags, ContextState*& opened);
  /// A green context of the device's primary context.
  CUresult open_green(Handle handle, int device, CUdevResourceDesc resources, ContextState*& opened);
  /// It is closed: nothing names it any more. None is current then.
  void remove(ContextState& context);

  bool empty() const { return all_.empty(); }
  /// Null if there is none.
  ContextState* find(std::uint32_t id) const;
  ContextState* find(Handle handle) const;
  /// Any on a device (the driver's ordinal); null if there is none.
  ContextState* on_device(int device) const;
  ContextState* primary_of(int device) const;
  /// The context that has memory and code of this one: of a green context the primary one.
  const ContextState& home_of(const ContextState& context) const {
    return context.green ? *primary_of(context.device) : context;
  }
  // A primary context and the green ones of its device; others by themselves.
  std::vector<ContextState*> with_greens(ContextState& context) const;
  /// All, the green ones first, which go before what they are parts of.
  std::vector<ContextState*> all() const;
  /// By which the client knows it; 0 if it does not.
  std::uint64_t handle_of(CUcontext context) const;

  /// Null if none is.
  ContextState* current() const { return current_; }
  bool make_current(ContextState& context);
  /// Makes a context current that is about to close, or stays when another does: whatever the driver says to that.
  void enter(ContextState& context);
  /// The driver wants a context for what needs none of the client's: makes any current, where none is.
  bool borrow();

  /// The stream of a handle in the context of a call; null if there is none.
  StreamState* stream(std::uint64_t handle, std::uint32_t context) const;
  /// `apart`: see StreamState.
  void add_stream(std::uint64_t handle, CUstream cuda, ContextState& owner, bool apart);
  /// The client has destroyed it, and its work is not done: from now on its handle is nobody's, and the rest stays as
  /// it was. Returns a number for it that is never given again.
  std::uint64_t retire_stream(StreamState& stream);
  /// Null once it has been removed.
  StreamState* retired(std::uint64_t number) const;
  /// Nothing if it is a context's legacy stream, which goes with that.
  void remove_stream(StreamState& stream);

 private:
  void take(std::unique_ptr<ContextState> state, Handle handle, int device, ContextState*& opened);

  DriverTable& driver_;
  Ledger& ledger_;
  HostBudget& budget_;
  /// The one that is not charged for: a second one only once that has gone, not just its context.
  std::weak_ptr<Staging> free_staging_;
  const std::vector<int> devices_;
  const unsigned origin_;
  std::vector<std::unique_ptr<Partition>> partitions_;  // of each device, or of none
  std::unordered_map<std::uint32_t, std::unique_ptr<ContextState>> all_;
  std::unordered_map<std::uint64_t, std::unique_ptr<StreamState>> streams_;  // by handle, but the legacy ones
  std::unordered_map<std::uint64_t, std::unique_ptr<StreamState>> retired_;  // by number
  std::uint64_t retirements_ = 0;
  ContextState* current_ = nullptr;
  std::uint64_t driver_memories_ = 0;  // that there have been
  unsigned stream_numbers_ = 0;        // that there have been
};

}  // namespace fargpu::server
