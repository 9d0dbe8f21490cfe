// Smith-Waterman alignments of many pairs of sequences by anti-diagonal wavefronts, several batches in flight.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "program.h"

namespace {

constexpr int length = 112, threads = 128, pairs_per_batch = 24, ring = 3, match = 3, mismatch = -2, gap = -3;
constexpr size_t cells = size_t(length) * length;

struct Best {
  int score, row, column;
};

struct Slot {
  cudaStream_t upload, compute;
  cudaEvent_t uploaded, computed, fetched;
  char *device_a, *device_b, *host_a, *host_b;
  short *scores, *host_scores;
  Best *best, *peer_best, *host_best;
  cudaGraphExec_t graph;
};

__host__ __device__ bool better(Best a, Best b) {
  if (a.score != b.score) return a.score > b.score;
  return a.row != b.row ? a.row < b.row : a.column < b.column;
}

/// A block aligns one pair, and a thread has one row. Three diagonals are in shared memory at a time.
__global__ void align(const char* a, const char* b, short* scores, Best* best) {
  extern __shared__ int diagonals[];
  __shared__ Best found[threads];
  const int row = threadIdx.x, pair = blockIdx.x;
  int *older = diagonals, *old = older + threads + 1, *now = old + threads + 1;
  for (int i = threadIdx.x; i < 3 * (threads + 1); i += blockDim.x) diagonals[i] = 0;
  Best own{0, 0, 0};
  const char letter = row < length ? a[pair * length + row] : 0;
  __syncthreads();
  for (int diagonal = 0; diagonal < 2 * length - 1; ++diagonal) {
    const int column = diagonal - row;
    int score = 0;
    if (row < length && column >= 0 && column < length) {
      // Entry row + 1 belongs to a row, so entry row to the row above it.
      score = max(0, older[row] + (letter == b[pair * length + column] ? match : mismatch));
      score = max(score, max(old[row] + gap, old[row + 1] + gap));
      scores[pair * cells + row * length + column] = short(score);
      const Best here{score, row, column};
      if (better(here, own)) own = here;
    }
    now[row + 1] = score;
    __syncthreads();
    int* const spare = older;
    older = old;
    old = now;
    now = spare;
  }
  found[threadIdx.x] = own;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half && better(found[threadIdx.x + half], found[threadIdx.x]))
      found[threadIdx.x] = found[threadIdx.x + half];
  }
  if (threadIdx.x == 0) best[pair] = found[0];
}

class Random {
 public:
  uint32_t below(uint32_t limit) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t((state_ >> 33) % limit);
  }

 private:
  uint64_t state_ = 7;
};

/// The second sequence of a pair is a mutated piece of the first one, amid random letters.
void make_pair(Random& random, char* a, char* b) {
  for (int i = 0; i < length; ++i) a[i] = "ACGT"[random.below(4)];
  for (int i = 0; i < length; ++i) b[i] = "ACGT"[random.below(4)];
  const int size = 20 + int(random.below(60)), from = int(random.below(length - size)),
            to = random.below(length - size);
  for (int i = 0; i < size; ++i)
    if (random.below(8) != 0) b[to + i] = a[from + i];
}

Best align_on_host(const char* a, const char* b, std::vector<short>& scores) {
  Best best{0, 0, 0};
  for (int row = 0; row < length; ++row)
    for (int column = 0; column < length; ++column) {
      const auto at = [&](int r, int c) { return r < 0 || c < 0 ? 0 : int(scores[r * length + c]); };
      const int diagonal = at(row - 1, column - 1) + (a[row] == b[column] ? match : mismatch);
      const int score = std::max({0, diagonal, at(row - 1, column) + gap, at(row, column - 1) + gap});
      scores[row * length + column] = short(score);
      if (better({score, row, column}, best)) best = {score, row, column};
    }
  return best;
}

/// Walks from the best cell back to where the alignment begins, and counts the letters that agree.
int traced_matches(const char* a, const char* b, const short* scores, Best best) {
  int row = best.row, column = best.column, matches = 0;
  const auto at = [&](int r, int c) { return r < 0 || c < 0 ? 0 : int(scores[r * length + c]); };
  while (at(row, column) > 0) {
    const bool same = a[row] == b[column];
    if (at(row, column) == at(row - 1, column - 1) + (same ? match : mismatch)) {
      matches += same;
      --row, --column;
    } else if (at(row, column) == at(row - 1, column) + gap) {
      --row;
    } else {
      --column;
    }
  }
  return matches;
}

template <typename T>
T* on_device(size_t count) {
  T* memory = nullptr;
  CUDA(cudaMalloc(&memory, count * sizeof(T)));
  return memory;
}

template <typename T>
T* pinned(size_t count) {
  T* memory = nullptr;
  CUDA(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocPortable));
  unsigned int flags = 0;
  CUDA(cudaHostGetFlags(&flags, memory));
  HOLDS((flags & cudaHostAllocPortable) != 0);
  return memory;
}

Slot new_slot() {
  const size_t letters = size_t(pairs_per_batch) * length, all = pairs_per_batch * cells;
  Slot slot{};
  for (cudaStream_t* stream : {&slot.upload, &slot.compute})
    CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&slot.uploaded));
  CUDA(cudaEventCreateWithFlags(&slot.computed, cudaEventBlockingSync));
  CUDA(cudaEventCreateWithFlags(&slot.fetched, cudaEventBlockingSync));
  for (char** memory : {&slot.device_a, &slot.device_b}) *memory = on_device<char>(letters);
  for (char** memory : {&slot.host_a, &slot.host_b}) *memory = pinned<char>(letters);
  slot.scores = on_device<short>(all), slot.host_scores = pinned<short>(all);
  for (Best** memory : {&slot.best, &slot.peer_best}) *memory = on_device<Best>(pairs_per_batch);
  slot.host_best = pinned<Best>(pairs_per_batch);
  return slot;
}

void launch(const Slot& slot, int blocks, int first, cudaStream_t stream) {
  align<<<blocks, threads, 3 * (threads + 1) * sizeof(int), stream>>>(
      slot.device_a + first * length, slot.device_b + first * length, slot.scores + first * cells, slot.best + first);
  CUDA(cudaGetLastError());
}

/// Both halves of a batch side by side: the capture forks from one stream to the other and joins them again.
cudaGraphExec_t captured_alignment(const Slot& slot) {
  constexpr int half = pairs_per_batch / 2;
  cudaGraph_t graph = nullptr;
  cudaEvent_t fork, join;
  for (cudaEvent_t* event : {&fork, &join}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  CUDA(cudaStreamBeginCapture(slot.compute, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(fork, slot.compute));
  CUDA(cudaStreamWaitEvent(slot.upload, fork));
  launch(slot, half, 0, slot.compute);
  launch(slot, half, half, slot.upload);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0, upload_id = 1;
  CUDA(cudaStreamGetCaptureInfo(slot.compute, &status, &id));
  CUDA(cudaStreamGetCaptureInfo(slot.upload, &status, &upload_id));
  HOLDS(status == cudaStreamCaptureStatusActive && id == upload_id);
  HOLDS(cudaStreamQuery(slot.upload) == cudaErrorStreamCaptureUnsupported);
  HOLDS(cudaGetLastError() == cudaErrorStreamCaptureUnsupported);
  // That question has spoiled the capture.
  HOLDS(cudaStreamEndCapture(slot.compute, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
  HOLDS(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);

  CUDA(cudaStreamBeginCapture(slot.compute, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(fork, slot.compute));
  CUDA(cudaStreamWaitEvent(slot.upload, fork));
  launch(slot, half, 0, slot.compute);
  launch(slot, half, half, slot.upload);
  CUDA(cudaEventRecord(join, slot.upload));
  CUDA(cudaStreamWaitEvent(slot.compute, join));
  CUDA(cudaMemcpyAsync(slot.peer_best, slot.best, pairs_per_batch * sizeof(Best), cudaMemcpyDefault, slot.compute));
  CUDA(cudaStreamEndCapture(slot.compute, &graph));
  CUDA(cudaStreamIsCapturing(slot.upload, &status));
  HOLDS(status == cudaStreamCaptureStatusNone);
  cudaGraphNode_t roots[2], copy;
  size_t nodes = 0, root_count = 2, edges = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA(cudaGraphGetRootNodes(graph, roots, &root_count));
  CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  HOLDS(nodes == 3 && root_count == 2 && edges == 2);
  size_t dependents = 1;
  CUDA(cudaGraphNodeGetDependentNodes(roots[0], &copy, nullptr, &dependents));
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CUDA(cudaGraphNodeGetType(copy, &type));
  HOLDS(type == cudaGraphNodeTypeMemcpy);
  cudaGraphExec_t runnable = nullptr;
  CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (cudaEvent_t event : {fork, join}) CUDA(cudaEventDestroy(event));
  return runnable;
}

void upload(const Slot& slot) {
  const void* sources[] = {slot.host_a, slot.host_b};
  void* targets[] = {slot.device_a, slot.device_b};
  size_t sizes[] = {size_t(pairs_per_batch) * length, size_t(pairs_per_batch) * length}, first_of_attributes = 0;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  CUDA(cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &first_of_attributes, 1, slot.upload));
  CUDA(cudaEventRecord(slot.uploaded, slot.upload));
}

void start(const Slot& slot, int batch) {
  upload(slot);
  CUDA(cudaStreamWaitEvent(slot.compute, slot.uploaded));
  if (batch % 2 == 0) {
    launch(slot, pairs_per_batch, 0, slot.compute);
    CUDA(cudaMemcpyPeerAsync(slot.peer_best, 0, slot.best, 0, pairs_per_batch * sizeof(Best), slot.compute));
  } else {
    CUDA(cudaGraphLaunch(slot.graph, slot.compute));
  }
  CUDA(cudaEventRecord(slot.computed, slot.compute));
  CUDA(cudaStreamWaitEvent(slot.upload, slot.computed));
  CUDA(cudaMemcpyAsync(slot.host_scores, slot.scores, pairs_per_batch * cells * sizeof(short), cudaMemcpyDeviceToHost,
                       slot.upload));
  CUDA(cudaMemcpyAsync(slot.host_best, slot.peer_best, pairs_per_batch * sizeof(Best), cudaMemcpyDeviceToHost,
                       slot.upload));
  CUDA(cudaEventRecord(slot.fetched, slot.upload));
}

/// Compares a batch with the CPU's, and returns how many letters agree in its alignments.
int finish(const Slot& slot) {
  CUDA(cudaEventSynchronize(slot.fetched));
  float milliseconds = -1;
  CUDA(cudaEventElapsedTime(&milliseconds, slot.uploaded, slot.computed));
  HOLDS(milliseconds >= 0);
  std::vector<short> scores(cells);
  int matches = 0;
  for (int pair = 0; pair < pairs_per_batch; ++pair) {
    const char *a = slot.host_a + pair * length, *b = slot.host_b + pair * length;
    const short* found_scores = slot.host_scores + pair * cells;
    const Best best = align_on_host(a, b, scores), found = slot.host_best[pair];
    HOLDS(found.score == best.score && found.row == best.row && found.column == best.column && best.score > 20);
    HOLDS(std::equal(scores.begin(), scores.end(), found_scores));
    matches += traced_matches(a, b, found_scores, found);
  }
  return matches;
}

void free_slot(const Slot& slot) {
  CUDA(cudaGraphExecDestroy(slot.graph));
  for (void* memory :
       {(void*)slot.device_a, (void*)slot.device_b, (void*)slot.scores, (void*)slot.best, (void*)slot.peer_best})
    CUDA(cudaFree(memory));
  for (void* memory : {(void*)slot.host_a, (void*)slot.host_b, (void*)slot.host_scores, (void*)slot.host_best})
    CUDA(cudaFreeHost(memory));
  for (cudaEvent_t event : {slot.uploaded, slot.computed, slot.fetched}) CUDA(cudaEventDestroy(event));
  for (cudaStream_t stream : {slot.upload, slot.compute}) CUDA(cudaStreamDestroy(stream));
}

/// A batch of copies must name where its attributes begin, and a stream that is not the legacy one.
void check_refusals(const Slot& slot) {
  const void* source = slot.host_a;
  void* target = slot.device_a;
  size_t size = length, first = 1;
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  HOLDS(cudaMemcpyBatchAsync(&target, &source, &size, 1, &attributes, &first, 1, slot.upload) == cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue);
  first = 0;
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
  HOLDS(cudaMemcpyBatchAsync(&target, &source, &size, 1, &attributes, &first, 1, slot.upload) == cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue);
  int reachable = 1;
  CUDA(cudaDeviceCanAccessPeer(&reachable, 0, 0));
  HOLDS(reachable == 0);
  HOLDS(cudaDeviceEnablePeerAccess(0, 0) != cudaSuccess && cudaGetLastError() != cudaSuccess);
}

}  // namespace

int main(int count, char** words) {
  const int batches = 5 * program::scale(count, words);
  int blocks = 0;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, align, threads, 3 * (threads + 1) * sizeof(int)));
  HOLDS(blocks >= 1);
  std::vector<Slot> slots;
  for (int i = 0; i < ring; ++i) {
    slots.push_back(new_slot());
    slots.back().graph = captured_alignment(slots.back());
  }
  check_refusals(slots[0]);
  Random random;
  long long matches = 0;
  for (int batch = 0; batch < batches; ++batch) {
    const Slot& slot = slots[batch % ring];
    if (batch >= ring) matches += finish(slot);
    for (int pair = 0; pair < pairs_per_batch; ++pair)
      make_pair(random, slot.host_a + pair * length, slot.host_b + pair * length);
    start(slot, batch);
  }
  for (int batch = batches - ring; batch < batches; ++batch) matches += finish(slots[batch % ring]);
  for (const Slot& slot : slots) free_slot(slot);
  char line[120];
  std::snprintf(line, sizeof line, "%d pairs aligned with %lld equal letters", batches * pairs_per_batch, matches);
  return program::passed(line);
}
