#pragma once
// A card that reaches memory of a GPU, between ends in this process: what it puts there or from there is copied at once
// by the memory's owner. Everything else is UCX's.

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "protocol/device_bytes.h"
#include "rdma_ends.h"

namespace fargpu::test {

struct GpuCard {
  std::atomic<bool> refuses_sources{false}, refuses_rings{false};  ///< memory of a GPU
  std::atomic<bool> garbles{false};                                ///< what it puts to or from such memory
  std::atomic<long> gpu_us{0}, host_us{0};                         ///< how long a put takes
  std::atomic<unsigned> from_gpu{0}, into_gpu{0};                  ///< puts
  std::function<bool(unsigned number)> puts_from_gpu;              ///< whether the next one works, if it is asked

  std::mutex mutex;
  std::map<rdma::Line*, void*> rings;               // in memory of a GPU, of lines
  std::map<std::uint64_t, rdma::Line*> lines;       // by what they tell of their ring
  std::map<rdma::Line*, std::uint64_t> other_ring;  // of lines that are connected
};
inline GpuCard gpu_card;

/// It is as it was when it was new, when this begins.
struct NewGpuCard {
  NewGpuCard() {
    gpu_card.refuses_sources = gpu_card.refuses_rings = gpu_card.garbles = false;
    gpu_card.gpu_us = gpu_card.host_us = 0;
    gpu_card.from_gpu = gpu_card.into_gpu = 0;
    gpu_card.puts_from_gpu = nullptr;
  }
};

inline const rdma::Interface& ucx_with_gpu_card() {
  static const rdma::Interface& ucx = ucx_by_rail();
  constexpr static const char* refusal = "ibv_reg_dmabuf_mr failed: error 524";
  static const rdma::Interface by_card = [] {
    rdma::Interface functions = ucx;
    functions.open_line = [](rdma::Context* context, std::size_t bytes, void* ring, const rdma::Events* events,
                             char* why) -> rdma::Line* {
      if (ring && gpu_card.refuses_rings) {
        std::snprintf(why, rdma::why_bytes, "%s", refusal);
        return nullptr;
      }
      rdma::Line* const line = ucx.open_line(context, bytes, nullptr, events, why);
      if (!line) return nullptr;
      const std::lock_guard lock(gpu_card.mutex);
      if (ring) gpu_card.rings[line] = ring;
      gpu_card.lines[reinterpret_cast<std::uint64_t>(ucx.ring(line))] = line;
      return line;
    };
    functions.close_line = [](rdma::Line* line) {
      {
        const std::lock_guard lock(gpu_card.mutex);
        gpu_card.rings.erase(line);
        gpu_card.other_ring.erase(line);
        gpu_card.lines.erase(reinterpret_cast<std::uint64_t>(ucx.ring(line)));
      }
      ucx.close_line(line);
    };
    functions.ring = [](rdma::Line* line) {
      const std::lock_guard lock(gpu_card.mutex);
      const auto found = gpu_card.rings.find(line);
      return found == gpu_card.rings.end() ? ucx.ring(line) : found->second;
    };
    functions.connect = [](rdma::Line* line, const rdma::End* other, char* why) {
      {
        const std::lock_guard lock(gpu_card.mutex);
        gpu_card.other_ring[line] = other->ring;
      }
      return ucx.connect(line, other, why);
    };
    functions.put = [](rdma::Line* line, std::uint64_t offset, const void* bytes, std::size_t size,
                       rdma::Memory* memory) {
      const bool from_gpu = DeviceBytes::contains(bytes);
      std::byte* to = nullptr;
      bool into_gpu = false;
      {
        // The lock lasts until the bytes are copied: the other end may close its line.
        const std::lock_guard lock(gpu_card.mutex);
        const std::uint64_t ring = gpu_card.other_ring.at(line);
        const auto found = gpu_card.lines.find(ring);
        if (found == gpu_card.lines.end()) return from_gpu || ucx.put(line, offset, bytes, size, memory);
        const auto gpu_ring = gpu_card.rings.find(found->second);
        into_gpu = gpu_ring != gpu_card.rings.end();
        to = (into_gpu ? static_cast<std::byte*>(gpu_ring->second) : reinterpret_cast<std::byte*>(ring)) + offset;
        if (from_gpu || into_gpu) {
          if (from_gpu && gpu_card.puts_from_gpu && !gpu_card.puts_from_gpu(gpu_card.from_gpu)) return false;
          if (rail_is_down || (from_gpu && !memory)) return false;
          if (!DeviceBytes::copy(to, bytes, size)) return false;
          constexpr std::byte wrong{0x5a};
          if (gpu_card.garbles) copy_wherever(to + size / 2, &wrong, 1);
        }
      }
      gpu_card.from_gpu += from_gpu;
      gpu_card.into_gpu += into_gpu;
      std::this_thread::sleep_for(std::chrono::microseconds(from_gpu ? gpu_card.gpu_us : gpu_card.host_us));
      return from_gpu || into_gpu || ucx.put(line, offset, bytes, size, memory);
    };
    functions.know = [](rdma::Context* context, void* address, std::size_t bytes, rdma::MemoryKind kind,
                        char* why) -> rdma::Memory* {
      if (kind == rdma::MemoryKind::host) return ucx.know(context, address, bytes, kind, why);
      std::snprintf(why, rdma::why_bytes, "%s", refusal);
      return gpu_card.refuses_sources ? nullptr : static_cast<rdma::Memory*>(address);
    };
    functions.forget = [](rdma::Context* context, rdma::Memory* memory) {
      if (!DeviceBytes::contains(memory)) ucx.forget(context, memory);
    };
    return functions;
  }();
  return by_card;
}

/// Opened once. The other end may be one of open_ucx(): both are of one UCX.
inline std::shared_ptr<rdma::OpenedDevices> open_gpu_card() {
  static const auto opened = std::make_shared<rdma::OpenedDevices>(ucx_with_gpu_card(), "lo", "tcp");
  return opened;
}

}  // namespace fargpu::test
