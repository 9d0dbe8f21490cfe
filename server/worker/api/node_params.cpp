#include "node_params.h"

#include <cstring>

#include "copy_sides.h"
#include "protocol/data.h"
#include "protocol/launch_shape.h"
#include "server/worker/graph/node_names.h"

namespace fargpu::server {
namespace {

constexpr std::uint64_t part_bytes_max = std::uint64_t{1} << 47;
constexpr unsigned memory_operations_max = 256;  // as the driver has it

}  // namespace

NodeParameters::~NodeParameters() {
  for (const CUuserObject reference : references_) session_.driver().cuUserObjectRelease(reference, 1);
}

bool NodeParameters::attended() const {
  return has_parts() || params_.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
         params_.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || params_.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
}

// The context that a node runs in: the one it names, or the call's.
CUresult NodeParameters::node_context(const Call& call, std::uint64_t named, CUcontext& context) {
  context_named_ = named != 0;
  if (context_named_)
    return session_.objects().resolve(HandleKind::context, named, context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  ContextState* const current = session_.contexts().find(call.id().context);
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  context = current->cuda;
  return CUDA_SUCCESS;
}

CUresult NodeParameters::give_to(CUgraphNode node) {
  DriverTable& driver = session_.driver();
  if (!context_named_ && params_.type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const auto& memset = params_.memset;
    const CUDA_MEMSET_NODE_PARAMS given{memset.dst,         memset.pitch, memset.value,
                                        memset.elementSize, memset.width, memset.height};
    return driver.cuGraphMemsetNodeSetParams(node, &given);
  }
  if (!context_named_ && params_.type == CU_GRAPH_NODE_TYPE_MEMCPY)
    return driver.cuGraphMemcpyNodeSetParams(node, &copy());
  return driver.cuGraphNodeSetParams(node, &params_);
}

CUresult NodeParameters::add_part(const Call& call, std::uint64_t number, const CopyShape& shape) {
  CUuserObject reference{};
  const CUresult result = session_.graph_parts().add(session_.driver(), number, shape, call.id().context, reference);
  if (result == CUDA_SUCCESS) references_.push_back(reference);
  return result;
}

CUresult NodeParameters::keep_in(CUgraph graph) {
  for (const CUuserObject reference : references_) {
    if (const CUresult bad = session_.driver().cuGraphRetainUserObject(graph, reference, 1, 0); bad != CUDA_SUCCESS)
      return bad;
    keeper_ = graph;
  }
  return CUDA_SUCCESS;
}

void NodeParameters::take_back() {
  if (!keeper_) return;
  for (const CUuserObject reference : references_) session_.driver().cuGraphReleaseUserObject(keeper_, reference, 1);
}

CUresult NodeParameters::read(const Call& call, wire::NodeParameters::Reader in) {
  switch (in.which()) {
    case wire::NodeParameters::EMPTY: params_.type = CU_GRAPH_NODE_TYPE_EMPTY; return CUDA_SUCCESS;
    case wire::NodeParameters::KERNEL: return read_kernel(call, in.getKernel());
    case wire::NodeParameters::ALLOCATION: return read_allocation(call, in.getAllocation());
    case wire::NodeParameters::FREE:
      params_.type = CU_GRAPH_NODE_TYPE_EMPTY;
      memory_ = {.allocates = false, .address = in.getFree(), .bytes = 0, .part = 0};
      return CUDA_SUCCESS;
    case wire::NodeParameters::CHILD:
      // With memory nodes a graph can become part of another one only by going over to it.
      if (!in.getMoved() && session_.graph_memory().any(session_.objects().handles().root_of(Handle(in.getChild()))))
        return CUDA_ERROR_NOT_SUPPORTED;
      params_.type = CU_GRAPH_NODE_TYPE_GRAPH;
      params_.graph.ownership =
          in.getMoved() ? CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE : CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
      return session_.objects().resolve(HandleKind::graph, in.getChild(), params_.graph.graph)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
    case wire::NodeParameters::MEMSET: return read_memset(call, in.getMemset());
    case wire::NodeParameters::COPY: return read_copy(call, in.getCopy().getCopy(), in.getCopy().getContext());
    case wire::NodeParameters::EVENT_RECORD:
      params_.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
      return session_.objects().resolve(HandleKind::event, in.getEventRecord(), params_.eventRecord.event)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_HANDLE;
    case wire::NodeParameters::EVENT_WAIT:
      params_.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
      return session_.objects().resolve(HandleKind::event, in.getEventWait(), params_.eventWait.event)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_HANDLE;
    case wire::NodeParameters::HOST: return read_host(call, in.getHost());
    case wire::NodeParameters::MEMORY: return read_memory(call, in.getMemory());
    case wire::NodeParameters::CONDITIONAL: return read_conditional(call, in.getConditional());
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult NodeParameters::read_host(const Call& call, std::uint64_t part) {
  params_.type = CU_GRAPH_NODE_TYPE_HOST;
  const CUDA_HOST_NODE_PARAMS host = GraphParts::placeholder(part);
  params_.host.fn = host.fn;
  params_.host.userData = host.userData;
  return add_part(call, part, {});
}

CUresult NodeParameters::read_kernel(const Call& call, wire::KernelNode::Reader in) {
  params_.type = CU_GRAPH_NODE_TYPE_KERNEL;
  auto& kernel = params_.kernel;
  ContextState* const context =
      session_.contexts().find(in.getContext() != 0 ? Handle(in.getContext()).id() : call.id().context);
  if (const CUresult bad =
          arguments_.read(session_.code().layouts, in.getFunction(), in.getParameters(), kernel.func, context);
      bad != CUDA_SUCCESS)
    return bad;
  if (in.getAsKernel()) {
    if (Handle(in.getFunction()).kind() != HandleKind::kernel) return CUDA_ERROR_INVALID_HANDLE;
    kernel.kern = reinterpret_cast<CUkernel>(kernel.func);
    kernel.func = nullptr;
  }
  read_shape(in, kernel);
  kernel.kernelParams = arguments_.pointers();
  return node_context(call, in.getContext(), kernel.ctx);
}

CUresult NodeParameters::read_memset(const Call& call, wire::MemsetNode::Reader in) {
  params_.type = CU_GRAPH_NODE_TYPE_MEMSET;
  CopyShape shape{0, in.getHeight()};
  std::uint64_t begin, bytes;
  // The memory need not be there yet: a kernel could be given the same address. The driver says what it takes.
  if (in.getElementBytes() > 4 || __builtin_mul_overflow(in.getWidth(), in.getElementBytes(), &shape.width) ||
      !sensible_side(shape, {.kind = CopySide::Kind::device, .place = in.getAddress(), .pitch = in.getPitch()}, begin,
                     bytes))
    return CUDA_ERROR_INVALID_VALUE;
  auto& memset = params_.memset;
  memset.dst = in.getAddress();
  memset.pitch = in.getPitch();
  memset.value = in.getValue();
  memset.elementSize = in.getElementBytes();
  memset.width = in.getWidth();
  memset.height = in.getHeight();
  return node_context(call, in.getContext(), memset.ctx);
}

CUresult NodeParameters::read_copy(const Call& call, wire::Copy::Reader in, std::uint64_t context) {
  params_.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  const CopyShape shape = shape_of(in);
  if (shape.empty() || shape.bytes() > part_bytes_max) return CUDA_ERROR_INVALID_VALUE;
  CopySide source = decode(in.getSource()), target = decode(in.getTarget());
  for (CopySide* const side : {&source, &target})
    if (const CUresult bad = resolve_side(call, shape, *side); bad != CUDA_SUCCESS) return bad;
  copy() = cuda_copy<CUDA_MEMCPY3D>(shape, source, target);
  return node_context(call, context, params_.memcpy.copyCtx);
}

// One side: memory of the session, an array, or the staging memory of a part, in which the rows lie packed.
CUresult NodeParameters::resolve_side(const Call& call, const CopyShape& shape, CopySide& side) {
  if (side.kind == CopySide::Kind::part) {
    if (const CUresult bad = add_part(call, side.place, shape); bad != CUDA_SUCCESS) return bad;
    side = CopySide::packed_at(session_.graph_parts().staging(side.place).data(), shape);
    return CUDA_SUCCESS;
  }
  if (const CUresult bad = admit_side(session_, shape, side); bad != CUDA_SUCCESS) return bad;
  side = *driver_side(session_, side);
  return CUDA_SUCCESS;
}

CUresult read_operations(Session& session, capnp::List<wire::MemoryOperation>::Reader in,
                         std::vector<CUstreamBatchMemOpParams>& out) {
  if (in.size() > memory_operations_max) return CUDA_ERROR_INVALID_VALUE;
  for (const auto from : in) {
    CUstreamBatchMemOpParams& operation = out.emplace_back();
    std::memset(&operation, 0, sizeof(operation));
    operation.operation = static_cast<CUstreamBatchMemOpType>(from.getOperation());
    bool wide = false;
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64: wide = true; [[fallthrough]];
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:  // waits and writes are laid out alike
        if (!session.memory().holds(from.getAddress(), wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
        operation.waitValue.address = from.getAddress();
        operation.waitValue.flags = from.getFlags();
        if (wide) operation.waitValue.value64 = from.getValue();
        else operation.waitValue.value = static_cast<cuuint32_t>(from.getValue());
        break;
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: operation.flushRemoteWrites.flags = from.getFlags(); break;
      case CU_STREAM_MEM_OP_BARRIER: operation.memoryBarrier.flags = from.getFlags(); break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult NodeParameters::read_memory(const Call& call, wire::MemoryOperations::Reader in) {
  params_.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  if (const CUresult bad = read_operations(session_, in.getOperations(), operations_); bad != CUDA_SUCCESS) return bad;
  params_.memOp.count = static_cast<unsigned>(operations_.size());
  params_.memOp.paramArray = operations_.data();
  params_.memOp.flags = in.getFlags();
  return node_context(call, in.getContext(), params_.memOp.ctx);
}

CUresult NodeParameters::read_allocation(const Call& call, wire::AllocationNode::Reader in) {
  params_.type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (in.getBytes() == 0 || !session_.memory().holds(in.getAddress(), in.getBytes())) return CUDA_ERROR_INVALID_VALUE;
  memory_ = {.allocates = true, .address = in.getAddress(), .bytes = in.getBytes(), .part = in.getPart()};
  return add_part(call, in.getPart(), {});
}

CUresult NodeParameters::read_conditional(const Call& call, wire::ConditionalNode::Reader in) {
  params_.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  if (in.getSize() > limits::array_elements_max) return CUDA_ERROR_INVALID_VALUE;
  params_.conditional.handle = in.getHandle();
  params_.conditional.type = static_cast<CUgraphConditionalNodeType>(in.getType());
  params_.conditional.size = in.getSize();
  return node_context(call, in.getContext(), params_.conditional.ctx);
}

CUresult check_memory(Session& session, Handle graph, const GraphMemory::Node& node) {
  return session.memory().holds(node.address, 1) ? session.graph_memory().check(graph, node) : CUDA_ERROR_INVALID_VALUE;
}

CUgraph outermost_of(Session& session, Handle object) {
  CUgraph outermost{};
  session.objects().resolve(HandleKind::graph, session.objects().handles().root_of(object).value(), outermost);
  return outermost;
}

CUgraph keeper_of(Session& session, CUgraph graph) {
  const Handle handle = session.objects().known(HandleKind::graph, graph);
  const CUgraph outermost = handle ? outermost_of(session, handle) : nullptr;
  return outermost ? outermost : graph;
}

namespace {

// The graph of a child graph node, the bodies of a conditional one.
std::vector<CUgraph> graphs_of(Session& session, CUgraphNode node) {
  DriverTable& driver = session.driver();
  CUgraphNodeType type{};
  driver.cuGraphNodeGetType(node, &type);
  CUgraph child{};
  if (type == CU_GRAPH_NODE_TYPE_GRAPH && driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
    return {child};
  return type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? session.graph_parts().bodies(node) : std::vector<CUgraph>();
}

}  // namespace

bool lies_in(Session& session, CUgraph graph, CUgraph outer) {
  std::vector<CUgraph> unseen{outer};
  while (!unseen.empty()) {
    const CUgraph next = unseen.back();
    unseen.pop_back();
    if (next == graph) return true;
    for (const CUgraphNode node : nodes_of(session.driver(), next))
      for (const CUgraph inner : graphs_of(session, node)) unseen.push_back(inner);
  }
  return false;
}

std::vector<std::uint64_t> parts_of(Session& session, CUgraphNode node) {
  DriverTable& driver = session.driver();
  const GraphParts& parts = session.graph_parts();
  std::vector<std::uint64_t> numbers;
  CUgraphNodeType type{};
  CUDA_HOST_NODE_PARAMS host{};
  CUDA_MEMCPY3D copy{};
  if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return {};
  if (type == CU_GRAPH_NODE_TYPE_HOST && driver.cuGraphHostNodeGetParams(node, &host) == CUDA_SUCCESS)
    numbers.push_back(parts.of(host));
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY && driver.cuGraphMemcpyNodeGetParams(node, &copy) == CUDA_SUCCESS)
    for (const auto& side : {source_of(copy), target_of(copy)}) numbers.push_back(side ? parts.at(*side) : 0);
  std::erase(numbers, 0);
  return numbers;
}

// The driver hands on what the original keeps itself. What was added to the original while it was within another graph
// is kept by the outermost one (keeper_of). Which of both a part is, the driver does not tell, and a graph that
// releases what it does not keep takes it from others. So the keeper may keep one once too often, until its own end.
CUresult keep_parts_of_copy(Session& session, Handle original, CUgraph copy, CUgraph keeper) {
  if (session.objects().handles().root_of(original) == original) return CUDA_SUCCESS;
  std::vector<CUgraph> unseen{copy};
  while (!unseen.empty()) {
    const CUgraph graph = unseen.back();
    unseen.pop_back();
    for (const CUgraphNode node : nodes_of(session.driver(), graph)) {
      for (const std::uint64_t part : parts_of(session, node))
        if (const CUresult bad = session.graph_parts().keep(session.driver(), keeper, part); bad != CUDA_SUCCESS)
          return bad;
      for (const CUgraph inner : graphs_of(session, node)) unseen.push_back(inner);
    }
  }
  return CUDA_SUCCESS;
}

std::vector<Handle> known_within(Session& session, CUgraphNode outer) {
  std::vector<Handle> known;
  const auto note = [&](HandleKind kind, auto object) {
    if (const Handle handle = session.objects().known(kind, object)) known.push_back(handle);
  };
  std::vector<CUgraph> unseen = graphs_of(session, outer);
  while (!unseen.empty()) {
    const CUgraph graph = unseen.back();
    unseen.pop_back();
    note(HandleKind::graph, graph);
    for (const CUgraphNode node : nodes_of(session.driver(), graph)) {
      note(HandleKind::node, node);
      for (const CUgraph inner : graphs_of(session, node)) unseen.push_back(inner);
    }
  }
  return known;
}

// --- from the driver to the wire ------------------------------------------------------------------------------------

namespace {

CUresult write_kernel(Session& session, Call& call, CUgraphNode node, wire::KernelNode::Builder out) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  if (const CUresult bad = session.driver().cuGraphKernelNodeGetParams_v2(node, &kernel); bad != CUDA_SUCCESS)
    return bad;
  const auto value =
      reinterpret_cast<std::uint64_t>(kernel.func ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern));
  // Nodes may be made from kernels as well as from functions, and the driver gives back what it was given.
  Handle function = session.objects().handles().known(HandleKind::function, value);
  if (!function) function = session.objects().handles().known(HandleKind::kernel, value);
  if (!function) {
    function = kernel.func ? session.objects().reveal(HandleKind::function, kernel.func, call)
                           : session.objects().reveal(HandleKind::kernel, kernel.kern, call);
  }
  Handles::Entry* const entry = session.objects().handles().find(function.kind(), function);
  FunctionLayout* found = nullptr;
  if (const CUresult bad = session.code().layouts.find(*entry, function.kind() == HandleKind::kernel, found);
      bad != CUDA_SUCCESS)
    return bad;
  const FunctionLayout& layout = *found;
  std::vector<std::byte> block(layout.bytes);
  if (kernel.kernelParams) {
    for (std::size_t i = 0; i < layout.parameters.size(); ++i)
      std::memcpy(block.data() + layout.parameters[i].offset, kernel.kernelParams[i], layout.parameters[i].bytes);
  } else if (kernel.extra) {
    const void* bytes = nullptr;
    std::size_t size = 0;
    for (void** item = kernel.extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
      if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) bytes = item[1];
      if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<const std::size_t*>(item[1]);
    }
    if (bytes) std::memcpy(block.data(), bytes, std::min(size, block.size()));
  }
  out.setFunction(function.value());
  out.setAsKernel(!kernel.func);
  if (kernel.func && kernel.kern)
    out.setKernel(session.objects().reveal(HandleKind::kernel, kernel.kern, call).value());
  write_shape(kernel, out);
  out.setParameters(data_of(block));
  out.setContext(session.contexts().handle_of(kernel.ctx));
  return CUDA_SUCCESS;
}

CUresult write_copy(Session& session, CUgraphNode node, wire::Copy::Builder out) {
  CUDA_MEMCPY3D copy{};
  if (const CUresult bad = session.driver().cuGraphMemcpyNodeGetParams(node, &copy); bad != CUDA_SUCCESS) return bad;
  auto source = source_of(copy), target = target_of(copy);
  if (!source || !target) return CUDA_ERROR_INVALID_VALUE;
  for (CopySide* const side : {&*source, &*target}) {
    if (side->in_array()) {
      side->place = session.objects().known(HandleKind::array, side->place).value();
    } else if (const std::uint64_t part = session.graph_parts().at(*side)) {
      *side = {.kind = CopySide::Kind::part, .place = part};
    } else {
      side->kind = CopySide::Kind::device;
    }
  }
  encode(shape_of(copy), *source, *target, out);
  return CUDA_SUCCESS;
}

CUresult write_memset(Session& session, CUgraphNode node, wire::MemsetNode::Builder out) {
  CUDA_MEMSET_NODE_PARAMS memset{};
  if (const CUresult bad = session.driver().cuGraphMemsetNodeGetParams(node, &memset); bad != CUDA_SUCCESS) return bad;
  out.setAddress(memset.dst);
  out.setPitch(memset.pitch);
  out.setValue(memset.value);
  out.setElementBytes(memset.elementSize);
  out.setWidth(memset.width);
  out.setHeight(memset.height);
  return CUDA_SUCCESS;
}

CUresult write_host(Session& session, CUgraphNode node, wire::NodeParameters::Builder out) {
  CUDA_HOST_NODE_PARAMS host{};
  if (const CUresult bad = session.driver().cuGraphHostNodeGetParams(node, &host); bad != CUDA_SUCCESS) return bad;
  const std::uint64_t part = session.graph_parts().of(host);
  if (part == 0) return CUDA_ERROR_INVALID_VALUE;
  out.setHost(part);
  return CUDA_SUCCESS;
}

CUresult write_memory(Session& session, CUgraphNode node, wire::MemoryOperations::Builder out) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  if (const CUresult bad = session.driver().cuGraphBatchMemOpNodeGetParams(node, &batch); bad != CUDA_SUCCESS)
    return bad;
  out.setFlags(batch.flags);
  out.setContext(session.contexts().handle_of(batch.ctx));
  auto list = out.initOperations(batch.count);
  for (unsigned i = 0; i < batch.count; ++i) {
    const CUstreamBatchMemOpParams& from = batch.paramArray[i];
    auto to = list[i];
    to.setOperation(from.operation);
    switch (from.operation) {
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: to.setFlags(from.flushRemoteWrites.flags); break;
      case CU_STREAM_MEM_OP_BARRIER: to.setFlags(from.memoryBarrier.flags); break;
      default: {
        const bool wide =
            from.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || from.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        to.setAddress(from.waitValue.address);
        to.setFlags(from.waitValue.flags);
        to.setValue(wide ? from.waitValue.value64 : from.waitValue.value);
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult write_node(Session& session, Call& call, CUgraphNode node, CUgraphNodeType type,
                    wire::NodeParameters::Builder out) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return write_kernel(session, call, node, out.initKernel());
    case CU_GRAPH_NODE_TYPE_MEMCPY: return write_copy(session, node, out.initCopy().initCopy());
    case CU_GRAPH_NODE_TYPE_MEMSET: return write_memset(session, node, out.initMemset());
    case CU_GRAPH_NODE_TYPE_HOST: return write_host(session, node, out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return write_memory(session, node, out.initMemory());
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
      const Handle handle = session.objects().known(HandleKind::node, node);
      const GraphMemory::Node* const memory = session.graph_memory().find(handle);
      if (!memory || memory->allocates != (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)) return CUDA_ERROR_INVALID_VALUE;
      if (memory->allocates) {
        out.initAllocation().setAddress(memory->address);
        out.getAllocation().setBytes(memory->bytes);
      } else {
        out.setFree(memory->address);
      }
      return CUDA_SUCCESS;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace fargpu::server
