// Loads the driver library by hand, as many programs do, and unloads it again.

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>

int main() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::printf("not loaded: %s\n", ::dlerror());
    return 1;
  }
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(::dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<CUresult (*)(int*)>(::dlsym(library, "cuDeviceGetCount"));
  int n = -1;
  std::printf("init %d\n", init(0));
  std::printf("unloaded %d\n", ::dlclose(library));
  // Its thread runs on, and its code is still there.
  std::printf("count %d", count(&n));
  std::printf(" %d\n", n);
  return 0;
}
