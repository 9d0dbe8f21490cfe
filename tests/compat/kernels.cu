// Kernels and variables of the compatibility program. The host half of them stands in runtime.cpp, as nvcc of any
// version writes it.

__device__ int factor = 3;
__managed__ int launches = 0;
__constant__ int offsets[4] = {10, 20, 30, 40};

extern "C" __global__ void scale(int* data, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * factor + offsets[i % 4];
  if (i == 0) ++launches;
}
