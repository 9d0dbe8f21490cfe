// Every NVML function, weakly: nvml.cpp's definitions come first, the others answer that they are not supported. What arguments they
// take does not matter for that.

#include <fmt/format.h>

#include "client/log.h"
#include "nvml.h"

namespace fargpu::client::nvml {
namespace {

Return refuse(const char* name) noexcept {
  try {
    log::write_once(log::Level::info, name, fmt::format("{} is not supported", name));
  } catch (...) {
  }
  return NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

#define FARGPU_NVML(name) \
  extern "C" __attribute__((weak, visibility("default"))) Return name() { return refuse(#name); }
#include "functions.def"
#undef FARGPU_NVML

}  // namespace fargpu::client::nvml
