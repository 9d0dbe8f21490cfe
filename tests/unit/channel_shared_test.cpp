// What only channels through shared memory have: rings, a peer that writes there what it likes, sleeping and waking,
// descriptors.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>
#include <thread>

#include "frames.h"
#include "protocol/channel.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/sealed_memory.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t ring_bytes = 4096;

/// Both ends, and the memory between them.
struct Shared {
  Shared() {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) throw SystemError("socketpair");
    left_socket = make_socket_channel(sockets[0], "left");
    right_socket = make_socket_channel(sockets[1], "right");
    memory = make_ring_memory(ring_bytes);
    left = make_shared_channel(left_socket, memory, ring_bytes, true);
    right = make_shared_channel(right_socket, memory, ring_bytes, false);
    view =
        static_cast<std::byte*>(::mmap(nullptr, 4096 + 2 * ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  }
  ~Shared() {
    ::munmap(view, 4096 + 2 * ring_bytes);
    ::close(memory);
  }
  /// The positions of the first ring, in which `left` writes: 64 bytes apart lie written, read, reader sleeps, writer
  /// sleeps.
  std::atomic<std::uint64_t>& word(std::size_t number) {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(view + 64 * number);
  }

  std::shared_ptr<Channel> left_socket, right_socket;
  std::unique_ptr<Channel> left, right;
  int memory = -1;
  std::byte* view = nullptr;
};

std::size_t put(Channel& channel, const Bytes& bytes) {
  const Channel::Bytes piece(bytes);
  return channel.send_some(std::span(&piece, 1));
}

Bytes take(Channel& channel, std::size_t bytes) {
  Bytes got(bytes);
  got.resize(channel.receive_some(got));
  return got;
}

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd"), end;
  return static_cast<std::size_t>(std::distance(all, end));
}

}  // namespace

TEST_CASE("a ring goes round") {
  Shared shared;
  unsigned char seed = 0;
  for (std::size_t bytes = 1; bytes <= ring_bytes; bytes += 333) {
    for (int turn = 0; turn < 20; ++turn, ++seed) {
      const Bytes sent = pattern(bytes, seed);
      REQUIRE(put(*shared.left, sent) == bytes);
      REQUIRE(take(*shared.right, bytes) == sent);
    }
  }
  CHECK(put(*shared.left, pattern(2 * ring_bytes)) == ring_bytes);
  CHECK(put(*shared.left, pattern(1)) == 0);
  CHECK_FALSE(shared.left->wait({.writable = true}, 0ns).writable);
  CHECK(take(*shared.right, 1).size() == 1);
  CHECK(put(*shared.left, pattern(2)) == 1);
}

TEST_CASE("a peer whose positions cannot be has broken the protocol") {
  Shared shared;
  REQUIRE(put(*shared.left, pattern(100)) == 100);
  SECTION("more written than there is room for") {
    shared.word(0) = GENERATE(ring_bytes + 1, ~std::uint64_t{0});
    CHECK_THROWS_AS(take(*shared.right, 10), ProtocolError);
  }
  SECTION("less written than was read") {
    REQUIRE(take(*shared.right, 100).size() == 100);
    shared.word(0) = 50;
    CHECK_THROWS_AS(take(*shared.right, 10), ProtocolError);
  }
  SECTION("more read than was written") {
    shared.word(1) = GENERATE(101u, ~std::uint64_t{0});
    CHECK_THROWS_AS(put(*shared.left, pattern(10)), ProtocolError);
  }
  SECTION("what it writes of our own positions is not believed") {
    shared.word(0) = 7;  // of what `left` has written
    CHECK(put(*shared.left, pattern(8)) == 8);
    CHECK(shared.word(0) == 108);
    REQUIRE(take(*shared.right, 108).size() == 108);
    shared.word(1) = 20;  // of what `right` has read
    CHECK(take(*shared.right, 10).empty());
  }
  SECTION("it ends waits") {
    shared.word(0) = ~std::uint64_t{0};
    CHECK(shared.right->wait({.readable = true}, Channel::forever).readable);
  }
}

TEST_CASE("who does not sleep is not woken, and who sleeps is, once") {
  Shared shared;
  std::array<std::byte, 8> words;
  REQUIRE(put(*shared.left, pattern(1)) == 1);
  CHECK(shared.right_socket->receive_some(words) == 0);
  REQUIRE(take(*shared.right, 1).size() == 1);
  auto waiting =
      std::async(std::launch::async, [&] { return shared.right->wait({.readable = true}, Channel::forever).readable; });
  while ((shared.word(2).load() & 1) == 0) std::this_thread::yield();
  REQUIRE(put(*shared.left, pattern(1)) == 1);
  CHECK(waiting.get());
  REQUIRE(put(*shared.left, pattern(1)) == 1);
  CHECK(shared.right_socket->receive_some(words) == 0);
  // A wait that ends by itself leaves nobody asleep.
  REQUIRE(take(*shared.right, 2).size() == 2);
  CHECK_FALSE(shared.right->wait({.readable = true}, 1ms).readable);
  CHECK(shared.word(2) == 0);
}

TEST_CASE("one word wakes all threads that sleep, for whatever they do") {
  Shared shared;
  REQUIRE(put(*shared.left, pattern(ring_bytes)) == ring_bytes);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::future<bool>> all;
    for (int i = 0; i < 3; ++i)
      all.push_back(std::async(std::launch::async,
                               [&] { return shared.left->wait({.readable = true}, Channel::forever).readable; }));
    all.push_back(std::async(std::launch::async,
                             [&] { return shared.left->wait({.writable = true}, Channel::forever).writable; }));
    if (round % 2) std::this_thread::sleep_for(1ms);  // for them to sleep by then, mostly
    REQUIRE(put(*shared.right, pattern(1)) == 1);
    REQUIRE(take(*shared.right, 1).size() == 1);
    for (auto& each : all) CHECK(each.get());
    REQUIRE(take(*shared.left, 1).size() == 1);
    REQUIRE(put(*shared.left, pattern(1)) == 1);
  }
}

TEST_CASE("a peer that wants to be woken again and again does not hold this end up") {
  Shared shared;
  for (int i = 0; i < 100'000; ++i) {
    shared.word(2) = 1;
    REQUIRE(put(*shared.left, pattern(1)) == 1);
    REQUIRE(take(*shared.right, 1).size() == 1);
  }
}

TEST_CASE("much goes through both ways at once") {
  Shared shared;
  const Bytes there = pattern(3u << 20, 1), back = pattern(3u << 20, 2);
  const auto receive = [](Channel& channel, std::size_t bytes) {
    Bytes all(bytes);
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t got = channel.receive_some(std::span(all).subspan(at));
      at += got;
      if (got == 0) channel.wait({.readable = true}, Channel::forever);
    }
    return all;
  };
  auto sending = std::async(std::launch::async, [&] { send(*shared.left, there); });
  auto answering = std::async(std::launch::async, [&] { send(*shared.right, back); });
  auto arriving = std::async(std::launch::async, [&] { return receive(*shared.right, there.size()); });
  CHECK(receive(*shared.left, back.size()) == back);
  CHECK(arriving.get() == there);
}

TEST_CASE("the end of the socket is the end of the channel") {
  Shared shared;
  REQUIRE(put(*shared.left, pattern(10)) == 10);
  shared.left_socket->close();
  REQUIRE(shared.right->wait({.readable = true}, Channel::forever).readable);
  CHECK(take(*shared.right, 20) == pattern(10));
  while (!shared.right->wait({.readable = true}, Channel::forever).readable) {}
  CHECK_THROWS_AS(take(*shared.right, 1), ChannelClosed);
  CHECK_THROWS_AS(put(*shared.right, pattern(1)), ChannelClosed);
}

TEST_CASE("memory that is no channel is refused") {
  Shared shared;
  const auto refused = [&](int memory, std::size_t bytes) {
    CHECK_THROWS_AS(make_shared_channel(shared.left_socket, memory, bytes, true), ProtocolError);
  };
  refused(shared.memory, 2 * ring_bytes);  // longer than it is
  refused(shared.memory, 3000);            // no power of two
  refused(shared.memory, 0);
  refused(shared.memory, 2 * limits::ring_bytes_max);
  refused(::fileno(stderr), ring_bytes);
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(unsealed, 1 << 20) == 0);
  refused(unsealed, ring_bytes);
  ::close(unsealed);
}

TEST_CASE("sealed memory has its size for good") {
  const int memory = make_sealed_memory("test", 8192);
  CHECK(is_sealed_memory(memory, 8192));
  CHECK_FALSE(is_sealed_memory(memory, 8193));
  CHECK(::ftruncate(memory, 0) != 0);
  CHECK(::ftruncate(memory, 16384) != 0);
  CHECK(::fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  ::close(memory);
}

TEST_CASE("descriptors are passed beside the bytes, and nothing is kept of those that nobody takes") {
  const std::size_t before = open_descriptors();
  {
    Shared shared;
    REQUIRE(shared.left->passes_descriptors());
    const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct stat sent {
    }, got{};
    REQUIRE(::fstat(file, &sent) == 0);
    CHECK(shared.right->receive_descriptor() == -1);
    REQUIRE(put(*shared.left, pattern(5)) == 5);
    REQUIRE(shared.left->send_descriptor(file));
    const int arrived = shared.right->receive_descriptor();
    REQUIRE(arrived >= 0);
    REQUIRE(::fstat(arrived, &got) == 0);
    CHECK((got.st_dev == sent.st_dev && got.st_ino == sent.st_ino));
    CHECK((::fcntl(arrived, F_GETFD) & FD_CLOEXEC) != 0);
    ::close(arrived);
    CHECK(take(*shared.right, 9) == pattern(5));
    for (int i = 0; i < 20; ++i) REQUIRE(shared.left->send_descriptor(file));
    ::close(file);
    std::size_t kept = 0;
    for (int descriptor; (descriptor = shared.right->receive_descriptor()) >= 0; ++kept) ::close(descriptor);
    CHECK(kept == limits::descriptors_max);
    REQUIRE(shared.left->send_descriptor(shared.memory));
    CHECK_FALSE(shared.right->wait({.readable = true}, 1ms).readable);  // which takes it off the socket
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("only Unix sockets pass descriptors") {
  auto [near, far] = make_memory_channel();
  CHECK_FALSE(near->passes_descriptors());
  CHECK_FALSE(near->send_descriptor(0));
  CHECK(far->receive_descriptor() == -1);
}
