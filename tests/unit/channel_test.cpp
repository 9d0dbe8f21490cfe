// What every channel does alike: within the process, over a Unix socket, over TCP on this machine, through shared
// memory, by RDMA.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <future>
#include <thread>

#include "frames.h"
#include "protocol/channel.h"
#include "protocol/errors.h"
#include "rdma_ends.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

using Ends = std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>>;

Ends unix_channel() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw SystemError("socketpair");
  return {make_socket_channel(sockets[0], "left"), make_socket_channel(sockets[1], "right")};
}

Ends tcp_channel() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const int near = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::connect(near, reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw SystemError("no TCP on 127.0.0.1");
  const int far = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {make_socket_channel(near, "left"), make_socket_channel(far, "right")};
}

Ends shared_channel(std::size_t ring_bytes) {
  auto [left, right] = unix_channel();
  const int memory = make_ring_memory(ring_bytes);
  Ends ends{make_shared_channel(std::move(left), memory, ring_bytes, true),
            make_shared_channel(std::move(right), memory, ring_bytes, false)};
  ::close(memory);
  return ends;
}

Ends make(const std::string& kind) {
  if (kind == "memory") return make_memory_channel(64u << 10);
  if (kind == "shared") return shared_channel(64u << 10);
  if (kind == "rdma") return rdma_channel();
  if (kind == "rdma in memory") return rdma_channel(true);
  return kind == "unix" ? unix_channel() : tcp_channel();
}

#ifdef FARGPU_UCX
std::string any_kind() {
  return GENERATE(as<std::string>{}, "memory", "unix", "tcp", "shared", "rdma", "rdma in memory");
}
#else
std::string any_kind() { return GENERATE(as<std::string>{}, "memory", "unix", "tcp", "shared"); }
#endif

std::size_t send_piece(Channel& channel, std::span<const std::byte> bytes) {
  const Channel::Bytes piece(bytes);
  return channel.send_some(std::span(&piece, 1));
}

// Everything that is sent until the end of the channel.
Bytes receive_to_end(Channel& channel) {
  Bytes all, buffer(7919);
  try {
    while (true) {
      const std::size_t got = channel.receive_some(buffer);
      append(all, std::span(buffer).first(got));
      if (got == 0) channel.wait({.readable = true}, Channel::forever);
    }
  } catch (const ChannelClosed&) {
    return all;
  }
}

// Sends until nothing more fits.
std::size_t fill(Channel& channel) {
  const Bytes block(16384);
  std::size_t total = 0;
  while (true) {
    std::size_t sent = send_piece(channel, block);
    // What TCP has taken still moves on: full means full after a moment.
    if (sent == 0 && !channel.wait({.writable = true}, 20ms).writable) return total;
    total += sent;
  }
}

}  // namespace

TEST_CASE("bytes arrive in order in both directions, and an empty channel gives none") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  Bytes buffer(100);
  CHECK(left->receive_some(buffer) == 0);
  CHECK(right->receive_some(buffer) == 0);
  CHECK(send_piece(*left, pattern(10, 1)) == 10);
  CHECK(send_piece(*right, pattern(20, 2)) == 20);
  REQUIRE(right->wait({.readable = true}, Channel::forever).readable);
  CHECK(right->receive_some(std::span(buffer).first(4)) == 4);
  CHECK(right->receive_some(std::span(buffer).subspan(4)) == 6);
  CHECK(std::equal(buffer.begin(), buffer.begin() + 10, pattern(10, 1).begin()));
  REQUIRE(left->wait({.readable = true}, Channel::forever).readable);
  CHECK(left->receive_some(buffer) == 20);
  CHECK(std::equal(buffer.begin(), buffer.begin() + 20, pattern(20, 2).begin()));
}

TEST_CASE("several pieces go out as one, empty ones among them") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  const Bytes a = pattern(5, 1), b = pattern(11, 2), whole = [&] {
    Bytes bytes = a;
    append(bytes, b);
    return bytes;
  }();
  const std::array<Channel::Bytes, 4> pieces{Channel::Bytes{}, a, Channel::Bytes{}, b};
  CHECK(left->send_some(pieces) == whole.size());
  CHECK(left->send_some(std::span<const Channel::Bytes>{}) == 0);
  left->close();
  CHECK(receive_to_end(*right) == whole);
}

TEST_CASE("what does not fit is left to the caller, and goes out when the other end reads") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  std::size_t taken = fill(*left);
  CHECK(taken > 0);
  CHECK(taken < 100u << 20);
  auto sending = std::async(std::launch::async,
                            [&near = *left] { return near.wait({.writable = true}, Channel::forever).writable; });
  Bytes buffer(1u << 20);
  std::size_t got = 0;
  while (got < taken) {
    if (const std::size_t n = right->receive_some(buffer); n > 0) got += n;
    else right->wait({.readable = true}, Channel::forever);
  }
  CHECK(got == taken);
  CHECK(sending.get());
  CHECK(send_piece(*left, pattern(100)) == 100);
}

TEST_CASE("a sender that waits gets everything through, in one order") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  const Bytes first = pattern(3, 1), second = pattern(2u << 20, 2), third = pattern(1, 3);
  auto received = std::async(std::launch::async, [&far = *right] { return receive_to_end(far); });
  const std::array<Channel::Bytes, 5> pieces{first, Channel::Bytes{}, second, third, Channel::Bytes{}};
  send_all(*left, pieces);
  left->close();
  Bytes whole = first;
  append(whole, second);
  append(whole, third);
  CHECK(received.get() == whole);
}

TEST_CASE("more pieces than send_all takes are refused") {
  auto [left, right] = make_memory_channel();
  const std::vector<Channel::Bytes> pieces(9);
  CHECK_THROWS_AS(send_all(*left, pieces), SystemError);
}

TEST_CASE("waiting ends with the time, and nothing is ready then") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  const auto begin = std::chrono::steady_clock::now();
  const Channel::Interest ready = left->wait({.readable = true}, 30ms);
  CHECK_FALSE(ready.readable);
  CHECK_FALSE(ready.writable);
  CHECK(std::chrono::steady_clock::now() - begin >= 25ms);
  CHECK_FALSE(left->wait({.readable = true}, 0ns).readable);
  CHECK(left->wait({.readable = true, .writable = true}, Channel::forever).writable);
}

TEST_CASE("a waker ends a wait, and is remembered when it comes first") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  Waker waker;
  SECTION("before") {
    waker.signal();
    waker.signal();
    const Channel::Interest ready = left->wait({.readable = true}, Channel::forever, &waker);
    CHECK_FALSE(ready.readable);
    CHECK_FALSE(left->wait({.readable = true}, 10ms, &waker).readable);  // drained: only the time ends this one
  }
  SECTION("meanwhile") {
    std::thread other([&] { waker.signal(); });
    CHECK_FALSE(left->wait({.readable = true}, Channel::forever, &waker).readable);
    other.join();
  }
  SECTION("with nothing else to wait for") {
    std::thread other([&] { waker.signal(); });
    left->wait({}, Channel::forever, &waker);
    other.join();
  }
}

TEST_CASE("bytes end a wait in another thread") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  auto waiting = std::async(std::launch::async,
                            [&far = *right] { return far.wait({.readable = true}, Channel::forever).readable; });
  CHECK(send_piece(*left, pattern(1)) == 1);
  CHECK(waiting.get());
}

TEST_CASE("several threads may wait at once") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  std::vector<std::future<bool>> waiting;
  for (int i = 0; i < 4; ++i)
    waiting.push_back(std::async(std::launch::async,
                                 [&far = *right] { return far.wait({.readable = true}, Channel::forever).readable; }));
  CHECK(send_piece(*left, pattern(1)) == 1);
  for (auto& each : waiting) CHECK(each.get());
}

TEST_CASE("what was sent before the other end closed can still be read") {
  const std::string kind = any_kind();
  INFO(kind);
  if (kind == "rdma in memory") return;  // which needs both ends awake until the last byte has come
  auto [left, right] = make(kind);
  CHECK(send_piece(*left, pattern(1000)) == 1000);
  SECTION("closed") { left->close(); }
  SECTION("closed twice") {
    left->close();
    left->close();
  }
  SECTION("destroyed") { left.reset(); }
  REQUIRE(right->wait({.readable = true}, Channel::forever).readable);
  CHECK(receive_to_end(*right) == pattern(1000));
  Bytes buffer(10);
  CHECK_THROWS_AS(right->receive_some(buffer), ChannelClosed);  // for good
}

TEST_CASE("a closed channel ends every wait, at both ends") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  fill(*right);
  auto reading = std::async(std::launch::async, [&near = *left] {
    receive_to_end(near);
    return true;
  });
  auto far = std::async(std::launch::async,
                        [&far = *right] { return far.wait({.readable = true}, Channel::forever).readable; });
  auto near = std::async(std::launch::async,
                         [&near = *left] { return near.wait({.readable = true}, Channel::forever).readable; });
  left->close();
  CHECK(far.get());
  CHECK(near.get());
  CHECK(reading.get());
}

TEST_CASE("a wait for nothing ends when this end is closed") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  SECTION("before") { left->close(); }
  std::thread other([&near = *left] { near.close(); });
  left->wait({}, Channel::forever);
  other.join();
}

TEST_CASE("no room to receive into is no end of the connection") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  CHECK(right->receive_some({}) == 0);
  CHECK(send_piece(*left, pattern(5)) == 5);
  REQUIRE(right->wait({.readable = true}, Channel::forever).readable);
  CHECK(right->receive_some({}) == 0);
  left.reset();
  CHECK(right->receive_some({}) == 0);
  CHECK(receive_to_end(*right) == pattern(5));
}

TEST_CASE("sending into a closed channel is an error") {
  const std::string kind = any_kind();
  INFO(kind);
  auto [left, right] = make(kind);
  SECTION("by this end") {
    left->close();
    CHECK_THROWS_AS(send_piece(*left, pattern(10)), ChannelClosed);
  }
  SECTION("by the other end") {
    right.reset();
    // TCP notices with the answer to what was sent first.
    const auto send_on = [&near = *left] {
      while (true) {
        send_piece(near, pattern(10));
        near.wait({.readable = true, .writable = true}, 1ms);
      }
    };
    CHECK_THROWS_AS(send_on(), ChannelClosed);
  }
  SECTION("while it waits for room") {
    auto sending = std::async(std::launch::async, [&near = *left] {
      while (true) send(near, pattern(1u << 20));
    });
    if (GENERATE(true, false)) std::this_thread::sleep_for(50ms);  // for its waiting to have begun, mostly
    right->close();
    CHECK_THROWS_AS(sending.get(), ChannelClosed);
  }
}

TEST_CASE("who ends a connection in order is told from who resets it, whatever was sent meanwhile") {
  auto [left, right] = tcp_channel();
  const auto use_up = [&right = *right] {
    Bytes buffer(64u << 10);
    for (int i = 0; i < 1000; ++i) {
      right.receive_some(buffer);
      right.wait({.readable = true}, 10ms);
    }
  };
  SECTION("in order") {
    left.reset();
    // The other end's kernel resets what is sent to a connection that is closed.
    try {
      for (int i = 0; i < 10; ++i, right->wait({}, 1ms)) send(*right, pattern(10));
      FAIL("the connection goes on");
    } catch (const ChannelClosed& closed) {
      CHECK(dynamic_cast<const ChannelEnded*>(&closed));
    }
    CHECK_THROWS_AS(use_up(), ChannelEnded);
  }
  SECTION("by a reset, as all threads find") {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    REQUIRE(::setsockopt(left->descriptor(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
    left.reset();
    for (int i = 0; i < 3; ++i) {
      try {
        use_up();
        FAIL("the connection goes on");
      } catch (const ChannelClosed& closed) {
        CHECK_FALSE(dynamic_cast<const ChannelEnded*>(&closed));
      }
    }
  }
}

TEST_CASE("memory that cannot be read or written is the caller's error, not the connection's") {
  const std::string kind = any_kind();
  INFO(kind);
  if (kind == "memory" || kind == "shared") return;  // where the program's memory is copied by the program
  auto [left, right] = make(kind);
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const std::span<std::byte> forbidden(static_cast<std::byte*>(page), 4096);
  CHECK_THROWS_AS(send_piece(*left, forbidden), SystemError);
  CHECK(send_piece(*left, pattern(8)) == 8);
  REQUIRE(right->wait({.readable = true}, Channel::forever).readable);
  CHECK_THROWS_AS(right->receive_some(forbidden), SystemError);
  ::munmap(page, 4096);
  Bytes buffer(100);
  CHECK(right->receive_some(buffer) == 8);
}

TEST_CASE("a channel names its other end") {
  auto [left, right] = unix_channel();
  CHECK(left->peer() == "left");
  right.reset();
  Bytes buffer(1);
  CHECK_THROWS_WITH(left->receive_some(buffer), "left closed the connection");
  auto [near, far] = make_memory_channel();
  CHECK(near->peer() == "this process");
}

// A daemon closes all descriptors and opens files of its own, which get their numbers.
TEST_CASE("a waker leaves a file alone that has its number") {
  const Waker kept;
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  int number = -1;
  {
    Waker waker;
    number = waker.descriptor();
    REQUIRE(::dup2(::fileno(file), waker.descriptor()) == waker.descriptor());
    REQUIRE(::write(waker.descriptor(), "theirs", 6) == 6);
    REQUIRE(::lseek(waker.descriptor(), 2, SEEK_SET) == 2);
    waker.signal();
    waker.drain();
    CHECK(::lseek(waker.descriptor(), 0, SEEK_CUR) == 2);
  }
  char text[8] = {};
  CHECK(::pread(::fileno(file), text, sizeof(text), 0) == 6);
  CHECK(std::string(text) == "theirs");
  CHECK(::close(number) == 0);  // which the waker has left open too
  std::fclose(file);
}
