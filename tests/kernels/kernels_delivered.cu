// By whatever way a program learns that work is complete, what that work copied to pinned memory is there by then. Each
// case copies a new word in each round, and looks at it as soon as one of these ways has told of the copy.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void set(int* to, int value) { *to = value; }

extern "C" __global__ void count(int* to) { *to += 1; }

#else

#include <atomic>

using namespace kernels;

namespace {

// So many that windows of microseconds are met where a driver is slow to look at events (remote_test.SlowLooks).
constexpr int rounds = 200;

struct Stream {
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) { OK(cuStreamCreate(&handle, flags)); }
  ~Stream() { cuStreamDestroy(handle); }
  operator CUstream() const { return handle; }
  CUstream handle = nullptr;
};

struct Event {
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) { OK(cuEventCreate(&handle, flags)); }
  ~Event() { cuEventDestroy(handle); }
  operator CUevent() const { return handle; }
  CUevent handle = nullptr;
};

/// A word of pinned memory.
struct Pinned {
  Pinned() { OK(cuMemAllocHost(reinterpret_cast<void**>(&word), sizeof(int))); }
  ~Pinned() { cuMemFreeHost(word); }
  int now() const { return *static_cast<volatile int*>(word); }
  int* word = nullptr;
};

/// A host function sets it.
struct Told {
  static void CUDA_CB tell(void* told) { static_cast<Told*>(told)->value = true; }
  void await() {
    while (!value.exchange(false)) {}
  }
  std::atomic<bool> value{false};
};

struct Bench {
  explicit Bench(unsigned flags = CU_STREAM_NON_BLOCKING) : stream(flags), other(flags) {}
  /// `learn` gives more work and comes back when the program knows that the copy is complete.
  template <class Learn>
  void each_round(Learn&& learn) {
    for (int round = 1; round <= rounds; ++round) {
      OK(kernels.try_launch("set", {}, {1}, 0, stream, source.address(), round));
      OK(cuMemcpyDtoHAsync(pinned.word, source.address(), sizeof(int), stream));
      learn();
      expect_same<int>({pinned.now()}, {round});
    }
  }
  /// Orders the other stream behind the copy.
  void join() {
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
  }

  Kernels kernels;
  Buffer<int> source{1}, rest{1u << 18};
  Pinned pinned;
  Stream stream, other;
  Event event;
};

}  // namespace

CASE(event_synchronized) {
  Bench b;
  b.each_round([&] {
    OK(cuEventRecord(b.event, b.stream));
    OK(cuEventSynchronize(b.event));
  });
}

// Much other work is given: of that too somebody may want to know when it is complete.
CASE(event_synchronized_among_many) {
  Bench b;
  b.each_round([&] {
    OK(cuEventRecord(b.event, b.stream));
    OK(cuEventSynchronize(b.event));
    for (int i = 0; i < 23; ++i) OK(b.kernels.try_launch("set", {}, {1}, 0, b.stream, b.rest.address(), i));
  });
}

CASE(event_queried) {
  Bench b;
  b.each_round([&] {
    OK(cuEventRecord(b.event, b.stream));
    while (cuEventQuery(b.event) == CUDA_ERROR_NOT_READY) {}
  });
}

CASE(event_of_another_stream) {
  Bench b;
  Event last;
  b.each_round([&] {
    b.join();
    OK(b.kernels.try_launch("set", {}, {1}, 0, b.other, b.rest.address(), 1));
    OK(cuEventRecord(last, b.other));
    OK(cuEventSynchronize(last));
  });
}

CASE(time_between_events) {
  Bench b;
  Event begin(CU_EVENT_DEFAULT), end(CU_EVENT_DEFAULT);
  b.each_round([&] {
    OK(cuEventRecord(begin, b.stream));
    OK(cuEventRecord(end, b.stream));
    float milliseconds = 0;
    while (cuEventElapsedTime(&milliseconds, begin, end) == CUDA_ERROR_NOT_READY) {}
  });
}

CASE(stream_synchronized) {
  Bench b;
  b.each_round([&] { OK(cuStreamSynchronize(b.stream)); });
}

CASE(stream_queried) {
  Bench b;
  b.each_round([&] {
    while (cuStreamQuery(b.stream) == CUDA_ERROR_NOT_READY) {}
  });
}

CASE(another_stream_synchronized) {
  Bench b;
  b.each_round([&] {
    b.join();
    OK(cuStreamSynchronize(b.other));
  });
}

CASE(context_synchronized) {
  Bench b;
  b.each_round([&] { OK(cuCtxSynchronize()); });
}

CASE(legacy_stream_queried) {
  Bench b(CU_STREAM_DEFAULT);
  b.each_round([&] {
    while (cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY) {}
  });
}

// Of two copies to the same memory the later one stays, on whatever streams they are.
CASE(second_of_two_copies) {
  Bench b;
  for (int round = 1; round <= rounds; ++round) {
    OK(b.kernels.try_launch("set", {}, {1}, 0, b.stream, b.source.address(), -round));
    OK(cuMemcpyDtoHAsync(b.pinned.word, b.source.address(), sizeof(int), b.stream));
    b.join();
    OK(b.kernels.try_launch("set", {}, {1}, 0, b.other, b.source.address(), round));
    OK(cuMemcpyDtoHAsync(b.pinned.word, b.source.address(), sizeof(int), b.other));
    OK(cuStreamSynchronize(b.other));
    expect_same<int>({b.pinned.now()}, {round});
  }
}

// Be it one that goes another way because it is larger, and is awaited.
CASE(larger_of_two_copies) {
  Bench b(CU_STREAM_DEFAULT);
  int* words = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&words), 2 * b.rest.bytes()));
  const Buffer<int> large(2 * b.rest.count());
  OK(cuMemsetD32(large.address(), 7, large.count()));
  for (int round = 1; round <= rounds / 4; ++round) {
    OK(cuMemcpyDtoHAsync(words, b.rest.address(), 64u << 10, b.stream));
    OK(cuMemcpyDtoH(words, large.address(), large.bytes()));
    expect_same<int>({words[0], words[100]}, {7, 7});
  }
  OK(cuMemFreeHost(words));
}

// What a copy of the program's own memory has read is there for every context.
CASE(copied_in_for_another_context) {
  Bench b(CU_STREAM_DEFAULT);
  CUcontext first = nullptr, second = nullptr;
  CUdevice device;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxGetDevice(&device));
  OK(cuCtxCreate(&second, nullptr, 0, device));
  CUdeviceptr target = 0;
  OK(cuMemAlloc(&target, b.rest.bytes()));
  std::vector<int> words(b.rest.count());
  for (int round = 1; round <= 20; ++round) {
    words.back() = round;
    OK(cuCtxSetCurrent(first));
    OK(cuMemcpyHtoD(b.rest.address(), words.data(), b.rest.bytes()));
    OK(cuCtxSetCurrent(second));
    OK(cuMemcpyPeer(target, second, b.rest.address(), first, b.rest.bytes()));
    int got = 0;
    OK(cuMemcpyDtoH(&got, target + b.rest.bytes() - sizeof got, sizeof got));
    expect_same<int>({got}, {round});
  }
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(first));
}

// CUDA Driver API, "API synchronization behavior": a copy to pageable memory returns when it is complete.
CASE(word_copied_on_another_stream) {
  Bench b;
  int word = 0;
  b.each_round([&] {
    b.join();
    OK(cuMemcpyDtoHAsync(&word, b.source.address(), sizeof word, b.other));
  });
}

CASE(word_copied_on_the_legacy_stream) {
  Bench b(CU_STREAM_DEFAULT);
  int word = 0;
  b.each_round([&] { OK(cuMemcpyDtoH(&word, b.source.address(), sizeof word)); });
}

CASE(megabyte_copied_on_the_legacy_stream) {
  Bench b(CU_STREAM_DEFAULT);
  std::vector<int> megabyte(b.rest.count());
  b.each_round([&] { OK(cuMemcpyDtoH(megabyte.data(), b.rest.address(), b.rest.bytes())); });
}

// One from pinned memory to the device does so too.
CASE(word_sent_on_the_legacy_stream) {
  Bench b(CU_STREAM_DEFAULT);
  const Pinned sent;
  b.each_round([&] { OK(cuMemcpyHtoD(b.rest.address(), sent.word, sizeof *sent.word)); });
}

CASE(memory_freed) {
  Bench b;
  b.each_round([&] { const Buffer<int> freed(1); });
}

CASE(host_function) {
  Bench b;
  Told told;
  b.each_round([&] {
    OK(cuLaunchHostFunc(b.stream, Told::tell, &told));
    told.await();
  });
}

CASE(host_function_of_another_stream) {
  Bench b;
  Told told;
  b.each_round([&] {
    b.join();
    OK(cuLaunchHostFunc(b.other, Told::tell, &told));
    told.await();
  });
}

// Many at once come in their order, each behind the copy before it.
CASE(host_functions_in_order) {
  Bench b;
  struct Seen {
    const Pinned& pinned;
    std::vector<int> values;
  } seen{b.pinned, {}};
  std::vector<int> wanted;
  for (int round = 1; round <= rounds; ++round) {
    OK(b.kernels.try_launch("set", {}, {1}, 0, b.stream, b.source.address(), round));
    OK(cuMemcpyDtoHAsync(b.pinned.word, b.source.address(), sizeof(int), b.stream));
    const auto look = [](void* data) {
      auto& looked = *static_cast<Seen*>(data);
      looked.values.push_back(looked.pinned.now());
    };
    OK(cuLaunchHostFunc(b.stream, look, &seen));
    wanted.push_back(round);
    if (round % 8 == 0) OK(cuStreamSynchronize(b.stream));
  }
  OK(cuStreamSynchronize(b.stream));
  expect_same(seen.values, wanted);
}

namespace {

/// A graph that counts, copies the count to pinned memory, and may call a host function behind that.
struct Counting {
  explicit Counting(Bench& bench, CUhostFn function = nullptr, void* data = nullptr) : b(bench) {
    b.source.clear();
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(b.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(b.kernels.try_launch("count", {}, {1}, 0, b.stream, b.source.address()));
    OK(cuMemcpyDtoHAsync(b.pinned.word, b.source.address(), sizeof(int), b.stream));
    if (function) OK(cuLaunchHostFunc(b.stream, function, data));
    OK(cuStreamEndCapture(b.stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
  }
  ~Counting() { cuGraphExecDestroy(exec); }
  template <class Learn>
  void each_round(Learn&& learn) {
    for (int round = 1; round <= rounds; ++round) {
      OK(cuGraphLaunch(exec, b.stream));
      learn();
      expect_same<int>({b.pinned.now()}, {round});
    }
  }
  Bench& b;
  CUgraphExec exec = nullptr;
};

}  // namespace

CASE(graph_and_event) {
  Bench b;
  Counting(b).each_round([&] {
    OK(cuEventRecord(b.event, b.stream));
    OK(cuEventSynchronize(b.event));
  });
}

CASE(graph_and_stream) {
  Bench b;
  Counting(b).each_round([&] { OK(cuStreamSynchronize(b.stream)); });
}

CASE(graph_and_copy) {
  Bench b;
  int word = 0;
  Counting(b).each_round([&] {
    b.join();
    OK(cuMemcpyDtoHAsync(&word, b.source.address(), sizeof word, b.other));
  });
}

CASE(graph_and_host_function) {
  Bench b;
  Told told;
  Counting(b, Told::tell, &told).each_round([&] { told.await(); });
}

#endif
