// Plays the game of life with 32 cells to a word; frames go to a thread that keeps them, generations into a graph.

#include "program.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int words_of_row = 33;  // so that rows are shorter than their pitch
constexpr int columns = words_of_row * 32;
constexpr int rows_at_scale_one = 1024;
constexpr int generations_of_graph = 10;
constexpr int launches = 3;
constexpr int slots = 2;
constexpr unsigned char padding = 0xa5;

/// A world whose edges meet, like the surface of a ring.
struct World {
  char* memory;
  size_t pitch;
  __device__ uint32_t* row(int y) const { return reinterpret_cast<uint32_t*>(memory + y * pitch); }
};

/// The sum of three bits in each place: ones in `low`, twos in `high`.
__device__ void add(uint32_t a, uint32_t b, uint32_t c, uint32_t& low, uint32_t& high) {
  low = a ^ b ^ c;
  high = (a & b) | (c & (a ^ b));
}

__global__ void live(World from, World to, int rows) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= words_of_row || y >= rows) return;
  const int left = x == 0 ? words_of_row - 1 : x - 1, right = x == words_of_row - 1 ? 0 : x + 1;
  const uint32_t* lines[3] = {from.row(y == 0 ? rows - 1 : y - 1), from.row(y), from.row(y == rows - 1 ? 0 : y + 1)};
  uint32_t low[3], high[3];
  for (int i = 0; i < 3; ++i) {
    const uint32_t middle = lines[i][x];
    const uint32_t before = __funnelshift_l(lines[i][left], middle, 1);
    const uint32_t after = __funnelshift_r(middle, lines[i][right], 1);
    add(before, i == 1 ? 0 : middle, after, low[i], high[i]);
  }
  uint32_t ones, carry, twos, fours;
  add(low[0], low[1], low[2], ones, carry);
  add(high[0], high[1], high[2], twos, fours);
  const uint32_t more = fours | (twos & carry);  // four neighbours or more
  to.row(y)[x] = (twos ^ carry) & ~more & (ones | lines[1][x]);
}

__global__ void count_cells(World world, int rows, unsigned long long* population) {
  unsigned cells = 0;
  for (int y = blockIdx.x; y < rows; y += gridDim.x) cells += __popc(world.row(y)[threadIdx.x]);
  atomicAdd(population, static_cast<unsigned long long>(cells));
}

/// One byte for each cell, as a picture needs it.
__global__ void draw(World world, int rows, unsigned char* picture, size_t pitch) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x * 4 >= columns) return;
  const uint32_t cells = world.row(y)[x / 8] >> (x % 8 * 4);
  reinterpret_cast<uchar4*>(picture + y * pitch)[x] =
      make_uchar4(cells & 1 ? 255 : 0, cells & 2 ? 255 : 0, cells & 4 ? 255 : 0, cells & 8 ? 255 : 0);
}

uint64_t checksum(const unsigned char* bytes, size_t count, uint64_t sum) {
  for (size_t i = 0; i < count; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3ull;
  return sum;
}

/// Keeps frames in a thread of its own. There are few slots, so that the game waits where the writer is slower.
class Writer {
 public:
  explicit Writer(size_t frame_bytes) : frame_bytes_(frame_bytes), file_(std::tmpfile()) {
    HOLDS(file_ != nullptr);
    for (Slot& slot : slots_) {
      slot.writer = this;
      CUDA(cudaMallocHost(&slot.pixels, frame_bytes));
      free_.push_back(&slot);
    }
    thread_ = std::thread([this] { write_all(); });
  }
  ~Writer() {
    for (Slot& slot : slots_) CUDA(cudaFreeHost(slot.pixels));
    std::fclose(file_);
  }

  struct Slot {
    Writer* writer;
    unsigned char* pixels;
  };

  Slot* wait_for_slot() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty(); });
    return take(free_);
  }

  static void queue(void* data) {
    auto* slot = static_cast<Slot*>(data);
    const std::lock_guard lock(slot->writer->mutex_);
    slot->writer->full_.push_back(slot);
    slot->writer->changed_.notify_all();
  }

  /// All frames as they lie in the file.
  std::vector<unsigned char> finish() {
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
      changed_.notify_all();
    }
    thread_.join();
    std::vector<unsigned char> frames(static_cast<size_t>(std::ftell(file_)));
    std::rewind(file_);
    HOLDS(std::fread(frames.data(), 1, frames.size(), file_) == frames.size());
    return frames;
  }

 private:
  static Slot* take(std::deque<Slot*>& queue) {
    Slot* slot = queue.front();
    queue.pop_front();
    return slot;
  }

  void write_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !full_.empty() || finished_; });
      if (full_.empty()) return;
      Slot* slot = take(full_);
      lock.unlock();
      HOLDS(std::fwrite(slot->pixels, 1, frame_bytes_, file_) == frame_bytes_);
      lock.lock();
      free_.push_back(slot);
      changed_.notify_all();
    }
  }

  size_t frame_bytes_;
  std::FILE* file_;
  Slot slots_[slots]{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot*> free_, full_;
  bool finished_ = false;
  std::thread thread_;
};

/// Eight cells to a word, one byte each: no byte of a sum of eight overflows.
class WorldOnCpu {
 public:
  explicit WorldOnCpu(int rows) : rows_(rows), cells_(static_cast<size_t>(rows) * columns) {}

  unsigned char* row(int y) { return cells_.data() + static_cast<size_t>(y) * columns; }

  void live() {
    std::vector<unsigned char> next(cells_.size());
    unsigned char sums[columns + 2];
    for (int y = 0; y < rows_; ++y) {
      const unsigned char* middle = row(y);
      add_up(row((y + rows_ - 1) % rows_), middle, row((y + 1) % rows_), sums + 1);
      sums[0] = sums[columns];
      sums[columns + 1] = sums[1];
      for (int x = 0; x < columns; x += 8) {
        const uint64_t self = word(middle + x);
        const uint64_t around = word(sums + x) + word(sums + x + 1) + word(sums + x + 2) - self;
        // Of a byte below 16, bit 4 of what is added to 13 is set from 3 on, and of what is added to 12 from 4 on.
        const uint64_t two_or_three = (around + 14 * each) & ~(around + 12 * each);
        const uint64_t three = (around + 13 * each) & ~(around + 12 * each);
        const uint64_t alive = ((three >> 4) | ((two_or_three >> 4) & self)) & each;
        std::memcpy(next.data() + static_cast<size_t>(y) * columns + x, &alive, sizeof(alive));
      }
    }
    cells_.swap(next);
  }

  unsigned long long population() const {
    return static_cast<unsigned long long>(std::count(cells_.begin(), cells_.end(), 1));
  }

  bool looks_like(const unsigned char* picture) const {
    for (size_t i = 0; i < cells_.size(); ++i) {
      if (picture[i] != (cells_[i] ? 255 : 0)) return false;
    }
    return true;
  }

 private:
  static constexpr uint64_t each = 0x0101010101010101ull;
  static uint64_t word(const unsigned char* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  static void add_up(const unsigned char* a, const unsigned char* b, const unsigned char* c, unsigned char* sums) {
    for (int x = 0; x < columns; x += 8) {
      const uint64_t sum = word(a + x) + word(b + x) + word(c + x);
      std::memcpy(sums + x, &sum, sizeof(sum));
    }
  }

  int rows_;
  std::vector<unsigned char> cells_;
};

/// What a callback has seen of the stream; read once the stream is done.
struct Seen {
  cudaStream_t stream;
  int calls;
  cudaError_t worst;
};

void CUDART_CB note(cudaStream_t stream, cudaError_t status, void* data) {
  auto* seen = static_cast<Seen*>(data);
  ++seen->calls;
  if (status != cudaSuccess || stream != seen->stream) seen->worst = cudaErrorUnknown;
}

class Game {
 public:
  explicit Game(int rows) : rows_(rows), writer_(static_cast<size_t>(rows) * columns) {
    CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (World& world : worlds_) {
      CUDA(cudaMallocPitch(&world.memory, &world.pitch, words_of_row * sizeof(uint32_t), rows));
      HOLDS(world.pitch > words_of_row * sizeof(uint32_t) && world.pitch % sizeof(uint32_t) == 0);
      CUDA(cudaMemsetAsync(world.memory, padding, world.pitch * rows, stream_));
      CUDA(cudaMemset2DAsync(world.memory, world.pitch, 0, words_of_row * sizeof(uint32_t), rows, stream_));
    }
    CUDA(cudaMallocPitch(&picture_, &picture_pitch_, columns, rows));
    CUDA(cudaMalloc(&population_, sizeof(*population_)));
    CUDA(cudaHostAlloc(&host_population_, sizeof(*host_population_), cudaHostAllocDefault));
    seen_ = {stream_, 0, cudaSuccess};
  }
  ~Game() {
    if (executable_ != nullptr) CUDA(cudaGraphExecDestroy(executable_));
    for (World& world : worlds_) CUDA(cudaFree(world.memory));
    CUDA(cudaFree(picture_));
    CUDA(cudaFree(population_));
    CUDA(cudaFreeHost(host_population_));
    CUDA(cudaStreamDestroy(stream_));
  }

  void fill(const std::vector<uint32_t>& cells) {
    constexpr size_t row_bytes = words_of_row * sizeof(uint32_t);
    CUDA(cudaMemcpy2DAsync(worlds_[0].memory, worlds_[0].pitch, cells.data(), row_bytes, row_bytes, rows_,
                           cudaMemcpyHostToDevice, stream_));
    CUDA(cudaStreamSynchronize(stream_));
  }

  void live(int generations) {
    const dim3 block(32, 8);
    const dim3 grid((words_of_row + block.x - 1) / block.x, (rows_ + block.y - 1) / block.y);
    for (int i = 0; i < generations; ++i) {
      ::live<<<grid, block, 0, stream_>>>(worlds_[0], worlds_[1], rows_);
      CUDA(cudaGetLastError());
      std::swap(worlds_[0], worlds_[1]);
    }
  }

  void count() {
    CUDA(cudaMemsetAsync(population_, 0, sizeof(*population_), stream_));
    count_cells<<<32, words_of_row, 0, stream_>>>(worlds_[0], rows_, population_);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(host_population_, population_, sizeof(*population_), cudaMemcpyDeviceToHost, stream_));
  }

  /// Ten generations and a count; an even number, so that the result lies where the beginning lay.
  void capture() {
    cudaGraph_t graph;
    cudaStreamCaptureStatus status;
    CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    live(generations_of_graph);
    count();
    CUDA(cudaLaunchHostFunc(
        stream_, [](void* data) { ++*static_cast<int*>(data); }, &graph_ends_));
    CUDA(cudaStreamIsCapturing(stream_, &status));
    HOLDS(status == cudaStreamCaptureStatusActive);
    CUDA(cudaStreamEndCapture(stream_, &graph));
    CUDA(cudaStreamIsCapturing(stream_, &status));
    HOLDS(status == cudaStreamCaptureStatusNone);
    size_t nodes = 0, edges = 0;
    CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    HOLDS(nodes == generations_of_graph + 4 && edges == nodes - 1);
    CUDA(cudaGraphInstantiate(&executable_, graph, 0));
    CUDA(cudaGraphDestroy(graph));
  }

  void launch() {
    CUDA(cudaGraphLaunch(executable_, stream_));
    CUDA(cudaStreamAddCallback(stream_, note, &seen_, 0));
  }

  void checkpoint() {
    draw<<<dim3((columns / 4 + 127) / 128, rows_), 128, 0, stream_>>>(worlds_[0], rows_, picture_, picture_pitch_);
    CUDA(cudaGetLastError());
    Writer::Slot* slot = writer_.wait_for_slot();
    CUDA(cudaMemcpy2DAsync(slot->pixels, columns, picture_, picture_pitch_, columns, rows_, cudaMemcpyDeviceToHost,
                           stream_));
    CUDA(cudaLaunchHostFunc(stream_, Writer::queue, slot));
  }

  unsigned long long population() {
    CUDA(cudaStreamSynchronize(stream_));
    return *host_population_;
  }

  /// A wait inside a capture spoils the capture, and nothing else.
  void spoil_capture() {
    cudaGraph_t graph = nullptr;
    CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    HOLDS(cudaStreamSynchronize(stream_) == cudaErrorStreamCaptureUnsupported);
    HOLDS(cudaStreamEndCapture(stream_, &graph) == cudaErrorStreamCaptureInvalidated);
    HOLDS(graph == nullptr);
    HOLDS(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
    HOLDS(cudaGetLastError() == cudaSuccess);
  }

  void expect_padding() {
    for (const World& world : worlds_) {
      std::vector<unsigned char> bytes(world.pitch * rows_);
      CUDA(cudaMemcpy2D(bytes.data(), world.pitch, world.memory, world.pitch, world.pitch, rows_, cudaMemcpyDefault));
      for (int y = 0; y < rows_; ++y) {
        const unsigned char* row = bytes.data() + y * world.pitch;
        HOLDS(std::all_of(row + words_of_row * 4, row + world.pitch, [](unsigned char b) { return b == padding; }));
      }
    }
  }

  Writer& writer() { return writer_; }
  const Seen& seen() const { return seen_; }
  int graph_ends() const { return graph_ends_; }

 private:
  int rows_;
  Writer writer_;
  cudaStream_t stream_ = nullptr;
  World worlds_[2]{};
  unsigned char* picture_ = nullptr;
  size_t picture_pitch_ = 0;
  unsigned long long* population_ = nullptr;
  unsigned long long* host_population_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  Seen seen_{};
  int graph_ends_ = 0;
};

}  // namespace

int main(int count, char** words) {
  const int rows = rows_at_scale_one * program::scale(count, words);
  std::vector<uint32_t> cells(static_cast<size_t>(rows) * words_of_row);
  WorldOnCpu expected(rows);
  uint64_t state = 1970;
  for (size_t i = 0; i < cells.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    cells[i] = static_cast<uint32_t>(state >> 32) & static_cast<uint32_t>(state >> 16);
    unsigned char* row = expected.row(static_cast<int>(i / words_of_row)) + i % words_of_row * 32;
    for (int bit = 0; bit < 32; ++bit) row[bit] = cells[i] >> bit & 1;
  }

  Game game(rows);
  game.fill(cells);
  game.capture();
  game.checkpoint();
  std::vector<unsigned long long> populations;
  for (int i = 0; i < launches; ++i) {
    game.launch();
    game.checkpoint();
    populations.push_back(game.population());
    HOLDS(game.graph_ends() == i + 1);
    if (i == 0) game.spoil_capture();
  }
  HOLDS(game.seen().calls == launches && game.seen().worst == cudaSuccess);
  // An odd number of generations without the graph, from the world that the graph left.
  game.live(3);
  game.count();
  game.checkpoint();
  populations.push_back(game.population());
  game.expect_padding();

  const std::vector<unsigned char> frames = game.writer().finish();
  const size_t frame_bytes = static_cast<size_t>(rows) * columns;
  HOLDS(frames.size() == frame_bytes * (launches + 2));
  HOLDS(expected.looks_like(frames.data()));
  for (int i = 0; i <= launches; ++i) {
    for (int generation = 0; generation < (i < launches ? generations_of_graph : 3); ++generation) expected.live();
    HOLDS(populations[i] == expected.population());
    HOLDS(expected.looks_like(frames.data() + frame_bytes * (i + 1)));
  }
  const uint64_t sum = checksum(frames.data(), frames.size(), 0xcbf29ce484222325ull);
  char line[128];
  std::snprintf(line, sizeof(line), "%d x %d cells, %llu alive at the end, frames %016llx", columns, rows,
                populations.back(), static_cast<unsigned long long>(sum));
  return program::passed(line);
}
