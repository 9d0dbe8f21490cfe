#pragma once
// Memory that is refused where a test wants it to be. Not where a sanitizer has an allocator of its own.

#include <cstddef>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FARGPU_WANT_OF_MEMORY

namespace fargpu::test {

/// While it lives, `new` and `calloc` give this thread so many pieces more, and refuse the next one: large ones are
/// missing first.
class WantOfMemory {
 public:
  explicit WantOfMemory(std::size_t pieces);
  WantOfMemory(const WantOfMemory&) = delete;
  WantOfMemory& operator=(const WantOfMemory&) = delete;
  ~WantOfMemory();
  /// Whether it was refused.
  bool refused() const;
};

}  // namespace fargpu::test

#endif
