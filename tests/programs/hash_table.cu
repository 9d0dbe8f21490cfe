// A hash table with open addressing, grown on the device while a second stream serves lookups of the old table.

#include <cstdint>
#include <vector>

#include "program.h"

namespace {

// An entry is a key in the upper and a value in the lower 32 bits. No key is 0, so 0 is an empty entry. A deleted key
// stays in its place with the value `deleted`, because searches for other keys pass by it.
using Entry = unsigned long long;
constexpr uint32_t deleted = 0xFFFFFFFFu;
constexpr uint32_t missing = 0xFFFFFFFEu;
constexpr uint32_t key_factor = 2654435769u;  // odd, so that different numbers have different keys
constexpr int rehash_parts = 4;

struct Counters {
  unsigned int added, removed, moved, refused;
};

struct Table {
  Entry* entries;
  uint32_t capacity;  // a power of two
};

__constant__ uint32_t hash_seed;
__device__ unsigned int longest_probe;

__host__ __device__ uint32_t key_of(uint32_t number) { return number * key_factor; }

__device__ uint32_t home_of(uint32_t key, uint32_t capacity) {
  uint32_t hash = key ^ hash_seed;
  hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
  hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
  return (hash ^ hash >> 16) & (capacity - 1);
}

__device__ Entry pack(uint32_t key, uint32_t value) { return Entry(key) << 32 | value; }

/// Of values that are inserted for one key the largest stays, so that the order of threads does not matter.
__device__ void put(Table table, uint32_t key, uint32_t value, Counters* counters) {
  uint32_t place = home_of(key, table.capacity);
  for (uint32_t probe = 0; probe < table.capacity; ++probe, place = (place + 1) & (table.capacity - 1)) {
    Entry seen = atomicCAS(&table.entries[place], 0ull, pack(key, value));
    if (seen == 0) {
      atomicAdd(&counters->added, 1u);
      atomicMax(&longest_probe, probe + 1);
      return;
    }
    while (uint32_t(seen >> 32) == key) {
      const uint32_t old = uint32_t(seen);
      if (old != deleted && old >= value) return;
      const Entry before = atomicCAS(&table.entries[place], seen, pack(key, value));
      if (before == seen) {
        if (old == deleted) atomicAdd(&counters->added, 1u);
        return;
      }
      seen = before;
    }
  }
  atomicAdd(&counters->refused, 1u);
}

__device__ uint32_t find(Table table, uint32_t key, uint32_t* where) {
  uint32_t place = home_of(key, table.capacity);
  for (uint32_t probe = 0; probe < table.capacity; ++probe, place = (place + 1) & (table.capacity - 1)) {
    const Entry entry = table.entries[place];
    if (entry == 0) return missing;
    if (uint32_t(entry >> 32) != key) continue;
    *where = place;
    return uint32_t(entry) == deleted ? missing : uint32_t(entry);
  }
  return missing;
}

__global__ void insert(Table table, const uint2* pairs, int count, Counters* counters) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    put(table, pairs[i].x, pairs[i].y, counters);
}

__global__ void erase(Table table, const uint32_t* keys, int count, Counters* counters) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    uint32_t place = 0;
    const uint32_t value = find(table, keys[i], &place);
    if (value == missing) continue;
    const Entry seen = pack(keys[i], value);
    if (atomicCAS(&table.entries[place], seen, pack(keys[i], deleted)) == seen) atomicAdd(&counters->removed, 1u);
  }
}

__global__ void lookup(Table table, const uint32_t* keys, int count, uint32_t* values) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    uint32_t place = 0;
    values[i] = find(table, keys[i], &place);
  }
}

__global__ void rehash(Table from, uint32_t first, uint32_t count, Table to, Counters* counters) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const Entry entry = from.entries[first + i];
    if (entry == 0 || uint32_t(entry) == deleted) continue;
    put(to, uint32_t(entry >> 32), uint32_t(entry), counters);
    atomicAdd(&counters->moved, 1u);
  }
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t below(uint32_t limit) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t((state_ >> 33) % limit);
  }

 private:
  uint64_t state_;
};

template <typename T>
T* pinned(size_t count, unsigned int flags = cudaHostAllocDefault) {
  T* memory = nullptr;
  CUDA(cudaHostAlloc(&memory, count * sizeof(T), flags));
  return memory;
}

template <typename T>
T* on_device(size_t count, cudaStream_t stream) {
  T* memory = nullptr;
  CUDA(cudaMallocAsync(&memory, count * sizeof(T), stream));
  return memory;
}

Table new_table(uint32_t capacity, cudaStream_t stream) {
  const Table table{on_device<Entry>(capacity, stream), capacity};
  CUDA(cudaMemsetAsync(table.entries, 0, capacity * sizeof(Entry), stream));
  return table;
}

/// A table of 64 entries takes 64 of 100 keys and refuses the others, and memory that no device has is refused.
void check_full_table(Counters* counters, cudaStream_t stream) {
  const Table tiny = new_table(64, stream);
  uint2* pairs = on_device<uint2>(100, stream);
  std::vector<uint2> source(100);
  for (uint32_t i = 0; i < 100; ++i) source[i] = make_uint2(key_of(i + 1), i);
  *counters = {};
  CUDA(cudaMemcpyAsync(pairs, source.data(), 100 * sizeof(uint2), cudaMemcpyHostToDevice, stream));
  insert<<<2, 64, 0, stream>>>(tiny, pairs, 100, counters);
  CUDA(cudaGetLastError());
  CUDA(cudaFreeAsync(pairs, stream));
  CUDA(cudaFreeAsync(tiny.entries, stream));
  CUDA(cudaStreamSynchronize(stream));
  HOLDS(counters->added == 64 && counters->refused == 36);
  unsigned int longest = 0;
  CUDA(cudaMemcpyFromSymbol(&longest, longest_probe, sizeof longest));
  HOLDS(longest >= 1 && longest <= 64);
  void* impossible = &longest;
  HOLDS(cudaMalloc(&impossible, size_t{1} << 50) == cudaErrorMemoryAllocation);
  HOLDS(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
}

}  // namespace

int main(int count, char** words) {
  const uint32_t keys = 400'000u * program::scale(count, words), capacity = [&] {
    uint32_t power = 1;
    while (power < keys + keys / 4) power *= 2;
    return power;
  }();
  int weakest = 0, strongest = 0, blocks = 0, threads = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&weakest, &strongest));
  HOLDS(strongest <= weakest);
  cudaStream_t growing, serving;
  CUDA(cudaStreamCreateWithPriority(&growing, cudaStreamNonBlocking, weakest));
  CUDA(cudaStreamCreateWithPriority(&serving, cudaStreamNonBlocking, strongest));
  CUDA(cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, insert));
  HOLDS(blocks > 0 && threads > 0 && threads % 32 == 0);
  cudaEvent_t built, served, grown;
  for (cudaEvent_t* event : {&built, &served, &grown}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  const uint32_t seed = 0x5EED5EEDu;
  CUDA(cudaMemcpyToSymbolAsync(hash_seed, &seed, sizeof seed, 0, cudaMemcpyHostToDevice, growing));

  // The expected table: the value of each number, or `missing`.
  std::vector<uint32_t> expected(keys + 1, missing);
  uint2* pairs = pinned<uint2>(keys, cudaHostAllocWriteCombined);
  uint32_t *doomed = pinned<uint32_t>(keys / 4), *asked = pinned<uint32_t>(keys), *early = pinned<uint32_t>(keys),
           *late = pinned<uint32_t>(keys);
  Counters *counters = pinned<Counters>(1, cudaHostAllocMapped), *device_counters = nullptr;
  *counters = {};
  CUDA(cudaHostGetDevicePointer(&device_counters, counters, 0));
  Random random(1);
  uint32_t live = 0, gone = 0;
  for (uint32_t i = 0; i < keys; ++i) {
    const uint32_t number = 1 + random.below(keys), value = random.below(1'000'000);
    pairs[i] = make_uint2(key_of(number), value);
    live += expected[number] == missing;
    if (expected[number] == missing || expected[number] < value) expected[number] = value;
    asked[i] = key_of(i + 1);
  }
  const uint32_t added = live;
  for (uint32_t i = 0; i < keys / 4; ++i) {
    const uint32_t number = 1 + random.below(keys);
    doomed[i] = key_of(number);
    gone += expected[number] != missing;
    expected[number] = missing;
  }
  live -= gone;

  // What is counted goes to device memory: atomics of a GPU on host memory are not atomic for others and slow.
  Counters* tally = on_device<Counters>(1, growing);
  CUDA(cudaMemsetAsync(tally, 0, sizeof *tally, growing));
  Table table = new_table(capacity, growing);
  uint2* device_pairs = on_device<uint2>(keys, growing);
  uint32_t *device_keys = on_device<uint32_t>(keys, growing), *device_values = on_device<uint32_t>(keys, growing);
  CUDA(cudaMemcpyAsync(device_pairs, pairs, keys * sizeof(uint2), cudaMemcpyHostToDevice, growing));
  insert<<<blocks, threads, 0, growing>>>(table, device_pairs, keys, tally);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(device_keys, doomed, keys / 4 * sizeof(uint32_t), cudaMemcpyHostToDevice, growing));
  erase<<<blocks, threads, 0, growing>>>(table, device_keys, keys / 4, tally);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(device_keys, asked, keys * sizeof(uint32_t), cudaMemcpyHostToDevice, growing));
  CUDA(cudaEventRecord(built, growing));

  // Both streams only read the old table from here on. Its memory goes back when both are done with it.
  CUDA(cudaStreamWaitEvent(serving, built));
  const Table larger = new_table(2 * capacity, growing);
  const uint32_t part = keys / rehash_parts;
  for (int i = 0; i < rehash_parts; ++i) {
    const uint32_t step = capacity / rehash_parts, from = i * part, size = i + 1 < rehash_parts ? part : keys - from;
    rehash<<<blocks, threads, 0, growing>>>(table, i * step, step, larger, tally);
    CUDA(cudaGetLastError());
    lookup<<<blocks, threads, 0, serving>>>(table, device_keys + from, size, device_values + from);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(early + from, device_values + from, size * sizeof(uint32_t), cudaMemcpyDefault, serving));
  }
  CUDA(cudaEventRecord(served, serving));
  CUDA(cudaStreamWaitEvent(growing, served));
  CUDA(cudaFreeAsync(table.entries, growing));
  table = larger;
  lookup<<<blocks, threads, 0, growing>>>(table, device_keys, keys, device_values);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(late, device_values, keys * sizeof(uint32_t), cudaMemcpyDeviceToHost, growing));
  CUDA(cudaMemcpyAsync(counters, tally, sizeof *counters, cudaMemcpyDefault, growing));
  CUDA(cudaEventRecord(grown, growing));
  CUDA(cudaEventSynchronize(served));
  for (uint32_t i = 0; i < keys; ++i) HOLDS(early[i] == expected[i + 1]);
  CUDA(cudaEventSynchronize(grown));
  for (uint32_t i = 0; i < keys; ++i) HOLDS(late[i] == expected[i + 1]);
  HOLDS(cudaEventQuery(served) == cudaSuccess && cudaStreamQuery(growing) == cudaSuccess);
  HOLDS(counters->added == added + live && counters->moved == live);
  HOLDS(counters->removed == gone && counters->refused == 0);

  // A key that was deleted can come back, in the larger table.
  std::vector<uint2> again(keys / 8);
  for (uint32_t i = 0; i < keys / 8; ++i) again[i] = make_uint2(doomed[i], 2'000'000 + i);
  CUDA(cudaMemcpyAsync(device_pairs, again.data(), again.size() * sizeof(uint2), cudaMemcpyHostToDevice, growing));
  insert<<<blocks, threads, 0, growing>>>(table, device_pairs, int(again.size()), tally);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(device_keys, doomed, again.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, growing));
  lookup<<<blocks, threads, 0, growing>>>(table, device_keys, int(again.size()), device_values);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(late, device_values, again.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost, growing));
  CUDA(cudaStreamSynchronize(growing));
  for (uint32_t i = 0; i < again.size(); ++i) HOLDS(late[i] != missing && late[i] >= again[i].y);
  check_full_table(device_counters, growing);

  for (void* memory :
       {(void*)table.entries, (void*)tally, (void*)device_pairs, (void*)device_keys, (void*)device_values})
    CUDA(cudaFreeAsync(memory, growing));
  for (void* memory : {(void*)pairs, (void*)doomed, (void*)asked, (void*)early, (void*)late, (void*)counters})
    CUDA(cudaFreeHost(memory));
  for (cudaEvent_t event : {built, served, grown}) CUDA(cudaEventDestroy(event));
  for (cudaStream_t stream : {growing, serving}) CUDA(cudaStreamDestroy(stream));
  char line[120];
  std::snprintf(line, sizeof line, "%u keys added, %u deleted, %u moved to a table of %u entries", added, gone, live,
                2 * capacity);
  return program::passed(line);
}
