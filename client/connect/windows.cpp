#include "windows.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <array>
#include <span>

namespace fargpu::client {
namespace {

constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
constexpr std::uint64_t TiB = std::uint64_t{1} << 40;

// The first of each list suits ordinary processes, the second those with AddressSanitizer or a stack without a limit,
// for which Linux puts what a process maps below 0x1555'5555'5000, or, on older kernels, above 0x2aaa'aaaa'a000. The
// third is for those with little room, the last for those with ThreadSanitizer: there its shadow memory leaves room.
// Device windows are as large as may be, because PyTorch reserves more addresses than the device has memory for each
// stream and pool. Host windows begin at odd places: launches look for host addresses among the arguments, and there
// two ordinary numbers of 32 bits must not pass for one.
using Candidates = std::array<Window, 4>;

Candidates device_candidates(unsigned origin) {
  const Window last{0x5500'0000'0000 + origin * 64 * GiB, 64 * GiB};
  if (origin == 0)
    return {{{0x1000'0000'0000, 22 * TiB}, {0x1600'0000'0000, 16 * TiB}, {0x1600'0000'0000, 1 * TiB}, last}};
  const std::uint64_t base = 0x3400'0000'0000 + (origin - 1) * 4 * TiB;
  return {{{base, 4 * TiB}, {base, 1 * TiB}, {base, 256 * GiB}, last}};
}

Candidates host_candidates(unsigned origin) {
  const std::uint64_t base = 0x2b5d'4000'0000 + origin * TiB;
  return {{{base, 1 * TiB}, {base, 512 * GiB}, {base, 256 * GiB}, {0x7e80'4000'0000 + origin * 64 * GiB, 64 * GiB}}};
}

// Looked for by name: it is the program that has a sanitizer or has none, however this library was built.
bool under_thread_sanitizer() { return ::dlsym(RTLD_DEFAULT, "__tsan_init") != nullptr; }

std::vector<Window> reserve(const Candidates& candidates) {
  // ThreadSanitizer ends the process over a mapping where it allows none, instead of refusing it.
  const std::size_t first = under_thread_sanitizer() ? candidates.size() - 1 : 0;
  std::vector<Window> reserved;
  for (const Window& window : std::span(candidates).subspan(first))
    if (reserve_window(window)) reserved.push_back(window);
  return reserved;
}

}  // namespace

std::vector<Window> reserve_device_windows(unsigned origin) { return reserve(device_candidates(origin)); }
std::vector<Window> reserve_host_windows(unsigned origin) { return reserve(host_candidates(origin)); }

void release_window(const Window& window) { ::munmap(reinterpret_cast<void*>(window.base), window.bytes); }

}  // namespace fargpu::client
