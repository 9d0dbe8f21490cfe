// Frames out of a channel, however the bytes arrive.

#include <catch2/catch.hpp>
#include <deque>
#include <optional>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/frame_reader.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

constexpr std::uint16_t question_opcode = 7;

/// Takes everything, into buffers of its own, unless told that there is no room.
struct Collector final : FrameHandler {
  struct Taken {
    FrameHeader header;
    Bytes message;
    Bytes bulk;
  };
  std::vector<Taken> taken;
  unsigned placed = 0;    // calls of place()
  unsigned refusals = 0;  // how many of the next calls find no room
  bool aligned = true;
  Bytes place_bytes;
  Bytes held_message;  // of the last call that might be held

  std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte>) override {
    ++placed;
    if (refusals > 0) {
      --refusals;
      return std::nullopt;
    }
    place_bytes.assign(header.bulk_bytes, std::byte{0});
    return std::span(place_bytes);
  }
  bool holds(const FrameHeader& header, std::span<const std::byte> message) override {
    held_message.assign(message.begin(), message.end());
    return header.opcode != question_opcode;
  }
  void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) override {
    aligned = aligned && reinterpret_cast<std::uintptr_t>(message.data()) % 8 == 0;
    if (!bulk.empty()) CHECK(bulk.data() == place_bytes.data());
    taken.push_back({header, {message.begin(), message.end()}, {bulk.begin(), bulk.end()}});
  }
};

struct Fixture {
  explicit Fixture(std::uint64_t frames_before = 0, std::size_t capacity_bytes = 256u << 10)
      : ends(make_memory_channel(capacity_bytes)), reader(*ends.second, collector, frames_before) {}

  Channel& sender() { return *ends.first; }
  void pump_all() {
    while (reader.pump()) {}
  }

  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ends;
  Collector collector;
  FrameReader reader;
};

}  // namespace

TEST_CASE("frames arrive whole wherever the bytes are cut") {
  const Bytes message = pattern(16, 3), short_bulk = pattern(13, 5), long_bulk = pattern(24, 7);
  Bytes stream;
  append(stream, frame(numbered(1, FrameKind::heartbeat)));
  append(stream, frame(numbered(2), message, short_bulk));
  append(stream, frame(numbered(3), {}, long_bulk));
  append(stream, frame(numbered(4, FrameKind::reply), message));

  const auto check = [&](const Fixture& f, std::size_t cut) {
    INFO("cut at " << cut);
    REQUIRE(f.collector.taken.size() == 4);
    CHECK(f.collector.taken[0].header.kind == FrameKind::heartbeat);
    CHECK(f.collector.taken[0].message.empty());
    CHECK(f.collector.taken[1].message == message);
    CHECK(f.collector.taken[1].bulk == short_bulk);
    CHECK(f.collector.taken[2].message.empty());
    CHECK(f.collector.taken[2].bulk == long_bulk);
    CHECK(f.collector.taken[3].message == message);
    CHECK(f.collector.taken[3].bulk.empty());
    CHECK(f.collector.placed == 2);
    CHECK(f.collector.aligned);
    CHECK(f.reader.frames() == 4);
    CHECK_FALSE(f.reader.blocked());
  };

  SECTION("in two") {
    for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
      Fixture f;
      send(f.sender(), {stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(cut)});
      f.pump_all();
      send(f.sender(), {stream.begin() + static_cast<std::ptrdiff_t>(cut), stream.end()});
      f.pump_all();
      check(f, cut);
    }
  }
  SECTION("in pieces of equal size") {
    for (std::size_t piece = 1; piece < 50; ++piece) {
      Fixture f;
      for (std::size_t at = 0; at < stream.size(); at += piece) {
        send(f.sender(), {stream.begin() + static_cast<std::ptrdiff_t>(at),
                          stream.begin() + static_cast<std::ptrdiff_t>(std::min(at + piece, stream.size()))});
        f.pump_all();
      }
      check(f, piece);
    }
  }
}

TEST_CASE("a reader says whether anything came") {
  Fixture f;
  CHECK_FALSE(f.reader.pump());
  const Bytes bytes = frame(numbered(1), pattern(8));
  send(f.sender(), {bytes.begin(), bytes.begin() + 10});
  CHECK(f.reader.pump());
  CHECK_FALSE(f.reader.pump());
  CHECK(f.reader.frames() == 0);
  send(f.sender(), {bytes.begin() + 10, bytes.end()});
  CHECK(f.reader.pump());
  CHECK(f.reader.frames() == 1);
  CHECK_FALSE(f.reader.pump());
}

TEST_CASE("no more frames are handled at once than were asked for") {
  Fixture f;
  Bytes stream;
  for (std::uint32_t i = 1; i <= 10; ++i) append(stream, frame(numbered(i), pattern(8, i)));
  send(f.sender(), stream);
  CHECK(f.reader.pump(3));
  CHECK(f.reader.frames() == 3);
  CHECK(f.reader.pump(3));
  CHECK(f.reader.pump(100));
  CHECK(f.reader.frames() == 10);
  for (std::uint32_t i = 0; i < 10; ++i) CHECK(f.collector.taken[i].message == pattern(8, i + 1));
}

TEST_CASE("messages and bulk bytes larger than any buffer arrive") {
  Fixture f(0, 64u << 10);
  // Behind a small frame, so that the large one does not begin where the buffer does.
  const Bytes message = pattern(600u << 10), bulk = pattern((1u << 20) + 3, 9);
  Bytes stream = frame(numbered(1), pattern(8));
  append(stream, frame(numbered(2), message, bulk));
  append(stream, frame(numbered(3), pattern(16)));
  std::span<const std::byte> rest(stream);
  while (!rest.empty()) {
    rest = rest.subspan(f.sender().send_some(std::span(&rest, 1)));
    f.pump_all();
  }
  REQUIRE(f.collector.taken.size() == 3);
  CHECK(f.collector.taken[1].message == message);
  CHECK(f.collector.taken[1].bulk == bulk);
  CHECK(f.collector.taken[2].message == pattern(16));
  CHECK(f.collector.placed == 1);
  CHECK(f.collector.aligned);
}

TEST_CASE("many small frames pass through the buffer's end unharmed") {
  Fixture f;
  std::uint32_t sequence = 0;
  for (unsigned round = 0; round < 40; ++round) {
    Bytes stream;
    for (unsigned i = 0; i < 50; ++i) {
      ++sequence;
      append(stream, frame(numbered(sequence), pattern(sequence % 13 * 8, sequence), pattern(sequence % 90)));
    }
    send(f.sender(), stream);
    f.pump_all();
  }
  REQUIRE(f.collector.taken.size() == sequence);
  for (std::uint32_t i = 1; i <= sequence; ++i) {
    const auto& taken = f.collector.taken[i - 1];
    if (taken.header.sequence != i || taken.message != pattern(i % 13 * 8, i) || taken.bulk != pattern(i % 90))
      FAIL("frame " << i);
  }
  CHECK(f.collector.aligned);
}

TEST_CASE("frames are counted, and must come in order") {
  SECTION("a frame that repeats") {
    Fixture f;
    send(f.sender(), frame(numbered(1)));
    f.pump_all();
    send(f.sender(), frame(numbered(1)));
    CHECK_THROWS_WITH(f.pump_all(), "frame number 1 where 2 belongs");
    CHECK(f.collector.taken.size() == 1);
  }
  SECTION("a frame that is missing") {
    Fixture f(7);
    send(f.sender(), frame(numbered(9)));
    CHECK_THROWS_WITH(f.pump_all(), "frame number 9 where 8 belongs");
    CHECK(f.collector.taken.empty());
  }
  SECTION("numbers wrap at 32 bits") {
    Fixture f(0xFFFFFFFE);
    Bytes stream = frame(numbered(0xFFFFFFFF));
    append(stream, frame(numbered(0)));
    append(stream, frame(numbered(1)));
    send(f.sender(), stream);
    f.pump_all();
    CHECK(f.reader.frames() == 0x100000001);
  }
}

TEST_CASE("lengths and kinds that cannot be end the reading before anything is placed") {
  FrameHeader header = numbered(1);
  SECTION("message") { header.message_bytes = limits::message_bytes_max + 8; }
  SECTION("odd message") { header.message_bytes = 12; }
  SECTION("bulk") { header.bulk_bytes = limits::bulk_bytes_max + 1; }
  SECTION("kind") { header.kind = static_cast<FrameKind>(9); }
  Fixture f;
  const auto bytes = std::as_bytes(std::span(&header, 1));
  send(f.sender(), {bytes.begin(), bytes.end()});
  CHECK_THROWS_AS(f.pump_all(), ProtocolError);
  CHECK(f.collector.placed == 0);
  CHECK(f.collector.taken.empty());
}

TEST_CASE("a handler without room is asked again, and nothing further is read meanwhile") {
  Fixture f(0, 4096);
  f.collector.refusals = 3;
  const Bytes bulk = pattern(100);
  Bytes stream = frame(numbered(1), pattern(8));
  append(stream, frame(numbered(2), pattern(16), bulk));
  append(stream, frame(numbered(3)));
  // How much of the bulk is there when room is asked for.
  const auto arriving = GENERATE(as<std::size_t>{}, 0, 1, 50, 100);
  const auto cut = static_cast<std::ptrdiff_t>(32 + 8 + 32 + 16 + arriving);
  send(f.sender(), {stream.begin(), stream.begin() + cut});
  CHECK(f.reader.pump());
  CHECK(f.reader.blocked());
  CHECK(f.reader.frames() == 1);
  send(f.sender(), {stream.begin() + cut, stream.end()});
  // What is sent now stays in the channel.
  const Bytes filler(8192);
  const Channel::Bytes piece(filler);
  const std::size_t room = f.sender().send_some(std::span(&piece, 1));
  CHECK(room < filler.size());
  CHECK_FALSE(f.reader.pump());
  CHECK_FALSE(f.reader.pump());
  CHECK(f.reader.blocked());
  CHECK(f.sender().send_some(std::span(&piece, 1)) == 0);
  CHECK(f.collector.placed == 3);
  CHECK(f.reader.pump(2));
  CHECK_FALSE(f.reader.blocked());
  CHECK(f.collector.placed == 4);
  REQUIRE(f.collector.taken.size() == 3);
  CHECK(f.collector.taken[1].bulk == bulk);
  CHECK(f.collector.taken[1].message == pattern(16));
}

TEST_CASE("while calls are held, what comes before them is taken, and nothing from the first of them on") {
  Fixture f;
  const Bytes bulk = pattern(64, 3);
  FrameHeader question = numbered(2, FrameKind::call), call = numbered(3, FrameKind::call);
  question.opcode = question_opcode;
  const bool compressed = GENERATE(false, true);
  Bytes stream;
  append(stream, frame(numbered(1, FrameKind::heartbeat)));
  append(stream, frame(question));
  const Bytes message = pattern(16, 4);
  Bytes second = frame(call, message, bulk);
  if (compressed) {
    std::memcpy(&call, second.data(), sizeof(call));
    mark_compressed(call, bulk.size());
    std::memcpy(second.data(), &call, sizeof(call));
  }
  append(stream, second);
  append(stream, frame(numbered(4, FrameKind::heartbeat)));
  f.reader.hold_calls(true);
  send(f.sender(), stream);
  f.pump_all();
  CHECK(f.reader.blocked());
  CHECK(f.collector.taken.size() == 2);
  CHECK(f.collector.placed == 0);
  CHECK(f.collector.held_message == message);
  CHECK_FALSE(f.reader.in_frame());
  if (compressed) return;
  f.reader.hold_calls(false);
  f.pump_all();
  CHECK_FALSE(f.reader.blocked());
  CHECK(f.collector.taken.size() == 4);
}

TEST_CASE("a call that is arriving when calls are held is taken") {
  Fixture f(0, 4096);
  const Bytes bulk = pattern(64u << 10, 3);
  const Bytes stream = frame(numbered(1, FrameKind::call), {}, bulk);
  constexpr std::size_t part = 4096;
  send(f.sender(), {stream.begin(), stream.begin() + part});
  f.pump_all();
  CHECK(f.reader.in_frame());
  f.reader.hold_calls(true);
  for (std::size_t sent = part; sent < stream.size();) {
    const std::size_t more = std::min(part, stream.size() - sent);
    const auto at = stream.begin() + static_cast<std::ptrdiff_t>(sent);
    send(f.sender(), {at, at + static_cast<std::ptrdiff_t>(more)});
    f.pump_all();
    sent += more;
  }
  CHECK(f.collector.taken.size() == 1);
  CHECK_FALSE(f.reader.in_frame());
}

TEST_CASE("the end of the connection shows, also in the middle of a frame") {
  Fixture f;
  Bytes stream = frame(numbered(1), pattern(8));
  append(stream, frame(numbered(2), pattern(8), pattern(20)));
  const auto cut = GENERATE(as<std::ptrdiff_t>{}, 40, 41, 75, 80, 85, 101);
  send(f.sender(), {stream.begin(), stream.begin() + cut});
  f.sender().close();
  CHECK_THROWS_AS(f.pump_all(), ChannelClosed);
  CHECK(f.collector.taken.size() == 1);
}

TEST_CASE("what a handler throws passes through, and its frame is done with") {
  struct Thrower final : FrameHandler {
    unsigned taken = 0;
    std::optional<std::span<std::byte>> place(const FrameHeader&, std::span<const std::byte>) override {
      return std::nullopt;
    }
    void take(const FrameHeader&, std::span<const std::byte>, std::span<std::byte>) override {
      if (++taken == 1) throw std::logic_error("no");
    }
  } thrower;
  auto [sender, receiver] = make_memory_channel();
  FrameReader reader(*receiver, thrower, 0);
  Bytes stream = frame(numbered(1));
  append(stream, frame(numbered(2)));
  send(*sender, stream);
  CHECK_THROWS_AS(reader.pump(), std::logic_error);
  CHECK(reader.pump());
  CHECK(thrower.taken == 2);
}
