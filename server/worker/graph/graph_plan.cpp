#include "graph_plan.h"

#include <algorithm>
#include <map>
#include <span>

namespace fargpu::server {
namespace {

constexpr char moved_with_conditions[] =
    "a graph with conditional nodes that copies from or to memory which kernels came to use later";
constexpr char not_copied[] = "a graph that must be cut for functions, copies, events or values, and cannot be copied";

/// What a node needs of the client, child graphs and bodies included.
struct Use {
  std::vector<std::uint64_t> reads;
  std::vector<GraphPlan::Write> writes;
  std::uint64_t function = 0;
  std::set<CUdeviceptr> written;  ///< values, by operations on memory
  std::set<CUdeviceptr> awaited;  ///< values
  bool records_event = false;
  bool waits_for_event = false;
  bool tells() const { return records_event || !written.empty(); }
  bool waits() const { return waits_for_event || !awaited.empty(); }
};

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

struct Layout;

struct Node {
  CUgraphNode node = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Use use;
  std::unique_ptr<Layout> cut;  ///< of a child graph that must be cut itself
  Use inner;                    ///< of that one
  std::size_t stage = 0;
  std::ptrdiff_t written = -1;  ///< last stage in which this node or one before it writes memory of the client
  std::ptrdiff_t waited = -1;   ///< and waits for an event or a value, behind which others may have
  bool on_device() const { return use.function == 0 && !cut; }
  const std::set<CUdeviceptr>& values_written() const { return cut ? inner.written : use.written; }
  const std::set<CUdeviceptr>& values_awaited() const { return cut ? inner.awaited : use.awaited; }
};

/// Whether a node makes its stage have a piece.
bool in_piece(const Node& node) { return node.on_device() && node.type != CU_GRAPH_NODE_TYPE_EMPTY; }

/// A graph's nodes, each behind those it depends on, with the stage in which it runs: first the stage's nodes on the
/// device, as one piece, then its functions.
struct Layout {
  CUgraph graph = nullptr;
  std::vector<Node> nodes;
  bool conditional = false;  ///< holds conditional nodes, at any depth: cannot be copied
  bool single_piece() const {
    return std::all_of(nodes.begin(), nodes.end(),
                       [](const Node& node) { return node.on_device() && node.stage == 0; });
  }
  Use total() const {
    Use sum;
    for (const Node& node : nodes) {
      append(sum.reads, node.use.reads);
      append(sum.writes, node.use.writes);
      sum.written.insert(node.values_written().begin(), node.values_written().end());
      sum.awaited.insert(node.values_awaited().begin(), node.values_awaited().end());
      sum.records_event = sum.records_event || node.use.records_event;
      sum.waits_for_event = sum.waits_for_event || node.use.waits_for_event;
    }
    return sum;
  }
};

/// Whether the pieces have copies of the graph and of all graphs within it that are cut, which keep their parts.
bool keep_parts(const Layout& layout) {
  return std::any_of(layout.nodes.begin(), layout.nodes.end(), in_piece) &&
         std::all_of(layout.nodes.begin(), layout.nodes.end(),
                     [](const Node& node) { return !node.cut || keep_parts(*node.cut); });
}

}  // namespace

class PlanMaker {
 public:
  /// `own_graph`: what is looked at may be changed.
  PlanMaker(DriverTable& driver, const GraphParts& parts, const std::set<CUgraphNode>& disabled, bool own_graph,
            std::string& refusal)
      : driver_(driver), parts_(parts), disabled_(disabled), own_graph_(own_graph), refusal_(refusal) {}

  bool moved() const { return moved_; }

  bool lay_out(CUgraph graph, Layout& layout, GraphPlan& plan) {
    layout.graph = graph;
    std::size_t count = 0;
    if (driver_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return refuse("a graph that cannot be read");
    std::vector<CUgraphNode> nodes(count);
    if (count > 0 && driver_.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS)
      return refuse("a graph that cannot be read");
    std::size_t edge_count = 0;
    if (driver_.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &edge_count) != CUDA_SUCCESS)
      return refuse("a graph that cannot be read");
    std::vector<CUgraphNode> from(edge_count), to(edge_count);
    std::vector<CUgraphEdgeData> data(edge_count);
    if (edge_count > 0 &&
        driver_.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &edge_count) != CUDA_SUCCESS)
      return refuse("a graph that cannot be read");

    std::map<CUgraphNode, std::vector<CUgraphNode>> followers;
    std::map<CUgraphNode, std::vector<std::size_t>> before;  // places in layout.nodes
    std::map<CUgraphNode, std::size_t> open;                 // edges from nodes that have no place yet
    for (std::size_t i = 0; i < edge_count; ++i) {
      followers[from[i]].push_back(to[i]);
      ++open[to[i]];
    }
    std::vector<CUgraphNode> ready;
    for (const CUgraphNode node : nodes)
      if (!open.contains(node)) ready.push_back(node);
    for (std::size_t i = 0; i < ready.size(); ++i) {
      Node& node = layout.nodes.emplace_back();
      node.node = ready[i];
      if (!look_at(node, layout, plan)) return false;
      set_stage(node, before[node.node], layout.nodes);
      for (const CUgraphNode follower : followers[ready[i]]) {
        before[follower].push_back(i);
        if (--open[follower] == 0) ready.push_back(follower);
      }
    }
    return !waits_for_later_stage(layout.nodes, before) ||
           refuse(
               "a graph that waits for a value which it writes after functions of the program or copies to its memory");
  }

  // Adds the steps of a graph. Its device work is copied for each stage, without what belongs to other stages.
  bool add_steps(const Layout& layout, std::uint64_t flags, GraphPlan& plan) {
    std::size_t stages = 0;
    for (const Node& node : layout.nodes) stages = std::max(stages, node.stage + 1);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (!add_piece(layout, stage, flags, plan)) return false;
      for (const Node& node : layout.nodes) {
        if (node.stage != stage || node.on_device()) continue;
        if (node.cut) {
          if (!add_steps(*node.cut, flags, plan)) return false;
        } else {
          plan.steps.push_back({.function = node.use.function});
        }
      }
    }
    return true;
  }

  bool refuse(const char* why) {
    if (refusal_.empty()) refusal_ = why;
    return false;
  }

 private:
  bool look_at(Node& node, Layout& layout, GraphPlan& plan) {
    if (driver_.cuGraphNodeGetType(node.node, &node.type) != CUDA_SUCCESS) return refuse("a graph that cannot be read");
    switch (node.type) {
      case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS host{};
        if (driver_.cuGraphHostNodeGetParams(node.node, &host) != CUDA_SUCCESS ||
            (node.use.function = parts_.of(host)) == 0)
          return refuse("a graph with a function that is not known any more");
        plan.has_parts = true;
        return true;
      }
      case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D copy{};
        if (driver_.cuGraphMemcpyNodeGetParams(node.node, &copy) != CUDA_SUCCESS)
          return refuse("a graph that cannot be read");
        const auto from = source_of(copy), to = target_of(copy);
        if (!from || !to) return refuse("a graph that cannot be read");
        std::uint64_t source = parts_.at(*from), target = parts_.at(*to);
        if (source || target) plan.has_parts = true;
        if (!move_sides(node.node, shape_of(copy), *from, *to, source, target)) return false;
        if (disabled_.contains(node.node)) return true;
        if (source) node.use.reads.push_back(source);
        if (target) node.use.writes.push_back({.part = target});
        return true;
      }
      case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraph child{};
        if (driver_.cuGraphChildGraphNodeGetGraph(node.node, &child) != CUDA_SUCCESS)
          return refuse("a graph that cannot be read");
        auto inner = std::make_unique<Layout>();
        if (!lay_out(child, *inner, plan)) return false;
        layout.conditional = layout.conditional || inner->conditional;
        if (inner->single_piece()) node.use = inner->total();
        else {
          node.inner = inner->total();
          node.cut = std::move(inner);
        }
        return true;
      }
      case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
        layout.conditional = true;
        for (const CUgraph body : parts_.bodies(node.node)) {
          Layout inner;
          if (!lay_out(body, inner, plan)) return false;
          if (!inner.single_piece())
            return refuse(
                "a conditional graph with functions of the program, or with a copy from its memory after one to it");
          const Use use = inner.total();
          append(node.use.reads, use.reads);
          for (const GraphPlan::Write& write : use.writes) node.use.writes.push_back({write.part, true});
        }
        if (!node.use.reads.empty() && !node.use.writes.empty())
          return refuse("a conditional node with copies both from and to memory of the program");
        return true;
      }
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
        CUevent event{};
        if (driver_.cuGraphEventRecordNodeGetEvent(node.node, &event) != CUDA_SUCCESS)
          return refuse("a graph that cannot be read");
        plan.recorded.push_back(event);
        node.use.records_event = true;
        return true;
      }
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
        CUevent event{};
        if (driver_.cuGraphEventWaitNodeGetEvent(node.node, &event) != CUDA_SUCCESS)
          return refuse("a graph that cannot be read");
        plan.awaited.push_back(event);
        node.use.waits_for_event = true;
        return true;
      }
      case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        plan.has_values = true;
        CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
        if (driver_.cuGraphBatchMemOpNodeGetParams(node.node, &batch) != CUDA_SUCCESS)
          return refuse("a graph that cannot be read");
        if (!disabled_.contains(node.node)) read_values({batch.paramArray, batch.count}, node.use);
        return true;
      }
      default: return true;
    }
  }

  static void read_values(std::span<const CUstreamBatchMemOpParams> operations, Use& use) {
    for (const CUstreamBatchMemOpParams& operation : operations) {
      switch (operation.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: use.awaited.insert(operation.waitValue.address); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: use.written.insert(operation.writeValue.address); break;
        default: break;
      }
    }
  }

  // Whether a node waits for a value that a later stage writes, which begins when the node's own is over. A write
  // behind the wait is not the one that is waited for.
  static bool waits_for_later_stage(const std::vector<Node>& nodes,
                                    std::map<CUgraphNode, std::vector<std::size_t>>& before) {
    // A stage's piece comes first, and then what is not on the device, one after the other.
    const auto turn = [&](std::size_t i) { return std::pair(nodes[i].stage, nodes[i].on_device() ? 0 : 1 + i); };
    std::map<CUdeviceptr, std::vector<std::size_t>> waits;  // places in nodes
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const CUdeviceptr value : nodes[i].values_awaited()) waits[value].push_back(i);
    if (waits.empty()) return false;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (const CUdeviceptr value : nodes[i].values_written()) {
        const auto found = waits.find(value);
        if (found == waits.end()) continue;
        for (const std::size_t wait : found->second)
          if (turn(wait) < turn(i) && !comes_behind(i, wait, nodes, before)) return true;
      }
    }
    return false;
  }

  static bool comes_behind(std::size_t node, std::size_t other, const std::vector<Node>& nodes,
                           std::map<CUgraphNode, std::vector<std::size_t>>& before) {
    std::set<std::size_t> seen;
    std::vector<std::size_t> open{node};
    while (!open.empty()) {
      const std::size_t place = open.back();
      open.pop_back();
      if (place == other) return true;
      if (!seen.insert(place).second) continue;
      const auto& earlier = before[nodes[place].node];
      open.insert(open.end(), earlier.begin(), earlier.end());
    }
    return false;
  }

  // A copy from or to memory of the client that kernels see by now goes there, and involves the client no more.
  bool move_sides(CUgraphNode node, const CopyShape& shape, const CopySide& unmoved_source,
                  const CopySide& unmoved_target, std::uint64_t& source, std::uint64_t& target) {
    const auto from = source ? parts_.place(source) : std::nullopt, to = target ? parts_.place(target) : std::nullopt;
    if (!from && !to) return true;
    if (!own_graph_) return refuse(moved_with_conditions);
    if (from) source = 0;
    if (to) target = 0;
    const auto copy = cuda_copy<CUDA_MEMCPY3D>(shape, from.value_or(unmoved_source), to.value_or(unmoved_target));
    if (driver_.cuGraphMemcpyNodeSetParams(node, &copy) != CUDA_SUCCESS)
      return refuse("a copy to or from memory which kernels came to use later");
    moved_ = true;
    return true;
  }

  // Device work comes in a later stage than what it depends on in the client. So does what reads memory of the client
  // that something before it may have written, or other work before an event or a value that it waits for: its bytes
  // are fetched when its piece begins. An event is recorded, and a value written, in a later stage than copies to the
  // client before it, since their bytes are sent when their piece is over.
  void set_stage(Node& node, const std::vector<std::size_t>& before, const std::vector<Node>& nodes) {
    for (const std::size_t place : before) {
      const Node& other = nodes[place];
      node.stage = std::max(node.stage, other.stage + (node.on_device() && !other.on_device() ? 1 : 0));
      node.written = std::max(node.written, other.written);
      node.waited = std::max(node.waited, other.waited);
    }
    if (!node.use.reads.empty())
      node.stage = std::max(node.stage, static_cast<std::size_t>(std::max(node.written, node.waited) + 1));
    if (node.use.tells()) node.stage = std::max(node.stage, static_cast<std::size_t>(node.written + 1));
    if (!node.use.writes.empty() || !node.on_device()) node.written = static_cast<std::ptrdiff_t>(node.stage);
    if (node.use.waits()) node.waited = static_cast<std::ptrdiff_t>(node.stage);
  }

  bool add_piece(const Layout& layout, std::size_t stage, std::uint64_t flags, GraphPlan& plan) {
    const auto belongs = [&](const Node& node) { return node.stage == stage && node.on_device(); };
    GraphPlan::Step step;
    bool any = false;
    for (const Node& node : layout.nodes) {
      if (!belongs(node)) continue;
      any = any || in_piece(node);
      append(step.reads, node.use.reads);
      append(step.writes, node.use.writes);
    }
    if (!any) return true;
    CUgraph piece{};
    if (driver_.cuGraphClone(&piece, layout.graph) != CUDA_SUCCESS) return refuse(not_copied);
    plan.piece_graphs_.push_back(piece);
    std::set<CUgraphNode> disabled;
    for (const Node& node : layout.nodes) {
      CUgraphNode copy{};
      if (driver_.cuGraphNodeFindInClone(&copy, node.node, piece) != CUDA_SUCCESS)
        return refuse("a graph whose copy differs from it");
      if (!belongs(node)) driver_.cuGraphDestroyNode(copy);
      else if (disabled_.contains(node.node)) disabled.insert(copy);
    }
    if (plan.instantiate(piece, flags, disabled, step.piece) != CUDA_SUCCESS)
      return refuse("a graph of which a piece cannot be instantiated by itself");
    plan.steps.push_back(std::move(step));
    return true;
  }

  DriverTable& driver_;
  const GraphParts& parts_;
  const std::set<CUgraphNode>& disabled_;
  const bool own_graph_;
  bool moved_ = false;
  std::string& refusal_;
};

std::shared_ptr<GraphPlan> GraphPlan::make(const std::shared_ptr<DriverTable>& driver, const GraphParts& parts,
                                           CUgraph graph, CUgraphExec whole, std::uint64_t flags,
                                           const std::set<CUgraphNode>& disabled, std::string& refusal) {
  auto plan = std::make_shared<GraphPlan>(driver);
  std::set<CUgraphNode> disabled_here = disabled;
  bool own_graph = false;
  if (parts.places_changed() > 0) {  // in a copy: where kernels see memory may change again
    CUgraph copy{};
    if (driver->cuGraphClone(&copy, graph) == CUDA_SUCCESS) {
      plan->piece_graphs_.push_back(copy);
      own_graph = true;
      disabled_here.clear();
      for (const CUgraphNode node : disabled) {
        CUgraphNode there{};
        if (driver->cuGraphNodeFindInClone(&there, node, copy) == CUDA_SUCCESS) disabled_here.insert(there);
      }
      graph = copy;
    }
  }
  PlanMaker maker(*driver, parts, disabled_here, own_graph, refusal);
  Layout layout;
  if (!maker.lay_out(graph, layout, *plan)) return nullptr;
  if (layout.single_piece() && !maker.moved()) {
    const Use use = layout.total();
    plan->steps.push_back({whole, use.reads, use.writes, 0});
    return plan;
  }
  if (layout.conditional) {
    maker.refuse(
        "a graph with conditional nodes that calls functions of the program, copies from its memory after copying to "
        "it or waiting for an event or a value, or records an event or writes a value after copying to it");
    return nullptr;
  }
  if (!maker.add_steps(layout, flags, *plan)) return nullptr;
  if (own_graph || keep_parts(layout)) return plan;
  // Some graph keeps parts, and no piece is a copy of it: they must stay for launches that are not over.
  CUgraph copy{};
  if (driver->cuGraphClone(&copy, graph) != CUDA_SUCCESS) {
    maker.refuse(not_copied);
    return nullptr;
  }
  plan->piece_graphs_.push_back(copy);
  return plan;
}

CUresult GraphPlan::instantiate(CUgraph graph, std::uint64_t flags, const std::set<CUgraphNode>& disabled,
                                CUgraphExec& piece) {
  const auto driver = driver_.lock();
  if (!driver) return CUDA_ERROR_DEINITIALIZED;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.flags = flags & ~static_cast<std::uint64_t>(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  const CUresult result = driver->cuGraphInstantiateWithParams(&piece, graph, &params);
  if (result != CUDA_SUCCESS) return result;
  pieces_.push_back(piece);
  for (const CUgraphNode node : disabled) driver->cuGraphNodeSetEnabled(piece, node, 0);
  return result;
}

CUresult GraphPlan::leave(CUgraphExec whole, CUgraph graph, std::uint64_t flags,
                          const std::set<CUgraphNode>& disabled) {
  for (Step& step : steps) {
    if (step.piece != whole) continue;
    CUgraphExec own{};
    if (const CUresult bad = instantiate(graph, flags, disabled, own); bad != CUDA_SUCCESS) return bad;
    step.piece = own;
  }
  return CUDA_SUCCESS;
}

GraphPlan::~GraphPlan() {
  const auto driver = driver_.lock();
  if (!driver) return;
  for (const CUgraphExec piece : pieces_) driver->cuGraphExecDestroy(piece);
  for (const CUgraph graph : piece_graphs_) driver->cuGraphDestroy(graph);
}

bool needs_attention(DriverTable& driver, const GraphParts& parts, CUgraph graph) {
  GraphPlan plan{BorrowedDriver()};
  std::string refusal;
  const std::set<CUgraphNode> none;
  Layout layout;
  const bool clear = PlanMaker(driver, parts, none, /*own_graph=*/false, refusal).lay_out(graph, layout, plan);
  return !clear || plan.has_parts || plan.has_values || !plan.recorded.empty() || !plan.awaited.empty();
}

// --- executable graphs ----------------------------------------------------------------------------------------------

AttendedGraph::~AttendedGraph() {
  const auto driver = driver_.lock();
  if (driver && copy_) driver->cuGraphDestroy(copy_);
}

CUresult AttendedGraph::take(CUgraph graph, std::string& refusal) {
  const auto driver = driver_.lock();
  if (!driver) return CUDA_ERROR_DEINITIALIZED;
  places_seen_ = parts_.places_changed();
  if (copy_) driver->cuGraphDestroy(copy_);
  if (driver->cuGraphClone(&copy_, graph) != CUDA_SUCCESS) copy_ = nullptr;  // conditional nodes cannot be copied
  if (copy_) names_.take(*driver, graph, copy_);
  keep_disabled();
  return make_plan(driver, copy_ ? copy_ : graph, refusal) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

// An update leaves disabled what was (CUDA Programming Guide, Individual Node Enable). Which nodes of the new graph
// these are may come to be known with another update.
void AttendedGraph::keep_disabled() {
  for (auto& [name, copy] : disabled_) copy = names_.copy_of(name);
}

std::set<CUgraphNode> AttendedGraph::disabled() const {
  std::set<CUgraphNode> copies;
  for (const auto& [name, copy] : disabled_)
    if (copy) copies.insert(copy);
  return copies;
}

bool AttendedGraph::make_plan(const std::shared_ptr<DriverTable>& driver, CUgraph graph, std::string& refusal) {
  plan_ = GraphPlan::make(driver, parts_, graph, whole_, flags_, disabled(), refusal);
  const auto unknown = [](const auto& node) { return !node.second; };
  if (plan_ && plan_->has_parts && std::any_of(disabled_.begin(), disabled_.end(), unknown)) {
    refusal = "a graph whose nodes were made in another order, while nodes of the executable graph are disabled";
    plan_ = nullptr;
  }
  plan_changed_ = false;
  std::erase_if(unchanged_, [](const auto& plan) { return plan.expired(); });
  unchanged_.push_back(plan_);
  return plan_ != nullptr;
}

std::shared_ptr<GraphPlan> AttendedGraph::plan(std::string& refusal) {
  const auto driver = driver_.lock();
  const std::uint64_t places = parts_.places_changed();
  if (!copy_ && plan_ && places > 0) {
    const auto moved = [&](std::uint64_t part) { return parts_.place(part).has_value(); };
    for (const GraphPlan::Step& step : plan_->steps) {
      if (std::none_of(step.reads.begin(), step.reads.end(), moved) &&
          std::none_of(step.writes.begin(), step.writes.end(), [&](const auto& write) { return moved(write.part); }))
        continue;
      refusal = moved_with_conditions;
      return nullptr;
    }
  }
  if ((plan_changed_ || places != places_seen_) && copy_ && driver) {
    places_seen_ = places;
    make_plan(driver, copy_, refusal);
  }
  if (!plan_ && refusal.empty()) refusal = "a graph that was changed into one that cannot be cut";
  return plan_;
}

// Launches have the plan until they are over. Their own executable graph holds the parts too, until their bytes have
// been delivered.
CUresult AttendedGraph::before_change() {
  if (!copy_) return CUDA_SUCCESS;
  for (const auto& weak : unchanged_) {
    const auto plan = weak.lock();
    const long idle = plan == plan_ ? 2 : 1;  // this one, and plan_
    if (!plan || !plan->has_parts || plan.use_count() == idle) continue;
    if (const CUresult bad = plan->leave(whole_, copy_, flags_, disabled()); bad != CUDA_SUCCESS) return bad;
  }
  unchanged_ = {plan_};
  return CUDA_SUCCESS;
}

CUgraphNode AttendedGraph::copy_of(CUgraphNode node) {
  const auto driver = driver_.lock();
  CUgraphNode copy{};
  if (!driver || !copy_) return nullptr;
  return driver->cuGraphNodeFindInClone(&copy, node, copy_) == CUDA_SUCCESS ? copy : names_.copy_of(node);
}

void AttendedGraph::set_enabled(CUgraphNode node, CUgraphNode copy, bool enabled) {
  const auto is = [&](const auto& disabled) { return disabled.first == node || (copy && disabled.second == copy); };
  if (enabled) std::erase_if(disabled_, is);
  else disabled_[node] = copy;
  plan_changed_ = true;
}

}  // namespace fargpu::server
