// Contents of memory in fewer bytes: what comes back, when it is done, and what a hostile sender can say.

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "frames.h"
#include "protocol/compression.h"
#include "protocol/errors.h"
#include "protocol/frame_reader.h"
#include "protocol/limits.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

Bytes random_bytes(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes compressible(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i / 64);
  return bytes;
}

Bytes packed(const Bytes& bytes) {
  Compressor compressor(Compression::always);
  const auto out = compressor.pack(bytes);
  return {out.begin(), out.end()};
}

constexpr std::size_t size = 1u << 20;

/// A compressor that has seen a link on which a byte takes this long.
Compressor on_link(std::chrono::nanoseconds a_byte) {
  Compressor compressor(Compression::automatic);
  for (int i = 0; i < 20; ++i) compressor.sent(size, false, a_byte * size, true);
  return compressor;
}

}  // namespace

TEST_CASE("what is compressed comes back as it was") {
  for (const std::size_t count : {limits::compressed_bytes_min, size - 1, limits::bulk_bytes_max}) {
    const Bytes bytes = compressible(count), small = packed(bytes);
    REQUIRE(!small.empty());
    CHECK(small.size() < count / 2);
    CHECK(Decompressor::size_of(small) == count);
    Decompressor decompressor;
    Bytes back(count);
    decompressor.unpack(small, back);
    CHECK(back == bytes);
    decompressor.unpack(small, back);  // and again
    CHECK(back == bytes);
  }
}

TEST_CASE("what would not become smaller, or is small, is sent as it is") {
  CHECK(packed(random_bytes(size)).empty());
  CHECK(packed(compressible(limits::compressed_bytes_min - 1)).empty());
  Compressor never(Compression::never);
  CHECK(never.pack(compressible(size)).empty());
}

TEST_CASE("memory that cannot be read is left to who sends it as it is") {
  auto* const memory =
      static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ::mprotect(memory + size / 2, size / 2, PROT_NONE);
  Compressor compressor(Compression::always);
  CHECK(compressor.pack({memory, size}).empty());
  CHECK(!compressor.pack({memory, size / 2}).empty());
  ::munmap(memory, size);
}

TEST_CASE("automatic compression looks at the link") {
  const Bytes bytes = compressible(size);
  Compressor fresh(Compression::automatic);
  CHECK(fresh.pack(bytes).empty());  // nothing is known of it
  Compressor fast = on_link(0ns);
  CHECK(fast.pack(bytes).empty());
  Compressor slow = on_link(1000ns);
  unsigned count = 0;
  for (int i = 0; i < 200; ++i) {
    const bool packs = !slow.pack(bytes).empty();
    count += packs;
    slow.sent(size / 10, packs, 0ns, false);  // fits between what the codec gives: that says nothing of the link
    if (!packs) slow.sent(size, false, 1000ns * size, true);
  }
  CHECK(count > 180);
  CHECK(count < 200);  // now and then the link is looked at
  for (int i = 0; i < 60; ++i) slow.sent(size, false, 0ns, true);
  CHECK(slow.pack(bytes).empty());  // it has become fast
}

TEST_CASE("automatic compression gives up on what does not compress, and notices when that changes") {
  Compressor slow = on_link(1000ns);
  const Bytes random = random_bytes(size), bytes = compressible(size);
  for (int i = 0; i < 300; ++i) CHECK(slow.pack(random).empty());
  int tries = 0;
  while (slow.pack(bytes).empty() && tries < 1000) ++tries;
  CHECK(tries > 0);  // it was resting
  CHECK(tries <= 64);
  CHECK(!slow.pack(bytes).empty());
}

TEST_CASE(
    "compressed contents that are not what they say break the protocol, and nothing is written beside their place") {
  const Bytes good = packed(compressible(size));
  Bytes bad = good;
  Decompressor decompressor;
  const auto say_size = [&](std::uint32_t bytes) { std::memcpy(bad.data(), &bytes, sizeof(bytes)); };
  const auto unpacks = [&] {
    const std::size_t count = Decompressor::size_of(bad);
    Bytes around(count + 128, std::byte{0x5a});
    const auto untouched = [&] {
      for (std::size_t i = 0; i < 64; ++i)
        if (around[i] != std::byte{0x5a} || around[count + 64 + i] != std::byte{0x5a}) return false;
      return true;
    };
    try {
      decompressor.unpack(bad, std::span(around).subspan(64, count));
    } catch (...) {
      CHECK(untouched());
      throw;
    }
    CHECK(untouched());
  };
  SECTION("more than a frame may hold") { say_size(limits::bulk_bytes_max + 1); }
  SECTION("more than there is") { say_size(size + 1); }
  SECTION("less than there is") { say_size(size - 1); }
  SECTION("less than it takes") { say_size(static_cast<std::uint32_t>(good.size() - 8)); }
  SECTION("nothing") { say_size(0); }
  SECTION("reserved bytes") { bad[4] = std::byte{1}; }
  SECTION("a prefix alone") { bad.resize(8); }
  SECTION("not even that") { bad.resize(3); }
  SECTION("cut short") { bad.resize(bad.size() - 1); }
  SECTION("something behind") { bad.push_back(std::byte{0}); }
  SECTION("another codec") { std::memset(bad.data() + 8, 0x33, bad.size() - 8); }
  CHECK_THROWS_AS(unpacks(), ProtocolError);
  // The next one is none the worse.
  bad = good;
  CHECK_NOTHROW(unpacks());
}

TEST_CASE("compressed contents that were tampered with never leave their place") {
  const Bytes good = packed(compressible(size));
  std::mt19937 random(7);
  Decompressor decompressor;
  unsigned refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Bytes bad = good;
    for (unsigned n = 1 + random() % 4; n > 0; --n)
      bad[8 + random() % (bad.size() - 8)] = static_cast<std::byte>(random());
    Bytes around(size + 16, std::byte{0x5a});
    try {
      decompressor.unpack(bad, std::span(around).first(size));
    } catch (const ProtocolError&) {
      ++refused;
    }
    for (std::size_t i = size; i < around.size(); ++i) REQUIRE(around[i] == std::byte{0x5a});
  }
  CHECK(refused > 0);
}

namespace {

/// Takes frames into a buffer, unless told that there is no room.
struct Taker final : FrameHandler {
  Bytes place_bytes, taken;
  FrameHeader header;
  unsigned refusals = 0, frames = 0;
  std::optional<std::span<std::byte>> place(const FrameHeader& h, std::span<const std::byte>) override {
    if (refusals > 0) {
      --refusals;
      return std::nullopt;
    }
    place_bytes.resize(h.bulk_bytes);
    return std::span(place_bytes);
  }
  void take(const FrameHeader& h, std::span<const std::byte>, std::span<std::byte> bulk) override {
    header = h;
    taken.assign(bulk.begin(), bulk.end());
    ++frames;
  }
};

}  // namespace

TEST_CASE("handlers see compressed frames as if they were not") {
  auto [near, far] = make_memory_channel(8u << 20);
  Taker taker;
  FrameReader reader(*far, taker, 0);
  const Bytes bytes = compressible(size), message = pattern(16), small = packed(bytes);
  for (std::uint32_t number = 1; number <= 3; ++number) {
    FrameHeader header = numbered(number, FrameKind::data);
    header.subject = 5;
    if (number == 2) {  // between two that are
      send(*near, frame(header, message, pattern(1000)));
    } else {
      mark_compressed(header, small.size());
      send(*near, frame(header, message, small));
    }
    taker.refusals = number - 1;
    while (reader.pump() || reader.blocked()) {}
    REQUIRE(taker.frames == number);
    CHECK(taker.header.kind == FrameKind::data);
    CHECK(taker.header.subject == 5);
    CHECK(taker.header.bulk_bytes == taker.taken.size());
    CHECK(taker.taken == (number == 2 ? pattern(1000) : bytes));
    CHECK(reader.wire_bytes() == sizeof(FrameHeader) + 16 + padded(number == 2 ? 1000 : small.size()));
  }
}

TEST_CASE("a frame that says it is compressed and has no contents, or wrong ones, ends the connection") {
  auto [near, far] = make_memory_channel(8u << 20);
  Taker taker;
  FrameReader reader(*far, taker, 0);
  FrameHeader header = numbered(1, FrameKind::data);
  Bytes bulk;
  SECTION("none") {}
  SECTION("wrong ones") { bulk = pattern(100); }
  SECTION("those of an unknown kind") {
    bulk = packed(compressible(size));
    header.kind = static_cast<FrameKind>(7);
  }
  mark_compressed(header, bulk.size());
  send(*near, frame(header, {}, bulk));
  CHECK_THROWS_AS(reader.pump(), ProtocolError);
  CHECK(taker.frames == 0);
}
