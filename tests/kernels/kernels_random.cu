// Random work on several streams, checked against what the same steps give one after the other. Each step uses areas of
// memory of several kinds, and comes behind the last step that used them, by an event, by the order of a stream or by
// the legacy stream; everything else may run at once. Before the program looks at memory, it learns in one of several
// ways that the last use is complete. TEST_SEED chooses the steps, KERNELS_STEPS how many, KERNELS_THREADS how many
// threads do so at once.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void affine(unsigned* to, unsigned count, unsigned factor, unsigned summand, unsigned spins) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned idle = 0;
  for (unsigned spin = 0; spin < spins; ++spin) idle += clock();
  if (i < count) to[i] = to[i] * factor + summand + (idle == 1 && spins == ~0u);
}

extern "C" __global__ void blend(unsigned* to, unsigned count, const unsigned* from, unsigned from_count,
                                 unsigned shift) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = to[i] * 3 + from[(i + shift) % from_count];
}

#else

#include <atomic>
#include <thread>
#include <utility>

using namespace kernels;

namespace {

using Word = unsigned;
using Words = std::vector<Word>;

enum class Kind { device, pooled, pinned, registered, managed, pageable };
constexpr int kinds = 6;

unsigned number_of(const char* name, unsigned otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : otherwise;
}

/// Memory, and what it holds when all steps so far are done.
struct Area {
  Kind kind;
  Words wanted;
  CUdeviceptr device = 0;  // how the GPU knows it; 0 for pageable memory
  Word* host = nullptr;    // how the program does; null for memory of the device
  Words pageable;          // pageable and registered: where it lies
  CUevent last = nullptr;  // behind its last use; null: that is complete
  CUstream user = nullptr;

  unsigned count() const { return static_cast<unsigned>(wanted.size()); }
  std::size_t bytes() const { return wanted.size() * sizeof(Word); }
};

/// What one step does to areas: to memory in its place on a stream, and to what is wanted at once.
struct Step {
  enum Op { transform, mix, fill, copy, function } op;
  Area* to;
  Area* from;  // mix and copy
  Word a, b;
};

struct Graph {
  CUgraphExec exec = nullptr;
  std::vector<Step> steps;
};

class Worker {
 public:
  /// `alone`: no other thread gives the device work, so that there may be managed memory.
  Worker(std::uint64_t seed, const Kernels& kernels, bool alone) : random_(seed), kernels_(kernels), alone_(alone) {
    for (int i = 0; i < 4; ++i) {
      CUstream stream;
      OK(cuStreamCreate(&stream, i < 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
      streams_.push_back(stream);
    }
    streams_.push_back(nullptr);
    for (int i = 0; i < 2 * kinds; ++i)
      if (const auto kind = static_cast<Kind>(i % kinds); kind != Kind::managed || alone) areas_.push_back(make(kind));
  }

  ~Worker() {
    for (CUstream stream : streams_) cuStreamSynchronize(stream);
    for (Graph& graph : graphs_) cuGraphExecDestroy(graph.exec);
    for (auto& area : areas_) drop(*area);
    for (CUstream stream : streams_)
      if (stream) cuStreamDestroy(stream);
  }

  void run(unsigned steps) {
    for (step_ = 0; step_ < steps; ++step_) {
      const unsigned what = below(100);
      if (what < 60) {
        const Step step = draw();
        give(step, any_stream());
      } else if (what < 85) {
        look(*areas_[below(static_cast<unsigned>(areas_.size()))]);
      } else if (what < 90) {
        capture();
      } else if (what < 96) {
        if (!graphs_.empty()) launch(graphs_[below(static_cast<unsigned>(graphs_.size()))]);
      } else {
        replace(areas_[below(static_cast<unsigned>(areas_.size()))]);
      }
    }
    for (auto& area : areas_) look(*area);
  }

 private:
  unsigned below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }
  CUstream any_stream() { return streams_[below(static_cast<unsigned>(streams_.size()))]; }
  Area& any_area() { return *areas_[below(static_cast<unsigned>(areas_.size()))]; }
  bool blocking(CUstream stream) const { return stream == nullptr || stream == streams_[2] || stream == streams_[3]; }

  std::unique_ptr<Area> make(Kind kind) {
    // A word, what is compared where kernels use it, and what is paged and takes the lanes.
    const unsigned counts[] = {1, 1000, 5000, 90'000, 400'000};
    auto area = std::make_unique<Area>();
    area->kind = kind;
    area->wanted.resize(counts[below(5)]);
    for (std::size_t i = 0; i < area->wanted.size(); ++i) area->wanted[i] = static_cast<Word>(i * 2654435761u + step_);
    const std::size_t bytes = area->bytes();
    void* host = nullptr;
    switch (kind) {
      case Kind::device: OK(cuMemAlloc(&area->device, bytes)); break;
      case Kind::pooled:
        OK(cuMemAllocAsync(&area->device, bytes, streams_[0]));
        OK(cuStreamSynchronize(streams_[0]));
        break;
      case Kind::pinned:
        OK(cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
        area->host = static_cast<Word*>(host);
        OK(cuMemHostGetDevicePointer(&area->device, host, 0));
        break;
      case Kind::registered:
        area->host = take_pages(*area);
        OK(cuMemHostRegister(area->host, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
        OK(cuMemHostGetDevicePointer(&area->device, area->host, 0));
        break;
      case Kind::managed:
        OK(cuCtxSynchronize());
        OK(cuMemAllocManaged(&area->device, bytes, CU_MEM_ATTACH_GLOBAL));
        area->host = reinterpret_cast<Word*>(area->device);
        break;
      case Kind::pageable:
        area->pageable.resize(area->wanted.size());
        area->host = area->pageable.data();
        break;
    }
    if (kind == Kind::managed) OK(cuMemcpyHtoD(area->device, area->wanted.data(), bytes));
    else if (area->host) std::memcpy(area->host, area->wanted.data(), bytes);
    else OK(cuMemcpyHtoD(area->device, area->wanted.data(), bytes));
    OK(cuStreamSynchronize(nullptr));  // streams that do not wait for the legacy one see it too
    return area;
  }

  // Whole pages, of which nothing else has a part that the driver would then take for registered too.
  static Word* take_pages(Area& area) {
    constexpr std::size_t page_words = 4096 / sizeof(Word);
    area.pageable.resize((area.wanted.size() / page_words + 2) * page_words);
    void* begin = area.pageable.data();
    std::size_t bytes = area.pageable.size() * sizeof(Word);
    return static_cast<Word*>(std::align(4096, bytes - 4096, begin, bytes));
  }

  void drop(Area& area) {
    if (area.last) cuEventDestroy(area.last);
    if (area.kind == Kind::device || area.kind == Kind::managed) cuMemFree(area.device);
    else if (area.kind == Kind::pooled) cuMemFreeAsync(area.device, streams_[0]);
    else if (area.kind == Kind::pinned) cuMemFreeHost(area.host);
    else if (area.kind == Kind::registered) cuMemHostUnregister(area.host);
  }

  // Of memory that a graph uses there is no other.
  void replace(std::unique_ptr<Area>& area) {
    for (const Graph& graph : graphs_)
      for (const Step& step : graph.steps)
        if (step.to == area.get() || step.from == area.get()) return;
    if (area->kind != Kind::device || below(2) == 0) look(*area);  // freeing memory of the device waits for its use
    drop(*area);
    area = make(area->kind);
  }

  int index_of(const Area* area) const {
    const auto found = std::find_if(areas_.begin(), areas_.end(), [&](const auto& each) { return each.get() == area; });
    return static_cast<int>(found - areas_.begin());
  }
  void tell(const char* what, const Step& step, CUstream stream) const {
    static const char* const names[] = {"transform", "mix", "fill", "copy", "function"};
    const auto number = std::find(streams_.begin(), streams_.end(), stream) - streams_.begin();
    std::printf("%u %s %s to %d (kind %d, %u) from %d (kind %d, %u), stream %d\n", step_, what, names[step.op],
                index_of(step.to), static_cast<int>(step.to->kind), step.to->count(), index_of(step.from),
                static_cast<int>(step.from->kind), step.from->count(), static_cast<int>(number));
  }

  static bool managed(const Area* area) { return area->kind == Kind::managed; }
  static bool pageable(const Area* area) { return area->kind == Kind::pageable; }

  Step draw() {
    while (true) {
      const Step step{static_cast<Step::Op>(below(5)), &any_area(), &any_area(), static_cast<Word>(random_()),
                      static_cast<Word>(random_())};
      const bool kernel = step.op == Step::transform || step.op == Step::mix,
                 two = step.op == Step::mix || step.op == Step::copy;
      if (two && step.to == step.from) continue;
      // When the program's own memory is read for a copy to managed memory nobody says.
      if (step.op == Step::copy && (managed(step.to) || managed(step.from)) &&
          (pageable(step.to) || pageable(step.from)))
        continue;
      if (step.op != Step::copy && step.op != Step::function && step.to->device == 0) continue;
      if (step.op == Step::mix && step.from->device == 0) continue;
      if (step.op == Step::copy && step.to->device == 0 && step.from->device == 0) continue;
      // The program's own memory of which the GPU knows nothing is changed when nothing uses it (look()), and managed
      // memory by no host function.
      if (step.op == Step::function && step.to->kind != Kind::pinned && step.to->kind != Kind::registered) continue;
      if (kernel && step.to->count() > 100'000 && below(4) != 0) continue;
      return step;
    }
  }

  /// What the step makes of what is wanted.
  static void apply(const Step& step) {
    Words& to = step.to->wanted;
    switch (step.op) {
      case Step::transform:
        for (Word& word : to) word = word * step.a + step.b;
        break;
      case Step::mix:
        for (std::size_t i = 0; i < to.size(); ++i)
          to[i] = to[i] * 3 + step.from->wanted[(static_cast<Word>(i) + step.a % 1000) % step.from->count()];
        break;
      case Step::fill: std::fill(to.begin(), to.end(), step.a); break;
      case Step::copy:
        std::copy_n(step.from->wanted.begin(), std::min(to.size(), step.from->wanted.size()), to.begin());
        break;
      case Step::function:
        for (Word& word : to) word += step.a;
        break;
    }
  }

  struct Addition {
    Word* words;
    std::size_t count;
    Word summand;
    bool once;
  };
  static void CUDA_CB add(void* data) {
    auto* const addition = static_cast<Addition*>(data);
    for (std::size_t i = 0; i < addition->count; ++i) addition->words[i] += addition->summand;
    if (addition->once) delete addition;
  }

  /// Gives the step to a stream, be it captured.
  void enqueue(const Step& step, CUstream stream, bool captured) {
    Area& to = *step.to;
    const unsigned blocks = blocks_for(to.count());
    switch (step.op) {
      case Step::transform:
        OK(kernels_.try_launch("affine", {blocks}, {block_size}, 0, stream, to.device, to.count(), step.a, step.b,
                               step.b % 3 == 0 && blocks < 10 ? 3000u : 0u));
        break;
      case Step::mix:
        OK(kernels_.try_launch("blend", {blocks}, {block_size}, 0, stream, to.device, to.count(), step.from->device,
                               step.from->count(), step.a % 1000));
        break;
      case Step::fill: OK(cuMemsetD32Async(to.device, step.a, to.count(), stream)); break;
      case Step::copy: copy(to, *step.from, stream, captured); break;
      case Step::function:
        OK(cuLaunchHostFunc(stream, add, new Addition{to.host, to.count(), step.a, !captured}));
        break;
    }
  }

  void copy(Area& to, const Area& from, CUstream stream, bool captured) {
    const std::size_t bytes = std::min(to.bytes(), from.bytes());
    const bool plain = captured || below(4) != 0;
    // Asynchronous copies of pageable memory are read, or complete, when they return; others in their place.
    if (!plain && stream == nullptr && to.host && !from.host) OK(cuMemcpyDtoH(to.host, from.device, bytes));
    else if (!plain && stream == nullptr && from.host && !to.host) OK(cuMemcpyHtoD(to.device, from.host, bytes));
    else if (plain && to.host && !from.host) OK(cuMemcpyDtoHAsync(to.host, from.device, bytes, stream));
    else if (plain && from.host && !to.host) OK(cuMemcpyHtoDAsync(to.device, from.host, bytes, stream));
    else OK(cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
  }

  static CUdeviceptr address_of(const Area& area) {
    return area.host ? reinterpret_cast<CUdeviceptr>(area.host) : area.device;
  }

  /// Orders the stream behind the last use of the area.
  void order(const Area& area, CUstream stream) {
    if (area.last == nullptr) return;
    const bool in_order =
        area.user == stream || (blocking(area.user) && blocking(stream) && (area.user == nullptr || stream == nullptr));
    if (!in_order || below(4) == 0) OK(cuStreamWaitEvent(stream, area.last, 0));
  }

  void used(Area& area, CUstream stream) {
    if (area.kind == Kind::pageable) return;
    if (area.last == nullptr || below(3) == 0) {
      if (area.last) OK(cuEventDestroy(area.last));  // be it behind work that is not complete
      OK(cuEventCreate(&area.last, below(2) == 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
    }
    OK(cuEventRecord(area.last, stream));
    area.user = stream;
  }

  void give(const Step& step, CUstream stream) {
    const bool two = step.op == Step::mix || step.op == Step::copy;
    if (logs_) tell("give", step, stream);
    // The program's own memory is touched by the call itself: it waits for what comes before it on the stream, but not
    // for what the program has yet to do with it.
    order(*step.to, stream);
    if (two) order(*step.from, stream);
    enqueue(step, stream, false);
    apply(step);
    used(*step.to, stream);
    if (two) used(*step.from, stream);
  }

  void capture() {
    if (graphs_.size() >= 6) return;
    Graph made;
    CUgraph graph = nullptr;
    // While a stream that waits for the legacy one is captured, no thread may use that.
    const CUstream stream = streams_[below(alone_ ? 4 : 2)];
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (unsigned steps = 1 + below(5); made.steps.size() < steps;) {
      const Step step = draw();
      const bool two = step.op == Step::mix || step.op == Step::copy;
      // The addresses in a graph stay; pageable memory may be used by it too, but look() would not know when.
      if (step.to->kind == Kind::pageable || (two && step.from->kind == Kind::pageable)) continue;
      if (logs_) tell("  capture", step, stream);
      enqueue(step, stream, true);
      made.steps.push_back(step);
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&made.exec, graph, 0));
    OK(cuGraphDestroy(graph));
    graphs_.push_back(std::move(made));
  }

  void launch(Graph& graph) {
    const CUstream stream = any_stream();
    std::vector<Area*> uses;
    for (const Step& step : graph.steps) {
      uses.push_back(step.to);
      if (step.op == Step::mix || step.op == Step::copy) uses.push_back(step.from);
    }
    std::sort(uses.begin(), uses.end());
    uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
    for (const Area* area : uses) order(*area, stream);
    for (unsigned times = 1 + below(3); times > 0; --times) {
      if (logs_) std::printf("%u launch graph %zu\n", step_, &graph - graphs_.data());
      OK(cuGraphLaunch(graph.exec, stream));
      for (const Step& step : graph.steps) apply(step);
    }
    for (Area* area : uses) used(*area, stream);
  }

  /// Comes back when the program knows that the area's last use is complete; says how.
  const char* learn(Area& area) {
    if (area.kind == Kind::managed) {  // the program may touch it only while the device is idle
      OK(cuCtxSynchronize());
      return "context synchronized";
    }
    if (area.last == nullptr) return "nothing to wait for";
    std::atomic<bool> told{false};
    const auto tell = [](void* data) { *static_cast<std::atomic<bool>*>(data) = true; };
    const auto poll = [](auto&& query) {
      for (CUresult result = query(); result != CUDA_SUCCESS; result = query()) GIVES(CUDA_ERROR_NOT_READY, result);
    };
    unsigned way = below(8);
    if (way == 4 && !alone_) way = 0;  // not while another thread captures
    switch (way) {
      case 0: OK(cuEventSynchronize(area.last)); return "event synchronized";
      case 1: poll([&] { return cuEventQuery(area.last); }); return "event queried";
      case 2: OK(cuStreamSynchronize(area.user)); return "stream synchronized";
      case 3: poll([&] { return cuStreamQuery(area.user); }); return "stream queried";
      case 4: OK(cuCtxSynchronize()); return "context synchronized";
      case 5: {
        const CUstream stream = any_stream();
        OK(cuStreamWaitEvent(stream, area.last, 0));
        OK(cuStreamSynchronize(stream));
        return "another stream synchronized";
      }
      case 6:
        OK(cuLaunchHostFunc(area.user, tell, &told));
        while (!told) {}
        return "host function";
      default: {
        Word word;
        const CUstream stream = any_stream();
        const Area& other = *areas_[0];  // memory of the device, whose words are of no interest
        OK(cuStreamWaitEvent(stream, area.last, 0));
        OK(cuMemcpyDtoHAsync(&word, other.device, sizeof word, stream));
        return "a word copied";
      }
    }
  }

  void look(Area& area) {
    const char* const way = learn(area);
    if (logs_) std::printf("%u look at %d: %s\n", step_, index_of(&area), way);
    if (area.last) OK(cuEventDestroy(std::exchange(area.last, nullptr)));
    Words copied;
    const Word* words = area.host;
    if (words == nullptr) {
      copied.resize(area.count());
      OK(cuMemcpyDtoH(copied.data(), area.device, area.bytes()));
      words = copied.data();
    }
    for (std::size_t i = 0; i < area.wanted.size(); ++i) {
      const Word got = static_cast<const volatile Word*>(words)[i];
      if (got == area.wanted[i]) continue;
      report("seed %llu, step %u: memory of kind %d with %u words, %s: [%zu] is %#x, not %#x",
             static_cast<unsigned long long>(seed()), step_, static_cast<int>(area.kind), area.count(), way, i, got,
             area.wanted[i]);
      throw Failed();
    }
    // The program writes some of it itself.
    if (area.host == nullptr || (area.kind != Kind::managed && below(2) == 0)) return;
    if (area.kind == Kind::managed && below(2) == 0) return;
    for (unsigned times = 1 + below(20); times > 0; --times) {
      const unsigned i = below(area.count());
      area.host[i] = area.wanted[i] = static_cast<Word>(random_());
    }
    if (logs_) std::printf("%u write to %d\n", step_, index_of(&area));
  }

  std::mt19937_64 random_;
  const Kernels& kernels_;
  const bool alone_;
  std::vector<CUstream> streams_;
  std::vector<std::unique_ptr<Area> > areas_;
  std::vector<Graph> graphs_;
  unsigned step_ = 0;
  const bool logs_ = std::getenv("KERNELS_LOG") != nullptr;
};

}  // namespace

CASE(work) {
  const unsigned steps = number_of("KERNELS_STEPS", 300), threads = number_of("KERNELS_THREADS", 1);
  const Kernels kernels;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  if (threads == 1) {
    Worker(seed(), kernels, /*alone=*/true).run(steps);
    return;
  }
  std::vector<std::thread> all;
  std::atomic<bool> failed{false};
  for (unsigned i = 0; i < threads; ++i)
    all.emplace_back([&, i] {
      try {
        OK(cuCtxSetCurrent(context));
        Worker(seed() + 1000 * i, kernels, /*alone=*/false).run(steps);
      } catch (const Failed&) {
        failed = true;
      }
    });
  for (std::thread& thread : all) thread.join();
  HOLDS(!failed);
}

#endif
