#include "fake.h"

#include <dlfcn.h>

#include <stdexcept>

namespace fargpu::fake {

FakeDriver& FakeDriver::instance() {
  static FakeDriver* const driver = new FakeDriver;
  return *driver;
}

FakeDriver::FakeDriver() {
  void* const library = ::dlopen(FARGPU_FAKE_PATH, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(::dlerror());
  table_.fill([&](const char* name) { return ::dlsym(library, name); });
  const auto get = reinterpret_cast<const Controls* (*)()>(::dlsym(library, "fargpu_fake_controls"));
  controls_ = get();
}

}  // namespace fargpu::fake
