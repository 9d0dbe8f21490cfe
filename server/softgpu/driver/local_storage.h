#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <utility>

namespace fargpu::softgpu {

/// Values that libraries attach to a context, one per key (private table c693336e).
class LocalStorage {
 public:
  using Destructor = void (*)(CUcontext, void* key, void* value);

  void put(void* key, void* value, Destructor destructor) {
    std::lock_guard lock(mutex_);
    entries_[key] = {value, destructor};
  }
  bool remove(void* key) {
    std::lock_guard lock(mutex_);
    return entries_.erase(key) != 0;
  }
  bool get(void* key, void** value) {
    std::lock_guard lock(mutex_);
    auto found = entries_.find(key);
    *value = found == entries_.end() ? nullptr : found->second.value;
    return found != entries_.end();
  }
  /// Removes everything and calls the destructors, outside the lock: they may call back.
  void clear(CUcontext context) {
    std::map<void*, Entry> gone;
    {
      std::lock_guard lock(mutex_);
      gone = std::exchange(entries_, {});
    }
    for (const auto& [key, entry] : gone)
      if (entry.destructor != nullptr) entry.destructor(context, key, entry.value);
  }

 private:
  struct Entry {
    void* value = nullptr;
    Destructor destructor = nullptr;
  };
  std::mutex mutex_;
  std::map<void*, Entry> entries_;
};

}  // namespace fargpu::softgpu
