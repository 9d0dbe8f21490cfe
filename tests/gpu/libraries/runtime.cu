// The CUDA runtime itself: memory, copies, streams, events, graphs, textures, kernels' attributes, errors.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <atomic>
#include <thread>

#include "harness.h"

namespace cg = cooperative_groups;

namespace {

constexpr int count = 10000;

__constant__ int table[16];
__device__ int counter;
__managed__ int shared_number = 5;

__global__ void fill(int* out, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = value + i;
}
__global__ void add(int* out, int value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += value;
}
__global__ void look_up(int* out) { out[threadIdx.x] = table[threadIdx.x % 16] + atomicAdd(&counter, 0); }
__global__ void count_up() {
  atomicAdd(&counter, 1);
  if (threadIdx.x == 0 && blockIdx.x == 0) shared_number *= 2;
}
__global__ void reverse(int* data) {
  extern __shared__ int tile[];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void say(int number) { printf("thread %d says %d\n", threadIdx.x, number); }
__global__ void sample(cudaTextureObject_t texture, float* out, int width) {
  out[blockIdx.x * width + threadIdx.x] = tex2D<float>(texture, threadIdx.x + 0.75f, blockIdx.x + 0.5f);
}
__global__ void paint(cudaSurfaceObject_t surface) {
  surf2Dwrite(static_cast<float>(threadIdx.x * blockIdx.x), surface, threadIdx.x * 4, blockIdx.x);
}
__global__ void levels(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex2DLod<float>(texture, 0.3f, 0.6f, static_cast<float>(threadIdx.x));
}
__global__ void in_phases(int* data, int n) {
  const auto grid = cg::this_grid();
  const int i = static_cast<int>(grid.thread_rank());
  for (int phase = 0; phase < 4; ++phase) {
    const int other = data[(i + 1) % n];
    grid.sync();
    if (i < n) data[i] += other;
    grid.sync();
  }
}
__global__ void in_clusters(int* out) {
  __shared__ int own;
  const auto cluster = cg::this_cluster();
  if (threadIdx.x == 0) own = blockIdx.x * 3;
  cluster.sync();
  if (threadIdx.x == 0)
    out[blockIdx.x] = *cluster.map_shared_rank(&own, (cluster.block_rank() + 1) % cluster.num_blocks());
  cluster.sync();
}
__global__ void lists(int** heads, int n) {
  // Memory that kernels allocate by themselves.
  int* const block = static_cast<int*>(malloc(n * sizeof(int)));
  for (int i = 0; i < n; ++i) block[i] = i * threadIdx.x;
  heads[threadIdx.x] = block;
}
__global__ void add_lists(int** heads, int n, int* sums) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += heads[threadIdx.x][i];
  free(heads[threadIdx.x]);
  sums[threadIdx.x] = sum;
}
__global__ void out_of_bounds(int* data) { data[size_t{1} << 40] = 1; }
__global__ void set_condition(cudaGraphConditionalHandle handle, int* left) {
  *left -= 1;
  cudaGraphSetConditional(handle, *left > 0);
}

int blocks(int n) { return (n + 127) / 128; }

struct Stream {
  cudaStream_t handle;
  explicit Stream(unsigned flags = cudaStreamNonBlocking) { OK(cudaStreamCreateWithFlags(&handle, flags)); }
  ~Stream() { cudaStreamDestroy(handle); }
  operator cudaStream_t() const { return handle; }
};

}  // namespace

CASE(device) {
  cudaDeviceProp properties;
  int runtime, devices;
  OK(cudaGetDeviceCount(&devices));
  OK(cudaGetDeviceProperties(&properties, 0));
  OK(cudaRuntimeGetVersion(&runtime));
  std::printf("%s %d.%d, %d processors, %zu bytes shared, %d registers, %d threads, runtime %d\n", properties.name,
              properties.major, properties.minor, properties.multiProcessorCount, properties.sharedMemPerBlockOptin,
              properties.regsPerBlock, properties.maxThreadsPerMultiProcessor, runtime);
}

CASE(copies) {
  Memory<int> a(count), b(count);
  fill<<<blocks(count), 128>>>(a.data(), 7, count);
  OK(cudaMemcpy(b.data(), a.data(), count * sizeof(int), cudaMemcpyDefault));
  OK(cudaMemcpy(b.data() + 10, b.data() + 5000, 1000 * sizeof(int), cudaMemcpyDeviceToDevice));
  OK(cudaMemset(b.data() + 100, 0x11, 400));
  show("b", b);
}

CASE(copies_in_rows) {
  int* device;
  size_t pitch;
  OK(cudaMallocPitch(&device, &pitch, 100 * sizeof(int), 50));
  const auto in = whole<int>(100 * 50);
  std::vector<int> out(100 * 50);
  OK(cudaMemcpy2D(device, pitch, in.data(), 100 * sizeof(int), 100 * sizeof(int), 50, cudaMemcpyHostToDevice));
  OK(cudaMemset2D(device, pitch, 0x22, 40, 20));
  OK(cudaMemcpy2D(out.data(), 100 * sizeof(int), device, pitch, 100 * sizeof(int), 50, cudaMemcpyDeviceToHost));
  show("rows", out);
  OK(cudaFree(device));
}

CASE(copies_in_three_dimensions) {
  cudaPitchedPtr device;
  const cudaExtent extent = make_cudaExtent(20 * sizeof(int), 30, 10);
  OK(cudaMalloc3D(&device, extent));
  auto in = whole<int>(20 * 30 * 10);
  std::vector<int> out(in.size());
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(in.data(), 20 * sizeof(int), 20, 30);
  copy.dstPtr = device;
  copy.extent = extent;
  copy.kind = cudaMemcpyHostToDevice;
  OK(cudaMemcpy3D(&copy));
  OK(cudaMemset3D(device, 0x33, make_cudaExtent(16, 5, 2)));
  copy.srcPtr = device;
  copy.dstPtr = make_cudaPitchedPtr(out.data(), 20 * sizeof(int), 20, 30);
  copy.kind = cudaMemcpyDeviceToHost;
  OK(cudaMemcpy3D(&copy));
  show("cube", out);
}

CASE(symbols) {
  const auto values = whole<int>(16);
  const int nine = 9;
  OK(cudaMemcpyToSymbol(table, values.data(), sizeof(int) * 16));
  OK(cudaMemcpyToSymbol(counter, &nine, sizeof nine));
  Memory<int> out(64);
  look_up<<<1, 64>>>(out.data());
  count_up<<<4, 32>>>();
  int counted;
  OK(cudaMemcpyFromSymbol(&counted, counter, sizeof counted));
  void* address;
  size_t bytes;
  OK(cudaGetSymbolAddress(&address, table));
  OK(cudaGetSymbolSize(&bytes, table));
  std::printf("%d %zu %d\n", counted, bytes, address != nullptr);
  show("out", out);
}

CASE(managed_variable) {
  shared_number = 21;
  count_up<<<1, 32>>>();
  OK(cudaDeviceSynchronize());
  std::printf("%d\n", shared_number);
}

CASE(managed_memory) {
  int* data;
  OK(cudaMallocManaged(&data, count * sizeof(int)));
  for (int i = 0; i < count; ++i) data[i] = i % 17;
  const cudaMemLocation on_device{cudaMemLocationTypeDevice, 0};
  OK(cudaMemAdvise(data, count * sizeof(int), cudaMemAdviseSetPreferredLocation, on_device));
  OK(cudaMemPrefetchAsync(data, count * sizeof(int), on_device, 0, nullptr));
  add<<<blocks(count), 128>>>(data, 100, count);
  OK(cudaDeviceSynchronize());
  data[3] = -1;
  add<<<blocks(count), 128>>>(data, 1, count);
  OK(cudaDeviceSynchronize());
  show("data", std::vector<int>(data, data + count));
  OK(cudaFree(data));
}

CASE(pinned_memory) {
  int* host;
  OK(cudaHostAlloc(&host, count * sizeof(int), cudaHostAllocDefault));
  Memory<int> device(count);
  Stream stream;
  OK(cudaDeviceSynchronize());
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = 0; i < count; ++i) host[i] = i * turn;
    OK(cudaMemcpyAsync(device.data(), host, count * sizeof(int), cudaMemcpyHostToDevice, stream));
    add<<<blocks(count), 128, 0, stream>>>(device.data(), turn, count);
    OK(cudaMemcpyAsync(host, device.data(), count * sizeof(int), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    show("turn", std::vector<int>(host, host + count));
  }
  OK(cudaFreeHost(host));
}

CASE(mapped_memory) {
  int *host, *device;
  OK(cudaHostAlloc(&host, count * sizeof(int), cudaHostAllocMapped));
  OK(cudaHostGetDevicePointer(&device, host, 0));
  for (int i = 0; i < count; ++i) host[i] = i;
  add<<<blocks(count), 128>>>(device, 1000, count);
  OK(cudaDeviceSynchronize());
  show("host", std::vector<int>(host, host + count));
  OK(cudaFreeHost(host));
}

CASE(registered_memory) {
  std::vector<int> host = whole<int>(count);
  OK(cudaHostRegister(host.data(), count * sizeof(int), cudaHostRegisterDefault));
  Memory<int> device(count);
  Stream stream;
  OK(cudaMemcpyAsync(device.data(), host.data(), count * sizeof(int), cudaMemcpyHostToDevice, stream));
  add<<<blocks(count), 128, 0, stream>>>(device.data(), 5, count);
  OK(cudaMemcpyAsync(host.data(), device.data(), count * sizeof(int), cudaMemcpyDeviceToHost, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaHostUnregister(host.data()));
  show("host", host);
}

CASE(stream_ordered_memory) {
  Stream stream;
  for (int turn = 0; turn < 20; ++turn) {
    int* data;
    OK(cudaMallocAsync(&data, count * sizeof(int), stream));
    fill<<<blocks(count), 128, 0, stream>>>(data, turn, count);
    int value;
    OK(cudaMemcpyAsync(&value, data + 100, sizeof value, cudaMemcpyDeviceToHost, stream));
    OK(cudaFreeAsync(data, stream));
    OK(cudaStreamSynchronize(stream));
    std::printf("%d\n", value);
  }
}

CASE(memory_pools) {
  cudaMemPool_t pool;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  OK(cudaMemPoolCreate(&pool, &properties));
  uint64_t keep = ~uint64_t{0};
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  Stream stream;
  int* data;
  OK(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&data), count * sizeof(int), pool, stream));
  fill<<<blocks(count), 128, 0, stream>>>(data, 3, count);
  uint64_t used;
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  std::printf("%d\n", used >= count * sizeof(int));
  OK(cudaFreeAsync(data, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolTrimTo(pool, 0));
  OK(cudaMemPoolDestroy(pool));
}

CASE(events) {
  Stream first, second;
  Memory<int> data(count);
  OK(cudaDeviceSynchronize());
  cudaEvent_t begin, end;
  OK(cudaEventCreate(&begin));
  OK(cudaEventCreate(&end));
  OK(cudaEventRecord(begin, first));
  fill<<<blocks(count), 128, 0, first>>>(data.data(), 1, count);
  OK(cudaEventRecord(end, first));
  OK(cudaStreamWaitEvent(second, end));
  add<<<blocks(count), 128, 0, second>>>(data.data(), 10, count);
  OK(cudaStreamSynchronize(second));
  float milliseconds;
  OK(cudaEventElapsedTime(&milliseconds, begin, end));
  std::printf("%d %d\n", milliseconds >= 0, cudaEventQuery(end));
  show("data", data);
}

CASE(priorities) {
  int least, greatest, given;
  cudaStream_t stream;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  OK(cudaStreamGetPriority(stream, &given));
  std::printf("%d %d %d\n", least, greatest, given);
}

CASE(host_functions) {
  Stream stream;
  Memory<int> data(count);
  static int seen[5];
  static int position = 0;
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < 5; ++i) {
    fill<<<blocks(count), 128, 0, stream>>>(data.data(), i * 10, count);
    OK(cudaMemcpyAsync(&seen[i], data.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
    OK(cudaLaunchHostFunc(
        stream, [](void*) { ++position; }, nullptr));
  }
  OK(cudaStreamSynchronize(stream));
  std::printf("%d: %d %d %d %d %d\n", position, seen[0], seen[1], seen[2], seen[3], seen[4]);
}

CASE(shared_memory) {
  Memory<int> data(whole<int>(1024));
  OK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
  reverse<<<1, 1024, 200 << 10>>>(data.data());
  OK(cudaGetLastError());
  show("data", data);
  reverse<<<1, 1024, 300 << 10>>>(data.data());
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
}

CASE(occupancy) {
  int resident, grid, block;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, fill, 256, 0));
  OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, fill));
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, fill));
  std::printf("%d %d %d; %d threads, %d registers, %zu bytes constant\n", resident, grid, block,
              attributes.maxThreadsPerBlock, attributes.numRegs, attributes.constSizeBytes);
}

CASE(cooperative) {
  Memory<int> data(whole<int>(2048));
  int* pointer = data.data();
  int n = 2048;
  void* arguments[] = {&pointer, &n};
  OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(in_phases), 16, 128, arguments, 0, nullptr));
  show("data", data);
}

CASE(clusters) {
  Memory<int> out(24);
  cudaLaunchConfig_t configuration{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {4, 1, 1};
  configuration.gridDim = 24;
  configuration.blockDim = 32;
  configuration.attrs = &attribute;
  configuration.numAttrs = 1;
  OK(cudaLaunchKernelEx(&configuration, in_clusters, out.data()));
  show("out", out);
}

CASE(printf_of_kernels) {
  say<<<1, 3>>>(42);
  OK(cudaDeviceSynchronize());
}

CASE(heap_of_kernels) {
  OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 32 << 20));
  Memory<int*> heads(64);
  Memory<int> sums(64);
  lists<<<1, 64>>>(heads.data(), 100);
  add_lists<<<1, 64>>>(heads.data(), 100, sums.data());
  show("sums", sums);
}

CASE(textures) {
  constexpr int width = 64, height = 32;
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  OK(cudaMallocArray(&array, &format, width, height));
  const auto values = whole<float>(width * height);
  OK(cudaMemcpy2DToArray(array, 0, 0, values.data(), width * sizeof(float), width * sizeof(float), height,
                         cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc description{};
  description.filterMode = cudaFilterModeLinear;
  description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
  cudaTextureObject_t texture;
  OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  Memory<float> out(width * height);
  sample<<<height, width>>>(texture, out.data(), width);
  show("out", out);
  OK(cudaDestroyTextureObject(texture));
  OK(cudaFreeArray(array));
}

CASE(surfaces) {
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  OK(cudaMallocArray(&array, &format, 64, 32, cudaArraySurfaceLoadStore));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaSurfaceObject_t surface;
  OK(cudaCreateSurfaceObject(&surface, &resource));
  paint<<<32, 64>>>(surface);
  std::vector<float> out(64 * 32);
  OK(cudaMemcpy2DFromArray(out.data(), 64 * sizeof(float), array, 0, 0, 64 * sizeof(float), 32,
                           cudaMemcpyDeviceToHost));
  show("out", out);
}

CASE(mipmaps) {
  cudaMipmappedArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  OK(cudaMallocMipmappedArray(&array, &format, make_cudaExtent(32, 32, 0), 4));
  for (int level = 0; level < 4; ++level) {
    cudaArray_t one;
    OK(cudaGetMipmappedArrayLevel(&one, array, level));
    const int size = 32 >> level;
    const auto values = whole<float>(size * size, level + 1);
    OK(cudaMemcpy2DToArray(one, 0, 0, values.data(), size * sizeof(float), size * sizeof(float), size,
                           cudaMemcpyHostToDevice));
  }
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = array;
  cudaTextureDesc description{};
  description.normalizedCoords = 1;
  description.maxMipmapLevelClamp = 3;
  cudaTextureObject_t texture;
  OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  Memory<float> out(4);
  levels<<<1, 4>>>(texture, out.data());
  show("out", out);
}

CASE(graph_by_hand) {
  Memory<int> data(count);
  int* pointer = data.data();
  int n = count, first_value = 5, second_value = 100;
  cudaGraph_t graph;
  cudaGraphNode_t first, second, copy;
  OK(cudaGraphCreate(&graph, 0));
  cudaKernelNodeParams parameters{};
  void* first_arguments[] = {&pointer, &first_value, &n};
  parameters.func = reinterpret_cast<void*>(fill);
  parameters.gridDim = blocks(count);
  parameters.blockDim = 128;
  parameters.kernelParams = first_arguments;
  OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &parameters));
  void* second_arguments[] = {&pointer, &second_value, &n};
  parameters.func = reinterpret_cast<void*>(add);
  parameters.kernelParams = second_arguments;
  OK(cudaGraphAddKernelNode(&second, graph, &first, 1, &parameters));
  std::vector<int> out(count);
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &second, 1, out.data(), pointer, count * sizeof(int),
                              cudaMemcpyDeviceToHost));
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, nullptr));
  OK(cudaDeviceSynchronize());
  show("first", out);
  second_value = 200;
  OK(cudaGraphExecKernelNodeSetParams(exec, second, &parameters));
  OK(cudaGraphLaunch(exec, nullptr));
  OK(cudaDeviceSynchronize());
  show("changed", out);
  size_t nodes;
  OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::printf("%zu nodes\n", nodes);
}

CASE(graph_by_capture) {
  Stream stream, side;
  Memory<int> data(2 * count);
  OK(cudaDeviceSynchronize());
  cudaEvent_t fork, join;
  OK(cudaEventCreate(&fork));
  OK(cudaEventCreate(&join));
  cudaGraph_t graph;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, stream));
  OK(cudaStreamWaitEvent(side, fork));
  add<<<blocks(count), 128, 0, stream>>>(data.data(), 1, count);
  add<<<blocks(count), 128, 0, side>>>(data.data() + count, 2, count);
  OK(cudaEventRecord(join, side));
  OK(cudaStreamWaitEvent(stream, join));
  add<<<blocks(2 * count), 128, 0, stream>>>(data.data(), 3, 2 * count);
  OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 7; ++i) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  show("data", data);
}

CASE(graph_updated) {
  Stream stream;
  Memory<int> data(count);
  OK(cudaDeviceSynchronize());
  cudaGraphExec_t exec = nullptr;
  for (int turn = 0; turn < 5; ++turn) {
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    add<<<blocks(count), 128, 0, stream>>>(data.data(), turn, count);
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExecUpdateResultInfo result{};
    if (exec == nullptr) OK(cudaGraphInstantiate(&exec, graph, 0));
    else OK(cudaGraphExecUpdate(exec, graph, &result));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphDestroy(graph));
  }
  OK(cudaStreamSynchronize(stream));
  show("data", data);
}

CASE(graph_with_condition) {
  Memory<int> data(count), left(std::vector<int>{6});
  int* pointer = data.data();
  int* turns = left.data();
  int n = count, by = 4;
  cudaGraph_t graph;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle handle;
  OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams loop{};
  loop.type = cudaGraphNodeTypeConditional;
  loop.conditional.handle = handle;
  loop.conditional.type = cudaGraphCondTypeWhile;
  loop.conditional.size = 1;
  cudaGraphNode_t node, work, decision;
  OK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &loop));
  const cudaGraph_t body = loop.conditional.phGraph_out[0];
  void* arguments[] = {&pointer, &by, &n};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(add);
  parameters.gridDim = blocks(count);
  parameters.blockDim = 128;
  parameters.kernelParams = arguments;
  OK(cudaGraphAddKernelNode(&work, body, nullptr, 0, &parameters));
  void* decision_arguments[] = {&handle, &turns};
  parameters.func = reinterpret_cast<void*>(set_condition);
  parameters.gridDim = 1;
  parameters.blockDim = 1;
  parameters.kernelParams = decision_arguments;
  OK(cudaGraphAddKernelNode(&decision, body, &work, 1, &parameters));
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, nullptr));
  show("data", data);
}

CASE(errors) {
  void* pointer;
  std::printf("%s\n", cudaGetErrorName(cudaMalloc(&pointer, size_t{1} << 50)));
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  std::printf("%s\n", cudaGetErrorName(cudaFree(reinterpret_cast<void*>(0x1234))));
  std::printf("%s\n", cudaGetErrorName(cudaMemcpy(nullptr, nullptr, 10, cudaMemcpyHostToDevice)));
  std::printf("%s\n", cudaGetErrorName(cudaSetDevice(1000)));
  fill<<<1, 4096>>>(nullptr, 0, 0);
  std::printf("%s\n", cudaGetErrorName(cudaPeekAtLastError()));
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  std::printf("%s\n", cudaGetErrorString(cudaErrorInvalidConfiguration));
}

CASE(illegal_address) {
  Memory<int> data(count);
  out_of_bounds<<<1, 1>>>(data.data());
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  void* pointer;
  std::printf("%s\n", cudaGetErrorName(cudaMalloc(&pointer, 100)));
  std::fflush(stdout);
  std::_Exit(0);  // the context is lost: nothing more can be asked
}

CASE(reset) {
  {
    Memory<int> data(count);
    fill<<<blocks(count), 128>>>(data.data(), 1, count);
    show("before", data);
  }
  OK(cudaDeviceReset());
  Memory<int> data(count);
  fill<<<blocks(count), 128>>>(data.data(), 2, count);
  show("after", data);
}

CASE(pointers) {
  Memory<int> device(10);
  int *pinned, *managed, plain;
  OK(cudaMallocHost(&pinned, 100));
  OK(cudaMallocManaged(&managed, 100));
  for (void* pointer : {static_cast<void*>(device.data()), static_cast<void*>(pinned), static_cast<void*>(managed),
                        static_cast<void*>(&plain)}) {
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, pointer));
    std::printf("%d %d %d %d\n", attributes.type, attributes.device, attributes.devicePointer != nullptr,
                attributes.hostPointer != nullptr);
  }
}

CASE(threads) {
  constexpr int workers = 8;
  Memory<int> data(workers * count);
  OK(cudaDeviceSynchronize());
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      Stream stream;
      for (int turn = 0; turn < 100; ++turn)
        add<<<blocks(count), 128, 0, stream>>>(data.data() + worker * count, worker + turn, count);
      OK(cudaStreamSynchronize(stream));
    });
  for (std::thread& thread : threads) thread.join();
  show("data", data);
}

CASE(many_small_copies) {
  Memory<int> data(count);
  for (int i = 0; i < 500; ++i) OK(cudaMemcpy(data.data() + i * 7, &i, sizeof i, cudaMemcpyHostToDevice));
  int sum = 0;
  for (int i = 0; i < 500; ++i) {
    int value;
    OK(cudaMemcpy(&value, data.data() + i * 7, sizeof value, cudaMemcpyDeviceToHost));
    sum += value;
  }
  std::printf("%d\n", sum);
}

CASE(many_launches) {
  Memory<int> data(256);
  for (int i = 0; i < 5000; ++i) add<<<2, 128>>>(data.data(), i % 3, 256);
  show("data", data);
}

CASE(large_copies) {
  constexpr size_t bytes = size_t{300} << 20;
  std::vector<unsigned char> host(bytes);
  for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<unsigned char>(i * 7 + (i >> 12));
  Memory<unsigned char> device(host);
  std::vector<unsigned char> back = device.get();
  HOLDS(back == host);
}
