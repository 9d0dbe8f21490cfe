// Nothing that has returned success is refused later: calls that must wait at the worker have room there, or wait in
// the program.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <vector>

#include "calls_context.capnp.h"
#include "calls_stream.capnp.h"
#include "client/connect/dial_error.h"
#include "hand_made_client.h"
#include "protocol/credit.h"

using namespace fargpu;
using namespace std::chrono_literals;
using test::Gate;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

constexpr std::size_t piece = 256u << 10, pieces = 200;
static_assert(pieces * piece > limits::credit_bytes);

/// Many copies, each from memory that is used again at once, on a thread of their own.
struct Copies {
  explicit Copies(CUcontext context, CUstream on = nullptr) : stream(on), bytes(piece) {
    REQUIRE(cuMemAlloc_v2(&memory, pieces * piece) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(memory, 0xee, pieces * piece) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    begin = [this, context] {
      done = std::async(std::launch::async, [this, context] {
        CUresult result = cuCtxSetCurrent(context);
        for (std::size_t i = 0; i < pieces && result == CUDA_SUCCESS; ++i, ++given) {
          std::fill(bytes.begin(), bytes.end(), static_cast<unsigned char>(i));
          result = cuMemcpyHtoDAsync_v2(memory + i * piece, bytes.data(), piece, stream);
        }
        return result;
      });
    };
  }
  /// The credit is used up, and the thread waits.
  void full() {
    const std::size_t expected =
        credit_share(limits::credit_bytes, CreditShare::bytes) / (piece + 2 * limits::credit_call_bytes);
    for (int i = 0; i < 2000 && given < expected; ++i) std::this_thread::sleep_for(5ms);
    CHECK(given >= expected);
    CHECK(done.wait_for(200ms) == std::future_status::timeout);
    CHECK(given < pieces);
  }
  void check() {
    std::vector<unsigned char> now(pieces * piece);
    REQUIRE(cuMemcpyDtoH_v2(now.data(), memory, now.size()) == CUDA_SUCCESS);
    for (std::size_t i = 0; i < pieces; ++i)
      REQUIRE(std::all_of(now.begin() + static_cast<std::ptrdiff_t>(i * piece),
                          now.begin() + static_cast<std::ptrdiff_t>((i + 1) * piece),
                          [i](unsigned char byte) { return byte == static_cast<unsigned char>(i); }));
  }

  const CUstream stream;
  std::vector<unsigned char> bytes;
  CUdeviceptr memory = 0;
  std::atomic<std::size_t> given{0};
  std::function<void()> begin;
  std::future<CUresult> done;
};

/// A copy of so many bytes, with or without credit, that nobody waits for.
void copy(HandMadeClient& client, std::size_t bytes, bool credit) {
  MessageWriter writer;
  auto in = writer.root<wire::CopyIn>();
  in.setStream(1);
  in.initCopy().setWidth(bytes);
  in.getCopy().setHeight(1);
  in.getCopy().setDepth(1);
  in.getCopy().initTarget().getPlace().setDevice(0x1000'0000'0000);
  FrameHeader header = client.call(Opcode::copyIn, false);
  if (credit) header.detail |= call_takes_credit;
  client.send(header, writer.finish(), std::vector<std::byte>(bytes));
}

void host_function(HandMadeClient& client) {
  client.send_call<wire::HostFunction>(
      Opcode::hostFunction,
      [](auto in) {
        in.setStream(1);
        in.setCallback(1);
      },
      {}, false);
}

void back(HandMadeClient& client) {
  client.send_call<wire::BackMemory>(Opcode::backMemory, [](auto in) {
    in.setAddress(0x1000'0000'0000);
    in.setBytes(4u << 20);
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
}

CUresult synchronize(HandMadeClient& client) {
  client.send_call<wire::CuStreamSynchronize>(Opcode::cuStreamSynchronize, [](auto in) { in.setHStream(1); });
  return client.reply();
}

constexpr std::uint64_t small_budget = 1u << 20;  // for which the least is granted
constexpr std::size_t part = 8u << 10;

}  // namespace

TEST_CASE("credit: a program whose copies wait for a host function waits itself, and the function runs") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  Copies copies(remote.context, stream);
  Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  SECTION("which is under way") {
    gate.wait_entered();
    copies.begin();
    copies.full();
    // All else goes on.
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    CUdeviceptr other = 0;
    CHECK(cuMemAlloc_v2(&other, 64u << 20) == CUDA_SUCCESS);
    gate.open();
  }
  SECTION("which nobody asks for") {
    gate.open();
    copies.begin();
  }
  CHECK(copies.done.get() == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  copies.check();
}

TEST_CASE("credit: a program that has no turn waits, and loses nothing") {
  test::Turnstile turns;
  RemoteContext remote(test::Remote::default_config(), {}, &turns);
  turns.tell({.granted = true, .quiet = true});
  Copies copies(remote.context);
  turns.tell({});
  copies.begin();
  copies.full();
  turns.tell({.granted = true, .quiet = true});
  CHECK(copies.done.get() == CUDA_SUCCESS);
  copies.check();
}

TEST_CASE("credit: who waits for some hears of the session's loss") {
  RemoteContext remote;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  Copies copies(remote.context, stream);
  Gate gate;
  REQUIRE(cuLaunchHostFunc(stream, Gate::pass, &gate) == CUDA_SUCCESS);
  gate.wait_entered();
  copies.begin();
  copies.full();
  remote.cut();
  CHECK(copies.done.get() == CUDA_ERROR_DEVICE_UNAVAILABLE);
  gate.open();
}

TEST_CASE("credit: a call that has it finds room though there is none left, and others do not") {
  HandMadeClient client(small_budget);
  REQUIRE(client.credit_bytes() == limits::credit_bytes_min);
  client.open_context();
  back(client);
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
    in.setAddress(0x100'0000);
    in.setBytes(small_budget - limits::credit_bytes_min - 2048);  // which the block takes itself
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  host_function(client);
  const std::uint64_t written = fake::FakeDriver::instance()->calls("cuMemcpyHtoDAsync_v2");
  constexpr int times = 7;
  static_assert(times * (part + 1024) < limits::credit_bytes_min);
  for (int i = 0; i < times; ++i) copy(client, part, true);
  copy(client, part, false);
  MessageWriter done;
  done.root<wire::Control>().initCallbackDone().setCallback(1);
  bool called = false;
  client.await([&](wire::Control::Reader control) {
    called |= control.isCallback();
    return called && client.late_errors() == 1;
  });
  client.tell(done.finish());
  CHECK(synchronize(client) == CUDA_SUCCESS);
  CHECK(client.late_errors() == 1);
  CHECK(fake::FakeDriver::instance()->calls("cuMemcpyHtoDAsync_v2") == written + times);
  while (client.settled() < times * part)
    client.await([](wire::Control::Reader control) { return control.isSettled(); });
}

TEST_CASE("credit: a client that takes more than it has is cut off") {
  HandMadeClient client(small_budget);
  client.open_context();
  back(client);
  host_function(client);
  SECTION("at once") {
    copy(client, 1u << 20, true);  // alone it may be larger
    copy(client, part, true);
  }
  SECTION("little by little") {
    for (std::uint64_t sent = 0; sent <= limits::credit_bytes_min; sent += part) copy(client, part, true);
  }
  CHECK(client.worker_end().find("the session's credit is 65536") != std::string::npos);
}

TEST_CASE("credit: a session for whose calls there is no room does not begin") {
  auto [near, far] = make_memory_channel();
  std::thread worker([far = std::move(far)] {
    server::AttachOptions options;
    options.session.devices = {0};
    options.session.one_process = true;
    options.session.host_bytes_max = limits::credit_bytes_min - 1;
    const auto attach = receive_control(*far, limits::lease_timeout);
    server::serve_session(*far, attach, fake::FakeDriver::instance().table(), options);
  });
  std::string refused;
  try {
    (void)client::attach(std::move(near), {}, test::Remote::default_config(), "the worker", nullptr);
  } catch (const client::DialError& error) {
    refused = error.what();
  }
  worker.join();
  CHECK(refused.find("raise host_bytes_max of fargpud") != std::string::npos);
}

TEST_CASE("credit: memory that is fetched for copies waits for room, one by one where there is none") {
  HandMadeClient client(small_budget);
  client.open_context();
  back(client);
  client.send_call<wire::OpenHostBlock>(Opcode::openHostBlock, [&](auto in) {
    in.setAddress(0x100'0000);
    in.setBytes(small_budget - limits::credit_bytes_min - 2048);  // which the block takes itself
  });
  REQUIRE(client.reply() == CUDA_SUCCESS);
  for (std::uint64_t stream = 2; stream < 5; ++stream) {
    client.send_call<wire::CuStreamCreate>(
        Opcode::cuStreamCreate, [&](auto in) { in.setPhStream(Handle(HandleKind::stream, stream, 1).value()); }, {},
        false);
    client.send_call<wire::CopyIn>(
        Opcode::copyIn,
        [&](wire::CopyIn::Builder in) {
          in.setStream(Handle(HandleKind::stream, stream, 1).value());
          encode({part}, {.kind = CopySide::Kind::pull, .place = 0x100'0000},
                 {.kind = CopySide::Kind::device, .place = 0x1000'0000'0000}, in.initCopy());
        },
        {}, false);
  }
  const std::vector<std::byte> bytes(part);
  for (std::uint64_t expected = 1; expected < 4; ++expected) {
    std::uint64_t pull = 0;
    client.await([&](wire::Control::Reader control) {
      if (control.isPull()) pull = control.getPull().getPull();
      return control.isPull();
    });
    CHECK(pull == expected);
    std::this_thread::sleep_for(20ms);
    MessageWriter answer;
    answer.root<wire::Control>().initPulled().setPull(pull);
    client.tell(answer.finish(), bytes);
  }
  client.send_call<wire::CuCtxSynchronize>(Opcode::cuCtxSynchronize, [](auto) {});
  CHECK(client.reply() == CUDA_SUCCESS);
  CHECK(client.late_errors() == 0);
}

TEST_CASE("credit: where a stream stands still, calls go on behind more copies than there is staging memory for") {
  RemoteContext remote;
  constexpr std::size_t bytes = 64 << 10, count = 600;  // 37 MiB, and more than the 32 MiB of staging
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, bytes * count) == CUDA_SUCCESS);
  std::vector<unsigned char> values(bytes);
  remote.driver->pause(true);
  for (std::size_t i = 0; i < count; ++i) {
    std::fill(values.begin(), values.end(), static_cast<unsigned char>(i));
    REQUIRE(cuMemcpyHtoDAsync_v2(memory + i * bytes, values.data(), bytes, stream) == CUDA_SUCCESS);
  }
  auto asked = std::async(std::launch::async, [&] {
    std::size_t free = 0, total = 0;
    CHECK(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    return cuMemGetInfo_v2(&free, &total);
  });
  const bool in_time = asked.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  remote.driver->pause(false);
  CHECK(in_time);
  CHECK(asked.get() == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  for (const std::size_t i : {std::size_t{0}, count / 2, count - 60, count - 1}) {
    REQUIRE(cuMemcpyDtoH_v2(values.data(), memory + i * bytes, bytes) == CUDA_SUCCESS);
    CHECK(
        std::all_of(values.begin(), values.end(), [&](auto value) { return value == static_cast<unsigned char>(i); }));
  }
}

TEST_CASE("credit: a thread that queues pinned memory behind work that it ends itself gets there") {
  RemoteContext remote;
  constexpr std::size_t bytes = 100 << 10, count = 700;  // 68 MiB: more than credit and staging together
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  void* source = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, bytes * count) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocHost_v2(&source, bytes * count) == CUDA_SUCCESS);
  auto* const values = static_cast<unsigned char*>(source);
  for (std::size_t i = 0; i < count; ++i) std::fill_n(values + i * bytes, bytes, static_cast<unsigned char>(i));
  remote.driver->pause(true);
  auto queued = std::async(std::launch::async, [&] {
    CUresult result = cuCtxSetCurrent(remote.context);
    for (std::size_t i = 0; i < count && result == CUDA_SUCCESS; ++i)
      result = cuMemcpyHtoDAsync_v2(memory + i * bytes, values + i * bytes, bytes, stream);
    return result;
  });
  const bool in_time = queued.wait_for(20s) == std::future_status::ready;
  remote.driver->pause(false);
  CHECK(in_time);
  CHECK(queued.get() == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  std::vector<unsigned char> now(bytes * count);
  REQUIRE(cuMemcpyDtoH_v2(now.data(), memory, now.size()) == CUDA_SUCCESS);
  CHECK(std::equal(now.begin(), now.end(), values));
  CHECK(cuMemFreeHost(source) == CUDA_SUCCESS);
}
