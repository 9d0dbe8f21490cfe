// The control path: what calls cost. It knows nothing of what stands behind libcuda.so.1; `run` starts it on the local
// driver and through fargpu. See asked.h for how it is told what to do. `control start` measures a process's start
// instead, once.

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "asked.h"
#include "cuda_program.h"

namespace bench {
namespace {

// Fewer launches than the driver queues, so that none of them waits for the GPU.
constexpr std::uint64_t batch = 200;

/// What a launch costs the thread that makes it, on its CPU (the mean, as some machines count that in coarse ticks) and
/// on the clock.
void launch_cost(const Program& program, const Request& request, Answer& answer) {
  std::vector<double> clock;
  double cpu = 0;
  const std::uint64_t batches = request.number("batches");
  for (std::uint64_t i = 0; i < batches; ++i) {
    const double cpu_begin = thread_cpu(), begin = now();
    for (std::uint64_t launch = 0; launch < batch; ++launch) program.launch(nullptr);
    clock.push_back((now() - begin) / batch);
    cpu += thread_cpu() - cpu_begin;
    OK(cuCtxSynchronize());
  }
  answer.add("launch_cpu", cpu / static_cast<double>(batches * batch));
  answer.add_samples("launch_clock", clock);
}

void launches(const Program& program, const Request& request, Answer& answer) {
  const std::uint64_t count = request.number("count");
  const double begin = now();
  for (std::uint64_t i = 0; i < count; ++i) program.launch(nullptr);
  OK(cuCtxSynchronize());
  answer.add("seconds", now() - begin);
}

/// How long each of `count` calls takes.
template <class Call>
void single(const Request& request, Answer& answer, Call&& call) {
  std::vector<double> samples(request.number("count"));
  for (double& sample : samples) {
    const double begin = now();
    call();
    sample = now() - begin;
  }
  answer.add_samples("seconds", samples);
}

/// Threads that launch on streams of their own at once; from when all are ready until all that they launched is done.
void threads(const Program& program, const Request& request, Answer& answer) {
  const std::uint64_t count = request.number("count");  // of each thread
  constexpr int width = 8;
  std::vector<CUstream> streams(width * width);
  for (CUstream& stream : streams) OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<std::string> failures(width);
  std::vector<std::thread> workers;
  const double begin = now();
  for (int t = 0; t < width; ++t)
    workers.emplace_back([&, t] {
      try {
        OK(cuCtxSetCurrent(program.context));
        for (std::uint64_t i = 0; i < count; ++i)
          program.launch(streams[static_cast<std::size_t>(t) * width + i % width]);
        for (int s = 0; s < width; ++s) OK(cuStreamSynchronize(streams[static_cast<std::size_t>(t * width + s)]));
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(t)] = error.what();
      }
    });
  for (std::thread& worker : workers) worker.join();
  answer.add("seconds", now() - begin);
  for (CUstream stream : streams) OK(cuStreamDestroy(stream));
  for (const std::string& failure : failures)
    if (!failure.empty()) throw std::runtime_error(failure);
}

/// A kernel, and behind it a function of the program that wakes the waiting thread, as JAX waits.
class Signalled {
 public:
  void once(const Program& program, CUstream stream) {
    done_ = false;
    program.launch(stream);
    OK(cuLaunchHostFunc(stream, signal, this));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }

 private:
  static void CUDA_CB signal(void* self) {
    auto& signalled = *static_cast<Signalled*>(self);
    const std::lock_guard lock(signalled.mutex_);
    signalled.done_ = true;
    signalled.changed_.notify_one();  // under the lock: what waits may be gone afterwards
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;  // under the mutex once the function is on its way
};

/// A small result that a program fetches: an asynchronous copy to pinned memory, an event behind it, and a wait for the
/// event.
class Fetched {
 public:
  explicit Fetched(const Program& program) : program_(program) {
    void* memory = nullptr;
    OK(cuMemAllocHost(&memory, bytes));
    host_ = static_cast<volatile std::uint32_t*>(memory);
    OK(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
  ~Fetched() {
    cuEventDestroy(event_);
    cuMemFreeHost(const_cast<std::uint32_t*>(host_));
  }
  Fetched(const Fetched&) = delete;

  template <class Wait>
  void measure(const Request& request, Answer& answer, CUstream stream, Wait&& wait) {
    std::uint32_t expected = 0;
    OK(cuMemcpyDtoH(&expected, program_.memory, sizeof expected));
    single(request, answer, [&] {
      *host_ = ~expected;
      OK(cuMemcpyDtoHAsync(const_cast<std::uint32_t*>(host_), program_.memory, bytes, stream));
      OK(cuEventRecord(event_, stream));
      wait(event_);
      if (*host_ != expected) throw std::runtime_error("the event is complete and the bytes are not there");
    });
  }

 private:
  static constexpr std::size_t bytes = 4096;
  const Program& program_;
  volatile std::uint32_t* host_ = nullptr;
  CUevent event_{};
};

/// Memory as a framework takes it and gives it back when it empties its cache: 20 blocks of 1 to 39 MiB, and their
/// release.
void comes_and_goes() {
  std::vector<CUdeviceptr> blocks;
  for (std::size_t mib = 1; mib < 40; mib += 2) OK(cuMemAlloc(&blocks.emplace_back(), mib << 20));
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
}

void idle_calls(const Request& request, const std::function<void()>& call) {
  for (std::uint64_t i = 0; i < request.number("count"); ++i) call();
}

int serve() {
  const Program program;
  int word = 0;
  CUstream stream{};
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  Signalled signalled;
  Fetched fetched(program);
  return answer_requests({
      {"launch_cost", [&](const Request& r, Answer& a) { launch_cost(program, r, a); }},
      {"launches", [&](const Request& r, Answer& a) { launches(program, r, a); }},
      {"threads", [&](const Request& r, Answer& a) { threads(program, r, a); }},
      {"trivial",
       [&](const Request& r, Answer& a) {
         // Next to nothing for the driver, and always asked of it.
         single(r, a, [&] {
           CUfunctionLoadingState state{};
           OK(cuFuncIsLoaded(&state, program.add));
         });
       }},
      {"launch_sync",
       [&](const Request& r, Answer& a) {
         single(r, a, [&] {
           program.launch(nullptr);
           OK(cuStreamSynchronize(nullptr));
         });
       }},
      {"item", [&](const Request& r,
                   Answer& a) { single(r, a, [&] { OK(cuMemcpyDtoH(&word, program.memory, sizeof word)); }); }},
      {"host_function", [&](const Request& r, Answer& a) { single(r, a, [&] { signalled.once(program, stream); }); }},
      {"event_synchronize",
       [&](const Request& r, Answer& a) {
         fetched.measure(r, a, stream, [](CUevent event) { OK(cuEventSynchronize(event)); });
       }},
      {"event_query",
       [&](const Request& r, Answer& a) {
         fetched.measure(r, a, stream, [](CUevent event) {
           CUresult result = CUDA_ERROR_NOT_READY;
           while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) continue;
           OK(result);
         });
       }},
      {"memory_comes_and_goes", [&](const Request& r, Answer& a) { single(r, a, comes_and_goes); }},
      // Calls that need not leave the process. Each is made `count` times; round trips are what the client counts.
      {"idle_synchronize",
       [&](const Request& r, Answer&) {
         idle_calls(r, [&] {
           OK(cuStreamSynchronize(stream));
           OK(cuCtxSynchronize());
         });
       }},
      {"attributes",
       [&](const Request& r, Answer&) {
         idle_calls(r, [&] {
           int value = 0;
           OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, program.device));
           CUcontext owner{};
           OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, program.memory));
           OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, program.add));
         });
       }},
      {"errors",
       [&](const Request& r, Answer&) {
         idle_calls(r, [&] {
           int value = 0;
           if (cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(-1), program.device) !=
               CUDA_ERROR_INVALID_VALUE)
             throw std::runtime_error("a wrong attribute is not refused");
           const char* name = nullptr;
           OK(cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &name));
         });
       }},
      {"capture_state",
       [&](const Request& r, Answer&) {
         idle_calls(r, [&] {
           CUstreamCaptureStatus status{};
           OK(cuStreamIsCapturing(stream, &status));
         });
       }},
      {"allocations",
       [&](const Request& r, Answer&) {
         idle_calls(r, [&] {
           CUdeviceptr memory = 0;
           OK(cuMemAlloc(&memory, 1 << 20));
           OK(cuMemFree(memory));
         });
       }},
      {"nothing", [](const Request&, Answer&) {}},
  });
}

/// From the first call to a context, and to the end of a first kernel.
int start() {
  const double begin = now();
  OK(cuInit(0));
  CUdevice device = 0;
  CUcontext context{};
  OK(cuDeviceGet(&device, 0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  const double has_context = now() - begin;
  const Program program;
  std::printf("{\"context\": %.6f, \"kernel\": %.6f}\n", has_context, now() - begin);
  return 0;
}

/// Loads an image of `size` bytes that no other run has unless it is told the same `mark`; 0 loads none.
int image(std::uint64_t size, const std::string& mark) {
  const Program program;
  if (size == 0) return 0;
  std::string text = std::string("// ") + mark + "\n" + kernels;
  std::uint64_t state = std::hash<std::string>{}(mark);
  while (text.size() < size) {  // comments, which do not compress
    text += "\n// ";
    for (int i = 0; i < 100; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      text += static_cast<char>('0' + (state >> 33) % 75);
    }
  }
  text += "\n";
  CUmodule module{};
  CUfunction function{};
  OK(cuModuleLoadData(&module, text.c_str()));
  OK(cuModuleGetFunction(&function, module, "add"));
  return 0;
}

}  // namespace
}  // namespace bench

int main(int count, char** words) {
  try {
    const std::string what = count > 1 ? words[1] : "";
    if (what.empty()) return bench::serve();
    if (what == "start" && count == 2) return bench::start();
    if (what == "image" && count == 4) return bench::image(std::stoull(words[2]), words[3]);
    std::fprintf(stderr, "usage: control | control start | control image BYTES MARK\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "control: %s\n", error.what());
  }
  return 2;
}
