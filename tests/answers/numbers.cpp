// Numbers that programs read - memory, pools, limits, occupancy, times, processes - after each of a sequence of
// operations, in the form that compare.py reads. Amounts are told as differences from the beginning of the sequence;
// `~N of M%` is a number that may differ by so much.
//
//   numbers [--out FILE]

#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "world.h"

namespace {

using namespace answers;

std::FILE* out = stdout;
constexpr std::size_t mebibyte = 1u << 20;
constexpr auto nvml_delay_max = std::chrono::milliseconds(600);  ///< until NVML tells what was allocated

void begin(const char* sequence) { std::fprintf(out, "numbers of %s\n", sequence); }

/// Of a call that failed, its error takes the number's place.
void tell(const std::string& step, const std::string& quantity, CUresult result, long long value, int percent = 0) {
  const std::string name = step + ": " + quantity;
  if (result != CUDA_SUCCESS) {
    std::fprintf(out, "  error %d | %s\n", result, name.c_str());
  } else if (percent) {
    std::fprintf(out, "  ~%lld of %d%% | %s\n", value, percent, name.c_str());
  } else {
    std::fprintf(out, "  %lld | %s\n", value, name.c_str());
  }
}

// --- memory ---------------------------------------------------------------------------------------------------------

/// What cuMemGetInfo tells, against what it told first.
class Taken {
 public:
  Taken() { MUST(cuMemGetInfo(&free_, &total_)); }
  void after(const std::string& step, int percent = 0) const {
    std::size_t free = 0, total = 0;
    const CUresult result = cuMemGetInfo(&free, &total);
    tell(step, "taken", result, static_cast<long long>(free_) - static_cast<long long>(free), percent);
    tell(step, "change of the total", result, static_cast<long long>(total) - static_cast<long long>(total_));
  }

 private:
  std::size_t free_ = 0, total_ = 0;
};

/// Returns when no other process has taken or returned memory of the device for a while: a server makes the context of
/// its next session while the first calls of this program come.
void wait_for_steady_memory() {
  constexpr auto steady = std::chrono::seconds(1);
  const auto begin = std::chrono::steady_clock::now();
  std::size_t last = 0, total = 0;
  for (auto since = begin;;) {
    std::size_t free = 0;
    MUST(cuMemGetInfo(&free, &total));
    const auto now = std::chrono::steady_clock::now();
    if (free != last) since = now;
    last = free;
    if (now - since >= steady) return;
    if (now - begin >= 30 * steady) throw NoFixture("the device's free memory does not stay the same for a second");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void device_memory() {
  begin("device memory");
  const Taken taken;
  CUdeviceptr large, odd;
  std::vector<CUdeviceptr> small(3);
  MUST(cuMemAlloc(&large, 64 * mebibyte));
  taken.after("64 MiB");
  MUST(cuMemAlloc(&odd, 3 * mebibyte + 1));
  taken.after("64 MiB and 3 MiB and a byte");
  for (CUdeviceptr& each : small) MUST(cuMemAlloc(&each, 512));
  taken.after("and three times 512 bytes");
  MUST(cuMemFree(large));
  taken.after("without the 64 MiB");
  MUST(cuMemFree(odd));
  for (const CUdeviceptr each : small) MUST(cuMemFree(each));
  taken.after("all freed");
  std::size_t pitch;
  MUST(cuMemAllocPitch(&large, &pitch, 1000, 4096, 4));
  tell("a pitch of 1000 bytes", "pitch", CUDA_SUCCESS, static_cast<long long>(pitch));
  taken.after("a pitch of 1000 bytes and 4096 rows");
  MUST(cuMemFree(large));
  taken.after("freed");
}

void virtual_memory() {
  begin("virtual memory");
  const Taken taken;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at;
  const std::size_t bytes = 32 * mebibyte;
  MUST(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  taken.after("reserved");
  MUST(cuMemCreate(&handle, bytes, &prop, 0));
  taken.after("created");
  MUST(cuMemMap(at, bytes, 0, handle, 0));
  MUST(cuMemRelease(handle));
  taken.after("mapped and released");
  MUST(cuMemUnmap(at, bytes));
  MUST(cuMemAddressFree(at, bytes));
  taken.after("unmapped");
}

void host_memory() {
  begin("host memory");
  const Taken taken;
  void* pinned;
  MUST(cuMemHostAlloc(&pinned, 64 * mebibyte, CU_MEMHOSTALLOC_DEVICEMAP));
  taken.after("pinned", 5);
  MUST(cuMemFreeHost(pinned));
  CUdeviceptr managed;
  MUST(cuMemAllocManaged(&managed, 64 * mebibyte, CU_MEM_ATTACH_GLOBAL));
  std::memset(reinterpret_cast<void*>(managed), 1, 4096);
  taken.after("managed, used by the host only", 5);
  MUST(cuMemFree(managed));
  taken.after("freed", 5);
}

void arrays() {
  begin("arrays");
  const Taken taken;
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = d.Height = 2048;
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 1;
  CUarray array;
  MUST(cuArray3DCreate(&array, &d));
  taken.after("16 MiB");
  MUST(cuArrayDestroy(array));
  taken.after("destroyed");
}

// --- pools ----------------------------------------------------------------------------------------------------------

void pool_numbers(const std::string& step, CUmemoryPool pool) {
  const struct {
    CUmemPool_attribute attribute;
    const char* name;
    bool wide;
  } attributes[] = {{CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, "follows events", false},
                    {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, "reuses by chance", false},
                    {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, "reuses by waits", false},
                    {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, "threshold", true},
                    {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, "reserved", true},
                    {CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, "reserved at most", true},
                    {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, "used", true},
                    {CU_MEMPOOL_ATTR_USED_MEM_HIGH, "used at most", true}};
  for (const auto& a : attributes) {
    std::uint64_t value = 0;
    const CUresult result = cuMemPoolGetAttribute(pool, a.attribute, &value);
    tell(step, a.name, result, static_cast<long long>(a.wide ? value : value & 0xffffffff));
  }
}

void pool(const char* name, CUmemoryPool pool) {
  begin(name);
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const Taken taken;
  const auto after = [&](const std::string& step) {
    pool_numbers(step, pool);
    taken.after(step);
  };
  const auto allocate = [&](std::size_t bytes) {
    CUdeviceptr made;
    MUST(cuMemAllocFromPoolAsync(&made, bytes, pool, stream));
    return made;
  };
  after("at first");
  const CUdeviceptr small = allocate(1000);
  after("1000 bytes");
  const CUdeviceptr more = allocate(5 * mebibyte);
  after("and 5 MiB");
  const CUdeviceptr large = allocate(64 * mebibyte);
  after("and 64 MiB");
  MUST(cuMemFreeAsync(large, stream));
  after("64 MiB freed");
  MUST(cuStreamSynchronize(stream));
  after("waited for");
  std::uint64_t all = ~std::uint64_t{0};
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
  const CUdeviceptr again = allocate(64 * mebibyte);
  after("keeping all, 64 MiB again");
  MUST(cuMemFreeAsync(again, stream));
  MUST(cuMemFreeAsync(more, stream));
  MUST(cuMemFreeAsync(small, stream));
  MUST(cuStreamSynchronize(stream));
  after("all freed and waited for");
  std::uint64_t zero = 0;
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
  after("the highest forgotten");
  MUST(cuMemPoolTrimTo(pool, 16 * mebibyte));
  after("trimmed to 16 MiB");
  MUST(cuMemPoolTrimTo(pool, 0));
  after("trimmed to nothing");
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &zero));
  MUST(cuStreamDestroy(stream));
}

void default_pool() {
  CUmemoryPool found;
  MUST(cuDeviceGetDefaultMemPool(&found, 0));
  pool("the default pool", found);
}

void own_pool() {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool made;
  MUST(cuMemPoolCreate(&made, &props));
  pool("a pool", made);
  MUST(cuMemPoolDestroy(made));
}

void graph_memory() {
  begin("memory of graphs");
  const auto after = [&](const std::string& step) {
    const char* const names[] = {"used", "used at most", "reserved", "reserved at most"};
    for (int a = 0; a < 4; ++a) {
      std::uint64_t value = 0;
      const CUresult result = cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(a), &value);
      tell(step, names[a], result, static_cast<long long>(value));
    }
  };
  after("at first");
  World w;
  CUgraph graph;
  MUST(cuGraphCreate(&graph, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUDA_MEM_ALLOC_NODE_PARAMS p{};
  p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.accessDescs = &access;
  p.accessDescCount = 1;
  p.bytesize = 3 * mebibyte;
  CUgraphNode node, end;
  MUST(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &p));
  MUST(cuGraphAddMemFreeNode(&end, graph, &node, 1, p.dptr));
  after("a node");
  CUgraphExec exec;
  MUST(cuGraphInstantiate(&exec, graph, 0));
  after("instantiated");
  MUST(cuGraphLaunch(exec, nullptr));
  MUST(cuCtxSynchronize());
  after("launched");
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  MUST(cuCtxSynchronize());
  after("destroyed");
  MUST(cuDeviceGraphMemTrim(0));
  after("trimmed");
}

// --- limits, occupancy, functions ----------------------------------------------------------------------------------

void limits() {
  begin("limits");
  const auto after = [](const std::string& step) {
    for (int limit = 0; limit < 12; ++limit) {
      std::size_t value = 0;
      const CUresult result = cuCtxGetLimit(&value, static_cast<CUlimit>(limit));
      tell(step, "limit " + std::to_string(limit), result, static_cast<long long>(value));
    }
  };
  after("at first");
  const struct {
    CUlimit limit;
    std::size_t value;
    const char* name;
  } changes[] = {{CU_LIMIT_STACK_SIZE, 2048, "a stack of 2048"},
                 {CU_LIMIT_STACK_SIZE, 2049, "a stack of 2049"},
                 {CU_LIMIT_PRINTF_FIFO_SIZE, 2 * mebibyte + 5, "a fifo of 2 MiB and 5"},
                 {CU_LIMIT_MALLOC_HEAP_SIZE, 16 * mebibyte + 1, "a heap of 16 MiB and a byte"},
                 {CU_LIMIT_MALLOC_HEAP_SIZE, 0, "a heap of nothing"},
                 {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 33, "a granularity of 33"},
                 {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 20, "a persisting cache of 1 MiB"}};
  for (const auto& change : changes) {
    const CUresult result = cuCtxSetLimit(change.limit, change.value);
    tell(change.name, "result", CUDA_SUCCESS, result);
    after(change.name);
  }
}

void occupancy() {
  begin("occupancy");
  World w;
  const CUfunction function = w.get<CUfunction>("function");
  for (const int block : {1, 32, 96, 128, 256, 500, 1024}) {
    for (const std::size_t shared : {0, 1024, 48 * 1024}) {
      int blocks = 0;
      const CUresult result = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, block, shared);
      tell("blocks of " + std::to_string(block) + " with " + std::to_string(shared), "resident", result, blocks);
    }
    for (const int blocks : {1, 2, 8}) {
      std::size_t bytes = 0;
      const CUresult result = cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, blocks, block);
      tell(std::to_string(blocks) + " blocks of " + std::to_string(block), "shared memory left", result,
           static_cast<long long>(bytes));
    }
  }
  for (const int limit : {0, 64, 512}) {
    int grid = 0, block = 0;
    const CUresult result = cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, limit);
    tell("at most " + std::to_string(limit), "grid", result, grid);
    tell("at most " + std::to_string(limit), "block", result, block);
  }
}

void functions() {
  begin("functions");
  World w;
  const CUfunction function = w.get<CUfunction>("function");
  const auto after = [&](const std::string& step) {
    for (int a = 0; a < CU_FUNC_ATTRIBUTE_MAX; ++a) {
      int value = 0;
      const CUresult result = cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(a), function);
      tell(step, "attribute " + std::to_string(a), result, value);
    }
  };
  after("at first");
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 64 * 1024));
  MUST(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  after("with 64 KiB of shared memory and half of the carveout");
}

// --- times ---------------------------------------------------------------------------------------------------------

void times() {
  begin("times");
  World w;
  const CUstream stream = w.get<CUstream>("stream");
  CUevent first, second;
  MUST(cuEventCreate(&first, CU_EVENT_DEFAULT));
  MUST(cuEventCreate(&second, CU_EVENT_DEFAULT));
  MUST(cuEventRecord(first, stream));
  MUST(cuEventRecord(second, stream));
  MUST(cuStreamSynchronize(stream));
  float milliseconds = -1;
  CUresult result = cuEventElapsedTime(&milliseconds, first, second);
  tell("one after the other", "under 2 ms and not negative", result, milliseconds >= 0 && milliseconds < 2);
  MUST(cuEventRecord(first, stream));
  MUST(cuStreamSynchronize(stream));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  MUST(cuEventRecord(second, stream));
  MUST(cuStreamSynchronize(stream));
  result = cuEventElapsedTime(&milliseconds, first, second);
  tell("50 ms of the host between them", "at least 49 ms", result, milliseconds >= 49);
  result = cuEventElapsedTime(&milliseconds, second, first);
  tell("50 ms of the host between them", "the other way round, negative", result, milliseconds <= -49);
  result = cuEventElapsedTime(&milliseconds, first, first);
  tell("the same event", "microseconds", result, static_cast<long long>(milliseconds * 1000));
}

// --- NVML ----------------------------------------------------------------------------------------------------------

class Nvml {
 public:
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  };
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    if (!library_) return;
    const auto init = function<int()>("nvmlInit_v2");
    const auto by_bus = function<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
    char bus[64];
    if (!init || init() || !by_bus || cuDeviceGetPCIBusId(bus, sizeof bus, 0) || by_bus(bus, &device_))
      device_ = nullptr;
  }
  explicit operator bool() const { return device_ != nullptr; }
  int memory(Memory& m) const { return function<int(void*, Memory*)>("nvmlDeviceGetMemoryInfo")(device_, &m); }
  int processes(std::vector<Process>& found) const {
    found.resize(64);
    auto count = static_cast<unsigned>(found.size());
    const int result = function<int(void*, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3")(
        device_, &count, found.data());
    found.resize(result ? 0 : count);
    return result;
  }

 private:
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(::dlsym(library_, name));
  }
  void* library_;
  void* device_ = nullptr;
};

void nvml() {
  const Nvml nvml;
  if (!nvml) return;  // a driver library by itself has none
  std::this_thread::sleep_for(nvml_delay_max);
  begin("NVML");
  Nvml::Memory first{};
  if (nvml.memory(first)) return;
  unsigned long long own_first = 0;
  const auto after = [&](const std::string& step) {
    std::this_thread::sleep_for(nvml_delay_max);
    Nvml::Memory now{};
    const int result = nvml.memory(now);
    tell(step, "used", static_cast<CUresult>(result), static_cast<long long>(now.used - first.used), 10);
    tell(step, "change of the total", static_cast<CUresult>(result), static_cast<long long>(now.total - first.total));
    std::vector<Nvml::Process> found;
    const int listed = nvml.processes(found);
    int own = 0;
    unsigned long long used = 0;
    for (const Nvml::Process& p : found) {
      if (p.pid != static_cast<unsigned>(::getpid())) continue;
      ++own;
      used = p.used;
    }
    if (!own_first) own_first = used;
    tell(step, "entries of this process", static_cast<CUresult>(listed), own);
    tell(step, "used by this process", static_cast<CUresult>(listed), static_cast<long long>(used - own_first), 10);
  };
  after("at first");
  CUdeviceptr made;
  MUST(cuMemAlloc(&made, 512 * mebibyte));
  after("512 MiB");
  MUST(cuMemFree(made));
  after("freed");
  CUstream stream;
  MUST(cuStreamCreate(&stream, 0));
  MUST(cuMemAllocAsync(&made, 512 * mebibyte, stream));
  MUST(cuStreamSynchronize(stream));
  after("512 MiB of a pool");
  MUST(cuMemFreeAsync(made, stream));
  MUST(cuStreamSynchronize(stream));
  after("freed and waited for");
  MUST(cuStreamDestroy(stream));
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && !std::strcmp(arguments[1], "--out")) out = std::fopen(arguments[2], "w");
  else if (count != 1) out = nullptr;
  if (!out) {
    std::fputs("usage: numbers [--out FILE]\n", stderr);
    return 2;
  }
  const struct {
    const char* name;
    void (*run)();
  } sequences[] = {{"device memory", device_memory},
                   {"virtual memory", virtual_memory},
                   {"host memory", host_memory},
                   {"arrays", arrays},
                   {"default pool", default_pool},
                   {"own pool", own_pool},
                   {"graph memory", graph_memory},
                   {"occupancy", occupancy},
                   {"functions", functions},
                   {"times", times},
                   {"nvml", nvml},
                   {"limits", limits}};
  try {
    MUST(cuInit(0));
    MUST(cuCtxSetCurrent(primary_context()));
    // What loading the first image takes is none of the sequences'.
    World w;
    w.get<CUfunction>("function");
    w.get<CUdeviceptr>("memory");
    wait_for_steady_memory();
  } catch (const NoFixture& missing) {
    std::fprintf(stderr, "numbers: cannot begin: %s\n", missing.what());
    return 1;
  }
  for (const auto& sequence : sequences) {
    try {
      sequence.run();
    } catch (const NoFixture& missing) {
      std::fprintf(out, "  stops | %s\n", missing.what());
    }
  }
  return 0;
}
