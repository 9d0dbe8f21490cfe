// The order of work: streams, events, host functions, captures and graphs.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void set(int* out, int value) { *out = value; }
extern "C" __global__ void add(int* out, int value) { *out += value; }
extern "C" __global__ void scale_and_add(int* out, int factor, int value) { *out = *out * factor + value; }
extern "C" __global__ void copy_value(const int* from, int* to) { *to = *from; }

extern "C" __global__ void wait_for(volatile int* flag, int value) {
  while (*flag != value) {}
}

// Takes at least the time given.
extern "C" __global__ void wait_microseconds(long long microseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (static_cast<long long>(now - start) < microseconds * 1000);
}

extern "C" __global__ void fill(int* out, int value, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value + i;
}

#else

#include <atomic>
#include <chrono>
#include <thread>

#include "gate.h"

namespace {

class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_DEFAULT) { OK(cuStreamCreate(&stream_, flags)); }
  ~Stream() { cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DEFAULT) { OK(cuEventCreate(&event_, flags)); }
  ~Event() { cuEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator CUevent() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// A number that host and kernels see.
class Flag {
 public:
  Flag() {
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&value_), sizeof(int), CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address_, value_, 0));
    *value_ = 0;
  }
  ~Flag() { cuMemFreeHost(value_); }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;
  CUdeviceptr address() const { return address_; }
  void set(int value) { __atomic_store_n(value_, value, __ATOMIC_SEQ_CST); }
  int get() const { return __atomic_load_n(value_, __ATOMIC_SEQ_CST); }

 private:
  int* value_ = nullptr;
  CUdeviceptr address_ = 0;
};

int value_at(CUdeviceptr address) {
  int value;
  OK(cuMemcpyDtoH(&value, address, sizeof value));
  return value;
}

/// What comes later on the stream comes a little later.
void nap(CUstream stream) {
  OK(cuLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
}

/// One thread, whose end the launch itself records.
CUresult launch_recording(CUevent event, CUfunction function, CUstream stream, void** arguments) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  attribute.value.programmaticEvent.event = event;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cuLaunchKernelEx(&config, function, arguments, nullptr);
}

/// A kernel node's parameters, with the arguments they point to.
template <class... Arguments>
class KernelCall {
 public:
  KernelCall(CUfunction function, Arguments... arguments) : arguments_(arguments...) {
    std::apply([&](auto&... each) { ((pointers_[count_++] = &each), ...); }, arguments_);
    params.func = function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers_;
  }
  CUDA_KERNEL_NODE_PARAMS params = {};

 private:
  std::tuple<Arguments...> arguments_;
  void* pointers_[sizeof...(Arguments)];
  size_t count_ = 0;
};

class Graph {
 public:
  Graph() { OK(cuGraphCreate(&graph_, 0)); }
  explicit Graph(CUgraph graph) : graph_(graph) {}
  ~Graph() {
    if (executable_ != nullptr) cuGraphExecDestroy(executable_);
    cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  operator CUgraph() const { return graph_; }
  CUgraphExec executable() {
    if (executable_ == nullptr) OK(cuGraphInstantiateWithFlags(&executable_, graph_, 0));
    return executable_;
  }
  void launch(CUstream stream) {
    OK(cuGraphLaunch(executable(), stream));
    OK(cuStreamSynchronize(stream));
  }
  template <class Call>
  CUgraphNode add_kernel(Call&& call, std::vector<CUgraphNode> after = {}) {
    CUgraphNode node;
    OK(cuGraphAddKernelNode(&node, graph_, after.data(), after.size(), &call.params));
    return node;
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

size_t count_nodes(CUgraph graph) {
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

}  // namespace

// Work of one stream is done in order.
CASE(order) {
  Kernels kernels;
  Buffer<int> value(1);
  Stream stream;
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 1));
  int wanted = 1;
  for (int i = 0; i < 200; ++i) {
    OK(kernels.try_launch("scale_and_add", {}, {1}, 0, stream, value.address(), 3, i));
    wanted = static_cast<int>(static_cast<unsigned>(wanted) * 3 + static_cast<unsigned>(i));
  }
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(value.address()) == wanted);
}

CASE(asynchronous) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  Stream stream(CU_STREAM_NON_BLOCKING);
  OK(kernels.try_launch("wait_for", {}, {1}, 0, stream, flag.address(), 1));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 5));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  flag.set(1);
  OK(cuStreamSynchronize(stream));
  OK(cuStreamQuery(stream));
  HOLDS(value_at(value.address()) == 5);
}

// The legacy default stream waits for all blocking streams, and they for it.
CASE(default_stream) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  Stream first, second, independent(CU_STREAM_NON_BLOCKING);
  OK(kernels.try_launch("wait_for", {}, {1}, 0, first, flag.address(), 1));
  OK(kernels.try_launch("set", {}, {1}, 0, first, value.address(), 10));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, nullptr, value.address(), 2, 1));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, second, value.address(), 2, 3));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  OK(cuStreamQuery(independent));
  flag.set(1);
  OK(cuStreamSynchronize(second));
  HOLDS(value_at(value.address()) == 45);
}

CASE(per_thread_streams) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  CUfunction wait = kernels.get("wait_for"), set = kernels.get("set");
  CUdeviceptr flag_address = flag.address(), value_address = value.address();
  int one = 1;
  void* wait_arguments[] = {&flag_address, &one};
  OK(cuLaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, wait_arguments, nullptr));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  // Another thread's stream is another one.
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    int seven = 7;
    void* arguments[] = {&value_address, &seven};
    result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS)
      result = cuLaunchKernel(set, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, arguments, nullptr);
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(CU_STREAM_PER_THREAD);
  }).join();
  OK(result);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  flag.set(1);
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  HOLDS(value_at(value.address()) == 7);
}

CASE(events) {
  Kernels kernels;
  Flag flag;
  Stream stream;
  Event start, end, unrecorded, without_time(CU_EVENT_DISABLE_TIMING);
  OK(cuEventQuery(unrecorded));
  OK(cuEventSynchronize(unrecorded));
  OK(cuEventRecord(start, stream));
  OK(kernels.try_launch("wait_for", {}, {1}, 0, stream, flag.address(), 1));
  OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, stream, 5000ll));
  OK(cuEventRecord(end, stream));
  OK(cuEventRecord(without_time, stream));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(end));
  float milliseconds = -1;
  GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, start, end));
  flag.set(1);
  OK(cuEventSynchronize(end));
  OK(cuEventElapsedTime(&milliseconds, start, end));
  HOLDS(milliseconds >= 4.9f && milliseconds < 5000);
  OK(cuEventSynchronize(without_time));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, without_time));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, unrecorded));
}

// As programs do that have something else to do meanwhile: no other call brings the answer.
CASE(polled_events) {
  Stream stream;
  Event event(CU_EVENT_DISABLE_TIMING);
  const auto poll = [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && std::chrono::steady_clock::now() < end) result = cuEventQuery(event);
    return result;
  };
  for (const size_t bytes : {size_t{4096}, size_t{1} << 20, size_t{16} << 20}) {
    void* pinned = nullptr;
    OK(cuMemHostAlloc(&pinned, bytes, 0));
    Buffer<char> memory(bytes);
    std::memset(pinned, 7, bytes);
    OK(cuMemcpyHtoDAsync(memory.address(), pinned, bytes, stream));
    OK(cuEventRecord(event, stream));
    OK(poll());
    std::memset(pinned, 0, bytes);
    OK(cuMemcpyDtoHAsync(pinned, memory.address(), bytes, stream));
    OK(cuEventRecord(event, stream));
    OK(poll());
    HOLDS(static_cast<char*>(pinned)[0] == 7 && static_cast<char*>(pinned)[bytes - 1] == 7);
    OK(cuMemFreeHost(pinned));
  }
}

CASE(waiting_for_events) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  Stream producer(CU_STREAM_NON_BLOCKING), consumer(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING);
  OK(kernels.try_launch("wait_for", {}, {1}, 0, producer, flag.address(), 1));
  OK(kernels.try_launch("set", {}, {1}, 0, producer, value.address(), 20));
  OK(cuEventRecord(event, producer));
  OK(cuStreamWaitEvent(consumer, event, 0));
  // What is recorded later does not count.
  OK(kernels.try_launch("wait_for", {}, {1}, 0, producer, flag.address(), 2));
  OK(cuEventRecord(event, producer));
  OK(kernels.try_launch("add", {}, {1}, 0, consumer, value.address(), 3));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(consumer));
  flag.set(1);
  OK(cuStreamSynchronize(consumer));
  HOLDS(value_at(value.address()) == 23);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(producer));
  flag.set(2);
  OK(cuStreamSynchronize(producer));
}

CASE(host_functions) {
  Kernels kernels;
  Stream stream;
  Buffer<int> value(1);
  struct Log {
    std::vector<int> entries;
    int copied = 0;
  } log;
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 9));
  OK(cuMemcpyDtoHAsync(&log.copied, value.address(), 4, stream));
  OK(cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* seen = static_cast<Log*>(data);
        seen->entries.push_back(seen->copied);
      },
      &log));
  OK(cuStreamAddCallback(
      stream, [](CUstream, CUresult status, void* data) { static_cast<Log*>(data)->entries.push_back(100 + status); },
      &log, 0));
  OK(cuStreamSynchronize(stream));
  HOLDS((log.entries == std::vector<int>{9, 100}));
}

CASE(memory_operations) {
  Kernels kernels;
  Buffer<int> words(4), value(1);
  words.clear();
  Stream waiting(CU_STREAM_NON_BLOCKING), writing(CU_STREAM_NON_BLOCKING);
  OK(cuStreamWaitValue32(waiting, words.address(), 5, CU_STREAM_WAIT_VALUE_GEQ));
  OK(kernels.try_launch("set", {}, {1}, 0, waiting, value.address(), 31));
  OK(cuStreamWriteValue32(waiting, words.address() + 8, 77, 0));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  OK(cuStreamWriteValue32(writing, words.address(), 6, 0));
  OK(cuStreamSynchronize(writing));
  OK(cuStreamSynchronize(waiting));
  HOLDS(value_at(value.address()) == 31);
  HOLDS(value_at(words.address() + 8) == 77);
  // A kernel's write wakes a waiting stream, too.
  OK(cuStreamWaitValue32(waiting, words.address() + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
  kernels.run("set", {}, {1}, words.address() + 4, 1);
  OK(cuStreamSynchronize(waiting));
}

CASE(memory_operations_on_the_host) {
  Kernels kernels;
  Buffer<int> value(1), copied(1);
  value.clear();
  Flag go, done;
  Stream stream(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  int* source;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&source), sizeof(int), 0));
  *source = 1;
  OK(cuStreamWaitValue32(stream, go.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuMemcpyHtoDAsync(copied.address(), source, sizeof(int), stream));
  OK(kernels.try_launch("copy_value", {}, {1}, 0, stream, copied.address(), value.address()));
  OK(cuStreamWriteValue32(stream, done.address(), 9, 0));
  // Others are not held up meanwhile.
  OK(kernels.try_launch("set", {}, {1}, 0, other, value.address(), 7));
  OK(cuStreamSynchronize(other));
  HOLDS(value_at(value.address()) == 7);
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  *source = 42;
  go.set(1);
  for (int i = 0; i < 10000 && done.get() != 9; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  HOLDS(done.get() == 9);
  HOLDS(value_at(value.address()) == 42);
  OK(cuStreamSynchronize(stream));
  OK(cuMemFreeHost(source));
}

CASE(memory_operations_in_a_batch) {
  Kernels kernels;
  Buffer<int> words(8);
  words.clear();
  Stream waiting(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  CUstreamBatchMemOpParams ops[4] = {};
  ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[0].writeValue.address = words.address();
  ops[0].writeValue.value = 3;
  ops[1].operation = CU_STREAM_MEM_OP_BARRIER;
  ops[2].operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  ops[2].waitValue.address = words.address() + 8;
  ops[2].waitValue.value64 = 0x500000006;
  ops[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  ops[3].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  ops[3].writeValue.address = words.address() + 16;
  ops[3].writeValue.value64 = 0x700000008;
  OK(cuStreamBatchMemOp(waiting, 4, ops, 0));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  OK(kernels.try_launch("set", {}, {1}, 0, other, words.address() + 8, 6));
  OK(cuStreamSynchronize(other));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  OK(kernels.try_launch("set", {}, {1}, 0, other, words.address() + 12, 5));
  OK(cuStreamSynchronize(waiting));
  expect_same(words.get(), std::vector<int>{3, 0, 6, 5, 8, 7, 0, 0});
  GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(waiting, words.address() + 1, 0, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waiting, 0, 0, 0));
}

CASE(batch_copies) {
  Kernels kernels;
  Stream stream(CU_STREAM_NON_BLOCKING);
  Buffer<int> first(16), second(16);
  first.clear();
  second.clear();
  std::vector<int> from(16), back(16);
  for (int i = 0; i < 16; ++i) from[i] = 10 + i;
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  auto host = [](std::vector<int>& of) { return reinterpret_cast<CUdeviceptr>(of.data()); };
  CUdeviceptr to[] = {first.address(), second.address()}, of[] = {host(from), host(from) + 32};
  size_t sizes[] = {32, 16}, starts[] = {0, 1};
  OK(cuMemcpyBatchAsync(to, of, sizes, 2, attributes, starts, 1, stream));
  std::fill(from.begin(), from.end(), 0);
  OK(kernels.try_launch("add", {}, {1}, 0, stream, first.address(), 100));
  CUdeviceptr onward[] = {second.address() + 32, host(back)}, parts[] = {first.address(), second.address()};
  OK(cuMemcpyBatchAsync(onward, parts, sizes, 1, attributes + 1, starts, 1, stream));
  sizes[0] = 64;
  OK(cuMemcpyBatchAsync(onward + 1, parts + 1, sizes, 1, attributes, starts, 1, stream));
  OK(cuStreamSynchronize(stream));
  expect_same(back, std::vector<int>{18, 19, 20, 21, 0, 0, 0, 0, 110, 11, 12, 13, 14, 15, 16, 17});
  // Rows of two ints, every four.
  CUDA_MEMCPY3D_BATCH_OP shaped = {};
  shaped.src.type = shaped.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  shaped.src.op.ptr.ptr = second.address();
  shaped.src.op.ptr.rowLength = 16;
  shaped.dst.op.ptr.ptr = first.address();
  shaped.extent = {8, 4, 1};
  shaped.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  OK(cuMemcpy3DBatchAsync(1, &shaped, 0, stream));
  OK(cuStreamSynchronize(stream));
  std::vector<int> packed = first.get();
  packed.resize(8);
  expect_same(packed, std::vector<int>{18, 19, 0, 0, 110, 11, 14, 15});
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, of, sizes, 1, attributes, starts, 1, nullptr));
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, of, sizes, 1, attributes, starts, 1, stream));
}

CASE(stream_attributes) {
  Stream stream, other;
  CUstreamAttrValue value = {};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  OK(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  int least, greatest, priority;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  value = {};
  value.priority = greatest;
  OK(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  OK(cuStreamCopyAttributes(other, stream));
  value = {};
  OK(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  HOLDS(value.syncPolicy == CU_SYNC_POLICY_BLOCKING_SYNC);
  OK(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  HOLDS(value.priority == greatest);
  OK(cuStreamGetPriority(other, &priority));
  HOLDS(priority == greatest);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
}

CASE(context_events) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  Flag go;
  Buffer<int> value(2);
  value.clear();
  Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
  Event event;
  OK(cuStreamWaitValue32(first, go.address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(kernels.try_launch("set", {}, {1}, 0, first, value.address(), 5));
  OK(cuCtxRecordEvent(context, event));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  OK(cuCtxWaitEvent(context, event));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, second, value.address(), 2, 1));
  Stream third(CU_STREAM_NON_BLOCKING);  // made later, and waits all the same
  OK(cuMemsetD32Async(value.address() + 4, 1, 1, third));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(third));
  go.set(1);
  OK(cuEventSynchronize(event));
  OK(cuCtxSynchronize());
  expect_same(value.get(), std::vector<int>{11, 1});
}

CASE(green_contexts) {
  Kernels kernels;
  CUdevResource all, group, rest;
  OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  HOLDS(all.sm.smCount >= 8 && all.sm.minSmPartitionSize == 8 && all.sm.smCoscheduledAlignment == 8);
  unsigned count = 1;
  OK(cuDevSmResourceSplitByCount(&group, &count, &all, &rest, 0, 3));
  HOLDS(count == 1 && group.sm.smCount == 8 && rest.sm.smCount == all.sm.smCount - 8);
  GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        cuDevSmResourceSplitByCount(&group, &count, &all, nullptr, 0, all.sm.smCount + 1));
  CUdevResourceDesc description;
  OK(cuDevResourceGenerateDesc(&description, &group, 1));
  CUgreenCtx green, found;
  OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream;
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  OK(cuStreamGetGreenCtx(stream, &found));
  HOLDS(found == green);
  // A green context works on memory of the primary one, and with its kernels.
  CUcontext primary, before, converted;
  OK(cuCtxGetCurrent(&before));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  {
    CUmodule module;
    CUfunction add;
    OK(cuModuleLoadData(&module, kernel_image));
    OK(cuModuleGetFunction(&add, module, "add"));
    Buffer<int> value(1);
    value.clear();
    CUdeviceptr address = value.address();
    int amount = 5;
    void* arguments[] = {&address, &amount};
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxFromGreenCtx(&converted, green));
    OK(cuCtxPushCurrent(converted));
    CUdevResource own;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevResource(nullptr, &own, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuCtxGetDevResource(converted, &own, CU_DEV_RESOURCE_TYPE_SM));
    HOLDS(own.sm.smCount == 8);
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent(nullptr));
    HOLDS(value_at(value.address()) == 10);
    OK(cuStreamDestroy(stream));
    OK(cuGreenCtxDestroy(green));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy(green));
    HOLDS(value_at(value.address()) == 10);
    OK(cuModuleUnload(module));
  }
  OK(cuCtxSetCurrent(before));
  OK(cuDevicePrimaryCtxRelease(0));
}

CASE(priorities) {
  int least, greatest, priority;
  unsigned flags;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  HOLDS(greatest <= least);
  CUstream stream;
  OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  OK(cuStreamGetPriority(stream, &priority));
  OK(cuStreamGetFlags(stream, &flags));
  HOLDS(priority == greatest);
  HOLDS(flags == CU_STREAM_NON_BLOCKING);
  unsigned long long id, other;
  OK(cuStreamGetId(stream, &id));
  OK(cuStreamGetId(nullptr, &other));
  HOLDS(id != other);
  OK(cuStreamDestroy(stream));
}

CASE(many_streams) {
  Kernels kernels;
  constexpr int streams = 16, rounds = 25;
  Buffer<int> values(streams);
  values.clear();
  std::vector<std::unique_ptr<Stream> > all;
  for (int i = 0; i < streams; ++i)
    all.push_back(std::make_unique<Stream>(i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  for (int round = 0; round < rounds; ++round)
    for (int i = 0; i < streams; ++i)
      OK(kernels.try_launch("scale_and_add", {}, {1}, 0, *all[i], values.address() + 4 * static_cast<unsigned>(i), 3,
                            i));
  OK(cuCtxSynchronize());
  std::vector<int> wanted(streams);
  for (int round = 0; round < rounds; ++round)
    for (int i = 0; i < streams; ++i)
      wanted[i] = static_cast<int>(static_cast<unsigned>(wanted[i]) * 3 + static_cast<unsigned>(i));
  expect_same(values.get(), wanted);
}

CASE(many_threads) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  constexpr int threads = 8, rounds = 30;
  std::vector<CUresult> results(threads, CUDA_SUCCESS);
  std::vector<int> sums(threads);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      auto note = [&](CUresult result) {
        if (results[t] == CUDA_SUCCESS) results[t] = result;
      };
      note(cuCtxSetCurrent(context));
      CUstream stream;
      CUdeviceptr memory;
      note(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      note(cuMemAlloc(&memory, 4));
      note(cuMemsetD32Async(memory, 0, 1, stream));
      for (int round = 0; round < rounds; ++round)
        note(kernels.try_launch("add", {}, {1}, 0, stream, memory, t + round));
      note(cuMemcpyDtoHAsync(&sums[t], memory, 4, stream));
      note(cuStreamSynchronize(stream));
      note(cuMemFree(memory));
      note(cuStreamDestroy(stream));
    });
  }
  for (std::thread& thread : all) thread.join();
  for (int t = 0; t < threads; ++t) {
    OK(results[t]);
    HOLDS(sums[t] == rounds * t + rounds * (rounds - 1) / 2);
  }
}

CASE(destroyed_while_busy) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  CUstream stream;
  CUevent event;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, 0));
  OK(kernels.try_launch("wait_for", {}, {1}, 0, stream, flag.address(), 1));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 4));
  OK(cuEventRecord(event, stream));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));  // its work goes on
  flag.set(1);
  OK(cuCtxSynchronize());
  HOLDS(value_at(value.address()) == 4);
}

// Nobody can name the stream any more, but its work is the context's, and the memory that it uses is not free.
CASE(destroyed_while_busy_for_long) {
  Kernels kernels;
  Buffer<int> value(1);
  for (int round = 1; round < 4; ++round) {
    CUstream stream;
    CUdeviceptr used;
    OK(cuMemAlloc(&used, sizeof(int)));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(kernels.try_launch("set", {}, {1}, 0, stream, used, round));
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, stream, 50000ll));
    OK(kernels.try_launch("copy_value", {}, {1}, 0, stream, used, value.address()));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(used));
    CUdeviceptr next;
    OK(cuMemAlloc(&next, sizeof(int)));
    OK(cuMemsetD32(next, 99, 1));
    OK(cuCtxSynchronize());
    HOLDS(value_at(value.address()) == round);
    OK(cuMemFree(next));
  }
}

CASE(graph_of_kernels) {
  Kernels kernels;
  Buffer<int> value(1), other(1);
  CUfunction scale = kernels.get("scale_and_add"), copy = kernels.get("copy_value");
  Graph graph;
  CUgraphNode first = graph.add_kernel(KernelCall(kernels.get("set"), value.address(), 1));
  CUgraphNode second = graph.add_kernel(KernelCall(scale, value.address(), 10, 2), {first});
  CUgraphNode third = graph.add_kernel(KernelCall(copy, value.address(), other.address()), {second});
  CUgraphNode fourth = graph.add_kernel(KernelCall(scale, value.address(), 10, 3), {third});
  CUgraphNode fifth = graph.add_kernel(KernelCall(scale, other.address(), 2, 0), {third});
  graph.add_kernel(KernelCall(copy, other.address(), value.address() + 0), {fourth, fifth});
  Stream stream;
  for (int i = 0; i < 3; ++i) graph.launch(stream);
  HOLDS(value_at(value.address()) == 24);
  HOLDS(value_at(other.address()) == 24);

  // Other arguments for one node of the instantiated graph.
  KernelCall changed(scale, other.address(), 5, 1);
  OK(cuGraphExecKernelNodeSetParams(graph.executable(), fifth, &changed.params));
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 61);
  // The graph itself still has the old ones, and a node can be switched off.
  CUDA_KERNEL_NODE_PARAMS params = {};
  OK(cuGraphKernelNodeGetParams(fifth, &params));
  HOLDS(*static_cast<int*>(params.kernelParams[1]) == 2);
  OK(cuGraphNodeSetEnabled(graph.executable(), fifth, 0));
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 12);

  size_t count = 0;
  OK(cuGraphGetRootNodes(graph, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  HOLDS(count == 6);
  CUgraphNode from[6], to[6];
  OK(cuGraphGetEdges(graph, from, to, nullptr, &count));
  OK(cuGraphNodeGetDependentNodes(third, nullptr, nullptr, &count));
  HOLDS(count == 2);
  CUgraphNodeType type;
  OK(cuGraphNodeGetType(third, &type));
  HOLDS(type == CU_GRAPH_NODE_TYPE_KERNEL);
}

CASE(graph_of_all_kinds) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  constexpr int count = 100;
  Buffer<int> values(count), copies(count);
  std::vector<int> host(count);
  Stream stream, recording;
  Event event, before;
  int called = 0;

  Graph child;
  child.add_kernel(KernelCall(kernels.get("fill"), values.address(), 7, 1));
  Graph graph;
  CUgraphNode empty, memset, fill, nested, copy, function, record, wait;
  OK(cuGraphAddEmptyNode(&empty, graph, nullptr, 0));
  OK(cuEventRecord(before, recording));
  OK(cuGraphAddEventWaitNode(&wait, graph, &empty, 1, before));
  CUDA_MEMSET_NODE_PARAMS set = {};
  set.dst = values.address();
  set.value = 5;
  set.elementSize = 4;
  set.width = count;
  set.height = 1;
  OK(cuGraphAddMemsetNode(&memset, graph, &wait, 1, &set, context));
  KernelCall add(kernels.get("add"), values.address() + 4, 3);
  OK(cuGraphAddKernelNode(&fill, graph, &memset, 1, &add.params));
  OK(cuGraphAddChildGraphNode(&nested, graph, &fill, 1, child));
  CUDA_MEMCPY3D transfer = {};
  transfer.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  transfer.srcDevice = values.address();
  transfer.dstMemoryType = CU_MEMORYTYPE_HOST;
  transfer.dstHost = host.data();
  transfer.WidthInBytes = count * 4;
  transfer.Height = transfer.Depth = 1;
  OK(cuGraphAddMemcpyNode(&copy, graph, &nested, 1, &transfer, context));
  CUDA_HOST_NODE_PARAMS host_params = {};
  host_params.fn = [](void* data) { ++*static_cast<int*>(data); };
  host_params.userData = &called;
  OK(cuGraphAddHostNode(&function, graph, &copy, 1, &host_params));
  OK(cuGraphAddEventRecordNode(&record, graph, &function, 1, event));
  HOLDS(count_nodes(graph) == 8);
  graph.launch(stream);
  OK(cuEventSynchronize(event));
  HOLDS(called == 1);
  std::vector<int> wanted(count, 5);
  wanted[0] = 7;
  wanted[1] = 8;
  expect_same(host, wanted);

  // A clone lives on its own.
  CUgraph clone_handle;
  OK(cuGraphClone(&clone_handle, graph));
  Graph clone(clone_handle);
  CUgraphNode cloned;
  OK(cuGraphNodeFindInClone(&cloned, function, clone));
  OK(cuGraphDestroyNode(cloned));
  HOLDS(count_nodes(clone) == 7);
  HOLDS(count_nodes(graph) == 8);
  clone.launch(stream);
  HOLDS(called == 1);
  graph.launch(stream);
  HOLDS(called == 2);
}

CASE(graph_cycles) {
  Graph graph;
  CUgraphNode a, b, c;
  OK(cuGraphAddEmptyNode(&a, graph, nullptr, 0));
  OK(cuGraphAddEmptyNode(&b, graph, &a, 1));
  OK(cuGraphAddEmptyNode(&c, graph, &b, 1));
  OK(cuGraphAddDependencies(graph, &a, &c, nullptr, 1));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &a, &c, nullptr, 1));
  OK(cuGraphRemoveDependencies(graph, &a, &c, nullptr, 1));
  OK(cuGraphAddDependencies(graph, &c, &a, nullptr, 1));
  CUgraphExec executable;
  CUresult result = cuGraphInstantiateWithFlags(&executable, graph, 0);
  HOLDS(result == CUDA_ERROR_INVALID_VALUE);
}

CASE(graph_update) {
  Kernels kernels;
  Buffer<int> value(1);
  CUfunction scale = kernels.get("scale_and_add"), set = kernels.get("set");
  Stream stream;
  Graph graph, changed, different;
  CUgraphNode node = graph.add_kernel(KernelCall(set, value.address(), 1));
  graph.add_kernel(KernelCall(scale, value.address(), 2, 3), {node});
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 5);
  node = changed.add_kernel(KernelCall(set, value.address(), 10));
  changed.add_kernel(KernelCall(scale, value.address(), 4, 1), {node});
  CUgraphExecUpdateResultInfo info = {};
  OK(cuGraphExecUpdate(graph.executable(), changed, &info));
  HOLDS(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 41);
  different.add_kernel(KernelCall(set, value.address(), 10));
  GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(graph.executable(), different, &info));
  HOLDS(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

CASE(capture) {
  Kernels kernels;
  Buffer<int> value(1), other(1);
  std::vector<int> host(2);
  Stream stream, side(CU_STREAM_NON_BLOCKING);
  Event fork(CU_EVENT_DISABLE_TIMING), join(CU_EVENT_DISABLE_TIMING);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status;
  OK(cuStreamIsCapturing(stream, &status));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 2));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  OK(cuStreamIsCapturing(side, &status));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, stream, value.address(), 10, 1));
  OK(cuMemsetD32Async(other.address(), 3, 1, side));
  OK(kernels.try_launch("add", {}, {1}, 0, side, other.address(), 4));
  OK(cuEventRecord(join, side));
  OK(cuStreamWaitEvent(stream, join, 0));
  OK(cuMemcpyDtoHAsync(&host[0], value.address(), 4, stream));
  OK(cuMemcpyDtoHAsync(&host[1], other.address(), 4, stream));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
  CUgraph captured;
  // That ended the capture.
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));

  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 2));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, stream, value.address(), 10, 1));
  OK(cuMemsetD32Async(other.address(), 3, 1, side));
  OK(kernels.try_launch("add", {}, {1}, 0, side, other.address(), 4));
  OK(cuEventRecord(join, side));
  OK(cuStreamWaitEvent(stream, join, 0));
  OK(cuMemcpyDtoHAsync(&host[0], value.address(), 4, stream));
  OK(cuMemcpyDtoHAsync(&host[1], other.address(), 4, stream));
  OK(cuStreamEndCapture(stream, &captured));
  HOLDS(host[0] == 0);  // nothing has run yet
  Graph graph(captured);
  HOLDS(count_nodes(graph) == 6);
  graph.launch(stream);
  expect_same(host, {21, 7});
}

// What the stream was given before runs, whenever that is, and is no part of the graph.
CASE(capture_behind_work) {
  Kernels kernels;
  Buffer<int> value(2);
  value.clear();
  Stream stream;
  nap(stream);
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 5));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address() + sizeof(int), 7));
  CUgraph captured;
  OK(cuStreamEndCapture(stream, &captured));
  Graph graph(captured);
  HOLDS(count_nodes(graph) == 1);
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(value.address()) == 5);
  HOLDS(value_at(value.address() + sizeof(int)) == 0);
}

// A wait means the record before it, also where it is recorded again before the wait can begin.
CASE(event_recorded_again_behind_waits) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  value.clear();
  Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING), both(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING);
  nap(both);
  OK(kernels.try_launch("wait_for", {}, {1}, 0, first, flag.address(), 1));
  OK(kernels.try_launch("set", {}, {1}, 0, first, value.address(), 5));
  for (CUstream stream : {CUstream(first), CUstream(second)}) {
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(both, event, 0));
  }
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, both, value.address(), 2, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  flag.set(1);
  OK(cuStreamSynchronize(both));
  HOLDS(value_at(value.address()) == 11);
}

// A launch may record an event itself: also of one that must wait.
CASE(event_of_a_launch) {
  Kernels kernels;
  for (bool waits : {false, true}) {
    Flag flag;
    Buffer<int> value(1);
    value.clear();
    Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
    Event event(CU_EVENT_DISABLE_TIMING);
    if (waits) nap(first);
    CUdeviceptr address = flag.address();
    int wanted = 1;
    void* arguments[] = {&address, &wanted};
    OK(launch_recording(event, kernels.get("wait_for"), first, arguments));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(kernels.try_launch("set", {}, {1}, 0, second, value.address(), 7));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    flag.set(1);
    OK(cuStreamSynchronize(second));
    OK(cuEventSynchronize(event));
    HOLDS(value_at(value.address()) == 7);
  }
}

// That an event was recorded by a launch says nothing of where it was recorded before.
CASE(event_of_a_launch_after_a_record) {
  Kernels kernels;
  Flag flag;
  Buffer<int> value(1);
  Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING);
  OK(kernels.try_launch("wait_for", {}, {1}, 0, first, flag.address(), 1));
  OK(cuEventRecord(event, first));
  CUdeviceptr address = value.address();
  int number = 3;
  void* arguments[] = {&address, &number};
  OK(launch_recording(event, kernels.get("set"), second, arguments));
  OK(cuEventSynchronize(event));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(first));
  flag.set(1);
  OK(cuStreamSynchronize(first));
  HOLDS(value_at(value.address()) == 3);
}

// Programs ask for the shared memory of each launch right before it, also of launches that must wait.
CASE(shared_size_set_for_each_launch) {
  Kernels kernels;
  Buffer<int> value(1);
  value.clear();
  Stream stream;
  const CUfunction add = kernels.get("add");
  const auto ask_for = [&](unsigned bytes) {
    return cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes));
  };
  nap(stream);
  for (unsigned bytes : {50'000u, 90'000u, 60'000u, 1'000u, 70'000u, 2'000u}) {
    OK(ask_for(bytes));
    OK(kernels.try_launch("add", {}, {1}, bytes, stream, value.address(), 1));
  }
  int bytes;
  OK(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add));
  HOLDS(bytes == 2'000);
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(value.address()) == 6);
  GIVES(CUDA_ERROR_INVALID_VALUE, kernels.try_launch("add", {}, {1}, 60'000, stream, value.address(), 1));
}

// What a stream was given before it joins a capture is no part of that.
CASE(capture_joined_by_a_busy_stream) {
  Kernels kernels;
  Buffer<int> value(2);
  value.clear();
  Stream stream(CU_STREAM_NON_BLOCKING), side(CU_STREAM_NON_BLOCKING);
  Event fork(CU_EVENT_DISABLE_TIMING), join(CU_EVENT_DISABLE_TIMING);
  nap(side);
  OK(kernels.try_launch("add", {}, {1}, 0, side, value.address(), 5));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  OK(kernels.try_launch("add", {}, {1}, 0, side, value.address() + sizeof(int), 7));
  OK(cuEventRecord(join, side));
  OK(cuStreamWaitEvent(stream, join, 0));
  CUgraph captured;
  OK(cuStreamEndCapture(stream, &captured));
  Graph graph(captured);
  HOLDS(count_nodes(graph) == 1);
  OK(cuStreamSynchronize(side));
  HOLDS(value_at(value.address()) == 5);
  HOLDS(value_at(value.address() + sizeof(int)) == 0);
  graph.launch(stream);
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(value.address()) == 5);
  HOLDS(value_at(value.address() + sizeof(int)) == 7);
}

// An event stands for its last record, whichever stream gets there first.
CASE(event_recorded_again_elsewhere) {
  Kernels kernels;
  Buffer<int> value(1);
  value.clear();
  Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING), third(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING);
  nap(first);
  OK(cuEventRecord(event, first));
  OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, second, 100000ll));
  OK(kernels.try_launch("set", {}, {1}, 0, second, value.address(), 8));
  OK(cuEventRecord(event, second));
  int seen = 0;
  OK(cuStreamWaitEvent(third, event, 0));
  OK(cuMemcpyDtoHAsync(&seen, value.address(), sizeof seen, third));
  OK(cuStreamSynchronize(third));
  HOLDS(seen == 8);
  OK(cuEventSynchronize(event));
}

// The last record counts alone: nobody waits for one before it, whose stream may wait for this thread.
CASE(event_recorded_again_beside_a_function) {
  Kernels kernels;
  struct Wait {
    std::atomic<bool> over{false}, in_vain{false};
    static void CUDA_CB until_over(void* pointer) {
      auto* const wait = static_cast<Wait*>(pointer);
      for (int i = 0; i < 5000 && !wait->over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      wait->in_vain = !wait->over;
    }
  };
  Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING), third(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING);
  for (int way = 0; way < 4; ++way) {
    Wait wait;
    OK(cuLaunchHostFunc(first, Wait::until_over, &wait));
    OK(cuEventRecord(event, first));
    if (way == 3) {
      GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
      OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, second, 20000ll));
    }
    OK(cuEventRecord(event, second));
    if (way == 0) OK(cuEventSynchronize(event));
    if (way == 1) OK(cuStreamWaitEvent(third, event, 0));
    if (way == 1) OK(cuStreamSynchronize(third));
    if (way >= 2) {
      while (cuEventQuery(event) == CUDA_ERROR_NOT_READY && !wait.in_vain) std::this_thread::yield();
    }
    wait.over = true;
    OK(cuStreamSynchronize(first));
    HOLDS(!wait.in_vain);
  }
}

// In a capture too: the stream that waits for the event joins the capture.
CASE(event_recorded_again_in_a_capture) {
  Kernels kernels;
  Buffer<int> value(1);
  value.clear();
  Stream before(CU_STREAM_NON_BLOCKING), captured(CU_STREAM_NON_BLOCKING), joining(CU_STREAM_NON_BLOCKING);
  Event event(CU_EVENT_DISABLE_TIMING), end(CU_EVENT_DISABLE_TIMING);
  nap(before);
  OK(cuEventRecord(event, before));
  OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(kernels.try_launch("add", {}, {1}, 0, captured, value.address(), 1));
  OK(cuEventRecord(event, captured));
  OK(cuStreamWaitEvent(joining, event, 0));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, joining, value.address(), 10, 5));
  OK(cuEventRecord(end, joining));
  OK(cuStreamWaitEvent(captured, end, 0));
  CUgraph made;
  OK(cuStreamEndCapture(captured, &made));
  Graph graph(made);
  HOLDS(count_nodes(graph) == 2);
  HOLDS(value_at(value.address()) == 0);
  graph.launch(captured);
  HOLDS(value_at(value.address()) == 15);
}

// A wait for an event that is itself held back does not let the stream forget the function that runs on it.
CASE(function_before_a_wait_that_is_held) {
  Kernels kernels;
  Buffer<int> value(1);
  struct Slow {
    std::atomic<bool> over{false};
    static void CUDA_CB run(void* pointer) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      static_cast<Slow*>(pointer)->over = true;
    }
  };
  for (int way = 0; way < 3; ++way) {
    Slow slow;
    Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING), third(CU_STREAM_NON_BLOCKING);
    Event event(CU_EVENT_DISABLE_TIMING), behind(CU_EVENT_DISABLE_TIMING);
    nap(first);
    OK(cuEventRecord(event, first));
    OK(cuLaunchHostFunc(second, Slow::run, &slow));
    OK(cuStreamWaitEvent(second, event, 0));
    if (way == 0) OK(cuStreamSynchronize(second));
    if (way == 1) OK(cuEventRecord(behind, second));
    if (way == 1) OK(cuEventSynchronize(behind));
    if (way == 2) {
      OK(kernels.try_launch("set", {}, {1}, 0, second, value.address(), 1));
      while (cuStreamQuery(second) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    }
    HOLDS(slow.over);
  }
}

// A context is waited for, and nothing of another one.
CASE(context_waited_for_beside_another) {
  Kernels kernels;
  Buffer<int> value(1);
  CUcontext first, second;
  OK(cuCtxGetCurrent(&first));
  CUdevice device;
  OK(cuCtxGetDevice(&device));
  OK(cuCtxCreate(&second, nullptr, 0, device));
  CUstream stream;
  CUevent event;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Gate gate(stream);
  OK(cuEventDestroy(event));
  OK(cuCtxSetCurrent(first));
  OK(kernels.try_launch("set", {}, {1}, 0, nullptr, value.address(), 3));
  OK(cuCtxSynchronize());
  HOLDS(value_at(value.address()) == 3);
  gate.open();
  OK(cuCtxSetCurrent(second));
  OK(cuStreamSynchronize(stream));
  HOLDS(!gate.in_vain());
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
}

// Many objects come and go while the ends of some are still to be carried out.
CASE(events_and_streams_beside_held_work) {
  Kernels kernels;
  Buffer<int> value(1);
  Stream stream(CU_STREAM_NON_BLOCKING);
  Gate gate(stream);
  for (int i = 0; i < 2500; ++i) {
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (i % 100 == 0) OK(cuEventRecord(event, stream));
    OK(cuEventDestroy(event));
  }
  OK(kernels.try_launch("set", {}, {1}, 0, stream, value.address(), 4));
  gate.open();
  OK(cuStreamSynchronize(stream));
  HOLDS(!gate.in_vain());
  HOLDS(value_at(value.address()) == 4);
}

// A stream has as much work as may be given to the GPU, while bytes for it are still on their way.
CASE(copy_behind_much_work) {
  Kernels kernels;
  constexpr size_t count = 16 << 20;
  Buffer<int> large(count), out(3);
  int* source;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&source), count * sizeof(int), 0));
  for (int round = 1; round < 4; ++round) {
    for (size_t i = 0; i < count; ++i) source[i] = round * 1000000 + static_cast<int>(i & 0xFFFF);
    out.clear();
    Stream stream(CU_STREAM_NON_BLOCKING);
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, stream, 50000ll));
    for (int i = 0; i < 850; ++i) OK(kernels.try_launch("add", {}, {1}, 0, stream, out.address() + 8, 1));
    OK(cuMemcpyHtoDAsync(large.address(), source, count * sizeof(int), stream));
    for (int i = 0; i < 2; ++i)
      OK(kernels.try_launch("copy_value", {}, {1}, 0, stream, large.address() + (count / (2 - i) - 1) * sizeof(int),
                            out.address() + i * sizeof(int)));
    OK(cuStreamSynchronize(stream));
    const auto got = out.get();
    HOLDS(got[0] == source[count / 2 - 1] && got[1] == source[count - 1] && got[2] == 850);
  }
  OK(cuMemFreeHost(source));
}

// Memory is given out again behind what a stream was given before it joined a capture, or the default stream before one
// joined that waits for it.
CASE(freed_while_a_stream_is_captured) {
  Kernels kernels;
  constexpr size_t bytes = 1 << 20;
  Stream captured(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  Event fork(CU_EVENT_DISABLE_TIMING), join(CU_EVENT_DISABLE_TIMING);
  auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&relaxed));
  for (int round = 0; round < 6; ++round) {
    const bool by_default = round % 2 == 1;
    Stream joining(by_default ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
    const CUstream working = by_default ? nullptr : static_cast<CUstream>(joining);
    CUdeviceptr memory, again;
    OK(cuMemAlloc(&memory, bytes));
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, working, 50000ll));
    OK(kernels.try_launch("set", {}, {1}, 0, working, memory, 1));
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(fork, captured));
    OK(cuStreamWaitEvent(joining, fork, 0));
    OK(cuMemFree(memory));
    OK(cuMemAlloc(&again, bytes));
    OK(cuMemsetD32Async(again, 7, bytes / 4, other));
    OK(cuEventRecord(join, joining));
    OK(cuStreamWaitEvent(captured, join, 0));
    CUgraph made;
    OK(cuStreamEndCapture(captured, &made));
    OK(cuGraphDestroy(made));
    OK(cuStreamSynchronize(other));
    OK(cuStreamSynchronize(working));
    HOLDS(value_at(again) == 7);
    OK(cuMemFree(again));
  }
}

// What waits for a context waits for what a stream was given before it was captured.
CASE(waited_for_during_a_capture) {
  Kernels kernels;
  Buffer<int> value(1), out(1);
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    Stream captured(flags), other(CU_STREAM_NON_BLOCKING);
    Event event(CU_EVENT_DISABLE_TIMING);
    void* pinned;
    OK(cuMemHostAlloc(&pinned, 4096, 0));
    value.clear();
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, captured, 100000ll));
    OK(kernels.try_launch("set", {}, {1}, 0, captured, value.address(), 7));
    OK(cuEventRecord(event, captured));
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemFreeHost(pinned));
    OK(kernels.try_launch("set", {}, {1}, 0, captured, value.address(), 8));
    CUgraph graph;
    OK(cuStreamEndCapture(captured, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(kernels.try_launch("copy_value", {}, {1}, 0, other, value.address(), out.address()));
    OK(cuStreamSynchronize(other));
    HOLDS(value_at(out.address()) == 7);
  }
}

// Memory that is freed is a synchronisation: later work, on whatever stream, comes behind earlier work.
CASE(freed_between) {
  Kernels kernels;
  Buffer<int> value(1), out(1);
  for (int round = 0; round < 5; ++round) {
    Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
    value.clear();
    CUdeviceptr other;
    OK(cuMemAlloc(&other, 64 << 20));
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, first, 50000ll));
    OK(kernels.try_launch("set", {}, {1}, 0, first, value.address(), 7 + round));
    OK(cuMemFree(other));
    OK(kernels.try_launch("copy_value", {}, {1}, 0, second, value.address(), out.address()));
    OK(cuStreamSynchronize(second));
    HOLDS(value_at(out.address()) == 7 + round);
  }
}

// Synchronous copies of memory that the program has marked so are over when they return, for all streams.
CASE(synchronizing_memory) {
  Kernels kernels;
  constexpr size_t count = 16 << 20;
  Buffer<int> from(count), to(count), out(1);
  Stream other(CU_STREAM_NON_BLOCKING);
  int on = 1;
  OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, to.address()));
  for (int round = 1; round <= 5; ++round) {
    OK(cuMemsetD32(from.address(), static_cast<unsigned>(round), count));
    OK(cuMemcpyDtoD(to.address(), from.address(), from.bytes()));
    OK(kernels.try_launch("copy_value", {}, {1}, 0, other, to.address() + from.bytes() - sizeof(int), out.address()));
    OK(cuStreamSynchronize(other));
    HOLDS(value_at(out.address()) == round);
  }
}

// What is freed in the order of the default stream is used again behind what that stream waits for.
CASE(freed_on_the_default_stream) {
  Kernels kernels;
  constexpr size_t bytes = 32 << 20;
  void* source;
  OK(cuMemHostAlloc(&source, bytes, 0));
  memset(source, 1, bytes);
  for (int round = 0; round < 5; ++round) {
    Stream first, second;
    CUdeviceptr memory, again;
    OK(cuMemAllocAsync(&memory, bytes, nullptr));
    OK(cuMemcpyHtoDAsync(memory, source, bytes, first));
    OK(cuMemFreeAsync(memory, nullptr));
    OK(cuMemAllocAsync(&again, bytes, nullptr));
    OK(cuMemsetD8Async(again, 7, bytes, second));
    std::vector<unsigned char> got(bytes);
    OK(cuStreamSynchronize(first));
    OK(cuMemcpyDtoH(got.data(), again, bytes));
    HOLDS(std::count(got.begin(), got.end(), 7) == static_cast<long>(bytes));
    OK(cuMemFreeAsync(again, nullptr));
  }
  OK(cuCtxSynchronize());
  OK(cuMemFreeHost(source));
}

// Launches of one executable graph come one after the other, on whatever streams.
CASE(graph_launches_in_order) {
  Kernels kernels;
  Buffer<int> value(2);
  for (const bool waits_for_an_event : {false, true}) {
    value.clear();
    Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
    Event event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(event, first));
    OK(cuStreamSynchronize(first));
    OK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (waits_for_an_event) OK(cuStreamWaitEvent(first, event, CU_EVENT_WAIT_EXTERNAL));
    OK(kernels.try_launch("add", {}, {1}, 0, first, value.address(), 1));
    CUgraph captured;
    OK(cuStreamEndCapture(first, &captured));
    Graph graph(captured);
    OK(cuGraphUpload(graph.executable(), first));
    nap(first);
    OK(cuGraphLaunch(graph.executable(), first));
    OK(cuGraphLaunch(graph.executable(), second));
    OK(kernels.try_launch("copy_value", {}, {1}, 0, second, value.address(), value.address() + sizeof(int)));
    OK(cuStreamSynchronize(second));
    HOLDS(value_at(value.address() + sizeof(int)) == 2);
    OK(cuStreamSynchronize(first));
  }
}

// An event in a graph, behind a copy to the program: the bytes are there when it has happened. And a copy from the
// program behind a wait for an event, which reads what a copy before that has written.
CASE(graph_with_copies_and_events) {
  Kernels kernels;
  constexpr size_t count = 4 << 20, bytes = count * sizeof(int);
  Buffer<int> from(count), to(count);
  int* pinned;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), bytes, 0));
  std::vector<int> plain(count);
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  Event event(CU_EVENT_DISABLE_TIMING);
  Stream stream(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  const auto copy_between = [&](CUdeviceptr target, CUdeviceptr source) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = source;
    copy.dstDevice = target;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
  };
  for (int* const memory : {plain.data(), pinned}) {
    const auto host = reinterpret_cast<CUdeviceptr>(memory);
    OK(cuMemsetD32(from.address(), 7, count));
    OK(cuStreamSynchronize(nullptr));
    std::fill(memory, memory + count, 1);
    CUgraph made;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemcpyAsync(host, from.address(), bytes, stream));
    OK(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, stream, 200000ll));
    OK(cuStreamEndCapture(stream, &made));
    Graph graph(made);
    OK(cuGraphLaunch(graph.executable(), stream));
    OK(cuEventSynchronize(event));
    HOLDS(std::count(memory, memory + count, 7) == static_cast<long>(count));
    OK(cuStreamSynchronize(stream));
  }
  {
    std::fill(pinned, pinned + count, 1);
    Graph graph;
    CUgraphNode wait, node;
    const auto copy = copy_between(to.address(), reinterpret_cast<CUdeviceptr>(pinned));
    OK(cuGraphAddEventWaitNode(&wait, graph, nullptr, 0, event));
    OK(cuGraphAddMemcpyNode(&node, graph, &wait, 1, &copy, context));
    graph.executable();
    OK(kernels.try_launch("wait_microseconds", {}, {1}, 0, other, 50000ll));
    OK(cuMemcpyDtoHAsync(pinned, from.address(), bytes, other));
    OK(cuEventRecord(event, other));
    graph.launch(stream);
    const auto got = to.get();
    HOLDS(std::count(got.begin(), got.end(), 7) == static_cast<long>(count));
  }
  // The source of a copy in an executable graph becomes memory that kernels have not used.
  {
    int* small;
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&small), 4096, 0));
    std::fill(small, small + 1024, 3);
    std::fill(pinned, pinned + count, 4);
    auto copy = copy_between(to.address(), reinterpret_cast<CUdeviceptr>(small));
    copy.WidthInBytes = 4096;
    Graph graph;
    CUgraphNode node;
    OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, context));
    graph.launch(stream);
    HOLDS(value_at(to.address()) == 3);
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(pinned);
    OK(cuGraphExecMemcpyNodeSetParams(graph.executable(), node, &copy, context));
    graph.launch(stream);
    HOLDS(value_at(to.address()) == 4);
    OK(cuMemFreeHost(small));
  }
  OK(cuMemFreeHost(pinned));
}

// Where the failure is told depends on whether the call is waited for. Afterwards the stream is as before.
CASE(a_captured_call_fails) {
  Buffer<unsigned char> bytes(4096);
  Stream stream(CU_STREAM_NON_BLOCKING);
  CUDA_ARRAY_DESCRIPTOR shape = {};
  shape.Width = 64;
  shape.Height = 16;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  CUarray array;
  OK(cuArrayCreate(&array, &shape));
  CUDA_MEMCPY3D beyond = {};
  beyond.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  beyond.srcDevice = bytes.address();
  beyond.srcPitch = 256;
  beyond.srcHeight = 16;
  beyond.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  beyond.dstArray = array;
  beyond.dstY = 15;
  beyond.WidthInBytes = 256;
  beyond.Height = 4;
  beyond.Depth = 1;
  for (int pause : {0, 100}) {
    bytes.clear();
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(bytes.address(), 5, 16, stream));
    cuMemcpy3DAsync(&beyond, stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) OK(cuGraphDestroy(graph));
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(stream, &status));
    HOLDS(status == CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuMemsetD8Async(bytes.address(), 9, bytes.bytes(), stream));
    OK(cuStreamSynchronize(stream));
    expect_same(bytes.get(), std::vector<unsigned char>(4096, 9));
  }
  OK(cuArrayDestroy(array));
}

CASE(capture_errors) {
  Kernels kernels;
  Buffer<int> value(1);
  Stream stream, side(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  Event fork(CU_EVENT_DISABLE_TIMING);
  CUgraph captured = nullptr;
  GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(stream, &captured));
  // A stream that was drawn in has to be joined again.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  OK(kernels.try_launch("set", {}, {1}, 0, side, value.address(), 2));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &captured));
  // Only where a capture began can it end.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(fork, stream));
  OK(cuStreamWaitEvent(side, fork, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(side, &captured));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));
  // An executable graph cannot become part of another one.
  Graph graph;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuGraphLaunch(graph.executable(), stream));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));
  // Waiting for everything is never possible.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));
  // The legacy stream would have to wait for the capturing one.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, kernels.try_launch("set", {}, {1}, 0, nullptr, value.address(), 2));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));
  // In the global mode calls that might wait are forbidden everywhere,
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr memory;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&memory, 16));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &captured));
  // unless a thread says it knows what it does.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  HOLDS(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  OK(cuMemAlloc(&memory, 16));
  OK(cuMemFree(memory));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuStreamEndCapture(stream, &captured));
  OK(cuGraphDestroy(captured));
  // Other streams are free to work.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(kernels.try_launch("set", {}, {1}, 0, other, value.address(), 8));
  OK(cuStreamEndCapture(stream, &captured));
  OK(cuGraphDestroy(captured));
  OK(cuStreamSynchronize(other));
  HOLDS(value_at(value.address()) == 8);
}

CASE(capture_into_graph) {
  Kernels kernels;
  Buffer<int> value(1);
  Stream stream;
  Graph graph;
  CUgraphNode first = graph.add_kernel(KernelCall(kernels.get("set"), value.address(), 4));
  OK(cuStreamBeginCaptureToGraph(stream, graph, &first, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(kernels.try_launch("scale_and_add", {}, {1}, 0, stream, value.address(), 3, 1));
  CUstreamCaptureStatus status;
  cuuint64_t id;
  CUgraph seen;
  const CUgraphNode* dependencies;
  size_t count;
  OK(cuStreamGetCaptureInfo(stream, &status, &id, &seen, &dependencies, nullptr, &count));
  HOLDS(seen == graph && count == 1);
  CUgraph captured;
  OK(cuStreamEndCapture(stream, &captured));
  HOLDS(captured == graph);
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 13);
}

CASE(captured_stream_destroyed) {
  Kernels kernels;
  Stream stream(CU_STREAM_NON_BLOCKING);
  Event forked, joined;
  Buffer<int> value(1);
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(forked, stream));
  {
    Stream other(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWaitEvent(other, forked, 0));
    OK(kernels.try_launch("set", {}, {1}, 0, other, value.address(), 21));
    OK(cuEventRecord(joined, other));
    OK(cuStreamWaitEvent(stream, joined, 0));
  }
  CUgraph captured;
  OK(cuStreamEndCapture(stream, &captured));
  Graph graph(captured);
  value.clear();
  graph.launch(stream);
  HOLDS(value_at(value.address()) == 21);

  // What it did must have been joined.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(forked, stream));
  {
    Stream other(CU_STREAM_NON_BLOCKING);
    OK(cuStreamWaitEvent(other, forked, 0));
    OK(kernels.try_launch("set", {}, {1}, 0, other, value.address(), 22));
  }
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream, &captured));
}

CASE(graph_memory) {
  Kernels kernels;
  Stream stream;
  Buffer<int> value(1);
  // Memory that lives for one run of the graph.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUdeviceptr memory;
  OK(cuMemAllocAsync(&memory, 1024, stream));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, memory, 12));
  OK(kernels.try_launch("copy_value", {}, {1}, 0, stream, memory, value.address()));
  OK(cuMemFreeAsync(memory, stream));
  CUgraph captured;
  OK(cuStreamEndCapture(stream, &captured));
  Graph graph(captured);
  HOLDS(count_nodes(graph) == 4);
  for (int i = 0; i < 3; ++i) {
    value.clear();
    graph.launch(stream);
    HOLDS(value_at(value.address()) == 12);
  }
}

CASE(graph_memory_kept) {
  Kernels kernels;
  Stream stream;
  // What a launch leaves allocated is the program's, until it frees it.
  Graph graph;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.bytesize = 4096;
  CUgraphNode allocated, node;
  OK(cuGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &params));
  HOLDS(params.dptr != 0);
  KernelCall call(kernels.get("set"), params.dptr, 31);
  OK(cuGraphAddKernelNode(&node, graph, &allocated, 1, &call.params));
  CUgraphNodeType type;
  OK(cuGraphNodeGetType(allocated, &type));
  HOLDS(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CUgraphExec exec;
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    OK(cuGraphLaunch(exec, stream));
    OK(kernels.try_launch("add", {}, {1}, 0, stream, params.dptr, i));
    int got = 0;
    OK(cuMemcpyDtoHAsync(&got, params.dptr, sizeof got, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(got == 31 + i);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
    OK(i == 0 ? cuMemFreeAsync(params.dptr, stream) : cuMemFree(params.dptr));
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  for (int i = 0; i < 3; ++i) OK(cuGraphLaunch(exec, stream));
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(params.dptr) == 31);
  OK(cuMemFree(params.dptr));
  OK(cuGraphExecDestroy(exec));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, graph, nullptr, 0, 4096));
}

CASE(graph_memory_freed_elsewhere) {
  Kernels kernels;
  Stream stream;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.bytesize = 4096;
  // Of each graph nothing is left but what was instantiated from it.
  CUgraphExec allocates, frees;
  CUgraphNode allocated, node;
  {
    Graph graph;
    OK(cuGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &params));
    KernelCall call(kernels.get("set"), params.dptr, 17);
    OK(cuGraphAddKernelNode(&node, graph, &allocated, 1, &call.params));
    OK(cuGraphInstantiate(&allocates, graph, 0));
  }
  {
    Graph graph;
    OK(cuGraphAddMemFreeNode(&node, graph, nullptr, 0, params.dptr));
    OK(cuGraphInstantiate(&frees, graph, 0));
  }
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(frees, stream));
  for (int i = 0; i < 3; ++i) {
    OK(cuGraphLaunch(allocates, stream));
    int got = 0;
    OK(cuMemcpyDtoHAsync(&got, params.dptr, sizeof got, stream));
    OK(cuGraphLaunch(frees, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(got == 17);
  }
  OK(cuGraphExecDestroy(allocates));
  OK(cuGraphExecDestroy(frees));
}

CASE(pools) {
  Kernels kernels;
  Stream stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory;
  OK(cuMemAllocAsync(&memory, 1 << 20, stream));
  OK(kernels.try_launch("fill", {1024}, {256}, 0, stream, memory, 5, 1 << 18));
  std::vector<int> got(1 << 18), wanted(1 << 18);
  OK(cuMemcpyDtoHAsync(got.data(), memory, got.size() * 4, stream));
  OK(cuMemFreeAsync(memory, stream));
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < 1 << 18; ++i) wanted[i] = 5 + i;
  expect_same(got, wanted);
  CUmemoryPool pool, current;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuDeviceGetMemPool(&current, 0));
  HOLDS(pool == current);
  cuuint64_t used = 1;
  OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  HOLDS(used == 0);
  OK(cuMemPoolTrimTo(pool, 0));
  // A pool of one's own.
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  OK(cuMemPoolCreate(&current, &props));
  OK(cuMemAllocFromPoolAsync(&memory, 100, current, stream));
  OK(kernels.try_launch("set", {}, {1}, 0, stream, memory, 3));
  OK(cuStreamSynchronize(stream));
  HOLDS(value_at(memory) == 3);
  OK(cuMemPoolGetAttribute(current, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  HOLDS(used >= 100);
  OK(cuMemFreeAsync(memory, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemPoolDestroy(current));
}

#endif
