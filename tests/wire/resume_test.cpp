// Connections of a session break, at any byte and again and again, and the program notices nothing but time: no call is
// executed twice or never, no callback comes twice or not, and every byte is in its place.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "fixture.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "tests/unit/rdma_ends.h"
#include "tests/wrapped_channel.h"
#include "wrap.h"

using namespace fargpu;
using namespace std::chrono_literals;

namespace {

/// Sessions resume while it lives.
struct Resuming {
  explicit Resuming(std::chrono::milliseconds time = 20s) { test::resume_time = time; }
  ~Resuming() { test::resume_time = 0ms; }
};

/// When connections break: each after so many bytes, either way.
class Cuts {
 public:
  /// The next connections last for so many bytes, in turn; those after these for ever.
  void plan(std::vector<std::size_t> bytes) {
    const std::lock_guard lock(mutex_);
    plan_ = std::move(bytes);
    next_ = 0;
  }
  std::unique_ptr<Channel> wrap(std::unique_ptr<Channel> channel) {
    const std::lock_guard lock(mutex_);
    return std::make_unique<Line>(std::move(channel), next_ < plan_.size() ? plan_[next_++] : forever, *this);
  }
  std::atomic<std::size_t> moved{0};
  std::atomic<unsigned> breaks{0};

 private:
  static constexpr std::size_t forever = std::size_t{1} << 40;
  class Line final : public test::WrappedChannel {
   public:
    Line(std::unique_ptr<Channel> channel, std::size_t bytes, Cuts& cuts)
        : WrappedChannel(std::move(channel)), left_(bytes), cuts_(cuts) {}
    // What was sent last is perhaps there, and perhaps not.
    std::size_t send_some(std::span<const Bytes> pieces) override {
      std::vector<Bytes> some;
      for (std::size_t room = left_; const Bytes& piece : pieces) {
        some.push_back(piece.first(std::min(room, piece.size())));
        room -= some.back().size();
      }
      if (left_ == 0) cut();
      const std::size_t taken = WrappedChannel::send_some(some);
      count(taken);
      return taken;
    }
    std::size_t receive_some(std::span<std::byte> buffer) override {
      if (left_ == 0) cut();
      const std::size_t taken = WrappedChannel::receive_some(buffer.first(std::min<std::size_t>(buffer.size(), left_)));
      count(taken);
      return taken;
    }

   private:
    void count(std::size_t bytes) {
      cuts_.moved += bytes;
      std::size_t left = left_;
      while (!left_.compare_exchange_weak(left, left - std::min(left, bytes))) {}
      if (bytes > 0 && left <= bytes) {
        ++cuts_.breaks;
        close();
      }
    }
    [[noreturn]] void cut() {
      close();
      throw ChannelClosed("cut");
    }
    std::atomic<std::size_t> left_;
    Cuts& cuts_;
  };
  std::mutex mutex_;
  std::vector<std::size_t> plan_;
  std::size_t next_ = 0;
};

client::Config with_lanes(unsigned lanes) {
  client::Config config = test::Remote::default_config();
  config.lanes = lanes;
  if (config.transport == client::Transport::shm) config.transport = client::Transport::automatic;
  return config;
}

#define OK(call) REQUIRE((call) == CUDA_SUCCESS)

std::vector<unsigned> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned> result(count);
  for (unsigned& number : result) number = static_cast<unsigned>(random());
  return result;
}

// A bit of everything, whose results tell whether each call was executed once. `bytes`: of each copy.
void run_program(std::size_t bytes) {
  const std::size_t words = bytes / 4;
  const auto in = numbers(words, 3);
  std::vector<unsigned> out(words);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, bytes));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  OK(cuModuleLoadData(&module, test::kernels));
  OK(cuModuleGetFunction(&fill, module, "fill32"));
  OK(cuMemcpyHtoD_v2(memory, in.data(), bytes));
  OK(cuMemcpyDtoH_v2(out.data(), memory, bytes));
  CHECK(in == out);
  // Each launch writes one word: all of them, in their order.
  for (unsigned i = 0; i < 50; ++i) {
    CUdeviceptr place = memory + 4 * (i / 2);
    unsigned count = 1, value = 100 + i;
    void* arguments[] = {&place, &count, &value};
    OK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  }
  unsigned* pinned = nullptr;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), bytes, 0));
  static std::atomic<unsigned> called;
  called = 0;
  for (unsigned i = 0; i < 5; ++i) {
    OK(cuMemcpyDtoHAsync_v2(pinned, memory, bytes, stream));
    OK(cuLaunchHostFunc(
        stream,
        [](void* of) {
          ++called;
          ++*static_cast<unsigned*>(of);
        },
        pinned));
    OK(cuMemcpyHtoDAsync_v2(memory, pinned, bytes, stream));
  }
  OK(cuStreamSynchronize(stream));
  CHECK(called == 5);
  OK(cuMemcpyDtoH_v2(out.data(), memory, bytes));
  CHECK(out[0] == 101 + 5);
  for (unsigned i = 1; i < 25; ++i) CHECK(out[i] == 101 + 2 * i);
  CHECK(std::memcmp(out.data() + 25, in.data() + 25, bytes - 100) == 0);
  // As many allocations as were made, and no more, are there to be freed.
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr more = 0;
    OK(cuMemAlloc_v2(&more, 5000));
    OK(cuMemFree_v2(more));
  }
  OK(cuMemFreeHost(pinned));
  OK(cuModuleUnload(module));
  OK(cuStreamDestroy_v2(stream));
  OK(cuMemFree_v2(memory));
}

bool all_places() {
  const char* const wanted = std::getenv("FARGPU_FAULTS");
  return wanted && std::strcmp(wanted, "all") == 0;
}

std::size_t moved_uncut(unsigned lanes, std::size_t bytes) {
  Cuts cuts;
  const test::Wrapping wrapping([&](auto channel) { return cuts.wrap(std::move(channel)); });
  test::RemoteContext remote(with_lanes(lanes));
  const std::size_t before = cuts.moved;
  run_program(bytes);
  return cuts.moved - before;
}

/// From the beginning of a session: before that, nothing can be resumed.
std::size_t attach_bytes() {
  Cuts cuts;
  const test::Wrapping wrapping([&](auto channel) { return cuts.wrap(std::move(channel)); });
  test::RemoteContext remote(with_lanes(0));
  return cuts.moved;
}

}  // namespace

TEST_CASE("a session goes on when its connection breaks at any byte") {
  const Resuming resuming;
  const std::size_t begin = attach_bytes(), all = moved_uncut(0, 8000);
  const std::size_t step = all_places() ? 1 : std::max<std::size_t>(1, all / 60);
  std::size_t tried = 0, broken = 0;
  for (std::size_t n = 1; n <= all; n += step) {
    CAPTURE(n);
    Cuts cuts;
    cuts.plan({begin + n});
    const test::Wrapping wrapping([&](auto channel) { return cuts.wrap(std::move(channel)); });
    test::RemoteContext remote(with_lanes(0));
    run_program(8000);
    ++tried;
    broken += cuts.breaks;
  }
  CHECK(broken > tried * 3 / 4);  // not each run moves as many bytes
}

TEST_CASE("a session goes on when its connections break again and again, while they are resumed too") {
  const Resuming resuming;
  const std::size_t begin = attach_bytes();
  for (unsigned seed = 1; seed <= (all_places() ? 200u : 10u); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::size_t> plan{begin + 1 + random() % 2000};
    for (int i = 0; i < 40; ++i) plan.push_back(1 + random() % 3000);
    Cuts cuts;
    cuts.plan(plan);
    const test::Wrapping wrapping([&](auto channel) { return cuts.wrap(std::move(channel)); });
    test::RemoteContext remote(with_lanes(0));
    run_program(20'000);
    CHECK(cuts.breaks > 5);
  }
}

TEST_CASE("copies on lanes go on when their connections break") {
  const Resuming resuming;
  constexpr std::size_t bytes = 6u << 20;
  const std::size_t begin = attach_bytes();
  for (unsigned seed = 1; seed <= (all_places() ? 60u : 4u); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::size_t> plan{begin + 1 + random() % 3000};
    for (int i = 0; i < 30; ++i) plan.push_back(3000 + random() % (2u << 20));
    Cuts cuts;
    cuts.plan(plan);
    const test::Wrapping wrapping([&](auto channel) { return cuts.wrap(std::move(channel)); });
    test::RemoteContext remote(with_lanes(3));
    run_program(bytes);
    CHECK(cuts.breaks > 5);
    auto& lanes = remote.session().lanes;
    CHECK(lanes.bytes_sent() + lanes.content_counts().known_bytes >= bytes);
  }
}

namespace {

/// Sessions by RDMA, whose clients take TCP as well or do not.
struct ByRdma {
  explicit ByRdma(bool only) { test::only_rdma = only; }
  ~ByRdma() {
    test::rail_is_down = false;
    test::only_rdma = true;
  }
};

/// Whether these sessions do. Those of wire.ucx do.
bool go_by_rdma() { return with_lanes(0).transport == client::Transport::rdma; }

}  // namespace

TEST_CASE("a session by RDMA goes on by RDMA when its connection breaks, and so do its lanes") {
  if (!go_by_rdma()) return;
  const Resuming resuming;
  const ByRdma any(false);
  test::RemoteContext remote(with_lanes(2));
  run_program(6u << 20);  // has lanes from here on
  for (unsigned i = 0; i < 5; ++i) {
    CAPTURE(i);
    const unsigned before = remote.returns;
    {
      const std::jthread cutting([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
        remote.cut_all();
      });
      run_program(6u << 20);
    }
    for (int waited = 0; remote.returns < before + 2 && waited < 1000; ++waited) std::this_thread::sleep_for(10ms);
    CHECK(remote.returns >= before + 2);
    run_program(6u << 20);
    CHECK(remote.session().medium().rfind("RDMA", 0) == 0);
  }
}

TEST_CASE("a session by RDMA goes on by TCP while the rail is down, if its client allows that") {
  if (!go_by_rdma()) return;
  const Resuming resuming;
  const ByRdma any(false);
  test::RemoteContext remote(with_lanes(2));
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    {
      const std::jthread failing([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
        test::rail_is_down = true;
      });
      run_program(6u << 20);
    }
    run_program(8000);
    CHECK(remote.session().medium() == "TCP");
    test::rail_is_down = false;
    remote.cut_all();
    run_program(6u << 20);
    CHECK(remote.session().medium().rfind("RDMA", 0) == 0);
  }
}

TEST_CASE("a session that takes nothing but RDMA waits until the rail is up again") {
  if (!go_by_rdma()) return;
  const Resuming resuming;
  const ByRdma only(true);
  test::RemoteContext remote(with_lanes(0));
  test::rail_is_down = true;
  const auto begin = std::chrono::steady_clock::now();
  {
    const std::jthread mending([] {
      std::this_thread::sleep_for(6s);  // longer than a client is waited for that has closed its connection in order
      test::rail_is_down = false;
    });
    run_program(20'000);
  }
  CHECK(std::chrono::steady_clock::now() - begin >= 5s);
  CHECK(remote.returns > 0);
}

TEST_CASE("a client that does not come back loses its session when the time is over") {
  const Resuming resuming(300ms);
  test::RemoteContext remote(with_lanes(0));
  remote.refuses_connections = true;
  const auto begin = std::chrono::steady_clock::now();
  remote.cut();
  CHECK(remote.worker_end().find("has not come back") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin >= 300ms);
  remote.refuses_connections = false;
}

TEST_CASE("a session whose broker is away for longer than a client is waited for goes on") {
  constexpr auto time = 1500ms, away = 1700ms;
  const Resuming resuming(time);
  test::RemoteContext remote(with_lanes(0));
  for (int round = 0; round < 2; ++round) {  // the first connection has carried the beginning too
    CAPTURE(round);
    const unsigned before = remote.returns;
    remote.has_no_broker = true;
    remote.cut_all();
    const auto begin = std::chrono::steady_clock::now();
    {
      const std::jthread starting([&] {
        std::this_thread::sleep_for(away);
        remote.has_no_broker = false;
      });
      run_program(8000);
    }
    CHECK(std::chrono::steady_clock::now() - begin >= away);
    for (int waited = 0; remote.returns == before && waited < 1000; ++waited) std::this_thread::sleep_for(10ms);
    CHECK(remote.returns > before);
  }
}

TEST_CASE("a client that cannot use its session does not leave it waiting for a return") {
  const Resuming resuming;
  const Window band{fake::driver_band, fake::driver_band_bytes};
  REQUIRE(fargpu::reserve_window(band));
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(test::Remote(with_lanes(0)), client::DialError);  // when the worker's session has ended
  CHECK(std::chrono::steady_clock::now() - begin < 3s);
  client::release_window(band);
}

TEST_CASE("a program that ends while its session is resumed does not wait") {
  const Resuming resuming(500ms);
  test::RemoteContext remote(with_lanes(0));
  remote.refuses_connections = true;
  remote.cut();
  const auto begin = std::chrono::steady_clock::now();
  client::process().give_up();
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("whoever claims a session without its secret is refused, and the session goes on") {
  const Resuming resuming;
  test::RemoteContext remote(with_lanes(0));
  run_program(8000);
  for (const std::size_t length : {std::size_t{0}, std::size_t{31}, std::size_t{32}}) {
    const auto answer =
        remote.claim({.channel = 0, .epoch = 0, .secret = std::vector<std::byte>(length), .received = 0});
    CHECK(answer.find("not its client") != std::string::npos);
  }
  CHECK(remote.claim({.channel = 9, .epoch = 0, .secret = {}, .received = 0}).find("no such connection") !=
        std::string::npos);
  const auto first = remote.resume_secret();
  CHECK(remote.claim({.channel = 0, .epoch = 1, .secret = first, .received = 0}).find("not its client") !=
        std::string::npos);
  run_program(8000);
  // The secret is another one after each time.
  remote.cut();
  run_program(8000);
  CHECK(remote.claim({.channel = 0, .epoch = 0, .secret = first, .received = 0}).find("not its client") !=
        std::string::npos);
  CHECK(remote.claim({.channel = 0, .epoch = 1, .secret = first, .received = 0}).find("not its client") !=
        std::string::npos);
  run_program(8000);
}

namespace {

/// What a worker answers to one that says it is a session's client.
struct Answer {
  std::string refusal;
  std::uint32_t epoch = 0;
  std::vector<std::byte> secret;
  std::unique_ptr<Channel> connection;
};
Answer claim(server::Resumption& resumption, std::uint32_t epoch, std::span<const std::byte> secret) {
  auto [near, far] = make_memory_channel();
  std::thread worker([&, far = std::move(far)]() mutable { resumption.claim(std::move(far)); });
  send_control(*near, 2, [&](wire::Control::Builder control) {
    auto resume = control.initResume();
    resume.setEpoch(epoch);
    resume.setSecret({reinterpret_cast<const kj::byte*>(secret.data()), secret.size()});
  });
  const auto message = receive_control(*near, 5s);
  worker.join();
  MessageReader reader(message);
  const auto answer = reader.root<wire::Control>().getResumeAnswer();
  const auto* const begin = reinterpret_cast<const std::byte*>(answer.getSecret().begin());
  return {answer.getFailure().getText().cStr(),
          answer.getEpoch(),
          {begin, begin + answer.getSecret().size()},
          std::move(near)};
}

bool is_fenced_off(Channel& connection) {
  std::vector<std::byte> buffer(100);
  try {
    // What was on its way may come first.
    while (connection.wait({.readable = true}, 5s).readable) connection.receive_some(buffer);
    return false;
  } catch (const ChannelClosed&) {
    return true;
  }
}

}  // namespace

TEST_CASE("of two that know the secret, the one that came last and spoke has the session") {
  server::Resumption resumption({.time = 20s});
  auto [near, far] = make_memory_channel();
  const auto channel = resumption.wrap(std::move(far), 0);
  const auto first = resumption.first_secret();
  std::vector<std::byte> buffer(100);
  const Answer one = claim(resumption, 0, first);
  CHECK(one.refusal.empty());
  CHECK(one.epoch == 1);
  CHECK(is_fenced_off(*near));
  // As long as nothing has come from there, the answer may have been lost: the former secret is good once more.
  const Answer other = claim(resumption, 0, first);
  CHECK(other.refusal.empty());
  CHECK(other.epoch == 1);
  CHECK(is_fenced_off(*one.connection));
  CHECK(other.secret == one.secret);  // which the client may have
  const ResumableHeader word{.bytes = 0, .epoch = 1, .consumed = 0};
  const Channel::Bytes piece = std::as_bytes(std::span(&word, 1));
  send_all(*other.connection, {&piece, 1});
  CHECK(channel->receive_some(buffer) == 0);  // as the session's thread does
  CHECK_FALSE(claim(resumption, 0, first).refusal.empty());
  CHECK_FALSE(claim(resumption, 2, other.secret).refusal.empty());
  CHECK(claim(resumption, 1, other.secret).refusal.empty());
}

TEST_CASE("a break of which the session hears when its client is back does not leave it waiting for a return") {
  // Says that it has broken when the client is back.
  class Slow final : public test::WrappedChannel {
   public:
    Slow(std::unique_ptr<Channel> channel, std::atomic<bool>& closing, std::atomic<bool>& back)
        : WrappedChannel(std::move(channel)), closing_(closing), back_(back) {}
    void close() noexcept override {
      WrappedChannel::close();
      closing_ = true;
      while (!back_) std::this_thread::sleep_for(1ms);
    }

   private:
    std::atomic<bool>& closing_;
    std::atomic<bool>& back_;
  };
  std::atomic<bool> closing{false}, back{false};
  std::string told;
  server::Resumption resumption(
      {.time = 20s, .tell = [&](const auto* what, const std::string&) { told += what ? "broke " : "back "; }});
  auto [near, far] = make_memory_channel();
  const auto channel = resumption.wrap(std::make_shared<Slow>(std::move(far), closing, back), 0);
  std::thread reading([&] { channel->suspect("a test"); });
  while (!closing) std::this_thread::sleep_for(1ms);
  CHECK(claim(resumption, 0, resumption.first_secret()).refusal.empty());
  back = true;
  reading.join();
  CHECK(told == "back ");
  channel->suspect("a test");  // the next break is told
  CHECK(told == "back broke ");
}

TEST_CASE("a claim that comes late, of a connection that the client has given up, does not take its session") {
  server::Resumption resumption({.time = 10s});
  auto [near, far] = make_memory_channel();
  const auto channel = resumption.wrap(std::move(far), 0);
  const auto first = resumption.first_secret();
  const Answer last = claim(resumption, 0, first);
  const Answer late = claim(resumption, 0, first);
  CHECK(late.refusal.empty());
  CHECK(is_fenced_off(*last.connection));
  const Answer again = claim(resumption, last.epoch, last.secret);
  CHECK(again.refusal.empty());
  CHECK(again.epoch == 2);
  CHECK(is_fenced_off(*late.connection));
}

TEST_CASE("a claim to have received what was not sent ends the session") {
  const Resuming resuming(2s);
  test::RemoteContext remote(with_lanes(0));
  CHECK(remote.claim({.channel = 0, .epoch = 0, .secret = remote.resume_secret(), .received = 1u << 30}) == "");
  CHECK(remote.worker_end().find("protocol error") != std::string::npos);
}
