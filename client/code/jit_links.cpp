#include "jit_links.h"

namespace fargpu::client {

void JitLinks::add(Handle handle, const JitOutputs& outputs) {
  auto link = std::make_shared<JitLink>();
  link->outputs = outputs;
  const std::lock_guard lock(mutex_);
  links_[handle.value()] = std::move(link);
}

std::shared_ptr<JitLink> JitLinks::find(Handle handle) const {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(handle.value());
  return found == links_.end() ? nullptr : found->second;
}

void JitLinks::remove(Handle handle) {
  const std::lock_guard lock(mutex_);
  links_.erase(handle.value());
}

}  // namespace fargpu::client
