#include "gpu_direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "protocol/limits.h"
#include "protocol/rdma/loop_trial.h"
#include "server/worker/base/pages.h"

namespace fargpu::server {
namespace {

constexpr std::size_t out_bytes = 32u << 20;
constexpr int trials = 2;             // of each way
constexpr double near_enough = 0.95;  // two trials of one way differ by as much

}  // namespace

bool GpuDirect::decide() {
  const std::lock_guard deciding(deciding_);
  if (std::exchange(decided_, true)) return on();
  try {
    const std::string text = choose();
    on_.store(true, std::memory_order_release);
    options_.tell("GPUDirect is on: " + text);
  } catch (const std::exception& error) {
    options_.tell(std::string("GPUDirect is off: ") + error.what());
  }
  return on();
}

// Returns what speaks for it; throws what speaks against it.
std::string GpuDirect::choose() {
  if (!options_.devices) throw rdma::RdmaError(options_.why_none);
  const auto direct = std::make_shared<DirectMemory>(driver_, device_);
  {
    const std::lock_guard lock(mutex_);
    memory_ = direct;
  }
  auto out = direct->make(out_bytes, /*sent=*/true), ring = direct->make(limits::rdma_ring_bytes, /*sent=*/false);
  const auto by_gpu = [&] {
    return rdma::try_loop(options_.devices, {out.get(), limits::rdma_ring_bytes}, ring, options_.trial_time);
  };
  std::string text = "bytes arrive";
  if (options_.measures) {
    const Pages pages(limits::rdma_ring_bytes);
    if (pages.empty()) throw rdma::RdmaError("no memory for a trial");
    double gpu = 0, host = 0;
    for (int i = 0; i < trials; ++i) {  // in turns: what else the card does burdens both
      host = std::max(host, rdma::try_loop(options_.devices, pages.bytes(), nullptr, options_.trial_time));
      gpu = std::max(gpu, by_gpu());
    }
    text = fmt::format("the card moves {:.2f} GB/s of the GPU's memory, and {:.2f} GB/s of the host's", gpu / 1e9,
                       host / 1e9);
    if (gpu <= 0 || gpu < near_enough * host) throw rdma::RdmaError(text);
  } else {
    (void)by_gpu();
  }
  const std::lock_guard lock(mutex_);
  out_memory_ = std::move(out);
  out_ = StagingSpace({out_memory_.get(), out_bytes});
  spare_ring_ = std::move(ring);
  return text;
}

void GpuDirect::give_up(const std::string& why) {
  if (on_.exchange(false)) options_.tell("GPUDirect is off from now on: " + why);
}

std::shared_ptr<std::byte> GpuDirect::ring() {
  {
    const std::lock_guard lock(mutex_);
    if (on() && spare_ring_) return std::exchange(spare_ring_, nullptr);
  }
  return make(limits::rdma_ring_bytes);
}

std::shared_ptr<std::byte> GpuDirect::slots(std::size_t bytes) { return make(bytes); }

std::shared_ptr<std::byte> GpuDirect::make(std::size_t bytes) noexcept {
  std::shared_ptr<DirectMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    if (on()) memory = memory_;
  }
  if (!memory) return nullptr;
  try {
    return memory->make(bytes, /*sent=*/false);
  } catch (const std::exception& error) {
    try {
      give_up(error.what());
    } catch (const std::exception&) {  // for want of memory: the line is lost
    }
    return nullptr;
  }
}

std::unique_lock<std::mutex> GpuDirect::leave_context() {
  std::shared_ptr<DirectMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    memory = memory_;
  }
  return memory ? memory->leave_context() : std::unique_lock<std::mutex>();
}

}  // namespace fargpu::server
