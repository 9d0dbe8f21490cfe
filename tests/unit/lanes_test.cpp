// Lanes by themselves: chunks over several connections.

#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "frames.h"
#include "protocol/errors.h"
#include "protocol/lanes.h"
#include "protocol/resumable_channel.h"

using namespace fargpu;
using namespace fargpu::test;

namespace {

std::uint32_t chunks_of(std::size_t bytes) {
  return static_cast<std::uint32_t>((bytes - 1) / limits::lane_chunk_bytes + 1);
}

/// Keeps what arrives for transfer 1; wants nothing else.
class Kept final : public ChunkHandler {
 public:
  explicit Kept(std::size_t bytes) : bytes(bytes) {}
  std::span<std::byte> place(Chunk chunk, std::size_t size) override {
    if (chunk.transfer != 1) return {};
    return std::span(bytes).subspan(chunk.number * limits::lane_chunk_bytes, size);
  }
  void landed(Chunk, std::span<std::byte> part, bool) override {
    const std::lock_guard lock(mutex_);
    landed_ += part.size();
    changed_.notify_all();
  }
  void lost(const std::string& why) noexcept override {
    const std::lock_guard lock(mutex_);
    why_ = why;
    changed_.notify_all();
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return landed_ >= count || !why_.empty(); });
  }
  std::string wait_lost() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !why_.empty(); });
    return why_;
  }
  std::vector<std::byte> bytes;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t landed_ = 0;
  std::string why_;
};

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> sockets() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  return {make_socket_channel(ends[0], "left"), make_socket_channel(ends[1], "right")};
}

}  // namespace

TEST_CASE("chunks arrive wherever a lane is free, and nobody's are thrown away") {
  const std::size_t size = 5 * limits::lane_chunk_bytes + 77;
  Kept near(0), far(size);
  Lanes from(near), to(far);
  for (int i = 0; i < 3; ++i) {
    auto [left, right] = sockets();
    from.add(std::move(left), 0, 0);
    to.add(std::move(right), 0, 0);
  }
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 1000);
  std::atomic<int> sent{0};
  for (std::uint32_t n = 0; n < chunks_of(size); ++n) {
    const auto part = std::span<const std::byte>(bytes)
                          .subspan(n * limits::lane_chunk_bytes)
                          .first(std::min(limits::lane_chunk_bytes, size - n * limits::lane_chunk_bytes));
    from.send({2, n}, part, {.sent = [] {}, .unreadable = {}});
    from.send({1, n}, part, {.sent = [&] { ++sent; }, .unreadable = [&] { --sent; }});
  }
  far.wait_for(size);
  CHECK(far.bytes == bytes);
  from.close();
  CHECK(sent == 6);
}

TEST_CASE("chunks of a lane that is resumed come as they were, though their memory changes when they are told of") {
  constexpr std::size_t chunks = 24, size = chunks * limits::lane_chunk_bytes;
  Kept near(0), far(size);
  const auto pair = [] { return make_memory_channel(256u << 10); };
  auto [one, other] = pair();
  std::shared_ptr<Channel> line = std::move(one);
  const auto left = std::make_shared<ResumableChannel>(line, limits::resume_lane_log_bytes, ResumableChannel::Hooks{});
  const auto right =
      std::make_shared<ResumableChannel>(std::move(other), limits::resume_lane_log_bytes, ResumableChannel::Hooks{});
  Lanes from(near), to(far);
  from.add(left, 0, 0);
  to.add(right, 0, 0);
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 1000);
  const std::vector<std::byte> meant = bytes;
  std::atomic<std::size_t> told{0};
  for (std::uint32_t n = 0; n < chunks; ++n) {
    const auto part = std::span(bytes).subspan(n * limits::lane_chunk_bytes, limits::lane_chunk_bytes);
    from.send({1, n}, part,
              {.sent =
                   [&told, part] {
                     std::fill(part.begin(), part.end(), std::byte{0x5a});
                     ++told;
                   },
               .unreadable = {}});
  }
  for (std::uint32_t epoch = 1; epoch <= 8; ++epoch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    line->close();
    const std::uint64_t near_has = left->fence(), far_has = right->fence();
    auto [again, there] = pair();
    line = std::move(again);
    const std::shared_ptr<Channel> end = std::move(there);
    right->resume(end, epoch, near_has);
    left->resume(line, epoch, far_has);
    std::thread catching_up([&] { right->catch_up(end); });
    left->catch_up(line);
    catching_up.join();
  }
  far.wait_for(size);
  while (told < chunks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(far.bytes == meant);
}

TEST_CASE("a connection that comes when the lanes are closed is closed, whoever else has it") {
  Kept kept(0);
  Lanes lanes(kept);
  lanes.close();
  auto [left, right] = sockets();
  const std::shared_ptr<Channel> held = std::move(left);
  lanes.add(held, 0, 0);
  std::array<std::byte, 8> buffer;
  const auto read = [&, &far = *right] {
    if (far.wait({.readable = true}, std::chrono::seconds(5)).readable) far.receive_some(buffer);
  };
  CHECK_THROWS_AS(read(), ChannelClosed);
}

TEST_CASE("bytes that cannot be read are told, and the lane goes on") {
  Kept near(0), far(2 * limits::lane_chunk_bytes);
  Lanes from(near), to(far);
  auto [left, right] = sockets();
  from.add(std::move(left), 0, 0);
  to.add(std::move(right), 0, 0);
  constexpr std::size_t page = 4096;
  auto* const memory =
      static_cast<std::byte*>(::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(memory, 3, 4 * page);
  ::mprotect(memory + 2 * page, 2 * page, PROT_NONE);
  std::string said;
  const Lanes::Told note{.sent = [&] { said += "sent "; },
                         .unreadable = [&] { said += "unreadable "; }};  // of one lane, on its thread
  from.send({1, 0}, {memory, 4 * page}, note);
  from.send({1, 1}, {memory, page}, note);
  far.wait_for(5 * page);
  CHECK(far.bytes[3 * page] == std::byte{0});  // how much went before the bad page is the system's affair
  CHECK(far.bytes[limits::lane_chunk_bytes] == std::byte{3});
  from.close();
  CHECK(said == "unreadable sent sent ");
  ::munmap(memory, 4 * page);
}

TEST_CASE("chunks are compressed where that is wanted, and arrive as they were") {
  const std::size_t size = 3 * limits::lane_chunk_bytes + 77777;
  Kept near(0), far(size);
  Lanes from(near, Compression::always), to(far);
  for (int i = 0; i < 2; ++i) {
    auto [left, right] = sockets();
    from.add(std::move(left), 0, 0);
    to.add(std::move(right), 0, 0);
  }
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i / 100);
  for (std::uint32_t n = 0; n < chunks_of(size); ++n) {
    const std::size_t begin = n * limits::lane_chunk_bytes;
    from.send({1, n},
              std::span<const std::byte>(bytes).subspan(begin, std::min(limits::lane_chunk_bytes, size - begin)),
              {.sent = [] {}, .unreadable = {}});
  }
  far.wait_for(size);
  CHECK(far.bytes == bytes);
  from.close();
  to.close();
  CHECK(to.bytes_received() < size / 2);
  CHECK(to.bytes_received() == from.bytes_sent());
}

TEST_CASE("what does not belong on a lane ends it") {
  Kept kept(1000);
  Lanes lanes(kept);
  auto [left, right] = sockets();
  lanes.add(std::move(right), 0, 0);
  FrameHeader header;
  header.kind = FrameKind::data;
  header.sequence = 1;
  header.subject = 1;
  header.bulk_bytes = 8;
  SECTION("another kind of frame") { header.kind = FrameKind::call; }
  SECTION("a message") { header.message_bytes = 8; }
  SECTION("a chunk that is too large") { header.bulk_bytes = limits::lane_chunk_bytes + 8; }
  SECTION("no bytes at all") { header.bulk_bytes = 0; }
  SECTION("a frame out of turn") { header.sequence = 2; }
  std::vector<std::byte> frame(sizeof header + header.message_bytes + header.bulk_bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  const Channel::Bytes piece(frame);
  try {
    send_all(*left, std::span(&piece, 1));
  } catch (const ChannelClosed&) {}
  CHECK_FALSE(kept.wait_lost().empty());
}

TEST_CASE("a lane that stalls is waited for, however much the others bring") {
  constexpr std::uint32_t chunks = limits::lane_gaps_max + 200;
  Kept kept(8);
  Lanes lanes(kept);
  auto [slow, slow_end] = sockets();
  auto [fast, fast_end] = sockets();
  lanes.add(std::move(slow_end), 0, 0);
  lanes.add(std::move(fast_end), 0, 0);
  const auto send = [](Channel& channel, std::uint32_t sequence, std::uint32_t ordinal) {
    FrameHeader header;
    header.kind = FrameKind::data;
    header.sequence = sequence;
    header.subject = 2;  // which nobody wants
    header.detail = ordinal;
    header.bulk_bytes = 8;
    std::array<std::byte, sizeof header + 8> frame{};
    std::memcpy(frame.data(), &header, sizeof header);
    const Channel::Bytes piece(frame);
    send_all(channel, std::span(&piece, 1));
  };
  // The first chunk is on its way on the slow lane, while the other one brings all the rest.
  std::thread sender([&, &channel = *fast] {
    for (std::uint32_t n = 2; n <= chunks; ++n) send(channel, n - 1, n);
  });
  CHECK_FALSE(lanes.wait_taken(1, std::chrono::milliseconds(200)));
  send(*slow, 1, 1);
  CHECK(lanes.wait_taken(chunks, std::chrono::seconds(10)));
  sender.join();
  lanes.close();
}

TEST_CASE("the end of a connection is told") {
  Kept kept(0);
  Lanes lanes(kept);
  auto [left, right] = sockets();
  lanes.add(std::move(right), 0, 0);
  left->close();
  CHECK_FALSE(kept.wait_lost().empty());
}
