#pragma once
// The interface of CUDA 2 and 3.1, whose sizes and device addresses have 32 bits: generated entries around the 64-bit
// calls.

#include <cuda.h>

#include <algorithm>
#include <limits>

#include "client/objects/context.h"
#include "client/objects/thread.h"

namespace fargpu::client {

/// The calls of that time work only in contexts that cuCtxCreate of that time made.
inline CUresult check_narrow_context(const Thread& thread) {
  const Context* const context = thread.context();
  return context && context->api_version == narrow_api_version ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/// A size for a program that has room for 32 bits of it: as much as it can be told.
inline unsigned narrowed(std::size_t size) {
  return static_cast<unsigned>(std::min<std::size_t>(size, std::numeric_limits<unsigned>::max()));
}

}  // namespace fargpu::client
