// Green contexts and the resources they are made of. CUDA Driver API, "Green Contexts". To the program a resource is a
// struct that only the driver understands; here it carries the number by which the worker knows the driver's own.

#include <cstring>

#include "client/session/entry.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

void read_resource(wire::Resource::Reader in, CUdevResource& resource) {
  std::memset(&resource, 0, sizeof(resource));
  resource.type = static_cast<CUdevResourceType>(in.getType());
  const std::uint64_t number = in.getNumber();
  std::memcpy(resource._internal_padding, &number, sizeof(number));
  resource.sm.smCount = in.getProcessors();
  resource.sm.minSmPartitionSize = in.getSmallestPart();
  resource.sm.smCoscheduledAlignment = in.getAlignment();
}

std::uint64_t number_of(const CUdevResource& resource) {
  std::uint64_t number;
  std::memcpy(&number, resource._internal_padding, sizeof(number));
  return number;
}

template <class Name>
CUresult get_resource(Thread& thread, CUdevResource* resource, CUdevResourceType type, Name&& name) {
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::DeviceResource> call(thread);
  call.in().setType(type);
  name(call.in().getOf());
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) read_resource(call.out().getResource(), *resource);
  return result;
}

CUresult resource_of(Thread& thread, const Context* context, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult bad = check_active(context); bad != CUDA_SUCCESS) return bad;
  return get_resource(thread, resource, type, [&](auto of) { of.setContext(context->handle.value()); });
}

// A green context's handle is that of the context it can be converted to.
Context* find_green(Thread& thread, CUgreenCtx green) {
  Context* const context = session_of(thread).contexts.find(reinterpret_cast<CUcontext>(green));
  return context && context->green ? context : nullptr;
}

}  // namespace

// --- resources ------------------------------------------------------------------------------------------------------

CUresult cuDeviceGetDevResource(Thread& thread, CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  int ordinal;
  if (!session_of(thread).terms.facts.worker_ordinal(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  return get_resource(thread, resource, type, [&](auto of) { of.setDevice(ordinal); });
}

CUresult cuCtxGetDevResource(Thread& thread, CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  return resource_of(thread, session_of(thread).contexts.find(context), resource, type);
}

CUresult cuGreenCtxGetDevResource(Thread& thread, CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  return resource_of(thread, find_green(thread, green), resource, type);
}

CUresult cuDevSmResourceSplitByCount(Thread& thread, CUdevResource* groups, unsigned* count,
                                     const CUdevResource* resource, CUdevResource* rest, unsigned flags,
                                     unsigned smallest) {
  if (!count || !resource) return CUDA_ERROR_INVALID_VALUE;
  if (resource->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  RemoteCall<wire::SplitResource> call(thread);
  auto in = call.in();
  in.setResource(number_of(*resource));
  in.setSimulate(!groups);
  in.setGroups(groups ? *count : 0);
  in.setRest(rest != nullptr);
  in.setFlags(flags);
  in.setSmallest(smallest);
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto reply = call.out();
  const auto list = reply.getGroups();
  if (groups && (reply.getCount() > *count || list.size() != reply.getCount()))
    throw ProtocolError("more groups of processors than were asked for");
  for (unsigned i = 0; groups && i < list.size(); ++i) read_resource(list[i], groups[i]);
  if (rest) read_resource(reply.getRest(), *rest);
  *count = reply.getCount();
  return result;
}

CUresult cuDevResourceGenerateDesc(Thread& thread, CUdevResourceDesc* description, CUdevResource* resources,
                                   unsigned count) {
  if (!description || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
  RemoteCall<wire::DescribeResources> call(thread);
  if (!call) return call.error();
  const unsigned n = element_count(count);
  if (n != count) return CUDA_ERROR_INVALID_VALUE;
  auto list = call.in().initResources(n);
  for (unsigned i = 0; i < n; ++i) {
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    list.set(i, number_of(resources[i]));
  }
  const CUresult result = call.wait();
  if (result == CUDA_SUCCESS) *description = handle_cast<CUdevResourceDesc>(Handle(call.out().getDescription()));
  return result;
}

// --- contexts -------------------------------------------------------------------------------------------------------

// Keeps the primary context of its device alive.
CUresult cuGreenCtxCreate(Thread& thread, CUgreenCtx* out, CUdevResourceDesc description, CUdevice device,
                          unsigned flags) {
  if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  if (!handle_of(description).well_formed(HandleKind::resourcedesc)) return CUDA_ERROR_INVALID_VALUE;
  CUcontext primary;
  if (const CUresult bad = cuDevicePrimaryCtxRetain(thread, &primary, device); bad != CUDA_SUCCESS) return bad;
  Session& session = session_of(thread);
  const std::lock_guard lock(session.contexts.mutex());
  Context* const context = session.contexts.make(device, 0);
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (context) {
    context->green = true;
    result = session.open_context(thread, *context, handle_of(description));
  }
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<CUgreenCtx>(context->cuda());
  else cuDevicePrimaryCtxRelease_v2(thread, device);
  return result;
}

CUresult cuGreenCtxDestroy(Thread& thread, CUgreenCtx green) {
  Session& session = session_of(thread);
  const std::lock_guard lock(session.contexts.mutex());
  Context* const context = find_green(thread, green);
  if (!context)
    return session.contexts.was(reinterpret_cast<CUcontext>(green)) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                                    : CUDA_ERROR_INVALID_CONTEXT;
  const int device = context->device;
  const CUresult result = session.close_context(thread, *context);
  if (thread.context() == context) thread.contexts().pop_back();
  const CUresult released = cuDevicePrimaryCtxRelease_v2(thread, device);
  return result == CUDA_SUCCESS ? released : result;
}

CUresult cuCtxFromGreenCtx(Thread& thread, CUcontext* out, CUgreenCtx green) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Context* const context = find_green(thread, green);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->cuda();
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(Thread& thread, CUgreenCtx green, unsigned long long* id) {
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  const Context* const context = find_green(thread, green);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *id = context->number;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(Thread& thread, CUgreenCtx green, CUevent event) {
  Context* const context = find_green(thread, green);
  return context ? cuCtxRecordEvent(thread, context->cuda(), event) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxWaitEvent(Thread& thread, CUgreenCtx green, CUevent event) {
  Context* const context = find_green(thread, green);
  return context ? cuCtxWaitEvent(thread, context->cuda(), event) : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace fargpu::client::hand
