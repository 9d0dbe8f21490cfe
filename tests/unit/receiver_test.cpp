// Replies for waiting threads, and what the worker says by itself.

#include "client/call/receiver.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

struct Pushes final : PushHandler {
  std::function<void(wire::Control::Reader, std::span<std::byte>)> heard;
  std::span<std::byte> place;
  void on_push(wire::Control::Reader push, std::span<std::byte> bulk) override {
    if (heard) heard(push, bulk);
  }
  std::span<std::byte> place_delivery(wire::Deliver::Reader, std::size_t bytes) override {
    return bytes <= place.size() ? place.first(bytes) : std::span<std::byte>{};
  }
};

struct Fixture {
  Fixture() : ends(make_memory_channel()), receiver(*ends.second, pushes, std::chrono::nanoseconds(0)) {}
  Channel& worker() { return *ends.first; }

  Bytes reply(std::uint32_t call, CUresult result = CUDA_SUCCESS, const Bytes& message = {}) {
    FrameHeader header = numbered(++sequence, FrameKind::reply);
    header.subject = call;
    header.detail = result;
    return frame(header, message);
  }
  Bytes data(std::uint32_t call, const Bytes& bulk) {
    FrameHeader header = numbered(++sequence, FrameKind::data);
    header.subject = call;
    return frame(header, {}, bulk);
  }
  Bytes control(const std::function<void(wire::Control::Builder)>& fill, const Bytes& bulk = {}) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    const auto message = writer.finish();
    return frame(numbered(++sequence, FrameKind::control), {message.begin(), message.end()}, bulk);
  }

  Pushes pushes;
  std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> ends;
  Receiver receiver;
  std::uint32_t sequence = 1;  // attachAnswer
};

}  // namespace

TEST_CASE("a reply reaches the one who waits for it, with its result and message") {
  Fixture f;
  PendingReply pending;
  f.receiver.expect(7, pending);
  send(f.worker(), f.reply(7, CUDA_ERROR_NOT_FOUND, pattern(24)));
  f.receiver.wait(7, pending);
  CHECK(pending.done);
  CHECK(pending.result == CUDA_ERROR_NOT_FOUND);
  CHECK(pending.message == pattern(24));
  CHECK(f.receiver.confirmed() == 2);
}

TEST_CASE("replies in another order reach those who wait in theirs") {
  Fixture f;
  PendingReply first, second, third;
  f.receiver.expect(1, first);
  f.receiver.expect(2, second);
  f.receiver.expect(3, third);
  send(f.worker(), f.reply(3));
  send(f.worker(), f.reply(2));
  send(f.worker(), f.reply(1));
  f.receiver.wait(1, first);
  f.receiver.wait(2, second);
  f.receiver.wait(3, third);
  CHECK(f.receiver.confirmed() == 4);
}

TEST_CASE("numbers of calls are told apart by their low 32 bits") {
  Fixture f;
  PendingReply pending;
  f.receiver.expect(0x100000005, pending);
  send(f.worker(), f.reply(5));
  f.receiver.wait(0x100000005, pending);
  CHECK(pending.done);
}

TEST_CASE("data goes into its place, one frame behind the other") {
  Fixture f;
  PendingReply pending;
  Bytes target(100, std::byte{0xEE});
  pending.target = target;
  f.receiver.expect(4, pending);
  Bytes stream = f.data(4, pattern(40, 1));
  append(stream, f.data(4, pattern(33, 2)));
  append(stream, f.reply(4));
  send(f.worker(), stream);
  f.receiver.wait(4, pending);
  CHECK(pending.arrived_bytes == 73);
  Bytes expected = pattern(40, 1);
  append(expected, pattern(33, 2));
  expected.resize(100, std::byte{0xEE});
  CHECK(target == expected);
}

TEST_CASE("data that nobody wants, or that does not fit, is dropped") {
  Fixture f;
  PendingReply pending;
  Bytes target(50, std::byte{0xEE});
  pending.target = std::span(target).first(40);
  f.receiver.expect(4, pending);
  Bytes stream = f.data(9, pattern(20));
  append(stream, f.data(4, pattern(41)));
  append(stream, f.reply(4));
  send(f.worker(), stream);
  f.receiver.wait(4, pending);
  CHECK(target == Bytes(50, std::byte{0xEE}));
}

TEST_CASE("deliveries land where the client has the block, others are dropped") {
  Fixture f;
  Bytes block(64);
  f.pushes.place = block;
  std::vector<std::size_t> heard;
  f.pushes.heard = [&](wire::Control::Reader push, std::span<std::byte> bulk) {
    CHECK(push.isDeliver());
    heard.push_back(bulk.size());
  };
  const auto deliver = [](wire::Control::Builder control) { control.initDeliver().setAddress(0x1000); };
  send(f.worker(), f.control(deliver, pattern(30)));
  send(f.worker(), f.control(deliver, pattern(65)));
  while (heard.size() < 2) f.receiver.serve();
  CHECK(heard == std::vector<std::size_t>{30, 0});
  CHECK(std::equal(block.begin(), block.begin() + 30, pattern(30).begin()));
}

TEST_CASE("a reply that nobody waits for breaks the protocol, and so do frames that only clients send") {
  Fixture f;
  SECTION("reply") { send(f.worker(), f.reply(1)); }
  SECTION("call") { send(f.worker(), frame(numbered(2, FrameKind::call))); }
  CHECK_THROWS_AS(f.receiver.serve(), ProtocolError);
}

TEST_CASE("confirms and heartbeats are taken and mean nothing else") {
  Fixture f;
  send(f.worker(), frame(numbered(2, FrameKind::confirm)));
  send(f.worker(), frame(numbered(3, FrameKind::heartbeat)));
  CHECK(f.receiver.serve());
  CHECK_FALSE(f.receiver.serve());
  CHECK(f.receiver.confirmed() == 3);
  CHECK(f.receiver.bytes_received() == 64);
}

TEST_CASE("threads that wait hand the reading on, and all get their replies") {
  Fixture f;
  constexpr std::uint32_t count = 8;
  std::vector<PendingReply> pending(count);
  std::vector<std::future<void>> waiting;
  for (std::uint32_t i = 0; i < count; ++i) {
    f.receiver.expect(i, pending[i]);
    waiting.push_back(std::async(std::launch::async, [&, i] { f.receiver.wait(i, pending[i]); }));
  }
  for (std::uint32_t i = count; i-- > 0;) send(f.worker(), f.reply(i, CUDA_SUCCESS, pattern(8, i)));
  for (auto& each : waiting) each.get();
  for (std::uint32_t i = 0; i < count; ++i) CHECK(pending[i].message == pattern(8, i));
}

TEST_CASE("a lost session ends every wait, and later ones before they begin") {
  Fixture f;
  PendingReply first, second;
  f.receiver.expect(1, first);
  f.receiver.expect(2, second);
  auto one = std::async(std::launch::async, [&] { f.receiver.wait(1, first); });
  auto two = std::async(std::launch::async, [&] { f.receiver.wait(2, second); });
  f.receiver.lose("the test says so");
  f.receiver.lose("another reason");
  CHECK_THROWS_AS(one.get(), ChannelClosed);
  CHECK_THROWS_AS(two.get(), ChannelClosed);
  PendingReply late;
  CHECK_THROWS_WITH(f.receiver.expect(3, late), "the test says so");
  CHECK_THROWS_WITH(f.receiver.wait_until([] { return false; }), "the test says so");
  CHECK_FALSE(f.receiver.serve());
}

TEST_CASE("a worker that goes away ends the wait") {
  Fixture f;
  PendingReply pending;
  f.receiver.expect(1, pending);
  auto waiting = std::async(std::launch::async, [&] { f.receiver.wait(1, pending); });
  f.ends.first.reset();
  CHECK_THROWS_AS(waiting.get(), ChannelClosed);
}

TEST_CASE("nobody leaves with an error while another thread may still be writing into its memory") {
  Fixture f;
  PendingReply pending;
  Bytes target(8);
  pending.target = target;
  f.receiver.expect(1, pending);
  std::promise<void> within, go_on;
  f.pushes.heard = [&](wire::Control::Reader, std::span<std::byte>) {
    within.set_value();
    go_on.get_future().wait();
  };
  // One thread reads, and is in the middle of it when the session is lost; the data for the other comes right behind.
  Bytes stream = f.control([](wire::Control::Builder control) { control.initPassed(); });
  append(stream, f.data(1, pattern(8)));
  send(f.worker(), stream);
  auto reading = std::async(std::launch::async, [&] { f.receiver.serve(); });
  within.get_future().wait();
  auto waiting = std::async(std::launch::async, [&] { f.receiver.wait(1, pending); });
  f.receiver.lose("the test says so");
  CHECK(waiting.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  go_on.set_value();
  CHECK_THROWS_WITH(waiting.get(), "the test says so");
  reading.get();
  CHECK_THROWS_AS(f.receiver.wait(1, pending), ChannelClosed);
  CHECK(target == pattern(8));
}

// --- attending ------------------------------------------------------------------------------------------------------

namespace {

const auto passed = [](wire::Control::Builder control) { control.initPassed(); };

}  // namespace

TEST_CASE("a thread that attends reads what the worker says by itself") {
  Fixture f;
  Waker waker;
  unsigned heard = 0;
  f.pushes.heard = [&](wire::Control::Reader, std::span<std::byte>) { ++heard; };
  send(f.worker(), f.control(passed));
  CHECK(f.receiver.attend([&] { return heard == 1; }, waker) == Receiver::Attended::ready);
  auto later = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it is asleep by now
    send(f.worker(), f.control(passed));
  });
  CHECK(f.receiver.attend([&] { return heard == 2; }, waker) == Receiver::Attended::ready);
  later.get();
}

TEST_CASE("a thread that attends is woken by what another one does") {
  Fixture f;
  Waker waker;
  std::atomic<bool> done{false};
  auto later = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
    waker.signal();
  });
  CHECK(f.receiver.attend([&] { return done.load(); }, waker) == Receiver::Attended::ready);
  later.get();
}

TEST_CASE("a thread that attends leaves the reading to those that wait for replies") {
  Fixture f;
  Waker waker;
  std::atomic<bool> over{false};
  std::atomic<unsigned> given_way{0};
  auto attending = std::async(std::launch::async, [&] {
    while (f.receiver.attend([&] { return over.load(); }, waker) == Receiver::Attended::others) ++given_way;
  });
  for (std::uint32_t i = 0; i < 1000; ++i) {
    PendingReply pending;
    f.receiver.expect(i, pending);
    auto answer = [&] { send(f.worker(), f.reply(i, CUDA_SUCCESS, pattern(8, i))); };
    if (i % 2 == 0) {
      answer();
      f.receiver.wait(i, pending);
    } else {
      auto waiting = std::async(std::launch::async, [&] { f.receiver.wait(i, pending); });
      answer();
      waiting.get();
    }
    CHECK(pending.message == pattern(8, i));
  }
  // One that waits before there is an answer is met sooner or later.
  PendingReply last;
  f.receiver.expect(1000, last);
  auto waiting = std::async(std::launch::async, [&] { f.receiver.wait(1000, last); });
  while (given_way == 0) waker.signal();
  send(f.worker(), f.reply(1000));
  waiting.get();
  over = true;
  waker.signal();
  attending.get();
}

TEST_CASE("a lost session ends attending") {
  Fixture f;
  Waker waker;
  auto attending = std::async(std::launch::async, [&] { return f.receiver.attend([] { return false; }, waker); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  f.receiver.lose("the test says so");
  try {
    CHECK(attending.get() == Receiver::Attended::over);
  } catch (const ChannelClosed&) {  // it was reading
  }
  try {
    CHECK(f.receiver.attend([] { return false; }, waker) == Receiver::Attended::over);
  } catch (const ChannelClosed&) {
    FAIL("it reads although nothing more is to be read");
  }
}
