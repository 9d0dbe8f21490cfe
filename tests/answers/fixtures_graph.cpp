// Graphs and their nodes.

#include "fixtures.h"
#include <algorithm>
#include <iterator>
#include <utility>

namespace answers {

namespace {

template <class T>
T kernel_params(World& w) {
  T p{};
  p.func = lasting_function();
  p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
  p.kernelParams = kernel_arguments(w);
  return p;
}
template <class T>
T memset_params(World& w) {
  T p{};
  p.dst = w.get<CUdeviceptr>("memory");
  p.value = 3;
  p.elementSize = 4;
  p.width = 8;
  p.height = 1;
  return p;
}
CUDA_BATCH_MEM_OP_NODE_PARAMS batch_params(World& w) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS p{};
  p.ctx = primary_context();
  p.count = 1;
  p.paramArray = w.list<CUstreamBatchMemOpParams>({write_value(w)});
  return p;
}
CUDA_MEM_ALLOC_NODE_PARAMS alloc_params(World& w) {
  CUDA_MEM_ALLOC_NODE_PARAMS p{};
  p.poolProps = pool_of(CU_MEM_LOCATION_TYPE_DEVICE);
  p.accessDescs = w.list<CUmemAccessDesc>({access_of_device()});
  p.accessDescCount = 1;
  p.bytesize = 4096;
  return p;
}

struct Node {
  const char* name;
  CUgraphNodeType type;
  void (*fill)(World&, CUgraphNodeParams&);
};
const Node nodes[] = {
    {"kernel", CU_GRAPH_NODE_TYPE_KERNEL,
     [](World& w, CUgraphNodeParams& p) {
       const auto k = kernel_params<CUDA_KERNEL_NODE_PARAMS>(w);
       p.kernel.func = k.func;
       p.kernel.gridDimX = p.kernel.gridDimY = p.kernel.gridDimZ = 1;
       p.kernel.blockDimX = p.kernel.blockDimY = p.kernel.blockDimZ = 1;
       p.kernel.kernelParams = k.kernelParams;
       p.kernel.ctx = primary_context();
     }},
    {"memcpy", CU_GRAPH_NODE_TYPE_MEMCPY,
     [](World& w, CUgraphNodeParams& p) {
       p.memcpy.copyCtx = primary_context();
       p.memcpy.copyParams = copy_between(w);
     }},
    {"memset", CU_GRAPH_NODE_TYPE_MEMSET,
     [](World& w, CUgraphNodeParams& p) {
       const auto m = memset_params<CUDA_MEMSET_NODE_PARAMS>(w);
       p.memset.dst = m.dst;
       p.memset.value = m.value;
       p.memset.elementSize = m.elementSize;
       p.memset.width = m.width;
       p.memset.height = m.height;
       p.memset.ctx = primary_context();
     }},
    {"host", CU_GRAPH_NODE_TYPE_HOST, [](World&, CUgraphNodeParams& p) { p.host.fn = nothing_of_host; }},
    {"child", CU_GRAPH_NODE_TYPE_GRAPH,
     [](World& w, CUgraphNodeParams& p) { p.graph.graph = w.get<CUgraph>("graph2"); }},
    {"empty", CU_GRAPH_NODE_TYPE_EMPTY, [](World&, CUgraphNodeParams&) {}},
    {"record", CU_GRAPH_NODE_TYPE_EVENT_RECORD,
     [](World& w, CUgraphNodeParams& p) { p.eventRecord.event = w.get<CUevent>("event"); }},
    {"wait", CU_GRAPH_NODE_TYPE_WAIT_EVENT,
     [](World& w, CUgraphNodeParams& p) { p.eventWait.event = w.get<CUevent>("event"); }},
    {"alloc", CU_GRAPH_NODE_TYPE_MEM_ALLOC,
     [](World& w, CUgraphNodeParams& p) {
       const auto a = alloc_params(w);
       p.alloc.poolProps = a.poolProps;
       p.alloc.accessDescs = a.accessDescs;
       p.alloc.accessDescCount = a.accessDescCount;
       p.alloc.bytesize = a.bytesize;
     }},
    {"batch", CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
     [](World& w, CUgraphNodeParams& p) {
       const auto b = batch_params(w);
       p.memOp.ctx = b.ctx;
       p.memOp.count = b.count;
       p.memOp.paramArray = b.paramArray;
     }},
    {"conditional", CU_GRAPH_NODE_TYPE_CONDITIONAL,
     [](World& w, CUgraphNodeParams& p) {
       MUST(cuGraphConditionalHandleCreate(&p.conditional.handle, w.get<CUgraph>("graph"), primary_context(), 0, 0));
       p.conditional.type = CU_GRAPH_COND_TYPE_IF;
       p.conditional.size = 1;
       p.conditional.ctx = primary_context();
     }},
};
CUgraphNodeParams* params_of_node(World& w, const Node& node) {
  auto* p = w.zeroed<CUgraphNodeParams>();
  p->type = node.type;
  node.fill(w, *p);
  return p;
}

CUgraph empty_graph(World& w) {
  CUgraph made;
  MUST(cuGraphCreate(&made, 0));
  w.at_end([made] { (void)cuGraphDestroy(made); });
  return made;
}
CUgraphNode empty_node(CUgraph to) {
  CUgraphNode made;
  MUST(cuGraphAddEmptyNode(&made, to, nullptr, 0));
  return made;
}
Slot instantiated(World& w, CUgraph graph) {
  CUgraphExec made;
  MUST(cuGraphInstantiate(&made, graph, 0));
  w.at_end([made] { (void)cuGraphExecDestroy(made); });
  return slot_of(made);
}
/// A graph of one node of each kind is "graph.KIND", its node "node.KIND", what is made of it "exec.KIND".
template <std::size_t index>
Slot graph_of_node(World& w) {
  return slot_of(empty_graph(w));
}
template <std::size_t index>
Slot node_in_graph(World& w) {
  const std::string kind = nodes[index].name;
  CUgraphNode made;
  MUST(cuGraphAddNode(&made, w.get<CUgraph>("graph." + kind), nullptr, nullptr, 0, params_of_node(w, nodes[index])));
  return slot_of(made);
}
template <std::size_t index>
Slot exec_of_graph(World& w) {
  const std::string kind = nodes[index].name;
  w.get<CUgraphNode>("node." + kind);
  return instantiated(w, w.get<CUgraph>("graph." + kind));
}
template <std::size_t index>
Slot node_params(World& w) {
  return slot_of(params_of_node(w, nodes[index]));
}

template <std::size_t... index>
void add_nodes(Makers& makers, std::index_sequence<index...>) {
  (makers.insert({{std::string("graph.") + nodes[index].name, &graph_of_node<index>},
                  {std::string("node.") + nodes[index].name, &node_in_graph<index>},
                  {std::string("exec.") + nodes[index].name, &exec_of_graph<index>},
                  {std::string("node_params.") + nodes[index].name, &node_params<index>}}),
   ...);
}

}  // namespace

void add_graphs(Makers& makers) {
  makers.insert({
      {"graph", [](World& w) { return slot_of(empty_graph(w)); }},
      {"graph2",
       [](World& w) {
         const CUgraph made = empty_graph(w);
         w.name(reinterpret_cast<std::uint64_t>(empty_node(made)), "node_of_graph2");
         return slot_of(made);
       }},
      {"node", [](World& w) { return slot_of(empty_node(w.get<CUgraph>("graph"))); }},
      {"node2", [](World& w) { return slot_of(empty_node(w.get<CUgraph>("graph"))); }},
      {"node_list", [](World& w) { return slot_of(w.list<CUgraphNode>({w.get<CUgraphNode>("node")})); }},
      {"node_list2", [](World& w) { return slot_of(w.list<CUgraphNode>({w.get<CUgraphNode>("node2")})); }},
      {"linked_graph",
       [](World& w) {
         const CUgraph made = empty_graph(w);
         const CUgraphNode first = empty_node(made);
         CUgraphNode second;
         MUST(cuGraphAddEmptyNode(&second, made, &first, 1));
         w.name(reinterpret_cast<std::uint64_t>(first), "linked_node");
         w.name(reinterpret_cast<std::uint64_t>(second), "linked_node2");
         return slot_of(made);
       }},
      {"linked_nodes",
       [](World& w) {
         // The one without dependencies first, whatever order the driver has.
         auto* found = w.list<CUgraphNode>({nullptr, nullptr});
         std::size_t count = 2, roots = 1;
         CUgraphNode root;
         MUST(cuGraphGetNodes(w.get<CUgraph>("linked_graph"), found, &count));
         MUST(cuGraphGetRootNodes(w.get<CUgraph>("linked_graph"), &root, &roots));
         if (found[0] != root) std::swap(found[0], found[1]);
         return slot_of(found);
       }},
      {"linked_node", [](World& w) { return slot_of(w.get<CUgraphNode*>("linked_nodes")[0]); }},
      {"linked_node2", [](World& w) { return slot_of(w.get<CUgraphNode*>("linked_nodes")[1]); }},
      {"linked_list", [](World& w) { return slot_of(w.list({w.get<CUgraphNode*>("linked_nodes")[0]})); }},
      {"linked_list2", [](World& w) { return slot_of(w.list({w.get<CUgraphNode*>("linked_nodes")[1]})); }},
      {"clone",
       [](World& w) {
         w.get<CUgraphNode>("node");
         CUgraph made;
         MUST(cuGraphClone(&made, w.get<CUgraph>("graph")));
         w.at_end([made] { (void)cuGraphDestroy(made); });
         return slot_of(made);
       }},
      {"exec",
       [](World& w) {
         w.get<CUgraphNode>("node");
         return instantiated(w, w.get<CUgraph>("graph"));
       }},
      {"node.kernel2",
       [](World& w) {
         CUgraphNode made;
         MUST(cuGraphAddNode(&made, w.get<CUgraph>("graph.kernel"), nullptr, nullptr, 0, params_of_node(w, nodes[0])));
         return slot_of(made);
       }},
      {"alloc_params", [](World& w) { return pointer_to(w, alloc_params(w)); }},
      {"alloc_node_list", [](World& w) { return slot_of(w.list<CUgraphNode>({w.get<CUgraphNode>("node.alloc")})); }},
      {"graph_memory",
       [](World& w) {
         CUDA_MEM_ALLOC_NODE_PARAMS p{};
         MUST(cuGraphMemAllocNodeGetParams(w.get<CUgraphNode>("node.alloc"), &p));
         return slot_of(p.dptr);
       }},
      {"node.free",
       [](World& w) {
         const CUgraphNode after = w.get<CUgraphNode>("node.alloc");
         CUgraphNode made;
         MUST(cuGraphAddMemFreeNode(&made, w.get<CUgraph>("graph.alloc"), &after, 1,
                                    w.get<CUdeviceptr>("graph_memory")));
         return slot_of(made);
       }},
      {"kernel_params_v1", [](World& w) { return pointer_to(w, kernel_params<CUDA_KERNEL_NODE_PARAMS_v1>(w)); }},
      {"kernel_params_v2", [](World& w) { return pointer_to(w, kernel_params<CUDA_KERNEL_NODE_PARAMS>(w)); }},
      {"memset_params", [](World& w) { return pointer_to(w, memset_params<CUDA_MEMSET_NODE_PARAMS>(w)); }},
      {"host_params",
       [](World& w) {
         CUDA_HOST_NODE_PARAMS p{};
         p.fn = nothing_of_host;
         return pointer_to(w, p);
       }},
      {"batch_params", [](World& w) { return pointer_to(w, batch_params(w)); }},
      {"instantiate_params", [](World& w) { return pointer_to(w, CUDA_GRAPH_INSTANTIATE_PARAMS{}); }},
      {"user_object",
       [](World& w) {
         CUuserObject made;
         MUST(cuUserObjectCreate(&made, nullptr, nothing_of_host, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
         w.at_end([made] { (void)cuUserObjectRelease(made, 1); });
         return slot_of(made);
       }},
      {"graph_of_object",
       [](World& w) {
         const CUgraph made = empty_graph(w);
         MUST(cuGraphRetainUserObject(made, w.get<CUuserObject>("user_object"), 1, 0));
         return slot_of(made);
       }},
  });
  add_nodes(makers, std::make_index_sequence<std::size(nodes)>{});
}

}  // namespace answers
