// In place of engine.cpp, where the build is with clang's libFuzzer: what the targets need of it, and the seeds of the
// target in the first folder that is given, which libFuzzer begins with and adds to.

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fuzz.h"

// Freed memory is given back soon: inputs are many and small.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=4"; }

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  using namespace fargpu::fuzz;
  // Not the name of each function that an input comes to first: to look it up takes longer than hundreds of inputs.
  static std::vector<char*> more(*arguments, *arguments + *count);
  static char no_names[] = "-print_funcs=0";
  more.insert(more.begin() + 1, no_names);
  *count = static_cast<int>(more.size());
  more.push_back(nullptr);
  *arguments = more.data();
  for (int i = 1; i < *count; ++i) {
    struct stat status {};
    if (::stat((*arguments)[i], &status) != 0 || !S_ISDIR(status.st_mode)) continue;
    unsigned number = 0;
    for (const Input& input : seeds()) {
      std::ofstream file((*arguments)[i] + ("/seed-" + std::to_string(number++)), std::ios::binary);
      file.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
    }
    break;
  }
  // What the target keeps for all inputs is nobody's to take down.
  std::atexit([] {
    if (at_end) at_end();
    std::fflush(nullptr);
    std::_Exit(0);
  });
  return 0;
}

void fargpu::fuzz::broken(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}
