// A tenant of a GPU: kernels of a given time, one behind the other or in requests with pauses between, for so many seconds; at the end a
// line of JSON says what it got. `ranks` does something else: kernels on two devices that wait for each other.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t status = (call);                                                       \
    if (status != cudaSuccess) {                                                             \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status));                     \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

// Takes this long by the clock, so that a busy machine changes nothing.
__global__ void spend(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(20000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void meet(volatile int* mine, volatile int* other) {
  *mine = 1;
  __threadfence_system();
  while (*other == 0) __nanosleep(20000);
}

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

static int usage() {
  std::fprintf(stderr, "turns spend SECONDS KERNEL_US [BATCH PAUSE_MS] | turns ranks ROUNDS | turns for-ever\n");
  return 2;
}

static int spend_time(double seconds, long kernel_us, int batch, int pause_ms) {
  constexpr int ahead = 16;  // launches that the program does not wait for
  cudaEvent_t events[ahead];
  for (cudaEvent_t& event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  spend<<<1, 1>>>(1000);
  CHECK(cudaDeviceSynchronize());
  std::puts("ready");
  std::fflush(stdout);
  const auto begin = Clock::now();
  long done = 0;
  std::vector<double> latencies;
  std::vector<long> series;  // kernels done in each tenth of a second
  const auto count = [&](int kernels) {
    done += kernels;
    const auto tenth = static_cast<size_t>(10 * seconds_since(begin));
    if (series.size() <= tenth) series.resize(tenth + 1);
    series[tenth] += kernels;
  };
  if (batch > 0) {
    while (seconds_since(begin) < seconds) {
      const auto asked = Clock::now();
      for (int i = 0; i < batch; ++i) spend<<<1, 1>>>(kernel_us * 1000);
      CHECK(cudaDeviceSynchronize());
      latencies.push_back(1000 * seconds_since(asked));
      count(batch);
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
  } else {
    long given = 0;
    while (seconds_since(begin) < seconds) {
      if (given >= ahead) {
        CHECK(cudaEventSynchronize(events[given % ahead]));
        count(1);
      }
      spend<<<1, 1>>>(kernel_us * 1000);
      CHECK(cudaEventRecord(events[given++ % ahead]));
    }
  }
  const double took = seconds_since(begin);
  CHECK(cudaDeviceSynchronize());
  std::sort(latencies.begin(), latencies.end());
  const auto part = [&](double p) { return latencies.empty() ? 0.0 : latencies[static_cast<size_t>(p * (latencies.size() - 1))]; };
  std::printf("{\"kernels\": %ld, \"seconds\": %.4f, \"share\": %.4f, \"requests\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"series\": [", done,
              took, done * kernel_us / 1e6 / took, latencies.size(), part(0.5), part(0.99), part(1));
  for (size_t i = 0; i < series.size(); ++i) std::printf("%s%.4f", i ? ", " : "", series[i] * kernel_us / 1e5);
  std::puts("]}");
  return 0;
}

static int ranks(int rounds) {
  int* flags;
  cudaStream_t streams[2];
  CHECK(cudaSetDevice(1));
  CHECK(cudaStreamCreate(&streams[1]));
  CHECK(cudaDeviceEnablePeerAccess(0, 0));
  CHECK(cudaSetDevice(0));
  CHECK(cudaStreamCreate(&streams[0]));
  CHECK(cudaDeviceEnablePeerAccess(1, 0));
  CHECK(cudaMalloc(&flags, 2 * sizeof(int) * rounds));
  CHECK(cudaMemset(flags, 0, 2 * sizeof(int) * rounds));
  CHECK(cudaDeviceSynchronize());
  std::puts("ready");
  std::fflush(stdout);
  for (int round = 0; round < rounds; ++round) {
    for (int rank : {0, 1}) {
      CHECK(cudaSetDevice(rank));
      meet<<<1, 1, 0, streams[rank]>>>(flags + 2 * round + rank, flags + 2 * round + 1 - rank);
      CHECK(cudaGetLastError());
      // The other rank's kernel comes when this one's turn may be over.
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(round % 2 ? 30 : 0));
    }
  }
  for (int rank : {0, 1}) {
    CHECK(cudaSetDevice(rank));
    CHECK(cudaDeviceSynchronize());
  }
  std::puts("met");
  return 0;
}

int main(int argc, char** argv) {
  if (argc >= 4 && !std::strcmp(argv[1], "spend"))
    return spend_time(std::atof(argv[2]), std::atol(argv[3]), argc > 4 ? std::atoi(argv[4]) : 0, argc > 5 ? std::atoi(argv[5]) : 0);
  if (argc == 3 && !std::strcmp(argv[1], "ranks")) return ranks(std::atoi(argv[2]));
  if (argc == 2 && !std::strcmp(argv[1], "for-ever")) {
    spend<<<1, 1>>>(1000);
    CHECK(cudaDeviceSynchronize());
    std::puts("ready");
    std::fflush(stdout);
    spend<<<1, 1>>>(1LL << 62);
    CHECK(cudaDeviceSynchronize());
    return 0;
  }
  return usage();
}
