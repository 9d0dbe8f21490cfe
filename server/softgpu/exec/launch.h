#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "exec/program.h"
#include "memory/page_table.h"

namespace fargpu::softgpu {

struct Texture;

/// What kernels may ask of their device while they run. Called by several threads at once.
class DeviceServices {
 public:
  virtual ~DeviceServices() = default;
  /// Output of one printf.
  virtual void print(std::string_view text) = 0;
  /// The message of a failed assertion.
  virtual void report_assertion(std::string_view text) = 0;
  /// Device heap (malloc and free in kernels). Zero if there is no room.
  virtual DeviceAddress allocate(uint64_t bytes) = 0;
  /// False if the address was not allocated.
  virtual bool release(DeviceAddress address) = 0;
  /// A texture or surface object; null if the handle is none. It lives until the launch is over.
  virtual const Texture* find_texture(uint64_t handle) = 0;
  /// The value that a conditional node of a graph goes by. False if the handle is none.
  virtual bool set_condition(uint64_t handle, uint32_t value) = 0;
};

/// One grid of blocks to execute. Immutable while it runs.
struct Launch {
  std::shared_ptr<const Program> program;
  const Routine* kernel = nullptr;
  /// Per routine of the program: its constants with addresses filled in.
  const std::byte* const* constants = nullptr;
  std::shared_ptr<const void> keep_alive;  // owns `constants`

  ThreadDimensions grid;
  ThreadDimensions block;
  ThreadDimensions cluster;
  bool is_cluster_explicit = false;
  bool is_cooperative = false;
  uint32_t dynamic_shared_bytes = 0;
  std::vector<std::byte> parameters;
  uint32_t stack_bytes = 0;     // local memory per thread
  DeviceAddress workspace = 0;  // of a cooperative launch: see grid synchronisation

  const PageTable* page_table = nullptr;
  DeviceServices* services = nullptr;
  uint64_t grid_id = 0;
  uint32_t multiprocessor_count = 1;
};

}  // namespace fargpu::softgpu
