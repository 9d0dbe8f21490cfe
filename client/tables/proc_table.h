#pragma once
// cuGetProcAddress: which function a name means at a CUDA version. The table is generated from the headers.

#include <cuda.h>

#include <span>
#include <string_view>

namespace fargpu::client {

struct ProcEntry {
  std::string_view name;  ///< without suffixes
  int since;              ///< CUDA version that introduced this variant
  bool per_thread;
  void* function;
};

/// Sorted by name, then per_thread, then since.
std::span<const ProcEntry> proc_entries();

/// The newest variant of `name` that is no newer than `version`. `driver_version` is what the process sees as the
/// driver's. Flags: CU_GET_PROC_ADDRESS_*; with the per-thread flag, a name without such a variant gives the ordinary
/// one.
struct ProcAnswer {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};
ProcAnswer find_proc(std::string_view name, int version, bool per_thread);

}  // namespace fargpu::client
