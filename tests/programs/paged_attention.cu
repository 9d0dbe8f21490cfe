// A decoder of one layer whose keys and values lie in pages: sequences grow page by page, and one is swapped out and
// in.

#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int width = 64, heads = 4, head_width = width / heads;
constexpr int vocabulary = 256;
constexpr int page_tokens = 8;
constexpr int prompt_tokens = 5, all_tokens = 48, swap_at = 29;
constexpr int most_pages = all_tokens / page_tokens;
constexpr int page_floats = 2 * page_tokens * width;  // keys, then values
constexpr size_t page_bytes = page_floats * sizeof(float);

struct Weights {
  float embedding[vocabulary][width];
  float project[3][width][width];  // to queries, keys, values
};

struct Choice {
  int token;
  float logit;
};

struct Decoder {
  const Weights* weights;
  float* pages;
  int* tables;  // most_pages of each sequence
  int* lengths;
  Choice* choices;
  float* queries;
  float* mixed;
};

__host__ __device__ float embedded(const Weights& weights, int token, int position, int i) {
  return weights.embedding[token][i] + 0.02F * static_cast<float>((position * (i + 3)) % 17);
}

__global__ void project(Decoder d) {
  __shared__ float x[width];
  const int sequence = blockIdx.x, i = threadIdx.x, position = d.lengths[sequence];
  x[i] = embedded(*d.weights, d.choices[sequence].token, position, i);
  __syncthreads();
  float sums[3] = {};
  for (int j = 0; j < width; ++j)
    for (int part = 0; part < 3; ++part) sums[part] += x[j] * d.weights->project[part][j][i];
  const int page = d.tables[sequence * most_pages + position / page_tokens];
  float* const slot = d.pages + static_cast<size_t>(page) * page_floats + position % page_tokens * width;
  d.queries[sequence * width + i] = sums[0];
  slot[i] = sums[1];
  slot[page_tokens * width + i] = sums[2];
}

__device__ float over_warp(float value, bool is_sum) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, value, step);
    value = is_sum ? value + other : fmaxf(value, other);
  }
  return value;
}

/// A warp for each head of each sequence.
__global__ void attend(Decoder d) {
  extern __shared__ float scores[];
  const int sequence = blockIdx.x, first = blockIdx.y * head_width, lane = threadIdx.x;
  const int tokens = d.lengths[sequence] + 1;
  const int* const table = d.tables + sequence * most_pages;
  const auto slot = [&](int token) {
    return d.pages + static_cast<size_t>(table[token / page_tokens]) * page_floats + token % page_tokens * width +
           first;
  };
  float highest = -1e30F, sum = 0;
  for (int token = lane; token < tokens; token += 32) {
    float score = 0;
    for (int i = 0; i < head_width; ++i) score += d.queries[sequence * width + first + i] * slot(token)[i];
    highest = fmaxf(highest, scores[token] = score / sqrtf(head_width));
  }
  highest = over_warp(highest, false);
  for (int token = lane; token < tokens; token += 32) sum += scores[token] = expf(scores[token] - highest);
  sum = over_warp(sum, true);
  __syncwarp();
  if (lane >= head_width) return;
  float value = 0;
  for (int token = 0; token < tokens; ++token) value += scores[token] * slot(token)[page_tokens * width + lane];
  d.mixed[sequence * width + first + lane] = value / sum;
}

/// Chooses the most likely token; of equal ones, the first.
__global__ void choose(Decoder d) {
  __shared__ Choice best[vocabulary];
  const int sequence = blockIdx.x, token = threadIdx.x;
  float logit = 0;
  for (int i = 0; i < width; ++i) logit += d.mixed[sequence * width + i] * d.weights->embedding[token][i];
  best[token] = {token, logit};
  for (int half = vocabulary / 2; half > 0; half /= 2) {
    __syncthreads();
    if (token < half && best[token + half].logit > best[token].logit) best[token] = best[token + half];
  }
  if (token != 0) return;
  d.choices[sequence] = best[0];
  ++d.lengths[sequence];
}

float random_float(uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<float>(state >> 40) / (1 << 24) - 0.5F;
}

/// What one sequence has to be, on the CPU, which takes the token of the GPU at each step.
void check_sequence(const Weights& weights, const int* prompt, const std::vector<Choice>& chosen, const float* pages,
                    const int* table) {
  std::vector<float> keys, values;
  for (int position = 0; position < all_tokens; ++position) {
    const int token = position < prompt_tokens ? prompt[position] : chosen[position - 1].token;
    float sums[3][width] = {}, mixed[width] = {};
    for (int j = 0; j < width; ++j)
      for (int part = 0; part < 3; ++part)
        for (int i = 0; i < width; ++i)
          sums[part][i] += embedded(weights, token, position, j) * weights.project[part][j][i];
    keys.insert(keys.end(), sums[1], sums[1] + width);
    values.insert(values.end(), sums[2], sums[2] + width);
    for (int head = 0; head < heads; ++head) {
      std::vector<double> scores(position + 1);
      double total = 0;
      for (int t = 0; t <= position; ++t) {
        for (int i = head * head_width; i < (head + 1) * head_width; ++i) scores[t] += sums[0][i] * keys[t * width + i];
        total += scores[t] = std::exp(scores[t] / std::sqrt(head_width));
      }
      for (int i = head * head_width; i < (head + 1) * head_width; ++i)
        for (int t = 0; t <= position; ++t) mixed[i] += static_cast<float>(scores[t] / total * values[t * width + i]);
    }
    // Sums of at most 64 products below 10 are exact to some 1e-5; two tokens that are closer may change places.
    for (int t = 0; t < vocabulary; ++t) {
      float logit = 0;
      for (int i = 0; i < width; ++i) logit += mixed[i] * weights.embedding[t][i];
      HOLDS(logit <= chosen[position].logit + 1e-3F);
      if (t == chosen[position].token) HOLDS(std::abs(logit - chosen[position].logit) <= 1e-3F);
    }
    const float* const slot =
        pages + static_cast<size_t>(table[position / page_tokens]) * page_floats + position % page_tokens * width;
    for (int i = 0; i < width; ++i) HOLDS(std::abs(slot[i] - sums[1][i]) <= 1e-3F);
    for (int i = 0; i < width; ++i) HOLDS(std::abs(slot[page_tokens * width + i] - sums[2][i]) <= 1e-3F);
  }
}

}  // namespace

int main(int count, char** words) {
  const int sequences = 8 * program::scale(count, words), page_count = sequences * 128;
  uint64_t seed = 7;
  std::vector<Weights> weights(1);
  for (size_t i = 0; i < sizeof(Weights) / sizeof(float); ++i)
    reinterpret_cast<float*>(weights.data())[i] = random_float(seed);
  std::vector<int> prompts(static_cast<size_t>(sequences) * prompt_tokens);
  for (int& token : prompts) token = static_cast<int>((random_float(seed) + 0.5F) * vocabulary);

  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CUDA(cudaMemPoolCreate(&pool, &properties));
  uint64_t keep = UINT64_MAX, used = 0;
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  std::vector<void*> allocated;
  const auto allocate = [&](size_t bytes) {
    allocated.push_back(nullptr);
    CUDA(cudaMallocFromPoolAsync(&allocated.back(), bytes, pool, stream));
    CUDA(cudaMemsetAsync(allocated.back(), 0, bytes, stream));
    return allocated.back();
  };
  auto* const device_weights = static_cast<Weights*>(allocate(sizeof(Weights)));
  CUDA(cudaMemcpyAsync(device_weights, weights.data(), sizeof(Weights), cudaMemcpyHostToDevice, stream));
  const Decoder d = {device_weights,
                     static_cast<float*>(allocate(page_count * page_bytes)),
                     static_cast<int*>(allocate(sequences * most_pages * sizeof(int))),
                     static_cast<int*>(allocate(sequences * sizeof(int))),
                     static_cast<Choice*>(allocate(sequences * sizeof(Choice))),
                     static_cast<float*>(allocate(sequences * width * sizeof(float))),
                     static_cast<float*>(allocate(sequences * width * sizeof(float)))};
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  HOLDS(used >= page_count * page_bytes + sizeof(Weights));

  int *tables, *staged;  // pinned: what the tables are to be, and the entries that are on their way
  Choice* choices;
  float* swapped;
  CUDA(cudaMallocHost(&tables, sequences * most_pages * sizeof(int)));
  CUDA(cudaMallocHost(&staged, sequences * sizeof(int)));
  CUDA(cudaMallocHost(&choices, sequences * sizeof(Choice)));
  CUDA(cudaMallocHost(&swapped, most_pages * page_bytes));
  std::vector<int> unused(page_count);
  for (int i = 0; i < page_count; ++i) unused[i] = static_cast<int>((i * 37LL + 11) % page_count);
  const auto take_page = [&] {
    const int page = unused.back();
    unused.pop_back();
    return page;
  };
  cudaEvent_t done;
  CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  CUDA(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, all_tokens * sizeof(float)));

  std::vector<std::vector<Choice>> chosen(sequences);
  for (int position = 0; position < all_tokens; ++position) {
    if (position < prompt_tokens) {
      // The memory of this vector goes at the end of the block: copies from pageable memory have read it by then.
      std::vector<Choice> given(sequences);
      for (int s = 0; s < sequences; ++s) given[s].token = prompts[s * prompt_tokens + position];
      CUDA(cudaMemcpyAsync(d.choices, given.data(), sequences * sizeof(Choice), cudaMemcpyHostToDevice, stream));
      std::fill(given.begin(), given.end(), Choice{-1, 0});
    }
    if (position % page_tokens == 0) {
      for (int s = 0; s < sequences; ++s) {
        const int entry = s * most_pages + position / page_tokens;
        tables[entry] = staged[s] = take_page();
        CUDA(cudaMemcpyAsync(d.tables + entry, staged + s, sizeof(int), cudaMemcpyHostToDevice, stream));
      }
    }
    if (position == swap_at) {
      // The second sequence goes to the host and comes back to other pages; the old ones are overwritten by NaNs.
      int* const table = tables + most_pages;
      const int pages = position / page_tokens + 1;
      for (int i = 0; i < pages; ++i) {
        float* const page = d.pages + static_cast<size_t>(table[i]) * page_floats;
        CUDA(cudaMemcpyAsync(swapped + i * page_floats, page, page_bytes, cudaMemcpyDefault, stream));
        CUDA(cudaMemsetAsync(page, 0xff, page_bytes, stream));
        unused.insert(unused.begin(), table[i]);
        table[i] = take_page();
        CUDA(cudaMemcpyAsync(d.pages + static_cast<size_t>(table[i]) * page_floats, swapped + i * page_floats,
                             page_bytes, cudaMemcpyDefault, stream));
      }
      CUDA(cudaMemcpyAsync(d.tables + most_pages, table, pages * sizeof(int), cudaMemcpyDefault, stream));
    }
    project<<<sequences, width, 0, stream>>>(d);
    CUDA(cudaGetLastError());
    attend<<<dim3(sequences, heads), 32, (position + 1) * sizeof(float), stream>>>(d);
    CUDA(cudaGetLastError());
    choose<<<sequences, vocabulary, 0, stream>>>(d);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(choices, d.choices, sequences * sizeof(Choice), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaEventRecord(done, stream));
    CUDA(cudaEventSynchronize(done));
    for (int s = 0; s < sequences; ++s) chosen[s].push_back(choices[s]);
  }

  std::vector<float> pages(static_cast<size_t>(page_count) * page_floats);
  std::vector<int> lengths(sequences), device_tables(sequences * most_pages);
  CUDA(cudaMemcpy(pages.data(), d.pages, page_count * page_bytes, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(lengths.data(), d.lengths, sequences * sizeof(int), cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(device_tables.data(), d.tables, device_tables.size() * sizeof(int), cudaMemcpyDeviceToHost));
  HOLDS(std::memcmp(device_tables.data(), tables, device_tables.size() * sizeof(int)) == 0);
  for (int s = 0; s < sequences; ++s) {
    HOLDS(lengths[s] == all_tokens);
    check_sequence(weights[0], &prompts[s * prompt_tokens], chosen[s], pages.data(), tables + s * most_pages);
  }
  for (void* memory : allocated) CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  HOLDS(used == 0);
  CUDA(cudaMemPoolTrimTo(pool, 0));
  CUDA(cudaMemPoolDestroy(pool));
  for (void* memory : {static_cast<void*>(tables), static_cast<void*>(staged), static_cast<void*>(choices),
                       static_cast<void*>(swapped)})
    CUDA(cudaFreeHost(memory));
  CUDA(cudaEventDestroy(done));
  CUDA(cudaStreamDestroy(stream));
  char line[120];
  std::snprintf(line, sizeof line, "%d sequences of %d tokens, the first ends with %d", sequences, all_tokens,
                chosen[0].back().token);
  return program::passed(line);
}
