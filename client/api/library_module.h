#pragma once
// The module behind a library.

#include <cuda.h>

#include "protocol/handle.h"

namespace fargpu::client {

struct Context;
class Thread;

namespace hand {

/// The one that a library has in this context; null for none.
CUresult library_module(Thread& thread, Context* context, Handle library, CUmodule& module);

}  // namespace hand
}  // namespace fargpu::client
