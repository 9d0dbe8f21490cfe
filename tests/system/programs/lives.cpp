// What programs do with their own life while they have a session: fork, exec, exit, die, unload. One scenario an
// invocation; outcomes are lines on stdout, which begin with the name of the speaking process.

#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

extern char** environ;

namespace {

void say(const std::string& text) {
  const std::string line = text + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

std::string number(CUresult result) { return std::to_string(static_cast<int>(result)); }

CUdeviceptr block = 0;
CUcontext context = nullptr;

CUresult begin() {
  CUdevice device = 0;
  if (const CUresult bad = cuInit(0); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuDeviceGet(&device, 0); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuDevicePrimaryCtxRetain(&context, device); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuCtxSetCurrent(context); bad != CUDA_SUCCESS) return bad;
  if (const CUresult bad = cuMemAlloc(&block, 1 << 20); bad != CUDA_SUCCESS) return bad;
  return cuMemsetD32(block, 0x12345678, 1 << 18);
}

/// A round trip that only a live session answers rightly.
CUresult use() {
  unsigned word = 0;
  const CUresult result = cuMemcpyDtoH(&word, block, sizeof(word));
  return result != CUDA_SUCCESS ? result : word == 0x12345678 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

std::string begin_and_use() {
  const CUresult begun = begin();
  return number(begun) + " " + number(use());
}

/// What a few calls of different kinds return: one number if they agree.
std::string several() {
  int value = 0;
  std::size_t free = 0, total = 0;
  CUstream stream = nullptr;
  CUcontext current = nullptr;
  const CUresult results[] = {cuInit(0),
                              use(),
                              cuDeviceGetCount(&value),
                              cuMemGetInfo(&free, &total),
                              cuStreamCreate(&stream, 0),
                              cuCtxGetCurrent(&current),
                              cuCtxSynchronize(),
                              cuMemFree(block)};
  std::string text;
  for (const CUresult result : results)
    if (text.find(" " + number(result) + " ") == std::string::npos) text += " " + number(result) + " ";
  return text;
}

void wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  say("child ended" + std::string(WIFSIGNALED(status) ? " by signal " + std::to_string(WTERMSIG(status))
                                                      : " with " + std::to_string(WEXITSTATUS(status))));
}

template <class Child>
void in_child(Child&& child) {
  const pid_t pid = ::fork();
  if (pid == 0) child();
  wait_for(pid);
}

int fork_after() {
  say("parent " + number(begin()));
  in_child([] {
    say("child" + several());
    in_child([] {
      say("grandchild" + several());
      ::_exit(0);
    });
    std::exit(7);  // with everything that was registered for the end
  });
  say("parent " + number(use()));
  in_child([] { std::abort(); });
  say("parent " + number(use()));
  return 0;
}

int fork_before() {
  in_child([] {
    say("child " + begin_and_use());
    std::exit(0);
  });
  say("parent " + begin_and_use());
  in_child([] {
    say("child" + several());
    std::exit(0);
  });
  say("parent " + number(use()));
  return 0;
}

int fork_busy() {
  say("parent " + number(begin()));
  std::atomic<bool> done{false};
  std::atomic<int> failures{0};
  std::thread busy([&] {
    cuCtxSetCurrent(context);
    while (!done) failures += use() != CUDA_SUCCESS;
  });
  int bad_children = 0;
  for (int i = 0; i < 40; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(cuMemFree(block) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    int status = 0;
    ::waitpid(pid, &status, 0);
    bad_children += status != 0;
  }
  done = true;
  busy.join();
  say("bad children " + std::to_string(bad_children) + ", failures " + std::to_string(failures));
  say("parent " + number(use()));
  return 0;
}

int spawn() {
  say("parent " + number(begin()));
  // Whatever this process has open that is none of the usual three, its children have not.
  const char* const arguments[] = {
      "sh", "-c", "for fd in /proc/self/fd/*; do readlink $fd; done | grep -c -e socket: -e eventfd", nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, "/bin/sh", nullptr, nullptr, const_cast<char**>(arguments), environ) != 0) return 1;
  wait_for(child);
  say("parent " + number(use()));
  if (std::system("exit 3") != 3 << 8) return 1;
  say("parent " + number(use()));
  return 0;
}

// Starts another program while a thread of this one is connecting, to a host that does not answer.
int spawn_connecting() {
  std::thread connecting([] { say("init " + number(cuInit(0))); });
  while (std::system("ls -l /proc/$PPID/fd | grep -q socket:") != 0) ::usleep(1000);
  std::system("ls -l /proc/self/fd | grep -c socket:");
  connecting.join();
  return 0;
}

// Nobody in the child ends what another thread of the parent has begun.
int fork_connecting() {
  std::thread connecting([] { say("init " + number(cuInit(0))); });
  while (std::system("ls -l /proc/$PPID/fd | grep -q socket:") != 0) ::usleep(1000);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    say("child " + number(cuInit(0)));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) say("the child has not ended by itself");
  connecting.join();
  return 0;
}

int exec_self() {
  say("before " + begin_and_use());
  ::execl("/proc/self/exe", "lives", "after-exec", nullptr);
  return 1;
}
int after_exec() {
  say("after " + begin_and_use());
  return 0;
}

// System calls on pinned memory that the GPU may have changed need a filter, which programs inherit that are started.
int exec_watched() {
  say("before " + begin_and_use());
  constexpr std::size_t bytes = 4 << 20;
  void* pinned = nullptr;
  CUdeviceptr seen = 0;
  const CUresult made = cuMemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
  const CUresult mapped = cuMemHostGetDevicePointer(&seen, pinned, 0);
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  const bool whole = ::read(zeros, pinned, bytes) == static_cast<ssize_t>(bytes);
  say("before " + number(made) + " " + number(mapped) + (whole ? " read" : " not read"));
  ::execl("/proc/self/exe", "lives", "after-exec-watched", nullptr);
  return 1;
}
int after_exec_watched() {
  say("after " + begin_and_use());
  void* pinned = nullptr;
  const CUresult made = cuMemHostAlloc(&pinned, 4096, 0);
  const int zeros = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
  say("after " + number(made) + (::read(zeros, pinned, 4096) == 4096 ? " read" : " not read"));
  return 0;
}

int exit_code() {
  say("main " + number(begin()));
  return 23;
}

int late_calls() {
  std::atexit([] { say("atexit" + several()); });  // registered before cuInit: it runs after the library's own end
  static struct Late {
    ~Late() { say("destructor" + several()); }
  } late;
  (void)late;
  say("main " + number(begin()));
  std::atexit([] { say("early " + number(use())); });
  return 0;
}

int threads_at_exit() {
  say("main " + number(begin()));
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      cuCtxSetCurrent(context);
      while (true) {
        use();
        CUdeviceptr more = 0;
        if (cuMemAlloc(&more, 4096) == CUDA_SUCCESS) cuMemFree(more);
      }
    }).detach();
  }
  ::usleep(20'000);  // the moment at which it exits
  std::exit(5);
}

int quick_exit() {
  say("main " + number(begin()));
  ::_exit(6);
}

int crash() {
  say("main " + number(begin()));
  ::signal(SIGSEGV, SIG_DFL);  // also where a sanitizer would rather explain
  ::raise(SIGSEGV);
  return 0;
}

int thread_ends() {
  say("main " + number(begin()));
  for (int i = 0; i < 20; ++i) {
    std::thread([] {
      cuCtxSetCurrent(context);
      if (cuMemsetD32Async(block, 0x12345678, 16, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) say("a thread failed");
    }).join();
  }
  say("main " + number(use()));
  return 0;
}

// What a thread does until it is cancelled, where the program allows that: between its calls.
void copies() {
  std::array<char, 1 << 16> bytes;
  if (cuMemcpyDtoH(bytes.data(), block, bytes.size()) != CUDA_SUCCESS) say("a copy failed");
}

void allocates() {
  CUdeviceptr more = 0;
  if (cuMemAlloc(&more, 4096) != CUDA_SUCCESS || cuMemFree(more) != CUDA_SUCCESS) say("an allocation failed");
}

void asks_events() {
  CUevent event = nullptr;
  CUresult results[] = {cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
                        cuMemsetD32Async(block, 0x12345678, 1 << 16, CU_STREAM_PER_THREAD),
                        cuEventRecord(event, CU_STREAM_PER_THREAD),
                        cuEventQuery(event),
                        cuEventSynchronize(event),
                        cuStreamSynchronize(CU_STREAM_PER_THREAD),
                        cuEventDestroy(event)};
  if (results[3] == CUDA_ERROR_NOT_READY) results[3] = CUDA_SUCCESS;
  for (const CUresult result : results)
    if (result != CUDA_SUCCESS) say("an event failed: " + number(result));
}

// Until the copy is done, the thread is in this call nearly all the time.
void polls() {
  static thread_local void* pinned = nullptr;
  constexpr std::size_t bytes = 1 << 18;
  CUevent event = nullptr;
  if ((!pinned && cuMemHostAlloc(&pinned, bytes, 0) != CUDA_SUCCESS) ||
      cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
      cuMemcpyDtoHAsync(pinned, block, bytes, CU_STREAM_PER_THREAD) != CUDA_SUCCESS ||
      cuEventRecord(event, CU_STREAM_PER_THREAD) != CUDA_SUCCESS)
    return say("a copy could not be begun");
  CUresult result;
  while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {}
  if (result != CUDA_SUCCESS || cuEventDestroy(event) != CUDA_SUCCESS) say("a query failed: " + number(result));
}

int threads_cancelled() {
  say("main " + number(begin()));
  for (int i = 0; i < 120; ++i) {
    using Work = void (*)();
    static constexpr Work works[] = {copies, allocates, asks_events, polls};
    pthread_t thread;
    const auto loop = [](void* work) -> void* {
      cuCtxSetCurrent(context);
      while (true) {
        reinterpret_cast<Work>(work)();
        ::pthread_testcancel();
      }
    };
    if (::pthread_create(&thread, nullptr, loop, reinterpret_cast<void*>(works[i % std::size(works)])) != 0) return 1;
    ::usleep(500 + 37 * i);  // the moment at which it is cancelled
    ::pthread_cancel(thread);
    void* end = nullptr;
    ::pthread_join(thread, &end);
    if (end != PTHREAD_CANCELED) say("a thread ended otherwise");
  }
  say("main " + number(cuCtxSynchronize()) + " " + number(use()));
  return 0;
}

const std::map<std::string, std::function<int()>> scenarios{
    {"fork-after", fork_after},
    {"fork-before", fork_before},
    {"fork-busy", fork_busy},
    {"spawn", spawn},
    {"spawn-connecting", spawn_connecting},
    {"fork-connecting", fork_connecting},
    {"exec", exec_self},
    {"after-exec", after_exec},
    {"exec-watched", exec_watched},
    {"after-exec-watched", after_exec_watched},
    {"exit-code", exit_code},
    {"late-calls", late_calls},
    {"threads", threads_at_exit},
    {"quick-exit", quick_exit},
    {"crash", crash},
    {"thread-ends", thread_ends},
    {"threads-cancelled", threads_cancelled},
};

}  // namespace

int main(int argc, char** argv) {
  const auto found = scenarios.find(argc > 1 ? argv[1] : "");
  return found == scenarios.end() ? 99 : found->second();
}
