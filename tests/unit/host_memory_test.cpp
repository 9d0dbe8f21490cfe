// Pinned memory, where the connection takes no more.

#include "client/memory/host_memory.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "client/objects/thread.h"
#include "lone_session.h"
#include "operations.capnp.h"
#include "protocol/handshake.h"

using namespace fargpu;
using namespace fargpu::client;
using namespace fargpu::test;

namespace {

// A block of the program that kernels see.
struct Block {
  Block(LoneSession& lone, Context& context, std::size_t count) : bytes(count) {
    HostMemory& memory = lone.session().host_memory;
    Thread& thread = Thread::current();
    REQUIRE(memory.add(thread, context, bytes.data(), bytes.size(), 0) == CUDA_SUCCESS);
    std::thread worker([&] { lone.reply(lone.next_call()); });
    std::uint64_t device_address = 0;
    CHECK(memory.map(thread, address(), device_address) == CUDA_SUCCESS);
    worker.join();
  }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(bytes.data()); }
  std::vector<unsigned char> bytes;
};

}  // namespace

TEST_CASE("deliveries arrive while a thread waits for the worker to take changes") {
  LoneSession lone(Window{0x2b5d'4000'0000, 64u << 20});
  Context context;
  context.calls = &lone.session().calls;
  // More than the connection takes at once.
  Block changed(lone, context, 1u << 20), other(lone, context, 4096);
  std::fill(changed.bytes.begin(), changed.bytes.end(), 7);
  std::atomic<bool> sent{false};
  std::thread sender([&] {
    lone.session().host_memory.send_changes(Thread::current());
    sent = true;
  });
  // The worker reads nothing until its own frame has been taken: both connections are full.
  while (lone.worker().wait({.readable = true}, std::chrono::seconds(10)).readable == false) {}
  lone.push([&](wire::Control::Builder control) { control.initDeliver().setAddress(other.address()); },
            Bytes(64, std::byte{9}));
  // What follows it has been read once it has arrived.
  Thread& thread = Thread::current();
  lone.push([&](wire::Control::Builder control) {
    auto error = control.initLateError();
    error.setThread(thread.id());
    error.setResult(CUDA_ERROR_UNKNOWN);
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  CUresult behind = CUDA_SUCCESS;
  while ((behind = thread.take_late_error()) == CUDA_SUCCESS && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(behind == CUDA_ERROR_UNKNOWN);
  CHECK(other.bytes[63] == 9);
  CHECK_FALSE(sent);
  lone.next_call();
  sender.join();
  lone.session().host_memory.context_closed(Thread::current(), context);
}
