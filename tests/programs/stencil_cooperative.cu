// Heat spreads through a block of metal, held at fixed temperatures at its faces: one cooperative launch makes all
// steps.

#include "program.h"

#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

namespace groups = cooperative_groups;

constexpr int threads_per_block = 256;
constexpr int width = 96;
constexpr int height = 72;
constexpr int layers_per_scale = 64;
constexpr int max_steps = 20;
constexpr float diffusion = 0.125F;
// The largest change of a step falls below this before max_steps, so that the kernel itself decides when to stop.
constexpr float settled_below = 2.0F;

struct Outcome {
  int steps;
  unsigned changes[max_steps];  // the bits of the largest change of each step
};

__host__ __device__ float next_value(float middle, float west, float east, float north, float south, float up,
                                     float down) {
  // No product here is rounded before it is added, so host and device agree in each bit.
  const float around = ((west + east) + (north + south)) + (up + down);
#ifdef __CUDA_ARCH__
  return __fmaf_rn(diffusion, __fmaf_rn(-6.0F, middle, around), middle);
#else
  return std::fma(diffusion, std::fma(-6.0F, middle, around), middle);
#endif
}

__device__ float* row(const cudaPitchedPtr& field, int y, int z) {
  char* slice = static_cast<char*>(field.ptr) + static_cast<size_t>(z) * field.pitch * height;
  return reinterpret_cast<float*>(slice + static_cast<size_t>(y) * field.pitch);
}

__global__ void spread(cudaPitchedPtr from, cudaPitchedPtr to, int layers, Outcome* outcome) {
  const groups::grid_group grid = groups::this_grid();
  const groups::thread_block_tile<32> warp = groups::tiled_partition<32>(groups::this_thread_block());
  const int slice = width * height;
  int steps = 0;
  for (bool settled = false; !settled && steps < max_steps; ++steps) {
    float change = 0.0F;
    for (long long cell = grid.thread_rank(); cell < 1LL * slice * layers; cell += grid.size()) {
      const int x = static_cast<int>(cell % width);
      const int y = static_cast<int>(cell / width % height);
      const int z = static_cast<int>(cell / slice);
      const float* middle = row(from, y, z) + x;
      float value = *middle;
      if (x > 0 && x < width - 1 && y > 0 && y < height - 1 && z > 0 && z < layers - 1) {
        value = next_value(value, middle[-1], middle[1], row(from, y - 1, z)[x], row(from, y + 1, z)[x],
                           row(from, y, z - 1)[x], row(from, y, z + 1)[x]);
        change = fmaxf(change, fabsf(value - *middle));
      }
      row(to, y, z)[x] = value;
    }
    for (int distance = 16; distance > 0; distance /= 2) change = fmaxf(change, warp.shfl_down(change, distance));
    // Floats that are not negative have the order of their bits.
    if (warp.thread_rank() == 0) atomicMax(&outcome->changes[steps], __float_as_uint(change));
    grid.sync();
    settled = __uint_as_float(outcome->changes[steps]) < settled_below;
    const cudaPitchedPtr read = from;
    from = to;
    to = read;
  }
  if (grid.thread_rank() == 0) outcome->steps = steps;
}

std::vector<float> start_temperatures(int layers) {
  std::vector<float> field(static_cast<size_t>(width) * height * layers);
  unsigned state = 12345;
  for (float& value : field) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 24) * 0.25F;
  }
  return field;
}

Outcome spread_on_host(std::vector<float>& field, int layers) {
  Outcome outcome{};
  std::vector<float> next = field;
  constexpr size_t slice = static_cast<size_t>(width) * height;
  float change = settled_below;
  for (; change >= settled_below && outcome.steps < max_steps; ++outcome.steps) {
    change = 0.0F;
    for (int z = 1; z < layers - 1; ++z) {
      for (int y = 1; y < height - 1; ++y) {
        const size_t start = z * slice + static_cast<size_t>(y) * width;
        for (int x = 1; x < width - 1; ++x) {
          const float* cell = &field[start + x];
          next[start + x] =
              next_value(*cell, cell[-1], cell[1], *(cell - width), cell[width], *(cell - slice), cell[slice]);
          change = std::max(change, std::fabs(next[start + x] - *cell));
        }
      }
    }
    std::memcpy(&outcome.changes[outcome.steps], &change, sizeof change);
    field.swap(next);
  }
  return outcome;
}

cudaMemcpy3DParms whole_copy(cudaPitchedPtr from, cudaPitchedPtr to, cudaExtent extent) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = from;
  copy.dstPtr = to;
  copy.extent = extent;
  copy.kind = cudaMemcpyDefault;
  return copy;
}

cudaPitchedPtr packed(void* memory, cudaExtent extent) {
  return make_cudaPitchedPtr(memory, extent.width, extent.width, extent.height);
}

/// The most blocks that can be on the device at once, which is the most that a cooperative launch may have.
int resident_blocks() {
  int cooperative = 0, multiprocessors = 0, per_multiprocessor = 0;
  CUDA(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0));
  HOLDS(cooperative == 1);
  CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, spread, threads_per_block, 0));
  HOLDS(multiprocessors > 0 && per_multiprocessor > 0);
  return multiprocessors * per_multiprocessor;
}

}  // namespace

int main(int count, char** words) {
  const int layers = layers_per_scale * program::scale(count, words);
  std::vector<float> expected = start_temperatures(layers);
  float* host = nullptr;
  const size_t bytes = expected.size() * sizeof(float);
  CUDA(cudaMallocHost(&host, bytes));

  const cudaExtent extent = make_cudaExtent(width * sizeof(float), height, layers);
  cudaPitchedPtr first{}, second{};
  CUDA(cudaMalloc3D(&first, extent));
  CUDA(cudaMalloc3D(&second, extent));
  HOLDS(first.pitch >= extent.width && first.pitch == second.pitch);
  Outcome* outcome = nullptr;
  CUDA(cudaMallocManaged(&outcome, sizeof *outcome));
  std::memset(outcome, 0, sizeof *outcome);

  cudaStream_t stream = nullptr;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events) CUDA(cudaEventCreate(&event));
  const cudaMemcpy3DParms in = whole_copy(packed(expected.data(), extent), first, extent);
  CUDA(cudaMemcpy3DAsync(&in, stream));
  CUDA(cudaMemset3DAsync(second, 0xFF, extent, stream));

  const int most = resident_blocks();
  const int blocks = std::min(most, static_cast<int>(expected.size() / threads_per_block));
  void* arguments[] = {&first, &second, const_cast<int*>(&layers), &outcome};
  const auto launch = [&](int blocks) {
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&spread), dim3(blocks), dim3(threads_per_block),
                                       arguments, 0, stream);
  };
  // Blocks that wait for each other must all be resident, so one block more is refused, and nothing runs.
  HOLDS(launch(most + 1) == cudaErrorCooperativeLaunchTooLarge);
  HOLDS(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge && cudaGetLastError() == cudaSuccess);
  CUDA(cudaEventRecord(events[0], stream));
  CUDA(launch(blocks));
  CUDA(cudaEventRecord(events[1], stream));

  const Outcome outcome_on_host = spread_on_host(expected, layers);
  CUDA(cudaStreamSynchronize(stream));
  HOLDS(outcome_on_host.steps > 1 && outcome_on_host.steps < max_steps && outcome->steps == outcome_on_host.steps);
  HOLDS(std::memcmp(outcome->changes, outcome_on_host.changes, sizeof outcome->changes) == 0);
  float milliseconds = -1.0F;
  CUDA(cudaEventElapsedTime(&milliseconds, events[0], events[1]));
  HOLDS(milliseconds > 0.0F);

  const bool odd = outcome->steps % 2 == 1;
  const cudaPitchedPtr result = odd ? second : first;
  const cudaMemcpy3DParms out = whole_copy(result, packed(host, extent), extent);
  CUDA(cudaMemcpy3DAsync(&out, stream));
  CUDA(cudaStreamSynchronize(stream));
  HOLDS(std::memcmp(host, expected.data(), bytes) == 0);

  // The inner half of the block goes to a corner of the other field, and from there to the host without gaps.
  const cudaExtent inner = make_cudaExtent(extent.width / 2, height / 2, layers / 2);
  cudaMemcpy3DParms crop = whole_copy(result, odd ? first : second, inner);
  crop.srcPos = make_cudaPos(extent.width / 4, height / 4, layers / 4);
  CUDA(cudaMemcpy3DAsync(&crop, stream));
  cudaMemcpy3DParms tight = whole_copy(crop.dstPtr, packed(host, inner), inner);
  CUDA(cudaMemcpy3DAsync(&tight, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (size_t line = 0; line < inner.depth * inner.height; ++line) {
    const size_t y = line % inner.height + height / 4, z = line / inner.height + layers / 4;
    const float* from = &expected[(z * height + y) * width + width / 4];
    HOLDS(std::memcmp(host + line * (width / 2), from, inner.width) == 0);
  }

  // A box that reaches beyond the source is refused.
  crop.srcPos.x = extent.width;
  HOLDS(cudaMemcpy3D(&crop) != cudaSuccess && cudaGetLastError() != cudaSuccess);
  char line[160];
  std::snprintf(line, sizeof line, "heat spread through %d x %d x %d cells in %d steps, temperature amid %.4f", width,
                height, layers, outcome->steps, expected[(static_cast<size_t>(layers) * height + height) / 2 * width]);
  for (cudaEvent_t event : events) CUDA(cudaEventDestroy(event));
  for (void* memory : {static_cast<void*>(outcome), first.ptr, second.ptr}) CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(host));
  return program::passed(line);
}
