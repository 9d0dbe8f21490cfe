// What copies are given.

#include "fixtures.h"

namespace answers {

CUDA_MEMCPY3D copy_between(World& w) {
  CUDA_MEMCPY3D p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  p.srcDevice = w.get<CUdeviceptr>("memory2");
  p.dstDevice = w.get<CUdeviceptr>("memory");
  p.srcPitch = p.dstPitch = 64;
  p.srcHeight = p.dstHeight = 4;
  p.WidthInBytes = 32;
  p.Height = 4;
  p.Depth = 2;
  return p;
}
CUstreamBatchMemOpParams write_value(World& w) {
  CUstreamBatchMemOpParams p{};
  p.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  p.writeValue.address = w.get<CUdeviceptr>("memory");
  p.writeValue.value = 9;
  return p;
}

void add_copies(Makers& makers) {
  makers.insert({
      {"copy2d",
       [](World& w) {
         CUDA_MEMCPY2D p{};
         p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
         p.srcDevice = w.get<CUdeviceptr>("memory2");
         p.dstDevice = w.get<CUdeviceptr>("memory");
         p.srcPitch = p.dstPitch = 64;
         p.WidthInBytes = 32;
         p.Height = 4;
         return pointer_to(w, p);
       }},
      {"copy3d", [](World& w) { return pointer_to(w, copy_between(w)); }},
      {"copy3d_peer",
       [](World& w) {
         CUDA_MEMCPY3D_PEER p{};
         const CUDA_MEMCPY3D from = copy_between(w);
         p.srcMemoryType = from.srcMemoryType;
         p.dstMemoryType = from.dstMemoryType;
         p.srcDevice = from.srcDevice;
         p.dstDevice = from.dstDevice;
         p.srcPitch = p.dstPitch = 64;
         p.srcHeight = p.dstHeight = 4;
         p.srcContext = p.dstContext = primary_context();
         p.WidthInBytes = 32;
         p.Height = 4;
         p.Depth = 2;
         return pointer_to(w, p);
       }},
  });
}

}  // namespace answers
