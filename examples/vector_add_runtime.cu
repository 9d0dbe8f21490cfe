// Adds two vectors with the CUDA runtime. An ordinary CUDA program: nothing in it knows where the GPU is.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                       \
  do {                                                                                                    \
    const cudaError_t status = (call);                                                                    \
    if (status != cudaSuccess) {                                                                          \
      std::fprintf(stderr, "%s: %s (%s)\n", #call, cudaGetErrorName(status), cudaGetErrorString(status)); \
      std::exit(1);                                                                                       \
    }                                                                                                     \
  } while (0)

__global__ void add(const float* a, const float* b, float* sum, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum[i] = a[i] + b[i];
}

int main() {
  constexpr int n = 1 << 20;
  std::vector<float> a(n), b(n), sum(n);
  for (int i = 0; i < n; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = static_cast<float>(n - i) / 2;
  }
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  std::printf("device: %s, compute capability %d.%d\n", device.name, device.major, device.minor);

  float *da, *db, *dsum;
  CHECK(cudaMalloc(&da, n * sizeof(float)));
  CHECK(cudaMalloc(&db, n * sizeof(float)));
  CHECK(cudaMalloc(&dsum, n * sizeof(float)));
  CHECK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  add<<<(n + 255) / 256, 256>>>(da, db, dsum, n);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(sum.data(), dsum, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    if (std::fabs(sum[i] - (a[i] + b[i])) > 1e-6f * std::fabs(sum[i])) {
      std::fprintf(stderr, "element %d is %f instead of %f\n", i, sum[i], a[i] + b[i]);
      return 1;
    }
  }
  CHECK(cudaFree(da));
  CHECK(cudaFree(db));
  CHECK(cudaFree(dsum));
  std::printf("vector addition of %d elements: PASSED\n", n);
  return 0;
}
