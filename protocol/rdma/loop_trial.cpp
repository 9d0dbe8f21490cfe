#include "loop_trial.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/device_bytes.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace fargpu::rdma {
namespace {

using Clock = std::chrono::steady_clock;
using Why = std::array<char, why_bytes>;

constexpr std::size_t step_bytes = 256u << 10;  // as channels put
constexpr std::size_t rounds_max = 8;           // over the source
constexpr std::size_t puts_max = 4;             // on their way

/// One end, which hears of nothing but its own puts.
class LoopEnd {
 public:
  LoopEnd(OpenedDevices& devices, std::byte* ring) : rdma_(devices.functions()) {
    const Events events{
        this, [](void*, const void*, std::size_t, const void*, std::size_t) {},
        [](void* self) { ++static_cast<LoopEnd*>(self)->flushed; },
        [](void* self, const char* why) { static_cast<LoopEnd*>(self)->failure = printable(why, why_bytes); }};
    Why why{};
    line = rdma_.open_line(devices.context(), limits::rdma_ring_bytes, ring, &events, why.data());
    if (!line) throw RdmaError(printable(why.data(), why_bytes));
  }
  ~LoopEnd() { rdma_.close_line(line); }
  LoopEnd(const LoopEnd&) = delete;
  LoopEnd& operator=(const LoopEnd&) = delete;

  void connect(LoopEnd& other) {
    End facts{};
    rdma_.end(other.line, &facts);
    Why why{};
    if (!rdma_.connect(line, &facts, why.data())) throw RdmaError(printable(why.data(), why_bytes));
  }

  Line* line = nullptr;
  std::size_t flushed = 0;
  std::string failure;

 private:
  const Interface& rdma_;
};

/// The source, as the devices know it.
class Known {
 public:
  Known(OpenedDevices& devices, std::span<std::byte> source, MemoryKind kind) : devices_(devices) {
    if (kind == MemoryKind::host && !devices.functions().knows_memory()) return;
    Why why{};
    memory = devices.functions().know(devices.context(), source.data(), source.size(), kind, why.data());
    if (!memory) throw RdmaError(printable(why.data(), why_bytes));
  }
  ~Known() {
    if (memory) devices_.functions().forget(devices_.context(), memory);
  }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  Memory* memory = nullptr;

 private:
  OpenedDevices& devices_;
};

// No two places alike, nor what lies there by chance.
std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  std::uint64_t state = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) | 1;
  for (std::size_t at = 0; at + sizeof(state) <= bytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(&all[at], &state, sizeof(state));
  }
  return all;
}

}  // namespace

double try_loop(const std::shared_ptr<OpenedDevices>& devices, std::span<std::byte> source,
                const std::shared_ptr<std::byte>& ring, std::chrono::milliseconds time) {
  const Interface& rdma = devices->functions();
  const std::vector<std::byte> sent = pattern(source.size());
  copy_wherever(source.data(), sent.data(), sent.size());
  const Known known(*devices, source, ring ? MemoryKind::device : MemoryKind::host);
  LoopEnd to(*devices, ring.get()), from(*devices, nullptr);
  from.connect(to);
  to.connect(from);
  std::vector<std::byte> there(sent.size());
  copy_wherever(rdma.ring(to.line), there.data(), there.size());

  const auto deadline = Clock::now() + time;
  const auto work_until = [&](std::size_t flushed) {
    while (from.flushed < flushed && from.failure.empty() && to.failure.empty() && Clock::now() < deadline) {
      rdma.progress(from.line);
      rdma.progress(to.line);
    }
    if (!from.failure.empty() || !to.failure.empty()) throw RdmaError(from.failure + to.failure);
    return from.flushed >= flushed;
  };
  std::size_t puts = 0;
  const auto put = [&](std::size_t at) {
    const std::size_t part = std::min(step_bytes, source.size() - at);
    if (!rdma.put(from.line, at, source.data() + at, part, known.memory) || !rdma.flush(from.line))
      throw RdmaError("bytes cannot be put by RDMA" + (from.failure.empty() ? "" : ": " + from.failure));
    ++puts;
  };
  // All of it once, not counted: the ends connect, and these are the bytes that are looked at.
  for (std::size_t at = 0; at < source.size(); at += step_bytes) put(at);
  if (!work_until(puts)) throw RdmaError("what is put does not arrive");
  copy_wherever(there.data(), rdma.ring(to.line), there.size());
  if (there != sent) throw RdmaError("what arrives is not what was put");

  const auto begin = Clock::now();
  const std::size_t before = from.flushed;
  for (std::size_t round = 0; round < rounds_max; ++round)
    for (std::size_t at = 0; at < source.size(); at += step_bytes) {
      if (puts >= puts_max && !work_until(puts - puts_max + 1)) break;
      if (Clock::now() >= deadline) break;
      put(at);
    }
  work_until(puts);
  const std::chrono::duration<double> took = Clock::now() - begin;
  const std::size_t landed = (from.flushed - before) * step_bytes;
  copy_wherever(there.data(), rdma.ring(to.line), there.size());
  if (there != sent) throw RdmaError("what arrives is not what was put");
  return static_cast<double>(landed) / std::max(took.count(), 1e-9);
}

}  // namespace fargpu::rdma
