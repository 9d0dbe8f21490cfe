#pragma once

// The driver API as programs find it: by opening the library and looking names up.

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace softgpu_tests {

/// The library under test: SOFTGPU_LIBRARY, or the one that was built.
inline void* library() {
  static void* handle = [] {
    const char* path = std::getenv("SOFTGPU_LIBRARY");
    void* opened = dlopen(path != nullptr ? path : SOFTGPU_LIBRARY_PATH, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) throw std::runtime_error(dlerror());
    return opened;
  }();
  return handle;
}

template <class Function>
Function* find_function(const char* name) {
  void* address = dlsym(library(), name);
  if (address == nullptr) throw std::runtime_error(std::string("not exported: ") + name);
  return reinterpret_cast<Function*>(address);
}

}  // namespace softgpu_tests

#define SOFTGPU_NAME_OF(name) #name
/// A function of the driver by its name in cuda.h, which may stand for a version of it.
#define CU(name) (::softgpu_tests::find_function<decltype(name)>(SOFTGPU_NAME_OF(name)))
#define CHECK_OK(call) CHECK((call) == CUDA_SUCCESS)
#define REQUIRE_OK(call) REQUIRE((call) == CUDA_SUCCESS)

namespace softgpu_tests {

/// A context that is current while it lives, with whatever goes wrong in it ending with it.
class Context {
 public:
  explicit Context(int device = 0) {
    CU(cuInit)(0);
    if (CU(cuCtxCreate)(&context_, nullptr, 0, device) != CUDA_SUCCESS) throw std::runtime_error("no context");
  }
  ~Context() { CU(cuCtxDestroy)(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  CUcontext handle() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

/// A kernel "kernel" of a PTX text.
class Kernel {
 public:
  explicit Kernel(const std::string& ptx) {
    char log[2000] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    if (CU(cuModuleLoadDataEx)(&module_, ptx.c_str(), 2, options, values) != CUDA_SUCCESS)
      throw std::runtime_error(std::string(log) + "\n" + ptx);
    if (CU(cuModuleGetFunction)(&function_, module_, "kernel") != CUDA_SUCCESS)
      throw std::runtime_error("no function 'kernel'");
  }
  ~Kernel() { CU(cuModuleUnload)(module_); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  CUfunction function() const { return function_; }
  CUmodule module() const { return module_; }

  template <class... Arguments>
  CUresult launch(unsigned grid, unsigned block, CUstream stream, Arguments... arguments) const {
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    return CU(cuLaunchKernel)(function_, grid, 1, 1, block, 1, 1, 0, stream, pointers, nullptr);
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

/// Memory of the device.
class Memory {
 public:
  explicit Memory(size_t bytes) {
    if (CU(cuMemAlloc)(&address_, bytes) != CUDA_SUCCESS) throw std::runtime_error("no memory");
  }
  ~Memory() { CU(cuMemFree)(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
};

inline constexpr const char* ptx_header = ".version 8.6\n.target sm_90\n.address_size 64\n";

}  // namespace softgpu_tests
