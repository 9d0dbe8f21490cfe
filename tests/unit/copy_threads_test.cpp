// Copying with several threads: everything once, whatever the size, and whichever threads copy at the same time.

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "client/memory/copy_threads.h"
#include "frames.h"

using namespace fargpu;
using namespace fargpu::test;
using client::CopyThreads;

namespace {

// Their threads never end, and so neither may they.
CopyThreads& threads(unsigned helpers) {
  static auto& all = *new std::vector<std::unique_ptr<CopyThreads>>;
  return *all.emplace_back(std::make_unique<CopyThreads>(helpers));
}

bool copies(CopyThreads& threads, std::size_t bytes, unsigned seed) {
  const Bytes from = pattern(bytes, seed);
  Bytes to(bytes + 2, std::byte{0xee});
  threads.copy(to.data() + 1, from.data(), bytes);
  return to.front() == std::byte{0xee} && to.back() == std::byte{0xee} &&
         std::equal(from.begin(), from.end(), to.begin() + 1);
}

}  // namespace

TEST_CASE("copies of all sizes are whole, with helpers and without") {
  CopyThreads& some = threads(GENERATE(0u, 1u, 3u));
  constexpr std::size_t piece = 256u << 10;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, piece - 1, piece, piece + 1, 4 * piece, 9 * piece + 17, 40 * piece})
    CHECK(copies(some, bytes, static_cast<unsigned>(bytes)));
}

TEST_CASE("helpers that sleep are woken, and those that do not are not missed") {
  CopyThreads& some = threads(2);
  for (unsigned i = 0; i < 30; ++i) {
    CHECK(copies(some, 1u << 20, i));
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for them to sleep by then, mostly
  }
}

TEST_CASE("several threads may copy at once") {
  CopyThreads& some = threads(2);
  std::vector<std::future<bool>> all;
  for (unsigned thread = 0; thread < 4; ++thread) {
    all.push_back(std::async(std::launch::async, [&some, thread] {
      bool good = true;
      for (unsigned i = 0; i < 20; ++i) good = good && copies(some, (2u << 20) + i, 100 * thread + i);
      return good;
    }));
  }
  for (auto& each : all) CHECK(each.get());
}
