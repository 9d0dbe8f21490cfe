#include "window.h"

#include <sys/mman.h>

namespace fargpu {

bool reserve_window(const Window& window) {
  void* const wish = reinterpret_cast<void*>(window.base);
  void* const got =
      ::mmap(wish, window.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == wish) return true;
  if (got != MAP_FAILED) ::munmap(got, window.bytes);
  return false;
}

}  // namespace fargpu
