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

void Graphs::learn_change(Handle exec, Handle node, std::uint64_t change) {
  const std::lock_guard lock(mutex_);
  Changes& changes = changes_[exec.index()];
  if (changes.exec != exec) changes = {exec, {}};
  changes.classes[node.value()] = change;
}

bool Graphs::change_known(Handle exec, Handle node, std::uint64_t change) const {
  const std::lock_guard lock(mutex_);
  const auto changes = changes_.find(exec.index());
  if (changes == changes_.end() || changes->second.exec != exec) return false;
  const auto known = changes->second.classes.find(node.value());
  return known != changes->second.classes.end() && known->second == change;
}

void Graphs::forget_changes(Handle exec) {
  const std::lock_guard lock(mutex_);
  changes_.erase(exec.index());
}

void Graphs::forget_changes() {
  const std::lock_guard lock(mutex_);
  changes_.clear();
}

Graphs::Given& Graphs::given(Handle node) {
  const std::lock_guard lock(mutex_);
  auto& given = given_[node.index()];
  if (!given) given = std::make_unique<Given>();
  return *given;
}

}  // namespace fargpu::client
