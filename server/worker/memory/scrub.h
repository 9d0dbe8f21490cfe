#pragma once
// Memory that the driver gives may hold what somebody else left there. Here it becomes zeros before a session sees it.

#include <cuda.h>

#include <cstdint>
#include <mutex>

#include "driver_table.h"

namespace fargpu::server {

/// Fills memory that has no address yet, on any thread that has no context of its own. Nothing of the session, not even
/// a kernel that runs meanwhile, can see it before: it is put at a place that cannot be guessed, and taken away again.
class Scrubber {
 public:
  explicit Scrubber(DriverTable& driver) : driver_(driver) {}
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;
  ~Scrubber();
  /// Waits until it is done. `context`: any on the device; null if there is none.
  CUresult fill(CUcontext context, int device, CUmemGenericAllocationHandle handle, std::uint64_t bytes);

 private:
  bool reserve();
  CUresult put_somewhere(CUmemGenericAllocationHandle handle, std::uint64_t bytes, CUdeviceptr& address);

  DriverTable& driver_;
  std::mutex mutex_;        // over the region's address
  CUdeviceptr region_ = 0;  ///< of addresses, most of them never used; 0 before the first memory
};

/// Arrays of formats whose elements have no place of their own (block-compressed, YUV) cannot be written to as a whole.
bool can_scrub(const CUDA_ARRAY3D_DESCRIPTOR& array);
/// Scrubs an array, whose context is current. Nobody has its handle yet.
/// A kernel of the session may still find where it
/// lies.
CUresult scrub(DriverTable& driver, CUarray array);
CUresult scrub(DriverTable& driver, CUmipmappedArray mipmap, unsigned levels);

}  // namespace fargpu::server
