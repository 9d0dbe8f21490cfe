#pragma once
// How an executable graph is launched that has parts of the client. Nothing submitted to the GPU may wait for the
// client, so such a graph is cut into pieces at the functions that run there, each piece a graph for the driver, and
// the pieces and functions are run one after the other. See docs/internals/graphs.md.

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "driver_table.h"
#include "graph_parts.h"
#include "node_names.h"

namespace fargpu::server {

/// The driver, while the session lasts: what outlives the session must not call it any more.
using BorrowedDriver = std::weak_ptr<DriverTable>;

/// What to do in which order. Made once; a run keeps it.
class GraphPlan {
 public:
  /// A copy to memory of the client. One in the body of a conditional node is not made in every launch.
  struct Write {
    std::uint64_t part = 0;
    bool conditional = false;
  };
  /// A piece for the driver with the copies of its that involve the client, or a function of the client.
  struct Step {
    CUgraphExec piece = nullptr;       ///< null for a function
    std::vector<std::uint64_t> reads;  ///< parts whose bytes the client sends first
    std::vector<Write> writes;         ///< parts whose bytes go to the client afterwards, in the order of the copies
    std::uint64_t function = 0;
  };
  std::vector<Step> steps;
  std::vector<CUevent> recorded;  ///< by nodes of the graph
  std::vector<CUevent> awaited;
  bool has_parts = false;
  bool has_values = false;  ///< operations on memory: values that are written or waited for

  /// `whole` is the graph as the driver instantiated it, which is the only piece where nothing has to be cut or moved.
  /// Nodes in `disabled` do nothing. Returns null, with the reason, for a graph that cannot be cut.
  static std::shared_ptr<GraphPlan> make(const std::shared_ptr<DriverTable>& driver, const GraphParts& parts,
                                         CUgraph graph, CUgraphExec whole, std::uint64_t flags,
                                         const std::set<CUgraphNode>& disabled, std::string& refusal);
  explicit GraphPlan(BorrowedDriver driver) : driver_(std::move(driver)) {}
  ~GraphPlan();

  /// Steps that launch `whole` launch an executable graph of their own from now on, which is made of `graph`.
  CUresult leave(CUgraphExec whole, CUgraph graph, std::uint64_t flags, const std::set<CUgraphNode>& disabled);

 private:
  friend class PlanMaker;
  CUresult instantiate(CUgraph graph, std::uint64_t flags, const std::set<CUgraphNode>& disabled, CUgraphExec& piece);

  const BorrowedDriver driver_;
  std::vector<CUgraph> piece_graphs_;
  std::vector<CUgraphExec> pieces_;
};

/// An executable graph whose launches the worker attends to: it has parts of the client, events that work held back
/// depends on, or values for which the client may have to change memory until the launch is over. Changes to it are
/// told to the driver's own executable graph, which is never launched where there are parts, and to a copy of the
/// graph, from which a new plan is made at the next launch.
class AttendedGraph {
 public:
  AttendedGraph(std::shared_ptr<DriverTable> driver, const GraphParts& parts, CUgraphExec whole, std::uint64_t flags)
      : driver_(driver), parts_(parts), whole_(whole), flags_(flags) {}
  ~AttendedGraph();

  /// Takes in the graph that the driver's executable graph was just made from, or updated with.
  CUresult take(CUgraph graph, std::string& refusal);
  /// The plan for a launch now; null, with the reason, if the graph was changed into one that cannot be cut.
  std::shared_ptr<GraphPlan> plan(std::string& refusal);

  /// The driver's executable graph is about to be changed: launches that are not over go on with it as it is now.
  CUresult before_change();
  /// The copy of a node that was changed in the driver's executable graph, to be changed alike; null if there is none.
  CUgraphNode copy_of(CUgraphNode node);
  CUgraph copy() const { return copy_; }
  void changed() { plan_changed_ = true; }
  /// `node`: by which the program names it. `copy`: null if it is not known.
  void set_enabled(CUgraphNode node, CUgraphNode copy, bool enabled);
  bool has_parts() const { return plan_ && plan_->has_parts; }

  /// Launches of one graph come one after the other.
  std::uint64_t last_launch = 0;

 private:
  const BorrowedDriver driver_;
  const GraphParts& parts_;
  const CUgraphExec whole_;
  const std::uint64_t flags_;
  CUgraph copy_ = nullptr;
  NodeNames names_;
  // Nodes of the copy, null where they are not known, by what the program names them.
  std::map<CUgraphNode, CUgraphNode> disabled_;
  std::shared_ptr<GraphPlan> plan_;
  std::vector<std::weak_ptr<GraphPlan>> unchanged_;  // plans, plan_ among them, since which nothing was changed
  bool plan_changed_ = false;
  std::uint64_t places_seen_ = 0;  // changes of where kernels see parts

  void keep_disabled();
  std::set<CUgraphNode> disabled() const;
  bool make_plan(const std::shared_ptr<DriverTable>& driver, CUgraph graph, std::string& refusal);
};

/// Whether launches of an instance of this graph need attending.
bool needs_attention(DriverTable& driver, const GraphParts& parts, CUgraph graph);

}  // namespace fargpu::server
