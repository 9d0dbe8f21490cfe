// The copies of chunks that are named, and which threads make them.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/call/named_chunks.h"

using namespace fargpu;
using namespace fargpu::client;

namespace {

constexpr auto patience = std::chrono::seconds(20);

/// Chunks of a transfer, of whose copies the test says when they are done.
struct Chunks {
  NamedChunks named{{.say = [](const ContentWord&) {},
                     .send = [](Chunk, std::span<const std::byte>, bool, const std::function<void()>&) {},
                     .hashed = [](std::uint64_t, NamedChunks::Clock::duration) {},
                     .remembered = [] {},
                     .answered = [](NamedChunks::Way, bool, std::uint64_t, NamedChunks::Clock::time_point) {},
                     .failed = [](const std::string&) {}}};
  std::atomic<unsigned> begun{0}, sent{0};
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  std::uint32_t count = 0;

  ~Chunks() { named.end(); }
  void add(std::function<void()> copy) {
    NamedChunks::Job job;
    job.chunk = {1, count++};
    job.bytes = 4096;
    job.gather = [copy = std::move(copy)](std::span<std::byte> into) {
      std::fill(into.begin(), into.end(), std::byte{3});
      copy();
      return true;
    };
    job.told.sent = [this] { ++sent; };
    REQUIRE(named.add(std::move(job), /*ahead=*/false));
  }
  void add_slow() {
    add([this] {
      ++begun;
      may_go.wait_for(patience);
    });
  }
  /// All threads of its own have one to copy.
  void occupy() {
    for (unsigned i = 0; i < NamedChunks::threads(); ++i) add_slow();
    REQUIRE(reaches(begun, NamedChunks::threads()));
  }
  static bool reaches(const std::atomic<unsigned>& number, unsigned wanted) {
    for (const auto end = std::chrono::steady_clock::now() + patience; number < wanted;) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
};

}  // namespace

TEST_CASE("a thread that waits copies chunks itself while the others are at work") {
  Chunks chunks;
  CHECK_FALSE(chunks.named.gather_next());
  chunks.occupy();
  std::thread::id by;
  chunks.add([&] { by = std::this_thread::get_id(); });
  CHECK(chunks.named.gather_next());
  CHECK(by == std::this_thread::get_id());
  CHECK(chunks.sent == 1);
  CHECK_FALSE(chunks.named.gather_next());
  chunks.go.set_value();
  CHECK(Chunks::reaches(chunks.sent, chunks.count));
}

TEST_CASE("the end waits for a thread of the program that copies a chunk, and nothing is copied afterwards") {
  Chunks chunks;
  chunks.occupy();
  chunks.add_slow();
  std::atomic<bool> copied_late = false;
  chunks.add([&] { copied_late = true; });
  auto helping = std::async(std::launch::async, [&] { return chunks.named.gather_next(); });
  REQUIRE(Chunks::reaches(chunks.begun, NamedChunks::threads() + 1));
  chunks.named.give_up();
  auto ending = std::async(std::launch::async, [&] { chunks.named.end(); });
  CHECK(ending.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  chunks.go.set_value();
  CHECK(helping.get());
  REQUIRE(ending.wait_for(patience) == std::future_status::ready);
  CHECK_FALSE(copied_late);
  CHECK_FALSE(chunks.named.gather_next());
}
