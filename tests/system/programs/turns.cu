// A tenant of a GPU: kernels of a given time, graphs of them, kernels that fill the device, or copies on it, one behind
// the other or in requests with pauses between, for so many seconds; at the end a line of JSON says what it got. With
// `together` in front it begins when it is told a line, so that several begin at once. `ranks` does something else:
// kernels on two devices that wait for each other.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define CHECK(call)                                                      \
  do {                                                                   \
    const cudaError_t status = (call);                                   \
    if (status != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(status)); \
      std::exit(1);                                                      \
    }                                                                    \
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

// Takes as long as its multiprocessors need for so much arithmetic.
__global__ void arithmetic(long rounds, float* sink) {
  float value = threadIdx.x;
  for (long i = 0; i < rounds; ++i) value = value * 0.9999f + 1.0f;
  if (value < 0) *sink = value;  // never: but nothing of it can be left out
}

__global__ void meet(volatile int* mine, volatile int* other) {
  *mine = 1;
  __threadfence_system();
  while (*other == 0) __nanosleep(20000);
}

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

static int usage() {
  std::fprintf(
      stderr,
      "turns [together] spend|graphs SECONDS PIECE_US [BATCH PAUSE_MS] | turns [together] copies SECONDS MIB |\n"
      "turns [together] fill SECONDS BLOCKS ROUNDS | turns ranks ROUNDS | turns for-ever\n");
  return 2;
}

/// Ready: what follows is counted.
static void begin_counting(bool together) {
  CHECK(cudaDeviceSynchronize());
  std::puts("ready");
  std::fflush(stdout);
  if (together && std::getchar() == EOF) std::exit(1);  // the test that was to tell has gone
}

/// `give` gives a piece of work, which is taken for `piece_us`.
static int work(bool together, double seconds, long piece_us, int batch, int pause_ms,
                const std::function<void()>& give) {
  constexpr int ahead = 16;  // pieces that the program does not wait for
  cudaEvent_t events[ahead];
  for (cudaEvent_t& event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  begin_counting(together);
  const auto begin = Clock::now();
  long done = 0;
  std::vector<double> latencies;
  std::vector<long> series;  // kernels done in each tenth of a second
  const auto count = [&](int pieces) {
    done += pieces;
    const auto tenth = static_cast<size_t>(10 * seconds_since(begin));
    if (series.size() <= tenth) series.resize(tenth + 1);
    series[tenth] += pieces;
  };
  if (batch > 0) {
    while (seconds_since(begin) < seconds) {
      const auto asked = Clock::now();
      for (int i = 0; i < batch; ++i) give();
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
      give();
      CHECK(cudaEventRecord(events[given++ % ahead]));
    }
  }
  const double took = seconds_since(begin);
  CHECK(cudaDeviceSynchronize());
  std::sort(latencies.begin(), latencies.end());
  const auto part = [&](double p) {
    return latencies.empty() ? 0.0 : latencies[static_cast<size_t>(p * (latencies.size() - 1))];
  };
  std::printf(
      "{\"kernels\": %ld, \"seconds\": %.4f, \"share\": %.4f, \"requests\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
      "\"max_ms\": %.3f, "
      "\"series\": [",
      done, took, done * piece_us / 1e6 / took, latencies.size(), part(0.5), part(0.99), part(1));
  for (size_t i = 0; i < series.size(); ++i) std::printf("%s%.4f", i ? ", " : "", series[i] * piece_us / 1e5);
  std::puts("]}");
  return 0;
}

static int kernels(bool together, double seconds, long us, int batch, int pause_ms) {
  spend<<<1, 1>>>(1000);
  return work(together, seconds, us, batch, pause_ms, [us] { spend<<<1, 1>>>(us * 1000); });
}

/// Graphs of ten kernels behind each other.
static int graphs(bool together, double seconds, long us, int batch, int pause_ms) {
  constexpr int parts = 10;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t whole;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < parts; ++i) spend<<<1, 1, 0, stream>>>(us * 1000 / parts);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&whole, graph, 0));
  return work(together, seconds, us, batch, pause_ms, [whole] { CHECK(cudaGraphLaunch(whole, nullptr)); });
}

/// Copies of so much memory on the device, which are taken for a millisecond.
static int copies(bool together, double seconds, size_t bytes) {
  char *from, *to;
  CHECK(cudaMalloc(&from, bytes));
  CHECK(cudaMalloc(&to, bytes));
  CHECK(cudaMemset(from, 1, bytes));
  return work(together, seconds, 1000, 0, 0,
              [=] { CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice)); });
}

/// Kernels of so many blocks, which are taken for a millisecond.
static int fill(bool together, double seconds, unsigned blocks, long rounds) {
  float* sink;
  CHECK(cudaMalloc(&sink, sizeof(float)));
  arithmetic<<<1, 1>>>(1, sink);
  return work(together, seconds, 1000, 0, 0, [=] { arithmetic<<<blocks, 256>>>(rounds, sink); });
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
  const bool together = argc > 1 && !std::strcmp(argv[1], "together");
  if (together) --argc, ++argv;
  for (const auto& [name, load] : {std::pair("spend", kernels), std::pair("graphs", graphs)})
    if (argc >= 4 && !std::strcmp(argv[1], name))
      return load(together, std::atof(argv[2]), std::atol(argv[3]), argc > 4 ? std::atoi(argv[4]) : 0,
                  argc > 5 ? std::atoi(argv[5]) : 0);
  if (argc == 4 && !std::strcmp(argv[1], "copies"))
    return copies(together, std::atof(argv[2]), size_t(std::atol(argv[3])) << 20);
  if (argc == 5 && !std::strcmp(argv[1], "fill"))
    return fill(together, std::atof(argv[2]), unsigned(std::atoi(argv[3])), std::atol(argv[4]));
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
