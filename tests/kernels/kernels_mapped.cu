// Host memory that kernels read and write: large blocks, whose pages go back and forth, and memory that the program
// registered.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void add(const int* a, const int* b, int* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = a[i] + b[i];
}
// Every `stride`-th element becomes twice what it was, and one more.
extern "C" __global__ void step(int* values, long long stride, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i * stride] = 2 * values[i * stride] + 1;
}
extern "C" __global__ void nothing() {}
extern "C" __global__ void set(volatile int* out, int value) { *out = value; }
// Takes part in a conversation: waits for a number, answers with the next one.
extern "C" __global__ void answer(volatile int* asked, volatile int* answered, int rounds) {
  for (int round = 1; round <= rounds; ++round) {
    while (*asked != round) {}
    *answered = round;
    __threadfence_system();
  }
}

#else

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string_view>
#include <thread>

#include "gate.h"

namespace {

constexpr size_t mib = 1 << 20;

std::string program_folder() {
  char path[4096] = "";
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  HOLDS(length > 0);
  const std::string name(path, static_cast<size_t>(length));
  return name.substr(0, name.rfind('/'));
}

/// Numbers in pinned memory that kernels see at the same address.
class Pinned {
 public:
  explicit Pinned(size_t bytes, unsigned flags = 0) : count_(bytes / sizeof(int)) {
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&values_), bytes, flags));
  }
  ~Pinned() { free(); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  void free() {
    if (values_) OK(cuMemFreeHost(values_));
    values_ = nullptr;
  }
  /// The address that the driver says kernels see it at.
  CUdeviceptr mapped() const {
    CUdeviceptr address;
    OK(cuMemHostGetDevicePointer(&address, values_, 0));
    return address;
  }
  int* get() const { return values_; }
  int& operator[](size_t i) const { return values_[i]; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(int); }
  /// Every element is `value` and its number.
  void number(int value) {
    for (size_t i = 0; i < count_; ++i) values_[i] = value + static_cast<int>(i);
  }

 private:
  int* values_ = nullptr;
  size_t count_;
};

/// Memory of the program's own, registered; not at the beginning of a page.
class Registered {
 public:
  Registered(size_t bytes, int sharing) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    HOLDS(memory_ != MAP_FAILED);
    OK(cuMemHostRegister(get(), bytes_, CU_MEMHOSTREGISTER_DEVICEMAP));
  }
  ~Registered() {
    unregister();
    munmap(memory_, bytes_ + 4096);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  void unregister() {
    if (registered_) OK(cuMemHostUnregister(get()));
    registered_ = false;
  }
  int* get() const { return static_cast<int*>(memory_) + 4; }
  CUdeviceptr mapped() const {
    CUdeviceptr address;
    OK(cuMemHostGetDevicePointer(&address, get(), 0));
    return address;
  }

 private:
  void* memory_;
  size_t bytes_;
  bool registered_ = true;
};

class Stream {
 public:
  Stream() { OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

/// A second context on the device, which is current while this lives.
class OtherContext {
 public:
  OtherContext() {
    CUdevice device;
    OK(cuCtxGetCurrent(&before_));
    OK(cuCtxGetDevice(&device));
    OK(cuCtxCreate(&context_, nullptr, 0, device));
  }
  ~OtherContext() {
    OK(cuCtxDestroy(context_));
    OK(cuCtxSetCurrent(before_));
  }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;
  void leave() const { OK(cuCtxSetCurrent(before_)); }
  void enter() const { OK(cuCtxSetCurrent(context_)); }

 private:
  CUcontext before_ = nullptr, context_ = nullptr;
};

void launch_step(const Kernels& kernels, CUstream stream, CUdeviceptr values, long long stride, int count) {
  OK(kernels.try_launch("step", {blocks_for(count)}, {block_size}, 0, stream, values, stride, count));
}

int load(const int& place) { return __atomic_load_n(&place, __ATOMIC_SEQ_CST); }
void store(int& place, int value) { __atomic_store_n(&place, value, __ATOMIC_SEQ_CST); }

}  // namespace

// Two arrays are read and a third is written.
CASE(zero_copy) {
  Kernels kernels;
  Pinned a(4 * mib, CU_MEMHOSTALLOC_DEVICEMAP), b(4 * mib, CU_MEMHOSTALLOC_DEVICEMAP),
      out(4 * mib, CU_MEMHOSTALLOC_DEVICEMAP);
  int count = static_cast<int>(a.count());
  for (int round = 1; round < 4; ++round) {
    a.number(round);
    b.number(10 * round);
    kernels.run("add", {blocks_for(count)}, {block_size}, a.mapped(), b.mapped(), out.mapped(), count);
    for (int i = 0; i < count; ++i) HOLDS(out[i] == 11 * round + 2 * i);
    HOLDS(a[count - 1] == round + count - 1);
  }
}

// Under unified addressing the pointer itself goes to the kernel.
CASE(by_its_own_address) {
  Kernels kernels;
  Pinned a(4 * mib), b(5 * mib), out(4 * mib);
  a.number(1);
  b.number(2);
  int count = static_cast<int>(a.count());
  kernels.run("add", {blocks_for(count)}, {block_size}, a.get(), b.get(), out.get(), count);
  for (int i = 0; i < count; ++i) HOLDS(out[i] == 3 + 2 * i);
  HOLDS(out.mapped() == reinterpret_cast<CUdeviceptr>(out.get()));
}

// Each side changes a part of what lies in the same pages.
CASE(both_sides_write) {
  Kernels kernels;
  Pinned values(64 * mib);
  constexpr long long stride = 4096;
  int count = static_cast<int>(values.count() / stride);
  CUdeviceptr address = values.mapped();
  std::vector<int> wanted(count, 0);
  for (int i = 0; i < count; ++i) values[i * stride] = wanted[i] = i;
  for (int round = 1; round < 5; ++round) {
    launch_step(kernels, nullptr, address, stride, count);
    // The kernel may be running: what it does not write is ours to write, and stays.
    for (int i = 0; i < count; i += 3) values[i * stride + 1] = round;
    OK(cuCtxSynchronize());
    for (int i = 0; i < count; ++i) {
      wanted[i] = 2 * wanted[i] + 1;
      HOLDS(values[i * stride] == wanted[i]);
      HOLDS(values[i * stride + 1] == (i % 3 == 0 ? round : 0));
    }
  }
  HOLDS(values[values.count() - 1] == 0);
}

// Every second number: what changed is many small pieces.
CASE(scattered_changes) {
  Kernels kernels;
  Pinned values(4 * mib);
  values.number(0);
  CUdeviceptr address = values.mapped();
  int count = static_cast<int>(values.count() / 4);
  for (int round = 0; round < 2; ++round) {
    launch_step(kernels, nullptr, address, 4, count);
    OK(cuCtxSynchronize());
    for (int i = 0; i < count; ++i) {
      HOLDS(values[i * 4ull] == 8 * i + 1);
      values[i * 4ull] = 4 * i;
    }
  }
}

CASE(registered) {
  Kernels kernels;
  for (int sharing : {MAP_PRIVATE, MAP_SHARED}) {
    for (size_t bytes : {4 * mib, 64 * mib}) {
      Registered memory(bytes, sharing);
      int* values = memory.get();
      int count = static_cast<int>(bytes / 4096 - 1);
      values[0] = 7;
      values[bytes / 4 - 1] = 9;
      CUdeviceptr address = memory.mapped();
      for (int round = 0, wanted = 7; round < 3; ++round) {
        launch_step(kernels, nullptr, address, 1024, count);
        values[1] = round;
        OK(cuCtxSynchronize());
        HOLDS(values[0] == (wanted = 2 * wanted + 1));
        HOLDS(values[1024] == (2 << round) - 1);
        HOLDS(values[1] == round && values[bytes / 4 - 1] == 9);
      }
      // What is still under way has happened when the memory is unregistered.
      launch_step(kernels, nullptr, address, 1024, count);
      memory.unregister();
      HOLDS(values[1024] == 15);
      GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&address, values, 0));
    }
  }
}

// As where host pointers can be used for registered memory: kernels are given its own address.
CASE(registered_by_its_own_address) {
  Kernels kernels;
  std::vector<int> values(1 << 20, 5);
  OK(cuMemHostRegister(values.data(), values.size() * sizeof(int), 0));
  for (int round = 0; round < 3; ++round) {
    launch_step(kernels, nullptr, reinterpret_cast<CUdeviceptr>(&values[1000]), 1, 1);
    OK(cuCtxSynchronize());
  }
  HOLDS(values[1000] == 47);
  HOLDS(values[999] == 5 && values[1001] == 5);
  OK(cuMemHostUnregister(values.data()));
}

// The address by which kernels know registered memory is one of its attributes too.
CASE(registered_by_its_attributes) {
  Kernels kernels;
  for (const bool both : {false, true}) {
    Registered memory(4 * mib, MAP_PRIVATE);
    int* const values = memory.get();
    const auto host = reinterpret_cast<CUdeviceptr>(values);
    CUdeviceptr address = 0;
    void* on_host = nullptr;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* answers[] = {&address, &on_host};
    if (both) OK(cuPointerGetAttributes(2, asked, answers, host + 8));
    else OK(cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, host + 8));
    HOLDS(address != 0);
    HOLDS(!both || on_host == values + 2);
    address -= 8;
    values[0] = 5;
    values[1024] = 6;
    // A copy by that address, and a kernel.
    int seen[2] = {};
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(seen), address, 4));
    HOLDS(seen[0] == 5);
    launch_step(kernels, nullptr, address, 1024, 2);
    OK(cuCtxSynchronize());
    HOLDS(values[0] == 11 && values[1024] == 13);
    HOLDS(memory.mapped() == address);
  }
}

// A copy that one thread waits for is to write a block while a kernel of another thread is the first to use it.
CASE(copied_to_when_kernels_begin_to_use_it) {
  Kernels kernels;
  CUcontext context;
  CUstream blocking, other;
  CUdeviceptr from;
  constexpr size_t bytes = 64 << 10, used = mib / sizeof(int);
  OK(cuCtxGetCurrent(&context));
  OK(cuStreamCreate(&blocking, 0));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&from, bytes));
  for (int round = 1; round <= 4; ++round) {
    Pinned values(4 * mib);
    values[0] = 0;
    values[used] = 5;
    OK(cuMemsetD32(from, round, bytes / 4));
    OK(cuCtxSynchronize());
    Gate gate(blocking);
    std::thread copies([&] {
      OK(cuCtxSetCurrent(context));
      OK(cuMemcpyDtoH(values.get(), from, bytes));  // behind the function
    });
    std::thread opens([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      gate.open();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    launch_step(kernels, other, reinterpret_cast<CUdeviceptr>(&values[used]), 1, 1);
    OK(cuStreamSynchronize(other));
    copies.join();
    opens.join();
    HOLDS(values[used] == 11);
    HOLDS(values[0] == round && values[bytes / 4 - 1] == round);
  }
}

// One thread copies from a block again and again, in large pieces and small ones, while a kernel of another thread is
// the first to use it.
CASE(copied_from_when_kernels_begin_to_use_it) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  constexpr size_t bytes = 4 * mib, small = 100 << 10, used = bytes / sizeof(int);
  Buffer<int> large(bytes / sizeof(int)), few(small / sizeof(int));
  CUstream other;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (int round = 1; round <= 6; ++round) {
    Pinned values(bytes + mib);
    for (size_t i = 0; i < used; ++i) values[i] = round * 1000 + static_cast<int>(i % 1000);
    values[used] = 5;
    std::atomic<bool> over{false};
    std::atomic<int> copies{0};
    std::thread copier([&] {
      OK(cuCtxSetCurrent(context));
      CUstream stream;
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (int after = 0; after < 3; after += over ? 1 : 0) {
        OK(cuMemcpyHtoDAsync(large.address(), values.get(), bytes, stream));
        OK(cuMemcpyHtoDAsync(few.address(), values.get(), small, stream));
        ++copies;
        if (copies % 8 == 0) OK(cuStreamSynchronize(stream));
      }
      OK(cuStreamSynchronize(stream));
      OK(cuStreamDestroy(stream));
    });
    while (copies < 3) std::this_thread::yield();
    launch_step(kernels, other, reinterpret_cast<CUdeviceptr>(&values[used]), 1, 1);
    OK(cuStreamSynchronize(other));
    over = true;
    copier.join();
    HOLDS(values[used] == 11);
    HOLDS(large.get() == std::vector<int>(values.get(), values.get() + used));
    HOLDS(few.get() == std::vector<int>(values.get(), values.get() + small / sizeof(int)));
  }
  OK(cuStreamDestroy(other));
}

// The address by which kernels know memory, asked for so that nothing is made ready for them yet.
CUdeviceptr promised(const void* memory) {
  CUdeviceptr address = 0;
  CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  void* answer = &address;
  OK(cuPointerGetAttributes(1, &asked, &answer, reinterpret_cast<CUdeviceptr>(memory)));
  HOLDS(address != 0);
  return address;
}

// A kernel is the first to use that address, where the process has no other memory that both see.
CASE(registered_by_its_attributes_alone) {
  Kernels kernels;
  Registered memory(4 * mib, MAP_PRIVATE);
  int* const values = memory.get();
  const CUdeviceptr address = promised(values);
  values[0] = 5;
  values[1024] = 6;
  launch_step(kernels, nullptr, address, 1024, 2);
  OK(cuCtxSynchronize());
  HOLDS(values[0] == 11 && values[1024] == 13);
}

// The address is used by a copy first, as source or target, by a memset or by a graph.
CASE(registered_and_copied_first) {
  Kernels kernels;
  constexpr size_t bytes = 1 * mib, count = bytes / sizeof(int);
  Buffer<int> device(count);
  std::vector<int> source(count, 9);
  for (int way = 0; way < 6; ++way) {
    Registered memory(bytes, MAP_PRIVATE);
    int* const values = memory.get();
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<int>(i) + way + 1;
    const CUdeviceptr address = promised(values);
    device.clear();
    Stream stream;
    switch (way) {
      case 0: OK(cuMemcpyDtoD(device.address(), address, bytes)); break;
      case 1: OK(cuMemcpyAsync(device.address(), address, bytes, stream)); break;
      case 2: OK(cuMemcpyHtoD(address, source.data(), bytes / 2)); break;
      case 3: OK(cuMemsetD32Async(address, 9, count / 2, stream)); break;
      default: {
        CUgraph graph;
        CUgraphNode node;
        CUgraphExec launched;
        OK(cuGraphCreate(&graph, 0));
        CUDA_MEMSET_NODE_PARAMS set{};
        set.dst = address;
        set.value = 9;
        set.elementSize = 4;
        set.width = count / 2;
        set.height = 1;
        CUDA_MEMCPY3D copy{};
        copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = address;
        copy.dstDevice = device.address();
        copy.WidthInBytes = bytes;
        copy.Height = copy.Depth = 1;
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        if (way == 4) OK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, context));
        else OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, context));
        OK(cuGraphInstantiate(&launched, graph, 0));
        OK(cuGraphLaunch(launched, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuGraphExecDestroy(launched));
        OK(cuGraphDestroy(graph));
      }
    }
    OK(cuCtxSynchronize());
    const bool read = way < 2 || way == 5;
    const auto got = device.get();
    for (size_t i = 0; i < count; ++i) {
      const int before = static_cast<int>(i) + way + 1;
      HOLDS(values[i] == (!read && i < count / 2 ? 9 : before));
      HOLDS(!read || got[i] == before);
    }
  }
}

// A synchronous copy does not come behind the work of a stream that does not synchronise with the default one: it reads
// what the program has in the memory, whatever is still to be written there.
CASE(source_with_a_copy_to_it_held) {
  Kernels kernels;
  for (const size_t bytes : {size_t{4096}, size_t{1} << 20}) {
    Buffer<int> from(bytes / 4), to(bytes / 4);
    OK(cuMemsetD32(from.address(), 5, bytes / 4));
    OK(cuCtxSynchronize());  // the stream does not wait for the default one
    Pinned memory(bytes);
    Registered registered(bytes, MAP_PRIVATE);
    for (int* const values : {memory.get(), registered.get()}) {
      Stream stream;
      Gate gate(stream);
      OK(cuMemcpyDtoHAsync(values, from.address(), bytes, stream));
      for (size_t i = 0; i < bytes / 4; ++i) values[i] = 1;
      OK(cuMemcpyHtoD(to.address(), values, bytes));
      gate.open();
      const auto got = to.get();
      HOLDS(std::count(got.begin(), got.end(), 1) == static_cast<long>(bytes / 4));
      OK(cuStreamSynchronize(stream));
      HOLDS(!gate.in_vain());
      for (size_t i = 0; i < bytes / 4; ++i) HOLDS(values[i] == 5);
    }
  }
}

// Copies to the same memory, of which the later one is done first, and one that the driver refuses.
CASE(copies_to_one_place_out_of_order) {
  Kernels kernels;
  Buffer<int> from(100), to(100);
  Pinned memory(4096);
  for (int round = 1; round < 4; ++round) {
    OK(cuMemsetD32(from.address(), static_cast<unsigned>(round), 100));
    OK(cuCtxSynchronize());  // the streams do not wait for the default one
    Stream first, second;
    {
      Gate gate(first);
      OK(cuMemcpyDtoHAsync(memory.get(), from.address(), 400, first));
      OK(cuMemcpyDtoHAsync(memory.get(), from.address(), 200, second));
      OK(cuStreamSynchronize(second));
      gate.open();
      OK(cuStreamSynchronize(first));
      HOLDS(!gate.in_vain());
    }
    for (int i = 0; i < 100; ++i) HOLDS(memory[i] == round);
    for (int i = 0; i < 100; ++i) memory[i] = 70 + i;
    OK(cuMemcpyHtoD(to.address(), memory.get(), 400));
    const auto got = to.get();
    for (int i = 0; i < 100; ++i) HOLDS(got[i] == 70 + i);
  }
}

// A kernel is the first to use memory to which another context copies.
CASE(used_while_another_context_copies) {
  Kernels kernels;
  constexpr size_t bytes = 64 << 10;
  Pinned memory(bytes);
  memory.number(1);
  {
    OtherContext other;
    CUdeviceptr from;
    OK(cuMemAlloc(&from, bytes));
    OK(cuMemsetD32(from, 20, bytes / 4));
    CUstream there;
    CUevent done;
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(
        there, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr));
    OK(cuMemcpyDtoHAsync(memory.get(), from, bytes, there));
    OK(cuEventRecord(done, there));
    other.leave();
    Stream here;
    OK(cuStreamWaitEvent(here, done, 0));
    launch_step(kernels, here, reinterpret_cast<CUdeviceptr>(memory.get()), 1, static_cast<int>(bytes / 4));
    OK(cuStreamSynchronize(here));
    for (size_t i = 0; i < bytes / 4; ++i) HOLDS(memory[i] == 41);
    other.enter();
  }
}

// Pinned memory goes with the context in which it was made, and with no other that has used it.
CASE(used_first_by_a_context_that_goes) {
  Kernels kernels;
  constexpr size_t bytes = 64 << 10;
  for (int way = 0; way < 2; ++way) {
    Pinned memory(bytes, CU_MEMHOSTALLOC_PORTABLE);
    Buffer<int> device(bytes / 4);
    OK(cuMemsetD32(device.address(), 3, bytes / 4));
    {
      OtherContext other;
      if (way == 0) {
        Kernels there;
        launch_step(there, nullptr, reinterpret_cast<CUdeviceptr>(memory.get()), 1, 100);
        OK(cuCtxSynchronize());
      } else {
        CUdeviceptr from;
        OK(cuMemAlloc(&from, bytes));
        OK(cuMemcpyDtoHAsync(memory.get(), from, bytes, nullptr));
      }
      OK(cuCtxSynchronize());
    }
    memory.number(2);
    OK(cuMemcpyDtoHAsync(memory.get(), device.address(), 4096, nullptr));
    OK(cuCtxSynchronize());
    HOLDS(memory[0] == 3 && memory[1023] == 3 && memory[1024] == 2 + 1024);
    launch_step(kernels, nullptr, reinterpret_cast<CUdeviceptr>(memory.get()), 1, 2048);
    OK(cuCtxSynchronize());
    HOLDS(memory[0] == 7 && memory[1024] == 2 * (2 + 1024) + 1);
  }
}

// Managed memory is there until the work that the free waits for is over, and so for functions of the program.
CASE(managed_freed_behind_a_function) {
  Kernels kernels;
  for (int round = 0; round < 5; ++round) {
    CUdeviceptr memory;
    OK(cuMemAllocManaged(&memory, 1 * mib, CU_MEM_ATTACH_GLOBAL));
    Stream stream;
    launch_step(kernels, stream, memory, 1024, 100);
    OK(cuLaunchHostFunc(
        stream,
        [](void* pointer) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          for (int i = 0; i < 1000; ++i) static_cast<int*>(pointer)[i] = i;
        },
        reinterpret_cast<void*>(memory)));
    OK(cuMemFree(memory));
    OK(cuStreamSynchronize(stream));
  }
}

// A program may forget to unregister memory that it unmaps.
CASE(registered_and_unmapped) {
  Kernels kernels;
  constexpr size_t bytes = 64 << 10;
  Buffer<int> out(1);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HOLDS(memory != MAP_FAILED);
  OK(cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr address;
  OK(cuMemHostGetDevicePointer(&address, memory, 0));
  launch_step(kernels, nullptr, address, 1, 10);
  OK(cuCtxSynchronize());
  HOLDS(munmap(memory, bytes) == 0);
  launch_step(kernels, nullptr, address, 1, 10);
  OK(kernels.try_launch("set", {}, {1}, 0, nullptr, out.address(), 5));
  OK(cuCtxSynchronize());
  HOLDS(out.get()[0] == 5);
  OK(cuMemHostUnregister(memory));
}

// A synchronous copy has read its source when it returns, whatever its stream still has to do.
CASE(source_written_after_a_copy) {
  Kernels kernels;
  constexpr size_t bytes = 64 << 10;
  Buffer<int> first(bytes / 4), second(bytes / 4), large(32 * mib / 4);
  Pinned plain(32 * mib), values(bytes, CU_MEMHOSTALLOC_DEVICEMAP);
  Registered registered(bytes, MAP_PRIVATE);
  registered.mapped();
  launch_step(kernels, nullptr, values.mapped(), 1, 1);
  OK(cuCtxSynchronize());
  Stream stream;
  for (int round = 0; round < 20; ++round) {
    for (int* const source : {values.get(), registered.get()}) {
      OK(cuMemcpyHtoDAsync(large.address(), plain.get(), plain.bytes(), stream));
      for (size_t i = 0; i < bytes / 4; ++i) source[i] = 1 + round;
      OK(cuMemcpyHtoD(first.address(), source, bytes));
      for (size_t i = 0; i < bytes / 4; ++i) source[i] = -1 - round;
      OK(cuMemcpyHtoD(second.address(), source, bytes));
      OK(cuCtxSynchronize());
      const auto one = first.get(), other = second.get();
      HOLDS(std::count(one.begin(), one.end(), 1 + round) == static_cast<long>(bytes / 4));
      HOLDS(std::count(other.begin(), other.end(), -1 - round) == static_cast<long>(bytes / 4));
    }
  }
}

CASE(copies) {
  Kernels kernels;
  Pinned values(8 * mib), plain(8 * mib);
  Buffer<int> device(values.count());
  Stream stream;
  values.number(5);
  CUdeviceptr address = values.mapped();
  // Out of it, as the program left it and as kernels did.
  OK(cuMemcpyHtoD(device.address(), values.get(), values.bytes()));
  HOLDS(device.get()[values.count() - 1] == 5 + static_cast<int>(values.count()) - 1);
  launch_step(kernels, stream, address, 1, 1000);
  OK(cuMemcpyHtoDAsync(device.address(), values.get(), values.bytes(), stream));
  OK(cuStreamSynchronize(stream));
  HOLDS(device.get()[10] == 2 * 15 + 1);
  // Into it.
  OK(cuMemsetD32(device.address(), 77, device.count()));
  OK(cuMemcpyDtoH(values.get(), device.address(), values.bytes() / 2));
  HOLDS(values[0] == 77 && values[values.count() / 2 - 1] == 77);
  HOLDS(values[values.count() / 2] == 5 + static_cast<int>(values.count() / 2));
  OK(cuMemsetD32(device.address(), 78, device.count()));
  OK(cuCtxSynchronize());
  OK(cuMemcpyDtoHAsync(values.get() + 100, device.address(), 4000, stream));
  launch_step(kernels, stream, address, 1, 200);
  OK(cuStreamSynchronize(stream));
  HOLDS(values[99] == 155 && values[100] == 157 && values[199] == 157 && values[200] == 78 && values[1099] == 78 &&
        values[1100] == 77);
  // Between it and other memory of the host.
  std::vector<int> pageable(values.count(), 3);
  OK(cuMemcpy(address, reinterpret_cast<CUdeviceptr>(pageable.data()), 400));
  HOLDS(values[99] == 3 && values[100] == 157);
  OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(pageable.data()), address, values.bytes()));
  HOLDS(pageable[100] == 157 && pageable[99] == 3);
  plain.number(0);
  OK(cuMemcpy(address, reinterpret_cast<CUdeviceptr>(plain.get()), plain.bytes()));
  HOLDS(values[values.count() - 1] == static_cast<int>(values.count()) - 1);
  OK(cuMemsetD32(address, 4, 10));
  HOLDS(values[9] == 4 && values[10] == 10);
  // Rows.
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = values.get();
  rows.srcPitch = 400;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = device.address();
  rows.dstPitch = 40;
  rows.WidthInBytes = 40;
  rows.Height = 50;
  OK(cuMemcpy2D(&rows));
  HOLDS(device.get()[10] == 100 && device.get()[499] == 4909);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(values.get() + values.count() - 1, device.address(), 8));
}

// A copy to the block is under way when a kernel first uses it.
CASE(copied_to_before) {
  Kernels kernels;
  Buffer<int> device(2 * mib);
  OK(cuMemsetD32(device.address(), 20, device.count()));
  Pinned values(8 * mib);
  OK(cuMemcpyDtoHAsync(values.get(), device.address(), values.bytes(), nullptr));
  launch_step(kernels, nullptr, values.mapped(), 1, 10);
  OK(cuCtxSynchronize());
  HOLDS(values[0] == 41 && values[9] == 41 && values[10] == 20 && values[values.count() - 1] == 20);
}

CASE(several_streams) {
  Kernels kernels;
  Pinned values(16 * mib);
  CUdeviceptr address = values.mapped();
  constexpr int streams = 4;
  Stream all[streams];
  int each = static_cast<int>(values.count() / streams / 16);
  std::vector<int> wanted(streams, 0);
  for (int round = 0; round < 10; ++round) {
    for (int s = 0; s < streams; ++s) launch_step(kernels, all[s], address + s * (values.bytes() / streams), 16, each);
    int s = round % streams;
    OK(cuStreamSynchronize(all[s]));
    HOLDS(load(values[s * (values.count() / streams)]) == (2 << round) - 1);
  }
  OK(cuCtxSynchronize());
  for (int s = 0; s < streams; ++s) HOLDS(values[s * (values.count() / streams) + 16 * (each - 1)] == 1023);
}

// Threads of the program use it while others launch.
CASE(several_threads) {
  Kernels kernels;
  Pinned values(4 * mib);
  CUdeviceptr address = values.mapped();
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  constexpr int threads = 3, rounds = 60;
  bool right[threads] = {};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      // Its own numbers: one that kernels change, one that only it does, next to those of the others.
      int wanted = 0, written = 0;
      bool good = cuCtxSetCurrent(context) == CUDA_SUCCESS;
      CUstream stream = nullptr;
      good = good && cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
      for (int round = 0; round < rounds && good; ++round) {
        values[8 + t * 2] = ++written;
        good = kernels.try_launch("set", {}, {1}, 0, stream, address + 4 * (100 + t * 2), ++wanted) == CUDA_SUCCESS &&
               cuStreamSynchronize(stream) == CUDA_SUCCESS && values[100 + t * 2] == wanted &&
               values[8 + t * 2] == written;
      }
      right[t] = good && cuStreamDestroy(stream) == CUDA_SUCCESS;
    });
  }
  for (auto& thread : all) thread.join();
  for (bool good : right) HOLDS(good);
}

CASE(graphs) {
  Kernels kernels;
  Pinned from(4 * mib), to(4 * mib);
  Stream stream;
  CUdeviceptr source = from.mapped(), target = to.mapped();
  Buffer<int> device(from.count());
  CUgraph graph;
  CUgraphExec executable;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  int count = static_cast<int>(from.count());
  OK(kernels.try_launch("add", {blocks_for(count)}, {block_size}, 0, stream, source, source, target, count));
  OK(cuMemcpyHtoDAsync(device.address(), to.get(), to.bytes(), stream));
  OK(cuMemcpyDtoHAsync(to.get(), device.address() + 4, 40, stream));
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int round = 1; round < 4; ++round) {
    from.number(round);
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(to[0] == 2 * (round + 1) && to[9] == 2 * (round + 10) && to[10] == 2 * (round + 10));
    HOLDS(to[count - 1] == 2 * (round + count - 1));
    HOLDS(device.get()[5] == 2 * (round + 5));
  }
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

// A graph copies from and to a block before and after a kernel that uses it, and was made when no kernel had used it
// yet.
CASE(copied_by_graphs) {
  Kernels kernels;
  for (size_t bytes : {size_t{4096}, 4 * mib}) {
    for (bool captured : {false, true}) {
      Pinned values(bytes);
      Stream stream;
      Buffer<int> device(values.count());
      device.clear();
      int count = static_cast<int>(values.count());
      CUgraph graph;
      CUgraphExec executable;
      CUdeviceptr address = reinterpret_cast<CUdeviceptr>(values.get());  // where kernels see it, too
      if (captured) {
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemcpyHtoDAsync(device.address(), values.get(), values.bytes(), stream));
        launch_step(kernels, stream, device.address(), 1, count);
        OK(cuMemcpyDtoHAsync(values.get(), device.address(), values.bytes(), stream));
        launch_step(kernels, stream, address, 1, count);
        OK(cuMemcpyHtoDAsync(device.address(), values.get(), values.bytes(), stream));
        OK(cuStreamEndCapture(stream, &graph));
      } else {
        OK(cuGraphCreate(&graph, 0));
        const auto copy = [&](bool in, CUgraphNode* after) {
          CUDA_MEMCPY3D p{};
          p.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
          p.dstMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
          p.srcHost = p.dstHost = values.get();
          p.srcDevice = p.dstDevice = device.address();
          p.WidthInBytes = values.bytes();
          p.Height = p.Depth = 1;
          CUcontext context;
          OK(cuCtxGetCurrent(&context));
          CUgraphNode node;
          OK(cuGraphAddMemcpyNode(&node, graph, after, after ? 1 : 0, &p, context));
          return node;
        };
        const auto step_of = [&](CUdeviceptr on, CUgraphNode* after) {
          long long stride = 1;
          void* arguments[] = {&on, &stride, &count};
          CUDA_KERNEL_NODE_PARAMS p{};
          p.func = kernels.get("step");
          p.gridDimX = blocks_for(count);
          p.blockDimX = block_size;
          p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1;
          p.kernelParams = arguments;
          CUgraphNode node;
          OK(cuGraphAddKernelNode(&node, graph, after, 1, &p));
          return node;
        };
        CUgraphNode last = copy(true, nullptr);
        last = step_of(device.address(), &last);
        last = copy(false, &last);
        last = step_of(address, &last);
        copy(true, &last);
      }
      OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
      for (int round = 0; round < 3; ++round) {
        values.number(round);
        OK(cuGraphLaunch(executable, stream));
        OK(cuStreamSynchronize(stream));
        const std::vector<int> there = device.get();
        for (int i = 0; i < count; ++i) HOLDS(values[i] == 4 * (round + i) + 3 && there[i] == values[i]);
      }
      OK(cuGraphExecDestroy(executable));
      OK(cuGraphDestroy(graph));
    }
  }
}

CASE(host_functions) {
  Kernels kernels;
  Pinned values(4 * mib);
  Stream stream;
  CUdeviceptr address = values.mapped();
  for (int round = 0; round < 3; ++round) {
    values[mib / 2] = 5;
    launch_step(kernels, stream, address + 2 * mib, 1, 10);
    OK(cuLaunchHostFunc(
        stream, [](void* data) { static_cast<int*>(data)[mib / 2] += 100; }, values.get()));
    launch_step(kernels, stream, address + 2 * mib, 1, 10);
    OK(cuStreamSynchronize(stream));
    HOLDS(values[mib / 2] == 2 * 111 + 1);
  }
}

// What a copy is to read during the call it has read then, though the stream gets there later.
CASE(read_during_the_call) {
  constexpr size_t count = 2 * mib;
  Pinned pinned(count * sizeof(int));
  Registered registered(count * sizeof(int), MAP_PRIVATE);
  CUdeviceptr managed;
  OK(cuMemAllocManaged(&managed, count * sizeof(int), CU_MEM_ATTACH_GLOBAL));
  Buffer<int> out(8);
  Stream stream, other;
  struct Source {
    int* memory;
    CUdeviceptr seen;
  };
  const Source sources[] = {{pinned.get(), pinned.mapped()},
                            {registered.get(), registered.mapped()},
                            {reinterpret_cast<int*>(managed), managed}};
  for (const Source& source : sources) {
    for (size_t i = 0; i < count; ++i) source.memory[i] = 1;
    OK(cuMemcpyDtoDAsync(out.address(), source.seen, 32, stream));
    OK(cuStreamSynchronize(stream));
    source.memory[0] = source.memory[count - 1] = 2;
    std::atomic<bool> is_open{false};
    OK(cuLaunchHostFunc(
        stream,
        [](void* gate) {
          while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
        },
        &is_open));
    CUdeviceptr targets[] = {out.address(), out.address() + 4, out.address() + 8, out.address() + 12};
    CUdeviceptr from[] = {source.seen, reinterpret_cast<CUdeviceptr>(source.memory + count - 1), source.seen,
                          reinterpret_cast<CUdeviceptr>(source.memory + 1)};
    size_t sizes[] = {4, 4, 4, 4}, first[] = {0, 2};
    CUmemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    // A driver may wait in the call for what the stream has before it; nobody else would open the gate then.
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      is_open = true;
    });
    OK(cuMemcpyBatchAsync(targets, from, sizes, 4, attributes, first, 2, stream));
    const bool waited = is_open;
    source.memory[0] = source.memory[1] = source.memory[count - 1] = 3;
    OK(cuMemcpyDtoDAsync(out.address() + 16, source.seen, 4, other));  // other work finds it
    OK(cuStreamSynchronize(other));
    opener.join();
    OK(cuStreamSynchronize(stream));
    const std::vector<int> got = out.get();
    HOLDS(got[0] == 2 && got[1] == 2 && got[4] == 3);
    HOLDS(waited || (got[2] == 3 && got[3] == 3));
  }
  OK(cuMemFree(managed));
}

// The program and a running kernel talk, without another call.
CASE(conversation) {
  Kernels kernels;
  Pinned values(4 * mib);
  Stream stream;
  CUdeviceptr address = values.mapped();
  int &asked = values[1], &answered = values[mib / 2];
  asked = answered = 0;
  // Many only where both use the same memory: elsewhere each takes some milliseconds.
  const char* asked_for = std::getenv("KERNELS_ROUNDS");
  const int rounds = asked_for != nullptr ? std::atoi(asked_for) : 5;
  OK(kernels.try_launch("answer", {}, {1}, 0, stream, address + 4, address + 2 * mib, rounds));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  for (int round = 1; round <= rounds; ++round) {
    store(asked, round);
    while (load(answered) != round) std::this_thread::yield();
  }
  OK(cuStreamSynchronize(stream));
  HOLDS(answered == rounds);
}

CASE(waits_for_values) {
  Kernels kernels;
  Pinned values(4 * mib);
  Stream waits, writes;
  CUdeviceptr address = values.mapped();
  Buffer<int> device(1);
  device.clear();
  for (int round = 1; round < 3; ++round) {
    OK(cuStreamWaitValue32(waits, address + 4 * round, 10 * round, CU_STREAM_WAIT_VALUE_EQ));
    OK(kernels.try_launch("set", {}, {1}, 0, waits, device.address(), round));
    if (round == 1) values[round] = 10 * round;
    else OK(kernels.try_launch("set", {}, {1}, 0, writes, address + 4 * round, 10 * round));
    OK(cuStreamSynchronize(waits));
    HOLDS(device.get()[0] == round);
    OK(cuStreamWriteValue32(waits, address + 4 * (10 + round), 7 * round, 0));
    launch_step(kernels, waits, address + 4 * (10 + round), 1, 1);
    OK(cuStreamSynchronize(waits));
    HOLDS(values[10 + round] == 14 * round + 1);
  }
}

CASE(system_calls) {
  Kernels kernels;
  Pinned values(4 * mib);
  CUdeviceptr address = values.mapped();
  FILE* file = std::tmpfile();
  HOLDS(file != nullptr);
  auto whole = static_cast<ssize_t>(values.bytes());
  int count = static_cast<int>(values.count());
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < count; ++i) values[i] = i;
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    HOLDS(pwrite(fileno(file), values.get(), values.bytes(), 0) == whole);
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    HOLDS(pread(fileno(file), values.get(), values.bytes(), 0) == whole);
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    for (int i = 0; i < count; ++i) HOLDS(values[i] == 4 * i + 3);
  }
  std::fclose(file);
}

// Pages come by signals, as do system calls, to threads too that block what they can.
CASE(all_signals_blocked) {
  Kernels kernels;
  Pinned values(4 * mib);
  CUdeviceptr address = values.mapped();
  FILE* file = std::tmpfile();
  HOLDS(file != nullptr);
  auto whole = static_cast<ssize_t>(values.bytes());
  int count = static_cast<int>(values.count());
  for (const bool thread_alone : {true, false}) {
    for (int i = 0; i < count; ++i) values[i] = i;
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    std::thread([&] {
      sigset_t all, before;
      sigfillset(&all);
      HOLDS((thread_alone ? pthread_sigmask : sigprocmask)(SIG_SETMASK, &all, &before) == 0);
      HOLDS(values[1] == 3);
      HOLDS(pwrite(fileno(file), values.get(), values.bytes(), 0) == whole);
      sigset_t now;
      HOLDS(pthread_sigmask(SIG_BLOCK, nullptr, &now) == 0 && sigismember(&now, SIGINT) == 1);
    }).join();
    for (int i = 0; i < count; ++i) HOLDS(values[i] == 2 * i + 1);
  }
  std::fclose(file);
}

// Calls with vectors of buffers: every second part of the block is written or read by one call, with gaps that stay as
// they are.
CASE(vectors_of_buffers) {
  Kernels kernels;
  Pinned values(4 * mib);
  CUdeviceptr address = values.mapped();
  int count = static_cast<int>(values.count());
  constexpr int parts = 4;
  const int part = count / (2 * parts);
  iovec vector[parts];
  for (int i = 0; i < parts; ++i) vector[i] = {values.get() + 2 * i * part, part * sizeof(int)};
  const auto whole = static_cast<ssize_t>(parts * part * sizeof(int));
  mmsghdr message{};
  message.msg_hdr.msg_iov = vector;
  message.msg_hdr.msg_iovlen = parts;
  int ends[2];
  HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  FILE* temporary = std::tmpfile();
  const int file = fileno(temporary);
  void* late = nullptr;

  using Call = std::function<ssize_t(int socket)>;
  const auto at_start = [&](const Call& call) {
    lseek(file, 0, SEEK_SET);
    return call(file);
  };
  const auto of_one = [&](int messages) { return messages == 1 ? static_cast<ssize_t>(message.msg_len) : messages; };
  struct Pair {
    const char* name;
    Call write, read;
    bool by_socket;
  };
  const Pair pairs[] = {
      {"writev, readv", [&](int to) { return writev(to, vector, parts); },
       [&](int from) { return readv(from, vector, parts); }, false},
      {"pwritev, preadv", [&](int to) { return pwritev(to, vector, parts, 0); },
       [&](int from) { return preadv(from, vector, parts, 0); }, false},
      {"pwritev2, preadv2", [&](int to) { return pwritev2(to, vector, parts, 0, 0); },
       [&](int from) { return preadv2(from, vector, parts, 0, 0); }, false},
      {"sendmsg, recvmsg", [&](int to) { return sendmsg(to, &message.msg_hdr, 0); },
       [&](int from) { return recvmsg(from, &message.msg_hdr, MSG_WAITALL); }, true},
      {"sendmmsg, recvmmsg", [&](int to) { return of_one(sendmmsg(to, &message, 1, 0)); },
       [&](int from) { return of_one(recvmmsg(from, &message, 1, MSG_WAITALL, nullptr)); }, true},
      {"a library that was loaded late",
       [&](int to) {
         auto* const function = reinterpret_cast<ssize_t (*)(int, const iovec*, int)>(dlsym(late, "late_writev"));
         return function ? function(to, vector, parts) : -1;
       },
       [&](int from) { return readv(from, vector, parts); }, false},
  };
  for (const Pair& pair : pairs) {
    for (int i = 0; i < count; ++i) values[i] = i;
    if (!late && pair.name[0] == 'a') {
      late = dlopen((program_folder() + "/libkernels_late.so").c_str(), RTLD_NOW);
      HOLDS(late != nullptr);
    }
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    ssize_t written = 0;
    std::thread other_end;
    std::vector<int> sent(pair.by_socket ? parts * part : 0);
    if (pair.by_socket)
      other_end = std::thread([&] { HOLDS(recv(ends[1], sent.data(), whole, MSG_WAITALL) == whole); });
    written = pair.by_socket ? pair.write(ends[0]) : at_start(pair.write);  // what the GPU wrote
    if (written != whole) report("%s: wrote %zd bytes of %zd (%s)", pair.name, written, whole, std::strerror(errno));
    if (other_end.joinable()) {
      if (written != whole) shutdown(ends[0], SHUT_RDWR);
      other_end.join();
    }
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    if (pair.by_socket) other_end = std::thread([&] { HOLDS(send(ends[1], sent.data(), whole, 0) == whole); });
    const ssize_t read = pair.by_socket ? pair.read(ends[0]) : at_start(pair.read);  // over what the GPU wrote
    if (other_end.joinable()) other_end.join();
    if (read != whole) report("%s: read %zd bytes of %zd (%s)", pair.name, read, whole, std::strerror(errno));
    launch_step(kernels, nullptr, address, 1, count);
    OK(cuCtxSynchronize());
    for (int i = 0; i < count; ++i) {
      const int steps = i / part % 2 == 0 ? 4 * i + 3 : 8 * i + 7;
      if (values[i] != steps) {
        report("%s: element %d is %d, not %d", pair.name, i, values[i], steps);
        break;
      }
    }
  }
  const std::vector<iovec> many(2000, vector[0]);  // more than the kernel takes
  HOLDS(writev(file, many.data(), static_cast<int>(many.size())) == -1 && errno == EINVAL);
  const volatile int none = -1;
  HOLDS(writev(file, many.data(), none) == -1 && errno == EINVAL);
  std::fclose(temporary);
  close(ends[0]);
  close(ends[1]);
}

// The C++ library writes long texts by writev.
CASE(file_streams) {
  Kernels kernels;
  Pinned values(4 * mib);
  CUdeviceptr address = values.mapped();
  int count = static_cast<int>(values.count());
  for (int i = 0; i < count; ++i) values[i] = i;
  launch_step(kernels, nullptr, address, 1, count);
  OK(cuCtxSynchronize());
  char name[] = "/tmp/fargpu-kernels-XXXXXX";
  const int file = mkstemp(name);
  HOLDS(file >= 0);
  std::ofstream(name) << "four" << std::string_view(reinterpret_cast<const char*>(values.get()), values.bytes());
  launch_step(kernels, nullptr, address, 1, count);
  OK(cuCtxSynchronize());
  std::ifstream read(name);
  char four[4];
  read.read(four, 4).read(reinterpret_cast<char*>(values.get()), static_cast<std::streamsize>(values.bytes()));
  unlink(name);
  close(file);
  HOLDS(read.good());
  for (int i = 0; i < count; ++i) HOLDS(values[i] == 2 * i + 1);
}

CASE(freed_while_used) {
  Kernels kernels;
  Buffer<int> device(mib);
  device.clear();
  for (int round = 0; round < 5; ++round) {
    Pinned values(8 * mib);
    for (size_t i = 0; i < mib; ++i) values[i] = round;
    CUdeviceptr address = values.mapped();
    OK(kernels.try_launch("add", {blocks_for(mib)}, {block_size}, 0, nullptr, address, address, device.address(),
                          static_cast<int>(mib)));
    launch_step(kernels, nullptr, address, 1, 100);
    values.free();
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer(&address, reinterpret_cast<void*>(address), 0));
    HOLDS(device.get()[mib - 1] == 2 * round);
  }
}

// A child has what the process had when it was forked. What becomes of its changes is the driver's affair.
CASE(forked) {
  Kernels kernels;
  Pinned values(4 * mib);
  values.number(1);
  CUdeviceptr address = values.mapped();
  launch_step(kernels, nullptr, address, 1, 10);
  OK(cuCtxSynchronize());
  HOLDS(values[0] == 3 && values[1000] == 1001);
  values[2] = 50;
  pid_t child = fork();
  if (child == 0) {
    bool right = values[0] == 3 && values[2] == 50 && values[1000] == 1001;
    _exit(right ? 0 : 1);
  }
  int status = 1;
  HOLDS(waitpid(child, &status, 0) == child);
  HOLDS(status == 0);
  HOLDS(values[0] == 3 && values[1000] == 1001);
  launch_step(kernels, nullptr, address, 1, 10);
  OK(cuCtxSynchronize());
  HOLDS(values[0] == 7 && values[2] == 101);
}

// Work costs what is touched, whatever the size of the block.
CASE(gigabytes) {
  Kernels kernels;
  // The fastest of several attempts, in microseconds a launch.
  auto cost = [&] {
    double least = 1e9;
    for (int attempt = 0; attempt < 20; ++attempt) {
      constexpr int launches = 50;
      auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < launches; ++i) OK(kernels.try_launch("nothing", {}, {1}, 0, nullptr));
      least =
          std::min(least, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                              launches);
      OK(cuCtxSynchronize());
    }
    return least;
  };
  kernels.run("nothing", {}, {1});
  double without = cost();
  Pinned values(3072 * mib);
  values[5] = 1;
  values[values.count() - 1] = 2;
  CUdeviceptr address = values.mapped();
  for (int round = 0, first = 1, last = 2; round < 3; ++round) {
    launch_step(kernels, nullptr, address + 20, static_cast<long long>(values.count() - 6), 2);
    OK(cuCtxSynchronize());
    HOLDS(values[5] == (first = 2 * first + 1));
    HOLDS(values[values.count() - 1] == (last = 2 * last + 1));
  }
  double with = cost();
  if (std::getenv("KERNELS_TIMES")) std::fprintf(stderr, "%.1f us a launch, %.1f without the block\n", with, without);
  HOLDS(with < without + 200);
}

#endif
