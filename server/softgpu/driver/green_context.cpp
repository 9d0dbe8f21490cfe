#include "driver/green_context.h"

#include <cstring>

namespace fargpu::softgpu {
namespace {

// As on compute capability 9.0.
constexpr unsigned part_min = 8, part_alignment = 8;

struct Inside {
  char mark[8];
  Multiprocessors processors;
};
constexpr char mark[8] = "softgpu";
static_assert(sizeof(Inside) <= sizeof(CUdevResource::_internal_padding));

}  // namespace

CUdevResource to_resource(const Multiprocessors& processors) {
  CUdevResource resource = {};
  if (processors.count == 0) return resource;  // of the invalid type
  Inside inside = {};
  std::memcpy(inside.mark, mark, sizeof mark);
  inside.processors = processors;
  std::memcpy(resource._internal_padding, &inside, sizeof inside);
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = processors.count;
  resource.sm.minSmPartitionSize = part_min;
  resource.sm.smCoscheduledAlignment = part_alignment;
  return resource;
}

Multiprocessors from_resource(const CUdevResource& resource) {
  require(resource.type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
  Inside inside;
  std::memcpy(&inside, resource._internal_padding, sizeof inside);
  require(std::memcmp(inside.mark, mark, sizeof mark) == 0);
  require(inside.processors.count == resource.sm.smCount);
  return inside.processors;
}

DestroyedGreenContexts& DestroyedGreenContexts::instance() {
  static auto* const all = new DestroyedGreenContexts();
  return *all;
}

void DestroyedGreenContexts::add(CUgreenCtx handle) {
  std::lock_guard lock(mutex_);
  handles_.insert(handle);
}

void DestroyedGreenContexts::forget(CUgreenCtx handle) {
  std::lock_guard lock(mutex_);
  handles_.erase(handle);
}

bool DestroyedGreenContexts::has(CUgreenCtx handle) const {
  std::lock_guard lock(mutex_);
  return handles_.contains(handle);
}

std::shared_ptr<GreenContext> green_of(const Context& context) {
  for (const auto& green : GreenContextTable::instance().all())
    if (green->context.get() == &context) return green;
  return nullptr;
}

}  // namespace fargpu::softgpu
