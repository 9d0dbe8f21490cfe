#include "displacement.h"

#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "sanitized.h"

namespace fargpu::server {

// The kernel places mappings below the largest possible stack. With a limit of 48 TiB they begin near 0x4fff_0000_0000
// instead of 0x7fff_0000_0000, where a client process has its own. It varies that by 1 TiB, in which the bands of many
// hosts would meet in one client, so the limit varies too. Takes effect at exec.
void displace(char** arguments) {
  if (sanitized) return;
  constexpr rlim_t displacement = 0x3000'0000'0000, step = rlim_t{1} << 40;
  constexpr unsigned steps = 8;
  constexpr const char* mark = "FARGPU_WORKER_DISPLACED";
  constexpr std::size_t thread_stack_bytes = 8u << 20;
  if (std::getenv(mark)) {
    ::unsetenv(mark);
    // The limit is also the default size of thread stacks, of which nobody has 48 TiB.
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, thread_stack_bytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
    const rlimit usual{thread_stack_bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_STACK, &usual);
    return;
  }
  unsigned random = 0;
  if (::getrandom(&random, sizeof(random), 0) != sizeof(random)) random = static_cast<unsigned>(::getpid());
  const rlimit large{displacement + random % steps * step, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_STACK, &large) != 0) return;  // a hard limit: globals may then meet the client's mappings
  ::setenv(mark, "1", 1);
  ::execv("/proc/self/exe", arguments);
}

// The displaced base is well below where it would be otherwise.
Window displaced_band() {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t top = 0;
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    if (end < 0x7000'0000'0000 && begin >= 0x4000'0000'0000 && line.find("[heap]") == std::string::npos &&
        begin < 0x5400'0000'0000)
      top = std::max(top, end);
  }
  if (top == 0) return {};
  constexpr std::uint64_t bytes = std::uint64_t{1} << 40;
  constexpr std::uint64_t unit = std::uint64_t{1} << 30;
  const std::uint64_t end = (top + unit - 1) / unit * unit;
  return {end - bytes, bytes};
}

}  // namespace fargpu::server
