// Fixtures of calls of 32 bits, whose structs the headers show to their own versions only.

#define __CUDA_API_VERSION_INTERNAL 1
#include "fixtures_v1.h"

namespace answers {

namespace {

template <class T>
Slot pointer_to(World& w, const T& value) {
  T* at = w.zeroed<T>();
  *at = value;
  Slot slot;
  slot.put(at);
  return slot;
}

/// Between arrays, as addresses of this machine do not fit into 32 bits.
template <class T>
T between_arrays(World& w) {
  T p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  p.srcArray = w.get<CUarray>("array");
  p.dstArray = w.get<CUarray>("array_other");
  p.WidthInBytes = 32;
  p.Height = 4;
  return p;
}

}  // namespace

Slot array_descriptor_v1(World& w) { return pointer_to(w, CUDA_ARRAY_DESCRIPTOR_v1{64, 16, CU_AD_FORMAT_FLOAT, 1}); }
Slot array3d_descriptor_v1(World& w) {
  return pointer_to(w, CUDA_ARRAY3D_DESCRIPTOR_v1{64, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0});
}
Slot copy2d_v1(World& w) { return pointer_to(w, between_arrays<CUDA_MEMCPY2D_v1>(w)); }
Slot copy3d_v1(World& w) {
  auto p = between_arrays<CUDA_MEMCPY3D_v1>(w);
  p.Depth = 1;
  return pointer_to(w, p);
}

}  // namespace answers
