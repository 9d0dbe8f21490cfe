// CUB: algorithms of the whole device, and building blocks in kernels of one's own.

#include <cub/cub.cuh>

#include <algorithm>

#include "harness.h"

namespace {

// Calls twice, as CUB wants: for the size of what it needs, and with it.
template <class Call>
void with_storage(Call&& call) {
  size_t bytes = 0;
  OK(call(static_cast<void*>(nullptr), bytes));
  Memory<char> storage(bytes + 1);
  OK(call(static_cast<void*>(storage.data()), bytes));
  OK(cudaDeviceSynchronize());
}

constexpr int count = 100000;

template <int threads>
__global__ void block_sums(const int* in, int* sums, int* scanned) {
  using Reduce = cub::BlockReduce<int, threads>;
  using Scan = cub::BlockScan<int, threads>;
  __shared__ union {
    typename Reduce::TempStorage reduce;
    typename Scan::TempStorage scan;
  } storage;
  const int at = blockIdx.x * threads + threadIdx.x;
  const int value = in[at];
  const int sum = Reduce(storage.reduce).Sum(value);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  __syncthreads();
  int before;
  Scan(storage.scan).ExclusiveSum(value, before);
  scanned[at] = before;
}

template <int threads, int items>
__global__ void block_sort(int* keys) {
  using Load = cub::BlockLoad<int, threads, items, cub::BLOCK_LOAD_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<int, threads, items>;
  using Store = cub::BlockStore<int, threads, items, cub::BLOCK_STORE_TRANSPOSE>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Sort::TempStorage sort;
    typename Store::TempStorage store;
  } storage;
  int own[items];
  int* block = keys + blockIdx.x * threads * items;
  Load(storage.load).Load(block, own);
  __syncthreads();
  Sort(storage.sort).Sort(own);
  __syncthreads();
  Store(storage.store).Store(block, own);
}

__global__ void warp_work(const int* in, int* out) {
  __shared__ cub::WarpScan<int>::TempStorage scan[4];
  __shared__ cub::WarpReduce<int>::TempStorage reduce[4];
  const int at = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32;
  int sum;
  cub::WarpScan<int>(scan[warp]).InclusiveSum(in[at], sum);
  const int largest = cub::WarpReduce<int>(reduce[warp]).Reduce(sum, [](int a, int b) { return a > b ? a : b; });
  out[at] = threadIdx.x % 32 == 0 ? largest : sum;
}

struct IsEven {
  __host__ __device__ bool operator()(int x) const { return x % 2 == 0; }
};
struct AddIndex {
  int* data;
  __device__ void operator()(int i) const { data[i] += i; }
};

}  // namespace

CASE(reduce) {
  Memory<int> in(whole<int>(count)), out(3);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceReduce::Sum(storage, bytes, in.data(), out.data(), count);
  });
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceReduce::Max(storage, bytes, in.data(), out.data() + 1, count);
  });
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceReduce::Min(storage, bytes, in.data(), out.data() + 2, count);
  });
  show("sum, most, least", out);
}

CASE(scan) {
  Memory<int> in(whole<int>(count)), out(count);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(storage, bytes, in.data(), out.data(), count);
  });
  show("inclusive", out);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceScan::ExclusiveSum(storage, bytes, in.data(), out.data(), count);
  });
  show("exclusive", out);
}

CASE(scan_by_key) {
  auto keys = whole<int>(count);
  std::sort(keys.begin(), keys.end());
  Memory<int> device_keys(keys), in(whole<int>(count, 2)), out(count);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceScan::InclusiveSumByKey(storage, bytes, device_keys.data(), in.data(), out.data(), count);
  });
  show("sums", out);
}

CASE(radix_sort) {
  Memory<float> in(fractions<float>(count)), out(count);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeys(storage, bytes, in.data(), out.data(), count);
  });
  show("keys", out);
  Memory<unsigned long long> wide(whole<unsigned long long>(count)), sorted(count);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortKeysDescending(storage, bytes, wide.data(), sorted.data(), count);
  });
  show("wide", sorted);
}

CASE(radix_sort_pairs) {
  std::vector<int> places(count);
  for (int i = 0; i < count; ++i) places[i] = i;
  Memory<int> keys(whole<int>(count)), sorted(count), values(places), moved(count);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys.data(), sorted.data(), values.data(), moved.data(),
                                           count);
  });
  show("keys", sorted);
  show("values", moved);
}

CASE(merge_sort) {
  Memory<int> keys(whole<int>(count));
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceMergeSort::SortKeys(storage, bytes, keys.data(), count,
                                          [] __host__ __device__(int a, int b) { return a > b; });
  });
  show("keys", keys);
}

CASE(segments) {
  std::vector<int> bounds{0};
  while (bounds.back() < count) bounds.push_back(std::min(count, bounds.back() + 1 + bounds.back() % 977));
  const int segments = static_cast<int>(bounds.size()) - 1;
  Memory<int> in(whole<int>(count)), out(count), offsets(bounds), sums(segments);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceSegmentedReduce::Sum(storage, bytes, in.data(), sums.data(), segments, offsets.data(),
                                           offsets.data() + 1);
  });
  show("sums", sums);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceSegmentedSort::SortKeys(storage, bytes, in.data(), out.data(), count, segments, offsets.data(),
                                              offsets.data() + 1);
  });
  show("sorted", out);
}

CASE(histogram) {
  Memory<float> in(fractions<float>(count));
  Memory<int> bins(64);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceHistogram::HistogramEven(storage, bytes, in.data(), bins.data(), 65, -1.0f, 1.0f, count);
  });
  show("bins", bins);
}

CASE(select) {
  Memory<int> in(whole<int>(count)), out(count), chosen(1);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceSelect::If(storage, bytes, in.data(), out.data(), chosen.data(), count, IsEven());
  });
  show("even", out);
  show("how many", chosen);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceSelect::Unique(storage, bytes, in.data(), out.data(), chosen.data(), count);
  });
  show("without repetitions", chosen);
}

CASE(partition) {
  Memory<int> in(whole<int>(count)), out(count), chosen(1);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DevicePartition::If(storage, bytes, in.data(), out.data(), chosen.data(), count, IsEven());
  });
  show("out", out);
}

CASE(run_lengths) {
  auto values = whole<int>(count);
  std::sort(values.begin(), values.end());
  Memory<int> in(values), unique(64), lengths(64), runs(1);
  with_storage([&](void* storage, size_t& bytes) {
    return cub::DeviceRunLengthEncode::Encode(storage, bytes, in.data(), unique.data(), lengths.data(), runs.data(),
                                              count);
  });
  show("values", unique);
  show("lengths", lengths);
}

CASE(for_each) {
  Memory<int> data(whole<int>(count));
  with_storage(
      [&](void* storage, size_t& bytes) { return cub::DeviceFor::Bulk(storage, bytes, count, AddIndex{data.data()}); });
  show("data", data);
}

CASE(in_blocks) {
  Memory<int> in(whole<int>(128 * 50)), sums(50), scanned(128 * 50);
  block_sums<128><<<50, 128>>>(in.data(), sums.data(), scanned.data());
  show("sums", sums);
  show("scanned", scanned);
  Memory<int> keys(whole<int>(64 * 8 * 10));
  block_sort<64, 8><<<10, 64>>>(keys.data());
  show("sorted", keys);
}

CASE(in_warps) {
  Memory<int> in(whole<int>(128 * 10)), out(128 * 10);
  warp_work<<<10, 128>>>(in.data(), out.data());
  show("out", out);
}

CASE(on_a_stream) {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Memory<int> in(whole<int>(count)), out(count);
  OK(cudaDeviceSynchronize());
  size_t bytes = 0;
  OK(cub::DeviceScan::InclusiveSum(nullptr, bytes, in.data(), out.data(), count, stream));
  void* storage;
  OK(cudaMallocAsync(&storage, bytes, stream));
  OK(cub::DeviceScan::InclusiveSum(storage, bytes, in.data(), out.data(), count, stream));
  OK(cudaFreeAsync(storage, stream));
  OK(cudaStreamSynchronize(stream));
  show("sums", out);
}
