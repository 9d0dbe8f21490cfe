// OpenMP and CUDA in one program: the threads of a team share the GPU.

#include <omp.h>

#include "harness.h"

namespace {

constexpr int teams = 8, count = 10000;

__global__ void steps(int* data, int n, int by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = (data[i] * 3 + by) % 1009;
}

void work(int* data, int n, int by, cudaStream_t stream = nullptr) {
  steps<<<(n + 127) / 128, 128, 0, stream>>>(data, n, by);
}

}  // namespace

CASE(a_stream_each) {
  Memory<int> data(whole<int>(teams * count));
#pragma omp parallel num_threads(teams)
  {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const int own = omp_get_thread_num();
    for (int i = 0; i < 50; ++i) work(data.data() + own * count, count, i + own, stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
  }
  show("data", data);
}

CASE(default_stream) {
  Memory<int> data(whole<int>(teams * count));
#pragma omp parallel num_threads(teams)
  for (int i = 0; i < 50; ++i) work(data.data() + omp_get_thread_num() * count, count, i);
  show("data", data);
}

CASE(default_stream_of_each_thread) {
  Memory<int> data(whole<int>(teams * count));
  OK(cudaDeviceSynchronize());
#pragma omp parallel num_threads(teams)
  {
    for (int i = 0; i < 50; ++i) work(data.data() + omp_get_thread_num() * count, count, i, cudaStreamPerThread);
    OK(cudaStreamSynchronize(cudaStreamPerThread));
  }
  show("data", data);
}

CASE(memory_each) {
  std::vector<int> sums(64);
#pragma omp parallel for num_threads(teams) schedule(dynamic)
  for (int i = 0; i < 64; ++i) {
    Memory<int> data(whole<int>(count, i + 1));
    work(data.data(), count, i);
    for (int value : data.get()) sums[i] += value;
  }
  show("sums", sums);
}

CASE(shared_between_cpu_and_gpu) {
  // Managed memory: the team fills it, the GPU changes it, the team adds it up.
  int* data;
  OK(cudaMallocManaged(&data, count * sizeof(int)));
#pragma omp parallel for num_threads(teams)
  for (int i = 0; i < count; ++i) data[i] = i % 100;
  for (int turn = 0; turn < 5; ++turn) {
    work(data, count, turn);
    OK(cudaDeviceSynchronize());
#pragma omp parallel for num_threads(teams)
    for (int i = 0; i < count; ++i) data[i] += 1;
  }
  long sum = 0;
#pragma omp parallel for num_threads(teams) reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += data[i];
  std::printf("%ld\n", sum);
  OK(cudaFree(data));
}

CASE(tasks) {
  Memory<int> data(whole<int>(count));
#pragma omp parallel num_threads(teams)
#pragma omp single
  for (int i = 0; i < 40; ++i) {
    // Each task depends on the one before: what they ask of the GPU comes in their order, from whatever thread.
#pragma omp task depend(inout : data) firstprivate(i)
    work(data.data(), count, i);
  }
  show("data", data);
}

CASE(pinned_each) {
  std::vector<long> sums(teams);
#pragma omp parallel num_threads(teams)
  {
    const int own = omp_get_thread_num();
    int *host, *device;
    cudaStream_t stream;
    OK(cudaMallocHost(&host, count * sizeof(int)));
    OK(cudaMalloc(&device, count * sizeof(int)));
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < count; ++i) host[i] = i % (own + 5);
    for (int turn = 0; turn < 5; ++turn) {
      OK(cudaMemcpyAsync(device, host, count * sizeof(int), cudaMemcpyHostToDevice, stream));
      work(device, count, turn, stream);
      OK(cudaMemcpyAsync(host, device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    }
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; ++i) sums[own] += host[i];
    OK(cudaFreeHost(host));
    OK(cudaFree(device));
  }
  show("sums", sums);
}
