#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <cstdlib>
#include <string_view>

#include "common/limits.h"
#include "driver/driver.h"
#include "driver/loader.h"
#include "driver/module.h"
#include "driver/submission.h"

using namespace fargpu::softgpu;

namespace {

template <class Data>
CUresult load_module(CUmodule* result, unsigned option_count, const CUjit_option* options, void** values, Data data) {
  return entry([&] {
    require(result != nullptr);
    auto context = usable_context();
    refuse_while_capturing();
    JitOptions jit(option_count, options, values);
    auto program = load_program(data(), jit);
    *result = Module::load(context, std::move(program), {})->handle();
  });
}

std::shared_ptr<Module> find_module(CUmodule handle) { return ModuleTable::instance().get(handle); }

std::string name_of(const char* name) {
  require(name != nullptr);
  return name;
}

}  // namespace

// ---- modules -------------------------------------------------------------------------------------------------------

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(module, 0, nullptr, nullptr, [&] { return image; });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int option_count, CUjit_option* options,
                            void** values) {
  return load_module(module, option_count, options, values, [&] { return image; });
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load_module(module, 0, nullptr, nullptr, [&] { return image; });
}
CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::string contents;
  return load_module(module, 0, nullptr, nullptr, [&]() -> const void* {
    contents = read_image_file(path);
    return contents.c_str();
  });
}

CUresult cuModuleUnload(CUmodule handle) {
  return entry([&] {
    auto module = find_module(handle);
    require(module->library() == nullptr, CUDA_ERROR_NOT_PERMITTED);
    unload(module);
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return entry([&] {
    require(mode != nullptr);
    // As NVIDIA's driver since CUDA 12.2. CUDA Programming Guide, "Lazy Loading".
    const char* const wanted = std::getenv("CUDA_MODULE_LOADING");
    *mode = wanted && std::string_view(wanted) == "EAGER" ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return entry([&] {
    require(function != nullptr);
    *function = find_module(module)->function(name_of(name))->handle();
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule module) {
  return entry([&] {
    require(count != nullptr);
    *count = static_cast<unsigned>(find_module(module)->functions().size());
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule handle) {
  return entry([&] {
    require(functions != nullptr && count != 0);
    auto module = find_module(handle);
    for (unsigned i = 0; i < count && i < module->functions().size(); ++i)
      functions[i] = module->functions()[i]->handle();
  });
}

namespace {

void give_global(const Module::Global& global, CUdeviceptr* address, size_t* bytes) {
  if (address != nullptr) *address = global.address;
  if (bytes != nullptr) *bytes = global.bytes;
}

}  // namespace

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return entry([&] {
    require(address != nullptr || bytes != nullptr);
    give_global(find_module(module)->global(name_of(name)), address, bytes);
  });
}

// Texture and surface references went with CUDA 12; modules have none.
CUresult cuModuleGetTexRef(CUtexref*, CUmodule module, const char* name) {
  return entry([&] {
    find_module(module);
    name_of(name);
    throw Failure(CUDA_ERROR_NOT_FOUND);
  });
}
CUresult cuModuleGetSurfRef(CUsurfref*, CUmodule module, const char* name) {
  return entry([&] {
    find_module(module);
    name_of(name);
    throw Failure(CUDA_ERROR_NOT_FOUND);
  });
}

// ---- libraries -----------------------------------------------------------------------------------------------------

namespace {

template <class Data>
CUresult load_library(CUlibrary* result, const CUjit_option* options, void** values, unsigned option_count,
                      const CUlibraryOption* library_options, unsigned library_option_count, Data data) {
  return entry([&] {
    require(result != nullptr);
    require(library_options != nullptr || library_option_count == 0);
    for (unsigned i = 0; i < library_option_count; ++i)
      require(library_options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE ||
              library_options[i] == CU_LIBRARY_BINARY_IS_PRESERVED);
    JitOptions jit(option_count, options, values);
    const void* image = data();
    require(image != nullptr);
    std::shared_ptr<Library> library;
    try {
      library = Library::make(load_program(image, jit));
    } catch (const Failure& failure) {  // as with NVIDIA's driver, which reads a library when it is first used
      library = Library::make_broken(failure.code());
    }
    *result = reinterpret_cast<CUlibrary>(library.get());
  });
}

std::shared_ptr<Library> find_library(CUlibrary handle) { return LibraryTable::instance().get(handle); }
std::shared_ptr<Kernel> find_kernel(CUkernel handle) { return KernelTable::instance().get(handle); }

}  // namespace

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* options, void** values,
                           unsigned int option_count, CUlibraryOption* library_options, void**,
                           unsigned int library_option_count) {
  return load_library(library, options, values, option_count, library_options, library_option_count,
                      [&] { return image; });
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                               unsigned int option_count, CUlibraryOption* library_options, void**,
                               unsigned int library_option_count) {
  std::string contents;
  return load_library(library, options, values, option_count, library_options, library_option_count,
                      [&]() -> const void* {
                        contents = read_image_file(path);
                        return contents.c_str();
                      });
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return entry([&] {
    auto library = LibraryTable::instance().remove(handle);
    require(library != nullptr, CUDA_ERROR_INVALID_HANDLE);
    for (const auto& kernel : library->kernels()) KernelTable::instance().remove(kernel->handle());
    for (const auto& module : library->take_modules()) unload(module);
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return entry([&] {
    require(kernel != nullptr);
    *kernel = find_library(library)->kernel(name_of(name))->handle();
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary library) {
  return entry([&] {
    require(count != nullptr);
    *count = static_cast<unsigned>(find_library(library)->kernels().size());
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary handle) {
  return entry([&] {
    require(kernels != nullptr && count != 0);
    auto library = find_library(handle);
    for (unsigned i = 0; i < count && i < library->kernels().size(); ++i) kernels[i] = library->kernels()[i]->handle();
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return entry([&] {
    require(module != nullptr);
    *module = find_library(library)->module_in(usable_context())->handle();
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return entry([&] {
    require(address != nullptr || bytes != nullptr);
    give_global(find_library(library)->module_in(usable_context())->global(name_of(name)), address, bytes);
  });
}

/// It needs no context: CUDA's runtime asks before it has one. Memory of a variable is some
/// context's here, and then that of the first device.
CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return entry([&] {
    require(address != nullptr || bytes != nullptr);
    auto context = current_handle() != nullptr ? usable_context() : Driver::get().device(0).primary_context();
    if (current_handle() == nullptr) {
      std::lock_guard lock(context->primary_mutex);
      context->revive();
    }
    auto module = find_library(library)->module_in(context);
    give_global(module->global(name_of(name), /*managed_only=*/true), address, bytes);
  });
}

CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library, const char* name) {
  return entry([&] {
    require(function != nullptr);
    find_library(library);
    name_of(name);
    throw Failure(CUDA_ERROR_NOT_FOUND);
  });
}

// ---- kernels -------------------------------------------------------------------------------------------------------

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return entry([&] {
    require(function != nullptr);
    *function = find_kernel(kernel)->function_in(usable_context())->handle();
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  return entry([&] {
    require(library != nullptr);
    *library = reinterpret_cast<CUlibrary>(find_kernel(kernel)->library().get());
  });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
  return entry([&] {
    require(value != nullptr);
    Driver::get().device(device);
    auto kernel = find_kernel(handle);
    *value = kernel->settings(device).get(attribute, kernel->routine());
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  return entry([&] {
    Driver::get().device(device);
    find_kernel(kernel)->set(attribute, value, device);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  return entry([&] {
    require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL);
    Driver::get().device(device);
    find_kernel(kernel);  // a hint about caches that this device does not have
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return entry([&] {
    require(name != nullptr);
    *name = find_kernel(kernel)->routine().name.c_str();
  });
}

namespace {

void give_parameter(const Routine& kernel, size_t index, size_t* offset, size_t* bytes) {
  require(offset != nullptr && index < kernel.parameters.size());
  *offset = kernel.parameters[index].offset;
  if (bytes != nullptr) *bytes = kernel.parameters[index].bytes;
}

}  // namespace

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return entry([&] { give_parameter(find_kernel(kernel)->routine(), index, offset, bytes); });
}

// ---- functions -----------------------------------------------------------------------------------------------------

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return entry([&] { give_parameter(find_function(function)->kernel(), index, offset, bytes); });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return entry([&] {
    require(value != nullptr);
    auto function = find_function(handle);
    *value = function->settings().get(attribute, function->kernel());
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return entry([&] { find_function(function)->set(attribute, value); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  return entry([&] {
    require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL);
    find_function(function);
  });
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) {
  return entry([&] {
    require(config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
    find_function(function);
  });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  return entry([&] {
    require(module != nullptr);
    *module = find_function(function)->module()->handle();
  });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return entry([&] {
    require(name != nullptr);
    *name = find_function(function)->kernel().name.c_str();
  });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  return entry([&] {
    require(state != nullptr);
    find_function(function);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
  });
}

CUresult cuFuncLoad(CUfunction function) {
  return entry([&] { find_function(function); });
}

// ---- linking -------------------------------------------------------------------------------------------------------

namespace {

/// The inputs of a link so far. The options belong to the program until the link is destroyed.
struct Linker {
  explicit Linker(JitOptions options) : options(options) {}
  JitOptions options;
  std::vector<std::string> texts;
  std::string result;
};

using LinkerTable = HandleTable<Linker, CUlinkState>;

void add_input(Linker& linker, CUjitInputType type, const void* data, size_t bytes) {
  switch (type) {
    case CU_JIT_INPUT_PTX:
    case CU_JIT_INPUT_FATBINARY: break;
    // Compiled code is not for this device.
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY: break;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
  for (std::string& text : texts_of(data, bytes, linker.options)) linker.texts.push_back(std::move(text));
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int option_count, CUjit_option* options, void** values, CUlinkState* state) {
  return entry([&] {
    require(state != nullptr);
    usable_context();
    *state = LinkerTable::instance().add(std::make_shared<Linker>(JitOptions(option_count, options, values)));
  });
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char*, unsigned int,
                          CUjit_option*, void**) {
  return entry([&] { add_input(*LinkerTable::instance().get(state), type, data, bytes); });
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
                          void**) {
  return entry([&] {
    auto linker = LinkerTable::instance().get(state);
    std::string contents = read_image_file(path);
    add_input(*linker, type, contents.data(), contents.size());
  });
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  return entry([&] {
    require(image != nullptr);
    auto linker = LinkerTable::instance().get(state);
    // Found out now rather than when the result is loaded.
    load_program(Image{linker->texts}, linker->options);
    linker->result = make_linked_image(linker->texts);
    *image = linker->result.data();
    if (bytes != nullptr) *bytes = linker->result.size();
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return entry([&] { require(LinkerTable::instance().remove(state) != nullptr, CUDA_ERROR_INVALID_HANDLE); });
}
