// What a client offers to its worker on the bulk lanes.

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "client/call/client_lanes.h"
#include "protocol/errors.h"

using namespace fargpu;
using namespace fargpu::client;

namespace {

/// The worker's end: takes whatever comes.
struct Taken final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t) override { return {}; }
  void landed(Chunk, std::span<std::byte>, bool) override {}
  void lost(const std::string&) override {}
};

struct Offered {
  Offered() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    worker.add(make_socket_channel(ends[1], "the client"), 1, 1);
    REQUIRE(lanes.takes(limits::lane_row_bytes_min, false));
  }
  /// Offers a transfer; gives its number, and how many of its chunks go unasked.
  std::pair<std::uint32_t, std::uint32_t> offer(std::size_t bytes) {
    std::pair<std::uint32_t, std::uint32_t> said;
    CUresult result = CUDA_ERROR_UNKNOWN;
    const CopySide side = CopySide::packed_at(memory.data(), {bytes});
    CHECK(lanes.offer(
        {side, {bytes}, false}, false, [] {},
        [&](std::uint32_t transfer, std::uint32_t early) {
          said = {transfer, early};
          return CUDA_SUCCESS;
        },
        result));
    return said;
  }
  std::vector<std::byte> memory{16u << 20};
  std::promise<std::string> told_lost;
  int ends[2];
  Taken taker;
  Lanes worker{taker};
  ClientLanes lanes{{.lanes = 1},
                    [this] { return make_socket_channel(ends[0], "the worker"); },
                    [this](const std::string& why) { told_lost.set_value(why); },
                    Compression::never,
                    std::chrono::seconds(10)};
};

}  // namespace

TEST_CASE("chunks that go unasked are so many at most, and come back when the worker begins with their transfer") {
  Offered offered;
  const std::size_t bytes = GENERATE(std::size_t{200'000}, std::size_t{3'000'000}, std::size_t{16u << 20});
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> transfers;
    std::uint32_t early = 0;
    do {
      transfers.push_back(offered.offer(bytes));
      early += transfers.back().second;
    } while (transfers.back().second > 0);
    CHECK(early == early_chunks_of(lane_class(CopyShape{bytes})));
    // Most of them have left by now; that they have must not lose what they took.
    if (round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& [transfer, count] : transfers) offered.lanes.wanted(transfer, count, round % 3 == 0);
  }
}

TEST_CASE("a worker cannot want more than there is, and what it says of transfers that are over is not heard") {
  Offered offered;
  const auto [transfer, early] = offered.offer(3'000'000);
  CHECK_THROWS_AS(offered.lanes.wanted(transfer, 13, false), ProtocolError);
  offered.lanes.wanted(transfer + 2, 1, true);
  offered.lanes.wanted(transfer, 12, false);
}

TEST_CASE("a lane that the worker alone has dropped is told of") {
  Offered offered;
  auto told = offered.told_lost.get_future();
  offered.worker.close();
  REQUIRE(told.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  CHECK(told.get().starts_with("a bulk lane is lost: "));
  CHECK_FALSE(offered.lanes.close("the session is over"));
}

TEST_CASE("lanes that end with their session are not told of") {
  Offered offered;
  auto told = offered.told_lost.get_future();
  CHECK(offered.lanes.close("the session is over"));
  offered.worker.close();
  CHECK(told.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
}
