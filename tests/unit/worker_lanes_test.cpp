// What the worker does with chunks that come before the call that they belong to, or for one that it refuses.

#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/errors.h"
#include "server/worker/copy/worker_lanes.h"
#include "tests/temporary_folder.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

struct Nothing final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t) override { return {}; }
  void landed(Chunk, std::span<std::byte>, bool) override {}
  void lost(const std::string&) noexcept override {}
};

/// A worker's transfers, and a client's end of their one lane.
struct OneLane {
  OneLane() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    client.add(make_socket_channel(ends[0], "the worker"), 0, 0);
    transfers.add_lane(make_socket_channel(ends[1], "the client"), 0, 0);
  }
  /// Sends a chunk and waits until it has arrived; false if it does not.
  bool arrives(Chunk chunk) {
    client.send(chunk, bytes, {.sent = [] {}, .unreadable = {}});
    for (int i = 0; i < 10000; ++i) {
      if (transfers.collect()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::vector<std::byte> bytes{limits::lane_small_chunk_bytes};
  Waker waker;
  Nothing nobody;
  std::vector<ClientRequests::Chunks> asked;
  WorkerLanes transfers{waker, Compression::never,
                        [this](const ClientRequests::Chunks& wanted) { asked.push_back(wanted); }};
  Lanes client{nobody};
};

constexpr std::uint32_t many = 100;  // more than there is room for

/// Rows that make so many chunks.
RowChunks chunks(std::uint64_t count) {
  return {{limits::lane_small_chunk_bytes, count}, limits::lane_small_chunk_bytes};
}

}  // namespace

TEST_CASE("what comes for calls that were refused takes no room") {
  OneLane lane;
  const bool before = GENERATE(false, true);
  for (std::uint32_t transfer = 1; transfer <= many; ++transfer) {
    if (before) lane.transfers.refuse(transfer, 2);
    REQUIRE(lane.arrives({transfer, 0}));
    if (!before) lane.transfers.refuse(transfer, 2);
    REQUIRE(lane.arrives({transfer, 1}));
    CHECK(lane.asked.back().over);
  }
  unsigned taken = 0;
  lane.transfers.receive(many + 1, chunks(1), 1, false, [&](std::uint64_t, std::span<std::byte> slot) {
    ++taken;
    lane.transfers.give(many + 1, slot);
  });
  CHECK(lane.arrives({many + 1, 0}));
  CHECK(taken == 1);
}

TEST_CASE("no more chunks come unasked than may") {
  OneLane lane;
  const LaneClass of = GENERATE(LaneClass::large, LaneClass::small);
  const auto number = static_cast<std::uint32_t>(of);
  for (std::uint32_t n = 1; n <= early_chunks_of(of); ++n) REQUIRE(lane.arrives({2 * n + number, 0}));
  REQUIRE(lane.arrives({number == 0 ? 3u : 2u, 0}));
  CHECK_THROWS_AS(lane.arrives({2 + number, 1}), ChannelClosed);
}

TEST_CASE("calls on the lanes that are told of early chunks that never come are so many at most") {
  OneLane lane;
  std::uint32_t refused = 0;
  const auto refuse_all = [&] {
    while (refused < 100000) lane.transfers.refuse(++refused, 1);
  };
  CHECK_THROWS_AS(refuse_all(), ProtocolError);
  CHECK(refused > 1000);
  const auto nothing = [](std::uint64_t, std::span<std::byte>) {};
  CHECK_THROWS_AS(lane.transfers.receive(1, chunks(1), 1, false, nothing), ProtocolError);
  CHECK_THROWS_AS(lane.transfers.refuse(200000, limits::lane_early_chunks + 1), ProtocolError);
}

TEST_CASE("a chunk that comes twice, or that was not asked for, ends the session") {
  OneLane lane;
  const auto nothing = [](std::uint64_t, std::span<std::byte>) {};
  SECTION("twice before its call") {
    REQUIRE(lane.arrives({1, 0}));
    REQUIRE(lane.arrives({1, 0}));
    CHECK_THROWS_AS(lane.transfers.receive(1, chunks(1), 1, false, nothing), ProtocolError);
  }
  SECTION("twice after it") {
    lane.transfers.receive(1, chunks(2), 2, false, nothing);
    REQUIRE(lane.arrives({1, 0}));
    CHECK_THROWS_AS(lane.arrives({1, 0}), ProtocolError);
  }
  SECTION("beyond what was asked for") {
    lane.transfers.receive(1, chunks(200), 0, false, nothing);
    CHECK_THROWS_AS(lane.arrives({1, lane.asked.back().chunks}), ChannelClosed);
  }
  SECTION("of another length") {
    lane.transfers.receive(1, lane_chunks({10, 1}), 1, false, nothing);
    CHECK_THROWS_AS(lane.arrives({1, 0}), ProtocolError);
  }
}

TEST_CASE("a transfer that the GPU keeps waiting leaves slots to others") {
  OneLane lane;
  const auto keeps = [](std::uint64_t, std::span<std::byte>) {};
  std::uint32_t before = 0;
  for (std::uint32_t transfer = 2; transfer <= 10; transfer += 2) {
    lane.transfers.receive(transfer, chunks(1000), 0, false, keeps);
    const std::uint32_t asked = lane.asked.back().chunks;
    CHECK(asked > 0);
    if (transfer > 2) CHECK(asked <= before);
    before = asked;
    for (std::uint32_t n = 0; n < asked; ++n) REQUIRE(lane.arrives({transfer, n}));
  }
}

TEST_CASE("the client is asked for more as slots become free, and for nothing twice") {
  OneLane lane;
  constexpr std::uint32_t count = 300;
  std::uint32_t taken = 0;
  lane.transfers.receive(7, chunks(count), 0, true, [&](std::uint64_t chunk, std::span<std::byte> slot) {
    CHECK(chunk == taken);
    ++taken;
    lane.transfers.give(7, slot);
  });
  CHECK(lane.asked.front().in_order);
  CHECK(lane.asked.front().chunks == 0);
  for (std::uint32_t n = 0; n < count; ++n) {
    REQUIRE(lane.asked.back().chunks > n);
    REQUIRE(lane.arrives({7, n}));
  }
  CHECK(taken == count);
  for (std::size_t i = 1; i < lane.asked.size(); ++i) CHECK(lane.asked[i].chunks > lane.asked[i - 1].chunks);
  CHECK(lane.asked.size() < count);
}

// --- contents that are kept -----------------------------------------------------------------------------------------

namespace {

/// What a client hears of contents.
struct Answers final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t) override { return {}; }
  void landed(Chunk, std::span<std::byte>, bool) override {}
  void heard(const ContentWord& word) override {
    const std::lock_guard lock(mutex);
    words.push_back(word);
    changed.notify_all();
  }
  void lost(const std::string&) noexcept override {}
  /// The next one.
  ContentWord next() {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return !words.empty(); }));
    const ContentWord word = words.front();
    words.erase(words.begin());
    return word;
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ContentWord> words;
};

/// A worker's transfers where contents are kept, and a client's end of their one lane.
struct KeepingLane {
  using Kind = ContentWord::Kind;
  explicit KeepingLane(bool keeps = true)
      : transfers(
            waker, Compression::never, [](const ClientRequests::Chunks&) {}, LaneRoom::of_client(),
            keeps ? std::make_unique<ContentDesk>(ContentStore(folder.path, 1u << 30), budget) : nullptr) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    client.add(make_socket_channel(ends[0], "the worker"), 0, 0);
    transfers.add_lane(make_socket_channel(ends[1], "the client"), 0, 0);
  }
  /// Until something happens to the transfers.
  void collect() {
    for (int i = 0; i < 10000; ++i) {
      if (transfers.collect()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL("nothing happened");
  }
  void send(Chunk chunk, bool keep = true) {
    client.send(chunk, bytes, {.sent = [] {}, .unreadable = {}}, {.keep = keep});
  }
  ContentWord word(Kind kind, Chunk chunk) const { return {kind, chunk, name_content(bytes), bytes.size()}; }
  /// Has the contents be kept.
  void keep() {
    transfers.receive(1, lane_chunks({bytes.size(), 1}), 1, false,
                      [this](std::uint64_t, std::span<std::byte> slot) { transfers.give(1, slot); });
    send({1, 0});
    collect();
    transfers.contents()->finish(std::chrono::seconds(20));
    REQUIRE(transfers.contents()->kept_bytes() == bytes.size());
  }
  std::vector<std::byte> bytes = std::vector<std::byte>(limits::lane_small_chunk_bytes, std::byte{7});
  test::TemporaryFolder folder;
  HostBudget budget{0};
  Waker waker;
  Answers answers;
  WorkerLanes transfers;
  Lanes client{answers};
};

}  // namespace

TEST_CASE("a chunk whose contents are known lands by its name, before its call and after it") {
  KeepingLane lane;
  lane.keep();
  const bool early = GENERATE(false, true);
  unsigned taken = 0;
  const auto begin = [&] {
    lane.transfers.receive(3, chunks(2), 1, false, [&](std::uint64_t, std::span<std::byte> slot) {
      CHECK(std::ranges::equal(slot, lane.bytes));
      ++taken;
      lane.transfers.give(3, slot);
    });
  };
  if (!early) begin();
  lane.client.say(lane.word(ContentWord::Kind::named, {3, 0}));
  const ContentWord answer = lane.answers.next();
  CHECK(answer.kind == ContentWord::Kind::known);
  CHECK(answer.chunk.transfer == 3);
  lane.collect();
  if (early) begin();
  CHECK(taken == 1);
  CHECK(lane.transfers.contents()->known_bytes() == lane.bytes.size());
  // It may not come again.
  lane.send({3, 0});
  CHECK_THROWS_AS(lane.collect(), std::exception);
}

TEST_CASE("a chunk whose contents are not known comes by its bytes, and is kept") {
  KeepingLane lane;
  unsigned taken = 0;
  lane.transfers.receive(3, lane_chunks({lane.bytes.size(), 1}), 1, false,
                         [&](std::uint64_t, std::span<std::byte> slot) {
                           ++taken;
                           lane.transfers.give(3, slot);
                         });
  lane.client.say(lane.word(ContentWord::Kind::named, {3, 0}));
  CHECK(lane.answers.next().kind == ContentWord::Kind::unknown);
  lane.send({3, 0});
  lane.collect();
  CHECK(taken == 1);
  lane.transfers.contents()->finish(std::chrono::seconds(20));
  lane.client.say(lane.word(ContentWord::Kind::asked, {5, 0}));
  CHECK(lane.answers.next().kind == ContentWord::Kind::known);
}

TEST_CASE("contents that are named as others are kept under their own name alone") {
  KeepingLane lane;
  lane.transfers.receive(3, lane_chunks({lane.bytes.size(), 1}), 1, false,
                         [&](std::uint64_t, std::span<std::byte> slot) { lane.transfers.give(3, slot); });
  ContentWord lie = lane.word(ContentWord::Kind::named, {3, 0});
  lie.name[0] ^= std::byte{1};
  lane.client.say(lie);
  CHECK(lane.answers.next().kind == ContentWord::Kind::unknown);
  lane.send({3, 0});
  lane.collect();
  lane.transfers.contents()->finish(std::chrono::seconds(20));
  lie.kind = ContentWord::Kind::asked;
  lane.client.say(lie);
  CHECK(lane.answers.next().kind == ContentWord::Kind::unknown);
  lane.client.say(lane.word(ContentWord::Kind::asked, {5, 0}));
  CHECK(lane.answers.next().kind == ContentWord::Kind::known);
}

TEST_CASE("words about contents that break the protocol end the session") {
  using Kind = ContentWord::Kind;
  KeepingLane lane(GENERATE(true, true, true, true, true, true, true, false));
  ContentWord word = lane.word(Kind::named, {3, 0});
  const auto ends = [&] {
    CHECK_THROWS_AS(
        [&] {
          for (int i = 0; i < 100; ++i) lane.collect();
        }(),
        ChannelClosed);
  };
  if (!lane.transfers.contents()) {
    lane.client.say(word);
    return ends();
  }
  lane.transfers.receive(3, chunks(4), 4, false, [](std::uint64_t, std::span<std::byte>) {});
  SECTION("longer than a chunk may be") {
    word.bytes = limits::lane_small_chunk_bytes + 1;
    lane.client.say(word);
    ends();
  }
  SECTION("of no length") {
    word.bytes = 0;
    lane.client.say(word);
    ends();
  }
  SECTION("an answer") {
    word.kind = Kind::known;
    lane.client.say(word);
    ends();
  }
  SECTION("a chunk that was not asked for") {
    word.chunk.number = many;
    lane.client.say(word);
    ends();
  }
  SECTION("a chunk that is named twice") {
    lane.client.say(word);
    CHECK(lane.answers.next().kind == Kind::unknown);
    lane.client.say(word);
    ends();
  }
  SECTION("more unasked than may come") {
    for (std::uint32_t n = 0; n <= limits::lane_early_small_chunks; ++n) {
      word.chunk = {2 * n + 101, 0};
      lane.client.say(word);
    }
    ends();
  }
}

TEST_CASE("a chunk that is named with another length than it has ends the session") {
  KeepingLane lane;
  lane.keep();
  lane.transfers.receive(3, lane_chunks({lane.bytes.size() + 100'000, 1}), 1, false,
                         [](std::uint64_t, std::span<std::byte>) { FAIL("it came"); });
  lane.client.say(lane.word(ContentWord::Kind::named, {3, 0}));
  CHECK_THROWS_AS(lane.collect(), ProtocolError);
}
