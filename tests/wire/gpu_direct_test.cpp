// Contents of memory that go between card and GPU without the host's memory: by UCX's TCP and a card of the test's own
// that reaches the fake driver's memory, which the processor cannot touch. What arrives is what was sent, whatever
// breaks or fails; and whether it is chosen, with what words. Where the wire tests go by UCX.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"
#include "server/worker/memory/gpu_direct.h"
#include "tests/fake_driver/gpu_direct.h"
#include "tests/temporary_folder.h"
#include "tests/unit/gpu_card.h"
#include "wrap.h"

using namespace fargpu;
using namespace std::chrono_literals;

namespace {

#define OK(call) REQUIRE((call) == CUDA_SUCCESS)

client::Config with_lanes(unsigned lanes) {
  client::Config config = test::Remote::default_config();
  config.lanes = lanes;
  return config;
}
bool go_by_rdma() { return with_lanes(0).transport == client::Transport::rdma; }

using fake::gpu;

/// Sessions have GPUDirect while it lives, if it is chosen.
class Direct {
 public:
  explicit Direct(bool measures = false) {
    gpu.supported = gpu.mapped = gpu.dma_buf = true;
    gpu.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    gpu.flush_options = 0;
    gpu.copies_nothing = false;
    gpu.retained = gpu.released = gpu.flushes = 0;
    test::make_gpu_direct = [this, measures] {
      server::GpuDirect::Options options{
          .devices = devices, .why_none = why_none, .measures = measures, .trial_time = trial_time, .tell = {}};
      options.tell = [this](const std::string& line) {
        {
          const std::lock_guard lock(mutex_);
          told_ += line + "\n";
        }
        if (on_word) on_word();
      };
      return std::make_shared<server::GpuDirect>(fake::driver_of_gpu_direct(), 0, std::move(options));
    };
  }
  ~Direct() {
    test::make_gpu_direct = nullptr;
    gpu.copies_nothing = false;
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  std::string told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  std::shared_ptr<rdma::OpenedDevices> devices = test::open_gpu_card();
  std::string why_none;
  std::chrono::milliseconds trial_time = 5s;  // however busy the machine is
  std::function<void()> on_word;

 private:
  const test::NewGpuCard fresh_;
  std::mutex mutex_;
  std::string told_;
};

std::vector<unsigned char> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<unsigned char> bytes(count + 8);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(count);
  return bytes;
}

struct Pinned {
  explicit Pinned(std::size_t bytes) { OK(cuMemHostAlloc(&memory, bytes, 0)); }
  ~Pinned() { cuMemFreeHost(memory); }
  void* memory = nullptr;
};

/// There and back, in each way that goes by lanes.
void copy_both_ways(std::size_t bytes, unsigned seed) {
  CAPTURE(bytes, seed);
  const auto out = random_bytes(bytes, seed);
  std::vector<unsigned char> back(bytes);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, bytes));
  OK(cuMemcpyHtoD_v2(memory, out.data(), bytes));
  OK(cuMemcpyDtoH_v2(back.data(), memory, bytes));
  CHECK(back == out);
  Pinned from(bytes), to(bytes);
  const auto other = random_bytes(bytes, seed + 1000);
  std::memcpy(from.memory, other.data(), bytes);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemcpyHtoDAsync_v2(memory, from.memory, bytes, stream));
  OK(cuMemcpyDtoHAsync_v2(to.memory, memory, bytes, stream));
  OK(cuStreamSynchronize(stream));
  CHECK(std::memcmp(to.memory, other.data(), bytes) == 0);
  OK(cuStreamDestroy_v2(stream));
  OK(cuMemFree_v2(memory));
}

// Rows with gaps.
void copy_rows(std::size_t width, std::size_t height) {
  CAPTURE(width, height);
  const std::size_t pitch = width + 512;
  const auto out = random_bytes(width * height, 7);
  std::vector<unsigned char> back(width * height);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, pitch * height));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = out.data();
  copy.srcPitch = width;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = memory;
  copy.dstPitch = pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  OK(cuMemcpy2D_v2(&copy));
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.srcPitch = pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = back.data();
  copy.dstPitch = width;
  OK(cuMemcpy2D_v2(&copy));
  CHECK(back == out);
  OK(cuMemFree_v2(memory));
}

struct Resuming {
  explicit Resuming(bool only_rdma = false) {
    test::resume_time = 20s;
    test::only_rdma = only_rdma;
  }
  ~Resuming() {
    test::resume_time = 0ms;
    test::only_rdma = true;
    test::rail_is_down = false;
  }
};

}  // namespace

TEST_CASE("GPUDirect: copies of all sizes arrive as they were, and go from card to GPU and back") {
  if (!go_by_rdma()) return;
  Direct direct;
  gpu.ordering = GENERATE(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  const bool flushes = gpu.ordering == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
  gpu.flush_options = flushes ? CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST : 0;
  {
    test::RemoteContext remote(with_lanes(GENERATE(1u, 3u)));
    for (const std::size_t bytes : {std::size_t{1} << 20, (std::size_t{1} << 20) + 1, std::size_t{3'333'333},
                                    std::size_t{4} << 20, (std::size_t{9} << 20) + 4321, std::size_t{40} << 20})
      copy_both_ways(bytes, static_cast<unsigned>(bytes));
    copy_rows(300'000, 20);
    copy_rows(5000, 1500);
    CHECK(remote.session().lanes.bytes_sent() > (50u << 20));
    CHECK(remote.session().lanes.bytes_received() > (50u << 20));
    CHECK((gpu.flushes > 0) == flushes);
  }
  CHECK_THAT(direct.told(), Catch::StartsWith("GPUDirect is on"));
  CHECK(test::gpu_card.from_gpu > 200);
  CHECK(test::gpu_card.into_gpu > 200);
}

TEST_CASE("GPUDirect: copies arrive as they were though connections break, and though they come back by TCP") {
  if (!go_by_rdma()) return;
  Direct direct;
  const Resuming resuming;
  const bool by_tcp = GENERATE(false, true);
  test::RemoteContext remote(with_lanes(2));
  copy_both_ways(6u << 20, 1);
  for (unsigned i = 0; i < 6; ++i) {
    CAPTURE(i, by_tcp);
    const unsigned before = remote.returns;
    {
      const std::jthread cutting([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
        if (by_tcp) test::rail_is_down = true;
        else remote.cut_all();
      });
      copy_both_ways(6u << 20, 10 + i);
    }
    for (int waited = 0; remote.returns == before && waited < 1000; ++waited) {
      copy_both_ways(1u << 20, 50);
      std::this_thread::sleep_for(10ms);
    }
    CHECK(remote.returns > before);
    copy_both_ways(6u << 20, 20 + i);
    if (!by_tcp) continue;
    CHECK(remote.session().medium() == "TCP");
    test::rail_is_down = false;
    remote.cut_all();
    copy_both_ways(6u << 20, 30 + i);
    CHECK(remote.session().medium().rfind("RDMA", 0) == 0);
  }
  CHECK(test::gpu_card.from_gpu > 0);
  CHECK(test::gpu_card.into_gpu > 0);
}

TEST_CASE("GPUDirect: it outlives the contexts of the program") {
  if (!go_by_rdma()) return;
  Direct direct;
  test::Remote remote(with_lanes(2));
  for (unsigned i = 0; i < 3; ++i) {
    CAPTURE(i);
    CUcontext context = nullptr;
    if (i == 1) OK(cuCtxCreate_v4(&context, nullptr, 0, 0));
    else OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    copy_both_ways(6u << 20, i);
    const unsigned before = test::gpu_card.from_gpu;
    copy_both_ways(5u << 20, 10 + i);
    CHECK(test::gpu_card.from_gpu > before);
    CHECK(gpu.retained == gpu.released + 1);
    const unsigned released = gpu.released;
    if (i == 1) OK(cuCtxDestroy_v2(context));
    else OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxRetain(&context, 1));  // is answered behind that
    CHECK(gpu.released == released + (i == 1 ? 0 : 1));
  }
}

TEST_CASE("GPUDirect: contents that the host keeps are kept, and found") {
  if (!go_by_rdma()) return;
  Direct direct;
  const test::TemporaryFolder folder;
  test::content_folder = folder.path / "contents";
  client::Config config = with_lanes(2);
  config.content_cache = client::ContentCache::always;
  const auto bytes = random_bytes(12u << 20, 5);
  for (int session = 0; session < 2; ++session) {
    CAPTURE(session);
    test::RemoteContext remote(config);
    CUdeviceptr memory = 0;
    OK(cuMemAlloc_v2(&memory, bytes.size()));
    for (int round = 0; round < 3; ++round) {
      std::vector<unsigned char> back(bytes.size());
      OK(cuMemsetD8_v2(memory, 0, bytes.size()));
      OK(cuMemcpyHtoD_v2(memory, bytes.data(), bytes.size()));
      OK(cuMemcpyDtoH_v2(back.data(), memory, bytes.size()));
      CHECK(back == bytes);
    }
    if (session == 1) CHECK(remote.session().lanes.content_counts().known_bytes > 0);
  }
  test::content_folder.clear();
  CHECK(test::gpu_card.into_gpu > 0);
}

TEST_CASE("GPUDirect: where the GPU's memory cannot be read to be sent again, the session ends with words") {
  if (!go_by_rdma()) return;
  Direct direct;
  const Resuming resuming;
  test::RemoteContext remote(with_lanes(2));
  copy_both_ways(6u << 20, 1);
  std::vector<unsigned char> back(16u << 20);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, back.size()));
  // The cut comes in the middle of the copy. By TCP the processor has to see what is left of it.
  test::gpu_card.puts_from_gpu = [last = test::gpu_card.from_gpu + 2](unsigned number) {
    if (number >= last) gpu.copies_nothing = test::rail_is_down = true;
    return true;
  };
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) != CUDA_SUCCESS);
  CHECK_THAT(remote.worker_end(), Catch::Contains("memory of the GPU"));
}

TEST_CASE("GPUDirect: where the card sends nothing of the GPU's memory any more, the session goes on by TCP, or ends") {
  if (!go_by_rdma()) return;
  Direct direct;
  const bool only_rdma = GENERATE(false, true);
  const Resuming resuming(only_rdma);
  if (only_rdma) test::resume_time = 1s;
  test::RemoteContext remote(with_lanes(2));
  copy_both_ways(6u << 20, 1);
  test::gpu_card.puts_from_gpu = [](unsigned) { return false; };
  if (!only_rdma) return copy_both_ways(16u << 20, 2);
  std::vector<unsigned char> back(16u << 20);
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, back.size()));
  REQUIRE(cuMemcpyDtoH_v2(back.data(), memory, back.size()) != CUDA_SUCCESS);
}

// --- the choice -----------------------------------------------------------------------------------------------------

namespace {

/// What is said of it by a session whose copies arrive.
std::string choice(Direct& direct) {
  test::RemoteContext remote(with_lanes(2));
  copy_both_ways(6u << 20, 1);
  return direct.told();
}

}  // namespace

TEST_CASE("GPUDirect: it is taken where it is as fast, and not where it is slower") {
  if (!go_by_rdma()) return;
  Direct direct(/*measures=*/true);
  SECTION("faster") {
    test::gpu_card.host_us = 3000;
    CHECK_THAT(choice(direct),
               Catch::StartsWith("GPUDirect is on: the card moves") && Catch::Contains("of the host's"));
    CHECK(test::gpu_card.from_gpu > 40);
  }
  SECTION("slower") {
    test::gpu_card.gpu_us = 3000;
    CHECK_THAT(choice(direct),
               Catch::StartsWith("GPUDirect is off: the card moves") && Catch::Contains("of the host's"));
  }
  SECTION("so slow that nothing arrives in a trial") {
    test::gpu_card.gpu_us = 40'000;
    direct.trial_time = 25ms;
    CHECK_THAT(choice(direct), Catch::StartsWith("GPUDirect is off: what is put does not arrive"));
  }
  if (direct.told().find("is off") == std::string::npos) return;
  const unsigned before = test::gpu_card.from_gpu + test::gpu_card.into_gpu;
  (void)choice(direct);
  CHECK(test::gpu_card.from_gpu + test::gpu_card.into_gpu - before <= 2 * 2 * 80);  // in its trials alone
}

TEST_CASE("GPUDirect: it is off where anything is missing, and says what") {
  if (!go_by_rdma()) return;
  Direct direct(GENERATE(false, true));
  std::string wanted;
  SECTION("wrong bytes arrive") {
    test::gpu_card.garbles = true;
    wanted = "what arrives is not what was put";
  }
  SECTION("a source is not registered") {
    test::gpu_card.refuses_sources = true;
    wanted = "error 524";
  }
  SECTION("a ring is not registered") {
    test::gpu_card.refuses_rings = true;
    wanted = "error 524";
  }
  SECTION("UCX is too old") {
    direct.devices = test::open_ucx(false);
    wanted = "or newer is needed";
  }
  SECTION("no devices") {
    direct.devices = nullptr;
    direct.why_none = "rdma_transports is not cards";
    wanted = "rdma_transports is not cards";
  }
  SECTION("no support of the GPU") {
    gpu.supported = false;
    wanted = "no GPUDirect RDMA";
  }
  SECTION("no support for mapped memory") {
    gpu.mapped = false;
    wanted = "for memory that is mapped";
  }
  SECTION("no dma-buf") {
    gpu.dma_buf = false;
    wanted = "no dma-buf";
  }
  SECTION("nothing makes writes visible") {
    gpu.ordering = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
    wanted = "visible";
  }
  SECTION("the GPU copies nothing") {
    gpu.copies_nothing = true;
    wanted = "memory of the GPU";
  }
  const std::string told = choice(direct);
  CHECK_THAT(told, Catch::StartsWith("GPUDirect is off: ") && Catch::Contains(wanted));
  CHECK(std::count(told.begin(), told.end(), '\n') == 1);
}

TEST_CASE("GPUDirect: it ends for what is to come when a lane's ring is refused later") {
  if (!go_by_rdma()) return;
  Direct direct;
  direct.on_word = [] { test::gpu_card.refuses_rings = true; };
  CHECK_THAT(choice(direct), Catch::StartsWith("GPUDirect is on") &&
                                 Catch::Contains("GPUDirect is off from now on: ") && Catch::Contains("error 524"));
}
