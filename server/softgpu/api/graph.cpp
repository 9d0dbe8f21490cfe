#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>
#include <cstring>
#include <fstream>

#include "driver/copy.h"
#include "driver/graph.h"
#include "driver/graph_exec.h"
#include "driver/launch_operation.h"
#include "driver/stream.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

/// Entry points of this file work under the lock of all graphs.
template <class Body>
CUresult graph_entry(Body&& body) noexcept {
  return entry([&] {
    std::lock_guard lock(graph_mutex());
    return body();
  });
}

std::shared_ptr<Graph> find_graph(CUgraph handle) {
  return GraphTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
}

std::shared_ptr<GraphExec> find_exec(CUgraphExec handle) {
  return GraphExecTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
}

/// The operation of a node that must be of the given kind.
template <class T>
T& operation_of(CUgraphNode handle, CUgraphNodeType type) {
  GraphNode* node = find_node(handle);
  require(node->type() == type);
  return static_cast<T&>(node->operation());
}

template <class Make>
CUresult add_node(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t dependency_count,
                  Make make) {
  return graph_entry([&] {
    require(result != nullptr);
    auto owner = find_graph(graph);
    std::vector<GraphNode*> nodes = find_nodes(dependencies, dependency_count);
    *result = owner->add(make(), nodes)->handle();
  });
}

// ---- making operations from parameters -----------------------------------------------------------------------------

template <class KernelParameters>
std::unique_ptr<Operation> make_kernel(const KernelParameters* p) {
  require(p != nullptr);
  LaunchShape shape;
  shape.grid = {p->gridDimX, p->gridDimY, p->gridDimZ};
  shape.block = {p->blockDimX, p->blockDimY, p->blockDimZ};
  shape.dynamic_shared_bytes = p->sharedMemBytes;
  CUfunction function = p->func;
  if constexpr (requires { p->kern; })
    if (function == nullptr) function = reinterpret_cast<CUfunction>(p->kern);
  require(function != nullptr);
  return std::make_unique<KernelOperation>(function, shape, p->kernelParams, p->extra);
}

std::unique_ptr<Operation> make_copy(const CUDA_MEMCPY3D* p, CUcontext context) {
  require(p != nullptr);
  auto copy = CopyOperation::from_descriptor(*p);
  copy->check();
  copy->node_context = context;
  return copy;
}

std::unique_ptr<Operation> make_memset(const CUDA_MEMSET_NODE_PARAMS* p, CUcontext context) {
  require(p != nullptr);
  auto memset = std::make_unique<MemsetOperation>(context, *p);
  memset->check();
  return memset;
}

std::unique_ptr<Operation> make_host(const CUDA_HOST_NODE_PARAMS* p) {
  require(p != nullptr && p->fn != nullptr);
  return std::make_unique<HostOperation>(p->fn, p->userData);
}

std::unique_ptr<Operation> make_child(CUgraph handle) {
  return std::make_unique<ChildGraphOperation>(find_graph(handle)->clone());
}

/// A graph cannot become part of itself.
void require_outside(CUgraph owner, CUgraph child) { require(!find_graph(child)->holds(*find_graph(owner))); }

std::unique_ptr<ConditionalOperation> make_conditional(const CUDA_CONDITIONAL_NODE_PARAMS& p) {
  const std::shared_ptr<Condition> condition = find_condition(p.handle);
  require(condition != nullptr);
  if (p.ctx != nullptr)
    require(ContextTable::instance().get(p.ctx, CUDA_ERROR_INVALID_CONTEXT)->home().get() == &condition->context());
  return std::make_unique<ConditionalOperation>(condition, p.type, p.size);
}

std::unique_ptr<Operation> make_event_record(CUevent event) {
  return std::make_unique<EventRecordOperation>(EventTable::instance().get(event));
}

std::unique_ptr<Operation> make_event_wait(CUevent event) {
  return std::make_unique<EventWaitOperation>(EventTable::instance().get(event));
}

std::unique_ptr<Operation> make_memory_ops(const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  require(p != nullptr && p->paramArray != nullptr && p->count != 0);
  return std::make_unique<MemoryOpsOperation>(p->ctx, p->count, p->paramArray, p->flags);
}

std::unique_ptr<Operation> make_free(CUdeviceptr address) {
  require(find_graph_allocation(address) != nullptr);
  return std::make_unique<MemoryFreeOperation>(address);
}

/// The structures of the newer, generic functions hold those of the older ones with new fields.
std::unique_ptr<Operation> make_any(CUgraphNodeParams& p) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return make_kernel(&p.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      require(p.memcpy.flags == 0);
      return make_copy(&p.memcpy.copyParams, p.memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS plain = {p.memset.dst,         p.memset.pitch, p.memset.value,
                                       p.memset.elementSize, p.memset.width, p.memset.height};
      return make_memset(&plain, p.memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS plain = {p.host.fn, p.host.userData};
      return make_host(&plain);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: return make_child(p.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return std::make_unique<EmptyOperation>();
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return make_event_wait(p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return make_event_record(p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS plain = {.poolProps = p.alloc.poolProps,
                                          .accessDescs = p.alloc.accessDescs,
                                          .accessDescCount = p.alloc.accessDescCount,
                                          .bytesize = p.alloc.bytesize,
                                          .dptr = 0};
      auto alloc = std::make_unique<MemoryAllocOperation>(plain);
      p.alloc.dptr = alloc->parameters.dptr;
      return alloc;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return make_free(p.free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      auto conditional = make_conditional(p.conditional);
      p.conditional.phGraph_out = conditional->body_handles();
      return conditional;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS plain = {p.memOp.ctx, p.memOp.count, p.memOp.paramArray, p.memOp.flags};
      return make_memory_ops(&plain);
    }
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: throw Failure(CUDA_ERROR_NOT_SUPPORTED);
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

/// New parameters for a node keep its type.
void replace(CUgraphNode handle, CUgraphNodeType type, std::unique_ptr<Operation> operation) {
  GraphNode* node = find_node(handle);
  require(node->type() == type);
  node->replace(std::move(operation));
}

CUresult replace_in_exec(CUgraphExec exec, CUgraphNode node, const std::function<std::unique_ptr<Operation>()>& make) {
  return graph_entry([&] { find_exec(exec)->replace(*find_node(node), make()); });
}

}  // namespace

// ---- graphs --------------------------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  return graph_entry([&] {
    require(graph != nullptr && flags == 0);
    *graph = GraphTable::instance().add(std::make_shared<Graph>());
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return graph_entry([&] {
    require(!find_graph(handle)->is_child);
    GraphTable::instance().remove(handle);
  });
}

CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  return graph_entry([&] {
    require(clone != nullptr);
    *clone = GraphTable::instance().add(find_graph(original)->clone());
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* node, CUgraphNode original, CUgraph clone) {
  return graph_entry([&] {
    require(node != nullptr);
    *node = find_graph(clone)->find_clone_of(*find_node(original))->handle();
  });
}

// ---- nodes ---------------------------------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return add_node(node, graph, dependencies, count, [&] { return make_kernel(parameters); });
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return add_node(node, graph, dependencies, count, [&] { return make_kernel(parameters); });
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* parameters, CUcontext context) {
  return add_node(node, graph, dependencies, count, [&] { return make_copy(parameters, context); });
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  return add_node(node, graph, dependencies, count, [&] { return make_memset(parameters, context); });
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* parameters) {
  return add_node(node, graph, dependencies, count, [&] { return make_host(parameters); });
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child) {
  return add_node(node, graph, dependencies, count, [&] {
    require_outside(graph, child);
    return make_child(child);
  });
}
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return add_node(node, graph, dependencies, count, [] { return std::make_unique<EmptyOperation>(); });
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUevent event) {
  return add_node(node, graph, dependencies, count, [&] { return make_event_record(event); });
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 CUevent event) {
  return add_node(node, graph, dependencies, count, [&] { return make_event_wait(event); });
}
CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  return add_node(node, graph, dependencies, count, [&] { return make_memory_ops(parameters); });
}
CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return add_node(node, graph, dependencies, count, [&] {
    require(parameters != nullptr);
    auto alloc = std::make_unique<MemoryAllocOperation>(*parameters);
    parameters->dptr = alloc->parameters.dptr;
    return alloc;
  });
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                               CUdeviceptr address) {
  return add_node(node, graph, dependencies, count, [&] { return make_free(address); });
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUgraphNodeParams* parameters) {
  return add_node(node, graph, dependencies, count, [&] {
    require(parameters != nullptr);
    if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH) require_outside(graph, parameters->graph.graph);
    return make_any(*parameters);
  });
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData*,
                           size_t count, CUgraphNodeParams* parameters) {
  return cuGraphAddNode(node, graph, dependencies, count, parameters);
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* handle, CUgraph graph, CUcontext context,
                                        unsigned int default_value, unsigned int flags) {
  return graph_entry([&] {
    require(handle != nullptr && (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) == 0);
    auto owner = find_graph(graph);
    require(context != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    auto home = ContextTable::instance().get(context, CUDA_ERROR_INVALID_CONTEXT)->home();
    owner->conditions.push_back(
        Condition::create(std::move(home), default_value, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0));
    *handle = owner->conditions.back()->handle();
  });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return graph_entry([&] {
    GraphNode* node = find_node(handle);
    node->graph().remove(node);
  });
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  return graph_entry([&] {
    require(type != nullptr);
    *type = find_node(node)->type();
  });
}

// ---- parameters of nodes -------------------------------------------------------------------------------------------

namespace {

template <class KernelParameters>
void describe_kernel(KernelOperation& kernel, KernelParameters* p) {
  require(p != nullptr);
  *p = {};
  p->func = kernel.handle();
  if constexpr (requires { p->kern; })  // by which the CUDA runtime knows its kernels
    for (const auto& known : KernelTable::instance().all())
      if (&known->routine() == &kernel.function()->kernel()) p->kern = known->handle();
  p->gridDimX = kernel.shape().grid.x;
  p->gridDimY = kernel.shape().grid.y;
  p->gridDimZ = kernel.shape().grid.z;
  p->blockDimX = kernel.shape().block.x;
  p->blockDimY = kernel.shape().block.y;
  p->blockDimZ = kernel.shape().block.z;
  p->sharedMemBytes = kernel.shape().dynamic_shared_bytes;
  p->kernelParams = kernel.arguments();
  if constexpr (requires { p->kern; }) p->ctx = kernel.function()->module()->context()->handle();
}

/// A new launch of a node keeps what was set by attributes.
std::unique_ptr<Operation> keep_attributes(std::unique_ptr<Operation> made, const KernelOperation& before) {
  auto& kernel = static_cast<KernelOperation&>(*made);
  kernel.mutable_shape().is_cooperative = before.shape().is_cooperative;
  kernel.mutable_shape().priority = before.shape().priority;
  if (before.shape().is_cluster_given && !kernel.shape().is_cluster_given) {
    kernel.mutable_shape().cluster = before.shape().cluster;
    kernel.mutable_shape().is_cluster_given = true;
  }
  kernel.check();
  return made;
}

template <class KernelParameters>
CUresult set_kernel(CUgraphNode node, const KernelParameters* parameters) {
  return graph_entry([&] {
    auto& before = operation_of<KernelOperation>(node, CU_GRAPH_NODE_TYPE_KERNEL);
    replace(node, CU_GRAPH_NODE_TYPE_KERNEL, keep_attributes(make_kernel(parameters), before));
  });
}

template <class KernelParameters>
CUresult set_exec_kernel(CUgraphExec exec_handle, CUgraphNode node_handle, const KernelParameters* parameters) {
  return graph_entry([&] {
    auto exec = find_exec(exec_handle);
    GraphNode* node = find_node(node_handle);
    auto& before = static_cast<KernelOperation&>(exec->operation_of(*node, CU_GRAPH_NODE_TYPE_KERNEL));
    exec->replace(*node, keep_attributes(make_kernel(parameters), before));
  });
}

}  // namespace

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
  return graph_entry(
      [&] { describe_kernel(operation_of<KernelOperation>(node, CU_GRAPH_NODE_TYPE_KERNEL), parameters); });
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return graph_entry(
      [&] { describe_kernel(operation_of<KernelOperation>(node, CU_GRAPH_NODE_TYPE_KERNEL), parameters); });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return set_kernel(node, parameters);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return set_kernel(node, parameters);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return set_exec_kernel(exec, node, parameters);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return set_exec_kernel(exec, node, parameters);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    *parameters = operation_of<CopyOperation>(node, CU_GRAPH_NODE_TYPE_MEMCPY).descriptor();
  });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* parameters) {
  return graph_entry([&] {
    auto& before = operation_of<CopyOperation>(node, CU_GRAPH_NODE_TYPE_MEMCPY);
    replace(node, CU_GRAPH_NODE_TYPE_MEMCPY, make_copy(parameters, before.node_context));
  });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* parameters,
                                        CUcontext context) {
  return replace_in_exec(exec, node, [&] { return make_copy(parameters, context); });
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    *parameters = operation_of<MemsetOperation>(node, CU_GRAPH_NODE_TYPE_MEMSET).parameters;
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters) {
  return graph_entry([&] {
    auto& before = operation_of<MemsetOperation>(node, CU_GRAPH_NODE_TYPE_MEMSET);
    replace(node, CU_GRAPH_NODE_TYPE_MEMSET, make_memset(parameters, before.node_context));
  });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters,
                                        CUcontext context) {
  return replace_in_exec(exec, node, [&] { return make_memset(parameters, context); });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    auto& host = operation_of<HostOperation>(node, CU_GRAPH_NODE_TYPE_HOST);
    *parameters = {host.function, host.user_data};
  });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* parameters) {
  return graph_entry([&] { replace(node, CU_GRAPH_NODE_TYPE_HOST, make_host(parameters)); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* parameters) {
  return replace_in_exec(exec, node, [&] { return make_host(parameters); });
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  return graph_entry([&] {
    require(graph != nullptr);
    auto child = operation_of<ChildGraphOperation>(node, CU_GRAPH_NODE_TYPE_GRAPH).graph;
    child->is_child = true;
    if (GraphTable::instance().find(child->handle()) == nullptr) GraphTable::instance().add(child);
    *graph = child->handle();
  });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return graph_entry([&] { find_exec(exec)->update_child(*find_node(node), *find_graph(child)); });
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return graph_entry([&] {
    require(event != nullptr);
    *event = reinterpret_cast<CUevent>(
        operation_of<EventRecordOperation>(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD).event.get());
  });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return graph_entry([&] { replace(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, make_event_record(event)); });
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return replace_in_exec(exec, node, [&] { return make_event_record(event); });
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return graph_entry([&] {
    require(event != nullptr);
    *event =
        reinterpret_cast<CUevent>(operation_of<EventWaitOperation>(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT).event.get());
  });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return graph_entry([&] { replace(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, make_event_wait(event)); });
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return replace_in_exec(exec, node, [&] { return make_event_wait(event); });
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    auto& ops = operation_of<MemoryOpsOperation>(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    *parameters = {ops.node_context, static_cast<unsigned>(ops.ops.size()), ops.ops.data(), ops.flags};
  });
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  return graph_entry([&] { replace(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, make_memory_ops(parameters)); });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  return replace_in_exec(exec, node, [&] { return make_memory_ops(parameters); });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    *parameters = operation_of<MemoryAllocOperation>(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC).parameters;
  });
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
  return graph_entry([&] {
    require(address != nullptr);
    *address = operation_of<MemoryFreeOperation>(node, CU_GRAPH_NODE_TYPE_MEM_FREE).address;
  });
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  return graph_entry([&] {
    require(parameters != nullptr);
    require(parameters->type != CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_ERROR_NOT_SUPPORTED);  // its bodies are its own
    replace(node, parameters->type, make_any(*parameters));
  });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* parameters) {
  return replace_in_exec(exec, node, [&] {
    require(parameters != nullptr);
    return make_any(*parameters);
  });
}

// ---- attributes of kernel nodes ------------------------------------------------------------------------------------

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id, CUkernelNodeAttrValue* value) {
  return graph_entry([&] {
    require(value != nullptr);
    auto& kernel = operation_of<KernelOperation>(node, CU_GRAPH_NODE_TYPE_KERNEL);
    *value = {};
    switch (id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: value->cooperative = kernel.shape().is_cooperative; return;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY: value->priority = kernel.shape().priority; return;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (!kernel.shape().is_cluster_given) return;
        value->clusterDim.x = kernel.shape().cluster.x;
        value->clusterDim.y = kernel.shape().cluster.y;
        value->clusterDim.z = kernel.shape().cluster.z;
        return;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value) {
  return graph_entry([&] {
    require(value != nullptr);
    auto& kernel = operation_of<KernelOperation>(node, CU_GRAPH_NODE_TYPE_KERNEL);
    LaunchShape before = kernel.shape();
    LaunchShape& shape = kernel.mutable_shape();
    switch (id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: shape.is_cooperative = value->cooperative != 0; break;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY: shape.priority = value->priority; break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        shape.is_cluster_given = value->clusterDim.x != 0;
        shape.cluster = {value->clusterDim.x, value->clusterDim.y, value->clusterDim.z};
        if (!shape.is_cluster_given) shape.cluster = {};
        break;
      case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
    try {
      kernel.check();
    } catch (const Failure&) {
      shape = before;
      throw;
    }
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return graph_entry([&] {
    auto& target = operation_of<KernelOperation>(to, CU_GRAPH_NODE_TYPE_KERNEL);
    auto& source = operation_of<KernelOperation>(from, CU_GRAPH_NODE_TYPE_KERNEL);
    target.mutable_shape().is_cooperative = source.shape().is_cooperative;
    target.mutable_shape().priority = source.shape().priority;
    target.mutable_shape().cluster = source.shape().cluster;
    target.mutable_shape().is_cluster_given = source.shape().is_cluster_given;
  });
}

// ---- structure -----------------------------------------------------------------------------------------------------

namespace {

/// Gives as many entries as there is room for; with no room, how many there are. Entries beyond
/// those that exist become null.
template <class Write>
void give_list(size_t available, bool wants_entries, size_t* count, Write write) {
  require(count != nullptr);
  if (!wants_entries) {
    *count = available;
    return;
  }
  for (size_t i = 0; i < *count; ++i) write(i, i < available);
  *count = std::min(*count, available);
}

void give_nodes(const std::vector<GraphNode*>& nodes, CUgraphNode* out, size_t* count) {
  give_list(nodes.size(), out != nullptr, count,
            [&](size_t i, bool exists) { out[i] = exists ? nodes[i]->handle() : nullptr; });
}

bool is_plain(const CUgraphEdgeData& data) { return data.from_port == 0 && data.to_port == 0 && data.type == 0; }

/// Functions without edge data refuse edges that have any.
void give_edges(const std::vector<GraphNode::Edge>& edges, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  if (nodes != nullptr && data == nullptr)
    for (const GraphNode::Edge& edge : edges) require(is_plain(edge.data), CUDA_ERROR_LOSSY_QUERY);
  give_list(edges.size(), nodes != nullptr, count, [&](size_t i, bool exists) {
    nodes[i] = exists ? edges[i].node->handle() : nullptr;
    if (data != nullptr) data[i] = exists ? edges[i].data : CUgraphEdgeData{};
  });
}

CUresult get_all_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return graph_entry([&] {
    require((from == nullptr) == (to == nullptr));
    auto graph = find_graph(handle);
    std::vector<std::pair<GraphNode*, GraphNode::Edge>> edges;
    for (const auto& node : graph->nodes())
      for (const GraphNode::Edge& edge : node->dependents()) edges.push_back({node.get(), edge});
    if (from != nullptr && data == nullptr)
      for (const auto& [node, edge] : edges) require(is_plain(edge.data), CUDA_ERROR_LOSSY_QUERY);
    give_list(edges.size(), from != nullptr, count, [&](size_t i, bool exists) {
      from[i] = exists ? edges[i].first->handle() : nullptr;
      to[i] = exists ? edges[i].second.node->handle() : nullptr;
      if (data != nullptr) data[i] = exists ? edges[i].second.data : CUgraphEdgeData{};
    });
  });
}

CUresult add_dependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                          size_t count) {
  return graph_entry([&] {
    auto graph = find_graph(handle);
    auto sources = find_nodes(from, count), targets = find_nodes(to, count);
    for (size_t i = 0; i < count; ++i)
      graph->add_edge(sources[i], targets[i], data != nullptr ? data[i] : CUgraphEdgeData{});
  });
}

CUresult remove_dependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return graph_entry([&] {
    auto graph = find_graph(handle);
    auto sources = find_nodes(from, count), targets = find_nodes(to, count);
    for (size_t i = 0; i < count; ++i) graph->remove_edge(sources[i], targets[i]);
  });
}

}  // namespace

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return graph_entry([&] {
    std::vector<GraphNode*> all;
    for (const auto& node : find_graph(handle)->nodes()) all.push_back(node.get());
    give_nodes(all, nodes, count);
  });
}
CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return graph_entry([&] {
    std::vector<GraphNode*> roots;
    for (const auto& node : find_graph(handle)->nodes())
      if (node->dependencies().empty()) roots.push_back(node.get());
    give_nodes(roots, nodes, count);
  });
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return get_all_edges(graph, from, to, nullptr, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  return get_all_edges(graph, from, to, data, count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return graph_entry([&] { give_edges(find_node(node)->dependencies(), nodes, nullptr, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return graph_entry([&] { give_edges(find_node(node)->dependencies(), nodes, data, count); });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return graph_entry([&] { give_edges(find_node(node)->dependents(), nodes, nullptr, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  return graph_entry([&] { give_edges(find_node(node)->dependents(), nodes, data, count); });
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return add_dependencies(graph, from, to, nullptr, count);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return add_dependencies(graph, from, to, data, count);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return remove_dependencies(graph, from, to, count);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
  return remove_dependencies(graph, from, to, count);
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int) {
  return graph_entry([&] {
    require(path != nullptr);
    auto graph = find_graph(handle);
    std::ofstream file(path);
    require(file.good(), CUDA_ERROR_OPERATING_SYSTEM);
    file << "digraph dot {\n";
    for (const auto& node : graph->nodes())
      file << "  node" << node->id() << " [label=\"type " << node->type() << "\"];\n";
    for (const auto& node : graph->nodes())
      for (const GraphNode::Edge& edge : node->dependents())
        file << "  node" << node->id() << " -> node" << edge.node->id() << ";\n";
    file << "}\n";
  });
}

// ---- executable graphs ---------------------------------------------------------------------------------------------

namespace {

constexpr unsigned long long instantiate_flags_known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                                       CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                                       CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUresult instantiate(CUgraphExec* result, CUgraph graph, unsigned long long flags) {
  return graph_entry([&] {
    require(result != nullptr);
    require(!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH), CUDA_ERROR_NOT_SUPPORTED);
    require((flags & ~instantiate_flags_known) == 0);
    *result = GraphExecTable::instance().add(std::make_shared<GraphExec>(*find_graph(graph), flags));
  });
}

CUresult launch_graph(CUgraphExec exec, CUstream handle, bool per_thread) {
  return entry([&] {
    auto stream = find_stream(handle, per_thread);
    stream->context()->check();
    stream->context()->flush_print();
    refuse_if_captured(*stream);  // a capture takes graphs as child nodes only
    std::lock_guard lock(graph_mutex());
    find_exec(exec)->launch(stream);
  });
}

CUresult upload(CUgraphExec exec, CUstream handle, bool per_thread) {
  return graph_entry([&] {
    find_exec(exec);
    find_stream(handle, per_thread);  // there is nothing to send ahead
  });
}

CUresult instantiate_with_parameters(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = instantiate(exec, graph, parameters->flags);
  parameters->hErrNode_out = nullptr;
  parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult instantiate_with_log(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes != 0) log[0] = '\0';
  return instantiate(exec, graph, 0);
}

}  // namespace

CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return instantiate_with_log(exec, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return instantiate_with_log(exec, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph, flags);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiate_with_parameters(exec, graph, parameters);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiate_with_parameters(exec, graph, parameters);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return graph_entry([&] { require(GraphExecTable::instance().remove(exec) != nullptr); });
}
CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  return graph_entry([&] {
    require(flags != nullptr);
    *flags = find_exec(exec)->flags();
  });
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch_graph(exec, stream, false); }
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return launch_graph(exec, stream, true); }
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return upload(exec, stream, false); }
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return upload(exec, stream, true); }

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
  return graph_entry([&] { find_exec(exec)->set_enabled(*find_node(node), enabled != 0); });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int* enabled) {
  return graph_entry([&] {
    require(enabled != nullptr);
    *enabled = find_exec(exec)->is_enabled(*find_node(node));
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return graph_entry([&] {
    require(info != nullptr);
    GraphPlan::UpdateFailure failure = find_exec(exec)->update(*find_graph(graph));
    info->result = failure.result;
    info->errorNode = failure.node != nullptr ? failure.node->handle() : nullptr;
    info->errorFromNode = failure.from != nullptr ? failure.from->handle() : nullptr;
    require(failure.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  });
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* update_result) {
  CUgraphExecUpdateResultInfo info = {};
  CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
  if (error_node != nullptr) *error_node = info.errorNode;
  if (update_result != nullptr) *update_result = info.result;
  return result;
}

// ---- memory of graphs ----------------------------------------------------------------------------------------------

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  return entry([&] {
    require(value != nullptr);
    Driver::get().device(device);
    auto* bytes = static_cast<cuuint64_t*>(value);
    switch (attribute) {
      case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *bytes = graph_memory_bytes(device, true); return;
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *bytes = graph_memory_bytes(device, false); return;
      default: throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
  });
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
  return entry([&] {
    require(value != nullptr);
    Driver::get().device(device);
    // Only the high water marks can be set, to zero; they follow what is there now.
    require(attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
    require(*static_cast<cuuint64_t*>(value) == 0);
  });
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return entry([&] { Driver::get().device(device); });
}

// ---- objects of the program ----------------------------------------------------------------------------------------

CUresult cuUserObjectCreate(CUuserObject* result, void* object, CUhostFn destroy, unsigned int count,
                            unsigned int flags) {
  return graph_entry([&] {
    require(result != nullptr && destroy != nullptr && count != 0);
    require(flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    *result = UserObjectTable::instance().add(std::make_shared<UserObject>(object, destroy, count));
  });
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
  return graph_entry([&] {
    require(count != 0);
    UserObjectTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE)->retain(count);
  });
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
  return graph_entry([&] {
    require(count != 0);
    auto object = UserObjectTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
    if (!object->release(count)) return;
    UserObjectTable::instance().remove(handle);
    object->destroy();
  });
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned int count, unsigned int flags) {
  return graph_entry([&] {
    require(count != 0 && (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) == 0);
    auto object = UserObjectTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->retain(count);
    find_graph(graph)->user_objects[handle] += count;
  });
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned int count) {
  return graph_entry([&] {
    auto graph = find_graph(graph_handle);
    auto found = graph->user_objects.find(handle);
    require(count != 0 && found != graph->user_objects.end() && found->second >= count);
    if ((found->second -= count) == 0) graph->user_objects.erase(found);
    auto object = UserObjectTable::instance().get(handle, CUDA_ERROR_INVALID_VALUE);
    if (!object->release(count)) return;
    UserObjectTable::instance().remove(handle);
    object->destroy();
  });
}
