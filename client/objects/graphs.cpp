#include "graphs.h"

namespace fargpu::client {

void Graphs::set_attended(Handle exec, bool attended) {
  const std::lock_guard lock(mutex_);
  if (attended) attended_[exec.index()] = exec;
  else attended_.erase(exec.index());
}

bool Graphs::attended(Handle exec) const {
  const std::lock_guard lock(mutex_);
  const auto found = attended_.find(exec.index());
  return found != attended_.end() && found->second == exec;
}

void Graphs::destroy(Handle graph) {
  const std::lock_guard lock(mutex_);
  destroyed_[{graph.kind(), graph.index()}] = graph;
}

bool Graphs::destroyed(Handle graph) const {
  const std::lock_guard lock(mutex_);
  const auto found = destroyed_.find({graph.kind(), graph.index()});
  return found != destroyed_.end() && found->second == graph;
}

Graphs::Given& Graphs::given(Handle node) {
  const std::lock_guard lock(mutex_);
  auto& given = given_[node.index()];
  if (!given) given = std::make_unique<Given>();
  return *given;
}

}  // namespace fargpu::client
