// Images and what comes of them: modules, libraries, functions, kernels, links. What nothing changes is made once in a
// process.

#include "fixtures.h"
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

namespace answers {

namespace {

const char image_text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 number = 5;\n"
    ".visible .entry store(.param .u64 address, .param .u32 value) {\n"
    "  .reg .b32 %r<2>; .reg .b64 %rd<2>;\n"
    "  ld.param.u64 %rd1, [address]; ld.param.u32 %r1, [value];\n"
    "  st.global.u32 [%rd1], %r1; ret;\n}\n";

CUmodule lasting_module() {
  static const CUmodule made = [] {
    CUmodule module;
    MUST(cuModuleLoadData(&module, image_text));
    return module;
  }();
  return made;
}
CUlibrary lasting_library() {
  static const CUlibrary made = [] {
    CUlibrary library;
    MUST(cuLibraryLoadData(&library, image_text, nullptr, nullptr, 0, nullptr, nullptr, 0));
    return library;
  }();
  return made;
}
CUkernel lasting_kernel() {
  static const CUkernel made = [] {
    CUkernel kernel;
    MUST(cuLibraryGetKernel(&kernel, lasting_library(), "store"));
    return kernel;
  }();
  return made;
}
/// A file that holds the image, for calls that take a path.
const char* image_file() {
  static char path[64];
  if (!path[0]) {
    const int file = ::memfd_create("image", 0);
    if (file < 0 || ::write(file, image_text, sizeof image_text - 1) != sizeof image_text - 1) {
      throw NoFixture("memfd_create");
    }
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  return path;
}

}  // namespace

CUfunction lasting_function() {
  static const CUfunction made = [] {
    CUfunction function;
    MUST(cuModuleGetFunction(&function, lasting_module(), "store"));
    return function;
  }();
  return made;
}
void** kernel_arguments(World& w) {
  return w.list<void*>({w.list<CUdeviceptr>({w.get<CUdeviceptr>("memory")}), w.list<unsigned>({7})});
}

void add_code(Makers& makers) {
  makers.insert({
      {"image", [](World&) { return slot_of(static_cast<const char*>(image_text)); }},
      {"image_size", [](World&) { return slot_of(sizeof image_text); }},
      {"image_file", [](World&) { return slot_of(image_file()); }},
      {"module", [](World&) { return slot_of(lasting_module()); }},
      {"function", [](World&) { return slot_of(lasting_function()); }},
      {"library", [](World&) { return slot_of(lasting_library()); }},
      {"kernel", [](World&) { return slot_of(lasting_kernel()); }},
      {"own_module",
       [](World& w) {
         CUmodule made;
         MUST(cuModuleLoadData(&made, image_text));
         w.at_end([made] { (void)cuModuleUnload(made); });
         return slot_of(made);
       }},
      {"own_library",
       [](World& w) {
         CUlibrary made;
         MUST(cuLibraryLoadData(&made, image_text, nullptr, nullptr, 0, nullptr, nullptr, 0));
         w.at_end([made] { (void)cuLibraryUnload(made); });
         return slot_of(made);
       }},
      {"shaped_function",
       [](World& w) {
         const CUfunction function = lasting_function();
         MUST(cuFuncSetBlockShape(function, 1, 1, 1));
         CUdeviceptr memory = w.get<CUdeviceptr>("memory");
         MUST(cuParamSetv(function, 0, &memory, sizeof memory));
         MUST(cuParamSeti(function, 8, 7));
         MUST(cuParamSetSize(function, 12));
         return slot_of(function);
       }},
      {"link",
       [](World& w) {
         CUlinkState made;
         MUST(cuLinkCreate(0, nullptr, nullptr, &made));
         w.at_end([made] { (void)cuLinkDestroy(made); });
         return slot_of(made);
       }},
      {"filled_link",
       [](World& w) {
         const CUlinkState made = w.get<CUlinkState>("link");
         MUST(cuLinkAddData(made, CU_JIT_INPUT_PTX, const_cast<char*>(image_text), sizeof image_text, "image", 0,
                            nullptr, nullptr));
         return slot_of(made);
       }},
      {"name_store", [](World&) { return slot_of("store"); }},
      {"name_number", [](World&) { return slot_of("number"); }},
      {"name_nothing", [](World&) { return slot_of("nothing"); }},
      {"symbol_name", [](World&) { return slot_of("cuMemAlloc"); }},
      {"null_file", [](World&) { return slot_of("/dev/null"); }},
      {"log_file", [](World&) { return slot_of("/dev/null"); }},
      {"kernel_arguments", [](World& w) { return slot_of(kernel_arguments(w)); }},
      {"launch_config",
       [](World& w) {
         CUlaunchConfig c{};
         c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
         c.hStream = w.get<CUstream>("stream");
         return pointer_to(w, c);
       }},
      {"launch_list",
       [](World& w) {
         CUDA_LAUNCH_PARAMS p{};
         p.function = lasting_function();
         p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
         p.hStream = w.get<CUstream>("stream");
         p.kernelParams = kernel_arguments(w);
         return pointer_to(w, p);
       }},
  });
}

}  // namespace answers
