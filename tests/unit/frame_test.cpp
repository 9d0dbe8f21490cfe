// What a frame's header may say.

#include <catch2/catch.hpp>

#include "protocol/frame.h"

using namespace fargpu;

namespace {

FrameHeader good() {
  FrameHeader header;
  header.kind = FrameKind::call;
  header.sequence = 2;
  return header;
}

}  // namespace

TEST_CASE("a header lies in memory as it travels") {
  FrameHeader header;
  header.message_bytes = 0x03020100;
  header.bulk_bytes = 0x07060504;
  header.sequence = 0x0B0A0908;
  header.confirmed = 0x0F0E0D0C;
  header.kind = static_cast<FrameKind>(0x1110);
  header.opcode = 0x1312;
  header.thread = 0x17161514;
  header.subject = 0x1B1A1918;
  header.detail = 0x1F1E1D1C;
  const auto bytes = std::as_bytes(std::span(&header, 1));
  REQUIRE(bytes.size() == 32);
  for (unsigned i = 0; i < bytes.size(); ++i) CHECK(std::to_integer<unsigned>(bytes[i]) == i);
}

TEST_CASE("padding rounds up to eight") {
  CHECK(padded(0) == 0);
  CHECK(padded(1) == 8);
  CHECK(padded(7) == 8);
  CHECK(padded(8) == 8);
  CHECK(padded(9) == 16);
  CHECK(padded(limits::bulk_bytes_max) == limits::bulk_bytes_max);
}

TEST_CASE("messages are bounded and come in words") {
  FrameHeader header = good();
  const auto bytes = static_cast<std::uint32_t>(limits::message_bytes_max);
  for (const std::uint32_t fine : {0u, 8u, bytes - 8, bytes}) {
    header.message_bytes = fine;
    CHECK_NOTHROW(check_frame_header(header));
  }
  for (const std::uint32_t wrong : {1u, 4u, 7u, 9u, bytes - 1, bytes + 1, bytes + 8, 0xFFFFFFF8u, 0xFFFFFFFFu}) {
    header.message_bytes = wrong;
    CHECK_THROWS_AS(check_frame_header(header), ProtocolError);
  }
  header.message_bytes = 12;
  CHECK_THROWS_WITH(check_frame_header(header),
                    "frame with a message of 12 bytes; at most 8388608 and a multiple of 8 are allowed");
}

TEST_CASE("a peer that is not known yet gets less") {
  FrameHeader header = good();
  header.message_bytes = static_cast<std::uint32_t>(limits::open_message_bytes_max);
  CHECK_NOTHROW(check_frame_header(header, limits::open_message_bytes_max));
  header.message_bytes += 8;
  CHECK_NOTHROW(check_frame_header(header));
  CHECK_THROWS_WITH(check_frame_header(header, limits::open_message_bytes_max),
                    "frame with a message of 65544 bytes; at most 65536 and a multiple of 8 are allowed");
}

TEST_CASE("bulk bytes are bounded and may be of any length") {
  FrameHeader header = good();
  const auto bytes = static_cast<std::uint32_t>(limits::bulk_bytes_max);
  for (const std::uint32_t fine : {0u, 1u, 7u, bytes - 1, bytes}) {
    header.bulk_bytes = fine;
    CHECK_NOTHROW(check_frame_header(header));
  }
  for (const std::uint32_t wrong : {bytes + 1, 0x80000000u, 0xFFFFFFFFu}) {
    header.bulk_bytes = wrong;
    CHECK_THROWS_AS(check_frame_header(header), ProtocolError);
  }
  header.bulk_bytes = bytes + 1;
  CHECK_THROWS_WITH(check_frame_header(header), "frame with 4194305 bulk bytes; at most 4194304 are allowed");
}

TEST_CASE("only the kinds there are pass") {
  FrameHeader header = good();
  for (unsigned kind = 0; kind <= 0xFFFF; ++kind) {
    header.kind = static_cast<FrameKind>(kind);
    const bool known = kind >= 1 && kind <= 6;
    bool passed = true;
    try {
      check_frame_header(header);
    } catch (const ProtocolError& error) {
      passed = false;
      if (kind == 7) CHECK(error.what() == std::string("frame of unknown kind 7"));
    }
    if (passed != known) FAIL("kind " << kind);
  }
}
