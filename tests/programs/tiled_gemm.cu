// Multiplies matrices by tiles in shared memory, small ones and ones larger than 48 KiB, and adds a bias at the end.

#include "program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace {

constexpr int columns = 328;
constexpr int depth = 530;
constexpr int rows_per_scale = 600;  // no size is a multiple of a tile

/// How the work is cut: a block computes tile x tile elements, a thread per_thread x per_thread of them.
struct Small {
  static constexpr int tile = 16, tile_depth = 16, per_thread = 1;
};
struct Large {
  static constexpr int tile = 64, tile_depth = 128, per_thread = 4;
};

template <typename Cut>
constexpr size_t shared_bytes = 2 * sizeof(float) * Cut::tile* Cut::tile_depth;
static_assert(shared_bytes<Large> > 48 * 1024, "more than a kernel has without asking");

__constant__ float bias[columns];

__device__ float element(const float* matrix, int row, int column, int rows, int width) {
  return row < rows && column < width ? matrix[static_cast<size_t>(row) * width + column] : 0.0F;
}

template <typename Cut>
__global__ void multiply(const float* a, const float* b, float* c, int rows) {
  constexpr int tile = Cut::tile, per_thread = Cut::per_thread;
  extern __shared__ float tile_a[];  // a column of A in each row
  float* tile_b = tile_a + Cut::tile_depth * tile;
  const int first_row = blockIdx.y * tile, first_column = blockIdx.x * tile;
  float sums[per_thread][per_thread] = {};
  for (int start = 0; start < depth; start += Cut::tile_depth) {
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < Cut::tile_depth * tile; i += blockDim.x * blockDim.y) {
      tile_a[i] = element(a, first_row + i % tile, start + i / tile, rows, depth);
      tile_b[i] = element(b, start + i / tile, first_column + i % tile, depth, columns);
    }
    __syncthreads();
    for (int k = 0; k < Cut::tile_depth; ++k) {
      const float* of_a = tile_a + k * tile + threadIdx.y * per_thread;
      const float* of_b = tile_b + k * tile + threadIdx.x * per_thread;
      for (int i = 0; i < per_thread; ++i) {
        for (int j = 0; j < per_thread; ++j) sums[i][j] += of_a[i] * of_b[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < per_thread * per_thread; ++i) {
    const int row = first_row + threadIdx.y * per_thread + i / per_thread;
    const int column = first_column + threadIdx.x * per_thread + i % per_thread;
    if (row < rows && column < columns) {
      c[static_cast<size_t>(row) * columns + column] = sums[i / per_thread][i % per_thread];
    }
  }
}

__global__ void add_bias(float* c, int elements) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    c[i] = fmaxf(c[i] + bias[i % columns], 0.0F);
  }
}

/// Small whole numbers, so that every sum is exact in whatever order.
std::vector<float> random_matrix(size_t elements, unsigned state) {
  std::vector<float> matrix(elements);
  for (float& value : matrix) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<int>(state >> 24) % 15 - 7);
  }
  return matrix;
}

std::vector<float> multiply_on_host(const std::vector<float>& a, const std::vector<float>& b, int rows) {
  std::vector<float> c(static_cast<size_t>(rows) * columns);
  for (int row = 0; row < rows; ++row) {
    float* to = &c[static_cast<size_t>(row) * columns];
    for (int k = 0; k < depth; ++k) {
      const float factor = a[static_cast<size_t>(row) * depth + k];
      for (int column = 0; column < columns; ++column) to[column] += factor * b[k * columns + column];
    }
  }
  return c;
}

/// Asks for so much, and returns how much there is.
size_t set_limit(cudaLimit limit, size_t wanted) {
  size_t value = 0;
  CUDA(cudaDeviceSetLimit(limit, wanted));
  CUDA(cudaDeviceGetLimit(&value, limit));
  return value;
}

/// What is asked of the device and of the stream, so that B stays in the L2 cache.
void keep_in_cache(cudaStream_t stream, float* memory, size_t bytes) {
  HOLDS(set_limit(cudaLimitStackSize, 3072) >= 3072);
  HOLDS(set_limit(cudaLimitPrintfFifoSize, 2 << 20) >= 2 << 20);
  int most = 0, largest_window = 0;
  CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, 0));
  CUDA(cudaDeviceGetAttribute(&largest_window, cudaDevAttrMaxAccessPolicyWindowSize, 0));
  if (most == 0 || largest_window == 0) return;
  HOLDS(set_limit(cudaLimitPersistingL2CacheSize, most / 2) <= static_cast<size_t>(most));
  cudaLaunchAttributeValue value{};
  value.accessPolicyWindow.base_ptr = memory;
  value.accessPolicyWindow.num_bytes = std::min(bytes, static_cast<size_t>(largest_window));
  value.accessPolicyWindow.hitRatio = 0.5F;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &value));
  cudaLaunchAttributeValue back{};
  CUDA(cudaStreamGetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &back));
  HOLDS(back.accessPolicyWindow.base_ptr == memory && back.accessPolicyWindow.hitRatio == 0.5F);
  HOLDS(back.accessPolicyWindow.num_bytes == value.accessPolicyWindow.num_bytes);
}

template <typename Cut>
cudaLaunchConfig_t shape(int rows, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3((columns + Cut::tile - 1) / Cut::tile, (rows + Cut::tile - 1) / Cut::tile);
  config.blockDim = dim3(Cut::tile / Cut::per_thread, Cut::tile / Cut::per_thread);
  config.dynamicSmemBytes = shared_bytes<Cut>;
  config.stream = stream;
  return config;
}

/// A kernel has more than 48 KiB of shared memory only after it was asked for.
void allow_large_tiles(const cudaLaunchConfig_t& config, const float* a, const float* b, float* c) {
  cudaFuncAttributes before{}, after{};
  CUDA(cudaFuncGetAttributes(&before, multiply<Large>));
  HOLDS(before.sharedSizeBytes == 0 && before.numRegs > 0 && before.ptxVersion >= 90);
  HOLDS(before.maxDynamicSharedSizeBytes == 48 * 1024 && before.maxThreadsPerBlock >= 256);
  HOLDS(cudaLaunchKernelEx(&config, multiply<Large>, a, b, c, 1) == cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
  int most = 0;
  CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  HOLDS(most >= static_cast<int>(shared_bytes<Large>));
  HOLDS(cudaFuncSetAttribute(multiply<Large>, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1) != cudaSuccess);
  HOLDS(cudaGetLastError() != cudaSuccess);
  CUDA(cudaFuncSetAttribute(multiply<Large>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<Large>));
  CUDA(cudaFuncSetAttribute(multiply<Large>, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  CUDA(cudaFuncGetAttributes(&after, multiply<Large>));
  HOLDS(after.maxDynamicSharedSizeBytes == shared_bytes<Large> && after.preferredShmemCarveout == 100);
  int blocks = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, multiply<Large>, 256, shared_bytes<Large>));
  HOLDS(blocks >= 1 && blocks * shared_bytes<Large> <= static_cast<size_t>(most) + 1024);
}

/// What passed between two events, in milliseconds.
float between(cudaEvent_t first, cudaEvent_t second) {
  float milliseconds = -1.0F;
  CUDA(cudaEventElapsedTime(&milliseconds, first, second));
  return milliseconds;
}

}  // namespace

int main(int count, char** words) {
  const int rows = rows_per_scale * program::scale(count, words);
  const std::vector<float> a = random_matrix(static_cast<size_t>(rows) * depth, 1);
  const std::vector<float> b = random_matrix(static_cast<size_t>(depth) * columns, 2);
  const std::vector<float> biases = random_matrix(columns, 3);
  std::vector<float> expected = multiply_on_host(a, b, rows), result(expected.size());
  const size_t bytes = expected.size() * sizeof(float);

  cudaStream_t stream = nullptr;
  cudaEvent_t events[3] = {}, untimed = nullptr;
  CUDA(cudaStreamCreate(&stream));
  for (cudaEvent_t& event : events) CUDA(cudaEventCreate(&event));
  CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
  CUDA(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CUDA(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CUDA(cudaMalloc(&device_c, bytes));
  CUDA(cudaMemcpyAsync(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  CUDA(cudaMemcpyAsync(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  CUDA(cudaMemcpyToSymbolAsync(bias, biases.data(), sizeof bias, 0, cudaMemcpyHostToDevice, stream));
  keep_in_cache(stream, device_b, b.size() * sizeof(float));

  // Small tiles, timed from the host too: what the events say lies within what the host sees.
  CUDA(cudaStreamSynchronize(stream));
  float none = 0.0F;
  HOLDS(cudaEventElapsedTime(&none, events[0], events[1]) == cudaErrorInvalidResourceHandle);
  HOLDS(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  const auto started = std::chrono::steady_clock::now();
  CUDA(cudaEventRecord(events[0], stream));
  cudaLaunchConfig_t config = shape<Small>(rows, stream);
  CUDA(cudaLaunchKernelEx(&config, multiply<Small>, device_a, device_b, device_c, rows));
  CUDA(cudaEventRecord(events[1], stream));
  CUDA(cudaMemcpyAsync(result.data(), device_c, bytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaMemsetAsync(device_c, 0xFF, bytes, stream));
  CUDA(cudaEventRecord(events[2], stream));
  CUDA(cudaEventRecord(untimed, stream));
  CUDA(cudaEventSynchronize(untimed));
  const std::chrono::duration<float, std::milli> seen = std::chrono::steady_clock::now() - started;
  HOLDS(result == expected);
  const float first = between(events[0], events[1]), second = between(events[1], events[2]);
  const float both = between(events[0], events[2]);
  HOLDS(first > 0.0F && second > 0.0F && std::fabs(first + second - both) < 0.01F + both * 1e-3F);
  HOLDS(both < seen.count() * 1.02F + 0.1F);
  HOLDS(cudaEventElapsedTime(&none, events[0], untimed) == cudaErrorInvalidResourceHandle);
  HOLDS(cudaGetLastError() == cudaErrorInvalidResourceHandle);

  // Large tiles, by a launch with attributes of its own.
  config = shape<Large>(rows, stream);
  allow_large_tiles(config, device_a, device_b, device_c);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {2, 1, 1};
  attributes[1].id = cudaLaunchAttributePriority;
  CUDA(cudaDeviceGetStreamPriorityRange(nullptr, &attributes[1].val.priority));
  config.attrs = attributes;
  config.numAttrs = 2;
  CUDA(cudaLaunchKernelEx(&config, multiply<Large>, device_a, device_b, device_c, rows));

  int blocks = 0, threads = 0;
  CUDA(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, add_bias, 0, 512));
  HOLDS(blocks > 0 && threads >= 32 && threads <= 512 && threads % 32 == 0);
  add_bias<<<blocks, threads, 0, stream>>>(device_c, static_cast<int>(expected.size()));
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(result.data(), device_c, bytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  double sum = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::max(expected[i] + biases[i % columns], 0.0F);
    sum += expected[i];
  }
  HOLDS(result == expected);

  CUDA(cudaCtxResetPersistingL2Cache());
  for (cudaEvent_t event : {events[0], events[1], events[2], untimed}) CUDA(cudaEventDestroy(event));
  for (float* memory : {device_a, device_b, device_c}) CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(stream));
  char line[160];
  std::snprintf(line, sizeof line, "%d x %d by %d x %d, sum %.0f", rows, depth, depth, columns, sum);
  return program::passed(line);
}
