// One histogram in pinned memory, filled by several streams of the GPU and by the CPU at the same time.

#include "program.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int bins = 256;
constexpr int streams = 4;
constexpr int chunks = 8;
constexpr size_t chunk_bytes = 512 << 10;

/// Few machines let CPU and GPU add to one word at the same time, so each has its own; they lie next to each other.
struct Bin {
  unsigned by_gpu, by_cpu;
};

__device__ unsigned long long bytes_seen;  // by all kernels

__global__ void count_bytes(const uint4* values, size_t count, Bin* histogram, unsigned* blocks_done) {
  __shared__ unsigned local[bins];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  unsigned long long seen = 0;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 four = values[i];
    for (unsigned word : {four.x, four.y, four.z, four.w})
      for (int shift = 0; shift < 32; shift += 8) atomicAdd(&local[word >> shift & 0xff], 1);
    seen += sizeof(uint4);
  }
  atomicAdd(&bytes_seen, seen);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x)
    if (local[i] != 0) atomicAdd_system(&histogram[i].by_gpu, local[i]);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd_system(blocks_done, 1);
}

/// Memory of the host that kernels reach, and its address there.
template <class T>
struct Mapped {
  T* host;
  T* device;

  explicit Mapped(size_t count) {
    CUDA(cudaHostAlloc(&host, count * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable));
    CUDA(cudaHostGetDevicePointer(&device, host, 0));
    std::memset(static_cast<void*>(host), 0, count * sizeof(T));
    unsigned flags = 0;
    CUDA(cudaHostGetFlags(&flags, host));
    HOLDS((flags & cudaHostAllocMapped) != 0 && (flags & cudaHostAllocPortable) != 0);
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, host));
    HOLDS(attributes.type == cudaMemoryTypeHost && attributes.devicePointer == device);
    HOLDS(attributes.hostPointer == host);
  }
};

std::vector<unsigned char> random_bytes(size_t count, uint64_t state) {
  std::vector<unsigned char> bytes(count);
  for (unsigned char& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<unsigned char>((state >> 56) & (state >> 48));  // some values are more frequent than others
  }
  return bytes;
}

void count_on_cpu(const unsigned char* values, size_t count, Bin* histogram) {
  for (size_t i = 0; i < count; ++i) ++histogram[values[i]].by_cpu;
}

/// One stream, with the buffers of the chunks that go through it.
struct Lane {
  cudaStream_t stream;
  cudaEvent_t copied;
  unsigned char* staging;
  uint4* values;
};

void CUDART_CB note_chunk(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

Lane make_lane(int index) {
  int least = 0, greatest = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  HOLDS(greatest <= least);
  Lane lane;
  const int priority = index % 2 == 0 ? least : greatest;
  CUDA(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, priority));
  int given = 0;
  unsigned flags = 0;
  CUDA(cudaStreamGetPriority(lane.stream, &given));
  CUDA(cudaStreamGetFlags(lane.stream, &flags));
  HOLDS(given == priority && flags == cudaStreamNonBlocking);
  CUDA(cudaEventCreateWithFlags(&lane.copied, cudaEventDisableTiming | cudaEventBlockingSync));
  CUDA(cudaHostAlloc(&lane.staging, chunk_bytes, cudaHostAllocWriteCombined));
  CUDA(cudaMalloc(&lane.values, chunk_bytes));
  return lane;
}

void free_lane(const Lane& lane) {
  CUDA(cudaFree(lane.values));
  CUDA(cudaFreeHost(lane.staging));
  CUDA(cudaEventDestroy(lane.copied));
  CUDA(cudaStreamDestroy(lane.stream));
}

void expect_sums(const Bin* histogram, const std::vector<Bin>& expected) {
  for (int i = 0; i < bins; ++i) {
    HOLDS(histogram[i].by_gpu == expected[i].by_gpu);
    HOLDS(histogram[i].by_cpu == expected[i].by_cpu);
  }
}

}  // namespace

int main(int count, char** words) {
  const size_t rounds = program::scale(count, words);
  CUDA(cudaSetDeviceFlags(cudaDeviceMapHost | cudaDeviceScheduleBlockingSync));
  int maps = 0, native_atomics = 0, block_size = 0, grid = 0;
  CUDA(cudaDeviceGetAttribute(&maps, cudaDevAttrCanMapHostMemory, 0));
  CUDA(cudaDeviceGetAttribute(&native_atomics, cudaDevAttrHostNativeAtomicSupported, 0));
  HOLDS(maps == 1);
  CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block_size, count_bytes, 0, 256));
  HOLDS(block_size > 0 && block_size <= 256 && block_size % 32 == 0 && grid > 0);
  grid = grid < 8 ? grid : 8;

  // Half of the bytes are the GPU's, half the CPU's; the GPU's go round by round through the lanes.
  const size_t round_bytes = chunk_bytes * chunks;
  const std::vector<unsigned char> for_gpu = random_bytes(round_bytes, 1), for_cpu = random_bytes(round_bytes, 2);
  std::vector<Bin> expected(bins);
  for (unsigned char value : for_gpu) ++expected[value].by_gpu;
  for (unsigned char value : for_cpu) ++expected[value].by_cpu;

  Mapped<Bin> histogram(bins);
  Mapped<unsigned> blocks_done(1);
  Lane lanes[streams];
  for (int i = 0; i < streams; ++i) lanes[i] = make_lane(i);
  std::atomic<int> chunks_done = 0;
  std::vector<Bin> sums(bins);
  for (size_t round = 0; round < rounds; ++round) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      Lane& lane = lanes[chunk % streams];
      if (chunk >= streams) CUDA(cudaEventSynchronize(lane.copied));
      std::memcpy(lane.staging, for_gpu.data() + chunk * chunk_bytes, chunk_bytes);
      CUDA(cudaMemcpyAsync(lane.values, lane.staging, chunk_bytes, cudaMemcpyHostToDevice, lane.stream));
      CUDA(cudaEventRecord(lane.copied, lane.stream));
      count_bytes<<<grid, block_size, 0, lane.stream>>>(lane.values, chunk_bytes / sizeof(uint4), histogram.device,
                                                        blocks_done.device);
      CUDA(cudaGetLastError());
      CUDA(cudaLaunchHostFunc(lane.stream, note_chunk, &chunks_done));
      // Meanwhile the CPU counts its own bytes, in the words between those of the kernels.
      count_on_cpu(for_cpu.data() + chunk * chunk_bytes, chunk_bytes, histogram.host);
    }
    for (const Lane& lane : lanes) CUDA(cudaStreamSynchronize(lane.stream));
    for (const Lane& lane : lanes) CUDA(cudaStreamQuery(lane.stream));
    HOLDS(chunks_done == static_cast<int>((round + 1) * chunks));
    HOLDS(*blocks_done.host == static_cast<unsigned>(grid * chunks));
    *blocks_done.host = 0;  // the next round's kernels find what the CPU wrote between rounds
    for (int i = 0; i < bins; ++i) {
      sums[i].by_gpu += expected[i].by_gpu;
      sums[i].by_cpu += expected[i].by_cpu;
    }
    expect_sums(histogram.host, sums);
  }

  // Once the GPU is idle the CPU may change the words of the kernels, which then go on from there.
  for (int i = 0; i < bins; ++i) {
    histogram.host[i].by_gpu += 1000 + i;
    sums[i].by_gpu += 1000 + i + expected[i].by_gpu;
  }
  // The input is now registered memory of the program, which the kernel reads in place.
  void* input = const_cast<unsigned char*>(for_gpu.data());
  uint4* mapped_input = nullptr;
  CUDA(cudaHostRegister(input, round_bytes, cudaHostRegisterMapped));
  HOLDS(cudaHostRegister(input, round_bytes, cudaHostRegisterMapped) == cudaErrorHostMemoryAlreadyRegistered);
  HOLDS(cudaGetLastError() == cudaErrorHostMemoryAlreadyRegistered);
  CUDA(cudaHostGetDevicePointer(&mapped_input, input, 0));
  count_bytes<<<grid, block_size, 0, lanes[0].stream>>>(mapped_input, round_bytes / sizeof(uint4), histogram.device,
                                                        blocks_done.device);
  CUDA(cudaGetLastError());
  CUDA(cudaEventRecord(lanes[0].copied, lanes[0].stream));
  CUDA(cudaEventSynchronize(lanes[0].copied));
  expect_sums(histogram.host, sums);
  CUDA(cudaHostUnregister(input));
  HOLDS(cudaHostUnregister(input) == cudaErrorHostMemoryNotRegistered);
  HOLDS(cudaGetLastError() == cudaErrorHostMemoryNotRegistered);

  // What a kernel reads of the histogram itself, by a copy to the device and back, is what the CPU sees.
  Bin* on_device = nullptr;
  std::vector<Bin> back(bins);
  CUDA(cudaMalloc(&on_device, bins * sizeof(Bin)));
  CUDA(cudaMemcpy(on_device, histogram.device, bins * sizeof(Bin), cudaMemcpyDefault));
  CUDA(cudaMemcpy(back.data(), on_device, bins * sizeof(Bin), cudaMemcpyDefault));
  expect_sums(back.data(), sums);
  unsigned long long seen = 0;
  CUDA(cudaMemcpyFromSymbol(&seen, bytes_seen, sizeof seen));
  HOLDS(seen == (rounds + 1) * round_bytes);
  CUDA(cudaFree(on_device));
  for (const Lane& lane : lanes) free_lane(lane);
  char line[120];
  std::snprintf(line, sizeof line, "%llu bytes by the GPU, most frequent value %u times", seen, sums[0].by_gpu);
  CUDA(cudaFreeHost(histogram.host));
  CUDA(cudaFreeHost(blocks_done.host));
  return program::passed(line);
}
