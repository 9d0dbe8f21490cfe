// What the fake driver does, where it does anything. See fake.h.

#include <cuda.h>
#include <cudaProfiler.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <unordered_map>

#include "fake.h"
#include "graphs.h"
#include "objects.h"
#include "protocol/limits.h"
#include "recorder.h"

namespace fargpu::fake {
namespace {

struct Memory {
  std::vector<std::byte> bytes;
  int device = 0;
  unsigned holds = 1;  // handles
  unsigned mappings = 0;
};

struct Mapping {
  std::uint64_t bytes = 0;
  std::shared_ptr<Memory> memory;
  std::uint64_t offset = 0;
};

struct Kernel {
  std::string name;
  std::vector<std::pair<std::size_t, std::size_t>> parameters;  // offset, bytes
  std::map<int, int> attributes;
  unsigned resets = 0;  ///< of primary contexts, when they were set
  struct Module* module = nullptr;
};

struct Module {
  std::vector<std::unique_ptr<Kernel>> kernels;
  bool none = false;    // a library of what is no image
  bool binary = false;  // not a text: it is taken to have every kernel that is asked for, without parameters
};

struct Context {
  int device = 0;
  bool primary = false;
  unsigned retained = 0;
  unsigned flags = 0;
  unsigned long long number = 0;
  CUresult failure = CUDA_SUCCESS;
  std::map<int, std::size_t> limits;
};

/// A green context: what a CUgreenCtx points to, and the context it converts to.
struct GreenContext {
  Context context;
  unsigned first = 0, processors = 0;
};

/// What a description points to: processors of a device.
struct Processors {
  unsigned first = 0, count = 0;
};

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  Graph* capture = nullptr;
  std::map<int, CUlaunchAttributeValue> attributes;
};

struct Event {
  std::uint64_t recorded_at = 0;  // in the count of pauses: complete when the GPU has run since
  bool captured = false;
};

struct State {
  std::recursive_mutex mutex;
  std::map<std::string, std::size_t> counts;
  std::map<std::string, std::vector<std::uint64_t>> last;
  std::map<std::string, std::deque<CUresult>> scripts;
  std::set<std::string> held;
  std::size_t calls_since = 0, failing_call = 0;
  CUresult failing_result = CUDA_SUCCESS;
  const char* failed_call = "";
  std::vector<Launch> launches;
  bool paused = false;
  bool hung = false;        // paused for ever
  std::uint64_t round = 1;  // grows with each pause; an event recorded in this round waits while paused

  std::array<Context, limits::devices_max> primary;
  int devices = 2;
  std::vector<int> visible;  // which they are, if not all
  int seen(int device) const { return visible.empty() ? device : visible[static_cast<std::size_t>(device)]; }
  std::uint64_t memory_limit_bytes = 1ull << 30;
  std::uint64_t memory_used_bytes = 0;
  std::map<std::uint64_t, std::uint64_t> reserved;
  std::set<std::uint64_t> anywhere;  // of these, where the driver chose the place
  std::map<std::uint64_t, Mapping> mappings;
  std::map<CUmemGenericAllocationHandle, std::shared_ptr<Memory>> handles;
  std::uint64_t next_handle = 0x1000;
  std::vector<std::weak_ptr<Memory>> exported;
  bool leaves = false;
  std::multimap<std::size_t, std::vector<std::byte>> left;  // by size
  std::map<std::uint64_t, std::uint64_t> host;              // pinned or registered memory, reached by its own address
  std::map<void*, Context*> pinned;                         // pinned memory, with its context
  std::set<void*> unpinned;                                 // which went with that: nothing is copied there
  std::map<std::uint64_t, std::size_t> globals;
  Objects objects;
  std::vector<std::unique_ptr<Context>> destroyed;  // which may be another thread's current one
  std::vector<std::unique_ptr<GreenContext>> destroyed_green;
  unsigned long long next_number = 1;
  unsigned resets = 0;  // of primary contexts
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

thread_local Context* current = nullptr;

Stream* stream_of(CUstream stream) {
  static Stream legacy;
  return stream == nullptr || stream == CU_STREAM_LEGACY ? &legacy : live<Stream>(stream);
}

template <class T>
void read_parameter(const std::vector<std::byte>& block, std::size_t offset, T& value) {
  std::memcpy(&value, block.data() + offset, sizeof(value));
}

}  // namespace

// --- what graphs.cpp uses too ---------------------------------------------------------------------------------------

Graph** capture_of(CUstream stream) {
  Stream* const s = stream_of(stream);
  return s ? &s->capture : nullptr;
}

const std::vector<std::pair<std::size_t, std::size_t>>& parameters_of(CUfunction function) {
  return live<Kernel>(function)->parameters;
}

void run_launch(const Launch& launch) {
  state().launches.push_back(launch);
  if (launch.kernel == "crash" && current) current->failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  if (launch.kernel == "hang") {
    state().hung = state().paused = true;
    ++state().round;
  }
  if (launch.kernel == "fill32") {
    std::uint64_t address;
    std::uint32_t count, value;
    read_parameter(launch.parameters, 0, address);
    read_parameter(launch.parameters, 8, count);
    read_parameter(launch.parameters, 12, value);
    if (std::byte* const to = translate(address, std::uint64_t{count} * 4)) {
      for (std::uint32_t i = 0; i < count; ++i) copy_bytes(to + 4 * i, reinterpret_cast<const std::byte*>(&value), 4);
    } else if (current) {
      current->failure = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
  }
}

CUresult make_launch(CUfunction f, const unsigned* grid, const unsigned* block, unsigned shared_bytes, void** params,
                     Launch& launch) {
  const Kernel* const kernel = live<Kernel>(f);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (block[0] * block[1] * block[2] > 1024 || block[0] == 0) return CUDA_ERROR_INVALID_VALUE;
  if (shared_bytes > 227 * 1024) return CUDA_ERROR_INVALID_VALUE;
  launch = {};
  launch.kernel = kernel->name;
  std::memcpy(launch.grid, grid, sizeof(launch.grid));
  std::memcpy(launch.block, block, sizeof(launch.block));
  launch.shared_bytes = shared_bytes;
  for (std::size_t i = 0; i < kernel->parameters.size(); ++i) {
    const auto [offset, bytes] = kernel->parameters[i];
    launch.parameters.resize(std::max(launch.parameters.size(), offset + bytes));
    std::memcpy(launch.parameters.data() + offset, params[i], bytes);
  }
  return CUDA_SUCCESS;
}

CUresult run_memset(const CUDA_MEMSET_NODE_PARAMS_v2& p) {
  for (std::size_t y = 0; y < p.height; ++y) {
    std::byte* const row = translate(p.dst + y * p.pitch, p.width * p.elementSize);
    if (!row) return CUDA_ERROR_INVALID_VALUE;
    // What is filled is copied on: element by element would take most of the time of the fuzzers.
    const std::size_t bytes = p.width * p.elementSize;
    std::memcpy(row, &p.value, std::min<std::size_t>(bytes, p.elementSize));
    for (std::size_t done = p.elementSize; done < bytes;) {
      const std::size_t more = std::min({done, bytes - done, std::size_t{1} << 15});
      std::memcpy(row + done, row, more);
      done += more;
    }
  }
  return CUDA_SUCCESS;
}

CUresult record_event(CUevent event) {
  Event* const e = live<Event>(event);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  e->recorded_at = state().round;
  e->captured = false;
  return CUDA_SUCCESS;
}

namespace {

// Does a memset, or makes it a node of the graph into which the stream is captured.
CUresult fill(CUdeviceptr to, std::size_t pitch, unsigned value, unsigned element_bytes, std::size_t width,
              std::size_t height, CUstream stream) {
  const Lock lock(state().mutex);
  const CUDA_MEMSET_NODE_PARAMS_v2 memset{to, pitch, value, element_bytes, width, height, nullptr};
  Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_MEMSET);
  if (!node) return run_memset(memset);
  node->memset = memset;
  return CUDA_SUCCESS;
}

CUresult launch_kernel(CUfunction f, const unsigned* grid, const unsigned* block, unsigned shared, CUstream stream,
                       void** params, unsigned attributes) {
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  if (!live<Kernel>(f) || !stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  Launch launch;
  if (const CUresult bad = make_launch(f, grid, block, shared, params, launch); bad != CUDA_SUCCESS) return bad;
  launch.stream = reinterpret_cast<std::uint64_t>(stream);
  launch.attributes = attributes;
  launch.thread = std::hash<std::thread::id>{}(std::this_thread::get_id());
  if (Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_KERNEL)) {
    node->function = f;
    node->launch = launch;
  } else {
    run_launch(launch);
  }
  return CUDA_SUCCESS;
}

// ".entry name(.param .u64 a, .param .u32 b) { .local .b8 pool[64]; }" of a PTX text.
std::unique_ptr<Module> parse(const char* text) {
  auto module = std::make_unique<Module>();
  for (const char* at = text; (at = std::strstr(at, ".entry ")) != nullptr;) {
    at += 7;
    auto kernel = std::make_unique<Kernel>();
    while (*at && *at != '(' && !std::isspace(static_cast<unsigned char>(*at))) kernel->name += *at++;
    while (*at && *at != '(') ++at;
    std::size_t offset = 0;
    while (*at && *at != ')') {
      unsigned bits = 0;
      if (std::sscanf(at, ".param .u%u", &bits) == 1 || std::sscanf(at, ".param .f%u", &bits) == 1) {
        const std::size_t bytes = bits / 8;
        offset = (offset + bytes - 1) / bytes * bytes;
        kernel->parameters.emplace_back(offset, bytes);
        offset += bytes;
      }
      ++at;
    }
    int local_bytes = 0;
    const char* const local = std::strstr(at, ".local .b8 ");
    const char* const next = std::strstr(at, ".entry ");
    if (local && (!next || local < next) && std::sscanf(local, ".local .b8 %*[^[][%d]", &local_bytes) == 1)
      kernel->attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = local_bytes;
    kernel->module = module.get();
    module->kernels.push_back(std::move(kernel));
  }
  return module;
}

std::string text_of(const void* image) {
  struct Wrapper {
    std::uint32_t magic, version;
    const void* container;
    const void* const* more;
  };
  std::uint32_t magic;
  std::memcpy(&magic, image, sizeof(magic));
  if (magic == 0x466243B1) {
    const auto& wrapper = *static_cast<const Wrapper*>(image);
    if (wrapper.version == 1) return text_of(wrapper.container);
    std::string linked;
    for (const void* const* part = wrapper.more; *part; ++part) linked += text_of(*part);
    return linked;
  }
  // A container holds, for the fake driver, a PTX text right behind its header.
  if (magic == 0xBA55ED50) return static_cast<const char*>(image) + 16;
  return static_cast<const char*>(image);
}

CUresult load(const void* image, Module*& out) {
  const std::string text = text_of(image);
  if (text.empty()) return CUDA_ERROR_INVALID_IMAGE;
  const bool binary = !text.starts_with(".version");
  if (binary) {
    out = make<Module>();
    out->binary = true;
    return CUDA_SUCCESS;
  }
  if (text.find("syntax error") != std::string::npos) return CUDA_ERROR_INVALID_PTX;
  auto module = parse(text.c_str());
  for (const auto& kernel : module->kernels) enlist(kernel.get());
  out = module.release();
  enlist(out);
  return CUDA_SUCCESS;
}

CUresult unload(const void* handle) {
  Module* const module = live<Module>(handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& kernel : module->kernels) state().objects.erase(kernel.get());
  for (const ManagedVariable& variable : managed_variables) state().mappings.erase(variable.address);
  return destroy<Module>(handle);
}

Kernel* find_kernel(const void* handle, const char* name) {
  Module* const module = live<Module>(handle);
  if (!module) return nullptr;
  for (const auto& kernel : module->kernels)
    if (kernel->name == name) return kernel.get();
  if (!module->binary) return nullptr;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  kernel->module = module;
  enlist(kernel.get());
  module->kernels.push_back(std::move(kernel));
  return module->kernels.back().get();
}

// --- controls -------------------------------------------------------------------------------------------------------

const Controls controls{
    .reset =
        [] {
          const Lock lock(state().mutex);
          state().counts.clear();
          state().last.clear();
          state().scripts.clear();
          state().held.clear();
          state().launches.clear();
          state().paused = false;
          for (const ManagedVariable& variable : managed_variables) state().mappings.erase(variable.address);
        },
    .calls =
        [](const char* name) {
          const Lock lock(state().mutex);
          return state().counts[name];
        },
    .last_arguments =
        [](const char* name) {
          const Lock lock(state().mutex);
          return state().last[name];
        },
    .script =
        [](const char* name, CUresult result, int times) {
          const Lock lock(state().mutex);
          for (int i = 0; i < times; ++i) state().scripts[name].push_back(result);
        },
    .hold =
        [](const char* name, bool held) {
          const Lock lock(state().mutex);
          if (held) state().held.insert(name);
          else state().held.erase(name);
        },
    .pause =
        [](bool paused) {
          const Lock lock(state().mutex);
          state().paused = paused;
          if (paused) ++state().round;
        },
    .launches =
        [] {
          const Lock lock(state().mutex);
          return state().launches;
        },
    .leave =
        [](bool leave) {
          const Lock lock(state().mutex);
          state().leaves = leave;
          if (!leave) state().left.clear();
        },
    .memory_bytes =
        [] {
          const Lock lock(state().mutex);
          return state().memory_used_bytes;
        },
    .objects =
        [] {
          const Lock lock(state().mutex);
          return state().objects.size();
        },
};

}  // namespace

// --- shared with the other parts ------------------------------------------------------------------------------------

std::recursive_mutex& mutex() { return state().mutex; }
Objects& objects() { return state().objects; }
CUcontext current_context() { return reinterpret_cast<CUcontext>(current); }

CUresult usable() {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  return current->failure;
}

std::byte what_was_left() { return state().leaves ? left_behind : std::byte{0}; }

bool take_memory(std::uint64_t bytes) {
  State& s = state();
  if (bytes > s.memory_limit_bytes - s.memory_used_bytes) return false;
  s.memory_used_bytes += bytes;
  return true;
}
void give_memory(std::uint64_t bytes) { state().memory_used_bytes -= bytes; }

std::byte* translate(std::uint64_t address, std::uint64_t bytes) {
  State& s = state();
  if (auto it = s.mappings.upper_bound(address); it != s.mappings.begin()) {
    const auto& [base, mapping] = *std::prev(it);
    if (address - base < mapping.bytes && bytes <= mapping.bytes - (address - base))
      return mapping.memory->bytes.data() + mapping.offset + (address - base);
  }
  for (const auto* ranges : {&s.host, &s.globals}) {
    auto it = ranges->upper_bound(address);
    if (it == ranges->begin()) continue;
    --it;
    if (address - it->first < it->second && bytes <= it->second - (address - it->first))
      return reinterpret_cast<std::byte*>(address);
  }
  return nullptr;
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  if (std::less()(from, to) && to < from + bytes)
    return void(std::memmove(to, from, bytes));  // which one forwards would overwrite
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  std::memmove(to, from, bytes);
#endif
}

std::shared_ptr<void> keep_memory(CUmemGenericAllocationHandle handle) {
  const auto found = state().handles.find(handle);
  return found == state().handles.end() ? nullptr : found->second;
}
bool stream_lives(CUstream stream) { return stream_of(stream) != nullptr; }

// Of a library that strikes processes at a call (tests/system/programs/strike.cpp), where that is loaded.
extern "C" void fargpu_test_driver_call() __attribute__((weak));

bool held(const char* name) {
  const Lock lock(state().mutex);
  return state().held.contains(name);
}

void Recorded::enter(const char* name, std::vector<std::uint64_t> arguments) {
  if (fargpu_test_driver_call) fargpu_test_driver_call();
  while (held(name)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  State& s = state();
  const Lock lock(s.mutex);
  ++s.counts[name];
  s.last[name] = std::move(arguments);
  if (++s.calls_since == s.failing_call) {
    scripted_ = true;
    result_ = s.failing_result;
    s.failed_call = name;
    return;
  }
  auto& script = s.scripts[name];
  if (script.empty()) return;
  scripted_ = true;
  result_ = script.front();
  script.pop_front();
}

extern "C" __attribute__((visibility("default"))) const Controls* fargpu_fake_controls() { return &controls; }
extern "C" __attribute__((visibility("default"))) void fargpu_fake_fail_call(std::size_t nth, CUresult result) {
  const Lock lock(state().mutex);
  state().calls_since = 0;
  state().failing_call = nth;
  state().failing_result = result;
  state().failed_call = "";
}
extern "C" __attribute__((visibility("default"))) const char* fargpu_fake_failed_call() {
  const Lock lock(state().mutex);
  return state().failed_call;
}
extern "C" __attribute__((visibility("default"))) std::size_t fargpu_fake_calls_since() {
  const Lock lock(state().mutex);
  return state().calls_since;
}

// --- the driver -----------------------------------------------------------------------------------------------------

// One more hold on memory: by the handle that it has, or by a new one. Under the lock.
CUresult hold(const std::shared_ptr<Memory>& memory, CUmemGenericAllocationHandle* handle) {
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [known, held] : state().handles) {
    if (held != memory) continue;
    ++memory->holds;
    *handle = known;
    return CUDA_SUCCESS;
  }
  *handle = state().next_handle++;
  memory->holds = 1;
  state().handles[*handle] = memory;
  return CUDA_SUCCESS;
}

namespace behaviour {

CUresult cuInit(unsigned) {
  State& s = state();
  if (const char* devices = std::getenv("FARGPU_FAKE_DEVICES"))
    s.devices = std::min(std::atoi(devices), static_cast<int>(s.primary.size()));
  if (std::getenv("FARGPU_FAKE_LEFT_BEHIND")) s.leaves = true;  // new memory is not zero
  if (const char* list =
          std::getenv("CUDA_VISIBLE_DEVICES")) {  // up to the first that there is not, as the driver does
    s.visible.clear();
    std::istringstream numbers(list);
    for (std::string number; std::getline(numbers, number, ',') && std::atoi(number.c_str()) < s.devices;)
      s.visible.push_back(std::atoi(number.c_str()));
    s.devices = static_cast<int>(s.visible.size());
  }
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  const char* const wanted = std::getenv("FARGPU_FAKE_VERSION");
  *version = wanted ? std::atoi(wanted) : 13000;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "fake out of memory" : "fake error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = state().devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", state().seen(device));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 0xA0, sizeof(uuid->bytes));
  uuid->bytes[15] = static_cast<char>(state().seen(device));
  // Hosts of one test have devices of their own.
  if (const char* host = std::getenv("FARGPU_FAKE_HOST")) uuid->bytes[14] = static_cast<char>(std::atoi(host));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  *bytes = state().memory_limit_bytes;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetHostAtomicCapabilities(unsigned* capabilities, const CUatomicOperation*, unsigned count, CUdevice) {
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::fill_n(capabilities, count, CU_ATOMIC_CAPABILITY_UNSIGNED);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7FFFFFFF; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = state().seen(device) + 1; break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
      *value = std::getenv("FARGPU_FAKE_FIRST_MEMORY_OPERATIONS") != nullptr;
      break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *value = 1; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

// Contexts.
CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  const Lock lock(state().mutex);
  if (device < 0 || device >= state().devices) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = state().primary[device];
  context.device = device;
  context.primary = true;
  if (context.retained++ == 0) context.number = state().next_number++;
  *out = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}
void wait_for_gpu() {
  while (state().hung) ::pause();
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  wait_for_gpu();
  const Lock lock(state().mutex);
  state().primary[device].retained = 0;
  state().primary[device].failure = CUDA_SUCCESS;
  ++state().resets;
  drop_textures(reinterpret_cast<CUcontext>(&state().primary[device]));
  drop_arrays(reinterpret_cast<CUcontext>(&state().primary[device]));
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const Lock lock(state().mutex);
  Context& context = state().primary[device];
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  return --context.retained == 0 ? cuDevicePrimaryCtxReset_v2(device) : CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  state().primary[device].flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned flags, CUdevice device) {
  const Lock lock(state().mutex);
  Context* const context = make<Context>();
  context->device = device;
  context->flags = flags;
  context->number = state().next_number++;
  current = context;
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}
// Memory that is pinned goes with the context that was current when it was made.
void drop_pinned(const Context* context) {
  std::erase_if(state().pinned, [&](const auto& one) {
    if (one.second != context) return false;
    state().host.erase(reinterpret_cast<std::uint64_t>(one.first));
    state().unpinned.insert(one.first);
    return true;
  });
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  wait_for_gpu();
  const Lock lock(state().mutex);
  if (current == reinterpret_cast<Context*>(context)) current = nullptr;
  Context* const gone = live<Context>(context);
  if (!gone) return CUDA_ERROR_INVALID_CONTEXT;
  drop_textures(context);
  drop_arrays(context);
  drop_pinned(gone);
  gone->failure = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  objects().erase(gone);
  state().destroyed.emplace_back(gone);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  current = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  *id = (context ? reinterpret_cast<Context*>(context) : current)->number;
  return CUDA_SUCCESS;
}

// Green contexts: of 20 processors, in groups of eight. In a resource's bytes lies what only the driver knows, and must
// find again.
namespace {

constexpr unsigned processors_all = 20, part_min = 8;
struct Inside {
  char mark[8];
  unsigned first;
  unsigned count;
};

CUdevResource resource_of(unsigned first, unsigned count) {
  CUdevResource resource{};
  if (count == 0) return resource;
  const Inside inside{"fakegpu", first, count};
  std::memcpy(resource._internal_padding + 16, &inside, sizeof(inside));
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm = {count, part_min, part_min};
  return resource;
}

bool read_resource(const CUdevResource& resource, Inside& inside) {
  std::memcpy(&inside, resource._internal_padding + 16, sizeof(inside));
  return std::memcmp(inside.mark, "fakegpu", 8) == 0 && inside.count == resource.sm.smCount;
}

}  // namespace

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (device < 0 || device >= state().devices) return CUDA_ERROR_INVALID_DEVICE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(0, processors_all);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  return context ? behaviour::cuDeviceGetDevResource(0, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource, CUdevResourceType type) {
  const Lock lock(state().mutex);
  const GreenContext* const green = live<GreenContext>(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(green->first, green->processors);
  return CUDA_SUCCESS;
}
CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count, const CUdevResource* resource,
                                     CUdevResource* rest, unsigned flags, unsigned smallest) {
  Inside inside;
  if (flags != 0 || !read_resource(*resource, inside) || smallest > inside.count) return CUDA_ERROR_INVALID_VALUE;
  const unsigned part = (std::max(smallest, part_min) + part_min - 1) / part_min * part_min;
  const unsigned possible = inside.count / part;
  *count = groups ? std::min(*count, possible) : possible;
  for (unsigned i = 0; groups && i < *count; ++i) groups[i] = resource_of(inside.first + i * part, part);
  if (rest) *rest = resource_of(inside.first + *count * part, inside.count - *count * part);
  return CUDA_SUCCESS;
}
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  const Lock lock(state().mutex);
  Processors all;
  for (unsigned i = 0; i < count; ++i) {
    Inside inside;
    if (!read_resource(resources[i], inside)) return CUDA_ERROR_INVALID_VALUE;
    if (i == 0) all.first = inside.first;
    all.count += inside.count;
  }
  Processors* const made = make<Processors>();
  *made = all;
  *description = reinterpret_cast<CUdevResourceDesc>(made);
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc description, CUdevice device, unsigned flags) {
  const Lock lock(state().mutex);
  const Processors* const processors = live<Processors>(description);
  if (!processors || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  GreenContext* const green = make<GreenContext>();
  green->context.device = device;
  green->context.number = state().next_number++;
  green->first = processors->first;
  green->processors = processors->count;
  *out = reinterpret_cast<CUgreenCtx>(green);
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  wait_for_gpu();
  const Lock lock(state().mutex);
  GreenContext* const green = live<GreenContext>(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (current == &green->context) current = nullptr;
  green->context.failure = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  objects().erase(green);
  state().destroyed_green.emplace_back(green);
  return CUDA_SUCCESS;
}
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  const Lock lock(state().mutex);
  GreenContext* const green = live<GreenContext>(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(&green->context);
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  const Lock lock(state().mutex);
  const GreenContext* const green = live<GreenContext>(handle);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  *id = green->context.number;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
  if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  affinity->type = type;
  affinity->param.smCount.val = processors_all;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetFlags(unsigned flags) {
  current->flags = flags;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  *value = current->limits.contains(limit) ? current->limits[limit] : 1024;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
  current->limits[limit] = value;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  thread_local CUstreamCaptureMode mine = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(mine, *mode);
  return CUDA_SUCCESS;
}

// Memory.
CUresult cuMemAddressReserve(CUdeviceptr* out, std::size_t bytes, std::size_t, CUdeviceptr wish, unsigned long long) {
  const Lock lock(state().mutex);
  if (wish == 0) {  // anywhere; nobody but this driver may touch it
    void* const place = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    wish = reinterpret_cast<CUdeviceptr>(place);
    state().anywhere.insert(wish);
  }
  state().reserved[wish] = bytes;
  *out = wish;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const Lock lock(state().mutex);
  if (state().anywhere.erase(address)) ::munmap(reinterpret_cast<void*>(address), bytes);
  state().reserved.erase(address);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long) {
  State& s = state();
  const Lock lock(s.mutex);
  if (!take_memory(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = std::shared_ptr<Memory>(new Memory, [bytes](Memory* m) {
    give_memory(bytes);
    if (state().leaves) state().left.emplace(bytes, std::move(m->bytes));
    delete m;
  });
  if (const auto left = s.left.find(bytes); left != s.left.end()) {
    memory->bytes = std::move(left->second);
    s.left.erase(left);
  } else {
    memory->bytes.resize(bytes, what_was_left());
  }
  memory->device = prop->location.id;
  *handle = s.next_handle++;
  s.handles[*handle] = std::move(memory);
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Lock lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second->holds == 0) state().handles.erase(found);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  const Lock lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  state().mappings[address] = {bytes, found->second, offset};
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, std::size_t) {
  const Lock lock(state().mutex);
  return state().mappings.erase(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) { return CUDA_SUCCESS; }
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*, CUdeviceptr) {
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = 2u << 20;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  const Lock lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, found->second->device};
  return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const Lock lock(state().mutex);
  const auto mapping = state().mappings.find(reinterpret_cast<std::uint64_t>(address));
  if (mapping == state().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  return hold(mapping->second.memory, handle);
}
// What is exported goes by a file with a number in it, which means something in this process only.
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                                      unsigned long long) {
  const Lock lock(state().mutex);
  const auto found = state().handles.find(handle);
  if (found == state().handles.end()) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t number = state().exported.size();
  state().exported.push_back(found->second);
  const int file = ::memfd_create("fake-memory", MFD_CLOEXEC);
  if (file < 0 || ::write(file, &number, sizeof(number)) != sizeof(number)) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &file, sizeof(file));
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* file, CUmemAllocationHandleType) {
  const Lock lock(state().mutex);
  std::uint64_t number = 0;
  if (::pread(static_cast<int>(reinterpret_cast<std::intptr_t>(file)), &number, sizeof(number), 0) != sizeof(number) ||
      number >= state().exported.size())
    return CUDA_ERROR_INVALID_VALUE;
  return hold(state().exported[number].lock(), handle);
}
// The event of another process is one of its own here.
CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  *handle = {};
  std::memcpy(handle->reserved, &event, sizeof(event));
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent*, unsigned);
CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  CUevent original{};
  std::memcpy(&original, handle.reserved, sizeof(original));
  return original ? behaviour::cuEventCreate(event, CU_EVENT_DISABLE_TIMING) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const Lock lock(state().mutex);
  *total = state().memory_limit_bytes;
  *free = state().memory_limit_bytes - state().memory_used_bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** out, std::size_t bytes, unsigned) {
  const Lock lock(state().mutex);
  *out = std::calloc(1, bytes);
  if (state().leaves) std::memset(*out, std::to_integer<int>(what_was_left()), bytes);
  state().host[reinterpret_cast<std::uint64_t>(*out)] = bytes;
  state().pinned[*out] = current;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* memory) {
  const Lock lock(state().mutex);
  if (!state().host.erase(reinterpret_cast<std::uint64_t>(memory))) return CUDA_ERROR_INVALID_VALUE;
  state().pinned.erase(memory);
  std::free(memory);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
  const Lock lock(state().mutex);
  state().host[reinterpret_cast<std::uint64_t>(memory)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* memory) {
  const Lock lock(state().mutex);
  return state().host.erase(reinterpret_cast<std::uint64_t>(memory)) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

// Copies and memsets.
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  const Lock lock(state().mutex);
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  std::byte* const target = translate(to, bytes);
  if (!target || !stream_of(stream)) return CUDA_ERROR_INVALID_VALUE;
  copy_bytes(target, static_cast<const std::byte*>(from), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const Lock lock(state().mutex);
  if (const CUresult bad = usable(); bad != CUDA_SUCCESS) return bad;
  const std::byte* const source = translate(from, bytes);
  if (!source || !stream_of(stream) || state().unpinned.contains(to)) return CUDA_ERROR_INVALID_VALUE;
  copy_bytes(static_cast<std::byte*>(to), source, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const Lock lock(state().mutex);
  if (!translate(to, bytes) || !translate(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.srcPitch = copy.dstPitch = bytes;
  return copy_or_capture(copy, stream);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t n, CUstream stream) {
  return fill(to, 0, value, 1, n, 1, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t n, CUstream stream) {
  return fill(to, 0, value, 2, n, 1, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t n, CUstream stream) {
  return fill(to, 0, value, 4, n, 1, stream);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                           std::size_t height, CUstream stream) {
  return fill(to, pitch, value, 1, width, height, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                            std::size_t height, CUstream stream) {
  return fill(to, pitch, value, 2, width, height, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width, std::size_t height,
                            CUstream stream) {
  return fill(to, pitch, value, 4, width, height, stream);
}

// Streams and events.
CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  const Lock lock(state().mutex);
  Stream* const stream = make<Stream>();
  stream->context = current;
  stream->flags = flags;
  *out = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  const CUresult result = behaviour::cuStreamCreate(out, flags);
  reinterpret_cast<Stream*>(*out)->attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = priority;
  return result;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  const Lock lock(state().mutex);
  return destroy<Stream>(stream);
}
CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  *flags = stream_of(stream)->flags;
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream) {
  const Lock lock(state().mutex);
  if (current && current->failure != CUDA_SUCCESS) return current->failure;
  return state().paused ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
// Work is done when it is given; what pausing holds back is only the news of it.
CUresult cuStreamSynchronize(CUstream) {
  const Lock lock(state().mutex);
  return current ? current->failure : CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  const Lock lock(state().mutex);
  if (flags & CU_EVENT_WAIT_EXTERNAL) {
    if (Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT)) node->event = event;
  }
  Stream* const s = stream_of(stream);
  return s && live<Event>(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  const Lock lock(state().mutex);
  if (!stream_of(to) || !stream_of(from)) return CUDA_ERROR_INVALID_HANDLE;
  stream_of(to)->attributes = stream_of(from)->attributes;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value) {
  const Lock lock(state().mutex);
  if (!stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return CUDA_ERROR_INVALID_VALUE;  // none of a stream
  *value = stream_of(stream)->attributes[id];
  return CUDA_SUCCESS;
}
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue* value) {
  const Lock lock(state().mutex);
  if (!stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream)->attributes[id] = *value;
  return CUDA_SUCCESS;
}
// Writes happen at once, and what is waited for is taken to be there.
// What is compressed here is itself.
CUresult cuMemBatchDecompressAsync(CUmemDecompressParams* list, std::size_t count, unsigned flags, std::size_t* failed,
                                   CUstream stream) {
  const Lock lock(state().mutex);
  *failed = ~std::size_t{0};
  if (!stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto at = [](const void* address, std::size_t bytes) {
    return translate(reinterpret_cast<std::uint64_t>(address), bytes);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const from = at(list[i].src, list[i].srcNumBytes);
    std::byte* const to = at(list[i].dst, list[i].srcNumBytes);
    std::byte* const written = at(list[i].dstActBytes, 4);
    if (!from || !to || !written || list[i].algo != CU_MEM_DECOMPRESS_ALGORITHM_SNAPPY) {
      *failed = i;
      return CUDA_ERROR_INVALID_VALUE;
    }
    copy_bytes(to, from, list[i].srcNumBytes);
    const auto bytes = static_cast<cuuint32_t>(list[i].srcNumBytes);
    std::memcpy(written, &bytes, sizeof(bytes));
  }
  return CUDA_SUCCESS;
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  const Lock lock(state().mutex);
  if (!stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP))
    node->operations.assign(operations, operations + count);
  else run_memory_operations({operations, operations + count});
  return CUDA_SUCCESS;
}
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  const Lock lock(state().mutex);
  return context ? record_event(event) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
  const Lock lock(state().mutex);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  return live<Event>(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventCreate(CUevent* out, unsigned) {
  const Lock lock(state().mutex);
  *out = reinterpret_cast<CUevent>(make<Event>());
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  const Lock lock(state().mutex);
  return destroy<Event>(event);
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const Lock lock(state().mutex);
  Event* const e = live<Event>(event);
  if (!e || !stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  e->recorded_at = state().round;
  e->captured = stream_of(stream)->capture != nullptr;
  return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  const Lock lock(state().mutex);
  if (!(flags & CU_EVENT_RECORD_EXTERNAL)) return behaviour::cuEventRecord(event, stream);
  Node* const node = capture_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  if (node) node->event = event;
  return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuEventQuery(CUevent event) {
  const Lock lock(state().mutex);
  const Event* const e = live<Event>(event);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (current && current->failure != CUDA_SUCCESS) return current->failure;
  if (e->captured) {
    break_captures();
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return state().paused && e->recorded_at == state().round ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult cuEventElapsedTime_v2(float* ms, CUevent begin, CUevent end) {
  const Lock lock(state().mutex);
  const Event* const events[] = {live<Event>(begin), live<Event>(end)};
  for (const Event* const event : events) {
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (state().paused && event->recorded_at == state().round) return CUDA_ERROR_NOT_READY;
  }
  *ms = 1.5F;
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
  return behaviour::cuEventElapsedTime_v2(ms, begin, end);
}

// Modules and libraries.
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned count, CUjit_option* options, void** values) {
  const Lock lock(state().mutex);
  Module* module = nullptr;
  const CUresult result = load(image, module);
  const std::string_view words = result == CUDA_ERROR_INVALID_PTX ? "line 1: syntax error" : "";
  char* log = nullptr;
  void** size = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER && !values[i]) return CUDA_ERROR_INVALID_VALUE;
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = static_cast<char*>(values[i]);
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = &values[i];
    if (options[i] == CU_JIT_THREADS_PER_BLOCK)  // whole warps
      values[i] = reinterpret_cast<void*>((reinterpret_cast<std::size_t>(values[i]) + 31) / 32 * 32);
  }
  if (log && size) {
    const std::size_t written = std::min(reinterpret_cast<std::size_t>(*size), words.size());
    std::memcpy(log, words.data(), written);
    *size = reinterpret_cast<void*>(written);
  }
  *out = reinterpret_cast<CUmodule>(module);
  return result;
}
CUresult cuModuleUnload(CUmodule module) {
  const Lock lock(state().mutex);
  return unload(module);
}
CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  const Lock lock(state().mutex);
  Kernel* const kernel = find_kernel(module, name);
  *out = reinterpret_cast<CUfunction>(kernel);
  return kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  *count = static_cast<unsigned>(live<Module>(module)->kernels.size());
  return CUDA_SUCCESS;
}
CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned count, CUmodule module) {
  for (unsigned i = 0; i < count; ++i) out[i] = reinterpret_cast<CUfunction>(live<Module>(module)->kernels[i].get());
  return CUDA_SUCCESS;
}
CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  *module = reinterpret_cast<CUmodule>(live<Kernel>(function)->module);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  *library = reinterpret_cast<CUlibrary>(live<Kernel>(kernel)->module);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetManaged(CUdeviceptr* address, std::size_t* bytes, CUlibrary, const char* name) {
  const Lock lock(state().mutex);
  for (const ManagedVariable& variable : managed_variables) {
    if (std::strcmp(name, variable.name) != 0) continue;
    auto& mapping = state().mappings[variable.address];
    if (!mapping.memory) {
      auto memory = std::make_shared<Memory>();
      memory->bytes.assign(variable.bytes, std::byte{variable.initial});
      mapping = {variable.bytes, std::move(memory), 0};
    }
    *address = variable.address;
    *bytes = variable.bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute != CU_POINTER_ATTRIBUTE_IS_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  unsigned managed = 0;
  for (const ManagedVariable& variable : managed_variables) managed |= address == variable.address;
  std::memcpy(data, &managed, sizeof(managed));
  return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule module, const char* name) {
  const Lock lock(state().mutex);
  if (behaviour::cuLibraryGetManaged(address, bytes, reinterpret_cast<CUlibrary>(module), name) == CUDA_SUCCESS)
    return CUDA_SUCCESS;
  if (std::strcmp(name, "table") != 0) return CUDA_ERROR_NOT_FOUND;
  static std::byte storage[256];
  state().globals[reinterpret_cast<std::uint64_t>(storage)] = sizeof(storage);
  *address = reinterpret_cast<std::uint64_t>(storage);
  *bytes = sizeof(storage);
  return CUDA_SUCCESS;
}
CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption*, void**, unsigned) {
  CUmodule module{};
  CUresult result = behaviour::cuModuleLoadDataEx(&module, image, count, options, values);
  *out = reinterpret_cast<CUlibrary>(module);
  if (result == CUDA_ERROR_INVALID_IMAGE) {  // which shows when something is looked for
    const Lock lock(state().mutex);
    Module* const none = make<Module>();
    none->none = true;
    *out = reinterpret_cast<CUlibrary>(none);
    result = CUDA_SUCCESS;
  }
  return result;
}
CUresult cuLibraryUnload(CUlibrary library) {
  const Lock lock(state().mutex);
  return unload(library);
}
CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary library, const char* name) {
  {
    const Lock lock(state().mutex);
    const Module* const module = live<Module>(library);
    if (module && module->none) return CUDA_ERROR_INVALID_IMAGE;
  }
  return behaviour::cuModuleGetFunction(reinterpret_cast<CUfunction*>(out), reinterpret_cast<CUmodule>(library), name);
}
// They are the same here.
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return behaviour::cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(library));
}
CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned count, CUlibrary library) {
  return behaviour::cuModuleEnumerateFunctions(reinterpret_cast<CUfunction*>(out), count,
                                               reinterpret_cast<CUmodule>(library));
}
CUresult cuKernelGetFunction(CUfunction* out, CUkernel kernel) {
  *out = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction f, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  const Lock lock(state().mutex);
  const Kernel* const kernel = live<Kernel>(f);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= kernel->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->parameters[index].first;
  *bytes = kernel->parameters[index].second;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;  // as on an H200
  return behaviour::cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset, bytes);
}
CUresult cuFuncGetName(const char** name, CUfunction f) {
  *name = live<Kernel>(f)->name.c_str();
  return CUDA_SUCCESS;
}
CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return behaviour::cuFuncGetName(name, reinterpret_cast<CUfunction>(kernel));
}
// What was set goes with the primary context.
std::map<int, int>& attributes_of(Kernel& kernel) {
  if (kernel.resets != state().resets)
    std::erase_if(kernel.attributes, [](const auto& a) { return a.first != CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES; });
  kernel.resets = state().resets;
  return kernel.attributes;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction f) {
  const Lock lock(state().mutex);
  Kernel* const kernel = live<Kernel>(f);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  auto& attributes = attributes_of(*kernel);
  const int initial = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  *value = attributes.contains(attribute) ? attributes[attribute] : initial;
  return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return behaviour::cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
  const Lock lock(state().mutex);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > 227 * 1024)
    return CUDA_ERROR_INVALID_VALUE;
  attributes_of(*live<Kernel>(f))[attribute] = value;
  return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return behaviour::cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block, std::size_t) {
  *blocks = 2048 / block;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction f, int block, std::size_t shared,
                                                              unsigned) {
  return behaviour::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block, shared);
}
// A cluster that is wide fits one time less than one that is high.
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction f, const CUlaunchConfig* config) {
  const Lock lock(state().mutex);
  Kernel* const kernel = live<Kernel>(f);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  unsigned size[3] = {1, 1, 1};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = config->attrs[i].value.clusterDim;
    size[0] = cluster.x, size[1] = cluster.y, size[2] = cluster.z;
  }
  const unsigned all = size[0] * size[1] * size[2];
  auto& attributes = attributes_of(*kernel);
  const unsigned most = attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] ? 16 : 8;
  if (all == 0 || all > most || config->gridDimX % size[0] || config->gridDimY % size[1] || config->gridDimZ % size[2])
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const int shared = std::max(attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], 48 * 1024);
  *clusters = config->sharedMemBytes > static_cast<unsigned>(shared)
                  ? 0
                  : static_cast<int>(132 / all) - (size[0] > size[1] ? 1 : 0);
  return CUDA_SUCCESS;
}
constexpr cuuint32_t tensor_rank_max = 5;  // CUDA Driver API, "Tensor Map Object Management"

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  if (rank == 0 || rank > tensor_rank_max) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  for (unsigned i = 0; i < rank; ++i) map->opaque[1 + i] = dims[i];
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                 const cuuint64_t* dims, const cuuint64_t*, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank == 0 || rank > tensor_rank_max) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  for (unsigned i = 0; i < rank; ++i) map->opaque[1 + i] = dims[i];
  for (unsigned i = 0; i + 2 < rank; ++i) map->opaque[8 + i] = static_cast<std::uint64_t>(lower[i] * 1000 + upper[i]);
  map->opaque[12] = std::uint64_t{channels} * 1000 + pixels;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* address,
                                     const cuuint64_t* dims, const cuuint64_t*, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapIm2ColWideMode, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill) {
  if (rank == 0 || rank > tensor_rank_max) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  for (unsigned i = 0; i < rank; ++i) map->opaque[1 + i] = dims[i];
  map->opaque[8] = static_cast<std::uint64_t>(lower * 1000 + upper);
  map->opaque[12] = std::uint64_t{channels} * 1000 + pixels;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  return CUDA_SUCCESS;
}

// Launches.
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** params, void**) {
  const Lock lock(state().mutex);
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch_kernel(f, grid, block, shared, stream, params, 0);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void** params) {
  if (gx * gy * gz > 8) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return behaviour::cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, nullptr);
}
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned) {
  const Lock lock(state().mutex);
  for (unsigned i = 0; i < count; ++i) {
    const Stream* const stream = live<Stream>(list[i].hStream);
    if (!stream || !live<Kernel>(list[i].function)) return CUDA_ERROR_INVALID_HANDLE;
    if (list[i].gridDimX != list[0].gridDimX || list[i].blockDimX != list[0].blockDimX) return CUDA_ERROR_INVALID_VALUE;
    if (list[i].gridDimX > 8) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& p = list[i];
    const unsigned grid[] = {p.gridDimX, p.gridDimY, p.gridDimZ}, block[] = {p.blockDimX, p.blockDimY, p.blockDimZ};
    if (const CUresult bad = launch_kernel(p.function, grid, block, p.sharedMemBytes, p.hStream, p.kernelParams, 0);
        bad != CUDA_SUCCESS)
      return bad;
  }
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void**) {
  const Lock lock(state().mutex);
  const unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ}, block[] = {c->blockDimX, c->blockDimY, c->blockDimZ};
  return launch_kernel(f, grid, block, c->sharedMemBytes, c->hStream, params, c->numAttrs);
}

}  // namespace behaviour
}  // namespace fargpu::fake
