// Contexts and the stack of current ones. CUDA Driver API, "Context Management" and "Primary Context Management".

#include "client/objects/context.h"

#include "calls_context.capnp.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "narrow.h"
#include "client/call/remote_call.h"
#include "client/session/pool.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

constexpr unsigned known_flags = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX |
                                 CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE | CU_CTX_SYNC_MEMOPS;

CUresult check_flags(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  if ((flags & ~known_flags) || !is_one_of<unsigned>(schedule, {CU_CTX_SCHED_AUTO, CU_CTX_SCHED_SPIN,
                                                                CU_CTX_SCHED_YIELD, CU_CTX_SCHED_BLOCKING_SYNC}))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & (CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE)) return refuse_use("a context with core dumps");
  return CUDA_SUCCESS;
}

// The current context or an explicit one; null if there is none.
Context* chosen(Thread& thread, CUcontext context) {
  return context ? process().find_context(context) : thread.context();
}

CUresult create(Thread& thread, CUcontext* out, unsigned flags, CUdevice dev, unsigned api_version = wide_api_version) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_flags(flags); bad != CUDA_SUCCESS) return bad;
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Session& session = process().session_of_device(dev);
  const std::lock_guard lock(session.contexts.mutex());
  Context* const context = session.contexts.make(dev, flags);
  if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
  context->api_version = api_version;
  if (const CUresult result = session.open_context(thread, *context); result != CUDA_SUCCESS) return result;
  thread.contexts().push_back(context);
  *out = context->cuda();
  return CUDA_SUCCESS;
}

}  // namespace

// --- the stack ------------------------------------------------------------------------------------------------------

CUresult cuCtxGetCurrent(Thread& thread, CUcontext* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = thread.context();
  *out = context ? context->cuda() : nullptr;
  return CUDA_SUCCESS;
}

// Replaces the top of the stack; null only removes it.
CUresult cuCtxSetCurrent(Thread& thread, CUcontext context) {
  auto& stack = thread.contexts();
  if (!context) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  Context* const found = process().find_context_to_use(context);
  if (!found) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) stack.push_back(found);
  else stack.back() = found;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(Thread& thread, CUcontext context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  Context* const found = process().find_context_to_use(context);
  if (!found) return CUDA_ERROR_INVALID_CONTEXT;
  thread.contexts().push_back(found);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(Thread& thread, CUcontext* out) {
  auto& stack = thread.contexts();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = stack.back()->cuda();
  stack.pop_back();
  return CUDA_SUCCESS;
}

// --- questions ------------------------------------------------------------------------------------------------------

CUresult cuCtxGetDevice_v2(Thread& thread, CUdevice* device, CUcontext ctx) {
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = chosen(thread, ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(Thread& thread, unsigned* flags) {
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *flags = context->flags | CU_CTX_MAP_HOST;  // which every context has
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(Thread& thread, CUcontext ctx, unsigned long long* id) {
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = chosen(thread, ctx);
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  *id = context->number;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(Thread& thread, CUcontext ctx, unsigned* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = chosen(thread, ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(Thread& thread, int* least, int* greatest) {
  const Context* const context = thread.context();
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  if (least) *least = context->least_priority;
  if (greatest) *greatest = context->greatest_priority;
  return CUDA_SUCCESS;
}

// Bank sizes are configurable on no GPU of today; the driver accepts and ignores them.
CUresult cuCtxGetSharedMemConfig(Thread& thread, CUsharedconfig* config) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(Thread& thread, CUsharedconfig config) {
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
    return CUDA_ERROR_INVALID_VALUE;
  return thread.context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxSetFlags(Thread& thread, unsigned flags) {
  if (const CUresult bad = check_flags(flags); bad != CUDA_SUCCESS) return bad;
  RemoteCall<wire::CuCtxSetFlags> call(thread);
  call.in().setFlags(flags);
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) thread.context()->flags = flags;
  return result;
}

CUresult cuCtxSynchronize_v2(Thread& thread, CUcontext ctx) {
  Context* const context = chosen(thread, ctx);
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  return context->session->waits.synchronize(thread, *context);
}

CUresult cuCtxSynchronize(Thread& thread) { return cuCtxSynchronize_v2(thread, nullptr); }

// --- created contexts -----------------------------------------------------------------------------------------------

// Contexts of CUDA 2 and 3.1: the calls with sizes and addresses of 32 bits work in these only (narrow.h).
CUresult cuCtxCreate(Thread& thread, CUcontext* out, unsigned flags, CUdevice dev) {
  return create(thread, out, flags, dev, narrow_api_version);
}

CUresult cuCtxCreate_v2(Thread& thread, CUcontext* out, unsigned flags, CUdevice dev) {
  return create(thread, out, flags, dev);
}

CUresult cuCtxCreate_v3(Thread& thread, CUcontext* out, CUexecAffinityParam* affinity, int count, unsigned flags,
                        CUdevice dev) {
  if (affinity || count > 0) return refuse_use("a context with execution affinity");
  return create(thread, out, flags, dev);
}

CUresult cuCtxCreate_v4(Thread& thread, CUcontext* out, CUctxCreateParams* params, unsigned flags, CUdevice dev) {
  if (params && (params->execAffinityParams || params->numExecAffinityParams > 0))
    return refuse_use("a context with execution affinity");
  if (params && params->cigParams) return refuse_use("a context shared with a graphics interface");
  return create(thread, out, flags, dev);
}

CUresult cuCtxDestroy_v2(Thread& thread, CUcontext ctx) {
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = process().find_context(ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  Session& session = *context->session;
  const std::lock_guard lock(session.contexts.mutex());
  if (session.contexts.find(ctx) != context || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = session.close_context(thread, *context);
  // If it is current to the calling thread, it is also popped; other threads keep it and meet CONTEXT_IS_DESTROYED.
  if (thread.context() == context) thread.contexts().pop_back();
  return result;
}

CUresult cuCtxAttach(Thread& thread, CUcontext* out, unsigned flags) {
  if (!out || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!thread.context()) return CUDA_ERROR_INVALID_CONTEXT;
  ++thread.context()->retained;
  *out = thread.context()->cuda();
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(Thread& thread, CUcontext ctx) {
  Context* const context = process().find_context(ctx);
  if (!context || context != thread.context() || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->retained > 0) {
    --context->retained;
    return CUDA_SUCCESS;
  }
  return cuCtxDestroy_v2(thread, ctx);
}

// --- primary contexts -----------------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(Thread& thread, CUcontext* out, CUdevice dev) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Session& session = process().session_of_device(dev);
  const std::lock_guard lock(session.contexts.mutex());
  Context& context = session.contexts.primary(dev);
  if (!context.active) {
    if (const CUresult result = session.open_context(thread, context); result != CUDA_SUCCESS) return result;
  }
  ++context.retained;
  *out = context.cuda();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(Thread& thread, CUdevice dev) {
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Session& session = process().session_of_device(dev);
  const std::lock_guard lock(session.contexts.mutex());
  Context& context = session.contexts.primary(dev);
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context.retained <= session.contexts.greens(context).size()) return CUDA_ERROR_NOT_PERMITTED;  // theirs
  if (--context.retained > 0) return CUDA_SUCCESS;
  return context.active ? session.close_context(thread, context) : CUDA_SUCCESS;
}

// Destroys the context, however many times it is retained, unless it has green contexts. The handle stays the same and
// stays current; the next retain revives it. The driver goes on to count the retains: each still wants its release.
CUresult cuDevicePrimaryCtxReset_v2(Thread& thread, CUdevice dev) {
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Session& session = process().session_of_device(dev);
  const std::lock_guard lock(session.contexts.mutex());
  Context& context = session.contexts.primary(dev);
  if (!session.contexts.greens(context).empty()) return CUDA_ERROR_NOT_PERMITTED;
  context.flags = 0;
  return context.active ? session.close_context(thread, context) : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(Thread&, CUdevice dev, unsigned flags) {
  if (const CUresult bad = check_flags(flags); bad != CUDA_SUCCESS) return bad;
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Session& session = process().session_of_device(dev);
  // How a waiting thread waits is the client's own affair, so an active context needs no word to the worker.
  session.contexts.primary(dev).flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(Thread&, CUdevice dev, unsigned* flags, int* active) {
  if (!process().facts().device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  // To ask is not to use: no session begins.
  const Pool* const pool = process().pool();
  Session* const session = pool ? pool->begun_of(dev) : process().session();
  *flags = 0;
  *active = 0;
  if (!session) return CUDA_SUCCESS;
  const Context& context = session->contexts.primary(dev);
  *flags = context.flags;
  *active = context.active ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
