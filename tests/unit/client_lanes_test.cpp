// What a client offers to its worker on the bulk lanes.

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/call/client_lanes.h"
#include "client/objects/stream.h"
#include "frames.h"
#include "protocol/errors.h"

using namespace fargpu;
using namespace fargpu::client;

namespace {

/// The worker's end: takes whatever comes.
struct Taken final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t) override { return {}; }
  void landed(Chunk, std::span<std::byte>, bool) override {}
  void lost(const std::string&) noexcept override {}
};

/// What is there, of memory that another thread may be receiving into just then.
[[gnu::no_sanitize("thread")]] std::byte while_written(const volatile std::byte* place) { return *place; }

struct Offered {
  Offered() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    worker.add(make_socket_channel(ends[1], "the client"), 1, 1);
    REQUIRE(lanes.takes(limits::lane_row_bytes_min, false, true));
  }
  /// Offers a transfer; gives its number, and how many of its chunks go unasked.
  std::pair<std::uint32_t, std::uint32_t> offer(std::size_t bytes) {
    std::pair<std::uint32_t, std::uint32_t> said;
    CUresult result = CUDA_ERROR_UNKNOWN;
    const CopySide side = CopySide::packed_at(memory.data(), {bytes});
    CHECK(lanes.offer(
        {side, {bytes}, false}, false, [] {}, CopyStream{},
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

TEST_CASE("no lane is opened once the session has ended, whose host may be silent") {
  const bool meanwhile = GENERATE(false, true);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  Taken taker;
  Lanes worker{taker};
  worker.add(make_socket_channel(ends[1], "the client"), 1, 1);
  int opened = 0;
  ClientLanes* opening = nullptr;
  ClientLanes lanes(
      {.lanes = 2},
      [&] {
        ++opened;
        opening->close("the host has not answered");
        return make_socket_channel(ends[0], "the worker");
      },
      [](const std::string&) {}, Compression::never, std::chrono::seconds(10));
  opening = &lanes;
  if (!meanwhile) lanes.close("the host has not answered");
  CHECK_FALSE(lanes.takes(limits::lane_row_bytes_min, false, true));
  CHECK(opened == (meanwhile ? 1 : 0));
  if (!meanwhile) ::close(ends[0]);
}

TEST_CASE("lanes that end with their session are not told of") {
  Offered offered;
  auto told = offered.told_lost.get_future();
  CHECK(offered.lanes.close("the session is over"));
  offered.worker.close();
  CHECK(told.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
}

// --- from the worker ------------------------------------------------------------------------------------------------

TEST_CASE("memory that a chunk is on its way to stays the copy's, although the worker has said that no more come") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const auto worker = make_socket_channel(ends[1], "the client");
  ClientLanes lanes(
      {.lanes = 1}, [&] { return make_socket_channel(ends[0], "the worker"); }, [](const std::string&) {},
      Compression::never, std::chrono::seconds(10));
  REQUIRE(lanes.takes(limits::lane_row_bytes_min, false, true));
  const test::Bytes bytes = test::pattern(limits::lane_chunk_bytes);  // the first chunk
  test::Bytes memory(limits::lane_large_bytes);
  const CopySide side = CopySide::packed_at(memory.data(), {memory.size()});
  std::atomic<int> told{0};
  std::uint32_t transfer = 0;
  const auto incoming = lanes.expect(
      {side, {memory.size()}, false}, [&](bool) { ++told; }, transfer);
  REQUIRE(incoming);
  FrameHeader header = test::numbered(2, FrameKind::data);
  header.subject = transfer;
  header.detail = 1;
  const test::Bytes frame = test::frame(header, {}, bytes);
  const std::ptrdiff_t half = 1 << 19;
  test::send(*worker, {frame.begin(), frame.begin() + half});
  const auto begun = [&] { return while_written(memory.data() + 100) == bytes[100]; };
  for (int look = 0; look < 20'000 && !begun(); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(begun());

  lanes.wanted(transfer, 0, true);
  lanes.wanted(transfer, 0, true);
  CHECK(told == 0);
  const bool cancelled = GENERATE(false, true);
  auto freed = std::async(std::launch::async, [&] {
    if (cancelled) lanes.cancel(transfer);
    else lanes.wait_arrived(*incoming);
  });
  CHECK(freed.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  test::send(*worker, {frame.begin() + half, frame.end()});
  freed.get();
  CHECK(std::equal(bytes.begin(), bytes.end(), memory.begin()));
  CHECK(told == 1);
  // What comes of it now, the worker has promised not to send: it goes nowhere.
  std::fill(memory.begin(), memory.end(), std::byte{});
  header.sequence = 3;
  header.detail = 2;
  header.thread = 1;
  test::send(*worker, test::frame(header, {}, bytes));
  lanes.wait_for_chunks(2);
  CHECK(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{}; }));
  lanes.close("the test is over");
}

// --- contents that the host has kept --------------------------------------------------------------------------------

namespace {

/// The worker's end where contents are kept: hears names, and takes what comes.
struct Keeper final : ChunkHandler {
  std::span<std::byte> place(Chunk, std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    return places.emplace_back(bytes);
  }
  void keep(std::span<const std::byte> bytes) override { told_to_keep += bytes.size(); }
  void landed(Chunk chunk, std::span<std::byte> bytes, bool) override {
    const std::lock_guard lock(mutex);
    CHECK(name_content(bytes) == names[chunk.number]);
    landed_bytes += bytes.size();
    changed.notify_all();
  }
  void heard(const ContentWord& word) override {
    const std::lock_guard lock(mutex);
    names[word.chunk.number] = word.name;
    words.push_back(word);
    changed.notify_all();
  }
  void lost(const std::string&) noexcept override {}
  template <class Condition>
  bool wait(Condition&& condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), condition);
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::list<std::vector<std::byte>> places;
  std::map<std::uint32_t, ContentName> names;
  std::vector<ContentWord> words;
  std::size_t landed_bytes = 0;
  std::atomic<std::size_t> told_to_keep{0};
};

struct Named {
  static constexpr std::uint32_t chunks = 6;
  /// `at_once`: the worker asks for the first ones, of which all are told of by words then. Else it asks for none yet.
  /// `on`: nobody waits for the copy yet.
  explicit Named(bool at_once = true, std::uint32_t count = chunks, const CopyStream& on = {})
      : memory(count << 20, std::byte{5}) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    worker.add(make_socket_channel(ends[1], "the client"), 1, 1);
    REQUIRE_FALSE(lanes.takes(memory.size(), true, /*to_worker=*/false));  // one lane would be no better
    REQUIRE(lanes.takes(memory.size(), true, /*to_worker=*/true));
    CUresult result = CUDA_ERROR_UNKNOWN;
    const CopySide side = CopySide::packed_at(memory.data(), {memory.size()});
    outgoing = lanes.offer(
        {side, {memory.size()}, false}, /*in_order=*/at_once, on.stream ? [] {} : std::function<void()>(), on,
        [&](std::uint32_t number, std::uint32_t unasked) {
          transfer = number;
          early = unasked;
          return CUDA_SUCCESS;
        },
        result);
    REQUIRE(outgoing);
    if (!at_once) return;
    lanes.wanted(transfer, chunks, false);
    REQUIRE(keeper.wait([&] { return keeper.words.size() == chunks; }));
  }
  ~Named() {
    lanes.close("the test is over");
    worker.close();
  }
  std::vector<std::byte> memory;
  std::shared_ptr<const ClientLanes::Outgoing> outgoing;
  std::uint32_t transfer = 0, early = 0;
  std::promise<std::string> told_lost;
  int ends[2];
  Keeper keeper;
  Lanes worker{keeper};
  ClientLanes lanes{{.lanes = 1},
                    [this] { return make_socket_channel(ends[0], "the worker"); },
                    [this](const std::string& why) { told_lost.set_value(why); },
                    Compression::never,
                    std::chrono::seconds(10),
                    {ContentCache::always, 1u << 30}};
};

}  // namespace

TEST_CASE("the program has its memory back before a name is answered, and what is unknown is sent as it was named") {
  Named named;
  CHECK(named.lanes.wait_read(*named.outgoing));
  std::fill(named.memory.begin(), named.memory.end(), std::byte{9});
  CHECK(named.lanes.bytes_sent() < 1000);
  for (std::uint32_t n = 0; n < Named::chunks; ++n)
    named.worker.say({n % 2 ? ContentWord::Kind::known : ContentWord::Kind::unknown, {named.transfer, n}});
  REQUIRE(named.keeper.wait([&] { return named.keeper.landed_bytes == Named::chunks / 2 << 20; }));
  CHECK(named.keeper.told_to_keep == Named::chunks / 2 << 20);
  // The last answer is that a chunk is known, and nothing lands by it.
  for (int look = 0; look < 5000 && named.lanes.content_counts().known < Named::chunks / 2; ++look)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto counts = named.lanes.content_counts();
  CHECK(counts.named == Named::chunks);
  CHECK(counts.known == Named::chunks / 2);
  CHECK(counts.known_bytes == Named::chunks / 2 << 20);
}

TEST_CASE("the program has its memory back before the worker asks for what is named, of which it hears then") {
  constexpr std::uint32_t count = 60;
  const bool later = GENERATE(false, true);
  const Stream stream{}, other{};
  Named named(/*at_once=*/false, count, later ? CopyStream{&stream} : CopyStream{});
  if (later) named.lanes.wait_all_read([&](const CopyStream& one) { return one.stream == &other; });
  auto read = std::async(std::launch::async, [&] {
    if (later) named.lanes.wait_all_read([&](const CopyStream& one) { return one.stream == &stream; });
    return named.lanes.wait_read(*named.outgoing);
  });
  const bool in_time = read.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  if (!in_time) named.lanes.close("the worker has not asked");
  REQUIRE(in_time);
  CHECK(read.get());
  std::fill(named.memory.begin(), named.memory.end(), std::byte{9});
  const auto heard = [&] { return named.keeper.words.size(); };
  const auto hears_all_of = [&](std::uint32_t chunks) {
    CHECK(named.keeper.wait([&] { return heard() >= chunks; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(named.keeper.wait([&] { return heard() == chunks; }));
  };
  REQUIRE(named.early < count / 2);
  hears_all_of(named.early);
  SECTION("it asks for all, in parts") {
    named.lanes.wanted(named.transfer, named.early + 3, false);
    hears_all_of(named.early + 3);
    named.lanes.wanted(named.transfer, count, false);
    hears_all_of(count);
    const ContentName name = name_content(std::vector<std::byte>(1u << 20, std::byte{5}));
    CHECK(named.keeper.names.size() == count);
    for (const auto& [number, said] : named.keeper.names) CHECK(said == name);
    named.worker.say({ContentWord::Kind::unknown, {named.transfer, count - 1}});
    CHECK(named.keeper.wait([&] { return named.keeper.landed_bytes == 1u << 20; }));
  }
  SECTION("it asks for no more") {
    named.lanes.wanted(named.transfer, named.early, true);
    hears_all_of(named.early);
  }
}

TEST_CASE("copies that no worker asks for are so many at most") {
  constexpr std::uint32_t count = 200;
  Named named(/*at_once=*/false, count);
  auto read = std::async(std::launch::async, [&] { return named.lanes.wait_read(*named.outgoing); });
  CHECK(read.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
  named.lanes.wanted(named.transfer, count, false);
  CHECK(read.get());
  CHECK(named.keeper.wait([&] { return named.keeper.words.size() == count; }));
}

TEST_CASE("answers about contents of which nobody asked end the session") {
  Named named;
  auto told = named.told_lost.get_future();
  const Chunk first{named.transfer, 0};
  SECTION("of another chunk") { named.worker.say({ContentWord::Kind::known, {named.transfer, Named::chunks}}); }
  SECTION("of another transfer") { named.worker.say({ContentWord::Kind::unknown, {named.transfer + 2, 0}}); }
  SECTION("twice") {
    named.worker.say({ContentWord::Kind::unknown, first});
    named.worker.say({ContentWord::Kind::known, first});
  }
  SECTION("that are questions") { named.worker.say({ContentWord::Kind::named, first, {}, 1}); }
  REQUIRE(told.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  CHECK(told.get().starts_with("a bulk lane is lost: "));
}
