#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "driver/failure.h"

namespace fargpu::softgpu {

/// The live objects of one kind by their handles. A handle is the address of its object, so it is
/// unique while the object lives; a handle that is not in the table is refused, never followed.
template <class T, class Handle>
class HandleTable {
 public:
  static HandleTable& instance() {
    static auto* table = new HandleTable();
    return *table;
  }

  Handle add(std::shared_ptr<T> object) {
    auto handle = reinterpret_cast<Handle>(object.get());
    std::unique_lock lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  /// Null if there is no such object.
  std::shared_ptr<T> find(Handle handle) const {
    std::shared_lock lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }

  std::shared_ptr<T> get(Handle handle, CUresult if_missing = CUDA_ERROR_INVALID_HANDLE) const {
    std::shared_ptr<T> object = find(handle);
    require(object != nullptr, if_missing);
    return object;
  }

  /// Takes the object out of the table; null if it was not there.
  std::shared_ptr<T> remove(Handle handle) {
    std::unique_lock lock(mutex_);
    auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

  std::vector<std::shared_ptr<T>> all() const {
    std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> result;
    for (const auto& [handle, object] : objects_) result.push_back(object);
    return result;
  }

  template <class Condition>
  std::vector<std::shared_ptr<T>> remove_if(Condition condition) {
    std::vector<std::shared_ptr<T>> removed;
    std::unique_lock lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      if (condition(*it->second)) {
        removed.push_back(std::move(it->second));
        it = objects_.erase(it);
      } else {
        ++it;
      }
    }
    return removed;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<T>> objects_;
};

}  // namespace fargpu::softgpu
