#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include "driver/array.h"
#include "driver/context.h"
#include "driver/submission.h"
#include "driver/texture_objects.h"

using namespace fargpu::softgpu;

namespace {

CUresult create_array(CUarray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  return entry([&] {
    require(result != nullptr);
    auto context = usable_context();
    refuse_while_capturing();
    *result =
        ArrayTable::instance().add(std::make_shared<Array>(context->device().ordinal(), context->id(), descriptor));
  });
}

/// Work that uses the array must be over before its memory goes.
void wait_for_context(uint64_t context_id) {
  for (const auto& context : all_contexts())
    if (context->id() == context_id && context->is_alive())
      for (const auto& task : context->everything()) task->wait();
}

}  // namespace

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full = {};
  full.Width = descriptor->Width;
  full.Height = descriptor->Height;
  full.Format = descriptor->Format;
  full.NumChannels = descriptor->NumChannels;
  return create_array(array, full);
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return create_array(array, *descriptor);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
  return entry([&] {
    require(descriptor != nullptr);
    const auto array = ArrayTable::instance().get(handle);
    const CUDA_ARRAY3D_DESCRIPTOR& full = array->descriptor();
    *descriptor = {full.Width, full.Height, full.Format, full.NumChannels};
  });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
  return entry([&] {
    require(descriptor != nullptr);
    *descriptor = ArrayTable::instance().get(handle)->descriptor();
  });
}

CUresult cuArrayDestroy(CUarray handle) {
  return entry([&] {
    auto array = ArrayTable::instance().get(handle);
    require(!array->is_mip_level());
    wait_for_context(array->context_id());
    ArrayTable::instance().remove(handle);
  });
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* requirements, CUarray handle, CUdevice device) {
  return entry([&] {
    require(requirements != nullptr);
    Driver::get().device(device);
    auto array = ArrayTable::instance().get(handle);
    *requirements = {};
    requirements->size = (array->total_bytes() + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
    requirements->alignment = large_page_bytes;
  });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* result, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                unsigned int levels) {
  return entry([&] {
    require(result != nullptr && descriptor != nullptr);
    auto context = usable_context();
    refuse_while_capturing();
    auto array = std::make_shared<MipmappedArray>(context->device().ordinal(), context->id(), *descriptor, levels);
    *result = MipmappedArrayTable::instance().add(array);
    for (const auto& level : array->levels()) ArrayTable::instance().add(level);
  });
}

CUresult cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray handle, unsigned int index) {
  return entry([&] {
    require(level != nullptr);
    auto array = MipmappedArrayTable::instance().get(handle);
    require(index < array->levels().size());
    *level = array->levels()[index]->handle();
  });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return entry([&] {
    auto array = MipmappedArrayTable::instance().get(handle);
    wait_for_context(array->context_id());
    for (const auto& level : array->levels()) ArrayTable::instance().remove(level->handle());
    MipmappedArrayTable::instance().remove(handle);
  });
}

// ---- texture objects -----------------------------------------------------------------------------------------------

CUresult cuTexObjectCreate(CUtexObject* texture, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* sampling,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
  return entry([&] {
    require(texture != nullptr && resource != nullptr && sampling != nullptr);
    *texture = make_texture(*usable_context(), *resource, *sampling, view);
  });
}

CUresult cuTexObjectDestroy(CUtexObject texture) {
  return entry([&] { require(texture == 0 || remove_texture(texture, false)); });
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject texture) {
  return entry([&] {
    auto object = find_texture_object(texture, false);
    require(resource != nullptr && object != nullptr);
    *resource = object->resource;
  });
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* sampling, CUtexObject texture) {
  return entry([&] {
    auto object = find_texture_object(texture, false);
    require(sampling != nullptr && object != nullptr);
    *sampling = object->sampling;
  });
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject texture) {
  return entry([&] {
    auto object = find_texture_object(texture, false);
    require(view != nullptr && object != nullptr && object->has_view);
    *view = object->view;
  });
}

// ---- surface objects -----------------------------------------------------------------------------------------------

CUresult cuSurfObjectCreate(CUsurfObject* surface, const CUDA_RESOURCE_DESC* resource) {
  return entry([&] {
    require(surface != nullptr && resource != nullptr);
    *surface = make_surface(*usable_context(), *resource);
  });
}

CUresult cuSurfObjectDestroy(CUsurfObject surface) {
  return entry([&] { require(surface == 0 || remove_texture(surface, true)); });
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject surface) {
  return entry([&] {
    auto object = find_texture_object(surface, true);
    require(resource != nullptr && object != nullptr);
    *resource = object->resource;
  });
}
