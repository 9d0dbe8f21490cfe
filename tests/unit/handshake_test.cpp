// Control messages read one at a time, from peers that are not trusted yet.

#include <catch2/catch.hpp>
#include <chrono>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
  Fixture() : ends(make_memory_channel()) {}
  Channel& peer() { return *ends.first; }
  Channel& here() { return *ends.second; }
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ends;
};

Bytes header_alone(FrameHeader header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("a control message arrives as it was filled in") {
  Fixture f;
  send_control(f.peer(), 5, [](wire::Control::Builder control) {
    auto hello = control.initHello();
    hello.setProgram("a program");
    hello.setProcessId(77);
  });
  const Bytes message = receive_control(f.here(), 10s);
  MessageReader reader(message);
  const auto hello = reader.root<wire::Control>().getHello();
  CHECK(hello.getProgram() == "a program");
  CHECK(hello.getProcessId() == 77);
}

TEST_CASE("the frame of a control message carries the number it was given") {
  Fixture f;
  send_control(f.peer(), 5, [](wire::Control::Builder control) { control.setStatusRequest(); });
  FrameHeader header;
  Bytes bytes(sizeof(header));
  REQUIRE(f.here().receive_some(bytes) == sizeof(header));
  std::memcpy(&header, bytes.data(), sizeof(header));
  CHECK(header.sequence == 5);
  CHECK(header.kind == FrameKind::control);
  CHECK(header.bulk_bytes == 0);
}

TEST_CASE("nothing behind the message is taken from the connection") {
  Fixture f;
  send_control(f.peer(), 1, [](wire::Control::Builder control) { control.setStatusRequest(); });
  send(f.peer(), pattern(48));
  receive_control(f.here(), 10s);
  Bytes rest(100);
  CHECK(f.here().receive_some(rest) == 48);
  rest.resize(48);
  CHECK(rest == pattern(48));
}

TEST_CASE("what is no control message is a protocol error, before any of its bytes are waited for") {
  Fixture f;
  FrameHeader header = numbered(1, FrameKind::control);
  header.message_bytes = 8;
  SECTION("too long") { header.message_bytes = limits::message_bytes_max + 8; }
  SECTION("not in words") { header.message_bytes = 9; }
  SECTION("bulk bytes") { header.bulk_bytes = 1; }
  SECTION("too many bulk bytes") { header.bulk_bytes = limits::bulk_bytes_max + 1; }
  SECTION("another kind") {
    header.kind = GENERATE(FrameKind::call, FrameKind::reply, FrameKind::data, FrameKind::heartbeat);
  }
  SECTION("no kind") { header.kind = static_cast<FrameKind>(0); }
  send(f.peer(), header_alone(header));
  CHECK_THROWS_AS(receive_control(f.here(), 10s), ProtocolError);
}

TEST_CASE("some other protocol is told apart") {
  Fixture f;
  const std::string text = "GET / HTTP/1.1\r\nHost: gpuhost\r\n\r\n";
  const auto bytes = std::as_bytes(std::span(text));
  send(f.peer(), {bytes.begin(), bytes.end()});
  CHECK_THROWS_AS(receive_control(f.here(), 10s), ProtocolError);
}

TEST_CASE("a peer that stops in the middle is not waited for beyond the time") {
  Fixture f;
  FrameHeader header = numbered(1, FrameKind::control);
  header.message_bytes = 64;
  Bytes bytes = header_alone(header);
  SECTION("nothing at all") { bytes.clear(); }
  SECTION("half a header") { bytes.resize(16); }
  SECTION("a header only") {}
  SECTION("half a message") { bytes.resize(64); }
  send(f.peer(), bytes);
  CHECK_THROWS_WITH(receive_control(f.here(), 20ms), "this process does not answer");
}

TEST_CASE("a peer that leaves in the middle is a closed channel") {
  Fixture f;
  FrameHeader header = numbered(1, FrameKind::control);
  header.message_bytes = 64;
  Bytes bytes = header_alone(header);
  bytes.resize(GENERATE(0u, 5u, 32u, 50u));
  send(f.peer(), bytes);
  f.peer().close();
  CHECK_THROWS_AS(receive_control(f.here(), 10s), ChannelClosed);
}

TEST_CASE("a message without contents has every field at its default") {
  Fixture f;
  send(f.peer(), header_alone(numbered(1, FrameKind::control)));
  const Bytes message = receive_control(f.here(), 10s);
  CHECK(message.empty());
  MessageReader reader(message);
  CHECK(reader.root<wire::Control>().isHello());
}
