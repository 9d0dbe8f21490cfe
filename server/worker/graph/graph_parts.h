#pragma once
// What graphs need of the client: functions to call, memory to copy from and to. The driver's graphs hold placeholders
// for them, a host node or a staging address, by which a part is found again in any copy of the graph.

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver_table.h"
#include "server/quota/host_budget.h"
#include "server/worker/base/pages.h"
#include "protocol/channel.h"
#include "protocol/copy.h"

namespace fargpu::server {

/// Parts by the number that the client gave each. A part lives as long as any driver graph holds a reference to its
/// user object: those references the driver itself hands on to clones, child graphs and executable graphs, and drops
/// with them.
class GraphParts {
 public:
  /// `waker` tells the executor that there is something to collect.
  GraphParts(Waker& waker, HostBudget& budget);
  ~GraphParts();

  /// A new part: a function of the client, or, if it has a width, memory of it, for which staging memory is made here.
  /// The caller has the first reference. Throws ProtocolError for a number that is in use. The context must be current.
  CUresult add(DriverTable& driver, std::uint64_t number, const CopyShape& shape, std::uint32_t context,
               CUuserObject& reference);

  /// Staging memory of a part; empty for a function, for what is none, and once the context that it was made in is
  /// gone.
  std::span<std::byte> staging(std::uint64_t number) const;
  /// The part whose staging memory one side of a copy node is, or was; 0 if it is none.
  std::uint64_t at(const CopySide& side) const;
  /// The shape of a part that is memory; empty for others.
  CopyShape shape(std::uint64_t number) const;
  /// Kernels see the part's memory from now on, at this place in the device's, or do no more. Launches that are made
  /// from now on copy there.
  void map(std::uint64_t number, const std::optional<CopySide>& place);
  std::optional<CopySide> place(std::uint64_t number) const;
  /// How often that was changed.
  std::uint64_t places_changed() const { return places_changed_; }
  /// The part that a host node stands for; 0 if it is none of ours.
  std::uint64_t of(const CUDA_HOST_NODE_PARAMS& node) const;
  static CUDA_HOST_NODE_PARAMS placeholder(std::uint64_t number);

  /// Graphs in the body of a conditional node, which the driver tells only when the node is made.
  void set_bodies(CUgraphNode node, std::vector<CUgraph> bodies);
  std::vector<CUgraph> bodies(CUgraphNode node) const;

  /// The graph keeps the part from now on.
  CUresult keep(DriverTable& driver, CUgraph keeper, std::uint64_t number);
  /// The graph, which has kept the part for a node, needs it for that no more.
  void let_go(DriverTable& driver, CUgraph graph, std::uint64_t number);

  /// Numbers of the parts whose last reference has gone; they are still there until erase().
  std::vector<std::uint64_t> gone();
  void erase(std::uint64_t number);
  /// The GPU may be using staging memory of parts that are erased, up to this number, until passed(); 0 for none.
  std::uint64_t used() const { return used_.empty() ? 0 : used_.rbegin()->first; }
  /// It has passed all work that it was given before: other parts may have the memory up to that number.
  void passed(DriverTable& driver, std::uint64_t last);
  /// The context is about to go, and with it the use of staging memory made in it.
  void context_closes(DriverTable& driver, std::uint32_t context);
  /// A context is about to go, and its staging memory is another context's from now on.
  void inherit(std::uint32_t from, std::uint32_t to);

 private:
  struct Part {
    Pages staging;  // graphs have its address for as long as the part is there, so nothing else comes to lie there
    bool pinned = false;
    CopyShape shape;
    std::optional<CopySide> place;
    std::uint32_t context = 0;
    HostCharge charge;
    CUuserObject object = nullptr;
  };
  // The driver tells of a last reference on a thread of its own, perhaps after the session has ended.
  struct Gone {
    std::mutex mutex;
    Waker* waker = nullptr;
    std::vector<std::uint64_t> numbers;
  };
  struct Last {
    std::shared_ptr<Gone> gone;
    std::uint64_t number;
  };
  static void CUDA_CB on_last(void* last);
  CUuserObject object_of(std::uint64_t number) const;
  CUresult give_staging(DriverTable& driver, Part& part);
  bool take_spare(Part& part, std::uint64_t bytes);
  void drop_spares(DriverTable& driver, std::uint64_t bytes_left);
  static void unpin(DriverTable& driver, Part& part);

  HostBudget& budget_;
  const std::shared_ptr<Gone> gone_ = std::make_shared<Gone>();
  std::atomic<std::uint64_t> places_changed_{0};
  mutable std::mutex mutex_;  // graphs are looked through beside the executor too
  std::map<std::uint64_t, Part> parts_;
  std::map<const void*, std::uint64_t> by_staging_;
  std::map<CUgraphNode, std::vector<CUgraph>> bodies_;  // a node that is gone is asked about no more
  // Staging memory of parts that are gone, the executor's. To give it back, NVIDIA's driver waits for all work of the
  // GPU, and meanwhile all that it is asked waits: so new parts have it.
  std::map<std::uint64_t, Part> used_;        // perhaps; by numbers of its own
  std::multimap<std::uint64_t, Part> spare_;  // by its size
  std::uint64_t spare_bytes_ = 0;
  std::uint64_t last_used_ = 0;
};

}  // namespace fargpu::server
