// Copies that run beside the threads that start them, and the barriers that tell of their end.

#include "harness.h"

#ifdef __CUDACC__

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda_pipeline.h>

#include <cuda/barrier>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

// Barriers in shared memory have constructors, which run nowhere; init() stands in for them.
#pragma nv_diag_suppress 20054

// While one tile is summed the next is on its way.
extern "C" __global__ void pipeline_primitives(const int* in, int* out, int tiles) {
  __shared__ int buffer[2][128];
  int t = threadIdx.x, sum = 0;
  __pipeline_memcpy_async(&buffer[0][t], &in[t], 4);
  __pipeline_commit();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) __pipeline_memcpy_async(&buffer[(tile + 1) & 1][t], &in[(tile + 1) * 128 + t], 4);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    sum = sum * 3 + buffer[tile & 1][127 - t];
    __syncthreads();
  }
  out[t] = sum;
}

extern "C" __global__ void copies_of_all_sizes(const char* in, char* out) {
  __shared__ __align__(16) char buffer[32 * 16 * 3];
  int t = threadIdx.x;
  __pipeline_memcpy_async(buffer + t * 16, in + t * 16, 16);
  __pipeline_memcpy_async(buffer + 512 + t * 8, in + 512 + t * 8, 8);
  // Part of it is filled with zeros.
  __pipeline_memcpy_async(buffer + 1024 + t * 16, in + 1024 + t * 16, 16, t % 17);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncwarp();
  for (int i = t; i < 512 + 256; i += 32) out[i] = buffer[i];
  for (int i = t; i < 512; i += 32) out[1024 + i] = buffer[1024 + i];
}

extern "C" __global__ void block_barriers(const int* in, int* out, int rounds) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int values[128];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  int value = in[threadIdx.x];
  for (int round = 0; round < rounds; ++round) {
    values[threadIdx.x] = value;
    barrier.arrive_and_wait();
    value = value * 3 + values[(threadIdx.x + round + 1) % 128];
    barrier.arrive_and_wait();
  }
  out[threadIdx.x] = value;
}

// The first warp fills, the others empty: barriers for full and empty buffers.
extern "C" __global__ void producer_consumer(const int* in, int* out, int tiles) {
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ Barrier full[2], empty[2];
  __shared__ int buffer[2][32];
  if (threadIdx.x < 2) {
    init(&full[threadIdx.x], blockDim.x);
    init(&empty[threadIdx.x], blockDim.x);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int tile = 0; tile < tiles; ++tile) {
      empty[tile % 2].arrive_and_wait();
      buffer[tile % 2][threadIdx.x] = in[tile * 32 + threadIdx.x];
      (void)full[tile % 2].arrive();
    }
  } else {
    (void)empty[0].arrive();
    (void)empty[1].arrive();
    int sum = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      full[tile % 2].arrive_and_wait();
      sum = sum * 5 + buffer[tile % 2][(threadIdx.x * 7) % 32];
      (void)empty[tile % 2].arrive();
    }
    out[threadIdx.x - 32] = sum;
  }
}

extern "C" __global__ void group_copies(const int* in, int* out) {
  __shared__ int buffer[256];
  auto block = cg::this_thread_block();
  cg::memcpy_async(block, buffer, in + blockIdx.x * 256, sizeof buffer);
  cg::wait(block);
  out[blockIdx.x * 256 + threadIdx.x] = buffer[255 - threadIdx.x];
}

extern "C" __global__ void library_pipeline(const int* in, int* out, int tiles) {
  constexpr int stages = 3;
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;
  __shared__ int buffer[stages][64];
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  int sum = 0;
  for (int tile = 0, fetched = 0; tile < tiles; ++tile) {
    for (; fetched < tiles && fetched < tile + stages; ++fetched) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, buffer[fetched % stages], in + fetched * 64, cuda::aligned_size_t<4>(64 * 4), pipeline);
      pipeline.producer_commit();
    }
    pipeline.consumer_wait();
    sum = sum * 3 + buffer[tile % stages][63 - threadIdx.x];
    pipeline.consumer_release();
  }
  out[threadIdx.x] = sum;
}

#if __CUDA_ARCH__ >= 900
// A bulk copy reports the bytes it brought to a barrier in shared memory.
extern "C" __global__ void bulk_copies(const int* in, int* out, int count) {
  extern __shared__ __align__(16) int buffer[];
  __shared__ unsigned long long barrier;
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(buffer));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(count * 4) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
        "l"(in), "r"(count * 4), "r"(address)
        : "memory");
  }
  __syncthreads();
  unsigned is_done = 0;
  while (is_done == 0)
    asm volatile(
        "{ .reg .pred %%p; mbarrier.try_wait.parity.shared::cta.b64 %%p, [%1], 0;"
        " selp.u32 %0, 1, 0, %%p; }"
        : "=r"(is_done)
        : "r"(address)
        : "memory");
  for (int i = threadIdx.x; i < count; i += blockDim.x) buffer[i] += i;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(target), "r"(count * 4)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
#endif

#else

CASE(pipelines) {
  constexpr int tiles = 9;
  std::vector<int> in = random_values<int>(tiles * 128, -100, 100), wanted(128), wanted64(64);
  Kernels kernels;
  Buffer<int> x(in), out(128), out64(64);
  kernels.run("pipeline_primitives", {}, {128}, x.address(), out.address(), tiles);
  kernels.run("library_pipeline", {}, {64}, x.address(), out64.address(), tiles);
  for (int tile = 0; tile < tiles; ++tile) {
    for (int t = 0; t < 128; ++t) wanted[t] = wanted[t] * 3 + in[tile * 128 + 127 - t];
    for (int t = 0; t < 64; ++t) wanted64[t] = wanted64[t] * 3 + in[tile * 64 + 63 - t];
  }
  expect_same(out.get(), wanted);
  expect_same(out64.get(), wanted64);
}

CASE(copy_sizes) {
  std::vector<char> in = random_values<char>(1536, -128, 127), wanted = in;
  Kernels kernels;
  Buffer<char> x(in), out(in);
  kernels.run("copies_of_all_sizes", {}, {32}, x.address(), out.address());
  for (int t = 0; t < 32; ++t)
    for (int i = 16 - t % 17; i < 16; ++i) wanted[1024 + t * 16 + i] = 0;
  expect_same(out.get(), wanted);
}

CASE(barriers) {
  constexpr int rounds = 7, tiles = 12;
  std::vector<int> in = random_values<int>(512, -100, 100);
  Kernels kernels;
  Buffer<int> x(in), out(128);
  kernels.run("block_barriers", {}, {128}, x.address(), out.address(), rounds);
  std::vector<unsigned> values(in.begin(), in.begin() + 128);
  for (int round = 0; round < rounds; ++round) {
    std::vector<unsigned> next(128);
    for (int t = 0; t < 128; ++t) next[t] = values[t] * 3 + values[(t + round + 1) % 128];
    values = next;
  }
  expect_same(out.get(), std::vector<int>(values.begin(), values.end()));

  Buffer<int> consumed(96);
  kernels.run("producer_consumer", {}, {128}, x.address(), consumed.address(), tiles);
  std::vector<int> wanted(96);
  for (int t = 0; t < 96; ++t) {
    unsigned sum = 0;
    for (int tile = 0; tile < tiles; ++tile) sum = sum * 5 + static_cast<unsigned>(in[tile * 32 + (t + 32) * 7 % 32]);
    wanted[t] = static_cast<int>(sum);
  }
  expect_same(consumed.get(), wanted);
}

CASE(group_copies) {
  std::vector<int> in = random_values<int>(1024, -100, 100), wanted(1024);
  Kernels kernels;
  Buffer<int> x(in), out(1024);
  kernels.run("group_copies", {4}, {256}, x.address(), out.address());
  for (size_t i = 0; i < 1024; ++i) wanted[i] = in[i / 256 * 256 + 255 - i % 256];
  expect_same(out.get(), wanted);
}

CASE(bulk_copies) {
  constexpr int count = 2000;
  std::vector<int> in = random_values<int>(count, -100, 100);
  Kernels kernels;
  Buffer<int> x(in), out(count);
  kernels.run_with_shared("bulk_copies", {}, {128}, count * 4, x.address(), out.address(), count);
  for (int i = 0; i < count; ++i) in[i] += i;
  expect_same(out.get(), in);
}

#endif
