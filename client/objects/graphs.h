#pragma once
// What the client keeps of graphs: their nodes and edges are the driver's.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/handle.h"

namespace fargpu::client {

/// Threads: any.
class Graphs {
 public:
  /// Executable graphs that the worker attends to, because they have parts of ours or events.
  void set_attended(Handle exec, bool attended);
  bool attended(Handle exec) const;

  /// Graphs and executable graphs that the program has destroyed, which no answer of the worker tells in time.
  void destroy(Handle graph);
  bool destroyed(Handle graph) const;

  /// The class of the last change of a node in an executable graph that was accepted: another one of that class is
  /// accepted too, so nobody waits for its answer.
  void learn_change(Handle exec, Handle node, std::uint64_t change);
  bool change_known(Handle exec, Handle node, std::uint64_t change) const;
  /// The executable graph's nodes were changed otherwise, or it is gone.
  void forget_changes(Handle exec);
  /// Nodes are gone.
  void forget_changes();

  /// Launches of those under way: until they end, memory of the program may yet change.
  void launched() { launches_.fetch_add(1); }
  void ended() { launches_.fetch_sub(1); }
  bool any_launched() const { return launches_.load() > 0; }

  /// What the driver gives out by pointer belongs to a node, and lasts until the node's next such answer or its end.
  struct Given {
    std::vector<std::byte> arguments;
    std::vector<void*> argument_pointers;
    std::vector<CUstreamBatchMemOpParams> operations;
    std::vector<CUgraph> bodies;
  };
  Given& given(Handle node);

 private:
  mutable std::mutex mutex_;
  // By the handle's index, so that what is left of objects that are gone makes room for later ones.
  std::map<std::uint32_t, Handle> attended_;
  std::map<std::pair<HandleKind, std::uint32_t>, Handle> destroyed_;
  std::map<std::uint32_t, std::unique_ptr<Given>> given_;
  struct Changes {
    Handle exec;
    std::unordered_map<std::uint64_t, std::uint64_t> classes;  // by node
  };
  std::map<std::uint32_t, Changes> changes_;
  std::atomic<unsigned> launches_{0};
};

}  // namespace fargpu::client
