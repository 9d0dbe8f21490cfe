// Finds passwords by their MD5 digests: batches of candidates on two streams, and a flag that is polled meanwhile.

#include "program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int letters = 26, password_letters = 6;
constexpr int batch = 8192, batches_for_each_scale = 16;
constexpr int block_size = 128;
constexpr int most_hits = 256;
constexpr size_t leaked_count = 256 << 10;  // digests of other people's passwords, 4 MiB

struct Digest {
  uint32_t words[4];
  __host__ __device__ bool operator<(const Digest& other) const {
    for (int i = 0; i < 3; ++i)
      if (words[i] != other.words[i]) return words[i] < other.words[i];
    return words[3] < other.words[3];
  }
  __host__ __device__ bool operator==(const Digest& other) const { return !(*this < other) && !(other < *this); }
};

struct Tables {
  uint32_t sines[64];
  int turns[16];
};

__constant__ Tables device_tables;
__constant__ char device_alphabet[letters];
__constant__ Digest device_wanted;

struct Found {
  unsigned flag, index;
};

__device__ Found found;
__device__ unsigned hit_count;
__device__ unsigned hits[most_hits];
__device__ unsigned long long digest_sum;

/// The password of an index: its digits to the base of 26, after a mixing that maps no two indices to one password.
__host__ __device__ void spell(const char* alphabet, unsigned index, unsigned char* password) {
  unsigned mixed = static_cast<unsigned>(index * uint64_t{2654435761} % 308915776);  // a prime, and 26 to the 6th
  for (int i = 0; i < password_letters; ++i) {
    password[i] = alphabet[mixed % letters];
    mixed /= letters;
  }
}

/// MD5 of one block, RFC 1321.
__host__ __device__ Digest md5(const Tables& tables, const unsigned char* password) {
  uint32_t block[16] = {};
  for (int i = 0; i < password_letters; ++i) block[i / 4] |= uint32_t{password[i]} << (i % 4 * 8);
  block[password_letters / 4] |= 0x80U << (password_letters % 4 * 8);
  block[14] = password_letters * 8;
  const uint32_t start[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
  uint32_t a = start[0], b = start[1], c = start[2], d = start[3];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    uint32_t mix;
    int word;
    if (i < 16) mix = (b & c) | (~b & d), word = i;
    else if (i < 32) mix = (d & b) | (~d & c), word = (5 * i + 1) % 16;
    else if (i < 48) mix = b ^ c ^ d, word = (3 * i + 5) % 16;
    else mix = c ^ (b | ~d), word = 7 * i % 16;
    const uint32_t sum = a + mix + tables.sines[i] + block[word];
    const int turn = tables.turns[i / 16 * 4 + i % 4];
    a = d, d = c, c = b;
    b += sum << turn | sum >> (32 - turn);
  }
  return {{a + start[0], b + start[1], c + start[2], d + start[3]}};
}

/// Tries a batch against the one digest that is wanted and against all that leaked, which are sorted.
__global__ void try_batch(unsigned first, const Digest* leaked) {
  const unsigned index = first + blockIdx.x * blockDim.x + threadIdx.x;
  unsigned char password[password_letters];
  spell(device_alphabet, index, password);
  const Digest digest = md5(device_tables, password);
  if (digest == device_wanted) {
    found.index = index;
    __threadfence();
    atomicExch(&found.flag, 1);
  }
  atomicAdd(&digest_sum, static_cast<unsigned long long>(digest.words[0]));
  size_t low = 0, high = leaked_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (leaked[middle] < digest) low = middle + 1;
    else high = middle;
  }
  if (low == leaked_count || digest < leaked[low]) return;
  const unsigned place = atomicAdd(&hit_count, 1);
  if (place < most_hits) hits[place] = index;
}

Tables make_tables() {
  Tables tables = {{}, {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21}};
  for (int i = 0; i < 64; ++i)
    tables.sines[i] = static_cast<uint32_t>(std::floor(std::abs(std::sin(i + 1.0)) * 4294967296.0));
  return tables;
}

/// A stream, with the newest copy of the flag that came by it.
struct Lane {
  cudaStream_t stream;
  cudaEvent_t copied;
  Found* seen;
};

/// Gives batches to both lanes until one of them sees the flag, and says how many it gave.
int search(Lane* lanes, const Digest* leaked, int batches, Found& result) {
  int given = 0;
  bool is_found = false;
  while (given < batches && !is_found) {
    bool gave = false;
    for (int i = 0; i < 2 && given < batches; ++i) {
      Lane& lane = lanes[i];
      const cudaError_t state = cudaEventQuery(lane.copied);
      if (state == cudaErrorNotReady) {
        (void)cudaGetLastError();  // where a runtime keeps this as an error
        continue;
      }
      CUDA(state);
      if (lane.seen->flag != 0) is_found = true;
      try_batch<<<batch / block_size, block_size, 0, lane.stream>>>(given++ * batch, leaked);
      CUDA(cudaGetLastError());
      CUDA(cudaMemcpyFromSymbolAsync(lane.seen, found, sizeof(Found), 0, cudaMemcpyDeviceToHost, lane.stream));
      CUDA(cudaEventRecord(lane.copied, lane.stream));
      gave = true;
    }
    if (!gave) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (int i = 0; i < 2; ++i) CUDA(cudaStreamSynchronize(lanes[i].stream));
  CUDA(cudaMemcpyFromSymbol(&result, found, sizeof result));
  HOLDS(result.flag != 0 || !is_found);
  return given;
}

}  // namespace

int main(int count, char** words) {
  const int batches = batches_for_each_scale * program::scale(count, words);
  const unsigned candidates = static_cast<unsigned>(batches) * batch;
  const std::string alphabet = "etaoinshrdlcumwfgypbvkjxqz";
  const Tables tables = make_tables();
  const auto digest_of = [&](unsigned index) {
    unsigned char password[password_letters];
    spell(alphabet.data(), index, password);
    return md5(tables, password);
  };
  const unsigned char known[] = {'s', 'e', 'c', 'r', 'e', 't'};
  const Digest known_digest = {{0x9422be5e, 0xf0e0d0ec, 0x9076ab8e, 0x69eea6d2}};
  HOLDS(md5(tables, known) == known_digest);

  Digest* leaked;
  CUDA(cudaMallocHost(&leaked, leaked_count * sizeof(Digest)));
  uint64_t state = 99;
  for (size_t i = 0; i < leaked_count; ++i)
    for (uint32_t& word : leaked[i].words) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      word = static_cast<uint32_t>(state >> 32);
    }
  for (int i = 0; i < 40; ++i) leaked[i * 97] = digest_of(static_cast<unsigned>(i * 104729ULL % candidates));
  std::sort(leaked, leaked + leaked_count);
  Digest* device_leaked;
  CUDA(cudaMalloc(&device_leaked, leaked_count * sizeof(Digest)));

  size_t symbol_bytes = 0;
  void* symbol = nullptr;
  CUDA(cudaGetSymbolSize(&symbol_bytes, hits));
  CUDA(cudaGetSymbolAddress(&symbol, hits));
  HOLDS(symbol_bytes == sizeof hits);
  Lane lanes[2];
  for (Lane& lane : lanes) {
    CUDA(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&lane.copied, cudaEventDisableTiming));
    CUDA(cudaMallocHost(&lane.seen, sizeof(Found)));
    CUDA(cudaEventQuery(lane.copied));  // an event that was never recorded is complete
  }
  cudaStream_t setup = lanes[0].stream;
  CUDA(cudaMemcpyAsync(device_leaked, leaked, leaked_count * sizeof(Digest), cudaMemcpyHostToDevice, setup));
  CUDA(cudaMemcpyToSymbolAsync(device_tables, &tables, sizeof tables, 0, cudaMemcpyHostToDevice, setup));
  // In two parts, of which the second has an offset.
  CUDA(cudaMemcpyToSymbolAsync(device_alphabet, alphabet.data(), 10, 0, cudaMemcpyHostToDevice, setup));
  CUDA(cudaMemcpyToSymbolAsync(device_alphabet, alphabet.data() + 10, letters - 10, 10, cudaMemcpyHostToDevice, setup));

  int given = 0;
  unsigned answers = 0;
  for (unsigned wanted : {candidates / 5, candidates / 2, candidates - 1, candidates + 12345}) {
    const Digest digest = digest_of(wanted);
    const Found nothing = {0, 0};
    const unsigned no_hits = 0;
    const unsigned long long no_sum = 0;
    CUDA(cudaMemcpyToSymbolAsync(device_wanted, &digest, sizeof digest, 0, cudaMemcpyHostToDevice, setup));
    CUDA(cudaMemcpyToSymbolAsync(found, &nothing, sizeof nothing, 0, cudaMemcpyHostToDevice, setup));
    CUDA(cudaMemcpyToSymbolAsync(hit_count, &no_hits, sizeof no_hits, 0, cudaMemcpyHostToDevice, setup));
    CUDA(cudaMemcpyToSymbolAsync(digest_sum, &no_sum, sizeof no_sum, 0, cudaMemcpyHostToDevice, setup));
    CUDA(cudaEventRecord(lanes[0].copied, setup));
    CUDA(cudaStreamWaitEvent(lanes[1].stream, lanes[0].copied, 0));
    for (Lane& lane : lanes) *lane.seen = nothing;
    Found result;
    given = search(lanes, device_leaked, batches, result);
    HOLDS(result.flag == (wanted < candidates ? 1U : 0U));
    if (wanted >= candidates) continue;
    HOLDS(result.index == wanted);
    HOLDS(given > static_cast<int>(wanted / batch));
    ++answers;
  }

  // The last search went through all candidates.
  HOLDS(given == batches);
  unsigned hits_seen = 0;
  unsigned long long sum = 0, expected_sum = 0;
  std::vector<unsigned> seen(most_hits), expected;
  CUDA(cudaMemcpyFromSymbol(&hits_seen, hit_count, sizeof hits_seen));
  CUDA(cudaMemcpyFromSymbol(&sum, digest_sum, sizeof sum));
  HOLDS(hits_seen >= 30 && hits_seen <= most_hits);
  CUDA(cudaMemcpyFromSymbol(seen.data(), hits, hits_seen * sizeof(unsigned)));
  seen.resize(hits_seen);
  std::sort(seen.begin(), seen.end());
  for (unsigned i = 0; i < candidates; ++i) {
    const Digest digest = digest_of(i);
    expected_sum += digest.words[0];
    if (std::binary_search(leaked, leaked + leaked_count, digest)) expected.push_back(i);
  }
  HOLDS(sum == expected_sum);
  HOLDS(seen == expected);
  for (const Lane& lane : lanes) {
    CUDA(cudaFreeHost(lane.seen));
    CUDA(cudaEventDestroy(lane.copied));
    CUDA(cudaStreamDestroy(lane.stream));
  }
  CUDA(cudaFree(device_leaked));
  CUDA(cudaFreeHost(leaked));
  char line[120];
  std::snprintf(line, sizeof line, "%u candidates, %u passwords found, %u digests had leaked", candidates, answers,
                hits_seen);
  return program::passed(line);
}
