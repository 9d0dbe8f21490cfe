#pragma once

#include <cstdint>

// The multiprocessor that the device describes: like that of an H100 (CUDA C++ programming guide,
// technical specifications per compute capability, 9.0).

namespace fargpu::softgpu {

inline constexpr int driver_version = 13000;
inline constexpr int compute_capability_major = 9;
inline constexpr int compute_capability_minor = 0;
inline constexpr uint32_t compute_capability_number = 90;

inline constexpr uint32_t threads_per_block_max = 1024;
inline constexpr uint32_t block_dimension_max[3] = {1024, 1024, 64};
inline constexpr uint32_t grid_dimension_max[3] = {0x7fffffff, 65535, 65535};
inline constexpr uint32_t threads_per_multiprocessor_max = 2048;
inline constexpr uint32_t blocks_per_multiprocessor_max = 32;
inline constexpr uint32_t registers_per_multiprocessor = 65536;
inline constexpr uint32_t registers_per_block_max = 65536;
inline constexpr uint32_t registers_per_thread_max = 255;
inline constexpr uint32_t register_allocation_unit = 256;  // per warp
inline constexpr uint32_t shared_bytes_per_multiprocessor = 228u << 10;
inline constexpr uint32_t shared_bytes_per_block = 48u << 10;  // without opting in
inline constexpr uint32_t shared_bytes_per_block_optin = 227u << 10;
inline constexpr uint32_t shared_bytes_reserved = 1u << 10;  // by the system, per block
inline constexpr uint32_t shared_allocation_unit = 128;
inline constexpr uint32_t constant_bytes = 64u << 10;
inline constexpr uint32_t cluster_blocks_portable = 8;
inline constexpr uint32_t cluster_blocks_max = 16;
inline constexpr uint32_t parameter_bytes_max = 32764;
inline constexpr int clock_khz = 1980000;

/// Local memory that recursive kernels get at least: frames here hold other things than those of
/// compiled code, so what the program asked for says little.
inline constexpr uint32_t stack_bytes_min = 64u << 10;

}  // namespace fargpu::softgpu
