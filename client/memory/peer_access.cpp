#include "peer_access.h"

#include <vector>

#include "operations.capnp.h"
#include "client/call/remote_call.h"
#include "client/connect/facts.h"
#include "memory_pool.h"

namespace fargpu::client {

bool PeerAccess::possible(int from, int to) const {
  const auto peer = facts_.peers.find({facts_.device(from)->worker_ordinal, facts_.device(to)->worker_ordinal});
  return peer != facts_.peers.end() && peer->second.can_access;
}

CUresult PeerAccess::enable(Thread& thread, Context& context, Context& peer) {
  if (&context == &peer || !peer.active) return CUDA_ERROR_INVALID_CONTEXT;
  const bool across = context.device != peer.device;
  if (across && !possible(context.device, peer.device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  {
    const std::lock_guard lock(mutex_);
    if (!enabled_.emplace(std::pair{&context, &peer}, std::pair{context.device, peer.device}).second)
      return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  }
  const CUresult result = across ? allow(thread, context.device, peer.device) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    enabled_.erase({&context, &peer});
  }
  return result;
}

CUresult PeerAccess::disable(Thread& thread, Context& context, Context& peer) {
  {
    const std::lock_guard lock(mutex_);
    if (enabled_.erase({&context, &peer}) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  }
  return context.device != peer.device ? withdraw(thread, context.device, peer.device) : CUDA_SUCCESS;
}

void PeerAccess::context_closed(Thread& thread, Context& context) {
  std::vector<std::pair<int, int>> gone;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(enabled_, [&](const auto& entry) {
      if (entry.first.first != &context && entry.first.second != &context) return false;
      gone.push_back(entry.second);
      return true;
    });
  }
  for (const auto& [from, to] : gone)
    if (from != to) withdraw(thread, from, to);
}

CUresult PeerAccess::set(Thread& thread, const MemoryPool& pool, int device, bool wanted) {
  if (wanted && !possible(device, pool.device)) return CUDA_ERROR_INVALID_DEVICE;
  {
    const std::lock_guard lock(mutex_);
    if (wanted ? !pools_.emplace(&pool, device).second : pools_.erase({&pool, device}) == 0) return CUDA_SUCCESS;
  }
  const CUresult result = wanted ? allow(thread, device, pool.device) : withdraw(thread, device, pool.device);
  if (wanted && result != CUDA_SUCCESS) {
    const std::lock_guard lock(mutex_);
    pools_.erase({&pool, device});
  }
  return result;
}

bool PeerAccess::has(const MemoryPool& pool, int device) const {
  const std::lock_guard lock(mutex_);
  return pools_.contains({&pool, device});
}

bool PeerAccess::has_any(const MemoryPool& pool) const {
  const std::lock_guard lock(mutex_);
  const auto first = pools_.lower_bound({&pool, 0});
  return first != pools_.end() && first->first == &pool;
}

void PeerAccess::pool_destroyed(Thread& thread, const MemoryPool& pool) {
  for (int device = 0; facts_.device(device); ++device) set(thread, pool, device, false);
}

CUresult PeerAccess::allow(Thread& thread, int from, int to) {
  const std::lock_guard lock(telling_);
  unsigned& reasons = reasons_[{from, to}];
  if (reasons == 0) {
    if (const CUresult bad = tell(thread, from, to, true); bad != CUDA_SUCCESS) return bad;
  }
  ++reasons;
  return CUDA_SUCCESS;
}

CUresult PeerAccess::withdraw(Thread& thread, int from, int to) {
  const std::lock_guard lock(telling_);
  unsigned& reasons = reasons_[{from, to}];
  if (reasons == 0) return CUDA_SUCCESS;  // it never came to be
  return --reasons == 0 ? tell(thread, from, to, false) : CUDA_SUCCESS;
}

CUresult PeerAccess::tell(Thread& thread, int from, int to, bool allowed) {
  RemoteCall<wire::SetPeerAccess> call(calls_, thread);
  auto in = call.in();
  in.setFrom(facts_.device(from)->worker_ordinal);
  in.setTo(facts_.device(to)->worker_ordinal);
  in.setAllowed(allowed);
  return call.wait();
}

}  // namespace fargpu::client
