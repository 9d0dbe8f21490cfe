#pragma once
// The session's executable graphs whose launches need attention.

#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "driver_table.h"
#include "graph_plan.h"

namespace fargpu::server {

/// By the handle of the executable graph. The driver that they borrow is lent until the session ends. Used by the
/// executor only.
class AttendedGraphs {
 public:
  explicit AttendedGraphs(DriverTable& driver) : driver_(&driver, [](DriverTable*) {}) {}

  const std::shared_ptr<DriverTable>& lent_driver() const { return driver_; }
  /// The session ends: what outlives it must not call the driver any more.
  void end() { driver_.reset(); }

  /// Null if launches of it need none.
  AttendedGraph* find(std::uint64_t exec) const {
    const auto found = graphs_.find(exec);
    return found == graphs_.end() ? nullptr : found->second.get();
  }
  void add(std::uint64_t exec, std::unique_ptr<AttendedGraph> graph) { graphs_[exec] = std::move(graph); }
  void forget(std::uint64_t exec) {
    graphs_.erase(exec);
    disabled_.erase(exec);
  }

  /// A node of an executable graph that needs no attention was disabled, or enabled again. Named as the program does.
  void set_enabled(std::uint64_t exec, CUgraphNode node, bool enabled) {
    if (!enabled) {
      disabled_[exec].insert(node);
    } else if (const auto found = disabled_.find(exec); found != disabled_.end()) {
      found->second.erase(node);
      if (found->second.empty()) disabled_.erase(found);
    }
  }
  bool any_disabled(std::uint64_t exec) const { return disabled_.contains(exec); }

 private:
  std::shared_ptr<DriverTable> driver_;
  std::unordered_map<std::uint64_t, std::unique_ptr<AttendedGraph>> graphs_;
  std::unordered_map<std::uint64_t, std::set<CUgraphNode>> disabled_;  // none of those in graphs_
};

}  // namespace fargpu::server
