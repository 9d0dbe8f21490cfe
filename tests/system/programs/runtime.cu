// A program of the CUDA runtime: everything that needs no working kernel.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

__global__ void nothing(int*, int) {}

int main() {
  constexpr int n = 1 << 20;
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  std::vector<int> there(n), back(n);
  for (int i = 0; i < n; ++i) there[i] = 7 * i;
  int *first, *second;
  CHECK(cudaMalloc(&first, n * sizeof(int)));
  CHECK(cudaMalloc(&second, n * sizeof(int)));
  CHECK(cudaMemcpy(first, there.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemcpyAsync(second, first, n * sizeof(int), cudaMemcpyDeviceToDevice, stream));
  nothing<<<n / 256, 256, 0, stream>>>(first, n);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpyAsync(back.data(), second, n * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  if (there != back) {
    std::fprintf(stderr, "other bytes came back\n");
    return 1;
  }
  CHECK(cudaFree(first));
  CHECK(cudaFree(second));
  CHECK(cudaStreamDestroy(stream));
  std::printf("%d devices, copied %d numbers\n", count, n);
  return 0;
}
