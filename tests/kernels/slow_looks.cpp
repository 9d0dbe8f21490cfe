// A driver that is at times slow to say that an event has not happened: by the time it has said so, the event and what
// comes behind it may have. It stands before the software GPU, and widens what is a matter of microseconds otherwise.

#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <thread>

extern "C" [[gnu::visibility("default")]] CUresult cuEventQuery(CUevent event) {
  constexpr auto slowness = std::chrono::milliseconds(2);
  static const auto driver = reinterpret_cast<CUresult (*)(CUevent)>(::dlsym(RTLD_NEXT, "cuEventQuery"));
  thread_local unsigned asked = 0;
  const CUresult result = driver(event);
  const bool slow = result == CUDA_ERROR_NOT_READY && (++asked % 5 == 0 || asked % 7 == 0);
  if (slow) std::this_thread::sleep_for(slowness);
  return result;
}
