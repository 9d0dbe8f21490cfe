// System calls and signals on memory whose pages come when they are touched, in a process of its own each: filters and
// handlers stay.

#include "client/memory/system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "client/base/uncancelled.h"
#include "client/memory/fault_handler.h"
#include "client/memory/vector_calls.h"
#include "client/memory/watched.h"

using namespace fargpu::client;
using fargpu::Window;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr Window window{0x5500'0000'0000, std::uint64_t{1} << 36};  // where its shadow memory leaves room
#else
constexpr Window window{0x1600'0000'0000, std::uint64_t{1} << 40};
#endif
constexpr std::size_t bytes = 1u << 20;

/// Comes as zeros, after a while.
struct Pages final : WatchedPages {
  explicit Pages(std::chrono::milliseconds takes = {}) : takes(takes) {
    if (::mmap(memory(), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != memory())
      ::_exit(2);
  }
  static std::byte* memory() { return reinterpret_cast<std::byte*>(window.base); }
  bool covers(std::uint64_t address) const override {
    return address >= window.base && address < window.base + window.bytes;
  }
  bool fault(std::uint64_t address, bool) override {
    const Uncancelled uncancelled;
    if (address < window.base || address >= window.base + bytes) return false;
    // As much as a call to the worker may take.
    char room[20'000];
    static_cast<volatile char*>(room)[0] = 1;
    began = true;
    if (takes.count() > 0) std::this_thread::sleep_for(takes);
    ++faults;
    return ::mprotect(memory(), bytes, PROT_READ | PROT_WRITE) == 0;
  }
  void touch(std::uint64_t address, std::uint64_t, bool writing) override {
    if (covers(address)) fault(address, writing);
  }
  const std::chrono::milliseconds takes;
  std::atomic<bool> began{false};
  std::atomic<int> faults{0};
};

/// How a child process that does this ends: 0 if all of it held.
int alone(const std::function<bool()>& holds) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    ::_exit(holds() ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

void* alternate_stack(std::size_t size) {
  stack_t stack{};
  stack.ss_sp = std::malloc(size);
  stack.ss_size = size;
  return ::sigaltstack(&stack, nullptr) == 0 ? stack.ss_sp : nullptr;
}

std::atomic<int> others{0};

}  // namespace

TEST_CASE("a program with the window's addresses in use", "[.][started]") {
  const auto* const text =
      static_cast<char*>(::mmap(reinterpret_cast<void*>(window.base + (1u << 30)), 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  REQUIRE(text != MAP_FAILED);
  const int file = ::open("/dev/null", O_WRONLY);
  CHECK(::write(file, text, 10) == 10);
}

#if defined(__x86_64__)

TEST_CASE("a buffer comes for the system call that uses it, and programs that are started go on") {
  CHECK(alone([] {
          Pages pages;
          watch_system_calls(pages, 0, {window, Window{}});
          int ends[2];
          if (::pipe(ends) != 0 || ::write(ends[1], Pages::memory() + 100, 50) != 50 || pages.faults != 1) return false;
          ::mprotect(Pages::memory(), bytes, PROT_NONE);
          return ::read(ends[0], Pages::memory() + 200, 50) == 50 && pages.faults == 2;
        }) == 0);
  CHECK(alone([] {
          Pages pages;
          watch_system_calls(pages, 0, {window, Window{}});
          const int quiet = ::open("/dev/null", O_WRONLY);
          ::dup2(quiet, 1);
          ::execl("/proc/self/exe", "unit_tests", "[started]", nullptr);
          return false;
        }) == 0);
}

TEST_CASE("a thread that is cancelled in a system call ends, and not the process") {
  CHECK(alone([] {
          Pages pages(std::chrono::milliseconds(200));
          watch_system_calls(pages, 0, {window, Window{}});
          int ends[2];
          if (::pipe(ends) != 0) return false;
          pthread_t thread;
          const auto reads = [](void* file) -> void* {
            (void)!::read(*static_cast<int*>(file), Pages::memory(), 10);
            return nullptr;
          };
          if (::pthread_create(&thread, nullptr, reads, &ends[0]) != 0) return false;
          while (!pages.began) std::this_thread::yield();
          ::pthread_cancel(thread);
          void* ended = nullptr;
          return ::pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED;
        }) == 0);
}

#endif

TEST_CASE("pages come to threads with alternate stacks, however small") {
  const std::size_t size = GENERATE(std::size_t{0}, std::size_t{12} << 10, std::size_t{64} << 10);
  CHECK(alone([&] {
          if (size != 0 && !alternate_stack(size)) return false;
          struct sigaction program {};
          program.sa_flags = SA_ONSTACK;
          program.sa_handler = [](int) {
            ++others;
            ::_exit(7);
          };
          ::sigaction(SIGSEGV, &program, nullptr);
          Pages pages;
          watch_faults(pages, 0);
          struct sigaction now {};
          ::sigaction(SIGSEGV, nullptr, &now);
          Pages::memory()[5] = std::byte{9};
          return (now.sa_flags & SA_ONSTACK) && pages.faults == 1 && Pages::memory()[5] == std::byte{9} && others == 0;
        }) == 0);
}

TEST_CASE("another signal may come while pages do") {
  CHECK(alone([] {
          if (!alternate_stack(std::size_t{16} << 10)) return false;
          struct sigaction program {};
          program.sa_flags = SA_ONSTACK;
          program.sa_handler = [](int) {
            volatile char frame[4000];
            for (auto& byte : frame) byte = 0x5a;
            ++others;
          };
          ::sigaction(SIGALRM, &program, nullptr);
          Pages pages(std::chrono::milliseconds(100));
          watch_faults(pages, 0);
          const itimerval often{{0, 10'000}, {0, 10'000}};
          ::setitimer(ITIMER_REAL, &often, nullptr);
          Pages::memory()[5] = std::byte{9};
          const itimerval never{};
          ::setitimer(ITIMER_REAL, &never, nullptr);
          return pages.faults == 1 && others > 0 && Pages::memory()[5] == std::byte{9};
        }) == 0);
}

// As a language whose threads notice the end of their stack.
TEST_CASE("a handler of the program's gets faults that are its own on its alternate stack") {
  CHECK(alone([] {
          static std::byte *begin = nullptr, *end = nullptr;
          begin = static_cast<std::byte*>(alternate_stack(std::size_t{12} << 10));
          if (!begin) return false;
          end = begin + (std::size_t{12} << 10);
          struct sigaction program {};
          program.sa_flags = SA_ONSTACK | SA_SIGINFO;
          program.sa_sigaction = [](int, siginfo_t*, void*) {
            std::byte here{};
            ::_exit(&here >= begin && &here < end ? 0 : 3);
          };
          ::sigaction(SIGSEGV, &program, nullptr);
          Pages pages;
          watch_faults(pages, 0);
          auto* const own =
              static_cast<volatile char*>(::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
          *own = 1;
          return false;
        }) == 0);
}

TEST_CASE("libraries may be loaded on another thread while calls with vectors are redirected") {
  CHECK(alone([] {
          std::atomic<bool> over{false};
          std::thread loads([&] {
            const std::array libraries{"libresolv.so.2", "libanl.so.1", "libnss_compat.so.2", "libnss_hesiod.so.2",
                                       "libthread_db.so.1"};
            for (int round = 0; round < 60; ++round)
              for (const char* const name : libraries)
                if (void* const library = ::dlopen(name, round % 2 ? RTLD_NOW : RTLD_LAZY)) ::dlclose(library);
            over = true;
          });
          while (!over) watch_vector_calls();
          loads.join();
          char text[4] = "abc";
          iovec parts[2] = {{text, 1}, {text + 1, 2}};
          int ends[2];
          return ::pipe(ends) == 0 && ::writev(ends[1], parts, 2) == 3 && ::read(ends[0], text, 3) == 3;
        }) == 0);
}
