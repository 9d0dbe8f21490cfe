// Devices of the fake driver reach each other, and copy between each other as within one.

#include <cuda.h>

#include "graphs.h"
#include "objects.h"

namespace fargpu::fake::behaviour {

CUresult cuDeviceCanAccessPeer(int* can, CUdevice from, CUdevice to) {
  *can = from != to;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  if (from == to) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 3 : 1;
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D*, CUstream);

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes, CUstream stream) {
  return behaviour::cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* p, CUstream stream) {
  CUDA_MEMCPY3D copy{};
  copy.srcXInBytes = p->srcXInBytes;
  copy.srcY = p->srcY;
  copy.srcZ = p->srcZ;
  copy.srcMemoryType = p->srcMemoryType;
  copy.srcDevice = p->srcDevice;
  copy.srcArray = p->srcArray;
  copy.srcPitch = p->srcPitch;
  copy.srcHeight = p->srcHeight;
  copy.dstXInBytes = p->dstXInBytes;
  copy.dstY = p->dstY;
  copy.dstZ = p->dstZ;
  copy.dstMemoryType = p->dstMemoryType;
  copy.dstDevice = p->dstDevice;
  copy.dstArray = p->dstArray;
  copy.dstPitch = p->dstPitch;
  copy.dstHeight = p->dstHeight;
  copy.WidthInBytes = p->WidthInBytes;
  copy.Height = p->Height;
  copy.Depth = p->Depth;
  return behaviour::cuMemcpy3DAsync_v2(&copy, stream);
}

}  // namespace fargpu::fake::behaviour
