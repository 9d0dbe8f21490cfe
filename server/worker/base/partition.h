#pragma once
// A session's part of a device: groups of its multiprocessors, which are all that its kernels may be on.

#include <cuda.h>

#include <vector>

#include "driver_table.h"

namespace fargpu::server {

/// Into how many groups of multiprocessors (sm_groups.h) a device can be divided; 0 where the driver does not divide
/// it.
unsigned count_sm_groups(DriverTable& driver, CUdevice device);
/// Those of these numbers. A number means the same multiprocessors in all processes that go by one MPS daemon
/// (measured, driver 580). Throws DriverError.
std::vector<CUdevResource> choose_sm_groups(DriverTable& driver, CUdevice device, const std::vector<unsigned>& numbers);
/// How many multiprocessors they have together.
unsigned processors_of(const std::vector<CUdevResource>& groups);

/// A green context of the groups, in the place of the device's primary context: what it is converted to is what the
/// session has for that. So all that the session makes is of the part, and there is nothing of the whole that it could
/// name. Used by the executor only.
class Partition {
 public:
  Partition(DriverTable& driver, CUdevice device, std::vector<CUdevResource> groups)
      : driver_(driver), device_(device), groups_(std::move(groups)) {}
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;
  ~Partition() { close(); }

  /// Makes it, if it is not there; with it comes the primary context.
  CUresult open();
  /// Nothing of it is current or at work.
  void close();
  CUgreenCtx green() const { return green_; }
  CUcontext cuda() const { return cuda_; }
  CUdevice device() const { return device_; }

 private:
  DriverTable& driver_;
  const CUdevice device_;
  std::vector<CUdevResource> groups_;
  CUgreenCtx green_ = nullptr;
  CUcontext cuda_ = nullptr;
};

}  // namespace fargpu::server
