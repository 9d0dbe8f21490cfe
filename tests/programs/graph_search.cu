// Searches a random graph in managed memory by breadth and by length of path, edits it on the CPU, and searches again.

#include "program.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int nodes_at_scale_one = 1 << 16;
constexpr int least_degree = 4;
constexpr int most_degree = 12;
constexpr int heaviest = 15;
constexpr int unreached = INT_MAX;

/// The edges of node n are those from offsets[n] to offsets[n + 1].
struct Graph {
  int nodes;
  int* offsets;
  int* targets;
  int* weights;
};

/// What one search by breadth and one by length found, and how many nodes each level has.
struct Answer {
  std::vector<int> levels;
  std::vector<int> lengths;
  std::vector<int> level_sizes;
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t below(uint32_t bound) {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(((state_ >> 32) * bound) >> 32);
  }

 private:
  uint64_t state_;
};

__device__ int found;
__managed__ unsigned long long edges_seen;

__global__ void widen(Graph graph, const int* frontier, int size, int* next, int* levels, int level) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= size) return;
  const int node = frontier[index];
  const int end = graph.offsets[node + 1];
  for (int edge = graph.offsets[node]; edge < end; ++edge) {
    const int target = graph.targets[edge];
    if (atomicCAS(&levels[target], unreached, level) == unreached) next[atomicAdd(&found, 1)] = target;
  }
  atomicAdd(&edges_seen, static_cast<unsigned long long>(end - graph.offsets[node]));
}

// A node whose length another thread shortens meanwhile comes into the next frontier, so an old length does no harm.
__global__ void relax(Graph graph, const int* frontier, int size, int* next, int* lengths, int* stamps, int round) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= size) return;
  const int node = frontier[index];
  const int length = __ldcg(&lengths[node]);
  for (int edge = graph.offsets[node]; edge < graph.offsets[node + 1]; ++edge) {
    const int target = graph.targets[edge];
    const int longer = length + graph.weights[edge];
    if (atomicMin(&lengths[target], longer) <= longer) continue;
    if (atomicExch(&stamps[target], round) != round) next[atomicAdd(&found, 1)] = target;
  }
}

__global__ void start(int* values, int nodes, int source, int* frontier) {
  const int node = blockIdx.x * blockDim.x + threadIdx.x;
  if (node < nodes) values[node] = node == source ? 0 : unreached;
  if (node == 0) frontier[0] = source;
}

template <class T>
T* managed(size_t count) {
  T* memory = nullptr;
  CUDA(cudaMallocManaged(&memory, count * sizeof(T)));
  cudaPointerAttributes attributes{};
  CUDA(cudaPointerGetAttributes(&attributes, memory));
  HOLDS(attributes.type == cudaMemoryTypeManaged);
  HOLDS(attributes.devicePointer == memory && attributes.hostPointer == memory);
  return memory;
}

class Searcher {
 public:
  explicit Searcher(int nodes) : nodes_(nodes), levels_(managed<int>(nodes)), lengths_(managed<int>(nodes)) {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (int*& frontier : frontiers_) CUDA(cudaMalloc(&frontier, nodes * sizeof(int)));
    CUDA(cudaMalloc(&stamps_, nodes * sizeof(int)));
    CUDA(cudaMallocHost(&size_, sizeof(int)));
    CUDA(cudaGetSymbolAddress(&found_, found));
    int least_grid = 0;
    CUDA(cudaOccupancyMaxPotentialBlockSize(&least_grid, &threads_, widen, 0, 256));
    HOLDS(threads_ >= 32 && threads_ <= 256 && least_grid >= 1);
  }
  ~Searcher() {
    for (int* frontier : frontiers_) CUDA(cudaFree(frontier));
    for (int* memory : {stamps_, levels_, lengths_}) CUDA(cudaFree(memory));
    CUDA(cudaFreeHost(size_));
    CUDA(cudaStreamDestroy(stream_));
  }

  cudaStream_t stream() const { return stream_; }

  Answer search(const Graph& graph, int source) {
    Answer answer;
    edges_seen = 0;
    int size = begin(levels_, source);
    for (int level = 1; size > 0; ++level) {
      answer.level_sizes.push_back(size);
      widen<<<blocks(size), threads_, 0, stream_>>>(graph, frontiers_[0], size, frontiers_[1], levels_, level);
      size = finish_level();
    }
    // The CPU reads both results where they lie, and also through a copy.
    answer.levels.assign(levels_, levels_ + nodes_);
    size = begin(lengths_, source);
    CUDA(cudaMemsetAsync(stamps_, 0xff, nodes_ * sizeof(int), stream_));
    for (int round = 0; size > 0; ++round) {
      relax<<<blocks(size), threads_, 0, stream_>>>(graph, frontiers_[0], size, frontiers_[1], lengths_, stamps_,
                                                    round);
      size = finish_level();
    }
    answer.lengths.resize(nodes_);
    CUDA(cudaMemcpy(answer.lengths.data(), lengths_, nodes_ * sizeof(int), cudaMemcpyDefault));
    HOLDS(std::equal(answer.lengths.begin(), answer.lengths.end(), lengths_));
    return answer;
  }

 private:
  int blocks(int count) const { return (count + threads_ - 1) / threads_; }

  int begin(int* values, int source) {
    start<<<blocks(nodes_), threads_, 0, stream_>>>(values, nodes_, source, frontiers_[0]);
    CUDA(cudaGetLastError());
    CUDA(cudaMemsetAsync(found_, 0, sizeof(int), stream_));
    return 1;
  }

  int finish_level() {
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyFromSymbolAsync(size_, found, sizeof(int), 0, cudaMemcpyDeviceToHost, stream_));
    CUDA(cudaMemsetAsync(found_, 0, sizeof(int), stream_));
    CUDA(cudaStreamSynchronize(stream_));
    HOLDS(*size_ >= 0 && *size_ <= nodes_);
    std::swap(frontiers_[0], frontiers_[1]);
    return *size_;
  }

  int nodes_;
  int threads_ = 0;
  int* levels_;
  int* lengths_;
  int* frontiers_[2]{};
  int* stamps_ = nullptr;
  int* size_ = nullptr;
  void* found_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// By queues, one for each length, as all weights are small.
Answer search_on_cpu(const std::vector<int>& offsets, const std::vector<int>& targets, const std::vector<int>& weights,
                     int source) {
  const size_t nodes = offsets.size() - 1;
  Answer answer{std::vector<int>(nodes, unreached), std::vector<int>(nodes, unreached), {}};
  std::vector<int> frontier{source};
  answer.levels[source] = answer.lengths[source] = 0;
  for (int level = 1; !frontier.empty(); ++level) {
    answer.level_sizes.push_back(static_cast<int>(frontier.size()));
    std::vector<int> next;
    for (int node : frontier) {
      for (int edge = offsets[node]; edge < offsets[node + 1]; ++edge) {
        if (answer.levels[targets[edge]] != unreached) continue;
        answer.levels[targets[edge]] = level;
        next.push_back(targets[edge]);
      }
    }
    frontier.swap(next);
  }
  std::vector<std::vector<int>> queues{{source}};
  for (size_t length = 0; length < queues.size(); ++length) {
    for (size_t index = 0; index < queues[length].size(); ++index) {
      const int node = queues[length][index];
      if (answer.lengths[node] != static_cast<int>(length)) continue;
      for (int edge = offsets[node]; edge < offsets[node + 1]; ++edge) {
        const int longer = static_cast<int>(length) + weights[edge];
        if (answer.lengths[targets[edge]] <= longer) continue;
        answer.lengths[targets[edge]] = longer;
        if (queues.size() <= static_cast<size_t>(longer)) queues.resize(longer + 1);
        queues[longer].push_back(targets[edge]);
      }
    }
  }
  return answer;
}

void expect_equal(const Answer& mine, const Answer& expected) {
  HOLDS(mine.level_sizes == expected.level_sizes);
  HOLDS(mine.levels == expected.levels);
  HOLDS(mine.lengths == expected.lengths);
}

int attribute_of(cudaMemRangeAttribute attribute, const int* memory, size_t bytes) {
  int value = INT_MIN;
  CUDA(cudaMemRangeGetAttribute(&value, sizeof(value), attribute, memory, bytes));
  return value;
}

/// Tells the driver where the graph will be used, if the device takes such advice, and checks that it remembers it.
void advise(const int* memory, size_t bytes, int device, cudaStream_t stream) {
  const cudaMemLocation on_device{cudaMemLocationTypeDevice, device};
  const cudaMemLocation on_host{cudaMemLocationTypeHost, 0};
  CUDA(cudaMemAdvise(memory, bytes, cudaMemAdviseSetReadMostly, on_device));
  CUDA(cudaMemAdvise(memory, bytes, cudaMemAdviseSetPreferredLocation, on_device));
  CUDA(cudaMemAdvise(memory, bytes, cudaMemAdviseSetAccessedBy, on_host));
  HOLDS(attribute_of(cudaMemRangeAttributeReadMostly, memory, bytes) == 1);
  HOLDS(attribute_of(cudaMemRangeAttributePreferredLocation, memory, bytes) == device);
  CUDA(cudaMemPrefetchAsync(memory, bytes, on_device, 0, stream));
  HOLDS(attribute_of(cudaMemRangeAttributeLastPrefetchLocation, memory, bytes) == device);
}

void fetch_for_cpu(const int* memory, size_t bytes, cudaStream_t stream) {
  CUDA(cudaMemPrefetchAsync(memory, bytes, cudaMemLocation{cudaMemLocationTypeHost, 0}, 0, stream));
  CUDA(cudaStreamSynchronize(stream));
  HOLDS(attribute_of(cudaMemRangeAttributeLastPrefetchLocation, memory, bytes) == cudaCpuDeviceId);
  CUDA(cudaMemAdvise(memory, bytes, cudaMemAdviseUnsetReadMostly, cudaMemLocation{cudaMemLocationTypeHost, 0}));
  HOLDS(attribute_of(cudaMemRangeAttributeReadMostly, memory, bytes) == 0);
}

void load(std::FILE* file, int* memory, size_t count) { HOLDS(std::fread(memory, sizeof(int), count, file) == count); }

}  // namespace

int main(int count, char** words) {
  const int nodes = nodes_at_scale_one * program::scale(count, words);
  Random random(20);
  std::vector<int> offsets(nodes + 1, 0);
  for (int node = 0; node < nodes; ++node) {
    offsets[node + 1] = offsets[node] + least_degree + random.below(most_degree - least_degree + 1);
  }
  const int edges = offsets[nodes];
  std::vector<int> targets(edges), weights(edges);
  for (int& target : targets) target = random.below(nodes);
  for (int& weight : weights) weight = 1 + random.below(heaviest);

  // The graph comes from a file, straight into the memory that the GPU uses.
  std::FILE* file = std::tmpfile();
  HOLDS(file != nullptr);
  HOLDS(std::fwrite(targets.data(), sizeof(int), edges, file) == static_cast<size_t>(edges));
  HOLDS(std::fwrite(weights.data(), sizeof(int), edges, file) == static_cast<size_t>(edges));
  const Graph graph{nodes, managed<int>(nodes + 1), managed<int>(edges), managed<int>(edges)};
  CUDA(cudaMemcpy(graph.offsets, offsets.data(), offsets.size() * sizeof(int), cudaMemcpyHostToDevice));
  std::rewind(file);
  load(file, graph.targets, edges);
  load(file, graph.weights, edges);

  int device = 0, takes_advice = 0;
  CUDA(cudaGetDevice(&device));
  CUDA(cudaDeviceGetAttribute(&takes_advice, cudaDevAttrConcurrentManagedAccess, device));
  const size_t bytes = edges * sizeof(int);
  std::string sizes;
  {
    Searcher searcher(nodes);
    if (takes_advice) advise(graph.targets, bytes, device, searcher.stream());
    if (takes_advice) advise(graph.weights, bytes, device, searcher.stream());
    const Answer first = searcher.search(graph, 0);
    expect_equal(first, search_on_cpu(offsets, targets, weights, 0));
    unsigned long long reachable_edges = 0;
    for (int node = 0; node < nodes; ++node) {
      if (first.levels[node] != unreached) reachable_edges += offsets[node + 1] - offsets[node];
    }
    HOLDS(edges_seen == reachable_edges);

    // One edge of sixteen gets another target, and those of one stretch become heavier.
    if (takes_advice) fetch_for_cpu(graph.targets, bytes, searcher.stream());
    for (int edge = 3; edge < edges; edge += 16) graph.targets[edge] = targets[edge] = random.below(nodes);
    for (int edge = edges / 3; edge < edges / 2; ++edge) {
      weights[edge] += edge % 7;
      graph.weights[edge] += edge % 7;
    }
    const Answer second = searcher.search(graph, nodes / 2);
    expect_equal(second, search_on_cpu(offsets, targets, weights, nodes / 2));

    // Loaded again over what the GPU has used, the graph is the first one.
    std::rewind(file);
    load(file, graph.targets, edges);
    if (takes_advice) advise(graph.targets, bytes, device, searcher.stream());
    load(file, graph.weights, edges);
    expect_equal(searcher.search(graph, 0), first);
    for (int size : first.level_sizes) sizes += " " + std::to_string(size);
  }
  std::fclose(file);
  for (int* memory : {graph.offsets, graph.targets, graph.weights}) CUDA(cudaFree(memory));
  return program::passed((std::to_string(edges) + " edges; nodes of each level:" + sizes).c_str());
}
