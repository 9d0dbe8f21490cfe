#pragma once
// What the driver says of a handle that is none.

#include <cuda.h>

#include "handle.h"

namespace fargpu {

constexpr CUresult invalid_handle_result(HandleKind kind) {
  switch (kind) {
    case HandleKind::graph:
    case HandleKind::node:
    case HandleKind::exec:
    case HandleKind::allocation:
    case HandleKind::userobject:
    case HandleKind::texref:
    case HandleKind::surfref:
    case HandleKind::texobject:
    case HandleKind::surfobject: return CUDA_ERROR_INVALID_VALUE;
    case HandleKind::context: return CUDA_ERROR_INVALID_CONTEXT;
    default: return CUDA_ERROR_INVALID_HANDLE;
  }
}

}  // namespace fargpu
