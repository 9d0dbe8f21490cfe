// One program, again and again, with one thing going wrong each time a little later: the connection is cut, a call of
// the driver fails. It must come to its end, with right data where it was told of success, and with errors that say
// what they mean; and what it had at the host is gone afterwards. A part of all places is tried; FARGPU_FAULTS=2/32
// tries the second part of 32, as a process has too few threads and descriptors for the sessions of all at once.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <set>
#include <stdexcept>

#include "client/base/log.h"
#include "fixture.h"
#include "protocol/errors.h"
#include "tests/fake_driver/faults.h"
#include "wrap.h"

using namespace fargpu;
using test::Remote;

namespace {

/// What calls returned.
struct Outcome {
  std::set<CUresult> errors;
  bool wrong_data = false;
  bool succeeded_after_loss = false;

  bool ok(CUresult result) {
    if (result != CUDA_SUCCESS) errors.insert(result);
    else if (errors.contains(CUDA_ERROR_DEVICE_UNAVAILABLE)) succeeded_after_loss = true;
    return result == CUDA_SUCCESS;
  }
};

// A bit of everything. Each step goes on from what the ones before have really brought about. Data counts where all
// calls that lead to it succeeded, those included that tell of late errors.
Outcome run_program() {
  Outcome outcome;
  const auto ok = [&](CUresult result) { return outcome.ok(result); };
  CUcontext context = nullptr;
  if (!ok(cuDevicePrimaryCtxRetain(&context, 0)) || !ok(cuCtxSetCurrent(context))) return outcome;
  constexpr unsigned words = 3000;
  std::vector<unsigned> in(words, 5), out(words);
  CUdeviceptr memory = 0;
  if (ok(cuMemAlloc_v2(&memory, words * 4)) && ok(cuMemcpyHtoD_v2(memory, in.data(), words * 4)) &&
      ok(cuMemsetD32Async(memory + 8, 9, 2, nullptr)) && ok(cuCtxSynchronize()) &&
      ok(cuMemcpyDtoH_v2(out.data(), memory, words * 4)))
    outcome.wrong_data |= out[0] != 5 || out[2] != 9 || out[3] != 9 || out[words - 1] != 5;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  const bool has_stream = ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const bool has_event = ok(cuEventCreate(&event, CU_EVENT_DEFAULT));
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  if (memory && has_stream && ok(cuModuleLoadData(&module, test::kernels)) &&
      ok(cuModuleGetFunction(&fill, module, "fill32"))) {
    unsigned count = 10, value = 77;
    void* arguments[] = {&memory, &count, &value};
    if (ok(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr)) && ok(cuStreamSynchronize(stream)) &&
        ok(cuMemcpyDtoH_v2(out.data(), memory, 40)))
      outcome.wrong_data |= out[9] != 77;
  }
  unsigned* pinned = nullptr;
  if (memory && has_stream && ok(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 8192, 0))) {
    pinned[0] = 1, pinned[1] = 2;
    static std::atomic<int> called;  // a function that was due when the session was lost may run later than all this
    called = 0;
    const bool copied = ok(cuMemcpyHtoDAsync_v2(memory, pinned, 4, stream));
    const bool function = ok(cuLaunchHostFunc(
        stream, [](void*) { called = 1; }, nullptr));
    const bool back = ok(cuMemcpyDtoHAsync_v2(pinned + 1, memory, 4, stream));
    const bool recorded = has_event && ok(cuEventRecord(event, stream));
    if (ok(cuStreamSynchronize(stream)) && copied && function && back && recorded)
      outcome.wrong_data |= pinned[1] != 1 || called != 1;
    CUdeviceptr seen = 0;
    if (fill && ok(cuMemHostGetDevicePointer_v2(&seen, pinned, 0))) {
      unsigned count = 3, value = 21;
      void* arguments[] = {&seen, &count, &value};
      if (ok(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr)) && ok(cuStreamSynchronize(stream)))
        outcome.wrong_data |= pinned[2] != 21;
    }
  }
  CUdeviceptr managed = 0;
  if (fill && ok(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL))) {
    auto* const numbers = reinterpret_cast<unsigned*>(managed);
    numbers[0] = 3;
    unsigned count = 1, value = 4;
    CUdeviceptr second = managed + 4;
    void* arguments[] = {&second, &count, &value};
    const bool launched =
        ok(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr)) && ok(cuCtxSynchronize());
    // By a copy: what the program touches itself of memory that cannot be had ends it.
    if (launched && ok(cuMemcpyDtoH_v2(out.data(), managed, 8))) outcome.wrong_data |= out[0] != 3 || out[1] != 4;
  }
  CUgraph graph = nullptr;
  if (memory && has_stream && ok(cuGraphCreate(&graph, 0))) {
    unsigned from = 6, to = 0;
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = &from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = memory;
    copy.WidthInBytes = 4;
    copy.Height = copy.Depth = 1;
    CUgraphNode first = nullptr, second = nullptr;
    bool made = ok(cuGraphAddMemcpyNode(&first, graph, nullptr, 0, &copy, context));
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = memory;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = &to;
    made = made && ok(cuGraphAddMemcpyNode(&second, graph, &first, 1, &copy, context));
    CUgraphExec exec = nullptr;
    if (made && ok(cuGraphInstantiateWithFlags(&exec, graph, 0))) {
      if (ok(cuGraphLaunch(exec, stream)) && ok(cuStreamSynchronize(stream))) outcome.wrong_data |= to != 6;
      else (void)cuStreamSynchronize(stream);  // `from` and `to` are used till then
      ok(cuGraphExecDestroy(exec));
    }
    ok(cuGraphDestroy(graph));
  }
  if (managed) ok(cuMemFree_v2(managed));
  if (pinned) ok(cuMemFreeHost(pinned));
  if (module) ok(cuModuleUnload(module));
  if (has_event) ok(cuEventDestroy_v2(event));
  if (has_stream) ok(cuStreamDestroy_v2(stream));
  if (memory) ok(cuMemFree_v2(memory));
  ok(cuDevicePrimaryCtxRelease_v2(0));
  return outcome;
}

/// Runs it in a session of its own, if there can be one; says whether there was.
bool run_session(Outcome& outcome, std::string* why = nullptr) {
  try {
    Remote remote;
    outcome = run_program();
    return true;
  } catch (const std::exception& error) {
    if (why) *why = error.what();
    return false;  // attaching failed, and said why
  }
}

/// Ends the connection when so many bytes have gone one way.
class Cutting final : public test::WrappedChannel {
 public:
  Cutting(std::unique_ptr<Channel> channel, std::size_t sent, std::size_t received)
      : WrappedChannel(std::move(channel)), send_(sent), receive_(received) {}
  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::vector<Bytes> allowed;
    std::size_t room = send_;
    for (const Bytes& piece : pieces) {
      allowed.push_back(piece.first(std::min(room, piece.size())));
      room -= allowed.back().size();
    }
    if (send_ == 0) throw ChannelClosed("cut");
    const std::size_t taken = WrappedChannel::send_some(allowed);
    if ((send_ -= taken) == 0) close();
    return taken;
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    const std::size_t taken = WrappedChannel::receive_some(buffer.first(std::min(buffer.size(), receive_)));
    if ((receive_ -= taken) == 0) {
      close();
      if (taken == 0) throw ChannelClosed("cut");
    }
    return taken;
  }

 private:
  std::size_t send_, receive_;
};

/// How many bytes go each way when nothing is cut.
struct Counting final : test::WrappedChannel {
  static inline std::size_t sent, received;
  using WrappedChannel::WrappedChannel;
  std::size_t send_some(std::span<const Bytes> pieces) override {
    const std::size_t taken = WrappedChannel::send_some(pieces);
    sent += taken;
    return taken;
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    const std::size_t taken = WrappedChannel::receive_some(buffer);
    received += taken;
    return taken;
  }
};

/// Calls attempt(n) for some `part` of 1 to `end`, evenly; or for all that FARGPU_FAULTS asks for.
template <class Attempt>
void for_places(std::size_t end, std::size_t part, Attempt&& attempt) {
  std::size_t first = 1, step = std::max<std::size_t>(1, end / part);
  if (const char* const wanted = std::getenv("FARGPU_FAULTS"); wanted && std::strcmp(wanted, "all") == 0) {
    step = 1;
  } else if (wanted) {
    REQUIRE(std::sscanf(wanted, "%zu/%zu", &first, &step) == 2);
    REQUIRE((first >= 1 && first <= step));
  }
  for (std::size_t n = first; n <= end; n += step) attempt(n);
}

}  // namespace

TEST_CASE("a connection that is cut at any byte") {
  const bool sending = GENERATE(true, false);
  {
    const test::Wrapping counting([](auto channel) { return std::make_unique<Counting>(std::move(channel)); });
    Counting::sent = Counting::received = 0;
    Outcome outcome;
    std::string why;
    const bool attached = run_session(outcome, &why);
    CAPTURE(why);
    REQUIRE(attached);
    CHECK(outcome.errors.empty());
    CHECK_FALSE(outcome.wrong_data);
  }
  fake::FakeDriver& driver = fake::FakeDriver::instance();
  std::size_t lost = 0, tried = 0;
  for_places(sending ? Counting::sent : Counting::received, 80, [&](std::size_t n) {
    CAPTURE(sending, n);
    const test::Wrapping cutting([&](auto channel) {
      return std::make_unique<Cutting>(std::move(channel), sending ? n : std::size_t{1} << 40,
                                       sending ? std::size_t{1} << 40 : n);
    });
    Outcome outcome;
    ++tried;
    if (!run_session(outcome)) return;
    if (outcome.errors.contains(CUDA_ERROR_DEVICE_UNAVAILABLE)) ++lost;
    for (const CUresult error : outcome.errors) {
      CAPTURE(error);
      CHECK(error == CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    CHECK_FALSE(outcome.wrong_data);
    CHECK_FALSE(outcome.succeeded_after_loss);
    CHECK(driver->memory_bytes() == 0);
  });
  CHECK(lost > tried / 2);
}

TEST_CASE("any call of the driver fails") {
  const CUresult failure = GENERATE(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_ILLEGAL_ADDRESS);
  fake::fail_call(0, CUDA_SUCCESS);
  Outcome outcome;
  std::string why;
  const bool attached = run_session(outcome, &why);
  CAPTURE(why);
  REQUIRE(attached);
  const std::size_t calls = fake::calls_since();
  std::size_t told = 0, tried = 0;
  for_places(calls, 200, [&](std::size_t n) {
    CAPTURE(failure, n);
    fake::fail_call(n, failure);
    Outcome result;
    const bool tells = !run_session(result) || !result.errors.empty();
    const std::string failed = fake::failed_call();
    CAPTURE(failed);
    fake::fail_call(0, CUDA_SUCCESS);
    CHECK_FALSE(result.wrong_data);
    if (failed == "cuEventQuery") return;  // the most frequent of all, and asked again
    ++tried;
    told += tells;
  });
  // A failure that changes nothing for the program need not be told. Of a few places all may be such.
  if (tried >= 100) CHECK(told > tried / 20);
}

namespace {

/// Sends what it is given, and says all the same that it could not; what comes after that reaches its reader late.
class Unsure final : public test::WrappedChannel {
 public:
  struct Timing {
    std::atomic<bool> armed{false};
    std::promise<void> received, returned;
  };
  Unsure(std::unique_ptr<Channel> channel, Timing& timing) : WrappedChannel(std::move(channel)), timing_(timing) {}
  std::size_t send_some(std::span<const Bytes> pieces) override {
    const std::size_t taken = WrappedChannel::send_some(pieces);
    if (!timing_.armed.exchange(false)) return taken;
    sent_ = true;
    timing_.received.get_future().wait_for(std::chrono::seconds(10));
    throw ChannelClosed("the connection is gone");
  }
  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (!sent_) return WrappedChannel::receive_some(buffer);
    std::size_t taken = 0;
    while (taken < buffer.size() &&
           WrappedChannel::wait({.readable = true}, std::chrono::milliseconds(100), nullptr).readable) {
      const std::size_t part = WrappedChannel::receive_some(buffer.subspan(taken));
      taken += part;
      if (part == 0) break;
    }
    if (taken == 0 || said_.exchange(true)) return taken;
    timing_.received.set_value();
    // The thread that waits for the answer must not leave before this is put away: the answer does not come.
    timing_.returned.get_future().wait_for(std::chrono::milliseconds(300));
    return taken;
  }

 private:
  Timing& timing_;
  std::atomic<bool> sent_{false}, said_{false};
};

}  // namespace

TEST_CASE("a call that fails while it is sent leaves nothing for its answer to write to") {
  Unsure::Timing timing;
  const test::Wrapping unsure([&](auto channel) { return std::make_unique<Unsure>(std::move(channel), timing); });
  test::RemoteContext remote;
  constexpr std::size_t bytes = 6000;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(memory, 5, bytes) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  std::vector<unsigned char> out(bytes);
  timing.armed = true;
  CHECK(cuMemcpyDtoH_v2(out.data(), memory, bytes) == CUDA_ERROR_DEVICE_UNAVAILABLE);
  timing.returned.set_value();
  std::fill(out.begin(), out.end(), static_cast<unsigned char>(9));  // the program's own again
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(std::count(out.begin(), out.end(), 9) == std::ptrdiff_t{bytes});
}
