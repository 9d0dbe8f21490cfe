// Memory that the program and kernels use at the same time: each its own words or allocations, or the same words.

#include "harness.h"

#ifdef __CUDACC__

// A task: result = matrix * vector, whole numbers.
extern "C" __global__ void multiply(const int* matrix, const int* vector, int* result, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += matrix[row * n + i] * vector[i];
  result[row] = sum;
}
// Every thread adds one to every word, again and again, as the program may do meanwhile.
extern "C" __global__ void add_to_all(int* words, int count, int rounds) {
  for (int round = 0; round < rounds; ++round)
    for (int i = 0; i < count; ++i) atomicAdd_system(&words[i], 1);
}
// Writes, tells the program so by the first mark, goes on when the second says that the program has written too, and
// tells what it sees.
extern "C" __global__ void both(volatile int* marks, volatile int* data) {
  data[1] = 77;
  data[2] = data[2] + 1;
  reinterpret_cast<volatile unsigned char*>(data)[12] = 9;
  __threadfence_system();
  marks[0] = 1;
  while (marks[1] != 1) {}
  __threadfence_system();
  marks[3] = data[0];
  __threadfence_system();
  marks[2] = 1;
}
// Reads a word, tells the program so by the first mark, and writes the word when the second says that it may.
extern "C" __global__ void store_late(volatile int* marks, volatile int* data) {
  int seen = data[0];
  __threadfence();
  marks[0] = 1;
  while (marks[1] != 1) {}
  data[0] = seen + 1;
}
extern "C" __global__ void add_one(int* word) { *word = *word + 1; }
extern "C" __global__ void store_after(volatile int* word, int value, long long nanoseconds) {
  long long now, end = 0;
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (end == 0) end = now + nanoseconds;
  } while (now < end);
  *word = value;
}
extern "C" __global__ void await_mark(volatile int* mark) {
  while (*mark != 1) {}
  __threadfence_system();
}
extern "C" __global__ void take(const int* from, int* to, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i];
}
// Appends numbers to a queue: the first word says how many there are.
extern "C" __global__ void append(int* queue, int count) {
  for (int i = 0; i < count; ++i) {
    int place = queue[0];
    queue[1 + place] = 7 * place + 1;
    __threadfence_system();
    atomicAdd_system(&queue[0], 1);
  }
}
extern "C" __global__ void odd_words(int* words, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i + 1 < count) words[2 * i + 1] = value;
}

#else

#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <thread>

namespace {

/// Memory that the program and kernels reach at one address.
class Common {
 public:
  enum Kind { managed, pinned, registered };
  Common(Kind kind, size_t count) : kind_(kind) {
    const size_t bytes = count * sizeof(int);
    if (kind == managed) OK(cuMemAllocManaged(&address_, bytes, CU_MEM_ATTACH_GLOBAL));
    if (kind == pinned) OK(cuMemHostAlloc(reinterpret_cast<void**>(&address_), bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    if (kind == registered) {
      own_.resize(bytes + page_bytes);
      void* begin = own_.data();
      size_t room = own_.size();
      std::align(page_bytes, bytes, begin, room);
      OK(cuMemHostRegister(begin, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
      address_ = reinterpret_cast<CUdeviceptr>(begin);
    }
    std::memset(get(), 0, bytes);
    seen_at_ = address_;
    if (kind == registered) OK(cuMemHostGetDevicePointer(&seen_at_, get(), 0));
  }
  ~Common() {
    if (kind_ == managed) cuMemFree(address_);
    if (kind_ == pinned) cuMemFreeHost(get());
    if (kind_ == registered) cuMemHostUnregister(get());
  }
  Common(const Common&) = delete;
  Common& operator=(const Common&) = delete;
  int* get() const { return reinterpret_cast<int*>(address_); }
  CUdeviceptr address() const { return seen_at_; }  // to kernels

 private:
  static constexpr size_t page_bytes = 4096;
  const Kind kind_;
  std::vector<char> own_;
  CUdeviceptr address_ = 0, seen_at_ = 0;
};

struct Task {
  explicit Task(int n)
      : n(n),
        matrix(Common::managed, static_cast<size_t>(n) * n),
        vector(Common::managed, n),
        result(Common::managed, n) {}
  int n;
  Common matrix, vector, result;
};

void attach(CUstream stream, const Task& task, unsigned how) {
  for (const Common* memory : {&task.matrix, &task.vector, &task.result})
    OK(cuStreamAttachMemAsync(stream, memory->address(), 0, how));
}

/// KERNELS_MEMORIES: how many memories program and GPU have.
enum class Memories { unknown, one, one_if_pinned, two };
Memories memories() {
  const char* const text = std::getenv("KERNELS_MEMORIES");
  const std::string_view said = text ? text : "";
  return said == "one"      ? Memories::one
         : said == "pinned" ? Memories::one_if_pinned
         : said == "two"    ? Memories::two
                            : Memories::unknown;
}
bool is_one_memory(Common::Kind kind) {
  return memories() == Memories::one || (memories() == Memories::one_if_pinned && kind == Common::pinned);
}

void await_mark(volatile int* marks, int mark) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (marks[mark] != 1 && std::chrono::steady_clock::now() < end) {}
  const bool passed = marks[mark] == 1;
  if (!passed) marks[1] = 1;  // the kernel ends
  HOLDS(passed);
}

/// What is right, or an error that says that it may not be.
bool right_or_told(CUresult waited, bool right) {
  if (waited == CUDA_ERROR_NOT_SUPPORTED) return true;
  OK(waited);
  return right;
}

}  // namespace

// Small tasks are done by the program's threads, large ones by the GPU, at the same time; each task's memory belongs to
// one side.
CASE(attached_to_streams) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  constexpr int threads = 4, rounds = 3, tasks = 24;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Task> > all;
    std::mt19937 random(round);
    for (int t = 0; t < tasks; ++t) {
      auto& task = *all.emplace_back(std::make_unique<Task>(t % 2 ? 40 + t : 130 + 3 * t));
      for (int i = 0; i < task.n * task.n; ++i) task.matrix.get()[i] = static_cast<int>(random() % 100);
      for (int i = 0; i < task.n; ++i) task.vector.get()[i] = static_cast<int>(random() % 100);
    }
    std::vector<CUstream> streams(threads + 1);
    for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    std::atomic<int> next{0};
    std::atomic<int> failures{0};
    std::vector<std::thread> workers;
    for (int w = 0; w < threads; ++w) {
      workers.emplace_back([&, w] {
        try {
          OK(cuCtxSetCurrent(context));
          for (int t; (t = next++) < tasks;) {
            Task& task = *all[t];
            if (task.n < 100) {
              attach(streams[0], task, CU_MEM_ATTACH_HOST);
              OK(cuStreamSynchronize(streams[0]));
              for (int row = 0; row < task.n; ++row) {
                int sum = 0;
                for (int i = 0; i < task.n; ++i) sum += task.matrix.get()[row * task.n + i] * task.vector.get()[i];
                task.result.get()[row] = sum;
              }
            } else {
              attach(streams[w + 1], task, CU_MEM_ATTACH_SINGLE);
              OK(kernels.try_launch("multiply", {blocks_for(task.n)}, {block_size}, 0, streams[w + 1],
                                    task.matrix.address(), task.vector.address(), task.result.address(), task.n));
            }
          }
        } catch (const kernels::Failed&) {
          ++failures;
        }
      });
    }
    for (auto& worker : workers) worker.join();
    HOLDS(failures == 0);
    OK(cuCtxSynchronize());
    for (int t = 0; t < tasks; ++t) {
      const Task& task = *all[t];
      for (int row = 0; row < task.n; ++row) {
        int sum = 0;
        for (int i = 0; i < task.n; ++i) sum += task.matrix.get()[row * task.n + i] * task.vector.get()[i];
        if (task.result.get()[row] != sum) {
          report("round %d, task %d of %d rows: row %d is %d, not %d", round, t, task.n, row, task.result.get()[row],
                 sum);
          throw kernels::Failed();
        }
      }
    }
    for (CUstream stream : streams) OK(cuStreamDestroy(stream));
  }
}

// The program and kernels add to the same words at the same time. Where each has a copy of its own they take turns, but
// for registered memory, of which the next wait says that they could not.
CASE(both_add) {
  Kernels kernels;
  constexpr int threads = 64, rounds = 50, own = 1000, added = 8, launches = 5;
  // The CUDA runtime launches kernels of libraries.
  CUlibrary library;
  CUkernel kernel;
  CUfunction of_library;
  OK(cuLibraryLoadData(&library, kernel_image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "add_to_all"));
  OK(cuKernelGetFunction(&of_library, kernel));
  const CUfunction functions[] = {kernels.get("add_to_all"), of_library};
  for (int way = 0; way < 6; ++way) {
    const auto kind = way % 3 == 0 ? Common::managed : way % 3 == 1 ? Common::pinned : Common::registered;
    Common words(kind, 1024);
    CUdeviceptr address = words.address();
    int added_by_kernels = added, rounds_of_kernels = rounds;
    void* arguments[] = {&address, &added_by_kernels, &rounds_of_kernels};
    std::thread adds([&] {
      for (int round = 0; round < own; ++round)
        for (int i = 0; i < added; ++i) __atomic_fetch_add(&words.get()[i], 1, __ATOMIC_SEQ_CST);
    });
    for (int launch = 0; launch < launches; ++launch)
      OK(cuLaunchKernel(functions[way / 3], 2, 1, 1, threads / 2, 1, 1, 0, nullptr, arguments, nullptr));
    for (int round = 0; round < own; ++round)
      for (int i = 0; i < added; ++i) __atomic_fetch_add(&words.get()[i], 1, __ATOMIC_SEQ_CST);
    adds.join();
    const CUresult waited = cuCtxSynchronize();
    bool right = true;
    for (int i = 0; i < added; ++i) right = right && words.get()[i] == launches * threads * rounds + 2 * own;
    // CUDA promises it of managed memory; of the host's only where the link has atomics (HOST_NATIVE_ATOMIC_SUPPORTED).
    if (kind != Common::managed && memories() == Memories::unknown) continue;
    if (kind == Common::registered) HOLDS(right_or_told(waited, right));
    else HOLDS(waited == CUDA_SUCCESS && right);
  }
  OK(cuLibraryUnload(library));
}

// Program and kernel write at moments that they tell each other: other words, one word, and bytes of one word. With one
// memory each sees what the other wrote. With two the kernel does not, and the next wait says if a change is lost.
CASE(both_change) {
  Kernels kernels;
  Common mark_memory(Common::pinned, 1 << 20);  // so large that marks pass while a kernel runs
  auto* const marks = reinterpret_cast<volatile int*>(mark_memory.get());
  for (const auto kind : {Common::managed, Common::pinned, Common::registered}) {
    Common memory(kind, 1 << 14);
    auto* const data = reinterpret_cast<volatile int*>(memory.get());
    auto* const bytes = reinterpret_cast<volatile unsigned char*>(memory.get());
    for (int i = 0; i < 4; ++i) marks[i] = 0;
    OK(kernels.try_launch("both", {1}, {1}, 0, nullptr, mark_memory.address(), memory.address()));
    await_mark(marks, 0);
    const int seen = data[1];
    data[0] = 42;
    data[2] = data[2] + 5;
    bytes[13] = 8;
    marks[1] = 1;
    await_mark(marks, 2);
    const int kernel_saw = marks[3];
    const CUresult waited = cuCtxSynchronize();
    const bool kept = data[2] == 6 && bytes[12] == 9 && bytes[13] == 8;
    if (is_one_memory(kind)) {
      HOLDS(waited == CUDA_SUCCESS && kept && seen == 77 && kernel_saw == 42);
      continue;
    }
    if (!kept && waited == CUDA_SUCCESS)
      report("memory of kind %d has %d, %d, %d", static_cast<int>(kind), data[2], bytes[12], bytes[13]);
    HOLDS(right_or_told(waited, kept));
    if (memories() == Memories::unknown) continue;
    // The program reads managed and paged memory as it is when it touches it, and so has the kernel's word ahead of its
    // own. What it writes to paged memory passes while the kernel runs.
    if (kind != Common::pinned) HOLDS(kernel_saw == 0);
    if (kind == Common::registered) HOLDS(waited == CUDA_ERROR_NOT_SUPPORTED && seen == 0);
  }
}

// The kernel read the word before the program changed it, and writes it after that. The program's change is lost
// without a word, as it is with one memory.
CASE(late_store) {
  Kernels kernels;
  CUstream other;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  Common mark_memory(Common::pinned, 1 << 20);
  auto* const marks = reinterpret_cast<volatile int*>(mark_memory.get());
  for (const auto kind : {Common::managed, Common::pinned, Common::registered}) {
    Common memory(kind, 1 << 14);
    auto* const data = reinterpret_cast<volatile int*>(memory.get());
    marks[0] = marks[1] = 0;
    OK(kernels.try_launch("store_late", {1}, {1}, 0, nullptr, mark_memory.address(), memory.address()));
    await_mark(marks, 0);
    data[0] = 42;
    // Sends it ahead of the mark.
    OK(kernels.try_launch("take", {1}, {1}, 0, other, memory.address(), memory.address(), 0));
    OK(cuStreamSynchronize(other));
    marks[1] = 1;
    OK(cuCtxSynchronize());
    HOLDS(data[0] == 1);
  }
  OK(cuStreamDestroy(other));
}

// Every other word of managed memory, written while a kernel is under way: later work finds all, on another stream and
// in another context.
CASE(scattered_words) {
  Kernels kernels;
  constexpr int count = 1 << 15;
  CUcontext own, second;
  OK(cuCtxGetCurrent(&own));
  Common mark_memory(Common::pinned, 1 << 20), kept(Common::managed, count), memory(Common::managed, count);
  auto* const marks = reinterpret_cast<volatile int*>(mark_memory.get());
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  for (CUcontext context : {own, second}) {
    OK(cuCtxSetCurrent(context));
    Kernels other_kernels;
    CUstream other;
    CUdeviceptr seen;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&seen, 4 * count));
    OK(cuCtxSetCurrent(own));
    marks[0] = marks[1] = 0;
    OK(kernels.try_launch("store_late", {1}, {1}, 0, nullptr, mark_memory.address(), kept.address()));
    await_mark(marks, 0);
    for (int i = 0; i < count; i += 2) memory.get()[i] += i + 1;
    OK(cuCtxSetCurrent(context));
    OK(other_kernels.try_launch("take", {blocks_for(count)}, {block_size}, 0, other, memory.address(), seen, count));
    marks[1] = 1;
    OK(cuStreamSynchronize(other));
    std::vector<int> back(count);
    OK(cuMemcpyDtoH(back.data(), seen, 4 * count));
    const int rounds = context == own ? 1 : 2;
    for (int i = 0; i < count; ++i) HOLDS(back[i] == (i % 2 ? 0 : rounds * (i + 1)));
    OK(cuMemFree(seen));
    OK(cuStreamDestroy(other));
  }
  OK(cuCtxSetCurrent(own));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(second));
}

// Work behind a host function finds what this wrote to managed memory, also on another stream that waits for it.
CASE(written_by_functions) {
  Kernels kernels;
  Common memory(Common::managed, 4);
  CUdeviceptr seen;
  CUstream stream, other;
  CUevent event;
  OK(cuMemAlloc(&seen, 4));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  struct Write {
    volatile int* word;
    int value;
  };
  for (int round = 1; round <= 30; ++round) {
    Write write{memory.get(), round};
    const auto run = [](void* data) {
      const auto& what = *static_cast<Write*>(data);
      *what.word = what.value;
    };
    OK(cuLaunchHostFunc(stream, run, &write));
    CUstream last = stream;
    if (round % 3 == 0) {
      OK(cuEventRecord(event, stream));
      OK(cuStreamWaitEvent(other, event, 0));
      last = other;
    }
    if (round % 3 == 1) OK(cuMemcpyDtoDAsync(seen, memory.address(), 4, last));
    else OK(kernels.try_launch("take", {1}, {1}, 0, last, memory.address(), seen, 1));
    OK(cuStreamSynchronize(last));
    int back = 0;
    OK(cuMemcpyDtoH(&back, seen, 4));
    HOLDS(back == round);
  }
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(other));
  OK(cuStreamDestroy(stream));
  OK(cuMemFree(seen));
}

// A host function finds what the kernel before it wrote, also in a page that the program opened meanwhile.
CASE(read_by_functions) {
  Kernels kernels;
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Common mark_memory(Common::pinned, 1 << 20);
  auto* const marks = reinterpret_cast<volatile int*>(mark_memory.get());
  struct Read {
    volatile int* word;
    int seen;
  };
  const auto run = [](void* data) {
    auto& what = *static_cast<Read*>(data);
    what.seen = *what.word;
  };
  for (const auto kind : {Common::managed, Common::pinned, Common::registered}) {
    Common memory(kind, 1 << 14);
    auto* const words = reinterpret_cast<volatile int*>(memory.get());
    for (int round = 1; round <= 5; ++round) {
      Read read{words, 0};
      marks[0] = marks[1] = 0;
      OK(kernels.try_launch("store_late", {1}, {1}, 0, stream, mark_memory.address(), memory.address()));
      OK(cuLaunchHostFunc(stream, run, &read));
      await_mark(marks, 0);
      words[6] = words[6] + 1;
      marks[1] = 1;
      OK(cuStreamSynchronize(stream));
      if (read.seen != round) report("memory of kind %d: %d, not %d", static_cast<int>(kind), read.seen, round);
      HOLDS(read.seen == round && words[0] == round && words[6] == round);
    }
  }
  OK(cuStreamDestroy(stream));
}

// A thread changes one word of a page, at any moment, while kernels and memsets change others.
CASE(word_beside) {
  Kernels kernels;
  constexpr int rounds = 500;
  Common memory(Common::managed, 4);
  auto* const words = reinterpret_cast<volatile int*>(memory.get());
  std::atomic<bool> stop{false};
  int own = 0;
  std::thread adds([&] {
    for (; !stop; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
      words[0] = words[0] + 1;
      ++own;
    }
  });
  int stale = 0;
  CUresult failed = CUDA_SUCCESS;
  for (int round = 1; round <= rounds && failed == CUDA_SUCCESS; ++round) {
    failed = kernels.try_launch("add_one", {1}, {1}, 0, nullptr, memory.address() + 4);
    if (failed == CUDA_SUCCESS) failed = cuCtxSynchronize();
    if (failed == CUDA_SUCCESS) failed = cuMemsetD32(memory.address() + 8, static_cast<unsigned>(round), 1);
    if (failed == CUDA_SUCCESS) failed = cuCtxSynchronize();
    stale += words[1] != round || words[2] != round;
  }
  stop = true;
  adds.join();
  OK(failed);
  OK(cuCtxSynchronize());
  if (stale > 0 || words[0] != own || words[1] != rounds)
    report("%d of %d, %d of %d, %d old", words[0], own, words[1], rounds, stale);
  HOLDS(stale == 0 && words[0] == own && words[1] == rounds);
}

// However the program learns that work is complete, it sees what the work wrote, also where another thread uses the
// same page all the while.
CASE(complete_means_seen) {
  using namespace std::chrono_literals;
  constexpr int rounds = 50;
  constexpr std::string_view ways[] = {"a copy", "a memset", "an event", "a stream", "an event, polled", "a copy in"};
  Kernels kernels;
  CUcontext context;
  CUstream stream;
  CUevent event;
  CUdeviceptr other;
  OK(cuCtxGetCurrent(&context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&other, 4));
  // Waits for all work, so that it is known here to be complete when the program asks.
  const auto allocate_and_free = [] {
    void* memory;
    OK(cuMemHostAlloc(&memory, 64, 0));
    OK(cuMemFreeHost(memory));
  };
  const auto repeat_until_ready = [](auto ask) {
    CUresult result;
    while ((result = ask()) == CUDA_ERROR_NOT_READY) {}
    OK(result);
  };
  for (const auto kind : {Common::managed, Common::pinned}) {
    Common memory(kind, 1 << 19);
    auto* const words = reinterpret_cast<volatile int*>(memory.get());
    std::atomic<bool> stop{false};
    std::thread uses_page([&] {
      for (int i = 0; !stop; ++i) {
        words[64] = i;
        std::this_thread::sleep_for(std::chrono::microseconds(i % 50));
      }
    });
    int old[std::size(ways)] = {}, in = 0, out = 0, value = 0;
    for (int round = 0; round < rounds; ++round) {
      for (size_t way = 0; way < std::size(ways); ++way) {
        const bool on_stream = way >= 2 && way <= 4;
        ++value;
        if (way != 1)
          OK(kernels.try_launch("store_after", {1}, {1}, 0, on_stream ? stream : nullptr, memory.address(), value,
                                200'000LL));
        if (way == 0) OK(cuMemcpyDtoH(&out, other, 4));
        if (way == 1) OK(cuMemsetD32(memory.address(), static_cast<unsigned>(value), 1));
        if (on_stream) OK(cuEventRecord(event, stream));
        if (way == 2 || way == 3) allocate_and_free();
        if (way == 2) OK(cuEventSynchronize(event));
        if (way == 3) repeat_until_ready([&] { return cuStreamQuery(stream); });
        if (way == 4) {
          std::thread waits([&] {
            OK(cuCtxSetCurrent(context));
            OK(cuStreamSynchronize(stream));
          });
          repeat_until_ready([&] { return cuEventQuery(event); });
          old[way] += words[0] != value;
          waits.join();
        }
        if (way == 5) OK(cuMemcpyHtoD(other, &in, 4));
        if (way != 4) old[way] += words[0] != value;
      }
    }
    stop = true;
    uses_page.join();
    OK(cuCtxSynchronize());
    for (size_t way = 0; way < std::size(ways); ++way) {
      if (old[way] > 0)
        report("%s, %s: %d of %d old", kind == Common::managed ? "managed" : "pinned", ways[way].data(), old[way],
               rounds);
      HOLDS(old[way] == 0);
    }
  }
}

// Files are written and read while another thread gives the pages to kernels again and again.
CASE(files_beside_launches) {
  Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  FILE* const temporary = std::tmpfile();
  const int file = fileno(temporary);
  for (const auto kind : {Common::managed, Common::pinned}) {
    Common memory(kind, 1 << 19);
    constexpr ssize_t bytes = 4096;
    int* const part = memory.get() + 1024;
    const iovec vector[] = {{part, bytes / 2}, {part + bytes / 8, bytes / 2}};
    std::atomic<bool> stop{false};
    std::thread launches([&] {
      OK(cuCtxSetCurrent(context));
      while (!stop) OK(kernels.try_launch("add_one", {1}, {1}, 0, nullptr, memory.address()));
    });
    int failed = 0;
    for (int round = 0; round < 2000; ++round) {
      failed += pwrite(file, part, bytes, 0) != bytes;
      failed += pread(file, part, bytes, 0) != bytes;
      failed += pwritev(file, vector, 2, 0) != bytes;
      failed += preadv(file, vector, 2, 0) != bytes;
    }
    stop = true;
    launches.join();
    OK(cuCtxSynchronize());
    HOLDS(failed == 0);
  }
  std::fclose(temporary);
}

// The program touches pages here and there, and has as many mappings as a process may have.
CASE(no_mappings_left) {
  Kernels kernels;
  constexpr size_t count = 8 << 20, step = 32 << 10;
  Common memory(Common::managed, count);
  int* const words = memory.get();
  for (size_t i = 0; i < count; i += step) words[i] = static_cast<int>(i);
  OK(kernels.try_launch("add_one", {1}, {1}, 0, nullptr, memory.address()));
  OK(cuCtxSynchronize());
  size_t page = 4096, limit = 0;
  if (FILE* const file = std::fopen("/proc/sys/vm/max_map_count", "r")) {
    HOLDS(std::fscanf(file, "%zu", &limit) == 1);
    std::fclose(file);
  }
  if (limit == 0 || limit > 1'000'000) return;  // not to be filled
  const size_t pages = 2 * limit;
  char* const many =
      static_cast<char*>(mmap(nullptr, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  HOLDS(many != MAP_FAILED);
  size_t used = 0;
  while (used < pages && mprotect(many + used * page, page, PROT_READ) == 0) used += 2;
  munmap(many, 40 * page);  // but for a few
  bool right = true;
  for (size_t i = 0; i < count; i += step) right = right && words[i] == static_cast<int>(i) + (i == 0 ? 1 : 0);
  for (size_t i = step; i < count; i += 2 * step) words[i] = 7;
  OK(kernels.try_launch("add_one", {1}, {1}, 0, nullptr, memory.address()));
  OK(cuCtxSynchronize());
  munmap(many, pages * page);
  HOLDS(right);
  HOLDS(words[0] == 2 && words[step] == 7 && words[2 * step] == static_cast<int>(2 * step));
}

CASE(graph_sets_pinned_memory) {
  Common memory(Common::pinned, 1 << 10);
  CUcontext context;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  OK(cuCtxGetCurrent(&context));
  OK(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = memory.address();
  params.elementSize = 4;
  params.width = 16;
  params.height = 1;
  params.value = 5;
  OK(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context));
  CUDA_MEMSET_NODE_PARAMS told{};
  OK(cuGraphMemsetNodeGetParams(node, &told));
  HOLDS(told.dst == params.dst);
  OK(cuGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 2; ++round) {
    memory.get()[15] = memory.get()[16] = 1;
    OK(cuGraphLaunch(exec, nullptr));
    OK(cuCtxSynchronize());
    HOLDS(memory.get()[0] == 5 && memory.get()[15] == 5 && memory.get()[16] == 1);
  }
}

// CUDA Driver API, "API synchronization behavior": a memset of memory of the host is over when the call returns.
CASE(memset_is_over) {
  Kernels kernels;
  for (const auto kind : {Common::managed, Common::pinned, Common::registered}) {
    Common memory(kind, 1 << 14);
    auto* const words = reinterpret_cast<volatile int*>(memory.get());
    int old = 0;
    for (int round = 1; round <= 100; ++round) {
      OK(cuMemsetD32(memory.address(), static_cast<unsigned>(round), 1));
      old += words[0] != round;
    }
    OK(kernels.try_launch("store_after", {1}, {1}, 0, nullptr, memory.address(), -1, 2'000'000LL));
    OK(cuMemsetD8(memory.address(), 7, 4));
    HOLDS(old == 0 && words[0] == 0x07070707);
  }
}

// A copy of pinned memory takes the bytes of the moment at which the kernel before it ends, for which the program may
// have changed them.
CASE(copy_behind_a_kernel_that_waits) {
  Kernels kernels;
  CUstream stream;
  CUdeviceptr to;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&to, 4));
  Common mark_memory(Common::registered, 16);
  auto* const mark = reinterpret_cast<volatile int*>(mark_memory.get());
  for (const auto kind : {Common::pinned, Common::registered}) {
    Common from(kind, 1024);
    auto* const word = reinterpret_cast<volatile int*>(from.get());
    *word = 1;
    *mark = 0;
    OK(kernels.try_launch("await_mark", {1}, {1}, 0, stream, mark_memory.address()));
    OK(cuMemcpyHtoDAsync(to, from.get(), 4, stream));
    *word = 2;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    *mark = 1;
    OK(cuStreamSynchronize(stream));
    int seen = 0;
    OK(cuMemcpyDtoH(&seen, to, 4));
    HOLDS(seen == 2);
  }
}

// All work of the context comes behind the event, and a wait for some of it waits for the event.
CASE(context_behind_an_event) {
  Kernels kernels;
  CUcontext context;
  CUstream before, there, made_since;
  CUevent event;
  CUdeviceptr to;
  OK(cuCtxGetCurrent(&context));
  OK(cuStreamCreate(&before, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&to, 64));
  Common memory(Common::pinned, 1024);
  auto* const word = reinterpret_cast<volatile int*>(memory.get());
  const int bytes[16] = {};
  for (const bool since : {false, true}) {
    *word = 0;
    OK(kernels.try_launch("store_after", {1}, {1}, 0, before, memory.address(), 7, 50'000'000LL));
    OK(cuEventRecord(event, before));
    OK(cuCtxWaitEvent(context, event));
    if (since) OK(cuStreamCreate(&made_since, CU_STREAM_NON_BLOCKING));
    CUstream behind = since ? made_since : there;
    OK(cuMemcpyHtoDAsync(to, bytes, sizeof bytes, behind));
    OK(cuStreamSynchronize(behind));
    HOLDS(cuEventQuery(event) == CUDA_SUCCESS && *word == 7);
  }
}

// What was waited for in the only context is done for one that is made since.
CASE(second_context_since) {
  CUcontext own, second;
  CUstream stream;
  CUdeviceptr to;
  constexpr size_t bytes = 16 << 20;
  OK(cuCtxGetCurrent(&own));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&to, bytes));
  std::vector<int> values(bytes / 4);
  for (int round = 1; round <= 6; ++round) {
    std::fill(values.begin(), values.end(), round);
    if (round % 2) {
      OK(cuMemcpyHtoDAsync(to, values.data(), bytes, stream));
      OK(cuStreamSynchronize(stream));
    } else {
      OK(cuMemcpyHtoD(to, values.data(), bytes));
    }
    OK(cuCtxCreate(&second, nullptr, 0, 0));
    int last = 0;
    CUstream other;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyDtoHAsync(&last, to + bytes - 4, 4, other));
    OK(cuStreamSynchronize(other));
    HOLDS(last == round);
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(own));
  }
  // Managed memory likewise.
  Common memory(Common::managed, bytes / 4);
  for (int round = 1; round <= 3; ++round) {
    std::fill_n(memory.get(), bytes / 4, round);
    Kernels here;
    OK(here.try_launch("take", {1}, {1}, 0, nullptr, to, to, 0));
    OK(cuCtxCreate(&second, nullptr, 0, 0));
    {
      Kernels there;
      int last = 0;
      CUdeviceptr found;
      OK(cuMemAlloc(&found, 4));
      OK(there.try_launch("take", {1}, {1}, 0, nullptr, memory.address() + bytes - 4, found, 1));
      OK(cuMemcpyDtoH(&last, found, 4));
      HOLDS(last == round);
    }
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(own));
    OK(cuCtxSynchronize());
  }
}

// A child's changes are its own, if it may have the memory at all.
CASE(forked_child) {
  Common memory(Common::managed, 4);
  auto* const words = reinterpret_cast<volatile int*>(memory.get());
  words[0] = 1;
  const pid_t child = ::fork();
  if (child == 0) {
    words[0] = 99;
    ::_exit(0);
  }
  HOLDS(child > 0 && ::waitpid(child, nullptr, 0) == child);
  HOLDS(words[0] == 1);
}

// Copies to memory that the program, or a kernel before them, has written: they come last, and nothing is lost that
// anybody misses.
CASE(copies_over_what_was_written) {
  Kernels kernels;
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const auto kind : {Common::pinned, Common::registered}) {
    constexpr int count = 4096, bytes = count * 4;
    Common memory(kind, count);
    CUdeviceptr sevens, seen;
    OK(cuMemAlloc(&sevens, bytes));
    OK(cuMemAlloc(&seen, bytes));
    OK(cuMemsetD32(sevens, 7, count));
    std::vector<int> back(count);
    const auto all_sevens = [&](const int* numbers) {
      return std::all_of(numbers, numbers + count, [](int number) { return number == 7; });
    };
    OK(kernels.try_launch("odd_words", {blocks_for(count / 2)}, {block_size}, 0, stream, memory.address(), count, 1));
    OK(cuStreamSynchronize(stream));
    for (int round = 0; round < 20; ++round) {
      std::memset(memory.get(), round + 1, bytes);
      CUstream own = round % 2 ? nullptr : stream;
      if (round % 4 >= 2)
        OK(kernels.try_launch("odd_words", {blocks_for(count / 2)}, {block_size}, 0, own, memory.address(), count,
                              -round));
      if (own) {
        OK(cuMemcpyDtoHAsync(memory.get(), sevens, bytes, own));
      } else {
        OK(cuMemcpyDtoH(memory.get(), sevens, bytes));
        HOLDS(all_sevens(memory.get()));
      }
      OK(kernels.try_launch("take", {blocks_for(count)}, {block_size}, 0, stream, memory.address(), seen, count));
      OK(cuStreamSynchronize(stream));
      HOLDS(all_sevens(memory.get()));
      OK(cuMemcpyDtoH(back.data(), seen, bytes));
      HOLDS(all_sevens(back.data()));
    }
    OK(cuMemFree(sevens));
    OK(cuMemFree(seen));
  }
  OK(cuStreamDestroy(stream));
}

// A thread of the program takes from a queue to which running kernels append. With two memories it sees the numbers of
// a kernel when that is done, and a line says that kernels expect one memory (remote_test.py).
CASE(queue) {
  Kernels kernels;
  constexpr int count = 1000, launches = 4;
  for (const auto kind : {Common::pinned, Common::managed}) {
    Common memory(kind, 1 + count * launches);
    auto* const queue = reinterpret_cast<volatile int*>(memory.get());
    std::atomic<int> wrong = 0;
    std::thread takes([&] {
      for (int taken = 0; taken < count * launches;) {
        const int there = __atomic_load_n(memory.get(), __ATOMIC_ACQUIRE);
        for (; taken < there; ++taken) wrong += queue[1 + taken] != 7 * taken + 1;
      }
    });
    for (int launch = 0; launch < launches; ++launch)
      OK(kernels.try_launch("append", {1}, {1}, 0, nullptr, memory.address(), count));
    takes.join();
    HOLDS(wrong == 0);
    OK(cuCtxSynchronize());
    HOLDS(queue[0] == count * launches);
    for (int i = 0; i < count * launches; ++i) HOLDS(queue[1 + i] == 7 * i + 1);
  }
}

// Both sides write words that lie side by side, each its own.
CASE(every_other_word) {
  Kernels kernels;
  for (const auto kind : {Common::managed, Common::pinned}) {
    for (const size_t count : {size_t{2048}, size_t{1} << 19}) {
      Common words(kind, count);
      const int all = static_cast<int>(count);
      for (int round = 1; round < 4; ++round) {
        OK(kernels.try_launch("odd_words", {blocks_for(count / 2)}, {block_size}, 0, nullptr, words.address(), all,
                              -round));
        for (int i = 0; i < all; i += 2) words.get()[i] = round;
        OK(cuCtxSynchronize());
        for (int i = 0; i < all; ++i) {
          if (words.get()[i] == (i % 2 ? -round : round)) continue;
          report("[%d] of %d in round %d is %d", i, all, round, words.get()[i]);
          throw kernels::Failed();
        }
      }
    }
  }
}

#endif
