#pragma once
// Memory of this process that others may open, and memory of others that this one has opened.

#include <cuda.h>

#include <map>
#include <mutex>
#include <set>

#include "shared_handle.h"

namespace fargpu::client {

class Session;
class Thread;
struct Context;

/// Threads: any.
class SharedMemory {
 public:
  explicit SharedMemory(Session& session) : session_(session) {}

  /// A handle of the allocation of cuMemAlloc that holds this address.
  CUresult share(Thread& thread, std::uint64_t address, SharedHandle& handle);
  /// Memory of another process at an address of ours. The same memory opened again has the same address, until it is closed as often.
  CUresult open(Thread& thread, Context& context, const SharedHandle& handle, std::uint64_t& address);
  CUresult close(Thread& thread, std::uint64_t address);
  /// The context is gone, and with it what was opened in it.
  void context_closed(Thread& thread, Context& context);

 private:
  struct Opened {  // a piece of memory, in which lie one or more allocations that were opened
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    int device = 0;
    const Context* context = nullptr;
    std::map<std::uint64_t, unsigned> allocations;  // how often, by address
  };
  void release(Thread& thread, const Opened& opened);
  void release_unused(Thread& thread, std::map<ShareKey, Opened>::iterator opened);

  Session& session_;
  std::mutex mutex_;  // held over calls to the worker: nothing that answers them needs it
  std::set<ShareKey> ours_;
  std::map<ShareKey, Opened> opened_;
};

}  // namespace fargpu::client
