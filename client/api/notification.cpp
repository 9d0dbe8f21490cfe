// Asynchronous notifications. CUDA Driver API, "Memory Management", cuDeviceRegisterAsyncNotification. The one that
// there is tells a process that it has gone over its budget of device memory. A session cannot: what it may have is
// checked before it gets it.

#include <map>
#include <mutex>

#include "client/session/process.h"
#include "client/session/session.h"
#include "client/objects/thread.h"
#include "client_hand.h"

namespace fargpu::client::hand {
namespace {

std::mutex mutex;
std::uintptr_t last = 0;

std::map<std::uintptr_t, CUdevice>& registered() {
  static auto* const devices = new std::map<std::uintptr_t, CUdevice>;
  return *devices;
}

}  // namespace

CUresult cuDeviceRegisterAsyncNotification(Thread& thread, CUdevice device, CUasyncCallback function, void*,
                                           CUasyncCallbackHandle* callback) {
  if (!session_of(thread).terms.facts.device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!function || !callback) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(mutex);
  registered()[++last] = device;
  *callback = reinterpret_cast<CUasyncCallbackHandle>(last);
  return CUDA_SUCCESS;
}

CUresult cuDeviceUnregisterAsyncNotification(Thread& thread, CUdevice device, CUasyncCallbackHandle callback) {
  if (!session_of(thread).terms.facts.device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(mutex);
  const auto found = registered().find(reinterpret_cast<std::uintptr_t>(callback));
  if (found == registered().end() || found->second != device) return CUDA_ERROR_INVALID_VALUE;
  registered().erase(found);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::client::hand
