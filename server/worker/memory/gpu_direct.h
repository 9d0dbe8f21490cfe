#pragma once
// Whether the contents of a session's bulk lanes go between its card and its GPU without the host's memory, and the
// memory through which they go then. docs/internals/rdma.md

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "direct_memory.h"
#include "driver_table.h"
#include "protocol/rdma/context.h"
#include "staging.h"

namespace fargpu::server {

/// Decided once, when the first lane is there. What fails afterwards leaves the lanes that there are as they are.
/// Threads: any.
class GpuDirect {
 public:
  struct Options {
    std::shared_ptr<rdma::OpenedDevices> devices;  ///< opened for memory of a GPU; null: none
    std::string why_none;
    bool measures = true;                          ///< false: it is taken however slow it is
    std::chrono::milliseconds trial_time{25};      ///< of each of its trials, at most
    std::function<void(const std::string&)> tell;  ///< a line for the host's log
  };
  GpuDirect(DriverTable& driver, CUdevice device, Options options)
      : driver_(driver), device_(device), options_(std::move(options)) {}

  /// Whether it is on. The first time that takes as long as the trials, a tenth of a second at most, and what the
  /// driver and UCX take.
  bool decide();
  bool on() const { return on_.load(std::memory_order_acquire); }
  /// It is off for what is still to come.
  void give_up(const std::string& why);

  /// By which lanes go while it is on.
  const std::shared_ptr<rdma::OpenedDevices>& devices() const { return options_.devices; }
  /// For the ring of a lane, of limits::rdma_ring_bytes. Null: in the host's memory.
  std::shared_ptr<std::byte> ring();
  /// For chunks that arrive, as long as the session. Null: in the host's memory.
  std::shared_ptr<std::byte> slots(std::size_t bytes);
  /// For chunks that leave; used by the executor only. Null: in the host's memory.
  StagingSpace* out() { return on() ? &out_ : nullptr; }

  /// As DirectMemory's, where there is any.
  [[nodiscard]] std::unique_lock<std::mutex> leave_context();

 private:
  std::string choose();
  std::shared_ptr<std::byte> make(std::size_t bytes) noexcept;

  DriverTable& driver_;
  const CUdevice device_;
  const Options options_;
  std::mutex deciding_;  // before the other one
  bool decided_ = false;
  std::mutex mutex_;
  std::shared_ptr<DirectMemory> memory_;
  std::shared_ptr<std::byte> spare_ring_;
  // Written before it is on.
  std::shared_ptr<std::byte> out_memory_;
  StagingSpace out_;
  std::atomic<bool> on_{false};
};

}  // namespace fargpu::server
