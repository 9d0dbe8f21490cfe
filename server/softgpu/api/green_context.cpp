#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>

#include "driver/driver.h"
#include "driver/green_context.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

Multiprocessors all_of(Device& device) {
  return {device.ordinal(), 0, static_cast<unsigned>(device.multiprocessor_count()), 0};
}

Multiprocessors all_of(const Context& context) {
  auto green = green_of(context);
  return green != nullptr ? green->processors : all_of(context.device());
}

void give(CUdevResource* resource, CUdevResourceType type, const Multiprocessors& processors) {
  require(resource != nullptr);
  require(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  *resource = to_resource(processors);
}

unsigned next_split() {
  static std::atomic<unsigned> next{1};
  return next++;
}

}  // namespace

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  return entry([&] { give(resource, type, all_of(Driver::get().device(device))); });
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  return entry([&] {
    auto context = ContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    give(resource, type, all_of(*context));
  });
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource* resource, CUdevResourceType type) {
  return entry(
      [&] { give(resource, type, GreenContextTable::instance().get(green, CUDA_ERROR_INVALID_CONTEXT)->processors); });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned int* count, const CUdevResource* input,
                                     CUdevResource* rest, unsigned int flags, unsigned int smallest) {
  return entry([&] {
    constexpr unsigned flags_known =
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    require(count != nullptr && input != nullptr && (flags & ~flags_known) == 0);
    Multiprocessors whole = from_resource(*input);
    require(whole.split == 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    require(smallest <= whole.count, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    bool is_fine = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
    unsigned alignment = is_fine ? 2 : input->sm.smCoscheduledAlignment;
    unsigned part = std::max(smallest, is_fine ? 2 : input->sm.minSmPartitionSize);
    part = (part + alignment - 1) / alignment * alignment;
    unsigned possible = whole.count / part;
    require(possible != 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    unsigned made = groups == nullptr ? possible : std::min(*count, possible);
    unsigned split = next_split();
    for (unsigned i = 0; groups != nullptr && i < made; ++i)
      groups[i] = to_resource({whole.device, whole.first + i * part, part, split});
    if (rest != nullptr)
      *rest = to_resource({whole.device, whole.first + made * part, whole.count - made * part, split});
    *count = made;
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned int count) {
  return entry([&] {
    require(description != nullptr && resources != nullptr && count != 0);
    auto made = std::make_shared<ResourceDescription>();
    made->processors = from_resource(resources[0]);
    for (unsigned i = 1; i < count; ++i) {
      Multiprocessors more = from_resource(resources[i]);
      require(more.device == made->processors.device && more.split != 0 && more.split == made->processors.split,
              CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
      made->processors.count += more.count;
    }
    *description = ResourceDescriptionTable::instance().add(made);
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* result, CUdevResourceDesc description, CUdevice device, unsigned int flags) {
  CUcontext primary = nullptr;
  CUresult retained = entry([&] {
    require(result != nullptr && flags == CU_GREEN_CTX_DEFAULT_STREAM);
    auto of = ResourceDescriptionTable::instance().get(description, CUDA_ERROR_INVALID_VALUE);
    require(Driver::get().device(device).ordinal() == of->processors.device);
    CUresult error = cuDevicePrimaryCtxRetain(&primary, device);
    require(error == CUDA_SUCCESS, error);
  });
  if (retained != CUDA_SUCCESS) return retained;
  return entry([&] {
    auto of = ResourceDescriptionTable::instance().get(description, CUDA_ERROR_INVALID_VALUE);
    auto home = ContextTable::instance().get(primary);
    {
      std::lock_guard lock(home->primary_mutex);
      ++home->green_count;
    }
    auto green = std::make_shared<GreenContext>();
    green->context = std::make_shared<Context>(home);
    green->context->revive();
    green->processors = of->processors;
    green->processors.split = 0;
    ContextTable::instance().add(green->context);
    *result = GreenContextTable::instance().add(green);
    DestroyedGreenContexts::instance().forget(*result);
  });
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  std::shared_ptr<GreenContext> green;
  CUresult found = entry([&] {
    green = GreenContextTable::instance().remove(handle);
    bool was_one = DestroyedGreenContexts::instance().has(handle);
    require(green != nullptr, was_one ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT);
    DestroyedGreenContexts::instance().add(handle);
    CUcontext context = green->context->handle();
    ContextTable::instance().remove(context);
    if (current_handle() == context) pop_current();
    green->context->destroy();
    const auto& home = green->context->device().primary_context();
    std::lock_guard lock(home->primary_mutex);
    --home->green_count;
  });
  return found != CUDA_SUCCESS ? found : cuDevicePrimaryCtxRelease_v2(green->context->device().ordinal());
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  return entry([&] {
    require(context != nullptr);
    auto green = GreenContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    *context = green->context->handle();
  });
}

CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  return entry([&] {
    require(id != nullptr);
    *id = GreenContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT)->context->id();
  });
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned int flags, int priority) {
  return entry([&] {
    require(stream != nullptr && flags == CU_STREAM_NON_BLOCKING);
    auto green = GreenContextTable::instance().get(handle, CUDA_ERROR_INVALID_CONTEXT);
    priority = std::min(std::max(priority, stream_priority_greatest), stream_priority_least);
    *stream = reinterpret_cast<CUstream>(green->context->create_stream(flags, priority).get());
  });
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  auto green = GreenContextTable::instance().find(handle);
  return green != nullptr ? cuCtxRecordEvent(green->context->handle(), event) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  auto green = GreenContextTable::instance().find(handle);
  return green != nullptr ? cuCtxWaitEvent(green->context->handle(), event) : CUDA_ERROR_INVALID_CONTEXT;
}
