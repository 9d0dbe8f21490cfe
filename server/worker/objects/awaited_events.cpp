#include "awaited_events.h"

namespace fargpu::server {

void AwaitedEvents::end(std::uint64_t event) {
  Wait& wait = waits_[event];
  if (--wait.waiters > 0) return;
  const bool destroyed = wait.destroyed;
  waits_.erase(event);
  if (destroyed) destroy(event);
}

bool AwaitedEvents::watch(std::uint64_t event, std::uint32_t call) {
  const auto waiting = waits_.find(event);
  const bool is_new = waiting == waits_.end() || !waiting->second.watched;
  if (is_new) begin(event);
  Wait& wait = waits_[event];
  wait.watched = true;
  wait.query = call;
  return is_new;
}

bool AwaitedEvents::watches(std::uint64_t event) const {
  const auto waiting = waits_.find(event);
  return waiting != waits_.end() && waiting->second.watched;
}

std::uint32_t AwaitedEvents::watched(std::uint64_t event) {
  Wait& wait = waits_[event];
  wait.watched = false;
  const std::uint32_t query = wait.query;
  end(event);
  return query;
}

CUresult AwaitedEvents::destroy(std::uint64_t event) {
  if (const auto waiting = waits_.find(event); waiting != waits_.end()) {
    waiting->second.destroyed = true;
    return CUDA_SUCCESS;
  }
  CUevent object{};
  if (!objects_.resolve(HandleKind::event, event, object)) return CUDA_ERROR_INVALID_HANDLE;
  objects_.forget(HandleKind::event, event);
  return driver_.cuEventDestroy_v2(object);
}

}  // namespace fargpu::server
