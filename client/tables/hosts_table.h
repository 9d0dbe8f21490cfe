#pragma once
// A table of fargpu's own behind cuGetExportTable, for libraries that come with it: which host a device is of.

#include <cuda.h>

#include <cstddef>

namespace fargpu::client {

inline constexpr CUuuid hosts_table_id = {{'f', 'a', 'r', 'g', 'p', 'u', ' ', 'h', 'o', 's', 't', 's', 0, 0, 0, 1}};

struct HostsTable {
  std::size_t bytes = sizeof(HostsTable);
  /// Of a device of the program: the number of its host, and how many devices the program sees there. The program has
  /// one host if it fails.
  CUresult (*host_of)(CUdevice device, unsigned* host, unsigned* devices) = nullptr;
};

}  // namespace fargpu::client
