// Passes values around all devices, each of which adds its share, and checks the sum after each round: ring [ROUNDS].
// Copies go from device to device, and streams wait for events of other devices. A device that is lost, as one is whose
// machine dies, leaves the ring; the round is made again without it.

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

__global__ void add(int* values, int n, int share) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += share;
}

namespace {

constexpr int n = 1 << 18;
constexpr std::size_t bytes = n * sizeof(int);

struct Member {
  int device = 0;
  int* values = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;

  int share() const { return device + 1; }
};

bool good(cudaError_t status, const char* what, int device) {
  if (status == cudaSuccess) return true;
  std::printf("device %d: %s: %s\n", device, what, cudaGetErrorName(status));
  (void)cudaGetLastError();
  return false;
}
#define GOOD(call, member) good((call), #call, (member).device)

bool join(Member& member) {
  return GOOD(cudaSetDevice(member.device), member) && GOOD(cudaMalloc(&member.values, bytes), member) &&
         GOOD(cudaStreamCreateWithFlags(&member.stream, cudaStreamNonBlocking), member) &&
         GOOD(cudaEventCreateWithFlags(&member.done, cudaEventDisableTiming), member);
}

bool alive(const Member& member) {
  return GOOD(cudaSetDevice(member.device), member) && GOOD(cudaStreamSynchronize(member.stream), member);
}

// The values go once around. Nothing waits but the last read.
bool go_around(const std::vector<Member>& ring, std::vector<int>& values) {
  const Member& first = ring.front();
  if (!GOOD(cudaSetDevice(first.device), first)) return false;
  if (!GOOD(cudaMemcpyAsync(first.values, values.data(), bytes, cudaMemcpyHostToDevice, first.stream), first))
    return false;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const Member& here = ring[i];
    if (!GOOD(cudaSetDevice(here.device), here)) return false;
    if (i > 0) {
      const Member& before = ring[i - 1];
      if (!GOOD(cudaStreamWaitEvent(here.stream, before.done, 0), here) ||
          !GOOD(cudaMemcpyPeerAsync(here.values, here.device, before.values, before.device, bytes, here.stream), here))
        return false;
    }
    add<<<(n + 255) / 256, 256, 0, here.stream>>>(here.values, n, here.share());
    if (!GOOD(cudaGetLastError(), here) || !GOOD(cudaEventRecord(here.done, here.stream), here)) return false;
  }
  const Member& last = ring.back();
  std::vector<int> result(n);
  if (!GOOD(cudaMemcpyAsync(result.data(), last.values, bytes, cudaMemcpyDeviceToHost, last.stream), last) ||
      !GOOD(cudaStreamSynchronize(last.stream), last))
    return false;
  values.swap(result);
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 5;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no device\n");
    return 1;
  }
  std::vector<Member> ring(static_cast<std::size_t>(devices));
  for (int device = 0; device < devices; ++device) {
    Member& member = ring[static_cast<std::size_t>(device)];
    member.device = device;
    cudaDeviceProp facts{};
    if (!GOOD(cudaGetDeviceProperties(&facts, device), member) || !join(member)) return 1;
    std::printf("device %d: %s, PCI domain %04x\n", device, facts.name, facts.pciDomainID);
  }
  std::vector<int> values(n, 0);
  int expected = 0;
  for (int round = 1; round <= rounds; ++round) {
    while (!go_around(ring, values)) {
      std::vector<Member> left;
      for (const Member& member : ring)
        if (alive(member)) left.push_back(member);
      if (left.empty()) {
        std::fprintf(stderr, "no device is left\n");
        return 1;
      }
      ring.swap(left);
    }
    for (const Member& member : ring) expected += member.share();
    for (const int value : values) {
      if (value == expected) continue;
      std::fprintf(stderr, "FAILED: %d instead of %d\n", value, expected);
      return 1;
    }
    std::printf("round %d: %zu devices, each value is %d\n", round, ring.size(), expected);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  std::printf("PASSED\n");
  return 0;
}
