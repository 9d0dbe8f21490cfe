#pragma once
// A kernel's parameter block from the wire, as the array of pointers that the driver wants.

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "operations.capnp.h"

namespace fargpu::server {

class FunctionLayouts;
struct ContextState;

/// Points into the message that the block came with, so it lives no longer than that, or holds a copy. A block may end
/// early, as NCCL's do: what it leaves out is zero.
class Arguments {
 public:
  /// Resolves the function (or kernel, which is to run in this context; null if in none that is known).
  CUresult read(FunctionLayouts& layouts, std::uint64_t handle, capnp::Data::Reader block, CUfunction& function,
                ContextState* kernel_context, bool copy = false);
  void** pointers() { return pointers_.data(); }

 private:
  std::vector<void*> pointers_;
  std::vector<kj::byte> whole_;
};

}  // namespace fargpu::server
