#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "driver/address_space.h"
#include "driver/configuration.h"
#include "driver/device.h"

namespace fargpu::softgpu {

/// The state of the library after cuInit. It is never destroyed, so that calls of static
/// destructors, and kernels that still run, find it alive at exit.
class Driver {
 public:
  /// Makes the devices; throws NO_DEVICE if there are none. Later calls do nothing.
  static void initialize();
  /// Throws NOT_INITIALIZED before initialize(), and in children of fork() made after it, whose
  /// threads and devices are gone.
  static Driver& get();
  static bool is_initialized();

  const Configuration& configuration() const { return configuration_; }
  AddressSpace& addresses() { return *addresses_; }
  int device_count() const { return static_cast<int>(devices_.size()); }
  /// Throws INVALID_DEVICE.
  Device& device(int ordinal);

 private:
  Driver();

  Configuration configuration_;
  std::unique_ptr<AddressSpace> addresses_;
  std::vector<std::unique_ptr<Device>> devices_;
};

inline AddressSpace& addresses() { return Driver::get().addresses(); }

}  // namespace fargpu::softgpu
