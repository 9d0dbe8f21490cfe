// Every NVML function, weakly: nvml.cpp's definitions come first, the others answer that they are not supported. What
// arguments they take does not matter for that.

#include <fmt/format.h>

#include "client/base/log.h"
#include "nvml.h"

namespace fargpu::client::nvml {
namespace {

Return refuse(const char* name, Return answer) noexcept {
  try {
    log::write_once(log::Level::info, name,
                    fmt::format("{} is not {}", name, answer == NVML_ERROR_NO_PERMISSION ? "permitted" : "supported"));
  } catch (...) {}
  return answer;
}

}  // namespace

#define FARGPU_NVML(name)                                                 \
  extern "C" __attribute__((weak, visibility("default"))) Return name() { \
    return refuse(#name, NVML_ERROR_NOT_SUPPORTED);                       \
  }
#define FARGPU_NVML_CHANGE(name)                                          \
  extern "C" __attribute__((weak, visibility("default"))) Return name() { \
    return refuse(#name, NVML_ERROR_NO_PERMISSION);                       \
  }
#include "functions.def"
#undef FARGPU_NVML
#undef FARGPU_NVML_CHANGE

}  // namespace fargpu::client::nvml
