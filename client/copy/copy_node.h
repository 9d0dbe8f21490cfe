#pragma once
// A copy as a node of a graph, whether the program adds it or captures it.

#include <cuda.h>

#include "client/memory/program_memory.h"
#include "client/objects/graph_parts.h"
#include "operations.capnp.h"
#include "protocol/copy.h"

namespace fargpu::client {

/// Sides in memory of the program that the GPU does not reach become parts.
CUresult write_copy(const ProgramMemory& memory, const CopyShape& shape, CopySide source, CopySide target,
                    wire::Copy::Builder out, NewParts& parts);
/// As the program made it.
CUDA_MEMCPY3D read_copy(const MemoryMap& map, const GraphParts& parts, wire::Copy::Reader in);

}  // namespace fargpu::client
