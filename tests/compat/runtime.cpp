// A program of the CUDA runtime as nvcc of any version since 11 makes it: kernels registered in a fatbin, called
// through a runtime library that is given by path. Only what all of these versions have alike is used, declared here
// because no header is of all of them.
//
//   runtime LIBCUDART FATBIN

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Size {
  unsigned x = 1, y = 1, z = 1;
};
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Graph = struct GraphHandle*;
using GraphExec = struct GraphExecHandle*;
enum Copy { host_to_device = 1, device_to_host = 2, device_to_device = 3 };
constexpr int success = 0;

void* runtime = nullptr;
int failures = 0;

/// A function of the runtime by its name: ask<int(void*)>("cudaFree").
template <class Function>
Function* ask(const char* name) {
  void* const found = ::dlsym(runtime, name);
  if (!found) {
    std::printf("the runtime has no %s\n", name);
    std::exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

void expect(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("line %d: %s\n", line, what);
  ++failures;
}
void expect_success(int result, const char* call, int line) {
  if (result == success) return;
  std::printf("line %d: %s gives %d (%s)\n", line, call, result, ask<const char*(int)>("cudaGetErrorString")(result));
  ++failures;
}
#define HOLDS(condition) expect(condition, #condition " does not hold", __LINE__)
#define OK(name, type, ...) expect_success(ask<type>(name)(__VA_ARGS__), name, __LINE__)

// --- what nvcc writes -----------------------------------------------------------------------------------------------

struct Wrapper {
  int magic = 0x466243b1;
  int version = 1;
  const void* container = nullptr;
  void* file = nullptr;
};

void scale() {}  // the host function that stands for the kernel
int factor;      // what stands for the variables
int offsets[4];
int* launches;

void register_code(const std::vector<char>& container) {
  static Wrapper wrapper;
  wrapper.container = container.data();
  void** const code = ask<void**(void*)>("__cudaRegisterFatBinary")(&wrapper);
  ask<void(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*)>("__cudaRegisterFunction")(
      code, reinterpret_cast<const char*>(&scale), const_cast<char*>("scale"), "scale", -1, nullptr, nullptr, nullptr,
      nullptr, nullptr);
  auto* const variable = ask<void(void**, char*, char*, const char*, int, std::size_t, int, int)>("__cudaRegisterVar");
  variable(code, reinterpret_cast<char*>(&factor), const_cast<char*>("factor"), "factor", 0, sizeof(factor), 0, 0);
  variable(code, reinterpret_cast<char*>(offsets), const_cast<char*>("offsets"), "offsets", 0, sizeof(offsets), 1, 0);
  ask<void(void**, void**, char*, const char*, int, std::size_t, int, int)>("__cudaRegisterManagedVar")(
      code, reinterpret_cast<void**>(&launches), const_cast<char*>("launches"), "launches", 0, sizeof(int), 0, 0);
  ask<void(void**)>("__cudaRegisterFatBinaryEnd")(code);
  ask<char(void**)>("__cudaInitModule")(code);
}

void launch(int* data, int count, Stream stream, const char* how = "cudaLaunchKernel") {
  void* arguments[] = {&data, &count};
  const Size grid{static_cast<unsigned>(count + 63) / 64}, block{64};
  expect_success(ask<int(const void*, Size, Size, void**, std::size_t, Stream)>(how)(
                     reinterpret_cast<const void*>(&scale), grid, block, arguments, 0, stream),
                 how, __LINE__);
}

std::vector<int> numbers(int count) {
  std::vector<int> made(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) made[static_cast<std::size_t>(i)] = i;
  return made;
}

std::vector<int> scaled(std::vector<int> values, int by) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] * by + 10 * static_cast<int>(i % 4 + 1);
  return values;
}

// --- what is tried --------------------------------------------------------------------------------------------------

void devices() {
  int count = 0, value = 0, version = 0;
  OK("cudaRuntimeGetVersion", int(int*), &version);
  std::printf("runtime %d\n", version);
  OK("cudaDriverGetVersion", int(int*), &value);
  HOLDS(value >= version);
  OK("cudaGetDeviceCount", int(int*), &count);
  HOLDS(count >= 1);
  OK("cudaSetDevice", int(int), 0);
  OK("cudaDeviceGetAttribute", int(int*, int, int), &value, 75, 0);
  HOLDS(value >= 7);  // major compute capability
  alignas(16) char properties[4096] = {};
  OK(version >= 12000 && version < 13000 ? "cudaGetDeviceProperties_v2" : "cudaGetDeviceProperties", int(void*, int),
     properties, 0);
  HOLDS(properties[0] != '\0');
  std::size_t free = 0, total = 0;
  OK("cudaMemGetInfo", int(std::size_t*, std::size_t*), &free, &total);
  HOLDS(free > 0 && free <= total);
}

void kernels_and_variables() {
  constexpr int count = 1000;
  constexpr std::size_t bytes = count * sizeof(int);
  std::vector<int> values = numbers(count), back(count);
  int* data = nullptr;
  OK("cudaMalloc", int(void**, std::size_t), reinterpret_cast<void**>(&data), bytes);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), data, values.data(), bytes, host_to_device);
  *launches = 5;
  launch(data, count, nullptr);
  OK("cudaDeviceSynchronize", int());
  HOLDS(*launches == 6);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), back.data(), data, bytes, device_to_host);
  HOLDS(back == scaled(values, 3));
  const int seven = 7;
  OK("cudaMemcpyToSymbol", int(const void*, const void*, std::size_t, std::size_t, int), &factor, &seven, sizeof(seven),
     0, host_to_device);
  int read = 0;
  OK("cudaMemcpyFromSymbol", int(void*, const void*, std::size_t, std::size_t, int), &read, &factor, sizeof(read), 0,
     device_to_host);
  HOLDS(read == 7);
  void* address = nullptr;
  OK("cudaGetSymbolAddress", int(void**, const void*), &address, offsets);
  HOLDS(address != nullptr);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), data, values.data(), bytes, host_to_device);
  launch(data, count, nullptr, "cudaLaunchKernel_ptsz");
  OK("cudaStreamSynchronize_ptsz", int(Stream), nullptr);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), back.data(), data, bytes, device_to_host);
  HOLDS(back == scaled(values, 7));
  const int three = 3;
  OK("cudaMemcpyToSymbol", int(const void*, const void*, std::size_t, std::size_t, int), &factor, &three, sizeof(three),
     0, host_to_device);
  alignas(16) char attributes[512] = {};
  OK("cudaFuncGetAttributes", int(void*, const void*), attributes, reinterpret_cast<const void*>(&scale));
  int blocks = 0;
  OK("cudaOccupancyMaxActiveBlocksPerMultiprocessor", int(int*, const void*, int, std::size_t), &blocks,
     reinterpret_cast<const void*>(&scale), 64, 0);
  HOLDS(blocks > 0);
  OK("cudaFree", int(void*), data);
}

void streams_and_events() {
  constexpr int count = 4096;
  constexpr std::size_t bytes = count * sizeof(int);
  Stream stream = nullptr, other = nullptr;
  Event begin = nullptr, end = nullptr;
  OK("cudaStreamCreate", int(Stream*), &stream);
  OK("cudaStreamCreateWithFlags", int(Stream*, unsigned), &other, 1);
  OK("cudaEventCreate", int(Event*), &begin);
  OK("cudaEventCreate", int(Event*), &end);
  int* pinned = nullptr;
  int* data = nullptr;
  OK("cudaHostAlloc", int(void**, std::size_t, unsigned), reinterpret_cast<void**>(&pinned), bytes, 0);
  OK("cudaMallocAsync", int(void**, std::size_t, Stream), reinterpret_cast<void**>(&data), bytes, stream);
  const std::vector<int> values = numbers(count);
  std::memcpy(pinned, values.data(), bytes);
  OK("cudaEventRecord", int(Event, Stream), begin, stream);
  OK("cudaMemcpyAsync", int(void*, const void*, std::size_t, int, Stream), data, pinned, bytes, host_to_device, stream);
  launch(data, count, stream);
  OK("cudaEventRecord", int(Event, Stream), end, stream);
  OK("cudaStreamWaitEvent", int(Stream, Event, unsigned), other, end, 0);
  OK("cudaMemcpyAsync", int(void*, const void*, std::size_t, int, Stream), pinned, data, bytes, device_to_host, other);
  static int called = 0;
  OK(
      "cudaLaunchHostFunc", int(Stream, void (*)(void*), void*), other, [](void* at) { ++*static_cast<int*>(at); },
      &called);
  OK("cudaStreamSynchronize", int(Stream), other);
  HOLDS(called == 1);
  HOLDS(std::vector<int>(pinned, pinned + count) == scaled(values, 3));
  float milliseconds = -1;
  OK("cudaEventElapsedTime", int(float*, Event, Event), &milliseconds, begin, end);
  HOLDS(milliseconds >= 0);
  OK("cudaFreeAsync", int(void*, Stream), data, stream);
  OK("cudaStreamDestroy", int(Stream), stream);
  OK("cudaStreamDestroy", int(Stream), other);
  OK("cudaEventDestroy", int(Event), begin);
  OK("cudaEventDestroy", int(Event), end);
  OK("cudaFreeHost", int(void*), pinned);
}

void managed_memory() {
  constexpr int count = 100;
  int* data = nullptr;
  OK("cudaMallocManaged", int(void**, std::size_t, unsigned), reinterpret_cast<void**>(&data), count * sizeof(int), 1);
  const std::vector<int> values = numbers(count);
  std::memcpy(data, values.data(), count * sizeof(int));
  launch(data, count, nullptr);
  OK("cudaDeviceSynchronize", int());
  HOLDS(std::vector<int>(data, data + count) == scaled(values, 3));
  OK("cudaFree", int(void*), data);
}

void graphs() {
  constexpr int count = 64;
  constexpr std::size_t bytes = count * sizeof(int);
  Stream stream = nullptr;
  int* data = nullptr;
  const std::vector<int> values = numbers(count);
  std::vector<int> back(count);
  OK("cudaStreamCreateWithFlags", int(Stream*, unsigned), &stream, 1);
  OK("cudaMalloc", int(void**, std::size_t), reinterpret_cast<void**>(&data), bytes);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), data, values.data(), bytes, host_to_device);
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  OK("cudaStreamBeginCapture", int(Stream, int), stream, 0);
  launch(data, count, stream);
  launch(data, count, stream);
  OK("cudaStreamEndCapture", int(Stream, Graph*), stream, &graph);
  std::size_t nodes = 0;
  OK("cudaGraphGetNodes", int(Graph, void**, std::size_t*), graph, nullptr, &nodes);
  HOLDS(nodes == 2);
  OK("cudaGraphInstantiateWithFlags", int(GraphExec*, Graph, unsigned long long), &exec, graph, 0);
  OK("cudaGraphLaunch", int(GraphExec, Stream), exec, stream);
  OK("cudaStreamSynchronize", int(Stream), stream);
  OK("cudaMemcpy", int(void*, const void*, std::size_t, int), back.data(), data, bytes, device_to_host);
  HOLDS(back == scaled(scaled(values, 3), 3));
  OK("cudaGraphExecDestroy", int(GraphExec), exec);
  OK("cudaGraphDestroy", int(Graph), graph);
  OK("cudaFree", int(void*), data);
  OK("cudaStreamDestroy", int(Stream), stream);
}

void errors_and_entry_points() {
  void* memory = nullptr;
  HOLDS(ask<int(void**, std::size_t)>("cudaMalloc")(&memory, ~std::size_t{0}) == 2);  // cudaErrorMemoryAllocation
  HOLDS(ask<int()>("cudaGetLastError")() == 2);
  HOLDS(ask<int()>("cudaGetLastError")() == success);
  // The driver's own functions, as the version of this runtime knows them.
  void* entry = nullptr;
  int status = 0;
  OK("cudaGetDriverEntryPoint", int(const char*, void**, unsigned long long, int*), "cuDeviceGetCount", &entry, 0,
     &status);
  int count = 0;
  HOLDS(entry != nullptr && reinterpret_cast<int (*)(int*)>(entry)(&count) == success && count >= 1);
}

void threads() {
  std::thread([] {
    int* data = nullptr;
    OK("cudaMalloc", int(void**, std::size_t), reinterpret_cast<void**>(&data), 400);
    OK("cudaMemset", int(void*, int, std::size_t), data, 0, 400);
    launch(data, 100, nullptr);
    std::vector<int> back(100);
    OK("cudaMemcpy", int(void*, const void*, std::size_t, int), back.data(), data, 400, device_to_host);
    HOLDS(back == scaled(std::vector<int>(100), 3));
    OK("cudaFree", int(void*), data);
  }).join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::printf("usage: runtime LIBCUDART FATBIN\n");
    return 1;
  }
  runtime = ::dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!runtime) {
    std::printf("%s\n", ::dlerror());
    return 1;
  }
  std::ifstream file(argv[2], std::ios::binary);
  static const std::vector<char> container{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  register_code(container);
  devices();
  kernels_and_variables();
  streams_and_events();
  managed_memory();
  graphs();
  errors_and_entry_points();
  threads();
  OK("cudaDeviceReset", int());
  std::printf(failures == 0 ? "PASSED\n" : "FAILED\n");
  return failures == 0 ? 0 : 1;
}
