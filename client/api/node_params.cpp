#include "node_params.h"

#include <cstring>

#include "client/call/refusal.h"
#include "client/code/launch_arguments.h"
#include "client/copy/copy_node.h"
#include "client/memory/read_operation.h"
#include "client/call/remote_call.h"
#include "client/session/process.h"
#include "client/session/pool.h"
#include "client/session/route.h"
#include "client/session/session.h"
#include "protocol/data.h"
#include "protocol/launch_shape.h"

namespace fargpu::client {

// --- one form for all -----------------------------------------------------------------------------------------------

namespace {

CUgraphNodeParams of_type(CUgraphNodeType type) {
  CUgraphNodeParams params;
  std::memset(&params, 0, sizeof(params));
  params.type = type;
  return params;
}

// The versions differ in how they name function and context only.
template <class Params>
CUgraphNodeParams kernel_params(const Params& p) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_KERNEL);
  auto& kernel = params.kernel;
  kernel.func = p.func;
  kernel.gridDimX = p.gridDimX;
  kernel.gridDimY = p.gridDimY;
  kernel.gridDimZ = p.gridDimZ;
  kernel.blockDimX = p.blockDimX;
  kernel.blockDimY = p.blockDimY;
  kernel.blockDimZ = p.blockDimZ;
  kernel.sharedMemBytes = p.sharedMemBytes;
  kernel.kernelParams = p.kernelParams;
  kernel.extra = p.extra;
  return params;
}

}  // namespace

CUgraphNodeParams node_params(const CUDA_KERNEL_NODE_PARAMS_v1& p) { return kernel_params(p); }

CUgraphNodeParams node_params(const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  CUgraphNodeParams params = kernel_params(p);
  params.kernel.kern = p.kern;
  params.kernel.ctx = p.ctx;
  return params;
}

CUgraphNodeParams node_params(const CUDA_MEMSET_NODE_PARAMS_v1& p, CUcontext context) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_MEMSET);
  params.memset = {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height, context};
  return params;
}

CUgraphNodeParams node_params(const CUDA_MEMCPY3D& p, CUcontext context) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_MEMCPY);
  params.memcpy.copyParams = p;
  params.memcpy.copyCtx = context;
  return params;
}

CUgraphNodeParams node_params(const CUDA_HOST_NODE_PARAMS_v1& p) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_HOST);
  params.host.fn = p.fn;
  params.host.userData = p.userData;
  return params;
}

CUgraphNodeParams node_params(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1& p) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  params.memOp.ctx = p.ctx;
  params.memOp.count = p.count;
  params.memOp.paramArray = p.paramArray;
  params.memOp.flags = p.flags;
  return params;
}

CUgraphNodeParams node_params(CUgraphNodeType record_or_wait, CUevent event) {
  CUgraphNodeParams params = of_type(record_or_wait);
  if (record_or_wait == CU_GRAPH_NODE_TYPE_EVENT_RECORD) params.eventRecord.event = event;
  else params.eventWait.event = event;
  return params;
}

CUgraphNodeParams node_params(CUgraph child) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_GRAPH);
  params.graph.graph = child;
  return params;
}

CUgraphNodeParams empty_node() { return of_type(CU_GRAPH_NODE_TYPE_EMPTY); }

CUgraphNodeParams free_node(CUdeviceptr address) {
  CUgraphNodeParams params = of_type(CU_GRAPH_NODE_TYPE_MEM_FREE);
  params.free.dptr = address;
  return params;
}

// --- to the wire ----------------------------------------------------------------------------------------------------

namespace {

CUresult check_context(Thread& thread, CUcontext context) {
  return !context || session_of(thread).contexts.find(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult write_kernel(Thread& thread, const CUDA_KERNEL_NODE_PARAMS_v3& p, wire::KernelNode::Builder node) {
  Route route;  // a library's kernel is launched on whatever device the graph is for
  CUfunction named = p.func;
  CUkernel kernel = p.kern;
  if (process().pool()) {
    const CUresult bad = route.begin([&](Route& here) {
      here.to(session_of(thread));
      named = here.twin(named);
      if (!named) kernel = here.twin(kernel);
    });
    if (bad != CUDA_SUCCESS) return bad;
  }
  Function* const function =
      named ? session_of(thread).functions.find(named) : session_of(thread).functions.find_kernel(kernel);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const CUcontext context = p.func ? nullptr : p.ctx;  // cuda.h: ignored beside a function
  if (const CUresult bad = check_context(thread, context); bad != CUDA_SUCCESS) return bad;
  std::span<const std::byte> arguments;
  if (const CUresult bad = gather_arguments(*function, p.kernelParams, p.extra, arguments); bad != CUDA_SUCCESS)
    return bad;
  Session& session = session_of(thread);
  if (const CUresult bad =
          prepare_memory({session.calls, session.host_memory, session.managed, session.whole_system_work}, thread,
                         *function, arguments);
      bad != CUDA_SUCCESS)
    return bad;
  if (function->whole_system.load()) session.whole_system_work.captured();
  node.setFunction(function->handle.value());
  node.setAsKernel(!p.func);
  write_shape(p, node);
  node.setParameters(data_of(arguments));
  node.setContext(handle_of(context).value());
  return CUDA_SUCCESS;
}

CUresult write_memset(Thread& thread, const CUDA_MEMSET_NODE_PARAMS_v2& p, wire::MemsetNode::Builder node) {
  if (const CUresult bad = check_context(thread, p.ctx); bad != CUDA_SUCCESS) return bad;
  const std::uint64_t extent = p.height == 0 ? 0 : (p.height - 1) * p.pitch + p.width * p.elementSize;
  Session& session = session_of(thread);
  std::uint64_t address = p.dst;
  const auto region = session.map.find(address);
  if (region) {
    if (const CUresult bad = session.host_memory.keep_promise(thread, *region); bad != CUDA_SUCCESS) return bad;
  }
  const bool on_host = region && region->on_host();
  if (!(on_host ? session.map.usable(address, extent) : session.map.covered(address, extent)))
    return CUDA_ERROR_INVALID_VALUE;
  if (on_host) {
    if (const CUresult bad = session.host_memory.map(thread, address, address); bad != CUDA_SUCCESS) return bad;
  }
  node.setAddress(address);
  node.setPitch(p.pitch);
  node.setValue(p.value);
  node.setElementBytes(p.elementSize);
  node.setWidth(p.width);
  node.setHeight(p.height);
  node.setContext(handle_of(p.ctx).value());
  return CUDA_SUCCESS;
}

CUresult write_memory(Thread& thread, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& p, wire::MemoryOperations::Builder node) {
  if (const CUresult bad = check_context(thread, p.ctx); bad != CUDA_SUCCESS) return bad;
  if (p.count > 0 && !p.paramArray) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = p.ctx ? session_of(thread).contexts.find(p.ctx) : thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  node.setFlags(p.flags);
  node.setContext(handle_of(p.ctx).value());
  auto list = node.initOperations(element_count(p.count));
  for (unsigned i = 0; i < list.size(); ++i) {
    MemoryOperation operation;
    if (const CUresult bad = read_operation(session_of(thread).map, session_of(thread).terms.facts.at(context->device),
                                            p.paramArray[i], operation);
        bad != CUDA_SUCCESS)
      return bad;
    if (operation.on_host) {
      // The GPU would wait for this process.
      if (operation.waits()) return refuse_use("a graph that waits for a value in memory of the host");
      if (const CUresult bad = session_of(thread).host_memory.map(thread, operation.address, operation.address);
          bad != CUDA_SUCCESS)
        return bad;
    }
    write_operation(operation, list[i]);
  }
  return CUDA_SUCCESS;
}

CUresult check_event(Thread& thread, CUevent event) {
  Event* const found = session_of(thread).events.find(handle_of(event));
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  found->recorded_by_work = true;
  return CUDA_SUCCESS;
}

CUresult write_copy(Thread& thread, const CUDA_MEMCPY_NODE_PARAMS& p, wire::CopyNode::Builder out, NewParts& parts) {
  if (const CUresult bad = check_context(thread, p.copyCtx); bad != CUDA_SUCCESS) return bad;
  out.setContext(handle_of(p.copyCtx).value());
  const auto source = source_of(p.copyParams), target = target_of(p.copyParams);
  if (!source || !target) return CUDA_ERROR_INVALID_VALUE;
  Session& session = session_of(thread);
  const Pool* const pool = process().pool();
  for (const auto& side : {source, target}) {
    if (side->in_array()) continue;
    if (pool && pool->elsewhere(session, side->begin()))
      return refuse_use("a graph with a copy from or to another host");
    if (const auto region = session.map.find(side->begin())) {
      if (const CUresult bad = session.host_memory.keep_promise(thread, *region); bad != CUDA_SUCCESS) return bad;
    }
  }
  const ProgramMemory memory{session.map, session.host_memory, session.terms.device_window, session.terms.driver_band};
  return write_copy(memory, shape_of(p.copyParams), *source, *target, out.initCopy(), parts);
}

}  // namespace

void write_allocation(Thread& thread, std::uint64_t address, std::uint64_t bytes, wire::AllocationNode::Builder out,
                      NewParts& parts) {
  const std::uint64_t part = parts.add(GraphParts::Allocation{address});
  session_of(thread).graph_memory.set_part(address, part);
  out.setAddress(address);
  out.setBytes(bytes);
  out.setPart(part);
}

CUresult write_node(Thread& thread, const CUgraphNodeParams& p, wire::NodeParameters::Builder out, NewParts& parts) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return write_kernel(thread, p.kernel, out.initKernel());
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (!handle_of(p.graph.graph).well_formed(HandleKind::graph)) return CUDA_ERROR_INVALID_VALUE;
      out.setChild(handle_of(p.graph.graph).value());
      out.setMoved(p.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: out.setEmpty(); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMSET: return write_memset(thread, p.memset, out.initMemset());
    case CU_GRAPH_NODE_TYPE_MEMCPY: return write_copy(thread, p.memcpy, out.initCopy(), parts);
    case CU_GRAPH_NODE_TYPE_HOST:
      if (!p.host.fn) return CUDA_ERROR_INVALID_VALUE;
      out.setHost(parts.add(GraphParts::Function{p.host.fn, p.host.userData}));
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      out.setEventRecord(handle_of(p.eventRecord.event).value());
      return check_event(thread, p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      out.setEventWait(handle_of(p.eventWait.event).value());
      return session_of(thread).events.find(handle_of(p.eventWait.event)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return write_memory(thread, p.memOp, out.initMemory());
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      write_allocation(thread, p.alloc.dptr, p.alloc.bytesize, out.initAllocation(), parts);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      out.setFree(p.free.dptr);
      return session_of(thread).graph_memory.knows(p.free.dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      if (const CUresult bad = check_context(thread, p.conditional.ctx); bad != CUDA_SUCCESS) return bad;
      auto conditional = out.initConditional();
      conditional.setHandle(p.conditional.handle);
      conditional.setType(p.conditional.type);
      conditional.setSize(p.conditional.size);
      conditional.setContext(handle_of(p.conditional.ctx).value());
      return CUDA_SUCCESS;
    }
    default: refuse_use(("a graph node of type " + std::to_string(p.type)).c_str()); return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// --- from the wire --------------------------------------------------------------------------------------------------

CUresult read_kernel(Thread& thread, CUgraphNode node, wire::KernelNode::Reader in, CUDA_KERNEL_NODE_PARAMS_v2& p) {
  Functions& functions = session_of(thread).functions;
  const Function* function = functions.find(handle_cast<CUfunction>(Handle(in.getFunction())));
  if (!function) {  // one that only the library knows which captured the launch
    RemoteCall<wire::DescribeFunction> describe(thread);
    describe.in().setFunction(in.getFunction());
    if (const CUresult bad = describe.wait(); bad != CUDA_SUCCESS) return bad;
    function = functions.learn(describe.out(), nullptr);
  }
  Graphs::Given& given = session_of(thread).graphs.given(handle_of(node));
  const auto block = in.getParameters();
  if (block.size() < function->parameter_bytes) throw ProtocolError("a kernel node with too few bytes of arguments");
  given.arguments.resize(block.size());
  if (block.size() > 0) std::memcpy(given.arguments.data(), block.begin(), block.size());
  given.argument_pointers.clear();
  for (const Parameter& parameter : function->parameters)
    given.argument_pointers.push_back(given.arguments.data() + parameter.offset);
  std::memset(&p, 0, sizeof(p));
  if (in.getAsKernel()) p.kern = handle_cast<CUkernel>(function->handle);
  else p.func = handle_cast<CUfunction>(function->handle);
  if (in.getKernel() != 0) p.kern = handle_cast<CUkernel>(Handle(in.getKernel()));
  read_shape(in, p);
  p.kernelParams = given.argument_pointers.empty() ? nullptr : given.argument_pointers.data();
  p.ctx = handle_cast<CUcontext>(Handle(in.getContext()));
  return CUDA_SUCCESS;
}

void read_memset(Thread& thread, wire::MemsetNode::Reader in, CUDA_MEMSET_NODE_PARAMS_v1& p) {
  std::uint64_t address = in.getAddress();
  const auto region = session_of(thread).map.find(address);
  if (region && region->kind == Region::Kind::alias) address += region->owner - region->base;
  p = {address, in.getPitch(), in.getValue(), in.getElementBytes(), in.getWidth(), in.getHeight()};
}

void read_memory(Thread& thread, CUgraphNode node, wire::MemoryOperations::Reader in,
                 CUDA_BATCH_MEM_OP_NODE_PARAMS_v1& p) {
  Graphs::Given& given = session_of(thread).graphs.given(handle_of(node));
  given.operations.clear();
  for (const auto from : in.getOperations()) {
    CUstreamBatchMemOpParams& to = given.operations.emplace_back();
    std::memset(&to, 0, sizeof(to));
    to.operation = static_cast<CUstreamBatchMemOpType>(from.getOperation());
    switch (to.operation) {
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: to.flushRemoteWrites.flags = from.getFlags(); break;
      case CU_STREAM_MEM_OP_BARRIER: to.memoryBarrier.flags = from.getFlags(); break;
      default:  // waits and writes are laid out alike
        to.waitValue.address = from.getAddress();
        to.waitValue.flags = from.getFlags();
        to.waitValue.value64 = from.getValue();
    }
  }
  p = {handle_cast<CUcontext>(Handle(in.getContext())), static_cast<unsigned>(given.operations.size()),
       given.operations.data(), in.getFlags()};
}

}  // namespace fargpu::client
