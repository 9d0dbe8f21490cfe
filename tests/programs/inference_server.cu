// Answers requests of varying length by one small text model: eight threads share its weights on the device.

#include "program.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int workers = 8;
constexpr int requests_per_scale = 192;
constexpr int longest_request = 40;
constexpr int words_known = 16384;
constexpr int width = 64;
constexpr int hidden_width = 96;
constexpr int classes = 12;

/// Whole numbers, so that every order of adding gives the same answer.
struct Weights {
  int embedding[words_known][width];
  int first[width][hidden_width];
  int second[hidden_width][classes];
};

struct Request {
  std::vector<int> tokens;
  int scores[classes] = {};  // as the CPU computes them
  size_t number = 0;
};

/// A queue that threads wait at. It ends when it is closed and empty.
template <typename Item>
class Queue {
 public:
  void push(Item item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    items_.push_back(item);
    changed_.notify_one();
  }
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  bool pop(Item& item) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !items_.empty(); });
    if (items_.empty()) return false;
    item = items_.front();
    items_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool closed_ = false;
};

/// A block per token, a thread per hidden unit.
__global__ void encode(const Weights* weights, const int* tokens, int* hidden) {
  const int* word = weights->embedding[tokens[blockIdx.x]];
  int sum = 0;
  for (int i = 0; i < width; ++i) sum += word[i] * weights->first[i][threadIdx.x];
  hidden[blockIdx.x * hidden_width + threadIdx.x] = max(sum, 0);
}

/// One block: the mean of the hidden units over all tokens, then the score of each class.
__global__ void classify(const Weights* weights, const int* hidden, int length, int* scores) {
  __shared__ int mean[hidden_width];
  int sum = 0;
  for (int token = 0; token < length; ++token) sum += hidden[token * hidden_width + threadIdx.x];
  mean[threadIdx.x] = sum / length;
  __syncthreads();
  if (threadIdx.x >= classes) return;
  int score = 0;
  for (int i = 0; i < hidden_width; ++i) score += mean[i] * weights->second[i][threadIdx.x];
  scores[threadIdx.x] = score;
}

void score_on_host(const Weights& weights, Request& request) {
  int sums[hidden_width] = {};
  for (int token : request.tokens) {
    int hidden[hidden_width] = {};
    for (int at = 0; at < width * hidden_width; ++at) {
      hidden[at % hidden_width] += weights.embedding[token][at / hidden_width] * (&weights.first[0][0])[at];
    }
    for (int unit = 0; unit < hidden_width; ++unit) sums[unit] += std::max(hidden[unit], 0);
  }
  for (int unit = 0; unit < hidden_width; ++unit) {
    const int mean = sums[unit] / static_cast<int>(request.tokens.size());
    for (int i = 0; i < classes; ++i) request.scores[i] += mean * weights.second[unit][i];
  }
}

struct Ready {
  Queue<size_t>* queue;
  size_t number;
};

void CUDART_CB tell_ready(void* what) {
  const std::unique_ptr<Ready> ready(static_cast<Ready*>(what));
  ready->queue->push(ready->number);
}

struct Server {
  Weights* weights = nullptr;        // on the device
  cudaEvent_t uploaded = nullptr;    // when they are there
  cudaMemPool_t pool = nullptr;      // for what lasts as long as a request
  int (*scores)[classes] = nullptr;  // the answers, by number of the request; pinned
  Queue<const Request*> waiting;
  Queue<size_t> ready;
};

void start(Server& server, const Request& request, int* pinned, cudaStream_t stream) {
  int *tokens = nullptr, *hidden = nullptr, *scores = nullptr;
  const size_t length = request.tokens.size();
  std::copy(request.tokens.begin(), request.tokens.end(), pinned);
  CUDA(cudaMallocFromPoolAsync(&tokens, length * sizeof(int), server.pool, stream));
  CUDA(cudaMallocFromPoolAsync(&hidden, length * hidden_width * sizeof(int), server.pool, stream));
  CUDA(cudaMallocAsync(&scores, sizeof request.scores, stream));
  CUDA(cudaMemcpyAsync(tokens, pinned, length * sizeof(int), cudaMemcpyHostToDevice, stream));
  encode<<<length, hidden_width, 0, stream>>>(server.weights, tokens, hidden);
  CUDA(cudaGetLastError());
  classify<<<1, hidden_width, 0, stream>>>(server.weights, hidden, length, scores);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(server.scores[request.number], scores, sizeof request.scores, cudaMemcpyDefault, stream));
  for (int* memory : {tokens, hidden, scores}) CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaLaunchHostFunc(stream, tell_ready, new Ready{&server.ready, request.number}));
}

/// Answers requests until there are no more. Even workers have the default stream of their thread, the others a stream
/// of a priority of their own.
void work(Server& server, int worker) {
  CUDA(cudaSetDevice(0));
  cudaStream_t stream = cudaStreamPerThread;
  if (worker % 2 == 1) {
    int lowest = 0, highest = 0, priority = 0;
    CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    const int wanted = std::max(highest, -worker / 2);
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, wanted));
    CUDA(cudaStreamGetPriority(stream, &priority));
    HOLDS(lowest == 0 && highest <= lowest && priority == wanted);
  }
  // A request's tokens leave their buffer before those of the next but one come in.
  int* pinned = nullptr;
  CUDA(cudaHostAlloc(&pinned, 2 * longest_request * sizeof(int), cudaHostAllocPortable));
  cudaEvent_t done[2] = {};
  for (cudaEvent_t& event : done) CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaStreamWaitEvent(stream, server.uploaded, 0));
  const Request* request = nullptr;
  for (int turn = 0; server.waiting.pop(request); turn = 1 - turn) {
    CUDA(cudaEventSynchronize(done[turn]));
    start(server, *request, pinned + turn * longest_request, stream);
    CUDA(cudaEventRecord(done[turn], stream));
    const cudaError_t state = cudaEventQuery(done[turn]);
    HOLDS(state == cudaSuccess || state == cudaErrorNotReady);
    // The runtime keeps the answer as the last error, which the next launch would take for its own.
    static_cast<void>(cudaGetLastError());
  }
  CUDA(cudaStreamSynchronize(stream));
  for (cudaEvent_t event : done) {
    HOLDS(cudaEventQuery(event) == cudaSuccess);
    CUDA(cudaEventDestroy(event));
  }
  CUDA(cudaFreeHost(pinned));
  if (worker % 2 == 1) CUDA(cudaStreamDestroy(stream));
}

int random_below(int bound) {
  static unsigned state = 2024;
  state = state * 1664525U + 1013904223U;
  return static_cast<int>((state >> 8) % static_cast<unsigned>(bound));
}

std::uint64_t used_by(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  std::uint64_t bytes = 0;
  CUDA(cudaMemPoolGetAttribute(pool, attribute, &bytes));
  return bytes;
}

cudaMemPool_t make_pool() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  CUDA(cudaMemPoolCreate(&pool, &properties));
  std::uint64_t kept = 64ULL << 20;
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
  HOLDS(used_by(pool, cudaMemPoolAttrReleaseThreshold) == kept);
  return pool;
}

}  // namespace

int main(int count, char** words) {
  const auto weights = std::make_unique<Weights>();
  int* all = &weights->embedding[0][0];
  std::generate_n(all, sizeof(Weights) / sizeof(int), [] { return random_below(15) - 7; });
  std::vector<Request> requests(static_cast<size_t>(requests_per_scale) * program::scale(count, words));
  for (Request& request : requests) {
    request.number = &request - requests.data();
    request.tokens.resize(1 + random_below(longest_request));
    for (int& token : request.tokens) token = random_below(words_known);
    score_on_host(*weights, request);
  }

  Server server;
  server.pool = make_pool();
  cudaStream_t upload = nullptr;
  CUDA(cudaStreamCreateWithFlags(&upload, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&server.uploaded, cudaEventDisableTiming));
  CUDA(cudaMallocHost(&server.scores, requests.size() * sizeof *server.scores));
  std::memset(server.scores, 0xFF, requests.size() * sizeof *server.scores);
  CUDA(cudaMalloc(&server.weights, sizeof(Weights)));
  CUDA(cudaMemcpyAsync(server.weights, weights.get(), sizeof(Weights), cudaMemcpyHostToDevice, upload));
  CUDA(cudaEventRecord(server.uploaded, upload));

  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) threads.emplace_back(work, std::ref(server), worker);
  for (const Request& request : requests) server.waiting.push(&request);
  server.waiting.close();
  std::vector<bool> answered(requests.size());
  std::uint64_t sum = 0;
  for (size_t answers = 0; answers < requests.size(); ++answers) {
    size_t number = 0;
    HOLDS(server.ready.pop(number) && !answered[number]);
    answered[number] = true;
    // The answer is there when the host function that tells of it runs.
    HOLDS(std::memcmp(server.scores[number], requests[number].scores, sizeof requests[number].scores) == 0);
    sum += (number + 1) *
           (std::max_element(server.scores[number], server.scores[number] + classes) - server.scores[number]);
  }
  for (std::thread& thread : threads) thread.join();

  CUDA(cudaDeviceSynchronize());
  HOLDS(used_by(server.pool, cudaMemPoolAttrUsedMemCurrent) == 0);
  HOLDS(used_by(server.pool, cudaMemPoolAttrUsedMemHigh) >= (hidden_width + 1) * sizeof(int));
  CUDA(cudaMemPoolTrimTo(server.pool, 0));
  HOLDS(used_by(server.pool, cudaMemPoolAttrReservedMemCurrent) == 0);
  CUDA(cudaMemPoolDestroy(server.pool));
  CUDA(cudaEventDestroy(server.uploaded));
  CUDA(cudaStreamDestroy(upload));
  CUDA(cudaFree(server.weights));
  CUDA(cudaFreeHost(server.scores));
  char line[160];
  std::snprintf(line, sizeof line, "%zu requests answered by %d threads, sum of best classes %llu", requests.size(),
                workers, static_cast<unsigned long long>(sum));
  return program::passed(line);
}
