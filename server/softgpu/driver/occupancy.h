#pragma once

#include <cstdint>

#include "driver/module.h"

namespace fargpu::softgpu {

/// Blocks of a kernel that a multiprocessor holds at a time, by its threads, registers, shared
/// memory and block slots. Zero if it cannot hold one.
uint32_t blocks_per_multiprocessor(const Routine& kernel, uint64_t block_threads, uint64_t dynamic_shared_bytes);

}  // namespace fargpu::softgpu
