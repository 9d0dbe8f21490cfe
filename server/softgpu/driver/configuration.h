#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fargpu::softgpu {

/// What the environment says about the devices. Malformed values are reported on stderr, and the
/// default holds.
struct Configuration {
  int device_count = 1;                        // FARGPU_SOFTGPU_DEVICES
  uint64_t memory_bytes = uint64_t{16} << 30;  // FARGPU_SOFTGPU_MEMORY, e.g. 4GiB
  std::string shared_use;                      // FARGPU_SOFTGPU_SHARED, a path; empty: each process has its own devices
  int multiprocessor_count = 16;               // FARGPU_SOFTGPU_SMS
  bool launch_blocking = false;                // CUDA_LAUNCH_BLOCKING
  /// Hardware numbers of the devices that the process sees, in order (CUDA_VISIBLE_DEVICES).
  std::vector<int> visible;

  static Configuration from_environment();
};

}  // namespace fargpu::softgpu
