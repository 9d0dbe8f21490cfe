#pragma once
// Which devices' kernels may use memory of which other devices. The program says so per pair of contexts
// (cuCtxEnablePeerAccess) and per memory pool (cuMemPoolSetAccess); the worker knows pairs of devices, and gives access
// while any of these stands.

#include <cuda.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace fargpu::client {

class Calls;
class Thread;
struct Context;
struct Facts;
struct MemoryPool;

/// Threads: any.
class PeerAccess {
 public:
  PeerAccess(Calls& calls, const Facts& facts) : calls_(calls), facts_(facts) {}

  /// `context` may use the memory of `peer`, as cuCtxEnablePeerAccess; errors are its errors.
  CUresult enable(Thread& thread, Context& context, Context& peer);
  CUresult disable(Thread& thread, Context& context, Context& peer);
  /// Whatever the context had, and others had to it.
  void context_closed(Thread& thread, Context& context);

  /// As cuMemPoolSetAccess for one device, which is not the pool's own.
  CUresult set(Thread& thread, const MemoryPool& pool, int device, bool wanted);
  bool has(const MemoryPool& pool, int device) const;
  /// Whether any device has access to it beside its own.
  bool has_any(const MemoryPool& pool) const;
  void pool_destroyed(Thread& thread, const MemoryPool& pool);

  /// Whether the hardware can; ordinals as the program sees them.
  bool possible(int from, int to) const;

 private:
  // One more, or one less, reason for device `from` to use the memory of device `to`.
  CUresult allow(Thread& thread, int from, int to);
  CUresult withdraw(Thread& thread, int from, int to);
  CUresult tell(Thread& thread, int from, int to, bool allowed);

  Calls& calls_;
  const Facts& facts_;
  mutable std::mutex mutex_;
  std::mutex telling_;  // held over the call to the worker, so that calls arrive as they are counted
  std::map<std::pair<int, int>, unsigned> reasons_;                                   // by devices
  std::map<std::pair<const Context*, const Context*>, std::pair<int, int>> enabled_;  // devices by contexts
  std::set<std::pair<const MemoryPool*, int>> pools_;
};

}  // namespace fargpu::client
