#include "windows.h"

#include <sys/mman.h>

namespace fargpu::client {
namespace {

constexpr std::uint64_t GiB = std::uint64_t{1} << 30;
constexpr std::uint64_t TiB = std::uint64_t{1} << 40;

// The first of each list suits ordinary processes. The others lie where AddressSanitizer's and ThreadSanitizer's shadow memory
// leaves room. Host windows begin at odd places: launches look for host addresses among the arguments, and there two ordinary
// numbers of 32 bits must not pass for one.
constexpr Window device_candidates[] = {
    {0x1000'0000'0000, 16 * TiB}, {0x1100'0000'0000, 1 * TiB}, {0x5500'0000'0000, 64 * GiB}};
constexpr Window host_candidates[] = {
    {0x2b5d'4000'0000, 1 * TiB}, {0x2b5d'4000'0000, 256 * GiB}, {0x7e80'4000'0000, 64 * GiB}};

template <std::size_t n>
std::vector<Window> reserve(const Window (&candidates)[n]) {
  std::vector<Window> reserved;
  for (const Window& window : candidates)
    if (reserve_window(window)) reserved.push_back(window);
  return reserved;
}

}  // namespace

std::vector<Window> reserve_device_windows() { return reserve(device_candidates); }
std::vector<Window> reserve_host_windows() { return reserve(host_candidates); }

bool reserve_window(const Window& window) {
  void* const wish = reinterpret_cast<void*>(window.base);
  void* const got = ::mmap(wish, window.bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wish) return true;
  if (got != MAP_FAILED) ::munmap(got, window.bytes);
  return false;
}

void release_window(const Window& window) { ::munmap(reinterpret_cast<void*>(window.base), window.bytes); }

}  // namespace fargpu::client
