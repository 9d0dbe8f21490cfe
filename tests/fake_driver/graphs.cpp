// What the fake driver does with graphs: it keeps nodes and edges, and runs a launch at once, each node behind those
// before it.

#include "graphs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace fargpu::fake {

struct UserObject {
  CUhostFn destroy = nullptr;
  void* object = nullptr;
  unsigned references = 0;
  unsigned callers = 0;  // of these: not of graphs
};

namespace {

void drop(UserObject* object, unsigned count) {
  object->references -= count;
  if (object->references > 0) return;
  objects().erase(object);
  object->destroy(object->object);
  delete object;
}

// What a graph holds goes; the graph itself is its owner's.
void clear(Graph& graph) {
  objects().erase(&graph);
  for (const auto& node : graph.nodes) {
    objects().erase(node.get());
    for (const auto& inner : node->graphs) clear(*inner);
  }
  for (const auto& [object, count] : std::exchange(graph.references, {})) drop(object, count);
}

Node* add(Graph& graph, CUgraphNodeType type) {
  auto node = std::make_unique<Node>();
  node->type = type;
  node->graph = &graph;
  enlist(node.get());
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().get();
}

void copy_into(Graph& to, const Graph& from) {
  std::map<const Node*, Node*> copies;
  for (const auto& node : from.nodes) {
    Node* const copy = add(to, node->type);
    copies[node.get()] = copy;
    copy->origin = node.get();
    copy->function = node->function;
    copy->as_kernel = node->as_kernel;
    copy->launch = node->launch;
    copy->copy = node->copy;
    copy->memset = node->memset;
    copy->host = node->host;
    copy->event = node->event;
    copy->operations = node->operations;
    copy->condition = node->condition;
    copy->attributes = node->attributes;
    for (const auto& inner : node->graphs) {
      copy->graphs.emplace_back(make_graph());
      copy_into(*copy->graphs.back(), *inner);
    }
  }
  for (const auto& [before, after] : from.edges) to.edges.emplace_back(copies[before], copies[after]);
  for (const auto& [object, count] : from.references) {
    to.references[object] += count;
    object->references += count;
  }
}

Node* find_copy(Graph& graph, const Node* origin) {
  for (const auto& node : graph.nodes) {
    if (node->origin == origin) return node.get();
    for (const auto& inner : node->graphs)
      if (Node* const found = find_copy(*inner, origin)) return found;
  }
  return nullptr;
}

CUresult set(Node& node, const CUgraphNodeParams& params) {
  if (params.type != node.type) return CUDA_ERROR_INVALID_VALUE;
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto& p = params.kernel;
      const unsigned grid[] = {p.gridDimX, p.gridDimY, p.gridDimZ}, block[] = {p.blockDimX, p.blockDimY, p.blockDimZ};
      node.as_kernel = !p.func;
      node.function = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
      return make_launch(node.function, grid, block, p.sharedMemBytes, p.kernelParams, node.launch);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: node.copy = params.memcpy.copyParams; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET: node.memset = params.memset; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST: node.host = {params.host.fn, params.host.userData}; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: node.event = params.eventRecord.event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: node.event = params.eventWait.event; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      node.operations.assign(params.memOp.paramArray, params.memOp.paramArray + params.memOp.count);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::vector<Node*> in_order(const Graph& graph) {
  std::map<Node*, std::size_t> open;
  for (const auto& edge : graph.edges) ++open[edge.second];
  std::vector<Node*> order;
  for (const auto& node : graph.nodes)
    if (!open.contains(node.get())) order.push_back(node.get());
  for (std::size_t i = 0; i < order.size(); ++i)
    for (const auto& [before, after] : graph.edges)
      if (before == order[i] && --open[after] == 0) order.push_back(after);
  return order;
}

void run(const Graph& graph) {
  for (Node* node : in_order(graph)) {
    if (!node->enabled) continue;
    switch (node->type) {
      case CU_GRAPH_NODE_TYPE_KERNEL: run_launch(node->launch); break;
      case CU_GRAPH_NODE_TYPE_MEMCPY: run_copy(node->copy); break;
      case CU_GRAPH_NODE_TYPE_MEMSET: run_memset(node->memset); break;
      case CU_GRAPH_NODE_TYPE_HOST: node->host.fn(node->host.userData); break;
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD: record_event(node->event); break;
      case CU_GRAPH_NODE_TYPE_GRAPH: run(*node->graphs[0]); break;
      case CU_GRAPH_NODE_TYPE_CONDITIONAL:  // the condition's value is its default, in the lower half of the handle
        if (static_cast<std::uint32_t>(node->condition) != 0) run(*node->graphs[0]);
        break;
      case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: run_memory_operations(node->operations); break;
      default: break;
    }
  }
}

bool alike(const Graph& a, const Graph& b, CUgraphExecUpdateResultInfo& info) {
  info = {};
  info.result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (a.nodes.size() != b.nodes.size() || a.edges.size() != b.edges.size()) return false;
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    if (a.nodes[i]->type == b.nodes[i]->type) continue;
    info.result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    info.errorNode = reinterpret_cast<CUgraphNode>(b.nodes[i].get());
    return false;
  }
  info.result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return true;
}

template <class T>
CUresult give_list(const std::vector<T>& found, T* out, std::size_t* count) {
  if (!out) {
    *count = found.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < found.size() ? found[i] : T{};
  *count = std::min(*count, found.size());
  return CUDA_SUCCESS;
}

CUgraphNode handle_of(Node* node) { return reinterpret_cast<CUgraphNode>(node); }

template <class Params>
Node* node_of(CUgraphNode handle, CUgraphNodeType type, Params* out) {
  Node* const node = live<Node>(handle);
  return node && out && node->type == type ? node : nullptr;
}

}  // namespace

void run_memory_operations(const std::vector<CUstreamBatchMemOpParams>& operations) {
  for (const CUstreamBatchMemOpParams& operation : operations) {
    const bool wide = operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!wide && operation.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32) continue;
    if (std::byte* const to = translate(operation.writeValue.address, wide ? 8 : 4))
      std::memcpy(to, &operation.writeValue.value64, wide ? 8 : 4);
  }
}

Graph* make_graph() {
  auto* const graph = new Graph;
  enlist(graph);
  return graph;
}

Node* capture_node(CUstream stream, CUgraphNodeType type) {
  Graph** const capture = capture_of(stream);
  if (!capture || !*capture) return nullptr;
  Graph& graph = **capture;
  Node* const node = add(graph, type);
  if (graph.captured) graph.edges.emplace_back(graph.captured, node);
  graph.captured = node;
  return node;
}

CUresult copy_or_capture(const CUDA_MEMCPY3D& copy, CUstream stream) {
  if (!stream_lives(stream)) return CUDA_ERROR_INVALID_HANDLE;
  Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_MEMCPY);
  if (!node) return run_copy(copy);
  node->copy = copy;
  return CUDA_SUCCESS;
}

namespace {
int captures = 0;
bool broken = false;
}  // namespace

void break_captures() { broken = captures > 0; }

namespace behaviour {

// Capture.
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  const Lock lock(mutex());
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;  // fargpu promises this
  Graph** const capture = capture_of(stream);
  if (!capture || *capture) return CUDA_ERROR_ILLEGAL_STATE;
  ++captures;
  *capture = make_graph();
  return CUDA_SUCCESS;
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode*, const CUgraphEdgeData*,
                                     std::size_t, CUstreamCaptureMode) {
  const Lock lock(mutex());
  Graph** const capture = capture_of(stream);
  if (!capture || *capture || !live<Graph>(graph)) return CUDA_ERROR_ILLEGAL_STATE;
  ++captures;
  *capture = live<Graph>(graph);
  return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  const Lock lock(mutex());
  Graph** const capture = capture_of(stream);
  if (!capture || !*capture) return CUDA_ERROR_ILLEGAL_STATE;
  --captures;
  *graph = reinterpret_cast<CUgraph>(*capture);
  (*capture)->captured = nullptr;
  *capture = nullptr;
  if (std::exchange(broken, false)) {
    *graph = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const Lock lock(mutex());
  Graph** const capture = capture_of(stream);
  *status = capture && *capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
                                   std::size_t* count) {
  const Lock lock(mutex());
  static CUgraphNode last;
  Graph** const capture = capture_of(stream);
  if (!capture) return CUDA_ERROR_INVALID_HANDLE;
  *status = *capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id) *id = 7;
  if (graph) *graph = reinterpret_cast<CUgraph>(*capture);
  last = *capture ? handle_of((*capture)->captured) : nullptr;
  if (count) *count = last ? 1 : 0;
  if (dependencies) *dependencies = &last;
  // Work behind a launch with attributes has an edge of another kind.
  static const CUgraphEdgeData programmatic{.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                            .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
  if (edges) *edges = last && (*capture)->captured->launch.attributes > 0 ? &programmatic : nullptr;
  return CUDA_SUCCESS;
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData*,
                                              std::size_t count, unsigned flags) {
  const Lock lock(mutex());
  Graph** const capture = capture_of(stream);
  if (!capture || !*capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (count != 1 || flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES || !live<Node>(dependencies[0]))
    return CUDA_ERROR_NOT_SUPPORTED;
  (*capture)->captured = live<Node>(dependencies[0]);
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  const Lock lock(mutex());
  Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_HOST);
  if (!node) return CUDA_ERROR_NOT_SUPPORTED;  // fargpu runs these in the client
  node->host = {function, argument};
  return CUDA_SUCCESS;
}

// Graphs.
CUresult cuGraphCreate(CUgraph* graph, unsigned) {
  const Lock lock(mutex());
  *graph = reinterpret_cast<CUgraph>(make_graph());
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  clear(*g);
  delete g;
  return CUDA_SUCCESS;
}
CUresult cuGraphClone(CUgraph* out, CUgraph graph) {
  const Lock lock(mutex());
  const Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : g->nodes)
    if (node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
  Graph* const copy = make_graph();
  copy_into(*copy, *g);
  *out = reinterpret_cast<CUgraph>(copy);
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode node, CUgraph clone) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(clone);
  if (!g || !live<Node>(node)) return CUDA_ERROR_INVALID_VALUE;
  Node* const found = find_copy(*g, live<Node>(node));
  *out = handle_of(found);
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* before, const CUgraphEdgeData*,
                           std::size_t count, CUgraphNodeParams* params) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i)
    if (!live<Node>(before[i])) return CUDA_ERROR_INVALID_VALUE;
  Node* const node = add(*g, params->type);
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    node->graphs.emplace_back(make_graph());
    copy_into(*node->graphs[0], *live<Graph>(params->graph.graph));
  } else if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    node->condition = params->conditional.handle;
    for (unsigned i = 0; i < params->conditional.size; ++i) {
      node->graphs.emplace_back(make_graph());
      node->graph_handles.push_back(reinterpret_cast<CUgraph>(node->graphs.back().get()));
    }
    params->conditional.phGraph_out = node->graph_handles.data();
  } else if (const CUresult bad = set(*node, *params); bad != CUDA_SUCCESS) {
    objects().erase(node);
    g->nodes.pop_back();
    return bad;
  }
  for (std::size_t i = 0; i < count; ++i) g->edges.emplace_back(live<Node>(before[i]), node);
  *out = handle_of(node);
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroyNode(CUgraphNode handle) {
  const Lock lock(mutex());
  Node* const node = live<Node>(handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  Graph& graph = *node->graph;
  std::erase_if(graph.edges, [&](const auto& edge) { return edge.first == node || edge.second == node; });
  for (const auto& inner : node->graphs) clear(*inner);
  objects().erase(node);
  std::erase_if(graph.nodes, [&](const auto& one) { return one.get() == node; });
  return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> found;
  for (const auto& node : g->nodes) found.push_back(handle_of(node.get()));
  return give_list(found, nodes, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                            std::size_t* count) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> befores, afters;
  for (const auto& [before, after] : g->edges) {
    befores.push_back(handle_of(before));
    afters.push_back(handle_of(after));
  }
  std::size_t room = *count;
  give_list(afters, to, &room);
  if (data) std::memset(data, 0, *count * sizeof(*data));
  return give_list(befores, from, count);
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  const Lock lock(mutex());
  const Node* const n = live<Node>(node);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *type = n->type;
  return CUDA_SUCCESS;
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_GRAPH, graph);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *graph = reinterpret_cast<CUgraph>(n->graphs[0].get());
  return CUDA_SUCCESS;
}
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph, CUcontext, unsigned value,
                                        unsigned) {
  const Lock lock(mutex());
  static std::uint32_t next = 1;
  if (!live<Graph>(graph)) return CUDA_ERROR_INVALID_VALUE;
  *handle = std::uint64_t{next++} << 32 | value;
  return CUDA_SUCCESS;
}
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned) {
  const Lock lock(mutex());
  const Graph* const g = live<Graph>(graph);
  std::FILE* const file = g ? std::fopen(path, "w") : nullptr;
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  std::fputs("digraph dot {\n", file);
  for (const auto& node : g->nodes)
    std::fprintf(file, "\"%p\" [label=\"%d\"];\n", static_cast<void*>(node.get()), node->type);
  std::fputs("}\n", file);
  std::fclose(file);
  return CUDA_SUCCESS;
}

// Parameters.
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  const Lock lock(mutex());
  Node* const n = live<Node>(node);
  return n ? set(*n, *params) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(exec);
  Node* const copy = g ? find_copy(*g, live<Node>(node)) : nullptr;
  return copy ? set(*copy, *params) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out) {
  const Lock lock(mutex());
  Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_KERNEL, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  n->arguments.clear();
  for (const auto& [offset, bytes] : parameters_of(n->function))
    n->arguments.push_back(n->launch.parameters.data() + offset);
  *out = {};
  if (n->as_kernel) out->kern = reinterpret_cast<CUkernel>(n->function);
  else out->func = n->function;
  out->gridDimX = n->launch.grid[0];
  out->gridDimY = n->launch.grid[1];
  out->gridDimZ = n->launch.grid[2];
  out->blockDimX = n->launch.block[0];
  out->blockDimY = n->launch.block[1];
  out->blockDimZ = n->launch.block[2];
  out->sharedMemBytes = n->launch.shared_bytes;
  out->kernelParams = n->arguments.data();
  return CUDA_SUCCESS;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_MEMCPY, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = n->copy;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  const Lock lock(mutex());
  Node* const n = live<Node>(node);
  if (!n || n->type != CU_GRAPH_NODE_TYPE_MEMCPY || !params) return CUDA_ERROR_INVALID_VALUE;
  n->copy = *params;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_MEMSET, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = {n->memset.dst, n->memset.pitch, n->memset.value, n->memset.elementSize, n->memset.width, n->memset.height};
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  const Lock lock(mutex());
  Node* const n = live<Node>(node);
  if (!n || n->type != CU_GRAPH_NODE_TYPE_MEMSET || !params) return CUDA_ERROR_INVALID_VALUE;
  n->memset = {params->dst,   params->pitch,  params->value, params->elementSize,
               params->width, params->height, n->memset.ctx};
  return CUDA_SUCCESS;
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_HOST, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = n->host;
  return CUDA_SUCCESS;
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  const Lock lock(mutex());
  Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = {nullptr, static_cast<unsigned>(n->operations.size()), n->operations.data(), 0};
  return CUDA_SUCCESS;
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* out) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = n->event;
  return CUDA_SUCCESS;
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* out) {
  const Lock lock(mutex());
  const Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, out);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *out = n->event;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value) {
  const Lock lock(mutex());
  Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_KERNEL, value);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  n->attributes[id] = *value;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id, CUkernelNodeAttrValue* value) {
  const Lock lock(mutex());
  Node* const n = node_of(node, CU_GRAPH_NODE_TYPE_KERNEL, value);
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  *value = n->attributes[id];
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  const Lock lock(mutex());
  if (!live<Node>(to) || !live<Node>(from)) return CUDA_ERROR_INVALID_VALUE;
  live<Node>(to)->attributes = live<Node>(from)->attributes;
  return CUDA_SUCCESS;
}

// Executable graphs.
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  const Lock lock(mutex());
  const Graph* const g = live<Graph>(graph);
  if (!g) return CUDA_ERROR_INVALID_VALUE;
  if (in_order(*g).size() != g->nodes.size()) {
    params->result_out = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    params->hErrNode_out = handle_of(g->nodes[0].get());
    return CUDA_ERROR_INVALID_VALUE;
  }
  Graph* const copy = make_graph();
  copy_into(*copy, *g);
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  *exec = reinterpret_cast<CUgraphExec>(copy);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  const Lock lock(mutex());
  Graph* const old = live<Graph>(exec);
  const Graph* const g = live<Graph>(graph);
  if (!old || !g) return CUDA_ERROR_INVALID_VALUE;
  if (!alike(*old, *g, *info)) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  clear(*old);
  *old = Graph();
  enlist(old);
  copy_into(*old, *g);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  *flags = 0;
  return live<Graph>(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(exec);
  Node* const copy = g ? find_copy(*g, live<Node>(node)) : nullptr;
  if (!copy || copy->type > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
  copy->enabled = enabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned* enabled) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(exec);
  const Node* const copy = g ? find_copy(*g, live<Node>(node)) : nullptr;
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  *enabled = copy->enabled;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  const Lock lock(mutex());
  return live<Graph>(exec) && live<Node>(node) && live<Graph>(child) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream) {
  return live<Graph>(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  const Lock lock(mutex());
  const Graph* const g = live<Graph>(exec);
  if (!g || !capture_of(stream)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  if (Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_GRAPH)) {
    node->graphs.emplace_back(make_graph());
    copy_into(*node->graphs[0], *g);
    return CUDA_SUCCESS;
  }
  run(*g);
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) { return behaviour::cuGraphDestroy(reinterpret_cast<CUgraph>(exec)); }

// User objects.
CUresult cuUserObjectCreate(CUuserObject* out, void* object, CUhostFn destroy, unsigned references, unsigned flags) {
  const Lock lock(mutex());
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0) return CUDA_ERROR_INVALID_VALUE;
  auto* const made = new UserObject{destroy, object, references, references};
  enlist(made);
  *out = reinterpret_cast<CUuserObject>(made);
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  const Lock lock(mutex());
  UserObject* const o = live<UserObject>(object);
  if (!o || count == 0 || count > ~0u - o->references) return CUDA_ERROR_INVALID_VALUE;
  o->references += count;
  o->callers += count;
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  const Lock lock(mutex());
  UserObject* const o = live<UserObject>(object);
  if (!o || count == 0 || count > o->callers) return CUDA_ERROR_INVALID_VALUE;
  o->callers -= count;
  drop(o, count);
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  UserObject* const o = live<UserObject>(object);
  if (!g || !o || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  const bool moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
  if (moved ? count > o->callers : count > ~0u - o->references) return CUDA_ERROR_INVALID_VALUE;
  g->references[o] += count;
  if (moved) o->callers -= count;
  else o->references += count;
  return CUDA_SUCCESS;
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
  const Lock lock(mutex());
  Graph* const g = live<Graph>(graph);
  UserObject* const o = live<UserObject>(object);
  if (!g || !o || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto held = g->references.find(o);
  if (held == g->references.end() || held->second < count) return CUDA_ERROR_INVALID_VALUE;
  if ((held->second -= count) == 0) g->references.erase(held);
  drop(o, count);
  return CUDA_SUCCESS;
}

}  // namespace behaviour
}  // namespace fargpu::fake
