#pragma once
// The private tables that CUDA's runtime and math libraries ask the driver for (cuGetExportTable). README.md in this
// folder says which slots mean what. Everything in them is answered here; none needs the worker but the enumeration of
// a module's functions.

#include <cuda.h>

namespace fargpu::client {

/// The table of this id, or null if fargpu has none. Tables have one address for the life of the process.
const void* export_table(const CUuuid& id);

}  // namespace fargpu::client
