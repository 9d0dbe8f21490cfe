// Captures a few kernels and a copy into a CUDA graph and replays it.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

__global__ void scale(int* values, int n, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}

__global__ void shift(int* values, int n, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += by;
}

int main() {
  constexpr int n = 5000, rounds = 20;
  std::vector<int> values(n), expected(n);
  for (int i = 0; i < n; ++i) expected[i] = values[i] = i;
  int *work, *copy;
  CHECK(cudaMalloc(&work, n * sizeof(int)));
  CHECK(cudaMalloc(&copy, n * sizeof(int)));
  CHECK(cudaMemcpy(work, values.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  // Once outside of the capture, so that the kernels are loaded.
  scale<<<(n + 127) / 128, 128>>>(work, n, 1);
  shift<<<(n + 127) / 128, 128>>>(work, n, 0);
  CHECK(cudaDeviceSynchronize());

  cudaStream_t stream, side;
  cudaEvent_t fork, join;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  scale<<<(n + 127) / 128, 128, 0, stream>>>(work, n, 3);
  CHECK(cudaEventRecord(fork, stream));
  CHECK(cudaStreamWaitEvent(side, fork, 0));
  CHECK(cudaMemcpyAsync(copy, work, n * sizeof(int), cudaMemcpyDeviceToDevice, side));
  CHECK(cudaEventRecord(join, side));
  CHECK(cudaStreamWaitEvent(stream, join, 0));
  shift<<<(n + 127) / 128, 128, 0, stream>>>(work, n, 1);
  CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < rounds; ++round) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemcpy(values.data(), work, n * sizeof(int), cudaMemcpyDeviceToHost));
  std::vector<int> before(n);
  CHECK(cudaMemcpy(before.data(), copy, n * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    unsigned value = static_cast<unsigned>(expected[i]);
    unsigned last = 0;
    for (int round = 0; round < rounds; ++round) value = (last = value * 3) + 1;
    if (values[i] != static_cast<int>(value) || before[i] != static_cast<int>(last)) {
      std::fprintf(stderr, "element %d is %d instead of %d\n", i, values[i], static_cast<int>(value));
      return 1;
    }
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  std::printf("graph of %zu nodes, launched %d times: PASSED\n", nodes, rounds);
  return 0;
}
