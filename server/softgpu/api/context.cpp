#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/context.h"
#include "driver/event.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

constexpr unsigned context_flags_known = CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX |
                                         CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE | CU_CTX_SYNC_MEMOPS;

void check_flags(unsigned flags) {
  require((flags & ~context_flags_known) == 0);
  unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  require(scheduling == 0 || (scheduling & (scheduling - 1)) == 0);
}

CUresult create_context(CUcontext* result, unsigned flags, CUdevice device) {
  return entry([&] {
    require(result != nullptr);
    check_flags(flags);
    Driver::get().device(device).check();
    auto context = std::make_shared<Context>(Driver::get().device(device), /*is_primary=*/false);
    context->flags = flags;
    context->revive();
    *result = ContextTable::instance().add(context);
    push_current(*result);
  });
}

}  // namespace

// ---- primary contexts ----------------------------------------------------------------------------------------------

CUresult cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
  return entry([&] {
    require(result != nullptr);
    Driver::get().device(device).check();
    const auto& context = Driver::get().device(device).primary_context();
    std::lock_guard lock(context->primary_mutex);
    context->revive();
    ++context->retain_count;
    *result = context->handle();
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return entry([&] {
    const auto& context = Driver::get().device(device).primary_context();
    std::lock_guard lock(context->primary_mutex);
    require(context->retain_count > 0, CUDA_ERROR_INVALID_CONTEXT);
    require(context->retain_count > context->green_count, CUDA_ERROR_NOT_PERMITTED);
    if (--context->retain_count == 0) context->destroy();
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return entry([&] {
    const auto& context = Driver::get().device(device).primary_context();
    std::lock_guard lock(context->primary_mutex);
    require(context->green_count == 0, CUDA_ERROR_NOT_PERMITTED);
    context->destroy();
  });
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  return entry([&] {
    const auto& context = Driver::get().device(device).primary_context();
    check_flags(flags);
    context->flags = flags;
  });
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return entry([&] {
    require(flags != nullptr && active != nullptr);
    const auto& context = Driver::get().device(device).primary_context();
    *flags = context->flags;
    *active = context->is_alive();
  });
}

// ---- created contexts ----------------------------------------------------------------------------------------------

CUresult cuCtxCreate_v2(CUcontext* result, unsigned int flags, CUdevice device) {
  return create_context(result, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext* result, CUexecAffinityParam* affinities, int affinity_count, unsigned int flags,
                        CUdevice device) {
  if (affinities != nullptr || affinity_count != 0)
    return entry([] { throw Failure(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY); });
  return create_context(result, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext* result, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
  if (parameters != nullptr && parameters->numExecAffinityParams != 0)
    return entry([] { throw Failure(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY); });
  if (parameters != nullptr && parameters->cigParams != nullptr)
    return entry([] { throw Failure(CUDA_ERROR_NOT_SUPPORTED); });
  return create_context(result, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  return entry([&] {
    require(handle != nullptr);
    auto context = ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    require(!context->is_primary() && !context->is_green(), CUDA_ERROR_INVALID_CONTEXT);
    ContextTable::instance().remove(handle);
    // On this thread it is no longer current; others find it destroyed.
    if (current_handle() == handle) pop_current();
    context->destroy();
  });
}

CUresult cuCtxAttach(CUcontext* result, unsigned int flags) {
  return entry([&] {
    require(result != nullptr && flags == 0);
    *result = current_context()->handle();
  });
}

CUresult cuCtxDetach(CUcontext handle) {
  return entry([&] { require(current_context()->handle() == handle, CUDA_ERROR_INVALID_CONTEXT); });
}

// ---- the current context -------------------------------------------------------------------------------------------

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return entry([&] {
    require(handle != nullptr);
    ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    push_current(handle);
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* result) {
  return entry([&] {
    CUcontext popped = pop_current();
    if (result != nullptr) *result = popped;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return entry([&] {
    if (handle != nullptr) ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    set_current(handle);
  });
}

CUresult cuCtxGetCurrent(CUcontext* result) {
  return entry([&] {
    require(result != nullptr);
    *result = current_handle();
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return entry([&] {
    require(device != nullptr);
    *device = current_context()->device().ordinal();
  });
}

namespace {

/// The context a handle names; null names the current one.
std::shared_ptr<Context> context_or_current(CUcontext handle) {
  if (handle == nullptr) return current_context();
  auto context = ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
  require(context->is_alive(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return context;
}

}  // namespace

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return entry([&] {
    require(device != nullptr);
    *device = context_or_current(handle)->device().ordinal();
  });
}

CUresult cuCtxSynchronize() {
  return entry([] {
    auto context = usable_context();
    refuse_if_captured(*context);
    context->synchronize();
  });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return entry([&] {
    auto context = context_or_current(handle);
    context->check();
    refuse_if_captured(*context);
    context->synchronize();
  });
}

// ---- facts and settings --------------------------------------------------------------------------------------------

CUresult cuCtxGetFlags(unsigned int* flags) {
  return entry([&] {
    require(flags != nullptr);
    *flags = current_context()->flags;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return entry([&] {
    check_flags(flags);
    current_context()->flags = flags;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return entry([&] {
    require(id != nullptr);
    *id = context_or_current(handle)->id();
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return entry([&] {
    require(version != nullptr);
    context_or_current(handle);
    *version = 3020;
  });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return entry([&] { usable_context()->set_limit(limit, value); });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return entry([&] {
    require(value != nullptr);
    *value = usable_context()->limit(limit);
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return entry([&] {
    require(config != nullptr);
    *config = usable_context()->cache_config;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return entry([&] {
    require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL);
    usable_context()->cache_config = config;
  });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return entry([&] {
    require(config != nullptr);
    usable_context();
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;  // what is asked for is accepted and of no effect
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return entry([&] {
    require(config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
    usable_context();
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return entry([&] {
    current_context();
    if (least != nullptr) *least = stream_priority_least;
    if (greatest != nullptr) *greatest = stream_priority_greatest;
  });
}

CUresult cuCtxResetPersistingL2Cache() {
  return entry([] { usable_context(); });
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
  return entry([&] {
    require(affinity != nullptr && type < CU_EXEC_AFFINITY_TYPE_MAX);
    current_context();
    throw Failure(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
  });
}

// ---- peers ---------------------------------------------------------------------------------------------------------

CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned int flags) {
  return entry([&] {
    require(flags == 0);
    auto context = usable_context();
    auto peer = ContextTable::instance().get(peer_handle, CUDA_ERROR_INVALID_CONTEXT);
    require(peer->is_alive(), CUDA_ERROR_INVALID_CONTEXT);
    require(peer != context, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    std::lock_guard lock(context->peers_mutex);
    require(!context->peers.contains(peer_handle), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    if (&peer->device() != &context->device())
      addresses().enable_peer(context->device().ordinal(), peer->device().ordinal());
    context->peers.insert(peer_handle);
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_handle) {
  return entry([&] {
    auto context = usable_context();
    auto peer = ContextTable::instance().get(peer_handle, CUDA_ERROR_INVALID_CONTEXT);
    std::lock_guard lock(context->peers_mutex);
    require(context->peers.erase(peer_handle) != 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    if (&peer->device() != &context->device())
      addresses().disable_peer(context->device().ordinal(), peer->device().ordinal());
  });
}

// ---- events of a whole context -------------------------------------------------------------------------------------

CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  return entry([&] {
    auto context = context_or_current(handle);
    auto event = EventTable::instance().get(event_handle);
    require(event->context() == context->home(), CUDA_ERROR_INVALID_HANDLE);
    std::shared_ptr<Task> record = event->make_record();
    for (const auto& task : context->everything()) record->depend_on(task);
    record->submit();
  });
}

CUresult cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  return entry([&] {
    auto context = context_or_current(handle);
    auto event = EventTable::instance().get(event_handle);
    auto record = event->last();
    if (record == nullptr) return;
    context->make_all_wait_for(record->task);
  });
}
