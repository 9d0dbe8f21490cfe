// Links between the workers of two hosts: copies and waits that do not come by the program's process, what becomes of
// them when a link is lost, and what a worker makes of another one that keeps to nothing.

#include <algorithm>
#include <chrono>
#include <random>

#include "client/call/remote_call.h"
#include "client/call/stats.h"
#include "client/connect/control_connection.h"
#include "operations.capnp.h"
#include "protocol/frame.h"
#include "several.h"

namespace fargpu::test {
namespace {

using Contents = std::vector<std::byte>;

Contents random_bytes(std::size_t bytes, unsigned seed) {
  std::mt19937 generator(seed);
  Contents contents(bytes);
  for (std::byte& byte : contents) byte = static_cast<std::byte>(generator());
  return contents;
}

/// Device memory of a side with contents that are known.
struct Block {
  Block(const Side& side, std::size_t bytes, unsigned seed) : contents(random_bytes(bytes, seed)) {
    REQUIRE(cuCtxSetCurrent(side.context) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD_v2(address, contents.data(), bytes) == CUDA_SUCCESS);
  }
  ~Block() { CHECK(cuMemFree_v2(address) == CUDA_SUCCESS); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Contents now() const {
    Contents bytes(contents.size());
    REQUIRE(cuMemcpyDtoH_v2(bytes.data(), address, bytes.size()) == CUDA_SUCCESS);
    return bytes;
  }

  CUdeviceptr address = 0;
  Contents contents;  ///< what it should have
};

void expect(Block& target, std::size_t to, const Block& source, std::size_t from, std::size_t bytes) {
  std::copy_n(source.contents.begin() + static_cast<std::ptrdiff_t>(from), bytes,
              target.contents.begin() + static_cast<std::ptrdiff_t>(to));
}

/// With links, and without.
void each_way(const std::function<void(Several&, bool links)>& test) {
  for (const bool links : {true, false}) {
    CAPTURE(links);
    Several several;
    for (const auto& host : several.hosts) host->connects = links;
    test(several, links);
    if (links) CHECK(several.between().bytes_relayed() == 0);
    else CHECK(several.between().bytes_direct() == 0);
  }
}

TEST_CASE("a link may be used as soon as the other host has heard that it is taken") {
  struct Open final : server::PeerDoor {
    bool admit(std::span<const std::byte>) override { return true; }
    void shut_out(std::span<const std::byte>) override {}
    server::PeerConnection connect(const server::PeerAddress&, std::uint32_t) override { return {}; }
  } door;
  // The session uses the link at the moment at which the answer leaves.
  struct Hasty final : WrappedChannel {
    using WrappedChannel::WrappedChannel;
    std::size_t send_some(std::span<const Bytes> pieces) override {
      const std::size_t sent = WrappedChannel::send_some(pieces);
      if (!used.exchange(true)) {
        use = std::thread(act);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      return sent;
    }
    std::function<void()> act;
    std::atomic<bool> used{false};
    std::thread use;
  };
  Waker waker;
  server::HostBudget budget(0);
  server::PeerLinks links(waker, budget, Compression::never, std::chrono::seconds(20), &door,
                          [](std::uint32_t, const std::string&) {});
  REQUIRE(links.offer(3).empty());
  const auto key = links.admit(3);
  REQUIRE_FALSE(key.empty());
  const auto link = links.find(3);
  auto [near, far] = make_memory_channel();
  auto hasty = std::make_unique<Hasty>(std::move(far));
  Hasty& channel = *hasty;
  channel.act = [&] { link->say_landed(7); };
  links.take(std::move(hasty), {.link = 3, .channel = 0, .key = key});
  channel.use.join();
  links.collect();
  CHECK(link->failure() == "");
  const auto message = receive_control(*near, std::chrono::seconds(5));
  MessageReader reader(message);
  CHECK(reader.root<wire::Control>().isLaneAnswer());
}

TEST_CASE("copies between hosts have the same outcome by links and through the program") {
  each_way([](Several& several, bool links) {
    const Side one(several, 0), other(several, other_device);
    constexpr std::size_t bytes = 9u << 20;
    const Side* const sides[] = {&one, &other};
    Block blocks[] = {{one, bytes, 1}, {other, bytes, 2}};
    std::uint64_t copied = 0;
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{4099}, std::size_t{300} << 10, (std::size_t{6} << 20) + 13}) {
      for (const unsigned from : {0u, 1u}) {
        CAPTURE(length, from);
        const Side& source = *sides[from];
        const Side& target = *sides[1 - from];
        Block& read = blocks[from];
        Block& written = blocks[1 - from];
        std::size_t offset = 0;
        const auto step = [&](auto&& copy) {
          offset += 3;
          REQUIRE(copy(written.address + offset, read.address + 2 * offset) == CUDA_SUCCESS);
          expect(written, offset, read, 2 * offset, length);
          copied += length;
          CHECK(written.now() == written.contents);
        };
        step([&](CUdeviceptr to, CUdeviceptr at) { return cuMemcpy(to, at, length); });
        step([&](CUdeviceptr to, CUdeviceptr at) {
          return cuMemcpyPeer(to, target.context, at, source.context, length);
        });
        for (const Side* const leader : sides) {
          step([&](CUdeviceptr to, CUdeviceptr at) {
            const CUresult result = cuMemcpyAsync(to, at, length, leader->stream);
            return result == CUDA_SUCCESS ? cuStreamSynchronize(leader->stream) : result;
          });
        }
      }
    }
    CHECK((links ? several.between().bytes_direct() : several.between().bytes_relayed()) == copied);
  });
}

TEST_CASE("rows, slices and arrays go between hosts") {
  each_way([](Several& several, bool) {
    const Side one(several, 0), other(several, other_device);
    constexpr std::size_t pitch = 4096, height = 40, depth = 3, width = 1000;
    Block source(one, pitch * height * depth, 3), target(other, pitch * height * depth, 4);
    for (const Side* const leader : {&one, &other}) {
      CUDA_MEMCPY3D_PEER copy{};
      copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      copy.srcDevice = source.address;
      copy.dstDevice = target.address;
      copy.srcContext = one.context;
      copy.dstContext = other.context;
      copy.srcPitch = copy.dstPitch = pitch;
      copy.srcHeight = copy.dstHeight = height;
      copy.srcXInBytes = 5;
      copy.dstXInBytes = leader == &one ? 7 : 9;
      copy.srcY = 2;
      copy.WidthInBytes = width;
      copy.Height = height - 2;
      copy.Depth = depth;
      REQUIRE(cuMemcpy3DPeerAsync(&copy, leader->stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamSynchronize(leader->stream) == CUDA_SUCCESS);
      for (std::size_t z = 0; z < depth; ++z)
        for (std::size_t y = 0; y < height - 2; ++y)
          expect(target, (z * height + y) * pitch + copy.dstXInBytes, source, (z * height + y + 2) * pitch + 5, width);
      CHECK(target.now() == target.contents);
    }
    // To an array, and back from it.
    REQUIRE(cuCtxSetCurrent(other.context) == CUDA_SUCCESS);
    const CUDA_ARRAY_DESCRIPTOR descriptor{
        .Width = 256, .Height = height, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUarray array = nullptr;
    REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
    CUDA_MEMCPY2D there{};
    there.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    there.srcDevice = source.address;
    there.srcPitch = pitch;
    there.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    there.dstArray = array;
    there.WidthInBytes = 256 * sizeof(unsigned);
    there.Height = height;
    REQUIRE(cuMemcpy2DAsync_v2(&there, other.stream) == CUDA_SUCCESS);
    CUDA_MEMCPY2D back{};
    back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    back.srcArray = array;
    back.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    back.dstDevice = source.address + pitch / 2;
    back.dstPitch = pitch;
    back.WidthInBytes = there.WidthInBytes;
    back.Height = height;
    REQUIRE(cuMemcpy2DAsync_v2(&back, other.stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
    for (std::size_t y = 0; y < height; ++y)
      expect(source, y * pitch + pitch / 2, source, y * pitch, back.WidthInBytes);
    CHECK(source.now() == source.contents);
    CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  });
}

TEST_CASE("copies both ways at once") {
  each_way([](Several& several, bool) {
    const Side one(several, 0), other(several, other_device);
    constexpr std::size_t bytes = 12u << 20;
    Block sources[] = {{one, bytes, 5}, {other, bytes, 6}}, targets[] = {{one, bytes, 7}, {other, bytes, 8}};
    CUstream streams[4] = {one.stream, other.stream};
    REQUIRE(cuStreamCreate(&streams[2], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);  // of the other one
    REQUIRE(cuStreamCreate(&streams[3], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    constexpr std::size_t piece = 700'001, pieces = bytes / piece;
    for (std::size_t number = 0; number < pieces; ++number) {
      for (const unsigned from : {0u, 1u}) {
        const std::size_t at = number * piece;
        REQUIRE(cuMemcpyAsync(targets[1 - from].address + at, sources[from].address + at, piece,
                              streams[(number + from) % 4]) == CUDA_SUCCESS);
        expect(targets[1 - from], at, sources[from], at, piece);
      }
    }
    for (CUstream stream : streams) CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    for (const Block& target : targets) CHECK(target.now() == target.contents);
  });
}

// What one stream does waits for the other one's, round after round: a value that is wrong once stays so.
TEST_CASE("waits go between hosts in the order of events") {
  each_way([](Several& several, bool) {
    const Side one(several, 0), other(several, other_device);
    const Side* const sides[] = {&one, &other};
    constexpr unsigned rounds = 40;
    for (unsigned round = 0; round < rounds; ++round) {
      const Side& from = *sides[round % 2];
      const Side& to = *sides[1 - round % 2];
      REQUIRE(cuMemsetD32Async(from.memory, round, 64, from.stream) == CUDA_SUCCESS);
      REQUIRE(cuEventRecord(from.event, from.stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamWaitEvent(to.stream, from.event, 0) == CUDA_SUCCESS);
      REQUIRE(cuMemcpyAsync(to.memory + 4096 + 4 * round, from.memory, 4, to.stream) == CUDA_SUCCESS);
      REQUIRE(cuEventRecord(to.event, to.stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamWaitEvent(from.stream, to.event, 0) == CUDA_SUCCESS);  // before the memset of the next round
    }
    for (const Side* const side : sides) CHECK(cuStreamSynchronize(side->stream) == CUDA_SUCCESS);
    for (unsigned round = 0; round < rounds; ++round)
      CHECK(word_at(sides[1 - round % 2]->memory + 4096 + 4 * round) == round);
  });
}

// The program's process has no part in them: nothing that it does not answer holds them up.
TEST_CASE("by links neither copies nor waits take a round trip") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  REQUIRE(cuMemcpyAsync(other.memory, one.memory, 64, other.stream) == CUDA_SUCCESS);  // makes the link
  REQUIRE(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);  // and what it waits by
  REQUIRE(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
  const std::uint64_t before = client::stats::round_trips();
  for (unsigned i = 0; i < 10; ++i) {
    REQUIRE(cuMemsetD32Async(one.memory, 100 + i, 16, one.stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyAsync(other.memory + 64 * i, one.memory, 64, other.stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(other.event, other.stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(one.stream, other.event, 0) == CUDA_SUCCESS);
  }
  // The first wait the other way made the other link.
  CHECK(client::stats::round_trips() - before <= 2);
  CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
  for (unsigned i = 0; i < 10; ++i) CHECK(word_at(other.memory + 64 * i) == 100 + i);
}

TEST_CASE("a stream whose link is lost goes on with an error, and the next copy has another link") {
  for (const bool leads : {true, false}) {
    CAPTURE(leads);
    Several several;
    const Side one(several, 0), other(several, other_device);
    REQUIRE(cuMemsetD32_v2(one.memory, 7, 16) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyPeer(other.memory, other.context, one.memory, one.context, 64) == CUDA_SUCCESS);
    const Side& leader = leads ? one : other;
    {
      Paused paused;
      REQUIRE(cuMemsetD32Async(leader.memory + 512, 8, 16, leader.stream) == CUDA_SUCCESS);  // which it waits for
      REQUIRE(cuMemcpyAsync(other.memory, one.memory, 64, leader.stream) == CUDA_SUCCESS);
      REQUIRE(cuEventRecord(one.event, one.stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamWaitEvent(other.stream, one.event, 0) == CUDA_SUCCESS);
      several.hosts[0]->cut_links();
    }
    CUresult first = cuStreamSynchronize(leader.stream), second = cuStreamSynchronize(other.stream);
    CHECK((first == CUDA_ERROR_DEVICE_UNAVAILABLE || second == CUDA_ERROR_DEVICE_UNAVAILABLE));
    for (const Side* const side : {&one, &other})  // an error comes once for each that had one
      while (cuStreamSynchronize(side->stream) == CUDA_ERROR_DEVICE_UNAVAILABLE) {}
    CHECK(cuStreamSynchronize(one.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other.stream) == CUDA_SUCCESS);
    const std::uint64_t before = several.between().bytes_direct();
    REQUIRE(cuMemsetD32_v2(one.memory, 9, 16) == CUDA_SUCCESS);
    CHECK(cuMemcpyPeer(other.memory, other.context, one.memory, one.context, 64) == CUDA_SUCCESS);
    CHECK(word_at(other.memory) == 9);
    CHECK(several.between().bytes_direct() - before == 64);
  }
}

TEST_CASE("a host that is lost while it joins a link leaves no key at the other one") {
  Several several;
  const Side one(several, 0), other(several, other_device);
  std::atomic<int> keys{0};
  several.hosts[0]->connects = false;
  several.hosts[0]->connecting = [&] {
    keys = several.hosts[1]->keys.load();
    several.hosts[0]->cut();
  };
  CHECK(cuMemcpyPeer(other.memory, other.context, one.memory, one.context, 64) != CUDA_SUCCESS);
  for (int i = 0; i < 2000 && several.hosts[1]->keys > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(keys == 1);
  CHECK(several.hosts[1]->keys == 0);
}

// --- another host's worker that keeps to nothing --------------------------------------------------------------------

/// A link into the second host's session that the test has joined by itself.
struct Intruder {
  static constexpr std::uint32_t number = 77;

  explicit Intruder(Several& all) : several(all) {
    client::RemoteCall<wire::OfferPeer> offer(session().calls, client::Thread::current());
    offer.in().setLink(number);
    REQUIRE(offer.wait() == CUDA_SUCCESS);
    REQUIRE(offer.out().getFailure().size() == 0);
    const auto bytes = offer.out().getKey();
    key.assign(reinterpret_cast<const std::byte*>(bytes.begin()), reinterpret_cast<const std::byte*>(bytes.end()));
  }
  client::Session& session() { return several.hosts[1]->session(); }

  /// Null if it is not let in.
  std::unique_ptr<Channel> connect(std::uint32_t channel, std::span<const std::byte> by) {
    auto [near, far] = make_memory_channel();
    client::ask_for_lane(*near, {.session = 2, .key = by, .channel = channel});
    try {
      several.hosts[1]->let_in(std::move(far));
      const auto message = receive_control(*near, limits::connect_timeout);
      MessageReader reader(message);
      if (reader.root<wire::Control>().getLaneAnswer().getReason() != wire::Failure::Reason::NONE) return nullptr;
    } catch (const ChannelClosed&) {
      return nullptr;
    }
    return std::move(near);
  }
  std::unique_ptr<Channel> connect(std::uint32_t channel) { return connect(channel, key); }

  /// The other end has closed it.
  static bool ends(Channel& connection) {
    std::byte bytes[4096];
    for (const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
         std::chrono::steady_clock::now() < deadline;) {
      try {
        if (connection.receive_some(bytes) == 0) connection.wait({.readable = true}, std::chrono::milliseconds(20));
      } catch (const ChannelClosed&) {
        return true;
      }
    }
    return false;
  }
  static void say(Channel& connection, std::uint32_t sequence,
                  const std::function<void(wire::PeerWord::Builder)>& fill) {
    try {
      send_control(connection, sequence, [&](wire::Control::Builder control) { fill(control.initPeer()); });
    } catch (const ChannelClosed&) {}  // it has heard enough
  }
  /// A chunk as lanes have it.
  static void send_chunk(Channel& lane, std::uint32_t sequence, std::uint32_t transfer, std::uint32_t chunk,
                         std::size_t bytes) {
    FrameHeader header;
    header.kind = FrameKind::data;
    header.sequence = sequence;
    header.subject = transfer;
    header.thread = chunk;
    header.detail = sequence - 1;
    header.bulk_bytes = static_cast<std::uint32_t>(bytes);
    const Contents contents(padded(bytes));
    const std::array<Channel::Bytes, 2> pieces{std::as_bytes(std::span(&header, 1)), contents};
    try {
      send_all(lane, pieces);
    } catch (const ChannelClosed&) {}  // it has seen the header
  }
  /// The session expects a copy into its memory by the link.
  void expect_copy(const Side& side, std::uint32_t transfer, std::size_t bytes) {
    client::RemoteCall<wire::CopyIn> call(client::Thread::current(), client::process().find_context(side.context));
    call.in().setStream(handle_of(side.stream).value());
    encode({bytes}, {.kind = CopySide::Kind::peer, .place = std::uint64_t{number} << 32 | transfer},
           {.kind = CopySide::Kind::device, .place = side.memory}, call.in().initCopy());
    call.in().setLeads(true);
    REQUIRE(call.post(*session().streams.find(handle_of(side.stream))) == CUDA_SUCCESS);
    session().calls.commands.flush();
  }

  Several& several;
  Contents key;
};

TEST_CASE("a link's key lets in each of its connections once, and nobody else") {
  Several several;
  const Side other(several, other_device);
  Intruder intruder(several);
  Contents wrong = intruder.key;
  wrong.back() ^= std::byte{1};
  CHECK_FALSE(intruder.connect(0, wrong));
  CHECK_FALSE(intruder.connect(0, Contents(16, std::byte{0})));
  CHECK_FALSE(intruder.connect(limits::link_lanes + 1));
  std::vector<std::unique_ptr<Channel>> all;
  for (std::uint32_t channel = 0; channel <= limits::link_lanes; ++channel)
    CHECK(all.emplace_back(intruder.connect(channel)));
  CHECK_FALSE(intruder.connect(0));
  CHECK(word_at(other.memory) == word_at(other.memory));
}

TEST_CASE("what a worker of another host must not say ends its link, and nothing else") {
  struct Attack {
    const char* what;
    std::function<void(Channel& own, Channel& lane)> act;
  };
  const auto word = [](auto&& fill) {
    return [fill](Channel& own, Channel&) {
      Intruder::say(own, 2, fill);
      Intruder::say(own, 3, fill);
    };
  };
  const Attack attacks[] = {
      {"a chunk that is not asked for", [](Channel&, Channel& lane) { Intruder::send_chunk(lane, 2, 40, 0, 64); }},
      {"a chunk too much", [](Channel&, Channel& lane) { Intruder::send_chunk(lane, 2, 3, 7, 64); }},
      {"a chunk of another length", [](Channel&, Channel& lane) { Intruder::send_chunk(lane, 2, 3, 0, 4096); }},
      {"a chunk twice",
       [](Channel&, Channel& lane) {
         Intruder::send_chunk(lane, 2, 3, 0, limits::lane_small_chunk_bytes);
         Intruder::send_chunk(lane, 3, 3, 0, limits::lane_small_chunk_bytes);
       }},
      {"an event twice", word([](wire::PeerWord::Builder it) { it.setPassed(5); })},
      {"a transfer that begins twice", word([](wire::PeerWord::Builder it) { it.setBegins(8); })},
      {"a transfer that the session's own stream begins", word([](wire::PeerWord::Builder it) { it.setBegins(3); })},
      {"words of the other end", word([](wire::PeerWord::Builder it) { it.setLanded(3); })},
      {"a frame out of its order",
       [](Channel& own, Channel&) { Intruder::say(own, 9, [](wire::PeerWord::Builder it) { it.setPassed(5); }); }},
      {"a message of sessions",
       [](Channel& own, Channel&) {
         send_control(own, 2, [](wire::Control::Builder control) { control.initGoodbye().setText("away"); });
       }},
      {"its end", [](Channel& own, Channel&) { own.close(); }},
      {"the end of a lane", [](Channel&, Channel& lane) { lane.close(); }},
  };
  for (const Attack& attack : attacks) {
    CAPTURE(attack.what);
    Several several;
    const Side other(several, other_device);
    Intruder intruder(several);
    const auto own = intruder.connect(0), lane = intruder.connect(1);
    REQUIRE(own);
    REQUIRE(lane);
    intruder.expect_copy(other, 3, 3 * limits::lane_small_chunk_bytes);
    // The stream has got there when it is asked for chunks.
    own->wait({.readable = true}, std::chrono::seconds(20));
    attack.act(*own, *lane);
    CHECK(Intruder::ends(*own));
    CHECK(cuStreamSynchronize(other.stream) == CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK(cuMemsetD32_v2(other.memory, 6, 4) == CUDA_SUCCESS);
    CHECK(word_at(other.memory) == 6);
  }
}

TEST_CASE("more words than calls can ask for end a link") {
  Several several;
  const Side other(several, other_device);
  Intruder intruder(several);
  const auto own = intruder.connect(0);
  REQUIRE(own);
  for (std::uint32_t i = 0; i <= limits::link_words_max; ++i)
    Intruder::say(*own, 2 + i, [&](wire::PeerWord::Builder it) { it.setPassed(1000 + i); });
  CHECK(Intruder::ends(*own));
  CHECK(cuMemsetD32_v2(other.memory, 6, 4) == CUDA_SUCCESS);
  CHECK(word_at(other.memory) == 6);
}

TEST_CASE("a target that says what its source has not asked for, or nothing that leads to RDMA, gets no link") {
  const auto unasked = [](wire::Control::Builder control) { control.initRdma(); };
  const auto nonsense = [](wire::Control::Builder control) { control.initGoodbye().setText("away"); };
  const auto hears = [](const auto& said, const std::shared_ptr<rdma::OpenedDevices>& devices) {
    auto [near, far] = socket_ends();
    send_control(*far, 1, said);
    CHECK_THROWS_AS(server::hear_target(std::move(near), devices), ProtocolError);
  };
  hears(unasked, nullptr);
  hears(nonsense, nullptr);
  if (!links_by_rdma()) return;
  hears(unasked, open_ucx(false));  // an end that has no address
  hears(nonsense, open_ucx(false));
}

}  // namespace
}  // namespace fargpu::test
