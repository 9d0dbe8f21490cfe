// What kernels print, and what becomes of those that do wrong.

#include "harness.h"

#ifdef __CUDACC__

#include <cassert>

extern "C" __global__ void print_values(int number, double real) {
  if (threadIdx.x != 0) return;
  printf("plain text, 100%%\n");
  printf("[%d] [%5d] [%-5d] [%05d] [%+d] [%x] [%#X] [%o] [%u]\n", number, number, number, number, number, number,
         number, number, number);
  printf("[%f] [%.3f] [%10.2e] [%g] [%G] [%a]\n", real, real, real, real, real * 1e20, real);
  printf("[%s] [%10s] [%-10s] [%.2s] [%c]\n", "text", "right", "left", "cut", 'c');
  printf("[%lld] [%llx] [%hd] [%ld]\n", 1ll << 40, ~0ull, short(-7), -(1l << 50));
  printf("[%*d]\n", 8, number);
  printf("[%p]\n", static_cast<void*>(nullptr));
}

extern "C" __global__ void print_from_all() { printf("thread %d\n", threadIdx.x); }

extern "C" __global__ void flood(int lines) {
  for (int i = 0; i < lines; ++i) printf("line %d of a flood that outgrows the buffer\n", i);
}

extern "C" __global__ void asserts(int limit) {
  assert(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) < limit && "below the limit");
}

extern "C" __global__ void write_at(int* address, int value) { *address = value; }

extern "C" __global__ void read_at(const int* address, int* out) { *out = *address; }

extern "C" __global__ void atomic_at(int* address) { atomicAdd(address, 1); }

extern "C" __global__ void write_misaligned(char* base) { *reinterpret_cast<volatile int*>(base + 2) = 1; }

extern "C" __global__ void shared_out_of_bounds(unsigned offset) {
  __shared__ int data[16];
  data[threadIdx.x % 16] = 1;
  asm volatile("{ .reg .u32 %%a; mov.u32 %%a, %0; st.shared.u32 [%%a], 1; }" ::"r"(offset) : "memory");
}

extern "C" __global__ void trap() {
  if (threadIdx.x == 5) __trap();
}

extern "C" __global__ void call_null(int* out, int (**functions)(int)) { *out = functions[0](1); }

extern "C" __global__ void endless(volatile int* flag) {
  while (*flag == 0) {}
}

extern "C" __global__ void set(int* out, int value) { *out = value; }

extern "C" __global__ void deadlock() {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
}

extern "C" __global__ void __launch_bounds__(128) bounded(int* out) { *out = blockDim.x; }

#else

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace {

/// What is written to standard output while `action` runs.
template <class F>
std::string printed_by(F action) {
  std::fflush(stdout);
  FILE* file = std::tmpfile();
  int saved = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  auto restore = [&] {
    std::fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
  };
  try {
    action();
  } catch (...) {
    restore();
    throw;
  }
  restore();
  std::string text(static_cast<size_t>(std::ftell((std::fseek(file, 0, SEEK_END), file))), 0);
  std::rewind(file);
  HOLDS(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

/// The error is there at the next synchronization, and stays whatever is called.
void expect_sticky(CUresult error) {
  GIVES(error, cuCtxSynchronize());
  GIVES(error, cuCtxSynchronize());
  CUdeviceptr memory;
  GIVES(error, cuMemAlloc(&memory, 16));
  GIVES(error, cuStreamQuery(nullptr));
  CUevent event;
  GIVES(error, cuEventCreate(&event, 0));
}

/// Runs in a process of its own and gives how that ended.
template <class F>
int status_of_child(F action) {
  pid_t child = fork();
  if (child == 0) {
    action();
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

CASE(print) {
  Kernels kernels;
  std::string text = printed_by([&] { kernels.run("print_values", {}, {32}, -42, 3.14159); });
  char wanted[2048];
  int n = -42;
  double x = 3.14159;
  int used = std::snprintf(wanted, sizeof wanted,
                           "plain text, 100%%\n"
                           "[%d] [%5d] [%-5d] [%05d] [%+d] [%x] [%#X] [%o] [%u]\n"
                           "[%f] [%.3f] [%10.2e] [%g] [%G] [%a]\n",
                           n, n, n, n, n, n, n, n, n, x, x, x, x, x * 1e20, x);
  std::snprintf(wanted + used, sizeof wanted - static_cast<size_t>(used),
                "[text] [     right] [left      ] [cu] [c]\n"
                "[%lld] [%llx] [-7] [%ld]\n"
                "[     -42]\n",
                1ll << 40, ~0ull, -(1l << 50));
  size_t pointer = text.rfind('[');
  HOLDS(pointer != std::string::npos);
  if (text.substr(0, pointer) != wanted) report("printed:\n%s\nnot:\n%s", text.c_str(), wanted);

  text = printed_by([&] { kernels.run("print_from_all", {}, {64}); });
  for (int i = 0; i < 64; ++i) HOLDS(text.find("thread " + std::to_string(i) + "\n") != std::string::npos);
}

CASE(print_overflow) {
  size_t bytes = 0;
  OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 << 10));
  OK(cuCtxGetLimit(&bytes, CU_LIMIT_PRINTF_FIFO_SIZE));
  HOLDS(bytes >= 64 << 10);
  Kernels kernels;
  // Far more than fits is lost in part, but nothing breaks.
  std::string text = printed_by([&] { kernels.run("flood", {}, {1}, 100000); });
  HOLDS(!text.empty());
  HOLDS(text.size() < 100000 * 40);
  text = printed_by([&] { kernels.run("print_from_all", {}, {1}); });
  HOLDS(text == "thread 0\n");
}

CASE(assert_fails) {
  Kernels kernels;
  kernels.run("asserts", {2}, {64}, 128);
  OK(kernels.try_launch("asserts", {2}, {64}, 0, nullptr,
                        124));  // of one warp: among several the order of the lines varies
  expect_sticky(CUDA_ERROR_ASSERT);
}

CASE(wild_write) {
  Kernels kernels;
  OK(kernels.try_launch("write_at", {}, {1}, 0, nullptr, CUdeviceptr{0x123450}, 1));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(wild_read) {
  Kernels kernels;
  Buffer<int> out(1);
  OK(kernels.try_launch("read_at", {}, {1}, 0, nullptr, CUdeviceptr{0}, out.address()));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(wild_atomic) {
  Kernels kernels;
  OK(kernels.try_launch("atomic_at", {}, {1}, 0, nullptr, CUdeviceptr{0x7000000000000000}));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(use_after_unmap) {
  Kernels kernels;
  constexpr size_t bytes = 64 << 20;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle allocation;
  CUdeviceptr memory;
  OK(cuMemCreate(&allocation, bytes, &properties, 0));
  OK(cuMemAddressReserve(&memory, bytes, 0, 0, 0));
  OK(cuMemMap(memory, bytes, 0, allocation, 0));
  CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(memory, bytes, &access, 1));
  kernels.run("write_at", {}, {1}, memory + bytes / 2, 5);
  OK(cuMemUnmap(memory, bytes));
  OK(kernels.try_launch("write_at", {}, {1}, 0, nullptr, memory + bytes / 2, 5));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(misaligned) {
  Kernels kernels;
  Buffer<int> memory(4);
  OK(kernels.try_launch("write_misaligned", {}, {1}, 0, nullptr, memory.address()));
  expect_sticky(CUDA_ERROR_MISALIGNED_ADDRESS);
}

CASE(shared_bounds) {
  Kernels kernels;
  kernels.run("shared_out_of_bounds", {}, {32}, 16u);
  OK(kernels.try_launch("shared_out_of_bounds", {}, {32}, 0, nullptr, 0x100000u));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
}

CASE(trap) {
  Kernels kernels;
  OK(kernels.try_launch("trap", {4}, {64}, 0, nullptr));
  expect_sticky(CUDA_ERROR_LAUNCH_FAILED);
}

CASE(null_function) {
  char name[64];
  OK(cuDeviceGetName(name, sizeof name, 0));
  if (std::strstr(name, "software") == nullptr) return skip("an H200 never comes back from such a call");
  Kernels kernels;
  Buffer<int> out(1);
  Buffer<CUdeviceptr> functions(std::vector<CUdeviceptr>{0});
  OK(kernels.try_launch("call_null", {}, {1}, 0, nullptr, out.address(), functions.address()));
  CUresult result = cuCtxSynchronize();
  HOLDS(result != CUDA_SUCCESS);
  GIVES(result, cuCtxSynchronize());
}

// A fault is one of the process: its other contexts have it too, and no new one is made.
CASE(other_contexts_fail_too) {
  Kernels kernels;
  CUcontext broken, other, later;
  OK(cuCtxGetCurrent(&other));
  OK(cuCtxCreate(&broken, nullptr, 0, 0));
  {
    Kernels others;
    OK(others.try_launch("trap", {}, {32}, 0, nullptr));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  }
  OK(cuCtxSetCurrent(other));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxCreate(&later, nullptr, 0, 0));
  OK(cuCtxDestroy(broken));
  OK(cuCtxSetCurrent(other));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxCreate(&later, nullptr, 0, 0));
  OK(cuDevicePrimaryCtxReset(0));
  GIVES(CUDA_ERROR_LAUNCH_FAILED, cuDevicePrimaryCtxRetain(&later, 0));
}

// A kernel that runs for long holds up neither other streams nor the host.
CASE(long_kernel) {
  Kernels kernels;
  Buffer<int> out(1);
  out.clear();
  int* flag;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&flag), 4, CU_MEMHOSTALLOC_DEVICEMAP));
  *flag = 0;
  CUdeviceptr flag_address;
  OK(cuMemHostGetDevicePointer(&flag_address, flag, 0));
  CUstream waiting, working;
  OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&working, CU_STREAM_NON_BLOCKING));
  OK(kernels.try_launch("endless", {2}, {64}, 0, waiting, flag_address));
  OK(kernels.try_launch("set", {}, {1}, 0, working, out.address(), 7));
  OK(cuStreamSynchronize(working));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
  int value = 0;
  OK(cuMemcpyDtoHAsync(&value, out.address(), 4, working));
  OK(cuStreamSynchronize(working));
  HOLDS(value == 7);
  __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
  OK(cuStreamSynchronize(waiting));
  OK(cuStreamDestroy(waiting));
  OK(cuStreamDestroy(working));
  OK(cuMemFreeHost(flag));
}

// The child has a driver of its own, because the parent has not started one.
static void run_endless_kernel() {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction function;
  CUdeviceptr flag;
  cuInit(0);
  cuDeviceGet(&device, 0);
  cuCtxCreate(&context, nullptr, 0, device);
  cuModuleLoadData(&module, kernel_image);
  cuModuleGetFunction(&function, module, "endless");
  cuMemAlloc(&flag, 4);
  cuMemsetD8(flag, 0, 4);
  void* arguments[] = {&flag};
  cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
}

CASE_WITHOUT_CONTEXT(endless_kernel) {
  // It keeps no process from exiting,
  int status = status_of_child([] {
    run_endless_kernel();
    std::exit(17);
  });
  HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 17);
  // nor from being killed.
  int ready[2];
  HOLDS(pipe(ready) == 0);
  pid_t child = fork();
  if (child == 0) {
    run_endless_kernel();
    if (write(ready[1], "x", 1) == 1) cuCtxSynchronize();
    _exit(99);
  }
  char byte;
  HOLDS(read(ready[0], &byte, 1) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  kill(child, SIGTERM);
  waitpid(child, &status, 0);
  HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

CASE(launch_checks) {
  Kernels kernels;
  Buffer<int> out(1);
  CUdeviceptr address = out.address();
  void* arguments[] = {&address, nullptr};
  CUfunction bounded = kernels.get("bounded");
  auto launch = [&](kernels::Grid grid, kernels::Grid block, unsigned shared_bytes) {
    return cuLaunchKernel(bounded, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes, nullptr, arguments,
                          nullptr);
  };
  OK(launch({}, {128}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({0}, {1}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({1}, {1, 0}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({}, {256}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({}, {2048}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({}, {1, 1, 128}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({1, 70000}, {1}, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, launch({}, {1}, 300000));
  int value = 0;
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bounded));
  HOLDS(value == 128);
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  CUfunction missing;
  GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&missing, kernels.module(), "no_such_kernel"));
  // None of these errors sticks.
  OK(cuCtxSynchronize());
}

#endif
