#include "want_of_memory.h"

#ifdef FARGPU_WANT_OF_MEMORY

#include <cstdlib>
#include <new>

namespace {

thread_local bool wanting = false, refused_one = false;
thread_local std::size_t pieces_left = 0;

bool refuses() {
  if (!wanting || refused_one || pieces_left-- > 0) return false;
  return refused_one = true;
}

}  // namespace

// In the place of the C++ library's.
void* operator new(std::size_t bytes) {
  void* const memory = refuses() ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// In the place of the C library's, which is glibc.
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return refuses() ? nullptr : __libc_calloc(count, bytes);
}

namespace fargpu::test {

WantOfMemory::WantOfMemory(std::size_t pieces) {
  pieces_left = pieces;
  refused_one = false;
  wanting = true;
}
WantOfMemory::~WantOfMemory() { wanting = false; }
bool WantOfMemory::refused() const { return refused_one; }

}  // namespace fargpu::test

#endif
