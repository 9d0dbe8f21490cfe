#include "driver/occupancy.h"

#include <algorithm>

#include "common/limits.h"

namespace fargpu::softgpu {
namespace {

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

uint32_t blocks_per_multiprocessor(const Routine& kernel, uint64_t block_threads, uint64_t dynamic_shared_bytes) {
  if (block_threads == 0 || block_threads > threads_per_block_max) return 0;
  uint64_t warps = round_up(block_threads, 32) / 32;
  uint64_t warp_registers = round_up(kernel.register_count * 32ull, register_allocation_unit);
  uint64_t shared =
      round_up(kernel.static_shared_bytes + dynamic_shared_bytes + shared_bytes_reserved, shared_allocation_unit);
  uint64_t blocks = blocks_per_multiprocessor_max;
  blocks = std::min(blocks, threads_per_multiprocessor_max / (warps * 32));
  blocks = std::min(blocks, registers_per_multiprocessor / (warp_registers * warps));
  blocks = std::min(blocks, shared_bytes_per_multiprocessor / shared);
  return static_cast<uint32_t>(blocks);
}

}  // namespace fargpu::softgpu
