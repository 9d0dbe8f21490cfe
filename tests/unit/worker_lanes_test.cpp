// What the worker does with chunks that come before the call that they belong to, or for one that it refuses.

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "protocol/errors.h"
#include "server/worker/copy/worker_lanes.h"

using namespace fargpu;
using namespace fargpu::server;

namespace {

struct Nothing final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t) override { return {}; }
  void landed(Chunk, std::span<std::byte>, bool) override {}
  void lost(const std::string&) override {}
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
