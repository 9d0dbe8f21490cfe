// Arrays, textures, surfaces, tensor maps.

#include "fixtures.h"
#include "fixtures_v1.h"

namespace answers {

namespace {

CUDA_ARRAY3D_DESCRIPTOR described(std::size_t width, std::size_t height, std::size_t depth, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = width;
  d.Height = height;
  d.Depth = depth;
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 1;
  d.Flags = flags;
  return d;
}
Slot array_of(World& w, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUarray made;
  MUST(cuArray3DCreate(&made, &d));
  w.at_end([made] { (void)cuArrayDestroy(made); });
  return slot_of(made);
}
Slot mipmap_of(World& w, const CUDA_ARRAY3D_DESCRIPTOR& d) {
  CUmipmappedArray made;
  MUST(cuMipmappedArrayCreate(&made, &d, 3));
  w.at_end([made] { (void)cuMipmappedArrayDestroy(made); });
  return slot_of(made);
}
CUDA_RESOURCE_DESC resource_of_array(CUarray array) {
  CUDA_RESOURCE_DESC d{};
  d.resType = CU_RESOURCE_TYPE_ARRAY;
  d.res.array.hArray = array;
  return d;
}

}  // namespace

void add_arrays(Makers& makers) {
  makers.insert({
      {"array_descriptor",
       [](World& w) {
         return pointer_to(w, CUDA_ARRAY_DESCRIPTOR{64, 16, CU_AD_FORMAT_FLOAT, 1});
       }},
      {"array_descriptor_v1", array_descriptor_v1},
      {"array3d_descriptor_v1", array3d_descriptor_v1},
      {"copy2d_v1", copy2d_v1},
      {"copy3d_v1", copy3d_v1},
      {"array3d_descriptor", [](World& w) { return pointer_to(w, described(64, 16, 0, 0)); }},
      {"array_layered", [](World& w) { return pointer_to(w, described(64, 16, 3, CUDA_ARRAY3D_LAYERED)); }},
      {"array_cube", [](World& w) { return pointer_to(w, described(16, 16, 6, CUDA_ARRAY3D_CUBEMAP)); }},
      {"array_surface", [](World& w) { return pointer_to(w, described(64, 16, 0, CUDA_ARRAY3D_SURFACE_LDST)); }},
      {"mipmap_descriptor", [](World& w) { return pointer_to(w, described(64, 16, 0, 0)); }},
      {"array", [](World& w) { return array_of(w, described(64, 16, 0, 0)); }},
      {"array_other", [](World& w) { return array_of(w, described(64, 16, 0, 0)); }},
      {"row", [](World& w) { return array_of(w, described(64, 0, 0, 0)); }},
      {"row2", [](World& w) { return array_of(w, described(64, 0, 0, 0)); }},
      {"planar_array",
       [](World& w) {
         CUDA_ARRAY3D_DESCRIPTOR d = described(64, 16, 0, 0);
         d.Format = CU_AD_FORMAT_NV12;
         d.NumChannels = 3;
         return array_of(w, d);
       }},
      {"sparse_array", [](World& w) { return array_of(w, described(1024, 1024, 0, CUDA_ARRAY3D_SPARSE)); }},
      {"sparse_mipmap", [](World& w) { return mipmap_of(w, described(1024, 1024, 0, CUDA_ARRAY3D_SPARSE)); }},
      {"mipmap", [](World& w) { return mipmap_of(w, described(64, 16, 0, 0)); }},
      {"resource_array", [](World& w) { return pointer_to(w, resource_of_array(w.get<CUarray>("array"))); }},
      {"resource_surface",
       [](World& w) {
         const Slot made = array_of(w, described(64, 16, 0, CUDA_ARRAY3D_SURFACE_LDST));
         w.name(made.word(), "surface_array");
         return pointer_to(w, resource_of_array(made.get<CUarray>()));
       }},
      {"resource_mipmap",
       [](World& w) {
         CUDA_RESOURCE_DESC d{};
         d.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
         d.res.mipmap.hMipmappedArray = w.get<CUmipmappedArray>("mipmap");
         return pointer_to(w, d);
       }},
      {"resource_linear",
       [](World& w) {
         CUDA_RESOURCE_DESC d{};
         d.resType = CU_RESOURCE_TYPE_LINEAR;
         d.res.linear.devPtr = w.get<CUdeviceptr>("memory");
         d.res.linear.format = CU_AD_FORMAT_FLOAT;
         d.res.linear.numChannels = 1;
         d.res.linear.sizeInBytes = 1024;
         return pointer_to(w, d);
       }},
      {"resource_pitch",
       [](World& w) {
         CUDA_RESOURCE_DESC d{};
         d.resType = CU_RESOURCE_TYPE_PITCH2D;
         d.res.pitch2D.devPtr = w.get<CUdeviceptr>("memory");
         d.res.pitch2D.format = CU_AD_FORMAT_FLOAT;
         d.res.pitch2D.numChannels = 1;
         d.res.pitch2D.width = 16;
         d.res.pitch2D.height = 4;
         d.res.pitch2D.pitchInBytes = 256;
         return pointer_to(w, d);
       }},
      {"texture_description",
       [](World& w) {
         CUDA_TEXTURE_DESC d{};
         d.addressMode[0] = d.addressMode[1] = d.addressMode[2] = CU_TR_ADDRESS_MODE_CLAMP;
         d.filterMode = CU_TR_FILTER_MODE_POINT;
         return pointer_to(w, d);
       }},
      {"view",
       [](World& w) {
         CUDA_RESOURCE_VIEW_DESC d{};
         d.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
         d.width = 64;
         d.height = 16;
         return pointer_to(w, d);
       }},
      {"texture",
       [](World& w) {
         CUtexObject made;
         MUST(cuTexObjectCreate(&made, w.get<CUDA_RESOURCE_DESC*>("resource_array"),
                                w.get<CUDA_TEXTURE_DESC*>("texture_description"),
                                w.get<CUDA_RESOURCE_VIEW_DESC*>("view")));
         w.at_end([made] { (void)cuTexObjectDestroy(made); });
         return slot_of(made);
       }},
      {"surface",
       [](World& w) {
         CUsurfObject made;
         MUST(cuSurfObjectCreate(&made, w.get<CUDA_RESOURCE_DESC*>("resource_surface")));
         w.at_end([made] { (void)cuSurfObjectDestroy(made); });
         return slot_of(made);
       }},
      {"reference",
       [](World& w) {
         CUtexref made;
         MUST(cuTexRefCreate(&made));
         w.at_end([made] { (void)cuTexRefDestroy(made); });
         return slot_of(made);
       }},
      {"tensor_map",
       [](World& w) {
         auto* made = reinterpret_cast<CUtensorMap*>((reinterpret_cast<std::uintptr_t>(w.memory(256)) + 63) & ~63ul);
         MUST(cuTensorMapEncodeTiled(made, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, w.get<void*>("memory"),
                                     w.get<cuuint64_t*>("extents64"), w.get<cuuint64_t*>("strides64"),
                                     w.get<cuuint32_t*>("ones32"), w.get<cuuint32_t*>("ones32"),
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                     CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
         return slot_of(made);
       }},
  });
}

}  // namespace answers
