// Memory that the program and kernels use at the same time: each its own words, the same words, and one after the other
// by what they find there. Where client and host are two machines some of it cannot work; then a call says so.

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
// Appends numbers to a queue, each with a mark behind it.
extern "C" __global__ void append(int* tail, int* numbers, volatile int* marks, int each) {
  for (int i = 0; i < each; ++i) {
    int slot = atomicAdd_system(tail, 1);
    numbers[slot] = slot * 3 + 1;
    __threadfence_system();
    marks[slot] = 1;
  }
}
extern "C" __global__ void scale(float* out, const float* in, float by, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * by;
}
extern "C" __global__ void odd_words(int* words, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i + 1 < count) words[2 * i + 1] = value;
}

#else

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace {

/// Memory that the program and kernels reach at one address.
class Common {
 public:
  enum Kind { managed, pinned };
  Common(Kind kind, size_t count) : kind_(kind) {
    const size_t bytes = count * sizeof(int);
    if (kind == managed) OK(cuMemAllocManaged(&address_, bytes, CU_MEM_ATTACH_GLOBAL));
    else OK(cuMemHostAlloc(reinterpret_cast<void**>(&address_), bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    std::memset(get(), 0, bytes);
  }
  ~Common() {
    if (kind_ == managed) cuMemFree(address_);
    else cuMemFreeHost(get());
  }
  Common(const Common&) = delete;
  Common& operator=(const Common&) = delete;
  int* get() const { return reinterpret_cast<int*>(address_); }
  CUdeviceptr address() const { return address_; }

 private:
  const Kind kind_;
  CUdeviceptr address_ = 0;
};

struct Task {
  explicit Task(int n)
      : n(n), matrix(Common::managed, static_cast<size_t>(n) * n), vector(Common::managed, n), result(Common::managed, n) {}
  int n;
  Common matrix, vector, result;
};

void attach(CUstream stream, const Task& task, unsigned how) {
  for (const Common* memory : {&task.matrix, &task.vector, &task.result})
    OK(cuStreamAttachMemAsync(stream, memory->address(), 0, how));
}

/// What is right, or an error that says that it may not be.
bool right_or_told(CUresult waited, bool right) {
  if (waited == CUDA_ERROR_NOT_SUPPORTED) {
    std::printf("told\n");
    return true;
  }
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
    std::vector<std::unique_ptr<Task>> all;
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

// The program and kernels add to the same words at the same time.
void both_add(Common::Kind kind, size_t count) {
  Kernels kernels;
  Common words(kind, count);
  constexpr int threads = 64, rounds = 50, own = 1000, added = 8;
  OK(kernels.try_launch("add_to_all", {2}, {threads / 2}, 0, nullptr, words.address(), added, rounds));
  for (int round = 0; round < own; ++round)
    for (int i = 0; i < added; ++i) __atomic_fetch_add(&words.get()[i], 1, __ATOMIC_SEQ_CST);
  const CUresult waited = cuCtxSynchronize();
  bool right = true;
  for (int i = 0; i < added; ++i) right = right && words.get()[i] == threads * rounds + own;
  HOLDS(right_or_told(waited, right));
}
CASE(both_add_to_managed) { both_add(Common::managed, 1024); }
CASE(both_add_to_pinned) { both_add(Common::pinned, 1024); }
CASE(both_add_to_much_pinned) { both_add(Common::pinned, 1 << 20); }

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


CASE(queue) {
  Kernels kernels;
  constexpr int threads = 32, each = 100, all = threads * each;
  Common tail(Common::pinned, 1), numbers(Common::pinned, all), marks(Common::pinned, all);
  OK(kernels.try_launch("append", {1}, {threads}, 0, nullptr, tail.address(), numbers.address(), marks.address(), each));
  cuStreamQuery(nullptr);  // so that the launch leaves
  int wrong = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int slot = 0; slot < all; ++slot) {
    while (__atomic_load_n(&marks.get()[slot], __ATOMIC_ACQUIRE) == 0) HOLDS(std::chrono::steady_clock::now() < end);
    wrong += numbers.get()[slot] != slot * 3 + 1;
  }
  const CUresult waited = cuCtxSynchronize();
  HOLDS(right_or_told(waited, wrong == 0 && *tail.get() == all));
}

// Memory of many kinds, large and small, filled by the program, used by a kernel, looked at and written out.
CASE(kinds_of_memory) {
  Kernels kernels;
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUmemLocation device{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  const CUmemLocation host{.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  for (const int count : {1024, 3 << 18, 5 << 19}) {
    const size_t bytes = count * sizeof(float);
    CUdeviceptr managed, hinted, plain[2];
    float *zero_copy, *pinned, *results;
    OK(cuMemAllocManaged(&managed, bytes, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAllocManaged(&hinted, bytes, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAlloc(&plain[0], bytes));
    OK(cuMemAlloc(&plain[1], bytes));
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&zero_copy), bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), bytes, 0));
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&results), bytes, 0));
    std::vector<float> pageable(count);
    OK(cuMemAdvise(hinted, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
    OK(cuMemAdvise(hinted, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
    char path[] = "/tmp/fargpu-kinds-XXXXXX";
    const int file = mkstemp(path);
    HOLDS(file >= 0 && unlink(path) == 0);
    for (int round = 1; round < 4; ++round) {
      const auto fill = [&](float* values) {
        for (int i = 0; i < count; ++i) values[i] = static_cast<float>(round + i % 1000);
      };
      const auto check = [&](const float* values) {
        for (int i = 0; i < count; ++i) HOLDS(values[i] == 2 * static_cast<float>(round + i % 1000));
      };
      const auto run = [&](CUdeviceptr out, CUdeviceptr in) {
        OK(kernels.try_launch("scale", {blocks_for(count)}, {block_size}, 0, stream, out, in, 2.0f, count));
      };
      float* const managed_values = reinterpret_cast<float*>(managed);
      fill(managed_values);
      run(hinted, managed);
      OK(cuStreamSynchronize(stream));
      check(reinterpret_cast<float*>(hinted));
      HOLDS(pwrite(file, reinterpret_cast<float*>(hinted), bytes, 0) == static_cast<ssize_t>(bytes));
      HOLDS(pread(file, managed_values, bytes, 0) == static_cast<ssize_t>(bytes));
      check(managed_values);
      fill(managed_values);
      OK(cuMemPrefetchAsync(managed, bytes, device, 0, stream));
      OK(cuMemPrefetchAsync(hinted, bytes, device, 0, stream));
      run(hinted, managed);
      OK(cuMemPrefetchAsync(hinted, bytes, host, 0, stream));
      OK(cuStreamSynchronize(stream));
      check(reinterpret_cast<float*>(hinted));

      CUdeviceptr seen;
      OK(cuMemHostGetDevicePointer(&seen, zero_copy, 0));
      fill(zero_copy);
      run(seen, seen);
      OK(cuStreamSynchronize(stream));
      check(zero_copy);
      HOLDS(pwrite(file, zero_copy, bytes, 0) == static_cast<ssize_t>(bytes));

      fill(pinned);
      OK(cuMemcpyHtoDAsync(plain[0], pinned, bytes, stream));
      run(plain[1], plain[0]);
      OK(cuMemcpyDtoHAsync(results, plain[1], bytes, stream));
      OK(cuStreamSynchronize(stream));
      check(results);
      HOLDS(pwrite(file, results, bytes, 0) == static_cast<ssize_t>(bytes));
      HOLDS(pread(file, pinned, bytes, 0) == static_cast<ssize_t>(bytes));
      check(pinned);

      fill(pageable.data());
      OK(cuMemcpyHtoD(plain[0], pageable.data(), bytes));
      run(plain[1], plain[0]);
      OK(cuStreamSynchronize(stream));
      OK(cuMemcpyDtoH(pageable.data(), plain[1], bytes));
      check(pageable.data());
    }
    close(file);
    for (const CUdeviceptr memory : {managed, hinted, plain[0], plain[1]}) OK(cuMemFree(memory));
    for (float* memory : {zero_copy, pinned, results}) OK(cuMemFreeHost(memory));
  }
  OK(cuStreamDestroy(stream));
}

#endif
