#include "awaited_events.h"

namespace fargpu::server {

void AwaitedEvents::end(std::uint64_t event) {
  Wait& wait = waits_[event];
  if (--wait.waiters > 0) return;
  const bool destroyed = wait.destroyed;
  waits_.erase(event);
  if (destroyed) destroy(event);
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
