// Workers of a fargpud that died, found among the processes of this machine.

#include "server/broker/orphaned_workers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

using namespace fargpu::server;
using namespace std::chrono_literals;

TEST_CASE("processes that end while they are looked at are none") {
  std::atomic<bool> over{false};
  std::jthread others([&] {
    while (!over) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      if (child > 0) ::waitpid(child, nullptr, 0);
    }
  });
  const auto end = std::chrono::steady_clock::now() + 1s;
  std::size_t looks = 0;
  for (; std::chrono::steady_clock::now() < end; ++looks) CHECK(orphaned_workers("/no/such/worker").empty());
  over = true;
  CHECK(looks > 0);
}
