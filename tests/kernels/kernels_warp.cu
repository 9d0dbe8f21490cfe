// What the lanes of a warp do together, cooperative groups, and sums over blocks and grids.

#include "harness.h"

#ifdef __CUDACC__

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

extern "C" __global__ void shuffles(const int* in, int* out) {
  int lane = threadIdx.x % 32, value = in[threadIdx.x], k = 0;
  auto put = [&](int result) { out[k++ * blockDim.x + threadIdx.x] = result; };
  put(__shfl_sync(~0u, value, 5));
  put(__shfl_sync(~0u, value, lane * 7 + 3));
  put(__shfl_up_sync(~0u, value, 3));
  put(__shfl_down_sync(~0u, value, 3));
  put(__shfl_xor_sync(~0u, value, 21));
  put(__shfl_sync(~0u, value, 1, 8));
  put(__shfl_up_sync(~0u, value, 2, 8));
  put(__shfl_down_sync(~0u, value, 5, 8));
  put(__shfl_xor_sync(~0u, value, 9, 16));
  long long wide = __shfl_xor_sync(~0u, static_cast<long long>(value) << 33 | lane, 1);
  put(static_cast<int>(wide >> 33));
  double real = __shfl_down_sync(~0u, static_cast<double>(value), 1);
  put(static_cast<int>(real));
}

extern "C" __global__ void votes(const int* in, unsigned* out) {
  int value = in[threadIdx.x], k = 0;
  auto put = [&](unsigned result) { out[k++ * blockDim.x + threadIdx.x] = result; };
  put(__ballot_sync(~0u, value & 1));
  put(__all_sync(~0u, value >= 0));
  put(__any_sync(~0u, value == 100));
  put(__all_sync(~0u, value < 50));
  put(__match_any_sync(~0u, value & 7));
  int is_equal;
  put(__match_all_sync(~0u, value >> 10, &is_equal));
  put(is_equal);
  put(__match_any_sync(~0u, static_cast<long long>(value & 3) << 40));
  // Half of the lanes only.
  unsigned half = 0;
  if (threadIdx.x & 1) half = __ballot_sync(0xaaaaaaaa, value & 2);
  put(half);
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void warp_reductions(const int* in, int* out) {
  int value = in[threadIdx.x], k = 0;
  unsigned bits = value;
  auto put = [&](int result) { out[k++ * blockDim.x + threadIdx.x] = result; };
  put(__reduce_add_sync(~0u, value));
  put(__reduce_min_sync(~0u, value));
  put(__reduce_max_sync(~0u, value));
  put(__reduce_min_sync(~0u, bits));
  put(__reduce_max_sync(~0u, bits));
  put(__reduce_and_sync(~0u, bits | 0xff));
  put(__reduce_or_sync(~0u, bits & 0xff00ff));
  put(__reduce_xor_sync(~0u, bits));
}
#endif

__device__ int warp_sum(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(~0u, value, offset);
  return value;
}

extern "C" __global__ void reduce_sum(const int* in, long long* out, int count) {
  __shared__ int sums[32];
  int sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += in[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0;
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(out),
                static_cast<unsigned long long>(static_cast<long long>(sum)));
  }
}

// Sums of all elements before: within the warp, over the warps, then over the blocks before.
extern "C" __global__ void scan(const unsigned* in, unsigned* out, unsigned* block_sums, unsigned* ready, int count) {
  __shared__ unsigned warp_sums[32];
  __shared__ unsigned before;
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  unsigned own = i < count ? in[i] : 0, sum = own;
  for (int offset = 1; offset < 32; offset *= 2) {
    unsigned other = __shfl_up_sync(~0u, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    unsigned total = threadIdx.x < blockDim.x / 32 ? warp_sums[threadIdx.x] : 0;
    for (int offset = 1; offset < 32; offset *= 2) {
      unsigned other = __shfl_up_sync(~0u, total, offset);
      if (lane >= offset) total += other;
    }
    warp_sums[threadIdx.x] = total;
  }
  __syncthreads();
  if (threadIdx.x >= 32) sum += warp_sums[threadIdx.x / 32 - 1];
  if (threadIdx.x == blockDim.x - 1) {
    // Blocks start in order, so the block before is under way and will get here.
    before = 0;
    if (blockIdx.x > 0) {
      while (atomicAdd(&ready[blockIdx.x - 1], 0) == 0) {}
      before = *static_cast<volatile unsigned*>(&block_sums[blockIdx.x - 1]);
    }
    block_sums[blockIdx.x] = before + sum;
    __threadfence();
    atomicExch(&ready[blockIdx.x], 1);
  }
  __syncthreads();
  if (i < count) out[i] = before + sum - own;
}

template <int size>
__device__ void tile_results(int value, int* out, int& k) {
  auto tile = cg::tiled_partition<size>(cg::this_thread_block());
  auto put = [&](int result) { out[k++ * blockDim.x + threadIdx.x] = result; };
  put(cg::reduce(tile, value, cg::plus<int>()));
  put(cg::reduce(tile, value, cg::less<int>()));
  put(cg::inclusive_scan(tile, value));
  put(cg::exclusive_scan(tile, value));
  put(tile.shfl(value, size / 2));
  put(tile.thread_rank() * 100 + tile.meta_group_rank());
}

extern "C" __global__ void tiles(const int* in, int* out) {
  int k = 0, value = in[threadIdx.x];
  tile_results<4>(value, out, k);
  tile_results<16>(value, out, k);
  tile_results<32>(value, out, k);
}

extern "C" __global__ void coalesced_groups(const int* in, int* out, int* total) {
  if (in[threadIdx.x] % 3 == 0) {
    cg::coalesced_group group = cg::coalesced_threads();
    int base = 0;
    if (group.thread_rank() == 0) base = atomicAdd(total, group.size());
    base = group.shfl(base, 0);
    out[base + group.thread_rank()] = in[threadIdx.x];
  }
}

extern "C" __global__ void labeled_groups(const int* in, int* out) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto group = cg::labeled_partition(warp, in[threadIdx.x] % 4);
  out[threadIdx.x] = group.size() * 100 + group.thread_rank();
}

// Each step needs what all blocks wrote in the one before.
extern "C" __global__ void grid_steps(int* data, int* scratch, int count, int steps) {
  cg::grid_group grid = cg::this_grid();
  for (int step = 0; step < steps; ++step) {
    for (int i = grid.thread_rank(); i < count; i += grid.size())
      scratch[i] = data[(i + 1) % count] + data[(i + count - 1) % count];
    grid.sync();
    for (int i = grid.thread_rank(); i < count; i += grid.size()) data[i] = scratch[i];
    grid.sync();
  }
}

extern "C" __global__ void lane_registers(unsigned* out) {
  unsigned values[6];
  asm("mov.u32 %0, %%lanemask_eq;" : "=r"(values[0]));
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(values[1]));
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(values[2]));
  asm("mov.u32 %0, %%lanemask_gt;" : "=r"(values[3]));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(values[4]));
  asm("mov.u32 %0, %%nwarpid;" : "=r"(values[5]));
  for (int k = 0; k < 5; ++k) out[k * 32 + threadIdx.x] = values[k];
  out[160 + threadIdx.x] = values[5] > 0 && __popc(values[0]) == 1;
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void elected(int* out) {
  int is_elected = 0;
  if (threadIdx.x >= 8)
    asm volatile("{ .reg .pred %%p; elect.sync _|%%p, 0xffffff00; selp.s32 %0, 1, 0, %%p; }" : "=r"(is_elected));
  out[threadIdx.x] = is_elected;
}

// A cluster's blocks read each other's shared memory.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_sums(const int* in, int* out) {
  __shared__ int own[64];
  cg::cluster_group cluster = cg::this_cluster();
  int i = blockIdx.x * 64 + threadIdx.x;
  own[threadIdx.x] = in[i];
  cluster.sync();
  int sum = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
    sum += cluster.map_shared_rank(own, rank)[threadIdx.x] * static_cast<int>(rank + 1);
  out[i] = sum + static_cast<int>(cluster.block_rank()) * 1000000;
  cluster.sync();
}

extern "C" __global__ void cluster_histogram(const int* in, int* out, int count) {
  extern __shared__ int bins[];
  cg::cluster_group cluster = cg::this_cluster();
  int per_block = 256 / cluster.num_blocks();
  for (int i = threadIdx.x; i < per_block; i += blockDim.x) bins[i] = 0;
  cluster.sync();
  int first = blockIdx.x / cluster.num_blocks() * blockDim.x * cluster.num_blocks();
  for (int i = cluster.thread_rank() + first; i < count; i += gridDim.x * blockDim.x) {
    int value = in[i] & 255;
    atomicAdd(cluster.map_shared_rank(bins, value / per_block) + value % per_block, 1);
  }
  cluster.sync();
  for (int i = threadIdx.x; i < per_block; i += blockDim.x)
    atomicAdd(&out[cluster.block_rank() * per_block + i], bins[i]);
}
#endif

#else

CASE(shuffles) {
  constexpr int threads = 64, operations = 11;
  std::vector<int> in = random_values<int>(threads, -1000000, 1000000);
  Kernels kernels;
  Buffer<int> x(in), out(threads * operations);
  kernels.run("shuffles", {}, {threads}, x.address(), out.address());
  std::vector<int> wanted(threads * operations);
  for (int i = 0; i < threads; ++i) {
    int lane = i % 32, base = i - lane;
    auto at = [&](int source) { return in[base + source]; };
    auto within = [&](int source, int width) {  // or one's own value
      return source >= 0 && source < 32 && source / width == lane / width ? at(source) : at(lane);
    };
    int results[operations] = {at(5),
                               at((lane * 7 + 3) % 32),
                               within(lane - 3, 32),
                               within(lane + 3, 32),
                               at(lane ^ 21),
                               at(lane / 8 * 8 + 1),
                               within(lane - 2, 8),
                               within(lane + 5, 8),
                               at(lane ^ 9),
                               at(lane ^ 1),
                               within(lane + 1, 32)};
    for (int k = 0; k < operations; ++k) wanted[k * threads + i] = results[k];
  }
  expect_same(out.get(), wanted);
}

CASE(votes) {
  constexpr int operations = 9;
  std::vector<int> in = random_values<int>(32, 0, 4000);
  in[17] = 100;
  Kernels kernels;
  Buffer<int> x(in);
  Buffer<unsigned> out(32 * operations);
  kernels.run("votes", {}, {32}, x.address(), out.address());
  std::vector<unsigned> wanted(32 * operations);
  for (int i = 0; i < 32; ++i) {
    auto lanes = [&](auto condition) {
      unsigned mask = 0;
      for (int k = 0; k < 32; ++k) mask |= static_cast<unsigned>(condition(k)) << k;
      return mask;
    };
    unsigned high = lanes([&](int k) { return in[k] >> 10 == in[0] >> 10; });
    unsigned results[operations] = {lanes([&](int k) { return in[k] & 1; }),
                                    1,
                                    1,
                                    lanes([&](int k) { return in[k] < 50; }) == ~0u,
                                    lanes([&](int k) { return (in[k] & 7) == (in[i] & 7); }),
                                    high == ~0u ? ~0u : 0,
                                    high == ~0u,
                                    lanes([&](int k) { return (in[k] & 3) == (in[i] & 3); }),
                                    i & 1 ? lanes([&](int k) { return k & 1 && in[k] & 2; }) : 0};
    for (int k = 0; k < operations; ++k) wanted[k * 32 + i] = results[k];
  }
  expect_same(out.get(), wanted);
}

CASE(warp_reductions) {
  constexpr int operations = 8;
  std::vector<int> in = random_values<int>(64, -1000000, 1000000);
  Kernels kernels;
  Buffer<int> x(in), out(64 * operations);
  kernels.run("warp_reductions", {}, {64}, x.address(), out.address());
  std::vector<int> wanted(64 * operations);
  for (int i = 0; i < 64; ++i) {
    auto all = [&](auto combine, auto prepare) {
      auto result = prepare(in[i / 32 * 32]);
      for (int k = 1; k < 32; ++k) result = combine(result, prepare(in[i / 32 * 32 + k]));
      return static_cast<int>(result);
    };
    auto same = [](int v) { return v; };
    auto bits = [](int v) { return static_cast<unsigned>(v); };
    auto least = [](auto a, auto b) { return std::min(a, b); };
    auto most = [](auto a, auto b) { return std::max(a, b); };
    int results[operations] = {all(std::plus<>(), same),
                               all(least, same),
                               all(most, same),
                               all(least, bits),
                               all(most, bits),
                               all(std::bit_and<>(), [](int v) { return static_cast<unsigned>(v) | 0xff; }),
                               all(std::bit_or<>(), [](int v) { return static_cast<unsigned>(v) & 0xff00ff; }),
                               all(std::bit_xor<>(), bits)};
    for (int k = 0; k < operations; ++k) wanted[k * 64 + i] = results[k];
  }
  expect_same(out.get(), wanted);
}

CASE(reduce) {
  constexpr int count = 100001;
  std::vector<int> in = random_values<int>(count, -10000, 10000);
  Kernels kernels;
  Buffer<int> x(in);
  Buffer<long long> out(1);
  out.clear();
  kernels.run("reduce_sum", {20}, {256}, x.address(), out.address(), count);
  long long sum = 0;
  for (int value : in) sum += value;
  expect_same(out.get(), {sum});
}

CASE(scan) {
  constexpr int count = 20000;
  std::vector<unsigned> in = random_values<unsigned>(count, 0, 1000), wanted(count);
  unsigned sum = 0;
  for (int i = 0; i < count; sum += in[i++]) wanted[i] = sum;
  Kernels kernels;
  unsigned blocks = blocks_for(count, 256);
  Buffer<unsigned> x(in), out(count), sums(blocks), ready(blocks);
  ready.clear();
  kernels.run("scan", {blocks}, {256}, x.address(), out.address(), sums.address(), ready.address(), count);
  expect_same(out.get(), wanted);
}

CASE(tiles) {
  constexpr int threads = 64, operations = 18;
  std::vector<int> in = random_values<int>(threads, -1000, 1000);
  Kernels kernels;
  Buffer<int> x(in), out(threads * operations);
  kernels.run("tiles", {}, {threads}, x.address(), out.address());
  std::vector<int> wanted;
  for (int size : {4, 16, 32}) {
    std::vector<int> results[6];
    for (int i = 0; i < threads; ++i) {
      int rank = i % size;
      const int* tile = &in[i - rank];
      int before = 0, sum = 0;
      for (int k = 0; k < rank; ++k) before += tile[k];
      for (int k = 0; k < size; ++k) sum += tile[k];
      int all[6] = {
          sum, *std::min_element(tile, tile + size), before + in[i], before, tile[size / 2], rank * 100 + i / size};
      for (int k = 0; k < 6; ++k) results[k].push_back(all[k]);
    }
    for (const auto& result : results) wanted.insert(wanted.end(), result.begin(), result.end());
  }
  expect_same(out.get(), wanted);
}

CASE(groups) {
  constexpr int threads = 96;
  std::vector<int> in = random_values<int>(threads, 0, 1000);
  Kernels kernels;
  Buffer<int> x(in), out(threads), total(1);
  total.clear();
  out.clear();
  kernels.run("coalesced_groups", {}, {threads}, x.address(), out.address(), total.address());
  std::vector<int> wanted, got = out.get();
  for (int value : in)
    if (value % 3 == 0) wanted.push_back(value);
  expect_same(total.get(), {static_cast<int>(wanted.size())});
  got.resize(wanted.size());
  std::sort(wanted.begin(), wanted.end());
  std::sort(got.begin(), got.end());
  expect_same(got, wanted);

  kernels.run("labeled_groups", {}, {threads}, x.address(), out.address());
  wanted.assign(threads, 0);
  for (int i = 0; i < threads; ++i)
    for (int k = i / 32 * 32; k < i / 32 * 32 + 32; ++k)
      if (in[k] % 4 == in[i] % 4) wanted[i] += k < i ? 101 : 100;
  expect_same(out.get(), wanted);
}

CASE(grid_sync) {
  constexpr int count = 5000, steps = 6, blocks = 24, threads = 128;
  std::vector<int> data = random_values<int>(count, -10, 10);
  Kernels kernels;
  Buffer<int> x(data), scratch(count);
  CUdeviceptr x_address = x.address(), scratch_address = scratch.address();
  int element_count = count, step_count = steps;
  void* arguments[] = {&x_address, &scratch_address, &element_count, &step_count};
  OK(cuLaunchCooperativeKernel(kernels.get("grid_steps"), blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments));
  for (int step = 0; step < steps; ++step) {
    std::vector<int> next(count);
    for (int i = 0; i < count; ++i) next[i] = data[(i + 1) % count] + data[(i + count - 1) % count];
    data = next;
  }
  expect_same(x.get(), data);

  // As many blocks as fit run; one more is refused.
  int per_multiprocessor, multiprocessors;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernels.get("grid_steps"), 1024, 0));
  OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  unsigned most = static_cast<unsigned>(per_multiprocessor * multiprocessors);
  step_count = 1;
  OK(cuLaunchCooperativeKernel(kernels.get("grid_steps"), most, 1, 1, 1024, 1, 1, 0, nullptr, arguments));
  OK(cuCtxSynchronize());
  GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        cuLaunchCooperativeKernel(kernels.get("grid_steps"), most + 1, 1, 1, 1024, 1, 1, 0, nullptr, arguments));
}

CASE(lane_registers) {
  Kernels kernels;
  Buffer<unsigned> out(192);
  kernels.run("lane_registers", {}, {32}, out.address());
  std::vector<unsigned> wanted(192, 1);
  for (unsigned i = 0; i < 32; ++i) {
    unsigned bit = 1u << i;
    wanted[i] = bit;
    wanted[32 + i] = bit - 1;
    wanted[64 + i] = bit | (bit - 1);
    wanted[96 + i] = ~(bit | (bit - 1));
    wanted[128 + i] = ~(bit - 1);
  }
  expect_same(out.get(), wanted);
}

CASE(elect) {
  Kernels kernels;
  Buffer<int> out(32);
  kernels.run("elected", {}, {32}, out.address());
  int chosen = 0;
  std::vector<int> got = out.get();
  for (size_t i = 0; i < 32; ++i) chosen += got[i] * (i >= 8 ? 1 : 100);
  HOLDS(chosen == 1);
}

CASE(clusters) {
  std::vector<int> in = random_values<int>(8 * 64, 0, 1000), wanted(8 * 64);
  Kernels kernels;
  Buffer<int> x(in), out(8 * 64);
  kernels.run("cluster_sums", {8}, {64}, x.address(), out.address());
  for (int i = 0; i < 512; ++i) {
    wanted[i] = i / 64 % 4 * 1000000;
    for (int rank = 0; rank < 4; ++rank) wanted[i] += in[i / 256 * 256 + rank * 64 + i % 64] * (rank + 1);
  }
  expect_same(out.get(), wanted);
  GIVES(CUDA_ERROR_INVALID_CLUSTER_SIZE,
        kernels.try_launch("cluster_sums", {6}, {64}, 0, nullptr, x.address(), out.address()));
}

CASE(cluster_launch_attribute) {
  constexpr int count = 20000;
  std::vector<int> in = random_values<int>(count, 0, 1 << 20), wanted(256);
  for (int value : in) ++wanted[value & 255];
  Kernels kernels;
  CUfunction function = kernels.get("cluster_histogram");
  for (unsigned size : {1u, 2u, 8u}) {
    Buffer<int> x(in), out(256);
    out.clear();
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {size, 1, 1};
    CUlaunchConfig config = {};
    config.gridDimX = 16;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = 1024;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    OK(cuOccupancyMaxActiveClusters(&clusters, function, &config));
    HOLDS(clusters > 0);
    CUdeviceptr x_address = x.address(), out_address = out.address();
    int element_count = count;
    void* arguments[] = {&x_address, &out_address, &element_count};
    OK(cuLaunchKernelEx(&config, function, arguments, nullptr));
    expect_same(out.get(), wanted);
  }
}

#endif
