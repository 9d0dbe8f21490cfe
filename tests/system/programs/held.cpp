// A job that holds its devices for a while and uses them all the time:
//
//   held SECONDS
//
// Says `S TIME UUID,UUID...` once it uses them all, and `E TIME` before it leaves them; TIME is that of the system's
// monotonic clock, in nanoseconds. `X RESULT at line LINE` where a call fails, and exits with 1.

#include <cuda.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

long long now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void must(CUresult result, int line = __builtin_LINE()) {
  if (result == CUDA_SUCCESS) return;
  std::printf("X %d at line %d\n", static_cast<int>(result), line);
  std::fflush(stdout);
  std::exit(1);
}

struct Held {
  CUcontext context = nullptr;
  CUdeviceptr word = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const long long lasts = argc > 1 ? static_cast<long long>(std::atof(argv[1]) * 1e9) : 0;
  must(cuInit(0));
  int count = 0;
  must(cuDeviceGetCount(&count));
  std::vector<Held> all(static_cast<std::size_t>(count));
  std::vector<CUuuid> names(all.size());
  for (int device = 0; device < count; ++device) {
    Held& held = all[static_cast<std::size_t>(device)];
    must(cuDeviceGetUuid(&names[static_cast<std::size_t>(device)], device));
    must(cuDevicePrimaryCtxRetain(&held.context, device));
    must(cuCtxSetCurrent(held.context));
    must(cuMemAlloc(&held.word, 4096));
    must(cuMemsetD32(held.word, 0x600d0000u + static_cast<unsigned>(device), 1024));
  }
  const long long begin = now();
  std::printf("S %lld ", begin);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) std::printf(",");
    for (const char byte : names[i].bytes) std::printf("%02x", static_cast<unsigned char>(byte));
  }
  std::printf("\n");
  std::fflush(stdout);
  while (now() < begin + lasts) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      must(cuCtxSetCurrent(all[i].context));
      unsigned word = 0;
      must(cuMemcpyDtoH(&word, all[i].word, sizeof(word)));
      if (word != 0x600d0000u + i) must(CUDA_ERROR_UNKNOWN);
    }
    ::usleep(100'000);
  }
  std::printf("E %lld\n", now());
  std::fflush(stdout);
  return 0;
}
