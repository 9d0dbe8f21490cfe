// What CUDA answers to calls that are wrong: null, stale, foreign and out-of-range arguments, calls in the wrong state.
// Each probe runs in a process of its own and gives one line, `name: CUDA_ERROR_...`, or `name: signal N` where the
// library crashed. Run once on a driver and once through fargpu on the same driver, the lines must be equal (compare.py
// says where they may differ).
//
//   probes            runs all
//   probes NAME...    runs these
//   probes -l         lists them

#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Probe {
  const char* name;
  CUresult (*run)();
};
std::vector<Probe>& probes() {
  static std::vector<Probe> all;
  return all;
}
struct Add {
  Add(const char* name, CUresult (*run)()) { probes().push_back({name, run}); }
};
#define PROBE(name)                          \
  CUresult probe_##name();                   \
  const Add add_##name(#name, probe_##name); \
  CUresult probe_##name()

const char* text_of(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an error without a name";
}

// --- what probes begin with; a failure here is none of the probe's --------------------------------------------------

void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("cannot be probed: %s gives %s\n", what, text_of(result));
  std::fflush(stdout);
  std::_Exit(3);
}
#define MUST(call) must((call), #call)

CUcontext context() {
  MUST(cuInit(0));
  CUcontext made;
  MUST(cuDevicePrimaryCtxRetain(&made, 0));
  MUST(cuCtxSetCurrent(made));
  return made;
}
CUstream stream() {
  CUstream made;
  MUST(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  return made;
}
CUstream stale_stream() {
  const CUstream made = stream();
  MUST(cuStreamDestroy(made));
  return made;
}
CUevent event(unsigned flags = 0) {
  CUevent made;
  MUST(cuEventCreate(&made, flags));
  return made;
}
/// Beside the primary context, with a part of its device.
void green_context() {
  context();
  CUdevResource all, part;
  unsigned parts = 1;
  CUdevResourceDesc description;
  CUgreenCtx made;
  MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevSmResourceSplitByCount(&part, &parts, &all, nullptr, 0, 8));
  MUST(cuDevResourceGenerateDesc(&description, &part, 1));
  MUST(cuGreenCtxCreate(&made, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}
CUdeviceptr memory(std::size_t bytes = 4096) {
  CUdeviceptr made;
  MUST(cuMemAlloc(&made, bytes));
  return made;
}
const char* const ptx =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 number = 5;\n"
    ".visible .entry store(.param .u64 address, .param .u32 value) {\n"
    "  .reg .b32 %r<2>; .reg .b64 %rd<2>;\n"
    "  ld.param.u64 %rd1, [address]; ld.param.u32 %r1, [value];\n"
    "  st.global.u32 [%rd1], %r1; ret;\n}\n";
CUmodule module() {
  CUmodule made;
  MUST(cuModuleLoadData(&made, ptx));
  return made;
}
CUfunction function() {
  CUfunction found;
  MUST(cuModuleGetFunction(&found, module(), "store"));
  return found;
}
CUgraph graph() {
  CUgraph made;
  MUST(cuGraphCreate(&made, 0));
  return made;
}
CUgraphNode empty_node(CUgraph to) {
  CUgraphNode made;
  MUST(cuGraphAddEmptyNode(&made, to, nullptr, 0));
  return made;
}
CUstream capturing(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
  const CUstream made = stream();
  MUST(cuStreamBeginCapture(made, mode));
  return made;
}
CUmemAllocationProp on_device(int device = 0) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}
constexpr std::size_t piece = 2u << 20;
CUmemGenericAllocationHandle allocation() {
  const CUmemAllocationProp properties = on_device();
  CUmemGenericAllocationHandle made;
  MUST(cuMemCreate(&made, piece, &properties, 0));
  return made;
}
CUdeviceptr reservation() {
  CUdeviceptr made;
  MUST(cuMemAddressReserve(&made, piece, 0, 0, 0));
  return made;
}
CUmemoryPool pool() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool made;
  MUST(cuMemPoolCreate(&made, &properties));
  return made;
}
CUarray array() {
  const CUDA_ARRAY_DESCRIPTOR description{64, 16, CU_AD_FORMAT_FLOAT, 1};
  CUarray made;
  MUST(cuArrayCreate(&made, &description));
  return made;
}
CUresult launch(CUfunction kernel, unsigned grid, unsigned block, unsigned shared = 0, CUstream on = nullptr) {
  CUdeviceptr to = memory();
  unsigned value = 1;
  void* parameters[] = {&to, &value};
  return cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, on, parameters, nullptr);
}
void CUDA_CB nothing(void*) {}

// A line each, as in a table.
// clang-format off

// --- before there is anything ---------------------------------------------------------------------------------------

PROBE(count_before_init) { int n; return cuDeviceGetCount(&n); }
PROBE(allocate_before_init) { CUdeviceptr p; return cuMemAlloc(&p, 4); }
PROBE(current_before_init) { CUcontext c; return cuCtxGetCurrent(&c); }
PROBE(init_with_flags) { return cuInit(1); }
PROBE(version_nowhere) { return cuDriverGetVersion(nullptr); }
PROBE(allocate_without_context) { MUST(cuInit(0)); CUdeviceptr p; return cuMemAlloc(&p, 4); }
PROBE(synchronize_without_context) { MUST(cuInit(0)); return cuCtxSynchronize(); }
PROBE(stream_without_context) { MUST(cuInit(0)); CUstream s; return cuStreamCreate(&s, 0); }
PROBE(event_without_context) { MUST(cuInit(0)); CUevent e; return cuEventCreate(&e, 0); }
PROBE(module_without_context) { MUST(cuInit(0)); CUmodule m; return cuModuleLoadData(&m, ptx); }
PROBE(memory_info_without_context) { MUST(cuInit(0)); std::size_t f, t; return cuMemGetInfo(&f, &t); }
PROBE(device_of_no_context) { MUST(cuInit(0)); CUdevice d; return cuCtxGetDevice(&d); }
PROBE(pop_nothing) { MUST(cuInit(0)); CUcontext c; return cuCtxPopCurrent(&c); }

// --- devices --------------------------------------------------------------------------------------------------------

PROBE(device_negative) { MUST(cuInit(0)); CUdevice d; return cuDeviceGet(&d, -1); }
PROBE(device_beyond) { MUST(cuInit(0)); CUdevice d; return cuDeviceGet(&d, 1000); }
PROBE(device_nowhere) { MUST(cuInit(0)); return cuDeviceGet(nullptr, 0); }
PROBE(count_nowhere) { MUST(cuInit(0)); return cuDeviceGetCount(nullptr); }
PROBE(name_nowhere) { MUST(cuInit(0)); return cuDeviceGetName(nullptr, 10, 0); }
PROBE(name_of_no_length) { MUST(cuInit(0)); char n[4]; return cuDeviceGetName(n, 0, 0); }
PROBE(name_of_no_device) { MUST(cuInit(0)); char n[4]; return cuDeviceGetName(n, 4, 99); }
PROBE(uuid_of_no_device) { MUST(cuInit(0)); CUuuid u; return cuDeviceGetUuid(&u, 99); }
PROBE(total_of_no_device) { MUST(cuInit(0)); std::size_t n; return cuDeviceTotalMem(&n, 99); }
PROBE(total_nowhere) { MUST(cuInit(0)); return cuDeviceTotalMem(nullptr, 0); }
PROBE(attribute_unknown) { MUST(cuInit(0)); int v; return cuDeviceGetAttribute(&v, static_cast<CUdevice_attribute>(9999), 0); }
PROBE(attribute_zero) { MUST(cuInit(0)); int v; return cuDeviceGetAttribute(&v, static_cast<CUdevice_attribute>(0), 0); }
PROBE(attribute_of_no_device) { MUST(cuInit(0)); int v; return cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -5); }
PROBE(attribute_nowhere) { MUST(cuInit(0)); return cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0); }
PROBE(bus_id_short) { MUST(cuInit(0)); char id[4]; return cuDeviceGetPCIBusId(id, 4, 0); }
PROBE(bus_id_unknown) { MUST(cuInit(0)); CUdevice d; return cuDeviceGetByPCIBusId(&d, "ffff:ff:1f.0"); }
PROBE(bus_id_nonsense) { MUST(cuInit(0)); CUdevice d; return cuDeviceGetByPCIBusId(&d, "nonsense"); }
PROBE(peer_of_no_device) { MUST(cuInit(0)); int v; return cuDeviceCanAccessPeer(&v, 0, 77); }
PROBE(p2p_with_itself) { MUST(cuInit(0)); int v; return cuDeviceGetP2PAttribute(&v, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 0); }

// --- contexts -------------------------------------------------------------------------------------------------------

PROBE(retain_no_device) { MUST(cuInit(0)); CUcontext c; return cuDevicePrimaryCtxRetain(&c, 42); }
PROBE(retain_nowhere) { MUST(cuInit(0)); return cuDevicePrimaryCtxRetain(nullptr, 0); }
PROBE(release_unretained) { MUST(cuInit(0)); return cuDevicePrimaryCtxRelease(0); }
PROBE(release_too_often) { context(); MUST(cuDevicePrimaryCtxRelease(0)); return cuDevicePrimaryCtxRelease(0); }
PROBE(release_after_reset) { context(); MUST(cuDevicePrimaryCtxReset(0)); return cuDevicePrimaryCtxRelease(0); }
PROBE(release_after_reset_too_often) { context(); MUST(cuDevicePrimaryCtxReset(0)); MUST(cuDevicePrimaryCtxRelease(0)); return cuDevicePrimaryCtxRelease(0); }
PROBE(reset_under_a_green_context) { green_context(); return cuDevicePrimaryCtxReset(0); }
PROBE(release_under_a_green_context) { green_context(); MUST(cuDevicePrimaryCtxRelease(0)); return cuDevicePrimaryCtxRelease(0); }
PROBE(state_nowhere) { MUST(cuInit(0)); return cuDevicePrimaryCtxGetState(0, nullptr, nullptr); }
PROBE(flags_unknown) { MUST(cuInit(0)); return cuDevicePrimaryCtxSetFlags(0, 0x80000000); }
PROBE(flags_two_schedules) { MUST(cuInit(0)); return cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD); }
PROBE(create_context_bad_flags) { MUST(cuInit(0)); CUcontext c; return cuCtxCreate(&c, nullptr, 0x40000000, 0); }
PROBE(create_context_no_device) { MUST(cuInit(0)); CUcontext c; return cuCtxCreate(&c, nullptr, 0, 55); }
PROBE(destroy_null_context) { context(); return cuCtxDestroy(nullptr); }
PROBE(destroy_primary_context) { return cuCtxDestroy(context()); }
PROBE(push_null) { context(); return cuCtxPushCurrent(nullptr); }
PROBE(limit_unknown) { context(); std::size_t v; return cuCtxGetLimit(&v, static_cast<CUlimit>(99)); }
PROBE(limit_nowhere) { context(); return cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE); }
PROBE(set_limit_unknown) { context(); return cuCtxSetLimit(static_cast<CUlimit>(99), 1); }
PROBE(cache_config_unknown) { context(); return cuCtxSetCacheConfig(static_cast<CUfunc_cache>(9)); }
PROBE(api_version_nowhere) { return cuCtxGetApiVersion(context(), nullptr); }
PROBE(context_flags_nowhere) { context(); return cuCtxGetFlags(nullptr); }
PROBE(use_after_reset) { context(); MUST(cuDevicePrimaryCtxReset(0)); CUdeviceptr p; return cuMemAlloc(&p, 4); }
PROBE(peer_access_to_itself) { return cuCtxEnablePeerAccess(context(), 0); }
PROBE(peer_access_bad_flags) { return cuCtxEnablePeerAccess(context(), 3); }
PROBE(peer_access_null) { context(); return cuCtxEnablePeerAccess(nullptr, 0); }
PROBE(disable_peer_never_enabled) { return cuCtxDisablePeerAccess(context()); }

// --- memory ---------------------------------------------------------------------------------------------------------

PROBE(allocate_nothing) { context(); CUdeviceptr p; return cuMemAlloc(&p, 0); }
PROBE(allocate_nowhere) { context(); return cuMemAlloc(nullptr, 4); }
PROBE(allocate_too_much) { context(); CUdeviceptr p; return cuMemAlloc(&p, std::size_t{1} << 46); }
PROBE(allocate_absurd) { context(); CUdeviceptr p; return cuMemAlloc(&p, ~std::size_t{0}); }
PROBE(free_null) { context(); return cuMemFree(0); }
PROBE(free_foreign) { context(); return cuMemFree(0x1234000); }
PROBE(free_interior) { context(); return cuMemFree(memory() + 256); }
PROBE(free_twice) { context(); const CUdeviceptr p = memory(); MUST(cuMemFree(p)); return cuMemFree(p); }
PROBE(pitch_of_bad_element) { context(); CUdeviceptr p; std::size_t pitch; return cuMemAllocPitch(&p, &pitch, 100, 10, 3); }
PROBE(pitch_of_nothing) { context(); CUdeviceptr p; std::size_t pitch; return cuMemAllocPitch(&p, &pitch, 0, 10, 4); }
PROBE(range_of_foreign) { context(); CUdeviceptr b; std::size_t n; return cuMemGetAddressRange(&b, &n, 0x1234000); }
PROBE(range_of_null) { context(); CUdeviceptr b; std::size_t n; return cuMemGetAddressRange(&b, &n, 0); }
PROBE(host_allocate_nothing) { context(); void* p; return cuMemHostAlloc(&p, 0, 0); }
PROBE(host_allocate_bad_flags) { context(); void* p; return cuMemHostAlloc(&p, 64, 0x100); }
PROBE(host_free_foreign) { context(); static char own[64]; return cuMemFreeHost(own); }
PROBE(host_free_null) { context(); return cuMemFreeHost(nullptr); }
PROBE(host_free_twice) { context(); void* p; MUST(cuMemAllocHost(&p, 64)); MUST(cuMemFreeHost(p)); return cuMemFreeHost(p); }
PROBE(register_null) { context(); return cuMemHostRegister(nullptr, 4096, 0); }
PROBE(register_nothing) { context(); static char own[64]; return cuMemHostRegister(own, 0, 0); }
PROBE(register_twice) { context(); alignas(4096) static char own[8192]; MUST(cuMemHostRegister(own, 8192, 0)); return cuMemHostRegister(own, 8192, 0); }
PROBE(register_bad_flags) { context(); alignas(4096) static char own[8192]; return cuMemHostRegister(own, 8192, 0x100); }
PROBE(unregister_foreign) { context(); static char own[64]; return cuMemHostUnregister(own); }
PROBE(unregister_allocated) { context(); void* p; MUST(cuMemAllocHost(&p, 64)); return cuMemHostUnregister(p); }
PROBE(host_pointer_of_foreign) { context(); CUdeviceptr d; static char own[64]; return cuMemHostGetDevicePointer(&d, own, 0); }
PROBE(host_pointer_bad_flags) { context(); CUdeviceptr d; void* p; MUST(cuMemAllocHost(&p, 64)); return cuMemHostGetDevicePointer(&d, p, 1); }
PROBE(host_flags_of_foreign) { context(); unsigned f; static char own[64]; return cuMemHostGetFlags(&f, own); }
PROBE(managed_nothing) { context(); CUdeviceptr p; return cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL); }
PROBE(managed_bad_flags) { context(); CUdeviceptr p; return cuMemAllocManaged(&p, 64, 0); }
PROBE(pointer_attribute_of_foreign) { context(); unsigned v; static char own[64]; return cuPointerGetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(own)); }
PROBE(pointer_attribute_unknown) { context(); unsigned long long v; return cuPointerGetAttribute(&v, static_cast<CUpointer_attribute>(999), memory()); }
PROBE(pointer_attribute_nowhere) { context(); return cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory()); }
PROBE(set_pointer_attribute_unsettable) { context(); int v = 1; return cuPointerSetAttribute(&v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory()); }

// --- copies and memsets ---------------------------------------------------------------------------------------------

PROBE(copy_to_null_device) { context(); char b[4] = {}; return cuMemcpyHtoD(0, b, 4); }
PROBE(copy_from_null_host) { context(); return cuMemcpyHtoD(memory(), nullptr, 4); }
PROBE(copy_nothing_from_null) { context(); return cuMemcpyHtoD(memory(), nullptr, 0); }
PROBE(copy_beyond_end) { context(); static char b[8192]; return cuMemcpyHtoD(memory(piece) + piece - 4, b, 8192); }
PROBE(copy_from_foreign_device) { context(); char b[4]; return cuMemcpyDtoH(b, 0x1234000, 4); }
PROBE(copy_from_freed) { context(); const CUdeviceptr p = memory(64 << 20); MUST(cuMemFree(p)); char b[4]; return cuMemcpyDtoH(b, p, 4); }
PROBE(copy_device_to_foreign) { context(); return cuMemcpyDtoD(0x1234000, memory(), 4); }
PROBE(copy_on_stale_stream) { context(); char b[4] = {}; const CUdeviceptr p = memory(); return cuMemcpyHtoDAsync(p, b, 4, stale_stream()); }
PROBE(copy_2d_narrow_pitch) { context(); static char b[1024]; CUDA_MEMCPY2D c{}; c.srcMemoryType = CU_MEMORYTYPE_HOST; c.srcHost = b; c.srcPitch = 16; c.dstMemoryType = CU_MEMORYTYPE_DEVICE; c.dstDevice = memory(); c.dstPitch = 64; c.WidthInBytes = 32; c.Height = 4; return cuMemcpy2D(&c); }
PROBE(copy_2d_null) { context(); return cuMemcpy2D(nullptr); }
PROBE(copy_2d_unknown_kind) { context(); CUDA_MEMCPY2D c{}; c.srcMemoryType = static_cast<CUmemorytype>(9); c.dstMemoryType = CU_MEMORYTYPE_DEVICE; c.dstDevice = memory(); c.WidthInBytes = 4; c.Height = 1; return cuMemcpy2D(&c); }
PROBE(copy_3d_null) { context(); return cuMemcpy3D(nullptr); }
PROBE(copy_3d_level) { context(); CUDA_MEMCPY3D c{}; c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE; c.srcDevice = memory(); c.dstDevice = memory(); c.WidthInBytes = 4; c.Height = c.Depth = 1; c.srcLOD = 1; return cuMemcpy3D(&c); }
PROBE(copy_peer_null_context) { context(); return cuMemcpyPeer(memory(), nullptr, memory(), nullptr, 4); }
PROBE(copy_to_array_beyond) { context(); static char b[4096]; return cuMemcpyHtoA(array(), 0, b, 4096); }
PROBE(set_null) { context(); return cuMemsetD8(0, 1, 4); }
PROBE(set_nothing_at_null) { context(); return cuMemsetD8(0, 1, 0); }
PROBE(set_unaligned) { context(); return cuMemsetD32(memory() + 2, 1, 4); }
PROBE(set_beyond) { context(); return cuMemsetD8(memory(piece) + piece - 4, 1, 4096); }
PROBE(set_foreign) { context(); return cuMemsetD8(0x1234000, 1, 4); }
PROBE(set_2d_narrow_pitch) { context(); return cuMemsetD2D32(memory(), 8, 1, 16, 4); }
PROBE(set_on_stale_stream) { context(); const CUdeviceptr p = memory(); return cuMemsetD8Async(p, 1, 4, stale_stream()); }

// --- streams and events ---------------------------------------------------------------------------------------------

PROBE(stream_nowhere) { context(); return cuStreamCreate(nullptr, 0); }
PROBE(stream_bad_flags) { context(); CUstream s; return cuStreamCreate(&s, 16); }
PROBE(stream_priority_beyond) { context(); CUstream s; return cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -1000); }
PROBE(destroy_null_stream) { context(); return cuStreamDestroy(nullptr); }
PROBE(destroy_legacy_stream) { context(); return cuStreamDestroy(CU_STREAM_LEGACY); }
PROBE(query_null_stream) { context(); return cuStreamQuery(nullptr); }
PROBE(wait_for_null_event) { context(); return cuStreamWaitEvent(nullptr, nullptr, 0); }
PROBE(wait_bad_flags) { context(); return cuStreamWaitEvent(nullptr, event(), 4); }
PROBE(wait_unrecorded) { context(); return cuStreamWaitEvent(stream(), event(), 0); }
PROBE(priority_nowhere) { context(); return cuStreamGetPriority(stream(), nullptr); }
PROBE(host_function_null) { context(); return cuLaunchHostFunc(nullptr, nullptr, nullptr); }
PROBE(callback_bad_flags) { context(); return cuStreamAddCallback(nullptr, [](CUstream, CUresult, void*) {}, nullptr, 1); }
PROBE(callback_null) { context(); return cuStreamAddCallback(nullptr, nullptr, nullptr, 0); }
PROBE(event_nowhere) { context(); return cuEventCreate(nullptr, 0); }
PROBE(event_bad_flags) { context(); CUevent e; return cuEventCreate(&e, 0x100); }
PROBE(event_interprocess_with_timing) { context(); CUevent e; return cuEventCreate(&e, CU_EVENT_INTERPROCESS); }
PROBE(destroy_null_event) { context(); return cuEventDestroy(nullptr); }
PROBE(record_null_event) { context(); return cuEventRecord(nullptr, nullptr); }
PROBE(record_bad_flags) { context(); return cuEventRecordWithFlags(event(), nullptr, 8); }
PROBE(query_unrecorded) { context(); return cuEventQuery(event()); }
PROBE(synchronize_unrecorded) { context(); return cuEventSynchronize(event()); }
PROBE(elapsed_unrecorded) { context(); float t; return cuEventElapsedTime(&t, event(), event()); }
PROBE(elapsed_without_timing) { context(); float t; const CUevent a = event(CU_EVENT_DISABLE_TIMING), b = event(CU_EVENT_DISABLE_TIMING); MUST(cuEventRecord(a, nullptr)); MUST(cuEventRecord(b, nullptr)); MUST(cuCtxSynchronize()); return cuEventElapsedTime(&t, a, b); }
PROBE(elapsed_nowhere) { context(); const CUevent a = event(); MUST(cuEventRecord(a, nullptr)); MUST(cuCtxSynchronize()); return cuEventElapsedTime(nullptr, a, a); }

// --- images, functions, launches ------------------------------------------------------------------------------------

PROBE(load_null) { context(); CUmodule m; return cuModuleLoadData(&m, nullptr); }
PROBE(load_nonsense) { context(); CUmodule m; return cuModuleLoadData(&m, "this is no image"); }
PROBE(load_empty) { context(); CUmodule m; return cuModuleLoadData(&m, ""); }
PROBE(load_broken_ptx) { context(); CUmodule m; return cuModuleLoadData(&m, ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry f() { bogus; }\n"); }
PROBE(load_future_ptx) { context(); CUmodule m; return cuModuleLoadData(&m, ".version 99.0\n.target sm_70\n.address_size 64\n"); }
PROBE(load_missing_file) { context(); CUmodule m; return cuModuleLoad(&m, "/nonexistent/file.cubin"); }
PROBE(load_nowhere) { context(); return cuModuleLoadData(nullptr, ptx); }
PROBE(unload_null) { context(); return cuModuleUnload(nullptr); }
PROBE(function_unknown) { context(); CUfunction f; return cuModuleGetFunction(&f, module(), "none"); }
PROBE(function_null_name) { context(); CUfunction f; return cuModuleGetFunction(&f, module(), nullptr); }
PROBE(function_nowhere) { context(); return cuModuleGetFunction(nullptr, module(), "store"); }
PROBE(function_of_null_module) { context(); CUfunction f; return cuModuleGetFunction(&f, nullptr, "store"); }
PROBE(global_unknown) { context(); CUdeviceptr p; std::size_t n; return cuModuleGetGlobal(&p, &n, module(), "none"); }
PROBE(global_null_name) { context(); CUdeviceptr p; std::size_t n; return cuModuleGetGlobal(&p, &n, module(), nullptr); }
PROBE(surface_reference_unknown) { context(); CUsurfref t; return cuModuleGetSurfRef(&t, module(), "none"); }
PROBE(library_nonsense) { context(); CUlibrary l; return cuLibraryLoadData(&l, "nonsense", nullptr, nullptr, 0, nullptr, nullptr, 0); }
PROBE(library_null) { context(); CUlibrary l; return cuLibraryLoadData(&l, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0); }
PROBE(library_kernel_unknown) { context(); CUlibrary l; MUST(cuLibraryLoadData(&l, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0)); CUkernel k; return cuLibraryGetKernel(&k, l, "none"); }
PROBE(function_attribute_unknown) { context(); int v; return cuFuncGetAttribute(&v, static_cast<CUfunction_attribute>(99), function()); }
PROBE(function_attribute_nowhere) { context(); return cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, function()); }
PROBE(set_function_attribute_read_only) { context(); return cuFuncSetAttribute(function(), CU_FUNC_ATTRIBUTE_NUM_REGS, 3); }
PROBE(set_shared_beyond) { context(); return cuFuncSetAttribute(function(), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30); }
PROBE(parameter_beyond) { context(); std::size_t o, n; return cuFuncGetParamInfo(function(), 7, &o, &n); }
PROBE(launch_null) { context(); return launch(nullptr, 1, 1); }
PROBE(launch_no_blocks) { context(); return launch(function(), 0, 1); }
PROBE(launch_no_threads) { context(); return launch(function(), 1, 0); }
PROBE(launch_too_many_threads) { context(); return launch(function(), 1, 2048); }
PROBE(launch_too_much_shared) { context(); return launch(function(), 1, 1, 1 << 20); }
PROBE(launch_on_stale_stream) { context(); const CUfunction f = function(); return launch(f, 1, 1, 0, stale_stream()); }
PROBE(launch_without_parameters) { context(); return cuLaunchKernel(function(), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); }
PROBE(launch_both_parameter_forms) { context(); CUdeviceptr p = memory(); unsigned v = 1; void* parameters[] = {&p, &v}; void* extra[] = {CU_LAUNCH_PARAM_END}; return cuLaunchKernel(function(), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, extra); }
PROBE(launch_null_configuration) { context(); return cuLaunchKernelEx(nullptr, function(), nullptr, nullptr); }
PROBE(launch_cooperative_too_large) { context(); CUdeviceptr p = memory(); unsigned v = 1; void* parameters[] = {&p, &v}; return cuLaunchCooperativeKernel(function(), 1 << 20, 1, 1, 1024, 1, 1, 0, nullptr, parameters); }
PROBE(occupancy_null) { context(); int n; return cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, nullptr, 32, 0); }
PROBE(occupancy_no_threads) { context(); int n; return cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, function(), 0, 0); }
PROBE(wild_store) { context(); CUdeviceptr p = 0x10; unsigned v = 1; void* parameters[] = {&p, &v}; MUST(cuLaunchKernel(function(), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr)); return cuCtxSynchronize(); }
PROBE(after_a_wild_store) { context(); CUdeviceptr p = 0x10; unsigned v = 1; void* parameters[] = {&p, &v}; MUST(cuLaunchKernel(function(), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr)); (void)cuCtxSynchronize(); CUdeviceptr q; return cuMemAlloc(&q, 4); }

// --- capture and graphs ---------------------------------------------------------------------------------------------

PROBE(capture_legacy) { context(); return cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL); }
PROBE(capture_bad_mode) { context(); return cuStreamBeginCapture(stream(), static_cast<CUstreamCaptureMode>(7)); }
PROBE(capture_twice) { context(); return cuStreamBeginCapture(capturing(), CU_STREAM_CAPTURE_MODE_GLOBAL); }
PROBE(end_no_capture) { context(); CUgraph g; return cuStreamEndCapture(stream(), &g); }
PROBE(end_capture_nowhere) { context(); return cuStreamEndCapture(capturing(), nullptr); }
PROBE(synchronize_capturing) { context(); return cuStreamSynchronize(capturing()); }
PROBE(query_capturing) { context(); return cuStreamQuery(capturing()); }
PROBE(allocate_while_capturing) { context(); capturing(); CUdeviceptr p; return cuMemAlloc(&p, 64); }
PROBE(allocate_while_capturing_relaxed) { context(); capturing(CU_STREAM_CAPTURE_MODE_RELAXED); CUdeviceptr p; return cuMemAlloc(&p, 64); }
PROBE(legacy_work_while_capturing) { context(); const CUdeviceptr p = memory(); CUstream s; MUST(cuStreamCreate(&s, 0)); MUST(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL)); return cuMemsetD8Async(p, 0, 4, nullptr); }
PROBE(end_broken_capture) { context(); const CUstream s = capturing(); (void)cuStreamSynchronize(s); CUgraph g; return cuStreamEndCapture(s, &g); }
PROBE(synchronise_after_captured_stream) { context(); MUST(cuStreamDestroy(capturing())); return cuCtxSynchronize(); }
PROBE(allocate_after_captured_stream) { context(); MUST(cuStreamDestroy(capturing())); CUdeviceptr p; return cuMemAlloc(&p, 64); }
PROBE(wait_across_captures) { context(); const CUevent e = event(); const CUstream a = capturing(); MUST(cuEventRecord(e, a)); return cuStreamWaitEvent(nullptr, e, 0); }
PROBE(query_captured_event) { context(); const CUevent e = event(); const CUstream a = capturing(); MUST(cuEventRecord(e, a)); return cuEventQuery(e); }
PROBE(graph_bad_flags) { context(); CUgraph g; return cuGraphCreate(&g, 1); }
PROBE(graph_nowhere) { context(); return cuGraphCreate(nullptr, 0); }
PROBE(destroy_null_graph) { context(); return cuGraphDestroy(nullptr); }
PROBE(node_in_null_graph) { context(); CUgraphNode n; return cuGraphAddEmptyNode(&n, nullptr, nullptr, 0); }
PROBE(node_after_foreign) { context(); const CUgraph g = graph(); const CUgraphNode other = empty_node(graph()); CUgraphNode n; return cuGraphAddEmptyNode(&n, g, &other, 1); }
PROBE(kernel_node_null) { context(); CUgraphNode n; return cuGraphAddKernelNode(&n, graph(), nullptr, 0, nullptr); }
PROBE(edge_to_itself) { context(); const CUgraph g = graph(); const CUgraphNode n = empty_node(g); return cuGraphAddDependencies(g, &n, &n, nullptr, 1); }
PROBE(edge_twice) { context(); const CUgraph g = graph(); const CUgraphNode a = empty_node(g), b = empty_node(g); MUST(cuGraphAddDependencies(g, &a, &b, nullptr, 1)); return cuGraphAddDependencies(g, &a, &b, nullptr, 1); }
PROBE(remove_no_edge) { context(); const CUgraph g = graph(); const CUgraphNode a = empty_node(g), b = empty_node(g); return cuGraphRemoveDependencies(g, &a, &b, nullptr, 1); }
PROBE(instantiate_cycle) { context(); const CUgraph g = graph(); const CUgraphNode a = empty_node(g), b = empty_node(g); (void)cuGraphAddDependencies(g, &a, &b, nullptr, 1); (void)cuGraphAddDependencies(g, &b, &a, nullptr, 1); CUgraphExec e; return cuGraphInstantiate(&e, g, 0); }
PROBE(instantiate_null) { context(); CUgraphExec e; return cuGraphInstantiate(&e, nullptr, 0); }
PROBE(instantiate_bad_flags) { context(); CUgraphExec e; return cuGraphInstantiate(&e, graph(), 0x80); }
PROBE(launch_null_graph) { context(); return cuGraphLaunch(nullptr, nullptr); }
PROBE(params_of_other_type) { context(); CUDA_KERNEL_NODE_PARAMS p; return cuGraphKernelNodeGetParams(empty_node(graph()), &p); }
PROBE(clone_null) { context(); CUgraph g; return cuGraphClone(&g, nullptr); }
PROBE(child_is_itself) { context(); const CUgraph g = graph(); CUgraphNode n; return cuGraphAddChildGraphNode(&n, g, nullptr, 0, g); }

// --- virtual memory and pools ---------------------------------------------------------------------------------------

PROBE(create_nothing) { context(); const CUmemAllocationProp p = on_device(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, 0, &p, 0); }
PROBE(create_odd_size) { context(); const CUmemAllocationProp p = on_device(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, 1000, &p, 0); }
PROBE(create_no_device) { context(); const CUmemAllocationProp p = on_device(88); CUmemGenericAllocationHandle h; return cuMemCreate(&h, piece, &p, 0); }
PROBE(create_bad_flags) { context(); const CUmemAllocationProp p = on_device(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, piece, &p, 1); }
PROBE(create_null_properties) { context(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, piece, nullptr, 0); }
PROBE(reserve_odd_size) { context(); CUdeviceptr p; return cuMemAddressReserve(&p, 1000, 0, 0, 0); }
PROBE(reserve_odd_alignment) { context(); CUdeviceptr p; return cuMemAddressReserve(&p, piece, 3, 0, 0); }
PROBE(reserve_nothing) { context(); CUdeviceptr p; return cuMemAddressReserve(&p, 0, 0, 0, 0); }
PROBE(map_unreserved) { context(); return cuMemMap(0x10000000000, piece, 0, allocation(), 0); }
PROBE(map_twice) { context(); const CUdeviceptr p = reservation(); const auto h = allocation(); MUST(cuMemMap(p, piece, 0, h, 0)); return cuMemMap(p, piece, 0, h, 0); }
PROBE(map_too_much) { context(); CUdeviceptr p; MUST(cuMemAddressReserve(&p, 2 * piece, 0, 0, 0)); return cuMemMap(p, 2 * piece, 0, allocation(), 0); }
PROBE(map_offset) { context(); return cuMemMap(reservation(), piece, 4096, allocation(), 0); }
PROBE(unmap_unmapped) { context(); return cuMemUnmap(reservation(), piece); }
PROBE(free_mapped_range) { context(); const CUdeviceptr p = reservation(); MUST(cuMemMap(p, piece, 0, allocation(), 0)); return cuMemAddressFree(p, piece); }
PROBE(free_range_twice) { context(); const CUdeviceptr p = reservation(); MUST(cuMemAddressFree(p, piece)); return cuMemAddressFree(p, piece); }
PROBE(access_unmapped) { context(); CUmemAccessDesc a{}; a.location = on_device().location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return cuMemSetAccess(reservation(), piece, &a, 1); }
PROBE(access_null) { context(); const CUdeviceptr p = reservation(); MUST(cuMemMap(p, piece, 0, allocation(), 0)); return cuMemSetAccess(p, piece, nullptr, 1); }
PROBE(set_without_access) { context(); const CUdeviceptr p = reservation(); MUST(cuMemMap(p, piece, 0, allocation(), 0)); return cuMemsetD8(p, 1, 4); }
PROBE(release_foreign) { context(); return cuMemRelease(0x123456); }
PROBE(granularity_null) { context(); std::size_t n; return cuMemGetAllocationGranularity(&n, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM); }
PROBE(granularity_bad_option) { context(); std::size_t n; const CUmemAllocationProp p = on_device(); return cuMemGetAllocationGranularity(&n, &p, static_cast<CUmemAllocationGranularity_flags>(9)); }
PROBE(retain_unmapped) { context(); CUmemGenericAllocationHandle h; return cuMemRetainAllocationHandle(&h, reinterpret_cast<void*>(reservation())); }
PROBE(export_unexportable) { context(); int fd; return cuMemExportToShareableHandle(&fd, allocation(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); }
PROBE(import_no_descriptor) { context(); CUmemGenericAllocationHandle h; return cuMemImportFromShareableHandle(&h, reinterpret_cast<void*>(std::intptr_t{-1}), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); }
PROBE(pool_nowhere) { context(); CUmemPoolProps p{}; p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED; p.location = on_device().location; return cuMemPoolCreate(nullptr, &p); }
PROBE(pool_no_device) { context(); CUmemPoolProps p{}; p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED; p.location = on_device(66).location; CUmemoryPool m; return cuMemPoolCreate(&m, &p); }
PROBE(destroy_default_pool) { context(); CUmemoryPool p; MUST(cuDeviceGetDefaultMemPool(&p, 0)); return cuMemPoolDestroy(p); }
PROBE(pool_attribute_unknown) { context(); std::uint64_t v = 0; return cuMemPoolGetAttribute(pool(), static_cast<CUmemPool_attribute>(77), &v); }
PROBE(pool_attribute_read_only) { context(); std::uint64_t v = 5; return cuMemPoolSetAttribute(pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v); }
PROBE(pool_access_taken_from_owner) { context(); CUmemAccessDesc a{}; a.location = on_device().location; a.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; return cuMemPoolSetAccess(pool(), &a, 1); }
PROBE(async_allocate_nothing) { context(); CUdeviceptr p; return cuMemAllocAsync(&p, 0, nullptr); }
PROBE(async_free_null) { context(); return cuMemFreeAsync(0, nullptr); }
PROBE(async_free_twice) { context(); CUdeviceptr p; MUST(cuMemAllocAsync(&p, 64, nullptr)); MUST(cuMemFreeAsync(p, nullptr)); return cuMemFreeAsync(p, nullptr); }

// --- sharing, arrays, textures, the rest ----------------------------------------------------------------------------

PROBE(ipc_of_foreign) { context(); CUipcMemHandle h; return cuIpcGetMemHandle(&h, 0x1234000); }
PROBE(ipc_open_own) { context(); CUipcMemHandle h; MUST(cuIpcGetMemHandle(&h, memory())); CUdeviceptr p; return cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS); }
PROBE(ipc_open_nonsense) { context(); CUdeviceptr p; return cuIpcOpenMemHandle(&p, CUipcMemHandle{}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS); }
PROBE(ipc_close_own) { context(); return cuIpcCloseMemHandle(memory()); }
PROBE(ipc_plain_event) { context(); CUipcEventHandle h; return cuIpcGetEventHandle(&h, event(CU_EVENT_DISABLE_TIMING)); }
PROBE(array_null) { context(); CUarray a; return cuArrayCreate(&a, nullptr); }
PROBE(array_three_channels) { context(); const CUDA_ARRAY_DESCRIPTOR d{64, 16, CU_AD_FORMAT_FLOAT, 3}; CUarray a; return cuArrayCreate(&a, &d); }
PROBE(array_unknown_format) { context(); const CUDA_ARRAY_DESCRIPTOR d{64, 16, static_cast<CUarray_format>(0x77), 1}; CUarray a; return cuArrayCreate(&a, &d); }
PROBE(array_too_wide) { context(); const CUDA_ARRAY_DESCRIPTOR d{1u << 30, 16, CU_AD_FORMAT_FLOAT, 1}; CUarray a; return cuArrayCreate(&a, &d); }
PROBE(array_no_width) { context(); const CUDA_ARRAY_DESCRIPTOR d{0, 16, CU_AD_FORMAT_FLOAT, 1}; CUarray a; return cuArrayCreate(&a, &d); }
PROBE(destroy_null_array) { context(); return cuArrayDestroy(nullptr); }
PROBE(texture_of_null) { context(); CUtexObject t; return cuTexObjectCreate(&t, nullptr, nullptr, nullptr); }
PROBE(surface_of_plain_array) { context(); CUDA_RESOURCE_DESC r{}; r.resType = CU_RESOURCE_TYPE_ARRAY; r.res.array.hArray = array(); CUsurfObject s; return cuSurfObjectCreate(&s, &r); }
PROBE(surface_of_linear) { context(); CUDA_RESOURCE_DESC r{}; r.resType = CU_RESOURCE_TYPE_LINEAR; r.res.linear.devPtr = memory(); r.res.linear.sizeInBytes = 4096; r.res.linear.format = CU_AD_FORMAT_FLOAT; r.res.linear.numChannels = 1; CUsurfObject s; return cuSurfObjectCreate(&s, &r); }
PROBE(error_name_unknown) { const char* n; return cuGetErrorName(static_cast<CUresult>(12345), &n); }
PROBE(error_name_nowhere) { return cuGetErrorName(CUDA_SUCCESS, nullptr); }
PROBE(proc_address_unknown) { void* f; CUdriverProcAddressQueryResult q; return cuGetProcAddress("cuNothing", &f, 13000, 0, &q); }
PROBE(proc_address_null) { void* f; return cuGetProcAddress(nullptr, &f, 13000, 0, nullptr); }
PROBE(proc_address_too_old) { void* f; CUdriverProcAddressQueryResult q; return cuGetProcAddress("cuGraphLaunch", &f, 5000, 0, &q); }
PROBE(export_table_unknown) { MUST(cuInit(0)); const void* t; CUuuid id{}; return cuGetExportTable(&t, &id); }
PROBE(user_object_no_references) { context(); CUuserObject o; return cuUserObjectCreate(&o, nullptr, nothing, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC); }
PROBE(user_object_no_flag) { context(); CUuserObject o; return cuUserObjectCreate(&o, nullptr, nothing, 1, 0); }
PROBE(tensor_map_null) { context(); return cuTensorMapEncodeTiled(nullptr, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, nullptr, nullptr, nullptr, nullptr, nullptr, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE); }
PROBE(wait_value_null) { context(); return cuStreamWaitValue32(nullptr, 0, 1, CU_STREAM_WAIT_VALUE_EQ); }
PROBE(write_value_unaligned) { context(); return cuStreamWriteValue32(nullptr, memory() + 2, 1, 0); }
PROBE(wait_value_bad_flags) { context(); return cuStreamWaitValue32(nullptr, memory(), 1, 0x80); }
PROBE(batch_copy_null) { context(); return cuMemcpyBatchAsync(nullptr, nullptr, nullptr, 1, nullptr, nullptr, 1, stream()); }
PROBE(advise_device_memory) { context(); CUmemLocation l = on_device().location; return cuMemAdvise(memory(), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, l); }
PROBE(prefetch_device_memory) { context(); CUmemLocation l = on_device().location; return cuMemPrefetchAsync(memory(), 4096, l, 0, nullptr); }
PROBE(link_nothing) { context(); CUlinkState s; MUST(cuLinkCreate(0, nullptr, nullptr, &s)); void* cubin; std::size_t n; return cuLinkComplete(s, &cubin, &n); }
PROBE(link_nonsense) { context(); CUlinkState s; MUST(cuLinkCreate(0, nullptr, nullptr, &s)); char text[] = "nonsense"; return cuLinkAddData(s, CU_JIT_INPUT_PTX, text, sizeof(text), "x", 0, nullptr, nullptr); }
PROBE(link_missing_file) { context(); CUlinkState s; MUST(cuLinkCreate(0, nullptr, nullptr, &s)); return cuLinkAddFile(s, CU_JIT_INPUT_PTX, "/nonexistent.ptx", 0, nullptr, nullptr); }

// clang-format on

// --------------------------------------------------------------------------------------------------------------------------------

void run(const Probe& probe) {
  std::printf("%s: ", probe.name);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const CUresult result = probe.run();
    std::printf("%s\n", text_of(result));
    std::fflush(stdout);
    std::_Exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::printf("signal %d\n", WTERMSIG(status));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> wanted(arguments + 1, arguments + count);
  if (wanted == std::vector<std::string>{"-l"}) {
    for (const Probe& probe : probes()) std::printf("%s\n", probe.name);
    return 0;
  }
  std::size_t ran = 0;
  for (const Probe& probe : probes()) {
    bool chosen = wanted.empty();
    for (const std::string& name : wanted) chosen |= name == probe.name;
    if (!chosen) continue;
    run(probe);
    ++ran;
  }
  if (!wanted.empty() && ran != wanted.size()) {
    std::fprintf(stderr, "there is no probe of one of these names; -l lists them\n");
    return 2;
  }
  return 0;
}
