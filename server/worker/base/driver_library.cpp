#include "driver_library.h"

#include <dlfcn.h>

#include <algorithm>

namespace fargpu::server {

std::vector<std::string> load_driver(const std::string& path, DriverTable& table) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw DriverError("cannot load the driver library '" + path + "': " + ::dlerror());
  std::vector<std::string> absent = table.fill([&](const char* name) { return ::dlsym(library, name); });
  if (std::find(absent.begin(), absent.end(), "cuInit") != absent.end())
    throw DriverError("'" + path + "' is no CUDA driver library: it has no cuInit");
  return absent;
}

}  // namespace fargpu::server
