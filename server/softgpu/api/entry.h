#pragma once

// Every prototype of the driver API, under the names that are exported.
#define __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_PUSH_VISIBILITY_DEFAULT
#include <cuda.h>
#pragma GCC visibility push(default)
#include <cudaProfiler.h>
#pragma GCC visibility pop

#include <new>
#include <type_traits>

#include "driver/driver.h"
#include "driver/failure.h"
#include "driver/operation.h"

// An entry point checks its arguments, finds the objects behind its handles, and leaves the rest
// to driver/. Where a function exists once for the legacy default stream and once for the one per
// thread (_ptsz, _ptds), both are one line over a common one.

namespace fargpu::softgpu {

/// Runs the body of an entry point and turns what it throws into an error code. The body may give
/// a code itself.
template <class Body>
CUresult guarded(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return CUDA_SUCCESS;
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    return failure.code();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

/// Runs the body of an entry point that needs cuInit, and that host functions must not call.
template <class Body>
CUresult entry(Body&& body) noexcept {
  return guarded([&] {
    Driver::get();
    require(!is_in_host_function(), CUDA_ERROR_NOT_PERMITTED);
    return body();
  });
}

}  // namespace fargpu::softgpu
