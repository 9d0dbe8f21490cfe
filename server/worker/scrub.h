#pragma once
// Memory that the driver gives may hold what somebody else left there. Here it becomes zeros before a session sees it.

#include <cuda.h>

#include <cstdint>

#include "driver_table.h"

namespace fargpu::server {

/// Waits until it is done: nothing of the session, not even a kernel that runs meanwhile, can see the memory before. For that the memory is
/// put at an address that cannot be guessed, and taken away again. `context`: any on the device; null if there is none.
CUresult scrub(DriverTable& driver, CUcontext context, int device, CUmemGenericAllocationHandle handle, std::uint64_t bytes);

/// Arrays of formats whose elements have no place of their own (block-compressed, YUV) cannot be written to as a whole.
bool can_scrub(const CUDA_ARRAY3D_DESCRIPTOR& array);
/// The same for an array, whose context is current. Nobody has its handle yet; that a kernel of the session finds where it lies cannot be
/// excluded.
CUresult scrub(DriverTable& driver, CUarray array);
CUresult scrub(DriverTable& driver, CUmipmappedArray mipmap, unsigned levels);

}  // namespace fargpu::server
