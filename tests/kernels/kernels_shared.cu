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
extern "C" __global__ void odd_words(int* words, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i + 1 < count) words[2 * i + 1] = value;
}

#else

#include <atomic>
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

// The program and kernels add to the same words of managed memory at the same time. Each has a copy of its own: the
// next wait says so.
CASE(both_add) {
  Kernels kernels;
  Common words(Common::managed, 1024);
  constexpr int threads = 64, rounds = 50, own = 1000, added = 8;
  OK(kernels.try_launch("add_to_all", {2}, {threads / 2}, 0, nullptr, words.address(), added, rounds));
  for (int round = 0; round < own; ++round)
    for (int i = 0; i < added; ++i) __atomic_fetch_add(&words.get()[i], 1, __ATOMIC_SEQ_CST);
  const CUresult waited = cuCtxSynchronize();
  bool right = true;
  for (int i = 0; i < added; ++i) right = right && words.get()[i] == threads * rounds + own;
  HOLDS(right_or_told(waited, right));
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
