#pragma once
// Values that libraries attach to a context (private table c693336e).

#include <cuda.h>

#include <map>
#include <mutex>
#include <utility>

namespace fargpu {

/// One value per key.
class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext, void* key, void* value);

  void put(void* key, void* value, Destructor destructor) {
    const std::lock_guard lock(mutex_);
    entries_[key] = {value, destructor};
  }
  bool remove(void* key) {
    const std::lock_guard lock(mutex_);
    return entries_.erase(key) != 0;
  }
  bool get(void* key, void** value) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    *value = found == entries_.end() ? nullptr : found->second.value;
    return found != entries_.end();
  }
  /// Removes everything and calls the destructors, outside of the lock: they may call back.
  void clear(CUcontext context) {
    std::map<void*, Entry> gone;
    {
      const std::lock_guard lock(mutex_);
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

}  // namespace fargpu
