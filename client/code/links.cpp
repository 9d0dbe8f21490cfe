#include "links.h"

namespace fargpu::client {

void Links::add(Handle handle, const JitOutputs& outputs) {
  auto link = std::make_shared<Link>();
  link->outputs = outputs;
  const std::lock_guard lock(mutex_);
  links_[handle.value()] = std::move(link);
}

std::shared_ptr<Link> Links::find(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(handle.value());
  return found == links_.end() ? nullptr : found->second;
}

void Links::remove(Handle handle) {
  const std::lock_guard lock(mutex_);
  links_.erase(handle.value());
}

}  // namespace fargpu::client
