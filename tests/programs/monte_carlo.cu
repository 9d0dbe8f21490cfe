// Prices options by Monte Carlo in several host threads. Calls that fail on purpose between them must change nothing.

#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int host_threads = 4;
constexpr int paths_per_thread_at_scale_one = 96 * 1024;
constexpr int dates = 4;
constexpr int most_blocks = 64;
constexpr int threads = 128;

struct Market {
  float spot;
  float strike;
  float rate;
  float volatility;
  float years;
};

constexpr Market market{100.0f, 105.0f, 0.03f, 0.25f, 1.5f};

/// What one path pays, discounted: by its last price, and by the mean of its prices at all dates.
struct Payoff {
  float european;
  float asian;
};

/// Of the paths of one block. `bits` is the exclusive or of all random numbers, so it is exact.
struct Sums {
  double european;
  double asian;
  double european_squares;
  uint32_t bits;
  uint32_t paths;
};

/// Random bits are a function of path and date alone, so that any order of paths gives the same ones.
__host__ __device__ inline uint64_t random_bits(uint64_t path, uint64_t date) {
  uint64_t bits = path * 0x9e3779b97f4a7c15ull + date * 0xd1342543de82ef95ull + 0x632be59bd9b4e019ull;
  bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ (bits >> 29)) * 0x94d049bb133111ebull;
  return bits ^ (bits >> 32);
}

/// Two dates share the two normal numbers that one draw gives.
__host__ __device__ inline Payoff walk(const Market& m, uint64_t path, uint32_t& bits_of_all) {
  const float step = m.years / dates;
  const float drift = (m.rate - 0.5f * m.volatility * m.volatility) * step;
  const float noise = m.volatility * sqrtf(step);
  float logarithm = 0, sum = 0, price = m.spot;
  for (int date = 0; date < dates; date += 2) {
    const uint64_t bits = random_bits(path, date);
    const uint32_t low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    bits_of_all ^= low ^ (high << 1);
    const float radius = sqrtf(-2.0f * logf((static_cast<float>(low >> 8) + 0.5f) / 16777216.0f));
    const float angle = 6.2831853f * (static_cast<float>(high >> 8) / 16777216.0f);
    const float normals[2] = {radius * cosf(angle), radius * sinf(angle)};
    for (float normal : normals) {
      logarithm += drift + noise * normal;
      price = m.spot * expf(logarithm);
      sum += price;
    }
  }
  const float discount = expf(-m.rate * m.years);
  return {discount * fmaxf(price - m.strike, 0.0f), discount * fmaxf(sum / dates - m.strike, 0.0f)};
}

__device__ double sum_of_warp(double value) {
  for (int step = warpSize / 2; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  return value;
}

__global__ void __launch_bounds__(1024) price(Market m, uint64_t first, int paths, Payoff* payoffs, Sums* sums) {
  __shared__ Sums of_warps[32];
  Sums mine{};
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < paths; i += gridDim.x * blockDim.x) {
    const Payoff payoff = walk(m, first + i, mine.bits);
    payoffs[i] = payoff;
    mine.european += payoff.european;
    mine.asian += payoff.asian;
    mine.european_squares += static_cast<double>(payoff.european) * payoff.european;
    ++mine.paths;
  }
  mine.european = sum_of_warp(mine.european);
  mine.asian = sum_of_warp(mine.asian);
  mine.european_squares = sum_of_warp(mine.european_squares);
  mine.bits = __reduce_xor_sync(~0u, mine.bits);
  mine.paths = __reduce_add_sync(~0u, mine.paths);
  if (threadIdx.x % warpSize == 0) of_warps[threadIdx.x / warpSize] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < blockDim.x / warpSize; ++warp) {
    mine.european += of_warps[warp].european;
    mine.asian += of_warps[warp].asian;
    mine.european_squares += of_warps[warp].european_squares;
    mine.bits ^= of_warps[warp].bits;
    mine.paths += of_warps[warp].paths;
  }
  sums[blockIdx.x] = mine;
}

/// Two errors of launches and one of memory; each is told once, is this thread's alone, and harms nothing.
void fail_on_purpose(cudaStream_t stream, Payoff* payoffs, Sums* sums) {
  HOLDS(cudaPeekAtLastError() == cudaSuccess);
  price<<<1, 2048, 0, stream>>>(market, 0, 1, payoffs, sums);
  HOLDS(cudaPeekAtLastError() == cudaErrorInvalidConfiguration || cudaPeekAtLastError() == cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() != cudaSuccess);
  HOLDS(cudaGetLastError() == cudaSuccess);

  price<<<dim3(1, 70000), threads, 0, stream>>>(market, 0, 1, payoffs, sums);
  const cudaError_t of_grid = cudaGetLastError();
  HOLDS(of_grid == cudaErrorInvalidConfiguration || of_grid == cudaErrorInvalidValue);

  price<<<1, threads, 16 << 20, stream>>>(market, 0, 1, payoffs, sums);
  const cudaError_t of_shared = cudaGetLastError();
  HOLDS(of_shared == cudaErrorInvalidValue || of_shared == cudaErrorInvalidConfiguration);

  void* memory = nullptr;
  HOLDS(cudaMalloc(&memory, size_t{1} << 50) == cudaErrorMemoryAllocation);
  HOLDS(cudaGetLastError() == cudaErrorMemoryAllocation);
  HOLDS(cudaGetLastError() == cudaSuccess);
  CUDA(cudaStreamSynchronize(stream));
}

/// Times only what both events have seen; anything else is refused.
float time_between(cudaEvent_t start, cudaEvent_t stop) {
  cudaEvent_t untimed, unrecorded;
  CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CUDA(cudaEventCreate(&unrecorded));
  float milliseconds = -1;
  HOLDS(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);
  HOLDS(cudaEventElapsedTime(&milliseconds, start, unrecorded) == cudaErrorInvalidResourceHandle);
  HOLDS(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CUDA(cudaEventQuery(unrecorded));
  for (cudaEvent_t event : {untimed, unrecorded}) CUDA(cudaEventDestroy(event));
  CUDA(cudaEventSynchronize(stop));
  CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
  return milliseconds;
}

struct Outcome {
  Sums total{};
  float milliseconds = 0;
};

bool close(float mine, float expected) {
  // Functions of GPU and CPU differ by some units in the last place of prices of a few hundred.
  return std::fabs(mine - expected) <= 2e-3f + 1e-5f * std::fabs(expected);
}

void check_paths(uint64_t first, const std::vector<Payoff>& payoffs, const Sums& total) {
  Sums expected{};
  for (size_t i = 0; i < payoffs.size(); ++i) {
    const Payoff payoff = walk(market, first + i, expected.bits);
    HOLDS(close(payoffs[i].european, payoff.european) && close(payoffs[i].asian, payoff.asian));
    expected.european += payoffs[i].european;
    expected.asian += payoffs[i].asian;
  }
  HOLDS(total.bits == expected.bits);
  HOLDS(total.paths == payoffs.size());
  HOLDS(std::fabs(total.european - expected.european) <= 1e-9 * expected.european);
  HOLDS(std::fabs(total.asian - expected.asian) <= 1e-9 * expected.asian);
}

void price_part(int number, int paths, Outcome* outcome) {
  int devices = 0, device = -1;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(number % devices));
  CUDA(cudaGetDevice(&device));
  HOLDS(device == number % devices);

  // Every second thread uses the stream that the runtime has for it.
  cudaStream_t stream = cudaStreamPerThread;
  if (number % 2 == 0) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t start, stop;
  for (cudaEvent_t* event : {&start, &stop}) CUDA(cudaEventCreate(event));
  Payoff* payoffs = nullptr;
  Sums* sums = nullptr;
  Sums* sums_of_blocks = nullptr;
  CUDA(cudaMalloc(&payoffs, paths * sizeof(Payoff)));
  CUDA(cudaMalloc(&sums, most_blocks * sizeof(Sums)));
  CUDA(cudaHostAlloc(&sums_of_blocks, most_blocks * sizeof(Sums), cudaHostAllocDefault));
  CUDA(cudaMemsetAsync(payoffs, 0xff, paths * sizeof(Payoff), stream));

  const int blocks = std::min((paths + threads - 1) / threads, most_blocks);
  const uint64_t first = static_cast<uint64_t>(number) * paths;
  CUDA(cudaEventRecord(start, stream));
  price<<<blocks, threads, 0, stream>>>(market, first, paths, payoffs, sums);
  CUDA(cudaGetLastError());
  CUDA(cudaEventRecord(stop, stream));
  CUDA(cudaMemcpyAsync(sums_of_blocks, sums, blocks * sizeof(Sums), cudaMemcpyDeviceToHost, stream));
  if (number == 1) fail_on_purpose(stream, payoffs, sums);
  std::vector<Payoff> host_payoffs(paths);
  CUDA(cudaMemcpyAsync(host_payoffs.data(), payoffs, paths * sizeof(Payoff), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaStreamQuery(stream));

  for (int block = 0; block < blocks; ++block) {
    outcome->total.european += sums_of_blocks[block].european;
    outcome->total.asian += sums_of_blocks[block].asian;
    outcome->total.european_squares += sums_of_blocks[block].european_squares;
    outcome->total.bits ^= sums_of_blocks[block].bits;
    outcome->total.paths += sums_of_blocks[block].paths;
  }
  // An error of another thread is not this thread's.
  HOLDS(cudaPeekAtLastError() == cudaSuccess);
  check_paths(first, host_payoffs, outcome->total);
  outcome->milliseconds = time_between(start, stop);
  HOLDS(outcome->milliseconds > 0 && outcome->milliseconds < 60000);

  for (cudaEvent_t event : {start, stop}) CUDA(cudaEventDestroy(event));
  CUDA(cudaFree(payoffs));
  CUDA(cudaFree(sums));
  CUDA(cudaFreeHost(sums_of_blocks));
  if (stream != cudaStreamPerThread) CUDA(cudaStreamDestroy(stream));
}

double black_scholes(const Market& m) {
  const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const double deviation = m.volatility * std::sqrt(static_cast<double>(m.years));
  const double d1 = std::log(double{m.spot} / m.strike) / deviation + m.rate * m.years / deviation + deviation / 2;
  return m.spot * normal(d1) - m.strike * std::exp(-double{m.rate} * m.years) * normal(d1 - deviation);
}

}  // namespace

int main(int count, char** words) {
  const int paths = paths_per_thread_at_scale_one * program::scale(count, words);
  size_t free_bytes = 0, total_bytes = 0;
  CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  HOLDS(free_bytes > 0 && free_bytes <= total_bytes);
  cudaDeviceProp properties{};
  CUDA(cudaGetDeviceProperties(&properties, 0));
  HOLDS(properties.maxThreadsPerBlock == 1024 && properties.warpSize == 32 && properties.maxGridSize[1] == 65535);

  std::vector<Outcome> outcomes(host_threads);
  std::vector<std::thread> workers;
  for (int i = 0; i < host_threads; ++i) workers.emplace_back(price_part, i, paths, &outcomes[i]);
  for (std::thread& worker : workers) worker.join();

  double european = 0, asian = 0, squares = 0, all = 0;
  uint32_t bits = 0;
  for (const Outcome& outcome : outcomes) {
    european += outcome.total.european;
    asian += outcome.total.asian;
    squares += outcome.total.european_squares;
    bits ^= outcome.total.bits;
    all += outcome.total.paths;
  }
  HOLDS(all == double{host_threads} * paths);
  const double mean = european / all;
  const double standard_error = std::sqrt((squares / all - mean * mean) / all);
  HOLDS(std::fabs(mean - black_scholes(market)) < 4 * standard_error);
  HOLDS(asian / all > 0 && asian < european);
  char line[128];
  std::snprintf(line, sizeof(line), "%.0f paths, european %.3f (exact %.3f), asian %.3f, bits %08x", all, mean,
                black_scholes(market), asian / all, bits);
  return program::passed(line);
}
