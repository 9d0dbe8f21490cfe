// Memory that lines put straight from: what is registered, kept, bounded and forgotten. By an interface of the test's
// own; and once by UCX, whose TCP needs nothing registered.

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "frames.h"
#include "protocol/rdma/stable_memory.h"
#include "protocol/straight_sender.h"
#include "rdma_ends.h"

using namespace fargpu;
using namespace fargpu::test;
using namespace std::chrono_literals;
using rdma::StableMemory;

namespace {

struct Known {
  std::vector<std::pair<void*, std::size_t>> now;
  unsigned times = 0;
  bool possible = true;
  bool needed = true;
  rdma::MemoryKind kind{};
} known;

/// Devices that must know memory, and say what they know.
std::shared_ptr<rdma::OpenedDevices> devices() {
  static const rdma::Interface functions = [] {
    rdma::Interface all{};
    all.open = [](const char*, const char*, char*) { return reinterpret_cast<rdma::Context*>(&known); };
    all.close = [](rdma::Context*) {};
    all.knows_memory = [] { return known.needed; };
    all.know = [](rdma::Context*, void* address, std::size_t bytes, rdma::MemoryKind kind, char* why) -> rdma::Memory* {
      ++known.times;
      known.kind = kind;
      *why = 0;
      if (!known.possible) return nullptr;
      known.now.emplace_back(address, bytes);
      return reinterpret_cast<rdma::Memory*>(address);
    };
    all.forget = [](rdma::Context*, rdma::Memory* memory) {
      std::erase_if(known.now, [&](const auto& one) { return one.first == memory; });
    };
    return all;
  }();
  known = {};
  return std::make_shared<rdma::OpenedDevices>(functions, "", "");
}

std::span<const std::byte> part(const std::vector<std::byte>& block, std::size_t at, std::size_t bytes) {
  return std::span(block).subspan(at, bytes);
}

}  // namespace

TEST_CASE("stable memory is registered when it is first sent from, once, and forgotten with its owner's word") {
  const auto to = devices();
  std::vector<std::byte> block(1000);
  StableMemory memory;
  CHECK_FALSE(memory.hold(part(block, 0, 10), to));
  memory.add(block.data(), block.size());
  CHECK(known.times == 0);
  {
    const auto one = memory.hold(part(block, 0, 1000), to), other = memory.hold(part(block, 990, 10), to);
    REQUIRE((one && other));
    CHECK(one->known() == other->known());
    CHECK(known.now == std::vector<std::pair<void*, std::size_t>>{{block.data(), 1000}});
  }
  CHECK(memory.hold(part(block, 1, 1), to));
  CHECK(known.times == 1);
  CHECK(memory.registered_bytes() == 1000);
  CHECK_FALSE(memory.hold({block.data() + 991, 10}, to));  // ends beyond it
  CHECK_FALSE(memory.hold({block.data() - 1, 10}, to));
  memory.remove(block.data());
  CHECK(known.now.empty());
  CHECK(memory.registered_bytes() == 0);
  CHECK_FALSE(memory.hold(part(block, 0, 10), to));
  memory.remove(block.data());
}

TEST_CASE("stable memory is not taken back while something is sent from it") {
  const auto to = devices();
  std::vector<std::byte> block(1000);
  StableMemory memory;
  memory.add(block.data(), block.size());
  auto hold = memory.hold(part(block, 0, 10), to);
  std::atomic<bool> gone{false};
  auto removal = std::async(std::launch::async, [&] {
    memory.remove(block.data());
    gone = true;
  });
  while (memory.hold(part(block, 0, 10), to)) std::this_thread::yield();  // until the owner waits
  CHECK_FALSE(gone);
  CHECK(known.now.size() == 1);
  hold.reset();
  removal.get();
  CHECK(known.now.empty());
}

TEST_CASE("what is registered is bounded: what was not used for the longest goes, and what is in use stays") {
  const auto to = devices();
  std::vector<std::vector<std::byte>> blocks(4, std::vector<std::byte>(1000));
  StableMemory memory(2500);
  for (const auto& block : blocks) memory.add(block.data(), block.size());
  const auto knows = [](const std::vector<std::byte>& block) {
    return std::any_of(known.now.begin(), known.now.end(), [&](const auto& one) { return one.first == block.data(); });
  };
  memory.hold(part(blocks[0], 0, 10), to);
  memory.hold(part(blocks[1], 0, 10), to);
  memory.hold(part(blocks[0], 0, 10), to);
  memory.hold(part(blocks[2], 0, 10), to);
  CHECK((knows(blocks[0]) && !knows(blocks[1]) && knows(blocks[2])));
  CHECK(memory.registered_bytes() == 2000);
  const auto one = memory.hold(part(blocks[0], 0, 10), to), two = memory.hold(part(blocks[2], 0, 10), to);
  CHECK_FALSE(memory.hold(part(blocks[3], 0, 10), to));  // it is copied
  CHECK((knows(blocks[0]) && knows(blocks[2])));
  std::vector<std::byte> large(3000);
  memory.add(large.data(), large.size());
  CHECK_FALSE(memory.hold(part(large, 0, 10), to));
}

TEST_CASE("stable memory that cannot be registered is copied, and not tried again") {
  const auto to = devices();
  std::vector<std::byte> block(1000);
  StableMemory memory;
  memory.add(block.data(), block.size());
  known.possible = false;
  CHECK_FALSE(memory.hold(part(block, 0, 10), to));
  CHECK_FALSE(memory.hold(part(block, 0, 10), to));
  CHECK(known.times == 1);
  memory.remove(block.data());
}

TEST_CASE("where devices need know nothing, nothing is registered") {
  const auto to = devices();
  known.needed = false;
  std::vector<std::byte> block(1000);
  StableMemory memory;
  memory.add(block.data(), block.size());
  const auto hold = memory.hold(part(block, 0, 10), to);
  REQUIRE(hold);
  CHECK(hold->known() == nullptr);
  CHECK(known.times == 0);
}

TEST_CASE("memory of a GPU is registered as such, also where devices need know nothing of the host's") {
  const auto to = devices();
  known.needed = false;
  std::vector<std::byte> block(1000), other(1000);
  StableMemory memory;
  memory.add(block.data(), block.size(), rdma::MemoryKind::device);
  memory.add(other.data(), other.size());
  {
    const auto hold = memory.hold(part(block, 0, 10), to);
    REQUIRE(hold);
    CHECK(hold->known() != nullptr);
    CHECK(known.kind == rdma::MemoryKind::device);
    CHECK(memory.hold(part(other, 0, 10), to));
    CHECK(known.times == 1);
  }
  known.needed = true;
  CHECK(memory.hold(part(other, 0, 10), to));
  CHECK(known.kind == rdma::MemoryKind::host);
  memory.remove(block.data());
  CHECK(known.now.size() == 1);
  known.possible = false;
  memory.add(block.data(), block.size(), rdma::MemoryKind::device);
  CHECK_FALSE(memory.hold(part(block, 0, 10), to));  // and goes by the mirror
}

#ifdef FARGPU_UCX

TEST_CASE("what is lent goes from where it lies, and is needed until it has landed") {
  const bool in_memory = GENERATE(false, true);
  auto [left, right] = rdma_channel(in_memory);
  auto& straight = dynamic_cast<StraightSender&>(*left);
  Bytes sent = pattern(8u << 20, 5), last = pattern(8u << 20, 6);
  const bool stable = GENERATE(true, false);
  if (stable) StableMemory::of_process().add(sent.data(), sent.size());
  std::atomic<bool> done{false};
  auto received = std::async(std::launch::async, [&far = *right, &done] {
    Bytes all, buffer(1u << 20);
    while (all.size() < (16u << 20)) {
      append(all, std::span(buffer).first(far.receive_some(buffer)));
      far.wait({.readable = true}, 1ms);
    }
    while (!done) far.wait({.readable = true}, 1ms);
    return all;
  });
  straight.lend(sent);
  send(*left, sent);
  straight.lend({});
  while (straight.needs(sent)) left->wait({.readable = true}, 1ms);
  Bytes wanted = sent;
  std::fill(sent.begin(), sent.end(), std::byte{9});  // nobody needs it
  if (stable) StableMemory::of_process().remove(sent.data());
  straight.lend(last);  // which is not known to stay: it is copied
  send(*left, last);
  CHECK_FALSE(straight.needs(last));
  append(wanted, std::exchange(last, Bytes(last.size())));
  left->let_out();
  done = true;
  CHECK((received.get() == wanted));
}

TEST_CASE("the end of a channel lets go of what is lent") {
  auto [left, right] = rdma_channel();
  Bytes sent = pattern(1u << 20, 5);
  StableMemory::of_process().add(sent.data(), sent.size());
  dynamic_cast<StraightSender&>(*left).lend(sent);
  const Channel::Bytes piece(sent);
  CHECK(left->send_some(std::span(&piece, 1)) > 0);  // and the other end does nothing
  CHECK(dynamic_cast<StraightSender&>(*left).needs(sent));
  left->close();
  StableMemory::of_process().remove(sent.data());
}

#endif
