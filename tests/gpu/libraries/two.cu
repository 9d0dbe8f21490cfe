// Two devices of one host: copies between them, and kernels that read each other's memory.

#include <cublas_v2.h>
#include <thrust/device_vector.h>
#include <thrust/sort.h>

#include <thread>

#include "harness.h"

namespace {

constexpr int count = 100000;

__global__ void fill(int* out, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = value + i;
}
__global__ void add_from(int* out, const int* other, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += other[i];
}
__global__ void count_in(int* counter) { atomicAdd_system(counter, 1); }

int blocks(int n) { return (n + 127) / 128; }

// Memory of one of the devices.
struct On {
  int device, *data;
  explicit On(int device, int n = count) : device(device) {
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&data, n * sizeof(int)));
    OK(cudaMemset(data, 0, n * sizeof(int)));
  }
  std::vector<int> get() const {
    std::vector<int> values(count);
    OK(cudaSetDevice(device));
    OK(cudaMemcpy(values.data(), data, count * sizeof(int), cudaMemcpyDeviceToHost));
    return values;
  }
};

void enable_both() {
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    OK(cudaDeviceEnablePeerAccess(1 - device, 0));
  }
}

}  // namespace

CASE(attributes) {
  int devices;
  OK(cudaGetDeviceCount(&devices));
  for (int device : {0, 1}) {
    int can, native, rank;
    OK(cudaDeviceCanAccessPeer(&can, device, 1 - device));
    OK(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, device, 1 - device));
    OK(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, device, 1 - device));
    std::printf("%d: %d %d %d\n", device, can, native, rank);
  }
  std::printf("%d\n", devices >= 2);
}

CASE(peer_copy) {
  On a(0), b(1);
  OK(cudaSetDevice(0));
  fill<<<blocks(count), 128>>>(a.data, 5, count);
  OK(cudaMemcpyPeer(b.data, 1, a.data, 0, count * sizeof(int)));
  show("b", b.get());
}

CASE(peer_copy_by_address) {
  On a(0), b(1);
  OK(cudaSetDevice(0));
  fill<<<blocks(count), 128>>>(a.data, 6, count);
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpy(b.data, a.data, count * sizeof(int), cudaMemcpyDefault));
  show("b", b.get());
}

CASE(peer_copy_with_access) {
  enable_both();
  On a(0), b(1);
  cudaStream_t stream;
  OK(cudaSetDevice(0));
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaDeviceSynchronize());
  fill<<<blocks(count), 128, 0, stream>>>(a.data, 7, count);
  OK(cudaMemcpyPeerAsync(b.data, 1, a.data, 0, count * sizeof(int), stream));
  OK(cudaStreamSynchronize(stream));
  show("b", b.get());
}

CASE(kernel_reads_the_other) {
  enable_both();
  On a(0), b(1);
  OK(cudaSetDevice(0));
  fill<<<blocks(count), 128>>>(a.data, 8, count);
  OK(cudaDeviceSynchronize());
  OK(cudaSetDevice(1));
  add_from<<<blocks(count), 128>>>(b.data, a.data, count);
  OK(cudaDeviceSynchronize());
  show("b", b.get());
}

CASE(kernel_without_access) {
  On a(0), b(1);
  OK(cudaSetDevice(1));
  add_from<<<blocks(count), 128>>>(b.data, a.data, count);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  std::fflush(stdout);
  std::_Exit(0);  // the context is lost
}

CASE(enabling) {
  OK(cudaSetDevice(0));
  OK(cudaDeviceEnablePeerAccess(1, 0));
  std::printf("%s\n", cudaGetErrorName(cudaDeviceEnablePeerAccess(1, 0)));
  std::printf("%s\n", cudaGetErrorName(cudaDeviceEnablePeerAccess(0, 0)));
  cudaGetLastError();
  OK(cudaDeviceDisablePeerAccess(1));
  std::printf("%s\n", cudaGetErrorName(cudaDeviceDisablePeerAccess(1)));
  cudaGetLastError();
}

CASE(events_between) {
  // A ring of work: each device waits for the other.
  enable_both();
  On a(0), b(1);
  cudaStream_t streams[2];
  cudaEvent_t events[2];
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    OK(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&events[device], cudaEventDisableTiming));
    OK(cudaDeviceSynchronize());
  }
  OK(cudaSetDevice(0));
  fill<<<blocks(count), 128, 0, streams[0]>>>(a.data, 1, count);
  for (int turn = 0; turn < 10; ++turn) {
    OK(cudaSetDevice(0));
    OK(cudaEventRecord(events[0], streams[0]));
    OK(cudaSetDevice(1));
    OK(cudaStreamWaitEvent(streams[1], events[0]));
    add_from<<<blocks(count), 128, 0, streams[1]>>>(b.data, a.data, count);
    OK(cudaEventRecord(events[1], streams[1]));
    OK(cudaSetDevice(0));
    OK(cudaStreamWaitEvent(streams[0], events[1]));
    add_from<<<blocks(count), 128, 0, streams[0]>>>(a.data, b.data, count);
  }
  OK(cudaStreamSynchronize(streams[0]));
  show("a", a.get());
  show("b", b.get());
}

CASE(atomics_on_the_other) {
  enable_both();
  On counter(0);
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    count_in<<<50, 128>>>(counter.data);
  }
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    OK(cudaDeviceSynchronize());
  }
  std::printf("%d\n", counter.get()[0]);
}

CASE(pinned_for_both) {
  int* host;
  OK(cudaHostAlloc(&host, count * sizeof(int), cudaHostAllocPortable));
  for (int i = 0; i < count; ++i) host[i] = i;
  for (int device : {0, 1}) {
    On data(device);
    OK(cudaMemcpy(data.data, host, count * sizeof(int), cudaMemcpyHostToDevice));
    add_from<<<blocks(count), 128>>>(data.data, data.data, count);
    OK(cudaMemcpy(host, data.data, count * sizeof(int), cudaMemcpyDeviceToHost));
  }
  show("host", std::vector<int>(host, host + count));
}

CASE(managed_for_both) {
  int* data;
  OK(cudaMallocManaged(&data, count * sizeof(int)));
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    for (int i = 0; i < 100; ++i) data[i] = device;
    fill<<<blocks(count - 100), 128>>>(data + 100, device * 10, count - 100);
    OK(cudaDeviceSynchronize());
    show("data", std::vector<int>(data, data + count));
  }
}

CASE(pools_between) {
  // Memory of a pool of one device, opened to the other.
  cudaMemPool_t pool;
  OK(cudaSetDevice(0));
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, 1};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  OK(cudaMemPoolSetAccess(pool, &access, 1));
  int* data;
  OK(cudaMallocAsync(&data, count * sizeof(int), nullptr));
  fill<<<blocks(count), 128>>>(data, 3, count);
  OK(cudaDeviceSynchronize());
  On b(1);
  add_from<<<blocks(count), 128>>>(b.data, data, count);
  OK(cudaDeviceSynchronize());
  show("b", b.get());
}

CASE(a_thread_each) {
  std::vector<int> results[2];
  std::vector<std::thread> threads;
  for (int device : {0, 1})
    threads.emplace_back([&, device] {
      On data(device), other(device);
      fill<<<blocks(count), 128>>>(other.data, device, count);
      for (int i = 0; i < 200; ++i) add_from<<<blocks(count), 128>>>(data.data, other.data, count);
      OK(cudaDeviceSynchronize());
      results[device] = data.get();
    });
  for (std::thread& thread : threads) thread.join();
  show("first", results[0]);
  show("second", results[1]);
}

CASE(libraries_on_both) {
  for (int device : {0, 1}) {
    OK(cudaSetDevice(device));
    cublasHandle_t handle;
    OK(cublasCreate(&handle));
    Memory<float> a(whole<float>(64 * 64)), c(64 * 64);
    const float one = 1, zero = 0;
    OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 64, 64, 64, &one, a.data(), 64, a.data(), 64, &zero, c.data(),
                   64));
    show("product", c);
    const auto values = whole<int>(10000, device + 1);
    thrust::device_vector<int> keys(values.begin(), values.end());
    thrust::sort(keys.begin(), keys.end());
    show("sorted", std::vector<int>(keys.begin(), keys.end()));
    OK(cublasDestroy(handle));
  }
}
