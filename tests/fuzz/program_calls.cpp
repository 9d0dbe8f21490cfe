#include "program_calls.h"

#include <cudaProfiler.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "client/session/process.h"
#include "client/session/session.h"
#include "fuzz.h"
#include "protocol/limits.h"
#include "tests/wire/fixture.h"

namespace fargpu::fuzz {
namespace {

using P = Program;

unsigned host_functions_run = 0;
void CUDA_CB host_function(void*) { ++host_functions_run; }
void CUDA_CB stream_callback(CUstream, CUresult, void*) { ++host_functions_run; }

// A kernel's parameters are where the program has them, and of what sizes, only the host says: it
// may have as many read, and as much of each, as a kernel may have.
void** kernel_parameters() {
  static std::byte values[limits::kernel_parameter_bytes_max];
  static void** const pointers = [] {
    static void* made[limits::kernel_parameter_bytes_max];
    std::fill(std::begin(made), std::end(made), static_cast<void*>(values));
    return made;
  }();
  return pointers;
}

CUstream stream(const P& p) { return p.streams[0]; }
std::byte* bytes(P& p, std::size_t count) { return p.lent.take(count); }
template <class T>
T* out(P& p, std::size_t count = 1) {
  return p.lent.take<T>(count);
}
/// What a call wrote, if it did.
template <class T>
void keep(CUresult result, const T* from, T& to) {
  if (result == CUDA_SUCCESS) to = *from;
}
const char* text(P& p, const char* words) {
  char* const place = out<char>(p, std::strlen(words) + 1);
  std::memcpy(place, words, std::strlen(words) + 1);
  return place;
}

CUDA_MEMCPY3D copy_of(CUdeviceptr device, void* host, std::size_t width, bool in) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  (in ? copy.dstDevice : copy.srcDevice) = device;
  if (in) copy.srcHost = host;
  else copy.dstHost = host;
  copy.WidthInBytes = width;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUmemLocation on_device(int device) { return {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}; }

CUmemAllocationProp properties() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location = on_device(0);
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

// The program touches memory whose newest contents the host has, as by a system call.
void touch(std::uint64_t address, std::uint64_t count, bool writing) {
  if (client::life() != client::Life::ready || address == 0) return;
  client::Session& session = *client::process().session();
  try {
    session.managed.touch(address, count, writing);
    session.host_memory.pages().touch(address, count, writing);
  } catch (const std::exception& error) {  // the contents cannot be had: a program ends here
    session.lose(error.what());
  }
}

struct Calls {
  const char* name;
  void (*make)(P&);
};

const Calls all_calls[] = {
    {"devices",
     [](P& p) {
       cuDeviceGetCount(out<int>(p));
       cuDeviceGet(out<CUdevice>(p), 0);
       cuDeviceGetName(out<char>(p, 16), 16, 0);
       cuDeviceGetUuid_v2(out<CUuuid>(p), 0);
       cuDeviceGetLuid(out<char>(p, 8), out<unsigned>(p), 0);
       cuDeviceTotalMem_v2(out<std::size_t>(p), 0);
       for (const int attribute : {1, 2, 16, 39, 75, 101})
         cuDeviceGetAttribute(out<int>(p), static_cast<CUdevice_attribute>(attribute), 0);
       cuDeviceGetPCIBusId(out<char>(p, 13), 13, 0);
       cuDeviceGetByPCIBusId(out<CUdevice>(p), text(p, "0000:00:00.0"));
       cuDeviceCanAccessPeer(out<int>(p), 0, 1);
       cuDeviceGetP2PAttribute(out<int>(p), CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 1);
       cuDeviceGetExecAffinitySupport(out<int>(p), CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0);
       cuDriverGetVersion(out<int>(p));
     }},
    {"device memory info",
     [](P& p) {
       cuMemGetInfo_v2(out<std::size_t>(p), out<std::size_t>(p));
       cuDeviceGetDefaultMemPool(out<CUmemoryPool>(p), 0);
       cuDeviceGetTexture1DLinearMaxWidth(out<std::size_t>(p), CU_AD_FORMAT_FLOAT, 1, 0);
     }},
    {"error texts",
     [](P& p) {
       cuGetErrorString(CUDA_ERROR_INVALID_VALUE, out<const char*>(p));
       cuGetErrorName(CUDA_ERROR_INVALID_VALUE, out<const char*>(p));
       cuModuleGetLoadingMode(out<CUmoduleLoadingMode>(p));
     }},
    {"allocate",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       keep(cuMemAlloc_v2(address, P::small_bytes), address, p.small);
     }},
    {"allocate large",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       keep(cuMemAlloc_v2(address, P::large_bytes), address, p.large);
     }},
    {"allocate rows",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       if (cuMemAllocPitch_v2(address, out<std::size_t>(p), 100, 10, 4) == CUDA_SUCCESS) cuMemFree_v2(*address);
     }},
    {"allocate many",
     [](P& p) {
       CUdeviceptr many[4] = {};
       for (CUdeviceptr& one : many) {
         auto* const address = out<CUdeviceptr>(p);
         keep(cuMemAlloc_v2(address, P::window_bytes), address, one);
       }
       for (const CUdeviceptr one : many) cuMemFree_v2(one);
     }},
    {"free",
     [](P& p) {
       cuMemFree_v2(p.small);
       cuMemFree_v2(p.large);
       p.small = p.large = 0;
     }},
    {"copy in",
     [](P& p) {
       cuMemcpyHtoD_v2(p.small, bytes(p, 1000), 1000);
       cuMemcpyHtoDAsync_v2(p.small + 1, bytes(p, 3), 3, stream(p));
       cuMemcpyHtoD_v2(p.large, bytes(p, 20000), 20000);
     }},
    {"copy out",
     [](P& p) {
       cuMemcpyDtoH_v2(bytes(p, 1000), p.small, 1000);
       cuMemcpyDtoH_v2(bytes(p, 7), p.small + 5, 7);
       cuMemcpyDtoHAsync_v2(bytes(p, 64), p.small, 64, stream(p));
       cuMemcpyDtoH_v2(bytes(p, 60000), p.large, 60000);
     }},
    {"copy out at once",
     [](P& p) {
       cuMemcpy(reinterpret_cast<CUdeviceptr>(bytes(p, 99)), p.small, 99);
       cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes(p, 33)), p.small, 33, stream(p));
     }},
    {"copy on the device",
     [](P& p) {
       cuMemcpyDtoD_v2(p.small, p.large, 100);
       cuMemcpyDtoDAsync_v2(p.large, p.small, 100, stream(p));
       cuMemcpyPeer(p.small, p.context, p.large, p.other_context ? p.other_context : p.context, 64);
     }},
    {"copy rows",
     [](P& p) {
       CUDA_MEMCPY2D rows{};
       rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
       rows.srcDevice = p.small;
       rows.srcPitch = 64;
       rows.dstMemoryType = CU_MEMORYTYPE_HOST;
       rows.dstHost = bytes(p, 9 * 100 + 20);
       rows.dstPitch = 100;
       rows.WidthInBytes = 20;
       rows.Height = 10;
       cuMemcpy2D_v2(&rows);
       std::swap(rows.srcMemoryType, rows.dstMemoryType);
       rows.srcHost = rows.dstHost;
       std::swap(rows.srcPitch, rows.dstPitch);
       rows.dstDevice = p.small;
       cuMemcpy2DAsync_v2(&rows, stream(p));
     }},
    {"copy a box",
     [](P& p) {
       CUDA_MEMCPY3D box = copy_of(p.small, bytes(p, 2 * 5 * 16), 16, false);
       box.Height = 5;
       box.Depth = 2;
       box.srcPitch = 32;
       box.srcHeight = 8;
       box.dstPitch = 16;
       box.dstHeight = 5;
       cuMemcpy3D_v2(&box);
       cuMemcpy3DAsync_v2(&box, stream(p));
     }},
    {"copies in a batch",
     [](P& p) {
       CUdeviceptr to[2] = {reinterpret_cast<CUdeviceptr>(bytes(p, 40)), p.small},
                   from[2] = {p.small, reinterpret_cast<CUdeviceptr>(bytes(p, 40))};
       std::size_t sizes[2] = {40, 40}, first = 0;
       CUmemcpyAttributes attributes{};
       attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
       cuMemcpyBatchAsync_v2(to, from, sizes, 2, &attributes, &first, 1, stream(p));
     }},
    {"fill",
     [](P& p) {
       cuMemsetD8_v2(p.small, 1, 100);
       cuMemsetD16_v2(p.small, 1, 50);
       cuMemsetD32Async(p.small, 1, 25, stream(p));
       cuMemsetD2D8_v2(p.small, 64, 1, 16, 4);
     }},
    {"streams",
     [](P& p) {
       auto* const made = out<CUstream>(p);
       keep(cuStreamCreate(made, CU_STREAM_NON_BLOCKING), made, p.streams[0]);
       auto* const other = out<CUstream>(p);
       keep(cuStreamCreateWithPriority(other, CU_STREAM_DEFAULT, -1), other, p.streams[1]);
       cuStreamGetPriority(p.streams[1], out<int>(p));
       cuStreamGetFlags(p.streams[1], out<unsigned>(p));
       cuStreamGetId(stream(p), out<unsigned long long>(p));
       cuStreamGetCtx(stream(p), out<CUcontext>(p));
       cuStreamGetDevice(stream(p), out<CUdevice>(p));
     }},
    {"query",
     [](P& p) {
       cuStreamQuery(stream(p));
       cuStreamQuery(nullptr);
     }},
    {"wait for a stream", [](P& p) { cuStreamSynchronize(stream(p)); }},
    {"wait for all", [](P&) { cuCtxSynchronize(); }},
    {"end streams",
     [](P& p) {
       for (CUstream& one : p.streams) cuStreamDestroy_v2(std::exchange(one, nullptr));
     }},
    {"stream attributes",
     [](P& p) {
       cuStreamGetAttribute(stream(p), CU_LAUNCH_ATTRIBUTE_PRIORITY, out<CUstreamAttrValue>(p));
       auto* const value = out<CUstreamAttrValue>(p);
       std::memset(static_cast<void*>(value), 0, sizeof(*value));
       cuStreamSetAttribute(stream(p), CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, value);
       cuStreamCopyAttributes(p.streams[1], stream(p));
     }},
    {"events",
     [](P& p) {
       for (CUevent& event : p.events) {
         auto* const made = out<CUevent>(p);
         keep(cuEventCreate(made, CU_EVENT_DEFAULT), made, event);
         cuEventRecord(event, stream(p));
       }
       cuEventQuery(p.events[0]);
       cuEventSynchronize(p.events[1]);
       cuEventElapsedTime_v2(out<float>(p), p.events[0], p.events[1]);
       cuStreamWaitEvent(p.streams[1], p.events[0], 0);
     }},
    {"end events",
     [](P& p) {
       for (CUevent& one : p.events) cuEventDestroy_v2(std::exchange(one, nullptr));
     }},
    {"host functions",
     [](P& p) {
       cuLaunchHostFunc(stream(p), host_function, nullptr);
       cuStreamAddCallback(stream(p), stream_callback, nullptr, 0);
     }},
    {"values in memory",
     [](P& p) {
       cuStreamWriteValue32_v2(stream(p), p.small, 1, 0);
       cuStreamWaitValue32_v2(stream(p), p.small, 1, CU_STREAM_WAIT_VALUE_EQ);
       CUstreamBatchMemOpParams operation{};
       operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
       operation.writeValue.address = p.small + 8;
       cuStreamBatchMemOp_v2(stream(p), 1, &operation, 0);
     }},
    {"values in pinned memory",
     [](P& p) {
       cuStreamWriteValue32_v2(stream(p), reinterpret_cast<CUdeviceptr>(p.pinned), 1, 0);
       cuStreamWaitValue32_v2(stream(p), reinterpret_cast<CUdeviceptr>(p.pinned), 1, CU_STREAM_WAIT_VALUE_EQ);
     }},
    {"load a module",
     [](P& p) {
       auto* const module = out<CUmodule>(p);
       char* info = out<char>(p, 50);
       CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_WALL_TIME};
       void* values[] = {info, reinterpret_cast<void*>(50), nullptr};
       keep(cuModuleLoadDataEx(module, test::kernels, 3, options, values), module, p.module);
     }},
    {"find a function",
     [](P& p) {
       auto* const function = out<CUfunction>(p);
       keep(cuModuleGetFunction(function, p.module, text(p, "fill32")), function, p.function);
       cuModuleGetFunction(out<CUfunction>(p), p.module, text(p, "mixed"));
       cuModuleGetFunctionCount(out<unsigned>(p), p.module);
       cuModuleEnumerateFunctions(out<CUfunction>(p, 3), 3, p.module);
     }},
    {"find variables",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       cuModuleGetGlobal_v2(out<CUdeviceptr>(p), out<std::size_t>(p), p.module, text(p, "variable"));
       keep(cuModuleGetGlobal_v2(address, out<std::size_t>(p), p.module, text(p, "managed_table")), address,
            p.variable);
       touch(p.variable + 70'000, 10, false);
       touch(p.variable, 1, true);
     }},
    {"facts of a function",
     [](P& p) {
       for (const auto attribute :
            {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_NUM_REGS, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES})
         cuFuncGetAttribute(out<int>(p), attribute, p.function);
       cuFuncSetAttribute(p.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
       cuFuncSetCacheConfig(p.function, CU_FUNC_CACHE_PREFER_L1);
       cuFuncGetName(out<const char*>(p), p.function);
       cuFuncGetModule(out<CUmodule>(p), p.function);
       cuFuncGetParamInfo(p.function, 1, out<std::size_t>(p), out<std::size_t>(p));
       cuFuncIsLoaded(out<CUfunctionLoadingState>(p), p.function);
       cuFuncLoad(p.function);
     }},
    {"occupancy",
     [](P& p) {
       cuOccupancyMaxActiveBlocksPerMultiprocessor(out<int>(p), p.function, 128, 0);
       cuOccupancyMaxPotentialBlockSize(out<int>(p), out<int>(p), p.function, nullptr, 0, 0);
       cuOccupancyAvailableDynamicSMemPerBlock(out<std::size_t>(p), p.function, 1, 128);
       CUlaunchConfig config{};
       config.gridDimX = config.gridDimY = config.gridDimZ = 1;
       config.blockDimX = 32, config.blockDimY = config.blockDimZ = 1;
       cuOccupancyMaxPotentialClusterSize(out<int>(p), p.function, &config);
       cuOccupancyMaxActiveClusters(out<int>(p), p.function, &config);
     }},
    {"launch",
     [](P& p) {
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, nullptr, kernel_parameters(), nullptr);
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, kernel_parameters(), nullptr);
     }},
    {"launch otherwise",
     [](P& p) {
       std::size_t size = 16;
       void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes(p, 16), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                        CU_LAUNCH_PARAM_END};
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), nullptr, extra);
       CUlaunchAttribute attribute{};
       attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
       attribute.value.clusterDim = {1, 1, 1};
       CUlaunchConfig config{1, 1, 1, 32, 1, 1, 0, stream(p), &attribute, 1};
       cuLaunchKernelEx(&config, p.function, kernel_parameters(), nullptr);
       cuLaunchCooperativeKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters());
     }},
    {"launch many",
     [](P& p) {
       for (int i = 0; i < 140; ++i)
         cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
     }},
    {"unload",
     [](P& p) {
       cuModuleUnload(std::exchange(p.module, nullptr));
       cuLibraryUnload(std::exchange(p.loaded, nullptr));
     }},
    {"library",
     [](P& p) {
       auto* const library = out<CUlibrary>(p);
       keep(cuLibraryLoadData(library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0), library, p.loaded);
       auto* const kernel = out<CUkernel>(p);
       keep(cuLibraryGetKernel(kernel, p.loaded, text(p, "fill32")), kernel, p.kernel);
       auto* const function = out<CUfunction>(p);
       keep(cuKernelGetFunction(function, p.kernel), function, p.function);
       cuLibraryGetModule(out<CUmodule>(p), p.loaded);
       cuLibraryGetKernelCount(out<unsigned>(p), p.loaded);
       cuLibraryEnumerateKernels(out<CUkernel>(p, 2), 2, p.loaded);
       cuLibraryGetGlobal(out<CUdeviceptr>(p), out<std::size_t>(p), p.loaded, text(p, "variable"));
       cuLibraryGetManaged(out<CUdeviceptr>(p), out<std::size_t>(p), p.loaded, text(p, "managed_words"));
     }},
    {"facts of a kernel",
     [](P& p) {
       cuKernelGetAttribute(out<int>(p), CU_FUNC_ATTRIBUTE_NUM_REGS, p.kernel, 0);
       cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 2048, p.kernel, 0);
       cuKernelGetName(out<const char*>(p), p.kernel);
       cuKernelGetParamInfo(p.kernel, 0, out<std::size_t>(p), out<std::size_t>(p));
       cuKernelGetLibrary(out<CUlibrary>(p), p.kernel);
       cuLaunchKernel(reinterpret_cast<CUfunction>(p.kernel), 1, 1, 1, 1, 1, 1, 0, stream(p), kernel_parameters(),
                      nullptr);
     }},
    {"link",
     [](P& p) {
       auto* const state = out<CUlinkState>(p);
       CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                                 CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
       auto** const values = reinterpret_cast<void**>(p.lent.lend(4 * sizeof(void*)));  // until the link is destroyed
       values[0] = p.lent.lend(30);
       values[1] = reinterpret_cast<void*>(30);
       values[2] = p.lent.lend(20);
       values[3] = reinterpret_cast<void*>(20);
       keep(cuLinkCreate_v2(4, options, values, state), state, p.link);
       cuLinkAddData_v2(p.link, CU_JIT_INPUT_PTX, const_cast<char*>(test::kernels), std::strlen(test::kernels) + 1,
                        text(p, "input"), 0, nullptr, nullptr);
       auto* const image = out<void*>(p);
       auto* const size = out<std::size_t>(p);
       if (cuLinkComplete(p.link, image, size) == CUDA_SUCCESS) cuModuleLoadData(out<CUmodule>(p), *image);
       cuLinkDestroy(std::exchange(p.link, nullptr));
     }},
    {"pinned memory",
     [](P& p) {
       auto** const pointer = out<void*>(p);
       if (cuMemHostAlloc(pointer, P::pinned_bytes, 0) != CUDA_SUCCESS) return;
       p.pinned = *pointer;
       std::memset(p.pinned, 0, P::pinned_bytes);
     }},
    {"pinned memory that kernels use",
     [](P& p) {
       if (p.pinned) cuMemHostGetDevicePointer_v2(out<CUdeviceptr>(p), p.pinned, 0);
       cuMemHostGetFlags(out<unsigned>(p), p.pinned);
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
       if (p.pinned) static_cast<std::byte*>(p.pinned)[100] ^= std::byte{1};
     }},
    {"large pinned memory",
     [](P& p) {
       auto** const pointer = out<void*>(p);
       keep(cuMemHostAlloc(pointer, P::large_pinned_bytes, 0), pointer, p.large_pinned);
       if (p.large_pinned) cuMemHostGetDevicePointer_v2(out<CUdeviceptr>(p), p.large_pinned, 0);
       touch(reinterpret_cast<std::uint64_t>(p.large_pinned), 4, true);
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
       touch(reinterpret_cast<std::uint64_t>(p.large_pinned), 4, false);
     }},
    {"copies of pinned memory",
     [](P& p) {
       if (!p.pinned) return;
       cuMemcpyDtoHAsync_v2(p.pinned, p.small, 3000, stream(p));
       cuMemcpyHtoDAsync_v2(p.small, static_cast<std::byte*>(p.pinned) + 3000, 1000, stream(p));
       cuMemcpyDtoH_v2(static_cast<std::byte*>(p.pinned) + 8, p.small, 500);
     }},
    {"register memory",
     [](P& p) {
       if (!p.registered) p.registered = p.lent.lend(P::registered_bytes);
       cuMemHostRegister_v2(p.registered, P::registered_bytes, 0);
       cuMemcpyDtoHAsync_v2(p.registered + 5, p.small, P::registered_bytes - 2000, stream(p));
       cuMemcpyHtoDAsync_v2(p.small, p.registered, 100, stream(p));
     }},
    {"registered memory that kernels use",
     [](P& p) {
       cuMemHostGetDevicePointer_v2(out<CUdeviceptr>(p), p.registered, 0);
       cuLaunchKernel(p.function, 1, 1, 1, 32, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
     }},
    {"unregister memory", [](P& p) { cuMemHostUnregister(p.registered); }},
    {"free pinned memory",
     [](P& p) {
       cuMemFreeHost(std::exchange(p.pinned, nullptr));
       cuMemFreeHost(std::exchange(p.large_pinned, nullptr));
     }},
    {"managed memory",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       keep(cuMemAllocManaged(address, P::managed_bytes, CU_MEM_ATTACH_GLOBAL), address, p.managed);
       touch(p.managed, 8, true);
     }},
    {"use managed memory",
     [](P& p) {
       cuMemsetD8_v2(p.managed, 1, 1000);
       touch(p.managed, 100, false);
       cuCtxSynchronize();
       touch(p.managed + 70'000, P::managed_bytes - 70'000, true);
       cuMemPrefetchAsync_v2(p.managed, 4096, on_device(0), 0, stream(p));
       cuMemAdvise_v2(p.managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device(0));
       cuMemRangeGetAttribute(out<int>(p), 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p.managed, 4096);
     }},
    {"free managed memory", [](P& p) { cuMemFree_v2(std::exchange(p.managed, 0)); }},
    {"pools",
     [](P& p) {
       CUmemPoolProps props{};
       props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
       props.location = on_device(0);
       auto* const pool = out<CUmemoryPool>(p);
       keep(cuMemPoolCreate(pool, &props), pool, p.pool);
       auto* const address = out<CUdeviceptr>(p);
       keep(cuMemAllocFromPoolAsync(address, 5000, p.pool, stream(p)), address, p.pooled);
       cuMemPoolGetAttribute(p.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, out<std::uint64_t>(p));
       cuMemPoolGetAccess(out<CUmemAccess_flags>(p), p.pool, const_cast<CUmemLocation*>(&props.location));
     }},
    {"memory of streams",
     [](P& p) {
       auto* const address = out<CUdeviceptr>(p);
       if (cuMemAllocAsync(address, 3000, stream(p)) == CUDA_SUCCESS) cuMemFreeAsync(*address, stream(p));
       cuMemFreeAsync(std::exchange(p.pooled, 0), stream(p));
       cuMemPoolTrimTo(p.pool, 0);
       cuMemPoolDestroy(std::exchange(p.pool, nullptr));
     }},
    {"virtual memory",
     [](P& p) {
       const CUmemAllocationProp props = properties();
       cuMemGetAllocationGranularity(out<std::size_t>(p), &props, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
       auto* const handle = out<CUmemGenericAllocationHandle>(p);
       keep(cuMemCreate(handle, P::window_bytes, &props, 0), handle, p.allocation);
       auto* const address = out<CUdeviceptr>(p);
       keep(cuMemAddressReserve(address, P::window_bytes, 0, 0, 0), address, p.window);
       cuMemMap(p.window, P::window_bytes, 0, p.allocation, 0);
       CUmemAccessDesc access{on_device(0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
       cuMemSetAccess(p.window, P::window_bytes, &access, 1);
       cuMemGetAccess(out<unsigned long long>(p), &access.location, p.window);
       cuMemGetAllocationPropertiesFromHandle(out<CUmemAllocationProp>(p), p.allocation);
       auto* const again = out<CUmemGenericAllocationHandle>(p);
       if (cuMemRetainAllocationHandle(again, reinterpret_cast<void*>(p.window)) == CUDA_SUCCESS) cuMemRelease(*again);
     }},
    {"end virtual memory",
     [](P& p) {
       cuMemUnmap(p.window, P::window_bytes);
       cuMemAddressFree(p.window, P::window_bytes);
       cuMemRelease(p.allocation);
     }},
    {"share memory",
     [](P& p) {
       auto* const memory = out<CUipcMemHandle>(p);
       auto* const address = out<CUdeviceptr>(p);
       if (cuIpcGetMemHandle(memory, p.small) == CUDA_SUCCESS)
         keep(cuIpcOpenMemHandle_v2(address, *memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), address, p.opened);
       cuIpcCloseMemHandle(p.opened);
       auto* const event = out<CUipcEventHandle>(p);
       if (cuIpcGetEventHandle(event, p.events[0]) == CUDA_SUCCESS) cuIpcOpenEventHandle(out<CUevent>(p), *event);
     }},
    {"share an allocation",
     [](P& p) {
       int* const file = out<int>(p);
       if (cuMemExportToShareableHandle(file, p.allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) !=
           CUDA_SUCCESS)
         return;
       cuMemImportFromShareableHandle(out<CUmemGenericAllocationHandle>(p),
                                      reinterpret_cast<void*>(static_cast<std::intptr_t>(*file)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
       ::close(*file);
     }},
    {"arrays",
     [](P& p) {
       const CUDA_ARRAY3D_DESCRIPTOR description{16, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
       auto* const array = out<CUarray>(p);
       keep(cuArray3DCreate_v2(array, &description), array, p.array);
       cuArray3DGetDescriptor_v2(out<CUDA_ARRAY3D_DESCRIPTOR>(p), p.array);
       cuArrayGetDescriptor_v2(out<CUDA_ARRAY_DESCRIPTOR>(p), p.array);
       cuArrayGetMemoryRequirements(out<CUDA_ARRAY_MEMORY_REQUIREMENTS>(p), p.array, 0);
       cuMemcpyHtoA_v2(p.array, 0, bytes(p, 64), 64);
       cuMemcpyAtoH_v2(bytes(p, 64), p.array, 0, 64);
       cuMemcpyAtoD_v2(p.small, p.array, 0, 64);
     }},
    {"textures",
     [](P& p) {
       CUDA_RESOURCE_DESC resource{};
       resource.resType = CU_RESOURCE_TYPE_ARRAY;
       resource.res.array.hArray = p.array;
       const CUDA_TEXTURE_DESC sampling{};
       auto* const texture = out<CUtexObject>(p);
       keep(cuTexObjectCreate(texture, &resource, &sampling, nullptr), texture, p.texture);
       cuTexObjectGetResourceDesc(out<CUDA_RESOURCE_DESC>(p), p.texture);
       cuTexObjectGetTextureDesc(out<CUDA_TEXTURE_DESC>(p), p.texture);
       cuTexObjectDestroy(std::exchange(p.texture, 0));
       auto* const surface = out<CUsurfObject>(p);
       keep(cuSurfObjectCreate(surface, &resource), surface, p.surface);
       cuSurfObjectGetResourceDesc(out<CUDA_RESOURCE_DESC>(p), p.surface);
       cuSurfObjectDestroy(std::exchange(p.surface, 0));
       const CUDA_ARRAY3D_DESCRIPTOR description{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
       auto* const mipmap = out<CUmipmappedArray>(p);
       keep(cuMipmappedArrayCreate(mipmap, &description, 3), mipmap, p.mipmap);
       cuMipmappedArrayGetLevel(out<CUarray>(p), p.mipmap, 1);
       cuMipmappedArrayDestroy(std::exchange(p.mipmap, nullptr));
       cuArrayDestroy(std::exchange(p.array, nullptr));
     }},
    {"a graph",
     [](P& p) {
       auto* const graph = out<CUgraph>(p);
       keep(cuGraphCreate(graph, 0), graph, p.graph);
       auto* node = out<CUgraphNode>(p);
       keep(cuGraphAddEmptyNode(node, p.graph, nullptr, 0), node, p.node);
       CUDA_MEMSET_NODE_PARAMS set{p.small, 0, 1, 4, 1, 1};
       node = out<CUgraphNode>(p);
       cuGraphAddMemsetNode(node, p.graph, &p.node, 1, &set, p.context);
       CUDA_KERNEL_NODE_PARAMS launch{};
       launch.func = p.function;
       launch.gridDimX = launch.gridDimY = launch.gridDimZ = launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
       launch.kernelParams = kernel_parameters();
       node = out<CUgraphNode>(p);
       keep(cuGraphAddKernelNode_v2(node, p.graph, &p.node, 1, &launch), node, p.kernel_node);
       const CUDA_HOST_NODE_PARAMS host{host_function, nullptr};
       node = out<CUgraphNode>(p);
       keep(cuGraphAddHostNode(node, p.graph, nullptr, 0, &host), node, p.host_node);
       const CUDA_MEMCPY3D in = copy_of(p.small, p.lent.lend(48), 48, true),
                           from = copy_of(p.small, p.lent.lend(40), 40, false);
       node = out<CUgraphNode>(p);
       keep(cuGraphAddMemcpyNode(node, p.graph, nullptr, 0, &in, p.context), node, p.copy_node);
       cuGraphAddMemcpyNode(out<CUgraphNode>(p), p.graph, &p.node, 1, &from, p.context);
     }},
    {"facts of a graph",
     [](P& p) {
       auto* count = out<std::size_t>(p);
       *count = 3;
       cuGraphGetNodes(p.graph, out<CUgraphNode>(p, 3), count);
       cuGraphGetRootNodes(p.graph, nullptr, out<std::size_t>(p));
       count = out<std::size_t>(p);
       *count = 4;
       cuGraphGetEdges_v2(p.graph, out<CUgraphNode>(p, 4), out<CUgraphNode>(p, 4), out<CUgraphEdgeData>(p, 4), count);
       count = out<std::size_t>(p);
       *count = 2;
       cuGraphNodeGetDependencies_v2(p.kernel_node, out<CUgraphNode>(p, 2), out<CUgraphEdgeData>(p, 2), count);
       count = out<std::size_t>(p);
       *count = 2;
       cuGraphNodeGetDependentNodes_v2(p.node, out<CUgraphNode>(p, 2), nullptr, count);
       cuGraphNodeGetType(p.node, out<CUgraphNodeType>(p));
       cuGraphDebugDotPrint(p.graph, "/dev/null", 0);
     }},
    {"facts of nodes",
     [](P& p) {
       cuGraphKernelNodeGetParams_v2(p.kernel_node, out<CUDA_KERNEL_NODE_PARAMS>(p));
       cuGraphMemcpyNodeGetParams(p.copy_node, out<CUDA_MEMCPY3D>(p));
       cuGraphHostNodeGetParams(p.host_node, out<CUDA_HOST_NODE_PARAMS>(p));
       cuGraphMemsetNodeGetParams(p.node, out<CUDA_MEMSET_NODE_PARAMS>(p));
       cuGraphEventRecordNodeGetEvent(p.node, out<CUevent>(p));
       cuGraphChildGraphNodeGetGraph(p.node, out<CUgraph>(p));
       cuGraphKernelNodeGetAttribute(p.kernel_node, CU_LAUNCH_ATTRIBUTE_PRIORITY, out<CUkernelNodeAttrValue>(p));
       cuGraphBatchMemOpNodeGetParams(p.node, out<CUDA_BATCH_MEM_OP_NODE_PARAMS>(p));
       cuGraphMemAllocNodeGetParams(p.node, out<CUDA_MEM_ALLOC_NODE_PARAMS>(p));
       cuGraphMemFreeNodeGetParams(p.node, out<CUdeviceptr>(p));
     }},
    {"nodes of every kind",
     [](P& p) {
       CUgraphNodeParams params{};
       params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
       auto* const handle = out<CUgraphConditionalHandle>(p);
       if (cuGraphConditionalHandleCreate(handle, p.graph, p.context, 0, 0) == CUDA_SUCCESS)
         params.conditional.handle = *handle;
       params.conditional.type = CU_GRAPH_COND_TYPE_IF;
       params.conditional.size = 1;
       params.conditional.ctx = p.context;
       cuGraphAddNode_v2(out<CUgraphNode>(p), p.graph, nullptr, nullptr, 0, &params);
       cuGraphAddEventRecordNode(out<CUgraphNode>(p), p.graph, nullptr, 0, p.events[0]);
       cuGraphAddEventWaitNode(out<CUgraphNode>(p), p.graph, nullptr, 0, p.events[0]);
       CUDA_MEM_ALLOC_NODE_PARAMS memory{};
       memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
       memory.poolProps.location = on_device(0);
       memory.bytesize = 10'000;
       if (cuGraphAddMemAllocNode(out<CUgraphNode>(p), p.graph, nullptr, 0, &memory) == CUDA_SUCCESS)
         cuGraphAddMemFreeNode(out<CUgraphNode>(p), p.graph, nullptr, 0, memory.dptr);
       CUstreamBatchMemOpParams operation{};
       operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
       operation.writeValue.address = p.small;
       const CUDA_BATCH_MEM_OP_NODE_PARAMS batch{p.context, 1, &operation, 0};
       cuGraphAddBatchMemOpNode(out<CUgraphNode>(p), p.graph, nullptr, 0, &batch);
       auto* const clone = out<CUgraph>(p);
       if (cuGraphClone(clone, p.graph) == CUDA_SUCCESS) {
         cuGraphAddChildGraphNode(out<CUgraphNode>(p), p.graph, nullptr, 0, *clone);
         cuGraphNodeFindInClone(out<CUgraphNode>(p), p.node, *clone);
         cuGraphDestroy(*clone);
       }
     }},
    {"change a graph",
     [](P& p) {
       const CUDA_HOST_NODE_PARAMS host{host_function, nullptr};
       cuGraphHostNodeSetParams(p.host_node, &host);
       cuGraphExecHostNodeSetParams(p.exec, p.host_node, &host);
       const CUDA_MEMCPY3D in = copy_of(p.small, p.lent.lend(48), 48, true);
       cuGraphMemcpyNodeSetParams(p.copy_node, &in);
       cuGraphAddDependencies_v2(p.graph, &p.node, &p.host_node, nullptr, 1);
       cuGraphRemoveDependencies_v2(p.graph, &p.node, &p.host_node, nullptr, 1);
       auto* const result = out<CUgraphExecUpdateResultInfo>(p);
       cuGraphExecUpdate_v2(p.exec, p.graph, result);
       cuGraphNodeSetEnabled(p.exec, p.kernel_node, 1);
       cuGraphNodeGetEnabled(p.exec, p.kernel_node, out<unsigned>(p));
     }},
    {"run a graph",
     [](P& p) {
       auto* const exec = out<CUgraphExec>(p);
       keep(cuGraphInstantiateWithFlags(exec, p.graph, 0), exec, p.exec);
       cuGraphUpload(p.exec, stream(p));
       cuGraphLaunch(p.exec, stream(p));
       cuGraphExecGetFlags(p.exec, out<cuuint64_t>(p));
       cuStreamSynchronize(stream(p));
       cuGraphLaunch(p.exec, stream(p));
     }},
    {"instantiate with parameters",
     [](P& p) {
       auto* const params = out<CUDA_GRAPH_INSTANTIATE_PARAMS>(p);
       std::memset(params, 0, sizeof(*params));
       params->hUploadStream = stream(p);
       auto* const exec = out<CUgraphExec>(p);
       keep(cuGraphInstantiateWithParams(exec, p.graph, params), exec, p.exec);
       cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, out<cuuint64_t>(p));
       cuDeviceGraphMemTrim(0);
     }},
    {"end graphs",
     [](P& p) {
       cuGraphDestroyNode(p.host_node);
       cuGraphExecDestroy(std::exchange(p.exec, nullptr));
       cuGraphDestroy(std::exchange(p.graph, nullptr));
       cuGraphDestroy(std::exchange(p.captured, nullptr));
     }},
    {"user objects",
     [](P& p) {
       auto* const object = out<CUuserObject>(p);
       keep(cuUserObjectCreate(object, nullptr, host_function, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), object, p.object);
       cuUserObjectRetain(p.object, 1);
       cuGraphRetainUserObject(p.graph, p.object, 1, 0);
       cuUserObjectRelease(p.object, 2);
     }},
    {"capture",
     [](P& p) {
       cuStreamBeginCapture_v2(stream(p), CU_STREAM_CAPTURE_MODE_GLOBAL);
       cuMemsetD8Async(p.small, 1, 10, stream(p));
       cuLaunchKernel(p.function, 1, 1, 1, 1, 1, 1, 0, stream(p), kernel_parameters(), nullptr);
       cuLaunchHostFunc(stream(p), host_function, nullptr);
       if (p.pinned) cuMemcpyDtoHAsync_v2(p.pinned, p.small, 100, stream(p));
       cuStreamIsCapturing(stream(p), out<CUstreamCaptureStatus>(p));
       cuStreamGetCaptureInfo_v3(stream(p), out<CUstreamCaptureStatus>(p), out<cuuint64_t>(p), out<CUgraph>(p),
                                 out<const CUgraphNode*>(p), out<const CUgraphEdgeData*>(p), out<std::size_t>(p));
       auto* const graph = out<CUgraph>(p);
       keep(cuStreamEndCapture(stream(p), graph), graph, p.captured);
       cuGraphInstantiateWithFlags(out<CUgraphExec>(p), p.captured, 0);
     }},
    {"contexts",
     [](P& p) {
       auto* const made = out<CUcontext>(p);
       keep(cuCtxCreate_v4(made, nullptr, 0, 1), made, p.other_context);
       cuCtxPopCurrent_v2(out<CUcontext>(p));
       cuCtxSetCurrent(p.context);
       cuCtxGetApiVersion(p.context, out<unsigned>(p));
       cuCtxGetId(p.context, out<unsigned long long>(p));
       cuCtxGetDevice(out<CUdevice>(p));
       cuCtxGetFlags(out<unsigned>(p));
       cuCtxGetStreamPriorityRange(out<int>(p), out<int>(p));
       cuCtxEnablePeerAccess(p.other_context, 0);
       cuCtxDisablePeerAccess(p.other_context);
     }},
    {"limits",
     [](P& p) {
       cuCtxGetLimit(out<std::size_t>(p), CU_LIMIT_STACK_SIZE);
       cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048);
       cuCtxGetCacheConfig(out<CUfunc_cache>(p));
       cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1);
       cuCtxResetPersistingL2Cache();
       cuCtxGetExecAffinity(out<CUexecAffinityParam>(p), CU_EXEC_AFFINITY_TYPE_SM_COUNT);
     }},
    {"end a context", [](P& p) { cuCtxDestroy_v2(std::exchange(p.other_context, nullptr)); }},
    {"reset",
     [](P& p) {
       cuDevicePrimaryCtxGetState(0, out<unsigned>(p), out<int>(p));
       cuDevicePrimaryCtxReset_v2(0);
       p.pinned = p.large_pinned = nullptr;  // gone with the context
       begin_calls(p);
     }},
    {"green contexts",
     [](P& p) {
       auto* const whole = out<CUdevResource>(p);
       keep(cuDeviceGetDevResource(0, whole, CU_DEV_RESOURCE_TYPE_SM), whole, p.resource);
       auto* const groups = out<CUdevResource>(p, 2);
       auto* const count = out<unsigned>(p);
       *count = 2;
       cuDevSmResourceSplitByCount(groups, count, &p.resource, out<CUdevResource>(p), 0, 8);
       auto* const description = out<CUdevResourceDesc>(p);
       if (cuDevResourceGenerateDesc(description, groups, 1) != CUDA_SUCCESS) return;
       auto* const green = out<CUgreenCtx>(p);
       keep(cuGreenCtxCreate(green, *description, 0, CU_GREEN_CTX_DEFAULT_STREAM), green, p.green);
       cuGreenCtxStreamCreate(out<CUstream>(p), p.green, CU_STREAM_NON_BLOCKING, 0);
       cuGreenCtxGetDevResource(p.green, out<CUdevResource>(p), CU_DEV_RESOURCE_TYPE_SM);
       auto* const context = out<CUcontext>(p);
       if (cuCtxFromGreenCtx(context, p.green) == CUDA_SUCCESS)
         cuCtxGetDevResource(*context, out<CUdevResource>(p), CU_DEV_RESOURCE_TYPE_SM);
       cuGreenCtxDestroy(std::exchange(p.green, nullptr));
     }},
    {"pointers",
     [](P& p) {
       for (const CUdeviceptr address : {p.small, p.managed, p.variable, reinterpret_cast<CUdeviceptr>(p.pinned)}) {
         cuPointerGetAttribute(out<unsigned>(p), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
         cuPointerGetAttribute(out<std::size_t>(p), CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
         cuMemGetAddressRange_v2(out<CUdeviceptr>(p), out<std::size_t>(p), address);
       }
       const int yes = 1;
       cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p.small);
     }},
    {"decompress",
     [](P& p) {
       CUmemDecompressParams params{};
       params.srcNumBytes = params.dstNumBytes = 64;
       params.src = reinterpret_cast<const void*>(p.small);
       params.dst = reinterpret_cast<void*>(p.small + 512);
       params.dstActBytes = reinterpret_cast<cuuint32_t*>(p.small + 1024);
       params.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
       cuMemBatchDecompressAsync(&params, 1, 0, out<std::size_t>(p), stream(p));
     }},
    {"profiler", [](P&) { cuProfilerStart(), cuProfilerStop(); }},
};

}  // namespace

std::size_t call_count() { return std::size(all_calls); }

void make_calls(Program& program, std::uint8_t number) {
  all_calls[number % std::size(all_calls)].make(program);
  program.lent.call_over();
}

std::vector<std::uint8_t> calls_named(std::initializer_list<const char*> names) {
  std::vector<std::uint8_t> numbers;
  for (const std::string_view name : names) {
    const auto* const found = std::find_if(std::begin(all_calls), std::end(all_calls),
                                           [&](const Calls& calls) { return calls.name == name; });
    expect(found != std::end(all_calls), "calls that there are none of");
    numbers.push_back(static_cast<std::uint8_t>(found - all_calls));
  }
  return numbers;
}

std::vector<const char*> call_names() {
  std::vector<const char*> names;
  for (const Calls& calls : all_calls) names.push_back(calls.name);
  return names;
}

void begin_calls(Program& program) {
  auto* const context = out<CUcontext>(program);
  keep(cuDevicePrimaryCtxRetain(context, 0), context, program.context);
  cuCtxSetCurrent(program.context);
  program.lent.call_over();
}

}  // namespace fargpu::fuzz
