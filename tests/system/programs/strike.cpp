// A library that is preloaded into clients and workers, and strikes one process at one place: its Nth allocation fails,
// or it is killed at its Nth call of the fake driver. Where, is in a file that the test writes to while the process
// runs; how far it got is told there.

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace {

enum What : std::uint32_t { nothing, allocation, driver_call };

/// The file's contents; tests/system/strikes_test.py has the same.
struct Order {
  std::atomic<std::uint32_t> what;
  std::atomic<std::int32_t> process;  // 0: whichever has this library
  std::atomic<std::uint64_t> at;      // 0: count only
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint32_t> struck;
};

Order* order;
// The object file whose allocations count; empty: the program itself. Allocations of other files are not our affair.
const char* object = "";
int told = -1;  // FARGPU_TEST_STRIKE_TELL: a file for where it struck, as addr2line reads it

__attribute__((constructor)) void find_order() {
  const char* const path = std::getenv("FARGPU_TEST_STRIKE");
  const char* const name = std::getenv("FARGPU_TEST_STRIKE_OBJECT");
  if (name) object = name;
  if (const char* const file = std::getenv("FARGPU_TEST_STRIKE_TELL"))
    told = ::open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int file = path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* const memory = ::mmap(nullptr, sizeof(Order), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory != MAP_FAILED) order = static_cast<Order*>(memory);
}

// Whether this is the one.
bool now(What what) {
  if (!order || order->what != what) return false;
  const std::int32_t process = order->process;
  if (process != 0 && process != ::getpid()) return false;
  if (++order->count != order->at) return false;
  order->struck = 1;
  if (told >= 0) {
    void* frames[40];
    ::backtrace_symbols_fd(frames, ::backtrace(frames, 40), told);
  }
  return true;
}

bool counts(void* caller) {
  dl_find_object found;
  if (::_dl_find_object(caller, &found) != 0 || !found.dlfo_link_map) return false;
  const char* const path = found.dlfo_link_map->l_name;
  const char* const slash = std::strrchr(path, '/');
  return std::strcmp(slash ? slash + 1 : path, object) == 0;
}

bool fails(void* caller) {
  if (!order || order->what != allocation || !counts(caller) || !now(allocation)) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

__attribute__((visibility("default"))) void fargpu_test_driver_call() {
  if (now(driver_call)) ::kill(::getpid(), SIGKILL);
}

__attribute__((visibility("default"))) void* malloc(std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_malloc(bytes);
}
__attribute__((visibility("default"))) void* calloc(std::size_t count, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_calloc(count, bytes);
}
__attribute__((visibility("default"))) void* realloc(void* memory, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_realloc(memory, bytes);
}
__attribute__((visibility("default"))) void* memalign(std::size_t alignment, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_memalign(alignment, bytes);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails(CALLER) ? nullptr : __libc_memalign(alignment, bytes);
}
__attribute__((visibility("default"))) int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  if (fails(CALLER)) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

}  // extern "C"
