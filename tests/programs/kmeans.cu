// Clusters points by k-means. All sums are whole numbers of sixteenths, so that the CPU comes to the same bits.

#include "program.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int points_at_scale_one = 1 << 16;
constexpr int clusters = 8;
constexpr int axes = 4;
constexpr int most_iterations = 60;
constexpr int threads = 128;
// Coordinates are multiples of 1/16 from -32 up to 32: squared distances, in units of 1/256, stay below 2^24. So every
// float here is exact, with or without fused multiply-add.
constexpr int units = 16;
constexpr int half_range = 32 * units;

/// What one pass over points adds up, in units of 1/16, and of 1/256 for `spread`.
struct Totals {
  long long sums[clusters][axes];
  unsigned counts[clusters];
  unsigned moved;
  double spread;
};

/// What the CPU looks at after each iteration.
struct Progress {
  unsigned moved;
  int iteration;
  double spread;
};

__constant__ float4 centroids[clusters];

__global__ void assign(const float4* points, int count, unsigned char* labels, Totals* totals) {
  __shared__ unsigned long long sums[clusters * axes];
  extern __shared__ unsigned counts[];
  for (int i = threadIdx.x; i < clusters * axes; i += blockDim.x) sums[i] = 0;
  for (int i = threadIdx.x; i <= clusters; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  double spread = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float4 point = points[i];
    float nearest = 1e30f;
    int label = 0;
    for (int cluster = 0; cluster < clusters; ++cluster) {
      const float4 centre = centroids[cluster];
      const float x = point.x - centre.x, y = point.y - centre.y, z = point.z - centre.z, w = point.w - centre.w;
      const float distance = x * x + y * y + z * z + w * w;
      if (distance < nearest) nearest = distance, label = cluster;
    }
    if (labels[i] != label) atomicAdd(&counts[clusters], 1u);
    labels[i] = static_cast<unsigned char>(label);
    atomicAdd(&counts[label], 1u);
    const float coordinates[axes] = {point.x, point.y, point.z, point.w};
    for (int axis = 0; axis < axes; ++axis) {
      const long long whole = __float2ll_rn(coordinates[axis] * units);
      atomicAdd(&sums[label * axes + axis], static_cast<unsigned long long>(whole));
    }
    spread += nearest * (units * units);
  }
  for (int step = warpSize / 2; step > 0; step /= 2) spread += __shfl_xor_sync(~0u, spread, step);
  if (threadIdx.x % warpSize == 0) atomicAdd(&totals->spread, spread);
  __syncthreads();
  for (int i = threadIdx.x; i < clusters * axes; i += blockDim.x) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&totals->sums[0][0]) + i, sums[i]);
  }
  if (threadIdx.x < clusters) atomicAdd(&totals->counts[threadIdx.x], counts[threadIdx.x]);
  if (threadIdx.x == 0) atomicAdd(&totals->moved, counts[clusters]);
}

__host__ __device__ inline float mean(long long sum, unsigned count) {
  const long long above = sum + static_cast<long long>(half_range) * count;  // never negative, so division rounds down
  return static_cast<float>((above + count / 2) / count - half_range) / units;
}

__global__ void update(Totals* totals, float4* next, volatile Progress* progress, int iteration) {
  const int cluster = threadIdx.x;
  if (totals->counts[cluster] > 0) {
    const unsigned count = totals->counts[cluster];
    const long long* sums = totals->sums[cluster];
    next[cluster] = make_float4(mean(sums[0], count), mean(sums[1], count), mean(sums[2], count), mean(sums[3], count));
  }
  if (cluster == 0) {
    progress->moved = totals->moved;
    progress->spread = totals->spread;
    progress->iteration = iteration;
  }
}

uint32_t random_bits(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

/// A point near one of as many corners as there are clusters.
float4 make_point(uint32_t& state) {
  const uint32_t corner = random_bits(state) % clusters;
  float coordinates[axes];
  for (int axis = 0; axis < axes; ++axis) {
    const int centre = static_cast<int>((corner * 2654435761u) >> (axis * 8) & 0xff) * 3 - 382;
    const int noise = static_cast<int>(random_bits(state) % 121 + random_bits(state) % 121) - 120;
    coordinates[axis] = static_cast<float>(std::clamp(centre + noise, -half_range, half_range - 1)) / units;
  }
  return make_float4(coordinates[0], coordinates[1], coordinates[2], coordinates[3]);
}

/// One pass of the CPU; moves the centres.
Progress iterate_on_cpu(const std::vector<float4>& points, std::vector<unsigned char>& labels, float4* centres) {
  Totals totals{};
  for (size_t i = 0; i < points.size(); ++i) {
    const float4 point = points[i];
    float nearest = 1e30f;
    int label = 0;
    for (int cluster = 0; cluster < clusters; ++cluster) {
      const float4 centre = centres[cluster];
      const float x = point.x - centre.x, y = point.y - centre.y, z = point.z - centre.z, w = point.w - centre.w;
      const float distance = x * x + y * y + z * z + w * w;
      if (distance < nearest) nearest = distance, label = cluster;
    }
    totals.moved += labels[i] != label;
    labels[i] = static_cast<unsigned char>(label);
    ++totals.counts[label];
    totals.sums[label][0] += static_cast<long long>(point.x * units);
    totals.sums[label][1] += static_cast<long long>(point.y * units);
    totals.sums[label][2] += static_cast<long long>(point.z * units);
    totals.sums[label][3] += static_cast<long long>(point.w * units);
    totals.spread += nearest * (units * units);
  }
  for (int cluster = 0; cluster < clusters; ++cluster) {
    const unsigned count = totals.counts[cluster];
    if (count == 0) continue;
    const long long* sums = totals.sums[cluster];
    centres[cluster] =
        make_float4(mean(sums[0], count), mean(sums[1], count), mean(sums[2], count), mean(sums[3], count));
  }
  return {totals.moved, 0, totals.spread};
}

/// Half of the points, with a stream that alone uses it on the GPU: the CPU can fill the other half meanwhile.
struct Half {
  int count;
  float4* points;         // managed
  unsigned char* labels;  // managed
  cudaStream_t stream;
  cudaEvent_t done;
};

Half make_half(int count) {
  Half half{};
  half.count = count;
  CUDA(cudaStreamCreateWithFlags(&half.stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&half.done, cudaEventDisableTiming));
  CUDA(cudaMallocManaged(&half.points, count * sizeof(float4), cudaMemAttachHost));
  CUDA(cudaMallocManaged(&half.labels, count, cudaMemAttachHost));
  return half;
}

void give_to_stream(const Half& half) {
  CUDA(cudaStreamAttachMemAsync(half.stream, half.points, 0, cudaMemAttachSingle));
  CUDA(cudaStreamAttachMemAsync(half.stream, half.labels, half.count, cudaMemAttachSingle));
}

void expect_no_single_attachment_to_null_stream(const Half& half) {
  const cudaError_t error = cudaStreamAttachMemAsync(nullptr, half.points, 0, cudaMemAttachSingle);
  HOLDS(error != cudaSuccess);
  HOLDS(cudaGetLastError() == error);
  HOLDS(cudaGetLastError() == cudaSuccess);
}

}  // namespace

int main(int count, char** words) {
  const int total = points_at_scale_one * program::scale(count, words);
  CUDA(cudaSetDeviceFlags(cudaDeviceMapHost | cudaDeviceScheduleBlockingSync));
  Half halves[2] = {make_half(total / 2), make_half(total - total / 2)};
  expect_no_single_attachment_to_null_stream(halves[0]);

  size_t constant_bytes = 0;
  void* constant = nullptr;
  CUDA(cudaGetSymbolSize(&constant_bytes, centroids));
  CUDA(cudaGetSymbolAddress(&constant, centroids));
  HOLDS(constant_bytes == clusters * sizeof(float4) && constant != nullptr);
  cudaFuncAttributes attributes{};
  CUDA(cudaFuncGetAttributes(&attributes, assign));
  HOLDS(attributes.sharedSizeBytes >= clusters * axes * sizeof(long long) && attributes.maxThreadsPerBlock >= threads);
  constexpr size_t dynamic_bytes = (clusters + 1) * sizeof(unsigned);
  int blocks_per_processor = 0, processors = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_per_processor, assign, threads, dynamic_bytes));
  CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  HOLDS(blocks_per_processor >= 1 && processors >= 1);
  const int blocks = std::min(blocks_per_processor * processors, 64);

  Progress* progress = nullptr;
  Progress* device_progress = nullptr;
  CUDA(cudaHostAlloc(&progress, sizeof(Progress), cudaHostAllocMapped));
  CUDA(cudaHostGetDevicePointer(&device_progress, progress, 0));
  *progress = {~0u, -1, -1};
  Totals* totals = nullptr;
  float4* next = nullptr;
  CUDA(cudaMalloc(&totals, sizeof(Totals)));
  CUDA(cudaMalloc(&next, clusters * sizeof(float4)));
  cudaStream_t stream;
  cudaEvent_t ready, finished;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&finished, cudaEventDisableTiming | cudaEventBlockingSync));

  std::vector<float4> points(total);
  std::vector<unsigned char> labels(total, 0xff);
  float4 centres[clusters];
  uint32_t seed = 77;
  for (int i = 0; i < total; ++i) points[i] = make_point(seed);
  for (int cluster = 0; cluster < clusters; ++cluster) centres[cluster] = points[cluster * 5];
  CUDA(cudaMemcpyToSymbol(centroids, centres, sizeof(centres)));
  CUDA(cudaMemset(totals, 0, sizeof(Totals)));
  CUDA(cudaMemcpy(next, centres, sizeof(centres), cudaMemcpyHostToDevice));
  // The two above may end after the call returns, and streams that do not block would not wait for them.
  CUDA(cudaDeviceSynchronize());
  // While the first half is being assigned by the GPU, the CPU fills the second one.
  int offset = 0;
  for (Half& half : halves) {
    std::memcpy(half.points, points.data() + offset, half.count * sizeof(float4));
    std::memset(half.labels, 0xff, half.count);
    offset += half.count;
    give_to_stream(half);
    assign<<<blocks, threads, dynamic_bytes, half.stream>>>(half.points, half.count, half.labels, totals);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(half.done, half.stream));
  }

  int iteration = 0;
  for (;; ++iteration) {
    for (Half& half : halves) CUDA(cudaStreamWaitEvent(stream, half.done, 0));
    update<<<1, clusters, 0, stream>>>(totals, next, device_progress, iteration);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(finished, stream));
    CUDA(cudaMemsetAsync(totals, 0, sizeof(Totals), stream));
    CUDA(cudaMemcpyToSymbolAsync(centroids, next, sizeof(centres), 0, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaEventRecord(ready, stream));
    const Progress expected = iterate_on_cpu(points, labels, centres);
    CUDA(cudaEventSynchronize(finished));
    HOLDS(progress->iteration == iteration);
    HOLDS(progress->moved == expected.moved);
    HOLDS(progress->spread == expected.spread);
    if (progress->moved == 0 || iteration + 1 == most_iterations) break;
    for (Half& half : halves) {
      CUDA(cudaStreamWaitEvent(half.stream, ready, 0));
      assign<<<blocks, threads, dynamic_bytes, half.stream>>>(half.points, half.count, half.labels, totals);
      CUDA(cudaGetLastError());
      CUDA(cudaEventRecord(half.done, half.stream));
    }
  }

  float4 found[clusters];
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpyFromSymbol(found, centroids, sizeof(found)));
  HOLDS(std::memcmp(found, centres, sizeof(found)) == 0);
  HOLDS(std::memcmp(halves[0].labels, labels.data(), halves[0].count) == 0);
  HOLDS(std::memcmp(halves[1].labels, labels.data() + halves[0].count, halves[1].count) == 0);
  const double spread = progress->spread / (units * units) / total;
  for (Half& half : halves) {
    CUDA(cudaFree(half.points));
    CUDA(cudaFree(half.labels));
    CUDA(cudaEventDestroy(half.done));
    CUDA(cudaStreamDestroy(half.stream));
  }
  for (cudaEvent_t event : {ready, finished}) CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFreeHost(progress));
  for (void* memory : {static_cast<void*>(totals), static_cast<void*>(next)}) CUDA(cudaFree(memory));
  char line[128];
  std::snprintf(line, sizeof(line), "%d points, %d clusters, %d iterations, mean squared distance %.4f", total,
                clusters, iteration + 1, spread);
  return program::passed(line);
}
