#include "context.h"

#include <utility>

namespace fargpu::client {

void ContextLocalStorage::put(void* key, void* value, Destructor destructor) {
  const std::lock_guard lock(mutex_);
  entries_[key] = {value, destructor};
}

bool ContextLocalStorage::remove(void* key) {
  const std::lock_guard lock(mutex_);
  return entries_.erase(key) > 0;
}

bool ContextLocalStorage::get(void* key, void** value) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  *value = found == entries_.end() ? nullptr : found->second.value;
  return found != entries_.end();
}

void ContextLocalStorage::clear(CUcontext context) {
  std::map<void*, Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::exchange(entries_, {});
  }
  for (const auto& [key, entry] : gone)
    if (entry.destructor) entry.destructor(context, key, entry.value);
}

void Context::reset() {
  handle = Handle();
  device = 0;
  primary = green = false;
  active = false;
  flags = 0;
  retained = 0;
  number = 0;
  least_priority = greatest_priority = 0;
  failure = CUDA_SUCCESS;
  managed_stream = Handle();
  legacy.reset();
  blocking_submitted = blocking_awaited = completed = blocking_completed = submitted = host_visible = 0;
}

}  // namespace fargpu::client
