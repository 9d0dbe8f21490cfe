#pragma once
// A table of fargpu's own behind cuGetExportTable, for libnvidia-ml.so.1: memory that the client keeps for reuse.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace fargpu::client {

inline constexpr CUuuid memory_table_id = {{'f', 'a', 'r', 'g', 'p', 'u', ' ', 'm', 'e', 'm', 'o', 'r', 'y', 0, 0, 1}};

struct MemoryTable {
  std::size_t bytes = sizeof(MemoryTable);
  /// How many bytes this process holds of the device that its program has freed, and that cuMemGetInfo counts as free.
  /// `uuid`: "GPU-" and the device's number.
  CUresult (*kept_bytes)(const char* uuid, std::uint64_t* bytes) = nullptr;
};

}  // namespace fargpu::client
