// A tenant of a GPU for what is no matter of time: memory to its limit, sessions that only exist, faults.
// `group_sharing.py` says what it does by its arguments; it says `ready` when that is under way, and a line of JSON
// with what it found.
//
//   tenant sit MIB          holds so much memory, then checks it at each line on stdin, until that ends
//   tenant fill MIB         takes memory by every kind of call until there is no more, of so much that it may have
//   tenant touch MIB SECONDS  at a line on stdin, for so long, steps that each change all of so much memory; how many
//   tenant answer MIB       holds so much memory, and at each line on stdin reads all of it, and says for how long
//   tenant pinned MIB       copies so much from and to pinned memory, and says for how long each way
//   tenant hold MIB         holds so much memory by cuMemCreate, mapped nowhere: such memory is not evicted
//   tenant illegal          at a line on stdin, a kernel writes where nothing is
//   tenant hang             at a line on stdin, a kernel that does not end

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (0)

namespace {

__global__ void fill(unsigned* words, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    words[i] = unsigned(i) * 2654435761u + seed;
}

__global__ void compare(const unsigned* words, size_t count, unsigned seed, unsigned* wrong) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    if (words[i] != unsigned(i) * 2654435761u + seed) atomicAdd(wrong, 1u);
}

__global__ void take_from_heap(unsigned* pages, size_t bytes) {
  void* const piece = malloc(bytes);
  if (piece) atomicAdd(pages, 1u);
}

__global__ void write_to(int* nowhere) { *nowhere = 1; }

__global__ void spin(volatile int* for_ever) {
  while (*for_ever == 0) __nanosleep(20000);
}

void ready() {
  CHECK(cudaDeviceSynchronize());
  std::puts("ready");
  std::fflush(stdout);
}

bool told() {
  char line[64];
  return std::fgets(line, sizeof line, stdin) != nullptr;
}

int sit(size_t bytes) {
  const unsigned seed = unsigned(std::chrono::steady_clock::now().time_since_epoch().count());
  const size_t count = bytes / sizeof(unsigned);
  unsigned *words, *wrong, found = 0;
  CHECK(cudaMalloc(&words, bytes));
  CHECK(cudaMallocManaged(&wrong, sizeof *wrong));
  fill<<<64, 256>>>(words, count, seed);
  CHECK(cudaGetLastError());
  ready();
  while (told()) {
    CHECK(cudaMemset(wrong, 0, sizeof *wrong));
    compare<<<64, 256>>>(words, count, seed, wrong);
    CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    std::printf("{\"wrong\": %u}\n", found);
    std::fflush(stdout);
  }
  return 0;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

__global__ void change(unsigned* words, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) words[i] += 1;
}

int touch(size_t bytes, double seconds) {
  const size_t count = bytes / sizeof(unsigned);
  unsigned *words, *wrong, found = 0;
  CHECK(cudaMalloc(&words, bytes));
  CHECK(cudaMalloc(&wrong, sizeof *wrong));
  fill<<<1024, 256>>>(words, count, 0);
  ready();
  if (!told()) return 0;
  unsigned steps = 0;
  for (const double end = now() + seconds; now() < end; ++steps) {
    change<<<1024, 256>>>(words, count);
    CHECK(cudaDeviceSynchronize());
  }
  CHECK(cudaMemset(wrong, 0, sizeof *wrong));
  compare<<<1024, 256>>>(words, count, steps, wrong);
  CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
  std::printf("{\"steps\": %u, \"wrong\": %u}\n", steps, found);
  std::fflush(stdout);
  while (told()) {}
  return 0;
}

int answer(size_t bytes) {
  const size_t count = bytes / sizeof(unsigned);
  unsigned *words, *wrong;
  CHECK(cudaMalloc(&words, bytes));
  CHECK(cudaMalloc(&wrong, sizeof *wrong));
  fill<<<1024, 256>>>(words, count, 7);
  CHECK(cudaMemset(wrong, 0, sizeof *wrong));
  ready();
  while (told()) {
    const double begin = now();
    unsigned found = 0;
    compare<<<1024, 256>>>(words, count, 7, wrong);
    CHECK(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost));
    std::printf("{\"seconds\": %.6f, \"wrong\": %u}\n", now() - begin, found);
    std::fflush(stdout);
  }
  return 0;
}

int pinned(size_t bytes) {
  void *device, *host;
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMallocHost(&host, bytes));
  std::memset(host, 1, bytes);
  ready();
  while (told()) {
    double took[2];
    for (const bool down : {true, false}) {
      const double begin = now();
      CHECK(cudaMemcpy(down ? host : device, down ? device : host, bytes, cudaMemcpyDefault));
      CHECK(cudaDeviceSynchronize());
      took[down] = now() - begin;
    }
    std::printf("{\"down\": %.6f, \"up\": %.6f}\n", took[1], took[0]);
    std::fflush(stdout);
  }
  return 0;
}

using Create = decltype(&cuMemCreate);

Create create_memory() {
  void* create = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuMemCreate", &create, CUDA_VERSION, cudaEnableDefault, &found));
  return reinterpret_cast<Create>(create);
}

CUresult create_with(Create create, size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle handle;
  return create(&handle, bytes, &properties, 0);
}

int hold(size_t bytes) {
  constexpr size_t piece = 32 << 20, least = 2 << 20;
  CHECK(cudaFree(nullptr));
  const Create create = create_memory();
  for (size_t left = bytes / least * least; left > 0;) {
    const size_t next = left < piece ? left : piece;
    if (const CUresult status = create_with(create, next); status != CUDA_SUCCESS) {
      std::fprintf(stderr, "cuMemCreate: %d, %zu bytes before the end\n", status, left);
      return 1;
    }
    left -= next;
  }
  ready();
  while (told()) {}
  return 0;
}

/// Bytes that the driver gave by calls of each kind in turn, smaller and smaller ones, until none of them gives any;
/// then as much as may be had again, for the heap of kernels, which the driver takes by itself.
int fill_up(size_t may) {
  CHECK(cudaFree(nullptr));
  size_t free_before = 0, total = 0;
  CHECK(cudaMemGetInfo(&free_before, &total));
  unsigned* pages;
  CHECK(cudaMalloc(&pages, sizeof *pages));
  CHECK(cudaMemset(pages, 0, sizeof *pages));
  size_t got = sizeof *pages;
  const auto by_driver = [create = create_memory()](size_t bytes) {
    return bytes % (2u << 20) == 0 && create_with(create, bytes) == CUDA_SUCCESS ? bytes : 0;
  };
  const std::vector<std::function<size_t(size_t)>> kinds{
      [](size_t bytes) {
        void* p;
        return cudaMalloc(&p, bytes) == cudaSuccess ? bytes : 0;
      },
      [](size_t bytes) {
        void* p;
        return cudaMallocAsync(&p, bytes, cudaStream_t(nullptr)) == cudaSuccess &&
                       cudaStreamSynchronize(nullptr) == cudaSuccess
                   ? bytes
                   : 0;
      },
      [](size_t bytes) {
        void* p;
        return cudaMallocManaged(&p, bytes) == cudaSuccess ? bytes : 0;
      },
      [](size_t bytes) {
        void* p;
        size_t pitch;
        return cudaMallocPitch(&p, &pitch, 1u << 16, bytes >> 16) == cudaSuccess ? pitch * (bytes >> 16) : 0;
      },
      [](size_t bytes) {
        const cudaChannelFormatDesc word = cudaCreateChannelDesc<unsigned>();
        cudaArray_t array;
        return bytes >= (1u << 18) && cudaMallocArray(&array, &word, 1u << 14, bytes >> 16) == cudaSuccess ? bytes : 0;
      },
      by_driver};
  for (size_t bytes = may * 2; bytes >= (1u << 16); bytes /= 2) {
    for (bool any = true; any;) {
      any = false;
      for (const auto& kind : kinds) {
        const size_t more = kind(bytes);
        cudaGetLastError();  // that there was no more is no error that counts
        got += more;
        any = any || more > 0;
      }
      if (got > 4 * may) break;  // there is no limit
    }
  }
  size_t left = 0;
  CHECK(cudaMemGetInfo(&left, &total));
  if (cudaDeviceSetLimit(cudaLimitMallocHeapSize, may) == cudaSuccess) take_from_heap<<<1, 32>>>(pages, may / 64);
  cudaDeviceSynchronize();
  cudaGetLastError();
  std::puts("ready");
  std::printf("{\"got\": %zu, \"free_before\": %zu, \"free\": %zu, \"total\": %zu}\n", got, free_before, left, total);
  std::fflush(stdout);
  while (told()) {}
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && !std::strcmp(argv[1], "sit")) return sit(size_t(std::atol(argv[2])) << 20);
  if (argc == 3 && !std::strcmp(argv[1], "fill")) return fill_up(size_t(std::atol(argv[2])) << 20);
  if (argc == 4 && !std::strcmp(argv[1], "touch")) return touch(size_t(std::atol(argv[2])) << 20, std::atof(argv[3]));
  if (argc == 3 && !std::strcmp(argv[1], "answer")) return answer(size_t(std::atol(argv[2])) << 20);
  if (argc == 3 && !std::strcmp(argv[1], "pinned")) return pinned(size_t(std::atol(argv[2])) << 20);
  if (argc == 3 && !std::strcmp(argv[1], "hold")) return hold(size_t(std::atol(argv[2])) << 20);
  const bool illegal = argc == 2 && !std::strcmp(argv[1], "illegal"), hang = argc == 2 && !std::strcmp(argv[1], "hang");
  if (!illegal && !hang) {
    std::fprintf(stderr,
                 "tenant sit MIB | fill MIB | touch MIB SECONDS | answer MIB | pinned MIB | hold MIB | "
                 "illegal | hang\n");
    return 2;
  }
  int* zero;
  CHECK(cudaMalloc(&zero, 4096));
  CHECK(cudaMemset(zero, 0, 4096));
  ready();
  if (!told()) return 0;
  if (illegal) write_to<<<1, 1>>>(reinterpret_cast<int*>(16));
  else spin<<<1, 1>>>(zero);
  const cudaError_t status = cudaDeviceSynchronize();
  std::printf("{\"status\": \"%s\"}\n", cudaGetErrorName(status));
  std::fflush(stdout);
  return 0;
}
