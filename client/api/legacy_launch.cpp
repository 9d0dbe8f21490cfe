// Launches by the interface of CUDA 1 to 3, which sets block and parameters one by one before it launches. CUDA Driver
// API, "Execution Control [DEPRECATED]".

#include <cstring>

#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "forms.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

// Changes what the next launch of a function will be.
template <class Change>
CUresult set(Thread& thread, CUfunction handle, Change&& change) {
  Function* const function = session_of(thread).functions.find(handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(function->mutex);
  return change(function->legacy);
}

}  // namespace

CUresult set_parameter(Thread& thread, CUfunction function, int offset, const void* bytes, std::size_t count) {
  if (offset < 0 || !bytes || static_cast<std::size_t>(offset) + count > limits::kernel_parameter_bytes_max)
    return CUDA_ERROR_INVALID_VALUE;
  return set(thread, function, [&](Function::Legacy& legacy) {
    const std::size_t end = static_cast<std::size_t>(offset) + count;
    if (legacy.parameters.size() < end) legacy.parameters.resize(end);
    std::memcpy(legacy.parameters.data() + offset, bytes, count);
    return CUDA_SUCCESS;
  });
}

CUresult launch_legacy(Thread& thread, CUfunction function, int width, int height, CUstream stream) {
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  Function::Legacy legacy;
  const auto copy = [&](const Function::Legacy& set) {
    legacy = set;
    return CUDA_SUCCESS;
  };
  if (const CUresult bad = set(thread, function, copy); bad != CUDA_SUCCESS) return bad;
  // What nobody set is zero.
  std::size_t bytes =
      std::max<std::size_t>(legacy.parameter_bytes, session_of(thread).functions.find(function)->parameter_bytes);
  legacy.parameters.resize(std::max<std::size_t>(bytes, 1));
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, legacy.parameters.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  return cuLaunchKernel(thread, function, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        legacy.block[0], legacy.block[1], legacy.block[2], legacy.shared_bytes, stream, nullptr, extra);
}

CUresult cuFuncSetBlockShape(Thread& thread, CUfunction function, int x, int y, int z) {
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  return set(thread, function, [&](Function::Legacy& legacy) {
    legacy.block = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedSize(Thread& thread, CUfunction function, unsigned bytes) {
  return set(thread, function, [&](Function::Legacy& legacy) {
    legacy.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(Thread& thread, CUfunction function, unsigned bytes) {
  if (bytes > limits::kernel_parameter_bytes_max) return CUDA_ERROR_INVALID_VALUE;
  return set(thread, function, [&](Function::Legacy& legacy) {
    legacy.parameter_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

// A texture reference belongs to its module, whose kernels find it without being told.
CUresult cuParamSetTexRef(Thread& thread, CUfunction function, int unit, CUtexref texture) {
  if (unit != CU_PARAM_TR_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_handle<HandleKind::texref>(thread, handle_of(texture)); bad != CUDA_SUCCESS)
    return bad;
  return set(thread, function, [](Function::Legacy&) { return CUDA_SUCCESS; });
}

}  // namespace fargpu::client::hand
