// Calls that few programs make: each does what CUDA says, seen by its effect or by what others then answer.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void store(unsigned* out, unsigned value) { out[threadIdx.x] = value; }

#else

#include <cudaProfiler.h>
#include <unistd.h>

#include <thread>

namespace {

CUstream stream() {
  CUstream made;
  OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  return made;
}

CUmemLocation location(CUmemLocationType type, int id = 0) {
  CUmemLocation made = {};
  made.type = type;
  made.id = id;
  return made;
}

int attribute(CUdevice_attribute which) {
  int value;
  OK(cuDeviceGetAttribute(&value, which, 0));
  return value;
}

CUgraphNode empty_node(CUgraph graph, std::vector<CUgraphNode> after = {}) {
  CUgraphNode node;
  OK(cuGraphAddEmptyNode(&node, graph, after.data(), after.size()));
  return node;
}

}  // namespace

CASE(contexts_tell_of_themselves) {
  CUcontext here, other;
  unsigned long long first, second;
  OK(cuCtxGetCurrent(&here));
  OK(cuCtxGetId(here, &first));
  OK(cuCtxGetId(nullptr, &second));
  HOLDS(first == second);
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuCtxGetId(other, &second));
  HOLDS(first != second);
  unsigned flags;
  OK(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
  OK(cuCtxGetFlags(&flags));
  HOLDS((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
  CUsharedconfig config;
  OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  OK(cuCtxGetSharedMemConfig(&config));
  HOLDS(config == CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE);  // no device of today can choose
  OK(cuCtxResetPersistingL2Cache());
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(here));
}

CASE(devices_tell_of_themselves) {
  int major, minor;
  OK(cuDeviceComputeCapability(&major, &minor, 0));
  HOLDS(major == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  HOLDS(minor == attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  CUdevprop properties;
  OK(cuDeviceGetProperties(&properties, 0));
  HOLDS(properties.maxThreadsPerBlock == attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  HOLDS(properties.SIMDWidth == attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  size_t width;
  OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 4, 0));
  HOLDS(width >= 1 << 16);
  char luid[8];
  unsigned mask;
  CUresult of_windows = cuDeviceGetLuid(luid, &mask, 0);
  HOLDS(of_windows == CUDA_SUCCESS || of_windows == CUDA_ERROR_NOT_SUPPORTED);
  int affinity;
  OK(cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  HOLDS(affinity == 0 || affinity == 1);
  CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
  unsigned capabilities[2];
  OK(cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0));
  CUmoduleLoadingMode mode;
  OK(cuModuleGetLoadingMode(&mode));
  HOLDS(mode == CU_MODULE_LAZY_LOADING || mode == CU_MODULE_EAGER_LOADING);
  const char* text;
  OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  HOLDS(std::strstr(text, "memory") != nullptr);
}

CASE(atomics_between_devices) {
  int count;
  OK(cuDeviceGetCount(&count));
  CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
  unsigned capability;
  if (count < 2) HOLDS(cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, 0, 1) != CUDA_SUCCESS);
  else OK(cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, 0, 1));
}

CASE(memsets_of_every_width_on_streams) {
  CUstream on = stream();
  Buffer<unsigned char> bytes(64 * 16);
  OK(cuMemsetD8Async(bytes.address(), 0, 64 * 16, on));
  OK(cuMemsetD16Async(bytes.address(), 0x0102, 8, on));
  OK(cuMemsetD2D8Async(bytes.address() + 64, 64, 3, 4, 2, on));
  OK(cuMemsetD2D16Async(bytes.address() + 256, 64, 0x0405, 4, 2, on));
  OK(cuMemsetD2D32Async(bytes.address() + 512, 64, 0x06070809, 4, 2, on));
  OK(cuStreamSynchronize(on));
  std::vector<unsigned char> wanted(64 * 16, 0);
  for (int i = 0; i < 8; ++i) wanted[2 * i] = 2, wanted[2 * i + 1] = 1;
  for (int row = 0; row < 2; ++row) {
    for (int i = 0; i < 4; ++i) {
      wanted[64 + 64 * row + i] = 3;
      wanted[256 + 64 * row + 2 * i] = 5, wanted[256 + 64 * row + 2 * i + 1] = 4;
      for (int part = 0; part < 4; ++part) wanted[512 + 64 * row + 4 * i + part] = 9 - part;
    }
  }
  expect_same(bytes.get(), wanted);
  OK(cuStreamDestroy(on));
}

CASE(copies_that_find_their_kinds) {
  CUstream on = stream();
  std::vector<unsigned> sent = random_values<unsigned>(1000, 0, 1 << 30), got(1000);
  Buffer<unsigned> first(1000), second(1000);
  OK(cuMemcpyAsync(first.address(), reinterpret_cast<CUdeviceptr>(sent.data()), 4000, on));
  OK(cuMemcpyAsync(second.address(), first.address(), 4000, on));
  OK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(got.data()), second.address(), 4000, on));
  OK(cuStreamSynchronize(on));
  expect_same(got, sent);
  OK(cuStreamDestroy(on));
}

CASE(functions_tell_of_themselves) {
  Kernels kernels;
  CUfunction store = kernels.get("store");
  CUmodule module;
  OK(cuFuncGetModule(&module, store));
  HOLDS(module == kernels.module());
  OK(cuFuncSetCacheConfig(store, CU_FUNC_CACHE_PREFER_L1));
  OK(cuFuncSetSharedMemConfig(store, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
  CUlibrary library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CUfunction function;
  OK(cuLibraryGetKernel(&kernel, library, "store"));
  OK(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_SHARED, 0));
  OK(cuKernelGetFunction(&function, kernel));
  CUmodule behind;
  OK(cuFuncGetModule(&module, function));
  OK(cuLibraryGetModule(&behind, library));
  HOLDS(module == behind);
  CUfunctionLoadingState state;
  OK(cuFuncLoad(function));
  OK(cuFuncIsLoaded(&state, function));
  HOLDS(state == CU_FUNCTION_LOADING_STATE_LOADED);
  OK(cuLibraryUnload(library));
}

CASE(occupancy_in_every_form) {
  Kernels kernels;
  CUfunction store = kernels.get("store");
  int blocks, with_flags, grid, block;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, store, 128, 0));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_flags, store, 128, 0,
                                                          CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
  HOLDS(blocks == with_flags && blocks > 0);
  OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, store, nullptr, 0, 0));
  HOLDS(block > 0 && block <= attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  HOLDS(grid >= attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  int again;
  OK(cuOccupancyMaxPotentialBlockSizeWithFlags(
      &grid, &again, store, [](int) -> size_t { return 0; }, 0, 64, 0));
  HOLDS(again <= 64 && again > 0);
  size_t shared;
  OK(cuOccupancyAvailableDynamicSMemPerBlock(&shared, store, 2, 128));
  HOLDS(shared > 0);
  CUlaunchConfig config = {};
  config.gridDimX = 8, config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 64, config.blockDimY = config.blockDimZ = 1;
  int cluster;
  OK(cuOccupancyMaxPotentialClusterSize(&cluster, store, &config));
  HOLDS(cluster >= 1);
}

CASE(images_from_files) {
  char path[] = "/tmp/kernels-breadth-XXXXXX";
  int file = mkstemp(path);
  HOLDS(file >= 0);
  std::string ptx =
      ".version 8.0\n.target sm_70\n.address_size 64\n"
      ".visible .entry from_file(.param .u64 out) { .reg .b64 %a; ld.param.u64 %a, [out]; st.global.u32 [%a], 77; ret; "
      "}\n";
  HOLDS(write(file, ptx.data(), ptx.size()) == static_cast<ssize_t>(ptx.size()));
  close(file);
  CUlibrary library;
  CUkernel kernel;
  CUresult loaded = cuLibraryLoadFromFile(&library, path, nullptr, nullptr, 0, nullptr, nullptr, 0);
  unlink(path);
  OK(loaded);
  OK(cuLibraryGetKernel(&kernel, library, "from_file"));
  Buffer<unsigned> out(1);
  CUdeviceptr address = out.address();
  void* parameters[] = {&address};
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  HOLDS(out.get()[0] == 77);
  OK(cuLibraryUnload(library));
  CUmodule module;
  OK(cuModuleLoadFatBinary(&module, kernel_image));
  CUfunction function;
  OK(cuModuleGetFunction(&function, module, "store"));
  OK(cuModuleUnload(module));
}

CASE(edges_of_graphs) {
  CUgraph graph;
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode a = empty_node(graph), b = empty_node(graph), c = empty_node(graph, {a});
  OK(cuGraphAddDependencies(graph, &b, &c, nullptr, 1));
  size_t count = 0;
  OK(cuGraphNodeGetDependencies(c, nullptr, nullptr, &count));
  HOLDS(count == 2);
  OK(cuGraphNodeGetDependentNodes(a, nullptr, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  HOLDS(count == 2);
  CUgraphNode from[2], to[2];
  OK(cuGraphGetEdges(graph, from, to, nullptr, &count));
  HOLDS(to[0] == c && to[1] == c && (from[0] == a || from[1] == a));
  OK(cuGraphRemoveDependencies(graph, &a, &c, nullptr, 1));
  OK(cuGraphGetEdges(graph, from, to, nullptr, &count));
  HOLDS(count == 1 && from[0] == b);
  CUgraphExec executable;
  cuuint64_t flags;
  OK(cuGraphInstantiate(&executable, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  OK(cuGraphExecGetFlags(executable, &flags));
  HOLDS(flags == CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

CASE(nodes_change) {
  Kernels kernels;
  Buffer<unsigned> out(32), source(32), target(32);
  out.clear(), source.clear(), target.clear();
  CUgraph graph;
  OK(cuGraphCreate(&graph, 0));
  CUdeviceptr address = out.address();
  unsigned value = 1;
  void* parameters[] = {&address, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = {};
  kernel.func = kernels.get("store");
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = 32, kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = parameters;
  CUgraphNodeParams general = {};
  general.type = CU_GRAPH_NODE_TYPE_KERNEL;
  general.kernel.func = kernel.func;
  general.kernel.gridDimX = general.kernel.gridDimY = general.kernel.gridDimZ = 1;
  general.kernel.blockDimX = 32, general.kernel.blockDimY = general.kernel.blockDimZ = 1;
  general.kernel.kernelParams = parameters;
  CUgraphNode node, copied, recorded, waited;
  OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &general));
  value = 2;
  OK(cuGraphKernelNodeSetParams(node, &kernel));
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = source.address(), copy.dstDevice = target.address();
  copy.WidthInBytes = 128, copy.Height = copy.Depth = 1;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  OK(cuGraphAddMemcpyNode(&copied, graph, &node, 1, &copy, context));
  copy.srcDevice = out.address();
  OK(cuGraphMemcpyNodeSetParams(copied, &copy));
  CUevent first, second;
  OK(cuEventCreate(&first, 0));
  OK(cuEventCreate(&second, 0));
  OK(cuGraphAddEventRecordNode(&recorded, graph, &copied, 1, first));
  OK(cuGraphEventRecordNodeSetEvent(recorded, second));
  OK(cuGraphAddEventWaitNode(&waited, graph, nullptr, 0, first));
  OK(cuGraphEventWaitNodeSetEvent(waited, first));
  CUgraphExec executable;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphExecEventRecordNodeSetEvent(executable, recorded, first));
  OK(cuGraphExecEventWaitNodeSetEvent(executable, waited, second));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuCtxSynchronize());
  expect_same(target.get(), std::vector<unsigned>(32, 2));
  OK(cuEventQuery(first));
  value = 3;
  OK(cuGraphExecKernelNodeSetParams(executable, node, &kernel));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuCtxSynchronize());
  expect_same(target.get(), std::vector<unsigned>(32, 3));
  // The graph still says two, and its like replaces what the executable does.
  CUgraphExecUpdateResultInfo result = {};
  OK(cuGraphExecUpdate(executable, graph, &result));
  HOLDS(result.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuCtxSynchronize());
  expect_same(target.get(), std::vector<unsigned>(32, 2));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  OK(cuEventDestroy(first));
  OK(cuEventDestroy(second));
}

CASE(child_graphs_of_executables_change) {
  Kernels kernels;
  Buffer<unsigned> out(32);
  out.clear();
  CUdeviceptr address = out.address();
  auto child_that_stores = [&](unsigned value) {
    CUgraph child;
    CUgraphNode node;
    OK(cuGraphCreate(&child, 0));
    void* parameters[] = {&address, &value};
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    kernel.func = kernels.get("store");
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = 32, kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = parameters;
    OK(cuGraphAddKernelNode(&node, child, nullptr, 0, &kernel));
    return child;
  };
  CUgraph graph, four = child_that_stores(4), five = child_that_stores(5);
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode node;
  OK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, four));
  CUgraphExec executable;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphExecChildGraphNodeSetParams(executable, node, five));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuCtxSynchronize());
  expect_same(out.get(), std::vector<unsigned>(32, 5));
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
  OK(cuGraphDestroy(four));
  OK(cuGraphDestroy(five));
}

CASE(captures_are_steered) {
  CUstream on = stream();
  OK(cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status;
  CUgraph graph, ended;
  OK(cuStreamGetCaptureInfo(on, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  Buffer<unsigned> out(4);
  CUgraphNode before = empty_node(graph);
  OK(cuStreamUpdateCaptureDependencies(on, &before, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(cuMemsetD32Async(out.address(), 1, 4, on));
  OK(cuStreamEndCapture(on, &ended));
  size_t count;
  OK(cuGraphGetEdges(ended, nullptr, nullptr, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphDestroy(ended));
  OK(cuStreamDestroy(on));
}

CASE(streams_tell_of_themselves) {
  CUstream on = stream(), like;
  OK(cuStreamCreate(&like, CU_STREAM_NON_BLOCKING));
  CUdevice device;
  OK(cuStreamGetDevice(on, &device));
  HOLDS(device == 0);
  CUcontext here, of_stream;
  CUgreenCtx green;
  OK(cuCtxGetCurrent(&here));
  OK(cuStreamGetCtx_v2(on, &of_stream, &green));
  HOLDS(of_stream == here && green == nullptr);
  OK(cuStreamGetGreenCtx(on, &green));
  HOLDS(green == nullptr);
  OK(cuStreamCopyAttributes(like, on));
  OK(cuStreamDestroy(on));
  OK(cuStreamDestroy(like));
}

CASE(managed_memory_is_advised) {
  CUdeviceptr memory;
  size_t bytes = 1 << 20;
  OK(cuMemAllocManaged(&memory, bytes, CU_MEM_ATTACH_GLOBAL));
  *reinterpret_cast<unsigned*>(memory) = 5;
  OK(cuMemAdvise(memory, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, location(CU_MEM_LOCATION_TYPE_DEVICE)));
  int mostly = -1, preferred = -1;
  void* data[] = {&mostly, &preferred};
  size_t sizes[] = {sizeof mostly, sizeof preferred};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  OK(cuMemRangeGetAttributes(data, sizes, attributes, 2, memory, bytes));
  HOLDS(mostly == 0 || mostly == 1);  // a device that does not move pages keeps no advice
  CUstream on = stream();
  OK(cuMemPrefetchAsync(memory, bytes, location(CU_MEM_LOCATION_TYPE_DEVICE), 0, on));
  OK(cuStreamSynchronize(on));
  HOLDS(*reinterpret_cast<unsigned*>(memory) == 5);
  OK(cuStreamDestroy(on));
  OK(cuMemFree(memory));
}

CASE(threads_load_one_large_image) {
  CUcontext here;
  OK(cuCtxGetCurrent(&here));
  for (int round = 0; round < 3; ++round) {
    std::string image = ".version 7.0\n.target sm_75\n.address_size 64\n// " + std::to_string(getpid()) + " " +
                        std::to_string(round) + " " + std::string(6 << 20, 'x') +
                        "\n.visible .entry nothing() { ret; }\n";
    std::vector<CUresult> results(4, CUDA_ERROR_UNKNOWN);
    std::vector<std::thread> threads;
    for (CUresult& result : results)
      threads.emplace_back([&] {
        CUmodule module = nullptr;
        result = cuCtxSetCurrent(here);
        if (result == CUDA_SUCCESS) result = cuModuleLoadData(&module, image.c_str());
        if (result == CUDA_SUCCESS) result = cuModuleUnload(module);
      });
    for (std::thread& thread : threads) thread.join();
    for (CUresult result : results) OK(result);
  }
}

CASE(the_profiler_is_started_and_stopped) {
  OK(cuProfilerStart());
  OK(cuProfilerStop());
}

#endif
