// Memory of a GPU on its way between a card and the GPU: nothing but its owner touches it, whatever the bytes go by,
// and what cannot be read is never sent as something else. The memory here cannot be touched by the processor.

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "frames.h"
#include "gpu_card.h"
#include "protocol/device_bytes.h"
#include "protocol/errors.h"
#include "protocol/lanes.h"
#include "protocol/limits.h"
#include "protocol/program_memory.h"
#include "protocol/rdma/loop_trial.h"
#include "protocol/rdma/ring_parts.h"
#include "protocol/rdma/stable_memory.h"
#include "protocol/resumable_channel.h"
#include "protocol/straight_sender.h"
#include "tests/gpu_memory.h"
#include "tests/wrapped_channel.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;

namespace {

void fill(const GpuMemory& memory, const Bytes& bytes) {
  std::memcpy(memory.behind().data(), bytes.data(), bytes.size());
}
bool has(const GpuMemory& memory, const Bytes& bytes) {
  return std::memcmp(memory.behind().data(), bytes.data(), bytes.size()) == 0;
}

}  // namespace

TEST_CASE("memory of a GPU is copied by its owner, and by nobody else") {
  const Bytes bytes = pattern(10'000);
  Bytes back(10'000);
  CHECK_FALSE(DeviceBytes::contains(bytes.data()));
  CHECK_FALSE(DeviceBytes::copy(back.data(), bytes.data(), 10));  // none of the two is
  {
    GpuMemory memory(64u << 10);
    std::byte* const place = memory.bytes().data();
    CHECK(DeviceBytes::contains(place));
    CHECK(DeviceBytes::contains(place + memory.bytes().size() - 1));
    CHECK_FALSE(DeviceBytes::contains(place + memory.bytes().size()));
    CHECK_FALSE(DeviceBytes::contains(place - 1));
    copy_wherever(place + 3, bytes.data(), 10'000);
    copy_wherever(place + 20'000, place + 3, 10'000);
    CHECK(read_program_memory(place + 20'000, back.data(), 10'000));
    CHECK(back == bytes);
    CHECK(write_program_memory(bytes.data(), place, 10));
    CHECK(std::memcmp(memory.behind().data(), bytes.data(), 10) == 0);
    // A piece that goes beyond the memory is none of it, wherever the rest lies.
    CHECK_FALSE(DeviceBytes::copy(back.data(), place + (64u << 10) - 10, 11));
    CHECK_FALSE(DeviceBytes::copy(place + (64u << 10) - 10, bytes.data(), 11));
    memory.broken = true;
    CHECK_FALSE(read_program_memory(place, back.data(), 10));
    CHECK_THROWS_AS(copy_wherever(back.data(), place, 10), DeviceBytesError);
    CHECK_THROWS_AS(throw_if_on_device(place), DeviceBytesError);
  }
  copy_wherever(back.data(), bytes.data(), 10);
  throw_if_on_device(back.data());
}

TEST_CASE("which bytes came in messages is known of each, and how often that changes is bounded") {
  rdma::RingParts parts;
  std::mt19937 random(4);
  Bytes in_message;
  std::uint64_t read = 0;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0) {
      const bool message = random() % 2 == 0;
      in_message.insert(in_message.end(), 1 + random() % 50, std::byte{message});
      REQUIRE(parts.add(in_message.size(), message, read));
    }
    while (read < in_message.size() && random() % 3 != 0) {
      const auto part = parts.at(read);
      REQUIRE(part.end > read);
      const std::uint64_t end = std::min<std::uint64_t>(part.end, read + 1 + random() % 20);
      for (; read < end; ++read) REQUIRE(part.in_messages == (in_message[read] == std::byte{1}));
    }
  }
  std::uint64_t end = in_message.size();
  std::size_t added = 0;
  while (parts.add(++end, added % 2 == 0, read) && added < 100'000) ++added;
  CHECK(added >= 2 * (limits::rdma_ring_bytes / rdma::message_bytes_max));  // an honest end never comes to it
  CHECK(added <= rdma::RingParts::parts_max);
}

// --- channels that are resumed --------------------------------------------------------------------------------------

namespace {

/// A connection that breaks after so many bytes.
class Brittle final : public WrappedChannel {
 public:
  Brittle(std::unique_ptr<Channel> channel, std::size_t bytes) : WrappedChannel(std::move(channel)), left_(bytes) {}
  std::size_t send_some(std::span<const Channel::Bytes> pieces) override {
    std::vector<Channel::Bytes> some;
    for (std::size_t room = left_; const Channel::Bytes& piece : pieces) {
      some.push_back(piece.first(std::min(room, piece.size())));
      room -= some.back().size();
    }
    if (left_ == 0) fail();
    const std::size_t taken = WrappedChannel::send_some(some);
    left_ -= taken;
    return taken;
  }

 private:
  [[noreturn]] void fail() {
    close();
    throw ChannelClosed("cut");
  }
  std::size_t left_;
};

constexpr std::size_t log_bytes = 2u << 20;

/// Two ends of a channel that is resumed by connections that cannot have memory of a GPU.
class Resumed {
 public:
  using Ends = std::pair<std::shared_ptr<Channel>, std::shared_ptr<Channel>>;
  Resumed(std::size_t lasts, std::span<std::byte> into) : Resumed(connection(lasts), into) {}

  void come_back(std::size_t lasts) {
    const std::uint64_t left_has = left.fence(), right_has = right.fence();
    const auto [near, far] = connection(lasts);
    ++epoch_;
    right.resume(far, epoch_, left_has);
    left.resume(near, epoch_, right_has);
    auto other = std::async(std::launch::async, [&] { right.catch_up(far); });
    auto one = std::async(std::launch::async, [&] { left.catch_up(near); });
    while (one.wait_for(0ms) != std::future_status::ready) receive();
    one.get();
    other.get();
  }
  void receive() {
    try {
      std::byte none{};
      if (received < into_.size())
        received +=
            right.receive_some(into_.subspan(received).first(std::min<std::size_t>(into_.size() - received, 300'000)));
      (void)left.receive_some({&none, 1});  // what confirms
    } catch (const ChannelClosed&) {}
  }

  ResumableChannel left, right;
  std::size_t received = 0;

 private:
  Resumed(const Ends& ends, std::span<std::byte> into)
      : left(ends.first, log_bytes, {}), right(ends.second, log_bytes, {}), into_(into) {}
  static Ends connection(std::size_t lasts) {
    auto [one, other] = make_memory_channel(100'000);
    return {std::make_shared<Brittle>(std::move(one), lasts), std::move(other)};
  }

  const std::span<std::byte> into_;
  std::uint32_t epoch_ = 0;
};

constexpr std::size_t for_ever = std::size_t{1} << 40;

}  // namespace

TEST_CASE("memory of a GPU goes by connections that cannot have it, breaks in the middle, and arrives in such memory") {
  unsigned breaks = 0, changes = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    constexpr std::size_t size = 5'000'000;
    const Bytes bytes = pattern(size, seed);
    GpuMemory from(size), to(size);
    fill(from, bytes);
    Resumed ends(1 + random() % 3'000'000, to.bytes());
    std::size_t sent = 0, changed = 0;
    Channel::Bytes piece;  // what was shown once is shown again
    for (unsigned step = 0; ends.received < size; ++step) {
      REQUIRE(step < 1'000'000);
      if (piece.empty())
        piece = from.bytes().subspan(sent, std::min<std::size_t>(size - sent, 1 + random() % 1'000'000));
      ends.left.lend(from.bytes(), random() % 2 == 0);
      const Bytes head;
      const std::array<Channel::Bytes, 2> pieces{Channel::Bytes(head), piece};
      const std::size_t taken = piece.empty() ? 0 : ends.left.send_some(pieces);
      sent += taken;
      piece = piece.subspan(taken);
      if (ends.left.resuming()) {
        ++breaks;
        ends.come_back(step > 10'000 ? for_ever : 1 + random() % 3'000'000);
      }
      ends.receive();
      if (random() % 50 == 0) ends.left.copy_lent();
      if (sent > changed && !ends.left.needs(from.bytes().first(sent))) {
        std::memset(from.behind().data() + changed, 0x5a, sent - changed);
        changed = sent;
        ++changes;
      }
    }
    CHECK(has(to, bytes));
  }
  CHECK(breaks > 20);
  CHECK(changes > 20);
}

TEST_CASE(
    "memory of a GPU that cannot be read when it has to be sent again ends the channel, and nothing else is sent") {
  constexpr std::size_t size = 1'000'000;
  const Bytes bytes = pattern(size);
  GpuMemory from(size);
  fill(from, bytes);
  Bytes to(size, std::byte{0x77});
  Resumed ends(for_ever, to);
  ends.left.lend(from.bytes(), true);
  const Channel::Bytes piece = from.bytes();
  const std::size_t sent = ends.left.send_some(std::span(&piece, 1));
  REQUIRE(sent > 0);
  CHECK(ends.left.needs(from.bytes()));
  from.broken = true;
  SECTION("for a copy") { CHECK_THROWS_AS(ends.left.copy_lent(), DeviceBytesError); }
  SECTION("for what comes next") {
    CHECK_THROWS_AS(ends.left.send_some(std::array{piece.subspan(sent)}), DeviceBytesError);
  }
  SECTION("after a break") {
    ends.left.suspect("cut");
    const std::uint64_t has = ends.left.fence();
    (void)ends.right.fence();
    const auto [near, far] = make_memory_channel(100'000);
    const std::shared_ptr<Channel> again(near.get(), [](Channel*) {});
    ends.left.resume(again, 1, 0);
    ends.left.catch_up(again);
    CHECK(has == 0);
    CHECK(ends.left.over());
    CHECK_THROWS_WITH(ends.left.send_some(std::array{piece.subspan(sent)}), Catch::Contains("memory of the GPU"));
    Bytes came(size);
    CHECK_THROWS_AS(far->receive_some(came), ChannelClosed);  // nothing had come before the end
  }
}

TEST_CASE("memory of a GPU into which nothing can be written is told of, and is not taken for received") {
  constexpr std::size_t size = 500'000;
  GpuMemory to(size);
  Resumed ends(for_ever, to.bytes());
  const Bytes bytes = pattern(size);
  const Channel::Bytes piece(bytes);
  REQUIRE(ends.left.send_some(std::span(&piece, 1)) > 0);
  to.broken = true;
  CHECK_THROWS_AS(ends.receive(), DeviceBytesError);
}

// --- lanes ----------------------------------------------------------------------------------------------------------

namespace {

/// Takes chunks of transfer 1, one behind the other.
class Landing final : public ChunkHandler {
 public:
  explicit Landing(std::span<std::byte> place) : place_(place) {}
  std::span<std::byte> place(Chunk chunk, std::size_t bytes) override {
    return place_.subspan(chunk.number * limits::lane_chunk_bytes, bytes);
  }
  void landed(Chunk, std::span<std::byte> bytes, bool whole) override {
    const std::lock_guard lock(mutex_);
    if (whole) landed_ += bytes.size();
    changed_.notify_all();
  }
  void lost(const std::string& why) noexcept override {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
    changed_.notify_all();
  }
  bool wait_for(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 60s, [&] { return landed_ >= bytes || !why_.empty(); });
    return landed_ == bytes;
  }
  /// The first words.
  std::string wait_lost() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 60s, [&] { return !why_.empty(); });
    return why_;
  }
  std::size_t landed() {
    const std::lock_guard lock(mutex_);
    return landed_;
  }

 private:
  const std::span<std::byte> place_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t landed_ = 0;
  std::string why_;
};

constexpr std::size_t lane_size = 5 * limits::lane_chunk_bytes + 77'777;

/// Sends all of it; returns when it is told of as sent.
void add_lane(Lanes& sender, Lanes& receiver, bool resumes) {
  auto [one, other] = socket_ends();
  std::shared_ptr<Channel> left = std::move(one), right = std::move(other);
  if (resumes) {
    left = std::make_shared<ResumableChannel>(left, limits::resume_lane_log_bytes, ResumableChannel::Hooks{});
    right = std::make_shared<ResumableChannel>(right, limits::resume_lane_log_bytes, ResumableChannel::Hooks{});
  }
  sender.add(left, 0, 0);
  receiver.add(right, 0, 0);
}

void send_chunks(Lanes& lanes, std::span<const std::byte> bytes, std::atomic<std::size_t>& told) {
  for (std::uint32_t n = 0; n * limits::lane_chunk_bytes < bytes.size(); ++n) {
    const std::size_t begin = n * limits::lane_chunk_bytes;
    const auto part = bytes.subspan(begin, std::min(limits::lane_chunk_bytes, bytes.size() - begin));
    lanes.send({1, n}, part, {.sent = [&told, part] { told += part.size(); }, .unreadable = [] {}});
  }
}

}  // namespace

TEST_CASE("lanes carry memory of a GPU, into memory of a GPU, by whatever connections there are") {
  const bool resumes = GENERATE(false, true);
  const auto compression = GENERATE(Compression::never, Compression::always);
  const bool of_gpu = GENERATE(false, true);
  CAPTURE(resumes, compression, of_gpu);
  Bytes bytes(lane_size);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 100);  // worth being compressed
  GpuMemory from(lane_size), to(lane_size);
  fill(from, bytes);
  // A connection that is not resumed, and is not by RDMA, brings nothing to such memory.
  Landing near({}), far(resumes ? to.bytes() : to.behind());
  Lanes sender(near, compression), receiver(far);
  for (int i = 0; i < 2; ++i) add_lane(sender, receiver, resumes);
  std::atomic<std::size_t> told{0};
  send_chunks(sender, of_gpu ? std::span<const std::byte>(from.bytes()) : std::span<const std::byte>(bytes), told);
  CHECK(far.wait_for(lane_size));
  for (int waited = 0; told < lane_size && waited < 10'000; ++waited) std::this_thread::sleep_for(1ms);
  CHECK(told == lane_size);
  CHECK(has(to, bytes));
  const bool packed = compression == Compression::always && !(of_gpu && resumes);
  CHECK((receiver.bytes_received() < lane_size / 2) == packed);
}

TEST_CASE("a lane ends with words when memory of a GPU cannot be read or written") {
  const bool resumes = GENERATE(false, true), reads = GENERATE(false, true);
  CAPTURE(resumes, reads);
  const Bytes bytes = pattern(lane_size);
  GpuMemory from(lane_size), to(lane_size);
  fill(from, bytes);
  (reads ? from : to).broken = true;
  Landing near({}), far(to.bytes());
  Lanes sender(near), receiver(far);
  add_lane(sender, receiver, resumes);
  std::atomic<std::size_t> told{0};
  send_chunks(sender, from.bytes(), told);
  CHECK_THAT((reads ? near : far).wait_lost(), Catch::Contains("memory of the GPU"));
  CHECK(far.landed() < lane_size);
}

// --- RDMA -----------------------------------------------------------------------------------------------------------

#ifdef FARGPU_UCX

namespace {

/// Both ends of a channel by a card that reaches memory of a GPU. `ring`: of the right end.
struct ByCard {
  explicit ByCard(const std::shared_ptr<std::byte>& ring) {
    auto [near, far] = socket_ends();
    auto other = std::async(std::launch::async, [&far = *far, &ring] {
      return rdma::hand_over(far, open_gpu_card(), {}, {}, limits::rdma_timeout, ring);
    });
    auto one = rdma::hand_over(*near, open_gpu_card(), {});
    auto two = other.get();
    why_no_ring = two.why_no_ring;
    if (!one.end || !two.end) throw rdma::RdmaError("no channel by UCX: " + one.text + "; " + two.text);
    left = std::move(one).go_on(std::move(near));
    right = std::move(two).go_on(std::move(far));
  }
  std::string why_no_ring;
  std::unique_ptr<Channel> left, right;
};

std::shared_ptr<std::byte> ring_of(const GpuMemory& memory) {
  return {memory.bytes().data(), [](std::byte*) {}};
}

/// StableMemory while it lives.
struct Stable {
  explicit Stable(const GpuMemory& gpu) : memory(gpu.bytes()) {
    rdma::StableMemory::of_process().add(memory.data(), memory.size(), rdma::MemoryKind::device);
  }
  ~Stable() { rdma::StableMemory::of_process().remove(memory.data()); }
  const std::span<std::byte> memory;
};

/// Takes what comes at the right end until that is all, while the left end works.
class Receiving {
 public:
  Receiving(ByCard& ends, std::span<std::byte> into)
      : ends_(ends), thread_(std::async(std::launch::async, [this, into] { take(into); })) {}
  /// Throws what the right end has met.
  void finish() {
    while (!all_) ends_.left->wait({.readable = true}, 1ms);
    done_ = true;
    thread_.get();
  }

 private:
  void take(std::span<std::byte> into) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    try {
      while (!into.empty() && std::chrono::steady_clock::now() < end) {
        const std::size_t got = ends_.right->receive_some(into.first(std::min<std::size_t>(into.size(), 700'000)));
        into = into.subspan(got);
        if (got == 0) ends_.right->wait({.readable = true}, 1ms);
      }
    } catch (const std::exception&) {
      all_ = true;
      throw;
    }
    all_ = true;
    while (!done_) ends_.right->wait({.readable = true}, 1ms);
  }

  ByCard& ends_;
  std::atomic<bool> all_{false}, done_{false};
  std::future<void> thread_;
};

}  // namespace

TEST_CASE("memory of a GPU goes from where it lies, or by the mirror where the card does not know it") {
  const NewGpuCard fresh;
  gpu_card.refuses_sources = GENERATE(false, true);
  constexpr std::size_t size = 7'000'000;
  const Bytes bytes = pattern(size, 5);
  GpuMemory from(size);
  fill(from, bytes);
  Bytes to(size);
  const Stable stable(from);
  ByCard ends(nullptr);
  Receiving receiving(ends, to);
  auto& straight = dynamic_cast<StraightSender&>(*ends.left);
  CHECK(straight.takes_device_bytes());
  straight.lend(from.bytes());
  const Channel::Bytes piece = from.bytes();
  send_all(*ends.left, std::span(&piece, 1));
  while (straight.needs(from.bytes())) ends.left->wait({.readable = true}, 1ms);
  std::memset(from.behind().data(), 0x5a, size);
  receiving.finish();
  CHECK(to == bytes);
  CHECK((gpu_card.from_gpu > 0) == !gpu_card.refuses_sources);
}

TEST_CASE("memory of a GPU that cannot be read is not sent by RDMA as something else") {
  const NewGpuCard fresh;
  gpu_card.refuses_sources = true;
  GpuMemory from(1'000'000);
  ByCard ends(nullptr);
  from.broken = true;
  const Channel::Bytes piece = from.bytes();
  CHECK_THROWS_AS(ends.left->send_some(std::span(&piece, 1)), DeviceBytesError);
}

TEST_CASE("a ring in memory of a GPU takes messages and puts among each other, for whatever memory") {
  const NewGpuCard fresh;
  const bool into_gpu = GENERATE(false, true);
  constexpr std::size_t size = 20u << 20;
  const Bytes bytes = pattern(size, 9);
  GpuMemory ring(limits::rdma_ring_bytes), gpu(size);
  Bytes host(size);
  ByCard ends(ring_of(ring));
  CHECK(ends.why_no_ring.empty());
  Receiving receiving(ends, into_gpu ? gpu.bytes() : std::span(host));
  std::mt19937 random(3);
  unsigned small = 0;
  for (std::size_t at = 0; at < size;) {
    const std::size_t most = random() % 2 == 0 ? 200 : 400'000;
    const std::size_t part = std::min(size - at, 1 + random() % most);
    small += part <= 200;
    const Channel::Bytes piece = std::span(bytes).subspan(at, part);
    send_all(*ends.left, std::span(&piece, 1));
    if (random() % 4 == 0) ends.left->wait({.readable = true}, 100us);  // what was put has landed: a message comes next
    at += part;
  }
  receiving.finish();
  CHECK((into_gpu ? has(gpu, bytes) : host == bytes));
  CHECK(gpu_card.into_gpu > 50);
  CHECK(small > 20);
}

TEST_CASE("a ring in memory of a GPU that cannot be read ends with words") {
  const NewGpuCard fresh;
  GpuMemory ring(limits::rdma_ring_bytes);
  ByCard ends(ring_of(ring));
  send(*ends.left, pattern(200'000));
  Bytes to(200'000);
  const auto receive = [&] {
    ring.broken = true;
    for (std::size_t got = 0; got < to.size(); ends.left->wait({.readable = true}, 1ms))
      got += ends.right->receive_some(std::span(to).subspan(got));
  };
  CHECK_THROWS_AS(receive(), DeviceBytesError);
}

TEST_CASE("where the card takes no ring in memory of a GPU there is one in the host's, and it is said why") {
  const NewGpuCard fresh;
  gpu_card.refuses_rings = true;
  GpuMemory ring(limits::rdma_ring_bytes);
  ByCard ends(ring_of(ring));
  CHECK_THAT(ends.why_no_ring, Catch::Contains("error 524"));
  Bytes to(300'000);
  Receiving receiving(ends, to);
  send(*ends.left, pattern(300'000));
  receiving.finish();
  CHECK(to == pattern(300'000));
  CHECK(gpu_card.into_gpu == 0);
}

TEST_CASE("UCX that was not opened for it, or is too old, knows no memory of a GPU and names what is needed") {
  const auto& functions = rdma::plugin();
  const auto names_what_is_needed = [&](const char* why) {
    if (std::strstr(functions.library(), "UCX 1.13")) return std::strstr(why, "1.14 or newer is needed") != nullptr;
    return std::strstr(why, "or newer is needed") || std::strstr(why, "were not opened for memory of a GPU");
  };
  const auto devices = open_ucx(false);
  GpuMemory memory(limits::rdma_ring_bytes);
  std::array<char, rdma::why_bytes> why{};
  CHECK_FALSE(functions.know(devices->context(), memory.bytes().data(), memory.bytes().size(), rdma::MemoryKind::device,
                             why.data()));
  CHECK(names_what_is_needed(why.data()));
  why = {};
  const rdma::Events none{};
  CHECK_FALSE(functions.open_line(devices->context(), memory.bytes().size(), memory.bytes().data(), &none, why.data()));
  CHECK(names_what_is_needed(why.data()));
}

TEST_CASE("a trial of a card tells how fast it is, and does not believe bytes that arrive wrong") {
  const NewGpuCard fresh;
  GpuMemory from(limits::rdma_ring_bytes), ring(limits::rdma_ring_bytes);
  Bytes host(limits::rdma_ring_bytes);
  const auto by_gpu = [&](std::chrono::milliseconds time = 200ms) {
    return rdma::try_loop(open_gpu_card(), from.bytes(), ring_of(ring), time);
  };
  SECTION("a fast one") {
    CHECK(by_gpu() > 0);
    CHECK(rdma::try_loop(open_gpu_card(), host, nullptr, 2s) > 0);
    CHECK(gpu_card.from_gpu >= 8);
    CHECK(gpu_card.into_gpu >= 8);
  }
  SECTION("a slow one") {
    gpu_card.gpu_us = 10'000;
    const double rate = by_gpu();
    CHECK(rate > 0);
    CHECK(rate <= (256u << 10) / 10e-3);
  }
  SECTION("one that is so slow that nothing arrives in time") {
    gpu_card.gpu_us = 20'000;
    CHECK_THROWS_WITH(by_gpu(30ms), Catch::Contains("does not arrive"));
  }
  SECTION("wrong bytes") {
    gpu_card.garbles = true;
    CHECK_THROWS_WITH(by_gpu(), Catch::Contains("not what was put"));
  }
  SECTION("a source that it does not know") {
    gpu_card.refuses_sources = true;
    CHECK_THROWS_WITH(by_gpu(), Catch::Contains("error 524"));
  }
  SECTION("a ring that it does not know") {
    gpu_card.refuses_rings = true;
    CHECK_THROWS_WITH(by_gpu(), Catch::Contains("error 524"));
  }
  SECTION("a GPU that copies nothing") {
    ring.broken = true;
    CHECK_THROWS_AS(by_gpu(), DeviceBytesError);
  }
}

#endif
