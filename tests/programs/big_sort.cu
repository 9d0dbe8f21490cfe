// Sorts more records than a bounded share of the device holds: chunks are radix sorted there and merged by CPU threads.

#include "program.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Record = std::uint64_t;  // the key in the upper half, the position in the input in the lower half

constexpr int records_per_scale = 600'011;
constexpr size_t largest_chunk = 1 << 17;
constexpr int threads_per_block = 256;
constexpr int warps_per_block = threads_per_block / 32;
constexpr int records_per_block = threads_per_block * 8;
constexpr int digits = 256;
constexpr int passes = 4;  // of eight bits of the key

__device__ unsigned digit_of(Record record, int pass) {
  return static_cast<unsigned>(record >> (32 + 8 * pass)) & 255U;
}

__global__ void count_digits(const Record* from, int records, int pass, unsigned* counts) {
  __shared__ unsigned found[digits];
  found[threadIdx.x] = 0;
  __syncthreads();
  const int start = blockIdx.x * records_per_block;
  const int end = min(start + records_per_block, records);
  for (int i = start + threadIdx.x; i < end; i += threads_per_block) atomicAdd(&found[digit_of(from[i], pass)], 1U);
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = found[threadIdx.x];
}

/// One block: each count becomes the sum of those before it. They are ordered by digit, then by block.
__global__ void add_up(unsigned* counts, int blocks) {
  __shared__ unsigned sums[digits];
  unsigned* mine = counts + threadIdx.x * blocks;
  unsigned sum = 0;
  for (int block = 0; block < blocks; ++block) sum += mine[block];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int distance = 1; distance < digits; distance *= 2) {
    const unsigned before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  unsigned next = sums[threadIdx.x] - sum;
  for (int block = 0; block < blocks; ++block) {
    const unsigned here = mine[block];
    mine[block] = next;
    next += here;
  }
}

/// Records of the same digit keep their order: lanes, warps, rounds and blocks each count those before them.
__global__ void scatter(const Record* from, Record* to, int records, int pass, const unsigned* starts) {
  __shared__ unsigned next[digits];
  __shared__ unsigned of_warp[warps_per_block][digits];
  const int warp = threadIdx.x / 32;
  const unsigned lower_lanes = (1U << threadIdx.x % 32) - 1U;
  next[threadIdx.x] = starts[threadIdx.x * gridDim.x + blockIdx.x];
  const int start = blockIdx.x * records_per_block;
  for (int round = start; round < min(start + records_per_block, records); round += threads_per_block) {
    for (int other = 0; other < warps_per_block; ++other) of_warp[other][threadIdx.x] = 0;
    __syncthreads();
    const int i = round + threadIdx.x;
    const bool present = i < records;
    const Record record = present ? from[i] : 0;
    const unsigned digit = digit_of(record, pass);
    // A lane without a record has a digit of its own kind.
    const unsigned equal = __match_any_sync(~0U, present ? digit : digits);
    const unsigned rank = __popc(equal & lower_lanes);
    if (present && rank == 0) of_warp[warp][digit] = __popc(equal);
    __syncthreads();
    unsigned sum = next[threadIdx.x];
    for (int other = 0; other < warps_per_block; ++other) {
      const unsigned here = of_warp[other][threadIdx.x];
      of_warp[other][threadIdx.x] = sum;
      sum += here;
    }
    next[threadIdx.x] = sum;
    __syncthreads();
    if (present) to[of_warp[warp][digit] + rank] = record;
    __syncthreads();
  }
}

/// What one of the two streams works with.
class Lane {
 public:
  explicit Lane(size_t chunk) : chunk_(chunk) {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming | cudaEventBlockingSync));
    CUDA(cudaHostAlloc(&staging_, chunk * sizeof(Record), cudaHostAllocDefault));
    CUDA(cudaMalloc(&records_, 2 * chunk * sizeof(Record)));
    CUDA(cudaMalloc(&counts_, digits * (chunk / records_per_block + 1) * sizeof(unsigned)));
  }
  ~Lane() {
    CUDA(cudaFree(counts_));
    CUDA(cudaFree(records_));
    CUDA(cudaFreeHost(staging_));
    CUDA(cudaEventDestroy(done_));
    CUDA(cudaStreamDestroy(stream_));
  }
  Lane(const Lane&) = delete;

  void start(const Record* from, Record* to, int records) {
    to_ = to;
    bytes_ = records * sizeof(Record);
    const int blocks = (records + records_per_block - 1) / records_per_block;
    CUDA(cudaMemcpyAsync(records_, from, bytes_, cudaMemcpyHostToDevice, stream_));
    for (int pass = 0; pass < passes; ++pass) {
      Record* source = records_ + (pass % 2) * chunk_;
      Record* target = records_ + (1 - pass % 2) * chunk_;
      count_digits<<<blocks, threads_per_block, 0, stream_>>>(source, records, pass, counts_);
      CUDA(cudaGetLastError());
      add_up<<<1, digits, 0, stream_>>>(counts_, blocks);
      CUDA(cudaGetLastError());
      scatter<<<blocks, threads_per_block, 0, stream_>>>(source, target, records, pass, counts_);
      CUDA(cudaGetLastError());
    }
    CUDA(cudaMemcpyAsync(staging_, records_, bytes_, cudaMemcpyDeviceToHost, stream_));
    CUDA(cudaEventRecord(done_, stream_));
  }

  /// Waits for the chunk in work, if there is one, and puts it in its place.
  void finish() {
    if (!to_) return;
    CUDA(cudaEventSynchronize(done_));
    HOLDS(cudaStreamQuery(stream_) == cudaSuccess);
    std::memcpy(to_, staging_, bytes_);
    to_ = nullptr;
  }

 private:
  size_t chunk_, bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  Record *staging_ = nullptr, *records_ = nullptr, *to_ = nullptr;
  unsigned* counts_ = nullptr;
};

/// How many records a chunk has: two lanes together take at most an eighth of the memory that is free.
size_t chunk_size() {
  size_t free = 0, total = 0;
  CUDA(cudaMemGetInfo(&free, &total));
  HOLDS(free > 0 && free <= total);
  return std::min(largest_chunk, free / 8 / (2 * 2 * sizeof(Record)));
}

void merge_runs(std::vector<Record>& records, size_t run) {
  std::vector<Record> merged(records.size());
  for (; run < records.size(); run *= 2) {
    std::vector<std::thread> threads;
    for (size_t start = 0; start < records.size(); start += 2 * run) {
      const Record* middle = &records[0] + std::min(start + run, records.size());
      const Record* end = &records[0] + std::min(start + 2 * run, records.size());
      const Record* begin = &records[start];
      Record* to = &merged[start];
      threads.emplace_back([=] { std::merge(begin, middle, middle, end, to); });
    }
    for (std::thread& thread : threads) thread.join();
    records.swap(merged);
  }
}

cudaMemoryType kind_of(const void* memory) {
  cudaPointerAttributes attributes{};
  CUDA(cudaPointerGetAttributes(&attributes, memory));
  return attributes.type;
}

}  // namespace

int main(int count, char** words) {
  std::vector<Record> input(static_cast<size_t>(records_per_scale) * program::scale(count, words));
  std::uint64_t state = 88172645463325252ULL;
  for (size_t i = 0; i < input.size(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // Some 60,000 different keys, so that many are equal.
    input[i] = (state % 60'013 * 71'551) << 32 | i;
  }
  const size_t bytes = input.size() * sizeof(Record);
  HOLDS(kind_of(input.data()) == cudaMemoryTypeUnregistered);
  CUDA(cudaHostRegister(input.data(), bytes, cudaHostRegisterDefault));
  HOLDS(kind_of(input.data()) == cudaMemoryTypeHost && kind_of(&input.back()) == cudaMemoryTypeHost);
  HOLDS(cudaHostRegister(input.data(), bytes, 0) == cudaErrorHostMemoryAlreadyRegistered);
  HOLDS(cudaGetLastError() == cudaErrorHostMemoryAlreadyRegistered);

  std::vector<Record> sorted(input.size());
  const size_t chunk = chunk_size();
  size_t chunks = 0;
  {
    Lane first(chunk), second(chunk);
    Lane* lanes[] = {&first, &second};
    for (size_t start = 0; start < input.size(); start += chunk) {
      Lane& lane = *lanes[chunks++ % 2];
      lane.finish();
      lane.start(&input[start], &sorted[start], static_cast<int>(std::min(chunk, input.size() - start)));
    }
    for (Lane* lane : lanes) lane->finish();
  }
  HOLDS(chunks > 2);
  CUDA(cudaHostUnregister(input.data()));
  HOLDS(kind_of(input.data()) == cudaMemoryTypeUnregistered);
  HOLDS(cudaHostUnregister(input.data()) == cudaErrorHostMemoryNotRegistered);
  HOLDS(cudaGetLastError() == cudaErrorHostMemoryNotRegistered && cudaPeekAtLastError() == cudaSuccess);

  merge_runs(sorted, chunk);
  std::sort(input.begin(), input.end());
  HOLDS(sorted == input);
  char line[160];
  std::snprintf(line, sizeof line, "sorted %zu records in %zu chunks, median key %u", sorted.size(), chunks,
                static_cast<unsigned>(sorted[sorted.size() / 2] >> 32));
  return program::passed(line);
}
