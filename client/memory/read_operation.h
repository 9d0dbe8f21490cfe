#pragma once
// Memory operations as programs ask for them.

#include <cuda.h>

#include "client/connect/facts.h"
#include "client/stream/memory_operation.h"
#include "memory_map.h"

namespace fargpu::client {

/// What the driver would refuse is refused, on a device with these attributes.
CUresult read_operation(const MemoryMap& map, const Device& device, const CUstreamBatchMemOpParams& params,
                        MemoryOperation& operation);

}  // namespace fargpu::client
