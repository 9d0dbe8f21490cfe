#pragma once
// The memory of a program whose pages may not be what the program says.

#include <cstddef>

namespace fargpu {

/// Copies from such memory, and to it: the kernel tells of pages that cannot be used, instead of a signal. False if
/// there are any. Memory of a GPU (device_bytes.h) is copied by its owner, on either side.
bool read_program_memory(const void* from, void* to, std::size_t bytes);
bool write_program_memory(const void* from, void* to, std::size_t bytes);

/// While it lives, what its thread copies by these functions is memory of ours: the kernel is not asked, which costs
/// more than copying a few bytes.
class OwnMemory {
 public:
  OwnMemory();
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  /// Whether one lives in this thread.
  static bool in_effect();
};

/// Has the kernel bring pages of a file that are not there, many at once; by itself it reads them page by page, and
/// slowly. A kernel that cannot bring pages says so, and nothing is lost.
void bring_program_memory(const void* memory, std::size_t bytes);

}  // namespace fargpu
