#include "fake.h"

#include <dlfcn.h>

#include <cstdlib>

#include "faults.h"

#include <stdexcept>

namespace fargpu::fake {

namespace {

// Where the build put it, or where it was carried to.
const char* path() {
  const char* const elsewhere = std::getenv("FARGPU_FAKE_DRIVER");
  return elsewhere ? elsewhere : FARGPU_FAKE_PATH;
}

// The library's own function of this name; it is loaded when the driver is.
template <class Function>
Function* own(const char* name) {
  FakeDriver::instance();
  void* const library = ::dlopen(path(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) throw std::runtime_error(::dlerror());
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

void fail_call(std::size_t nth, CUresult result) {
  static auto* const function = own<void(std::size_t, CUresult)>("fargpu_fake_fail_call");
  function(nth, result);
}

const char* failed_call() {
  static auto* const function = own<const char*()>("fargpu_fake_failed_call");
  return function();
}

std::size_t calls_since() {
  static auto* const function = own<std::size_t()>("fargpu_fake_calls_since");
  return function();
}

FakeDriver& FakeDriver::instance() {
  static FakeDriver* const driver = new FakeDriver;
  return *driver;
}

FakeDriver::FakeDriver() {
  void* const library = ::dlopen(path(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(::dlerror());
  table_.fill([&](const char* name) { return ::dlsym(library, name); });
  const auto get = reinterpret_cast<const Controls* (*)()>(::dlsym(library, "fargpu_fake_controls"));
  controls_ = get();
}

}  // namespace fargpu::fake
