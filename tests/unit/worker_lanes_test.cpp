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
  void landed(Chunk, std::span<std::byte>) override {}
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
    client.send(chunk, bytes, [](bool) {});
    for (int i = 0; i < 10000; ++i) {
      if (transfers.collect()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  std::vector<std::byte> bytes{limits::lane_chunk_bytes};
  Waker waker;
  Nothing nobody;
  WorkerLanes transfers{waker, Compression::never};
  Lanes client{nobody};
};

constexpr std::uint32_t many = 100;  // more than there is room for

}  // namespace

TEST_CASE("what comes for calls that were refused takes no room") {
  OneLane lane;
  const bool before = GENERATE(false, true);
  for (std::uint32_t transfer = 1; transfer <= many; ++transfer) {
    if (before) lane.transfers.refuse(transfer, 2 * lane.bytes.size());
    REQUIRE(lane.arrives({transfer, 0}));
    if (!before) lane.transfers.refuse(transfer, 2 * lane.bytes.size());
    REQUIRE(lane.arrives({transfer, 1}));
  }
  unsigned taken = 0;
  lane.transfers.receive(many + 1, lane.bytes.size(), [&](Chunk, std::span<std::byte> slot) {
    ++taken;
    lane.transfers.give(slot);
  });
  CHECK(lane.arrives({many + 1, 0}));
  CHECK(taken == 1);
}

TEST_CASE("refused calls whose bytes never come are so many at most") {
  OneLane lane;
  std::uint32_t refused = 0;
  const auto refuse_all = [&] {
    while (refused < 100000) lane.transfers.refuse(++refused, 1);
  };
  CHECK_THROWS_AS(refuse_all(), ProtocolError);
  CHECK(refused > 1000);
  CHECK_THROWS_AS(lane.transfers.receive(1, 1, [](Chunk, std::span<std::byte>) {}), ProtocolError);
}

TEST_CASE("a chunk that comes twice before its call is taken once") {
  OneLane lane;
  REQUIRE(lane.arrives({1, 0}));
  REQUIRE(lane.arrives({1, 0}));
  unsigned taken = 0;
  lane.transfers.receive(1, lane.bytes.size(), [&](Chunk, std::span<std::byte> slot) {
    ++taken;
    lane.transfers.give(slot);
  });
  CHECK(taken == 1);
}
