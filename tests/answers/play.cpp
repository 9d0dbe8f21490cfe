#include "play.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "print.h"
#include "world.h"

namespace answers {

namespace {

constexpr int forked_seconds_max = 5;
constexpr int errors_before_max = 10;

/// A thread that does what it is told, one thing after the other, and keeps its current context.
class Aside {
 public:
  Aside() : thread_([this] { work(); }) {}
  ~Aside() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    task_ = std::move(task);
    busy_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return busy_; });
      const std::function<void()> task = std::move(task_);
      if (task) {
        lock.unlock();
        task();
        lock.lock();
      }
      busy_ = false;
      changed_.notify_all();
      if (!task) return;
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = false;
  std::thread thread_;
};

CUcontext second_context() {
  static const CUcontext made = [] {
    CUcontext context, popped;
    MUST(cuCtxCreate(&context, nullptr, 0, 0));
    MUST(cuCtxPopCurrent(&popped));
    return context;
  }();
  return made;
}

/// A thread of which the current context is destroyed.
Aside& thread_of_destroyed_context() {
  static Aside* const made = [] {
    (void)second_context();   // made first, so that it does not take the place of the one that goes
    auto* aside = new Aside;  // lives as long as the process
    CUcontext context, popped;
    MUST(cuCtxCreate(&context, nullptr, 0, 0));
    MUST(cuCtxPopCurrent(&popped));
    aside->run([context] { (void)cuCtxSetCurrent(context); });
    MUST(cuCtxDestroy(context));
    return aside;
  }();
  return *made;
}

void make_current() {
  for (int depth = 0; depth < 32; ++depth) {
    CUcontext popped = nullptr;
    if (cuCtxPopCurrent(&popped) != CUDA_SUCCESS || !popped) break;
  }
  MUST(cuCtxSetCurrent(primary_context()));
}

void* function_of(const Call& call) { return ::dlsym(RTLD_DEFAULT, call.symbol); }

// --- what a call is given -------------------------------------------------------------------------------------------

std::size_t out_bytes(const Parameter& p) { return std::size_t{8} * p.element_bytes; }

Slot argument(World& w, const Parameter& p) { return w.make(p.fixture, out_bytes(p)); }

/// Such a case does not exist here.
struct NoCase {};

Slot stale(const Parameter& p) {
  World gone;
  const Slot slot = gone.make(p.fixture, out_bytes(p));
  if (!gone.ends()) throw NoCase{};
  return slot;
}

void change_field(const Slot& slot, const Field& field, std::uint64_t value) {
  std::memcpy(slot.get<unsigned char*>() + field.offset, &value, std::min<std::size_t>(field.bytes, sizeof value));
}

std::vector<Slot> arguments(World& w, const Case& c) {
  std::vector<Slot> slots(c.call->count + 1);
  for (std::uint32_t i = 0; i < c.call->count; ++i) {
    const Parameter& p = c.call->parameters[i];
    Slot& slot = slots[i];
    if (c.change == Change::none || i != c.parameter || c.field) slot = argument(w, p);
    if (i != c.parameter) continue;
    switch (c.change) {
      case Change::none: break;
      case Change::value:
        if (c.field) change_field(slot, *c.field, c.value);
        else slot.put(c.value);
        break;
      case Change::null:
        if (c.field) change_field(slot, *c.field, 0);
        break;
      case Change::added: slot.put(argument(w, p).word() + c.value); break;
      case Change::fixture: slot = w.make(c.fixture, out_bytes(p)); break;
      case Change::another:
        slot = w.make(std::strcmp(p.fixture, "event") && std::strcmp(p.fixture, "recorded") ? "event" : "stream");
        break;
      case Change::stale: slot = stale(p); break;
      case Change::text: slot.put(c.fixture.c_str()); break;
    }
  }
  return slots;
}

/// Arguments that need nothing of the driver.
std::vector<Slot> bare_arguments(World& w, const Case& c) {
  std::vector<Slot> slots(c.call->count + 1);
  for (std::uint32_t i = 0; i < c.call->count; ++i) {
    const Parameter& p = c.call->parameters[i];
    if (p.role == Role::pointer || p.role == Role::text) slots[i] = w.make("out", out_bytes(p));
    else if (p.role != Role::handle && p.role != Role::address && p.role != Role::function && p.role != Role::record &&
             !maker_of(p.fixture))
      slots[i] = w.make(p.fixture);
  }
  return slots;
}

// --- what came of it ------------------------------------------------------------------------------------------------

struct Outcome {
  int result = 0;
  std::string text;
};

bool is_masked(const Case& c) {
  for (const char* const* masked = c.call->masked; masked && *masked; ++masked) {
    if (c.name == *masked) return true;
  }
  return false;
}

Outcome call(const Case& c, void* function, const std::vector<Slot>& slots, const World& w, int times = 1) {
  const Outputs outputs(*c.call, slots.data(), w);
  Outcome outcome;
  for (int i = 0; i < times; ++i) outcome.result = c.call->run(function, slots.data());
  outcome.text = std::to_string(outcome.result) + outputs.changed(is_masked(c));
  return outcome;
}

/// Calls whose first output is an object, by the beginning of their names, and what ends that object.
struct Maker_ {
  const char* prefix;
  void (*end)(std::uint64_t);
};
template <class T>
T as(std::uint64_t value) {
  if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(value);
  else return static_cast<T>(value);
}
const Maker_ makers[] = {
    {"cuCtxCreate", [](std::uint64_t v) { (void)cuCtxDestroy(as<CUcontext>(v)); }},
    {"cuGreenCtxCreate", [](std::uint64_t v) { (void)cuGreenCtxDestroy(as<CUgreenCtx>(v)); }},
    {"cuGreenCtxStreamCreate", [](std::uint64_t v) { (void)cuStreamDestroy(as<CUstream>(v)); }},
    {"cuDevicePrimaryCtxRetain", [](std::uint64_t) { (void)cuDevicePrimaryCtxRelease(0); }},
    {"cuStreamCreate", [](std::uint64_t v) { (void)cuStreamDestroy(as<CUstream>(v)); }},
    {"cuEventCreate", [](std::uint64_t v) { (void)cuEventDestroy(as<CUevent>(v)); }},
    {"cuMemAllocHost", [](std::uint64_t v) { (void)cuMemFreeHost(as<void*>(v)); }},
    {"cuMemHostAlloc", [](std::uint64_t v) { (void)cuMemFreeHost(as<void*>(v)); }},
    {"cuMemAllocAsync", [](std::uint64_t v) { (void)cuMemFreeAsync(v, nullptr); }},
    {"cuMemAllocFromPool", [](std::uint64_t v) { (void)cuMemFreeAsync(v, nullptr); }},
    {"cuMemAlloc", [](std::uint64_t v) { (void)cuMemFree(v); }},
    {"cuMemCreate", [](std::uint64_t v) { (void)cuMemRelease(v); }},
    {"cuMemPoolCreate", [](std::uint64_t v) { (void)cuMemPoolDestroy(as<CUmemoryPool>(v)); }},
    {"cuArrayCreate", [](std::uint64_t v) { (void)cuArrayDestroy(as<CUarray>(v)); }},
    {"cuArray3DCreate", [](std::uint64_t v) { (void)cuArrayDestroy(as<CUarray>(v)); }},
    {"cuMipmappedArrayCreate", [](std::uint64_t v) { (void)cuMipmappedArrayDestroy(as<CUmipmappedArray>(v)); }},
    {"cuModuleLoad", [](std::uint64_t v) { (void)cuModuleUnload(as<CUmodule>(v)); }},
    {"cuLibraryLoad", [](std::uint64_t v) { (void)cuLibraryUnload(as<CUlibrary>(v)); }},
    {"cuGraphInstantiate", [](std::uint64_t v) { (void)cuGraphExecDestroy(as<CUgraphExec>(v)); }},
    {"cuGraphCreate", [](std::uint64_t v) { (void)cuGraphDestroy(as<CUgraph>(v)); }},
    {"cuGraphClone", [](std::uint64_t v) { (void)cuGraphDestroy(as<CUgraph>(v)); }},
    {"cuTexObjectCreate", [](std::uint64_t v) { (void)cuTexObjectDestroy(v); }},
    {"cuSurfObjectCreate", [](std::uint64_t v) { (void)cuSurfObjectDestroy(v); }},
    {"cuUserObjectCreate", [](std::uint64_t v) { (void)cuUserObjectRelease(as<CUuserObject>(v), 1); }},
};

void end_what_was_made(const Case& c, const std::vector<Slot>& slots, const World& w) {
  for (const Maker_& maker : makers) {
    if (std::strncmp(c.call->symbol, maker.prefix, std::strlen(maker.prefix))) continue;
    for (std::uint32_t p = 0; p < c.call->count; ++p) {
      if (c.call->parameters[p].role != Role::pointer || c.call->parameters[p].element_bytes != 8) continue;
      const auto* at = slots[p].get<const std::uint64_t*>();
      if (w.bytes_at(at) && *at && (*at >> 56) != untouched_byte) maker.end(*at);
      return;
    }
    return;
  }
}

std::string memory_changed(const World& w, const char* fixture, World& owner) {
  if (!w.made(fixture)) return {};
  unsigned char now[memory_bytes];
  if (cuMemcpyDtoH(now, owner.get<CUdeviceptr>(fixture), memory_bytes) != CUDA_SUCCESS) return {};
  for (const unsigned char byte : now) {
    if (byte != memory_byte) return std::string(" ") + fixture + ":#" + hash_of(now, memory_bytes);
  }
  return {};
}

// --- the states -----------------------------------------------------------------------------------------------------

struct HostCall {
  const Case* played;
  void* function;
  const std::vector<Slot>* slots;
  const World* world;
  Outcome outcome;
};

Outcome in_host_function(const Case& c, void* function, const std::vector<Slot>& slots, World& w) {
  HostCall host{&c, function, &slots, &w, {}};
  const CUstream stream = w.get<CUstream>("stream2");
  MUST(cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto& h = *static_cast<HostCall*>(data);
        h.outcome = call(*h.played, h.function, *h.slots, *h.world);
      },
      &host));
  const CUresult waited = cuStreamSynchronize(stream);
  if (waited != CUDA_SUCCESS) host.outcome.text += " stream " + std::to_string(waited);
  return host.outcome;
}

Outcome in_child(const Case& c, void* function, const std::vector<Slot>& slots, const World& w) {
  int ends[2];
  if (::pipe(ends)) throw NoFixture("pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const Outcome outcome = call(c, function, slots, w);
    const ssize_t written = ::write(ends[1], outcome.text.data(), outcome.text.size());
    ::_exit(written < 0);
  }
  ::close(ends[1]);
  Outcome outcome;
  pollfd readable{ends[0], POLLIN, 0};
  char text[4096];
  if (::poll(&readable, 1, forked_seconds_max * 1000) == 1) {
    const ssize_t count = ::read(ends[0], text, sizeof text);
    outcome.text.assign(text, static_cast<std::size_t>(count > 0 ? count : 0));
  } else {
    outcome.text = "hangs";
    ::kill(child, SIGKILL);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (outcome.text.empty() && WIFSIGNALED(status)) outcome.text = "signal " + std::to_string(WTERMSIG(status));
  return outcome;
}

/// The end of a capture, told; what was captured by the call itself is counted.
std::string capture_end(CUstream stream) {
  CUgraph graph = nullptr;
  const CUresult ended = cuStreamEndCapture(stream, &graph);
  std::string text = " capture " + std::to_string(ended);
  std::size_t count = 0;
  if (ended == CUDA_SUCCESS && graph) {
    if (cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS && count) text += " of " + std::to_string(count);
    (void)cuGraphDestroy(graph);
  }
  return text;
}

Outcome with_capture(const Case& c, void* function, const std::vector<Slot>& slots, World& w) {
  const bool own = c.state == State::captured;
  if (own && !w.made("stream")) throw NoCase{};
  const CUstream stream = w.get<CUstream>(own ? "stream" : "captured_stream");
  const auto mode = static_cast<CUstreamCaptureMode>(c.detail);
  CUresult begun;
  Outcome outcome;
  std::string end;
  if (c.state == State::capture_elsewhere) {
    Aside aside;
    aside.run([&] {
      begun = cuCtxSetCurrent(primary_context());
      if (begun == CUDA_SUCCESS) begun = cuStreamBeginCapture(stream, mode);
    });
    must(begun, "cuStreamBeginCapture(");
    outcome = call(c, function, slots, w);
    aside.run([&] { end = capture_end(stream); });
  } else {
    MUST(cuStreamBeginCapture(stream, mode));
    outcome = call(c, function, slots, w);
    end = capture_end(stream);
  }
  outcome.text += end;
  return outcome;
}

Outcome in_state(const Case& c, void* function, const std::vector<Slot>& slots, World& w) {
  Outcome outcome;
  switch (c.state) {
    case State::twice: (void)call(c, function, slots, w); return call(c, function, slots, w);
    case State::no_context: {
      std::thread thread([&] { outcome = call(c, function, slots, w); });
      thread.join();
      return outcome;
    }
    case State::destroyed_context:
      thread_of_destroyed_context().run([&] { outcome = call(c, function, slots, w); });
      return outcome;
    case State::other_context: MUST(cuCtxSetCurrent(second_context())); return call(c, function, slots, w);
    case State::other_device: {
      int count = 0;
      CUcontext context;
      MUST(cuDeviceGetCount(&count));
      if (count < 2) throw NoCase{};
      MUST(cuDevicePrimaryCtxRetain(&context, 1));
      MUST(cuCtxSetCurrent(context));
      outcome = call(c, function, slots, w);
      (void)cuDevicePrimaryCtxRelease(1);
      return outcome;
    }
    case State::capture:
    case State::captured:
    case State::capture_elsewhere: return with_capture(c, function, slots, w);
    case State::host_function: return in_host_function(c, function, slots, w);
    case State::forked: return in_child(c, function, slots, w);
    default: return call(c, function, slots, w);
  }
}

}  // namespace

void begin_process() {
  MUST(cuInit(0));
  make_current();
}

Answer play(const Case& c) {
  void* const function = function_of(*c.call);
  if (!function) return {"absent", false};
  Answer answer;
  World w;
  bool begun = false;
  try {
    make_current();
    begun = true;
    const std::vector<Slot> slots = arguments(w, c);
    if (c.state == State::capture || c.state == State::capture_elsewhere) w.make("captured_stream");
    if (c.state == State::host_function) w.make("stream2");
    Outcome outcome = in_state(c, function, slots, w);
    answer.text = outcome.text;
    make_current();
    const CUresult later = cuCtxSynchronize();
    if (later != CUDA_SUCCESS) answer.text += " then " + std::to_string(later);
    answer.broken = later != CUDA_SUCCESS;
    const bool succeeded = outcome.result == CUDA_SUCCESS;
    if (!answer.text.empty() && !answer.broken && !(c.call->ends && succeeded)) {
      answer.text += memory_changed(w, "memory", w);
    }
    if (c.call->ends && succeeded && c.state != State::forked) {
      w.forget();
      answer.broken |= c.call->alone;
    } else if (succeeded && c.state != State::forked) {
      end_what_was_made(c, slots, w);
    }
    make_current();
  } catch (const NoFixture& missing) {
    answer.broken = !begun || !answer.text.empty();  // nothing can follow in this process
    if (answer.text.empty()) answer.text = std::string("no fixture: ") + missing.what();
    (void)cuCtxSetCurrent(primary_context());
  } catch (const NoCase&) {
    answer.text.clear();
  }
  return answer;
}

Answer play_before_init(const Case& c) {
  void* const function = function_of(*c.call);
  if (!function) return {"absent", false};
  World w;
  return {call(c, function, bare_arguments(w, c), w).text, false};
}

void play_after_error(const std::vector<Case>& played, const std::function<void(std::size_t)>& begins,
                      const std::function<void(std::size_t, const Answer&)>& ends) {
  std::vector<std::string> missing(played.size());
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::vector<Slot>> slots(played.size());
  for (std::size_t i = 0; i < played.size(); ++i) {
    worlds.push_back(std::make_unique<World>());
    try {
      make_current();
      slots[i] = arguments(*worlds[i], played[i]);
    } catch (const NoFixture& what) {
      missing[i] = std::string("no fixture: ") + what.what();
    }
  }
  World w;
  make_current();
  CUdeviceptr nowhere = 0x10;
  unsigned value = 1;
  void* parameters[] = {&nowhere, &value};
  MUST(cuLaunchKernel(w.get<CUfunction>("function"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  // What fixtures left behind may be told first.
  for (int i = 0; i < errors_before_max && cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS; ++i) {}
  for (std::size_t i = 0; i < played.size(); ++i) {
    begins(i);
    Answer answer{missing[i], false};
    void* const function = function_of(*played[i].call);
    (void)cuCtxSetCurrent(primary_context());
    if (!function) answer.text = "absent";
    else if (answer.text.empty()) answer.text = call(played[i], function, slots[i], *worlds[i]).text;
    worlds[i]->forget();
    ends(i, answer);
  }
}

}  // namespace answers
