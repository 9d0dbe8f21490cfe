// Channels that outlive their connections: whatever breaks, and whenever, each byte comes once and in its place.

#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/resumable_channel.h"
#include "tests/wrapped_channel.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t log_bytes = 16u << 10;
constexpr std::size_t pipe_bytes = 48u << 10;

/// A connection that breaks when so many bytes have gone or come: what was on its way is lost. Of what it sent last it
/// does not tell.
class Fragile final : public WrappedChannel {
 public:
  Fragile(std::unique_ptr<Channel> channel, std::size_t sent, std::size_t received)
      : WrappedChannel(std::move(channel)), send_(sent), receive_(received) {}
  std::size_t send_some(std::span<const Channel::Bytes> pieces) override {
    std::vector<Channel::Bytes> some;
    for (std::size_t room = send_; const Channel::Bytes& piece : pieces) {
      some.push_back(piece.first(std::min(room, piece.size())));
      room -= some.back().size();
    }
    if (send_ == 0) fail();
    const std::size_t taken = WrappedChannel::send_some(some);
    if ((send_ -= taken) == 0) fail();
    return taken;
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (receive_ == 0) fail();
    const std::size_t taken = WrappedChannel::receive_some(buffer.first(std::min(buffer.size(), receive_)));
    receive_ -= taken;
    return taken;
  }

 private:
  [[noreturn]] void fail() {
    close();
    throw ChannelClosed("cut");
  }
  std::size_t send_, receive_;
};

std::byte nth(std::uint64_t n, unsigned seed) { return static_cast<std::byte>((n * 2654435761u + seed) >> 9); }

/// One end, and what it ought to do.
struct End {
  End(std::shared_ptr<Channel> first, unsigned seed, ResumableChannel::Hooks hooks = {})
      : channel(std::make_shared<ResumableChannel>(std::move(first), log_bytes, std::move(hooks))), seed(seed) {}

  /// Offers up to so many bytes, in some pieces.
  void send(std::size_t most, std::mt19937& random) {
    // What was shown once is shown again.
    while (offered.size() < most) offered.push_back(nth(sent + offered.size(), seed));
    std::vector<Channel::Bytes> pieces;
    for (std::span<const std::byte> rest(offered); !rest.empty() && pieces.size() < 3;) {
      const std::size_t part = std::min<std::size_t>(rest.size(), 1 + random() % 9000);
      pieces.push_back(rest.first(part));
      rest = rest.subspan(part);
    }
    const std::size_t taken = channel->send_some(pieces);
    offered.erase(offered.begin(), offered.begin() + static_cast<std::ptrdiff_t>(taken));
    sent += taken;
  }
  /// Takes up to so many bytes of the other end's.
  void receive(std::size_t most, unsigned their_seed) {
    Bytes buffer(most);
    const std::size_t got = channel->receive_some(buffer);
    for (std::size_t i = 0; i < got; ++i)
      if (buffer[i] != nth(received + i, their_seed)) ++wrong;
    received += got;
  }

  const std::shared_ptr<ResumableChannel> channel;
  const unsigned seed;
  Bytes offered;
  std::uint64_t sent = 0, received = 0, wrong = 0;
};

std::pair<std::shared_ptr<Channel>, std::shared_ptr<Channel>> connection(std::mt19937& random, bool lasts) {
  auto [left, right] = make_memory_channel(pipe_bytes);
  const auto some = [&] { return lasts ? std::size_t{1} << 40 : 1 + random() % 40000; };
  return {std::make_shared<Fragile>(std::move(left), some(), some()),
          std::make_shared<Fragile>(std::move(right), some(), some())};
}

unsigned rounds() {
  const char* const wanted = std::getenv("FARGPU_FAULTS");
  return wanted && std::strcmp(wanted, "all") == 0 ? 3000 : 150;
}

}  // namespace

TEST_CASE("whatever breaks, each byte comes once and in its place") {
  for (unsigned seed = 1; seed <= rounds(); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    auto first = connection(random, false);
    End left(first.first, 1), right(first.second, 2);
    std::uint32_t epoch = 0;
    // As client and worker do it, and as it may go wrong: what the worker answers does not arrive.
    const auto reconnect = [&](bool lasts) {
      auto [near, far] = connection(random, lasts);
      const std::uint64_t near_has = left.channel->fence(), far_has = right.channel->fence();
      ++epoch;
      right.channel->resume(far, epoch, near_has);
      right.channel->catch_up(far);
      if (!lasts && random() % 4 == 0) return near->close();
      left.channel->resume(near, epoch, far_has);
      left.channel->catch_up(near);
    };
    constexpr std::uint64_t wanted = 200'000;
    unsigned breaks = 0;
    for (unsigned step = 0; step < 2000; ++step) {
      switch (random() % 6) {
        case 0:
        case 1: left.send(1 + random() % 20000, random); break;
        case 2: right.send(1 + random() % 20000, random); break;
        case 3: right.receive(1 + random() % 20000, 1); break;
        case 4: left.receive(1 + random() % 20000, 2); break;
        default:
          if (!left.channel->resuming() && !right.channel->resuming() && random() % 20 != 0) break;
          ++breaks;
          reconnect(false);
      }
      if (left.received > wanted && right.received > wanted) break;
    }
    CHECK(breaks > 0);
    reconnect(true);
    for (unsigned step = 0; step < 2000 && (left.received != right.sent || right.received != left.sent); ++step) {
      left.send(left.offered.size(), random);
      right.send(right.offered.size(), random);
      left.receive(20000, 2);
      right.receive(20000, 1);
    }
    CHECK(left.wrong == 0);
    CHECK(right.wrong == 0);
    CHECK(left.received == right.sent);
    CHECK(right.received == left.sent);
  }
}

TEST_CASE("what was lent may change when it is not needed any more, or was copied, and comes as it was") {
  unsigned breaks = 0, confirmed = 0, copied = 0;
  for (unsigned seed = 1; seed <= rounds(); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    auto first = connection(random, false);
    End left(first.first, 1), right(first.second, 2);
    Bytes source(100'000);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = nth(i, 1);
    std::size_t sent = 0, shown = 0, changed = 0;
    std::uint32_t epoch = 0;
    const auto change = [&] {
      std::fill(source.begin() + static_cast<std::ptrdiff_t>(changed),
                source.begin() + static_cast<std::ptrdiff_t>(sent), std::byte{0x5a});
      changed = sent;
    };
    for (unsigned step = 0; right.received < source.size(); ++step) {
      REQUIRE(step < 100'000);
      switch (random() % 6) {
        case 0:
        case 1: {
          left.channel->lend(random() % 4 == 0 ? Channel::Bytes() : source, random() % 4 != 0);
          shown = std::max(shown, std::min<std::size_t>(source.size(), sent + 1 + random() % 20000));
          const Channel::Bytes piece = std::span(source).subspan(sent, shown - sent);
          sent += left.channel->send_some(std::span(&piece, 1));
          break;
        }
        case 2:
        case 3: right.receive(1 + random() % 20000, 1); break;
        case 4:
          left.receive(100, 2);  // what confirms
          if (random() % 2 == 0) {
            left.channel->copy_lent();
            ++copied;
          } else if (left.channel->needs(source)) {
            break;
          } else if (sent > changed) {
            ++confirmed;
          }
          change();
          break;
        default: {
          if (!left.channel->resuming() && !right.channel->resuming() && random() % 20 != 0) break;
          ++breaks;
          auto [near, far] = connection(random, /*lasts=*/step > 5000);
          const std::uint64_t near_has = left.channel->fence(), far_has = right.channel->fence();
          ++epoch;
          right.channel->resume(far, epoch, near_has);
          right.channel->catch_up(far);
          left.channel->resume(near, epoch, far_has);
          left.channel->catch_up(near);
        }
      }
    }
    CHECK(right.wrong == 0);
  }
  CHECK(breaks > 100);
  CHECK(confirmed > 100);
  CHECK(copied > 100);
}

TEST_CASE("what was lent and cannot be read when it is to be sent again is told, and comes as zeros") {
  std::mt19937 random(1);
  constexpr std::size_t endless = std::size_t{1} << 40, few = 100;
  auto [left_end, right_end] = make_memory_channel(pipe_bytes);
  End left(std::make_shared<Fragile>(std::move(left_end), endless, endless), 1),
      right(std::make_shared<Fragile>(std::move(right_end), endless, few), 2);
  constexpr std::size_t bytes = 64 << 10;
  auto* const memory =
      static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  std::memset(memory, 7, bytes);
  const Channel::Bytes lent(memory, bytes);
  std::size_t sent = 0;
  while (sent < bytes / 2) {
    left.channel->lend(lent, true);
    const Channel::Bytes piece = lent.subspan(sent);
    const std::size_t taken = left.channel->send_some(std::span(&piece, 1));
    if (taken == 0) break;
    sent += taken;
  }
  REQUIRE(sent > 0);
  CHECK(left.channel->needs(lent));
  CHECK_FALSE(left.channel->lost(lent));
  auto [near, far] = connection(random, true);
  const std::uint64_t near_has = left.channel->fence(), far_has = right.channel->fence();
  REQUIRE(::munmap(memory, bytes) == 0);
  right.channel->resume(far, 1, near_has);
  right.channel->catch_up(far);
  left.channel->resume(near, 1, far_has);
  left.channel->catch_up(near);
  REQUIRE(far_has < sent);
  CHECK(left.channel->lost(lent));
  CHECK_FALSE(left.channel->lost(lent));  // once
  Bytes got(sent);
  std::size_t received = 0;
  while (received < sent) received += right.channel->receive_some(std::span(got).subspan(received));
  for (std::size_t i = far_has; i < sent; ++i) REQUIRE(got[i] == std::byte{0});
}

TEST_CASE("threads that send and receive go on over breaks") {
  constexpr std::uint64_t wanted = 4'000'000;
  std::mt19937 random(7);
  std::mutex lock;
  std::atomic<bool> broken{false};
  const ResumableChannel::Hooks hooks{.broke = [&](const ResumableChannel::Break&) { broken = true; },
                                      .impatience = {}};
  auto first = connection(random, false);
  End left(first.first, 1, hooks), right(first.second, 2, hooks);
  std::atomic<bool> done{false};
  unsigned breaks = 0;
  std::vector<std::thread> catching_up;
  std::thread dialler([&] {
    for (std::uint32_t epoch = 1; !done;) {
      if (!broken.exchange(false)) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      ++breaks;
      auto [near, far] = connection(random, breaks > 60);
      const std::uint64_t near_has = left.channel->fence(), far_has = right.channel->fence();
      right.channel->resume(far, epoch, near_has);
      left.channel->resume(near, epoch, far_has);
      ++epoch;
      catching_up.emplace_back([&, far = far] { right.channel->catch_up(far); });
      left.channel->catch_up(near);
    }
  });
  const auto sends = [&](End& end, unsigned seed) {
    return std::thread([&, seed] {
      std::mt19937 sizes(seed);
      while (end.sent < wanted) {
        const std::uint64_t before = end.sent;
        end.send(std::min<std::uint64_t>(1 + sizes() % 30000, wanted - end.sent), sizes);
        if (end.sent == before) end.channel->wait({.writable = true}, Channel::forever);
      }
    });
  };
  const auto receives = [&](End& end, unsigned their_seed) {
    return std::thread([&, their_seed] {
      while (end.received < wanted) {
        const std::uint64_t before = end.received;
        end.receive(50'000, their_seed);
        if (end.received == before) end.channel->wait({.readable = true}, Channel::forever);
      }
    });
  };
  std::thread threads[] = {sends(left, 3), sends(right, 4), receives(left, 2), receives(right, 1)};
  for (std::thread& thread : threads) thread.join();
  done = true;
  dialler.join();
  for (std::thread& thread : catching_up) thread.join();
  CHECK(left.wrong == 0);
  CHECK(right.wrong == 0);
  CHECK(breaks > 20);
}

TEST_CASE("what may be on its way is bounded, and there is room again although nobody reads") {
  auto [near, far] = make_memory_channel(pipe_bytes);
  End left(std::move(near), 1), right(std::move(far), 2);
  std::mt19937 random(1);
  while (left.sent < log_bytes) left.send(log_bytes - left.sent, random);
  left.send(100, random);
  CHECK(left.sent == log_bytes);
  CHECK_FALSE(left.channel->wait({.writable = true}, 20ms).writable);
  // What confirms comes behind bytes that nobody asks for.
  right.send(9000, random);
  while (right.received < log_bytes) right.receive(1000, 1);
  CHECK(right.wrong == 0);
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!left.channel->wait({.writable = true}, 1s).writable) REQUIRE(std::chrono::steady_clock::now() < end);
  left.send(100, random);
  CHECK(left.sent > log_bytes);
  CHECK(left.channel->wait({.readable = true}, 0s).readable);
  while (left.received < right.sent) left.receive(1000, 2);
  CHECK(left.wrong == 0);
}

TEST_CASE("a peer that says what cannot be breaks the protocol") {
  auto [near, far] = make_memory_channel();
  ResumableChannel channel(std::move(near), log_bytes, {});
  ResumableHeader header{.bytes = 8, .epoch = 0, .consumed = 0};
  SECTION("of another epoch") { header.epoch = 1; }
  SECTION("more than may be on its way") { header.bytes = log_bytes + 1; }
  SECTION("confirms what was not sent") { header.consumed = 1; }
  send(*far, Bytes(reinterpret_cast<std::byte*>(&header), reinterpret_cast<std::byte*>(&header + 1)));
  Bytes buffer(10);
  CHECK_THROWS_AS(channel.receive_some(buffer), ProtocolError);
}

TEST_CASE("a peer that comes back cannot have received what was not sent, nor less than it had") {
  std::mt19937 random(1);
  auto [near, far] = make_memory_channel();
  End left(std::move(near), 1), right(std::move(far), 2);
  left.send(10'000, random);
  while (right.received < left.sent) right.receive(5000, 1);
  right.send(10, random);  // which confirms
  left.receive(10, 2);
  left.send(10, random);
  left.channel->fence();
  auto [again, there] = make_memory_channel();
  const std::shared_ptr<Channel> connection = std::move(again);
  CHECK_THROWS_AS(left.channel->resume(connection, 1, left.sent + 1), ProtocolError);
  CHECK_THROWS_AS(left.channel->resume(connection, 1, 0), ProtocolError);
  left.channel->resume(connection, 1, left.sent);
}

TEST_CASE("a channel without a connection waits, and ends when it is given up") {
  auto [near, far] = make_memory_channel();
  std::atomic<bool> patient{true};
  std::string why;
  ResumableChannel channel(
      std::move(near), log_bytes,
      {.broke = [&](const ResumableChannel::Break& what) { why = what.why; },
       .impatience = [&](const ResumableChannel::Break&) { return std::string(patient ? "" : "enough"); }});
  far->close();
  Bytes buffer(10);
  CHECK(channel.receive_some(buffer) == 0);
  CHECK_FALSE(why.empty());
  CHECK(channel.resuming());
  const Channel::Bytes piece(buffer);
  CHECK(channel.send_some({&piece, 1}) == 0);
  Waker waker;
  waker.signal();
  channel.wait({.readable = true}, Channel::forever, &waker);  // woken
  std::thread waiting([&] {
    CHECK_THROWS_AS(
        [&] {
          while (channel.receive_some(buffer) == 0) channel.wait({.readable = true}, Channel::forever);
        }(),
        ChannelClosed);
  });
  patient = false;
  waiting.join();
  CHECK_FALSE(channel.suspect("too late"));
  CHECK_THROWS_AS(channel.fence(), ChannelClosed);
}
