// A CUDA program with devices of several hosts: of the first and the last one, which are of different hosts.
//
//     spanning facts           what it is told before it uses a device
//     spanning work            copies of all shapes, events, kernels, errors; ends with "fine"
//     spanning crowded         has memory wherever a worker may have its variables: "last OUTCOME"
//     spanning rounds          a round a line on stdin: "first OUTCOME last OUTCOME", a CUresult's number each

#include <cuda.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

const char* const kernels = R"(.version 7.0
.target sm_52
.address_size 64
.visible .entry fill32(.param .u64 address, .param .u32 count, .param .u32 value)
{
  .reg .pred %p<2>;
  .reg .b32 %r<7>;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [address];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r6, %r1;
  @%p1 ret;
  mul.wide.u32 %d2, %r6, 4;
  add.u64 %d3, %d1, %d2;
  st.global.u32 [%d3], %r2;
  ret;
}
)";

void fail(int line, const char* what, int result, int wanted) {
  std::printf("line %d: %s gave %d instead of %d\n", line, what, result, wanted);
  std::fflush(stdout);
  std::_Exit(1);
}

#define GIVES(wanted, call)                                                                              \
  do {                                                                                                   \
    const int outcome_ = static_cast<int>(call);                                                         \
    if (outcome_ != static_cast<int>(wanted)) fail(__LINE__, #call, outcome_, static_cast<int>(wanted)); \
  } while (false)
#define WORKS(call) GIVES(CUDA_SUCCESS, call)
#define HOLDS(condition) GIVES(true, (condition))

struct Side {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;

  static constexpr std::size_t bytes = 40u << 20;
  void begin() {
    WORKS(cuDevicePrimaryCtxRetain(&context, device));
    WORKS(cuCtxSetCurrent(context));
    WORKS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    WORKS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    WORKS(cuMemAlloc(&memory, bytes));
  }
  void make_current() const { WORKS(cuCtxSetCurrent(context)); }
};

CUkernel fill = nullptr;

void launch(CUstream stream, CUdeviceptr address, unsigned count, unsigned value) {
  void* arguments[] = {&address, &count, &value};
  WORKS(cuLaunchKernel(reinterpret_cast<CUfunction>(fill), (count + 127) / 128, 1, 1, 128, 1, 1, 0, stream, arguments,
                       nullptr));
}

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> made(bytes);
  for (unsigned char& byte : made) byte = static_cast<unsigned char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return made;
}

void put(CUdeviceptr to, const std::vector<unsigned char>& bytes) {
  WORKS(cuMemcpyHtoD(to, bytes.data(), bytes.size()));
}
std::vector<unsigned char> got(CUdeviceptr from, std::size_t bytes) {
  std::vector<unsigned char> read(bytes);
  WORKS(cuMemcpyDtoH(read.data(), from, bytes));
  return read;
}

// --- copies ---------------------------------------------------------------------------------------------------------

using Linear = std::function<CUresult(const Side& from, const Side& to, CUdeviceptr source, CUdeviceptr target,
                                      std::size_t bytes)>;

void copy_linear(const Side& from, const Side& to, CUdeviceptr at_source, CUdeviceptr at_target, unsigned seed) {
  const Linear forms[] = {
      [](auto& a, auto& b, auto s, auto t, auto n) { return cuMemcpyPeer(t, b.context, s, a.context, n); },
      [](auto&, auto&, auto s, auto t, auto n) { return cuMemcpy(t, s, n); },
      [](auto&, auto&, auto s, auto t, auto n) { return cuMemcpyDtoD(t, s, n); },
      [](auto& a, auto& b, auto s, auto t, auto n) {
        return cuMemcpyPeerAsync(t, b.context, s, a.context, n, a.stream);
      },
      [](auto& a, auto& b, auto s, auto t, auto n) {
        return cuMemcpyPeerAsync(t, b.context, s, a.context, n, b.stream);
      },
      [](auto& a, auto&, auto s, auto t, auto n) { return cuMemcpyAsync(t, s, n, a.stream); },
      [](auto&, auto& b, auto s, auto t, auto n) { return cuMemcpyDtoDAsync(t, s, n, b.stream); },
      [](auto& a, auto&, auto s, auto t, auto n) {
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        std::size_t first = 0;
        return cuMemcpyBatchAsync(&t, &s, &n, 1, &attributes, &first, 1, a.stream);
      },
  };
  for (const std::size_t bytes :
       {std::size_t{4}, std::size_t{1000}, (std::size_t{1} << 20) + 3, std::size_t{9} << 20}) {
    for (const Linear& form : forms) {
      const auto sent = pattern(bytes, ++seed);
      put(at_source, sent);
      from.make_current();
      WORKS(form(from, to, at_source, at_target, bytes));
      WORKS(cuStreamSynchronize(from.stream));
      WORKS(cuStreamSynchronize(to.stream));
      HOLDS(got(at_target, bytes) == sent);
    }
  }
}

// Rows of different pitches; slices; an array on either side.
void copy_shaped(const Side& from, const Side& to, CUdeviceptr at_source, CUdeviceptr at_target, unsigned seed) {
  constexpr std::size_t width = 300, height = 20, depth = 3, source_pitch = 512, target_pitch = 384;
  const auto sent = pattern(source_pitch * height * depth, seed);
  const auto row_of = [&](std::size_t y, std::size_t z) { return sent.data() + (z * height + y) * source_pitch; };
  const auto check = [&](std::size_t slices) {
    const auto read = got(at_target, target_pitch * height * slices);
    for (std::size_t z = 0; z < slices; ++z)
      for (std::size_t y = 0; y < height; ++y)
        HOLDS(std::memcmp(read.data() + (z * height + y) * target_pitch, row_of(y, z), width) == 0);
  };
  put(at_source, sent);
  CUDA_MEMCPY2D flat{};
  flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = at_source;
  flat.dstDevice = at_target;
  flat.srcPitch = source_pitch;
  flat.dstPitch = target_pitch;
  flat.WidthInBytes = width;
  flat.Height = height;
  const auto clear = [&] { WORKS(cuMemsetD8(at_target, 0, target_pitch * height * depth)); };
  for (const bool waits : {true, false}) {
    clear();
    if (waits) WORKS(cuMemcpy2D(&flat));
    else WORKS(cuMemcpy2DAsync(&flat, from.stream));
    WORKS(cuStreamSynchronize(from.stream));
    check(1);
  }
  CUDA_MEMCPY3D volume{};
  volume.srcMemoryType = volume.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  volume.srcDevice = at_source;
  volume.dstDevice = at_target;
  volume.srcPitch = source_pitch;
  volume.dstPitch = target_pitch;
  volume.srcHeight = volume.dstHeight = height;
  volume.WidthInBytes = width;
  volume.Height = height;
  volume.Depth = depth;
  clear();
  WORKS(cuMemcpy3DAsync(&volume, to.stream));
  WORKS(cuStreamSynchronize(to.stream));
  check(depth);
  CUDA_MEMCPY3D_PEER peer{};
  peer.srcMemoryType = peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.srcDevice = at_source;
  peer.dstDevice = at_target;
  peer.srcContext = from.context;
  peer.dstContext = to.context;
  peer.srcPitch = source_pitch;
  peer.dstPitch = target_pitch;
  peer.srcHeight = peer.dstHeight = height;
  peer.WidthInBytes = width;
  peer.Height = height;
  peer.Depth = depth;
  clear();
  WORKS(cuMemcpy3DPeer(&peer));
  check(depth);

  to.make_current();
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = width / 4;
  shape.Height = height;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  CUarray array;
  WORKS(cuArrayCreate(&array, &shape));
  flat.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  flat.dstArray = array;
  from.make_current();
  WORKS(cuMemcpy2DAsync(&flat, from.stream));
  WORKS(cuStreamSynchronize(from.stream));
  CUDA_MEMCPY2D back{};
  std::vector<unsigned char> read(width * height);
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = read.data();
  back.WidthInBytes = width;
  back.Height = height;
  to.make_current();
  WORKS(cuMemcpy2D(&back));
  for (std::size_t y = 0; y < height; ++y) HOLDS(std::memcmp(read.data() + y * width, row_of(y, 0), width) == 0);
  from.make_current();
  WORKS(cuArrayDestroy(array));
}

// Pinned memory of one host's context serves the other, whichever is current.
void copy_pinned(const Side& one, const Side& other) {
  constexpr std::size_t bytes = 3u << 20;
  one.make_current();
  void* pinned = nullptr;
  WORKS(cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE));
  const auto sent = pattern(bytes, 77);
  std::memcpy(pinned, sent.data(), bytes);
  other.make_current();
  WORKS(cuMemcpyHtoDAsync(other.memory, pinned, bytes, other.stream));
  WORKS(cuStreamSynchronize(other.stream));
  std::memset(pinned, 0, bytes);
  WORKS(cuMemcpyDtoHAsync(pinned, other.memory, bytes, other.stream));
  WORKS(cuStreamSynchronize(other.stream));
  HOLDS(std::memcmp(pinned, sent.data(), bytes) == 0);
  unsigned flags = 0;
  WORKS(cuMemHostGetFlags(&flags, pinned));
  WORKS(cuMemFreeHost(pinned));
}

// --- order ----------------------------------------------------------------------------------------------------------

// Each step needs what the one before it has left at the other host.
void pass_back_and_forth(const Side& one, const Side& other) {
  constexpr unsigned steps = 40, count = 1000;
  const std::size_t bytes = count * sizeof(unsigned);
  for (unsigned step = 0; step < steps; ++step) {
    one.make_current();
    launch(one.stream, one.memory, count, step + 1);
    WORKS(cuMemcpyPeerAsync(other.memory, other.context, one.memory, one.context, bytes, one.stream));
    WORKS(cuEventRecord(one.event, one.stream));
    other.make_current();
    WORKS(cuStreamWaitEvent(other.stream, one.event, 0));
    WORKS(cuMemcpyDtoDAsync(other.memory + (step + 1) * bytes, other.memory, bytes, other.stream));
    WORKS(cuEventRecord(other.event, other.stream));
    WORKS(cuStreamWaitEvent(one.stream, other.event, 0));
  }
  WORKS(cuStreamSynchronize(one.stream));
  WORKS(cuStreamSynchronize(other.stream));
  for (unsigned step = 0; step < steps; ++step) {
    std::vector<unsigned> read(count);
    WORKS(cuMemcpyDtoH(read.data(), other.memory + (step + 1) * bytes, bytes));
    for (const unsigned value : read) GIVES(step + 1, value);
  }
}

// What waits for the program keeps no thread of it waiting that only gives out work.
void give_out_behind_a_gate(const Side& one, const Side& other) {
  constexpr unsigned count = 256;
  static std::atomic<bool> open;
  open = false;
  one.make_current();
  WORKS(cuLaunchHostFunc(
      one.stream,
      [](void*) {
        while (!open) std::this_thread::yield();
      },
      nullptr));
  launch(one.stream, one.memory, count, 0xabcd);
  WORKS(cuMemcpyAsync(other.memory, one.memory, count * 4, one.stream));
  WORKS(cuEventRecord(one.event, one.stream));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(one.event));
  other.make_current();
  WORKS(cuStreamWaitEvent(other.stream, one.event, 0));
  WORKS(cuMemcpyDtoDAsync(other.memory + 4096, other.memory, count * 4, other.stream));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(other.stream));
  open = true;
  WORKS(cuStreamSynchronize(other.stream));
  std::vector<unsigned> read(count);
  WORKS(cuMemcpyDtoH(read.data(), other.memory + 4096, count * 4));
  for (const unsigned value : read) GIVES(0xabcd, value);
}

// --- what goes to its own host, and what is an error ----------------------------------------------------------------

void check_routes(const Side& one, const Side& other) {
  one.make_current();
  int yes = 1;
  WORKS(cuDeviceCanAccessPeer(&yes, one.device, other.device));
  GIVES(0, yes);
  yes = 1;
  WORKS(cuDeviceGetP2PAttribute(&yes, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, one.device, other.device));
  GIVES(0, yes);
  GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(other.context, 0));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(other.event, one.stream));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(other.memory, 1, 16, one.stream));
  float elapsed = 0;
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&elapsed, one.event, other.event));

  // Calls that name something of the other host go there.
  WORKS(cuMemsetD8(other.memory, 0x5a, 64));
  const auto read = got(other.memory, 64);
  for (const unsigned char byte : read) GIVES(0x5a, byte);
  int device = -1;
  WORKS(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, other.memory));
  GIVES(other.device, device);
  CUcontext context = nullptr;
  WORKS(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, other.memory));
  HOLDS(context == other.context);
  WORKS(cuStreamGetCtx(other.stream, &context));
  HOLDS(context == other.context);
  WORKS(cuStreamQuery(other.stream));
  WORKS(cuEventQuery(other.event));
  WORKS(cuEventSynchronize(other.event));
  WORKS(cuCtxGetCurrent(&context));
  HOLDS(context == one.context);
  CUdeviceptr there = 0;
  other.make_current();
  WORKS(cuMemAlloc(&there, 1 << 16));
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  WORKS(cuModuleLoadData(&module, kernels));
  one.make_current();
  WORKS(cuModuleGetFunction(&function, module, "fill32"));
  unsigned count = 16, value = 7;
  void* arguments[] = {&there, &count, &value};
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, one.stream, arguments, nullptr));
  WORKS(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, other.stream, arguments, nullptr));
  WORKS(cuStreamSynchronize(other.stream));
  std::vector<unsigned> filled(count);
  WORKS(cuMemcpyDtoH(filled.data(), there, count * 4));
  for (const unsigned now : filled) GIVES(value, now);
  WORKS(cuModuleUnload(module));
  WORKS(cuMemFree(there));

  // A graph is of one host.
  CUgraph graph = nullptr;
  WORKS(cuStreamBeginCapture(one.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemcpyAsync(other.memory, one.memory, 64, one.stream));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(one.stream, &graph));
  WORKS(cuGraphCreate(&graph, 0));
  CUgraphNode node = nullptr;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = one.memory;
  copy.dstDevice = other.memory;
  copy.WidthInBytes = 64;
  copy.Height = copy.Depth = 1;
  GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, one.context));
  WORKS(cuGraphDestroy(graph));
}

void work(Side& one, Side& other) {
  one.begin();
  other.begin();
  CUlibrary library = nullptr;
  WORKS(cuLibraryLoadData(&library, kernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  WORKS(cuLibraryGetKernel(&fill, library, "fill32"));
  for (const Side* const side : {&one, &other}) {
    side->make_current();
    launch(side->stream, side->memory, 100, 42);
    WORKS(cuStreamSynchronize(side->stream));
    std::vector<unsigned> read(100);
    WORKS(cuMemcpyDtoH(read.data(), side->memory, 400));
    for (const unsigned value : read) GIVES(42, value);
  }
  check_routes(one, other);
  check_routes(other, one);
  copy_shaped(one, other, one.memory, other.memory, 5);
  copy_shaped(other, one, other.memory, one.memory, 6);
  copy_pinned(one, other);
  copy_pinned(other, one);
  pass_back_and_forth(one, other);
  pass_back_and_forth(other, one);
  give_out_behind_a_gate(one, other);
  give_out_behind_a_gate(other, one);
  // Both directions at once, in memory apart from each other.
  constexpr std::size_t half = Side::bytes / 2;
  std::thread there([&] {
    one.make_current();
    copy_linear(one, other, one.memory, other.memory, 1000);
  });
  std::thread back([&] {
    other.make_current();
    copy_linear(other, one, other.memory + half, one.memory + half, 2000);
  });
  there.join();
  back.join();
  one.make_current();
  WORKS(cuLibraryUnload(library));
  for (const Side* const side : {&one, &other}) {
    WORKS(cuMemFree(side->memory));
    WORKS(cuEventDestroy(side->event));
    WORKS(cuStreamDestroy(side->stream));
    WORKS(cuDevicePrimaryCtxRelease(side->device));
  }
}

void tell_facts(int count) {
  std::set<std::string> buses, uuids;
  for (CUdevice device = 0; device < count; ++device) {
    char name[100], bus[32];
    CUuuid uuid;
    std::size_t bytes = 0;
    int processors = 0, active = 1;
    unsigned flags = 0;
    WORKS(cuDeviceGetName(name, sizeof name, device));
    WORKS(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    WORKS(cuDeviceGetUuid(&uuid, device));
    WORKS(cuDeviceTotalMem(&bytes, device));
    WORKS(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    WORKS(cuDevicePrimaryCtxGetState(device, &flags, &active));
    GIVES(0, active);
    HOLDS(bytes > 0 && processors > 0);
    CUdevice same = -1;
    WORKS(cuDeviceGetByPCIBusId(&same, bus));
    GIVES(device, same);
    buses.insert(bus);
    uuids.insert(std::string(uuid.bytes, sizeof uuid.bytes));
  }
  std::printf("devices %d buses %zu uuids %zu\n", count, buses.size(), uuids.size());
  std::fflush(stdout);
}

// A little work that shows its outcome.
CUresult round_of(const Side& side, unsigned value) {
  if (const CUresult bad = cuCtxSetCurrent(side.context); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuMemsetD32Async(side.memory, value, 64, side.stream); bad != CUDA_SUCCESS) return bad;
  unsigned read[64] = {};
  if (const CUresult bad = cuMemcpyDtoHAsync(read, side.memory, sizeof read, side.stream); bad != CUDA_SUCCESS)
    return bad;
  if (const CUresult bad = cuStreamSynchronize(side.stream); bad != CUDA_SUCCESS) return bad;
  for (const unsigned now : read) GIVES(value, now);
  return CUDA_SUCCESS;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string command = count > 1 ? arguments[1] : "";
  int devices = 0;
  WORKS(cuInit(0));
  WORKS(cuDeviceGetCount(&devices));
  if (command == "facts") {
    tell_facts(devices);
    std::string line;
    std::getline(std::cin, line);
    return 0;
  }
  Side first, last;
  last.device = devices - 1;
  if (command == "work") {
    work(first, last);
    std::puts("fine");
    return 0;
  }
  if (command == "crowded") {
    constexpr std::uint64_t begin = 0x3800'0000'0000, end = 0x5400'0000'0000;
    void* const wish = reinterpret_cast<void*>(begin);
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    HOLDS(::mmap(wish, end - begin, PROT_NONE, flags, -1, 0) == wish);
    std::printf("last %d\n", cuDevicePrimaryCtxRetain(&last.context, last.device));
    return 0;
  }
  first.begin();
  last.begin();
  std::puts("begun");
  std::fflush(stdout);
  unsigned value = 0;
  for (std::string line; std::getline(std::cin, line);) {
    // A copy between them, of which nobody knows whether both are there.
    cuCtxSetCurrent(first.context);
    if (line == "copy")
      cuMemcpyPeerAsync(last.memory, last.context, first.memory, first.context, 1 << 20, first.stream);
    const CUresult of_first = round_of(first, ++value), of_last = round_of(last, value);
    std::printf("first %d last %d\n", of_first, of_last);
    std::fflush(stdout);
  }
  return 0;
}
