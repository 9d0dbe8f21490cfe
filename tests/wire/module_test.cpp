// Images, modules, libraries, functions.

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <tuple>

#include "client/call/stats.h"
#include "fixture.h"
#include "tests/temporary_folder.h"
#include "wrap.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

std::uint64_t frames(Opcode opcode) { return client::stats::of(opcode).sent.load(); }

/// How many round trips `body` makes.
template <class Body>
std::uint64_t trips(Body&& body) {
  const auto before = client::stats::round_trips();
  body();
  return client::stats::round_trips() - before;
}

/// A library of the fake driver's kernels, and one of these with its function.
struct LoadedKernel {
  explicit LoadedKernel(const char* name = "fill32", const char* image = test::kernels) {
    REQUIRE(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&kernel, library, name) == CUDA_SUCCESS);
  }
  CUfunction function() const {
    CUfunction found = nullptr;
    REQUIRE(cuKernelGetFunction(&found, kernel) == CUDA_SUCCESS);
    return found;
  }
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
};

/// What the driver says of clusters on a grid that is one of them.
int clusters(CUfunction function, unsigned x, unsigned y, unsigned shared_bytes = 0, unsigned block = 128) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {x, y, 1};
  const CUlaunchConfig config{.gridDimX = x,
                              .gridDimY = y,
                              .gridDimZ = 1,
                              .blockDimX = block,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = shared_bytes,
                              .hStream = nullptr,
                              .attrs = &attribute,
                              .numAttrs = 1};
  int found = -1;
  const CUresult result = cuOccupancyMaxActiveClusters(&found, function, &config);
  return result == CUDA_SUCCESS ? found : -static_cast<int>(result);
}
/// What the fake driver answers.
int clusters_expected(unsigned x, unsigned y) { return static_cast<int>(132 / (x * y)) - (x > y ? 1 : 0); }

}  // namespace

TEST_CASE("an image travels once, however often it is loaded") {
  RemoteContext remote;
  CUmodule first = nullptr, second = nullptr;
  const std::string own = std::string(test::kernels) + "// travels once\n";
  const auto before = frames(Opcode::sendImage);
  REQUIRE(cuModuleLoadData(&first, own.c_str()) == CUDA_SUCCESS);
  CHECK(frames(Opcode::sendImage) == before + 1);
  const std::string copy = own;
  REQUIRE(cuModuleLoadDataEx(&second, copy.c_str(), 0, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(frames(Opcode::sendImage) == before + 1);
  CHECK(first != second);
  CHECK(cuModuleUnload(first) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(first) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuModuleUnload(second) == CUDA_SUCCESS);
}

namespace {

/// Sessions whose worker keeps images in a folder, as all do but those of most tests.
struct ImageFolder {
  ImageFolder() { test::image_folder = own.path; }
  ~ImageFolder() { test::image_folder.clear(); }

  test::TemporaryFolder own;
};

std::string image_named(const std::string& name) { return std::string(test::kernels) + "// " + name + "\n"; }

CUlibrary load_library(const std::string& image, CUlibraryOption* options = nullptr, void** values = nullptr,
                       unsigned count = 0) {
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, options, values, count) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  REQUIRE(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
  return library;
}

}  // namespace

TEST_CASE("libraries that earlier sessions loaded next are loaded ahead") {
  const ImageFolder folder;
  const std::string a = image_named("a"), b = image_named("b"), c = image_named("c"), d = image_named("d");
  {
    RemoteContext first;
    for (const std::string* image : {&a, &b, &c}) load_library(*image);
  }
  {
    RemoteContext second;
    CHECK(trips([&] { load_library(a); }) == 1);
    CHECK(second.driver->calls("cuLibraryLoadData") == 3);
    CUlibrary library = nullptr;
    CHECK(trips([&] {
            library = load_library(b);
            load_library(c);
          }) == 0);
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
    CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
    // An answer that came ahead holds once: this is another library.
    CHECK(trips([&] { CHECK(load_library(c) != library); }) == 1);
    // The program goes another way than the one before it, and the next will be taken to go this way.
    load_library(d);
  }
  RemoteContext third;
  load_library(a);
  CHECK(third.driver->calls("cuLibraryLoadData") == 4);
  CHECK(trips([&] { load_library(d); }) == 0);
  // With other options it is another load.
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* value = reinterpret_cast<void*>(1);
  CHECK(trips([&] { load_library(b, &option, &value, 1); }) == 1);
  CHECK(trips([&] { load_library(b); }) == 0);
}

TEST_CASE("a program that goes another way than those before it is not followed for long") {
  const ImageFolder folder;
  std::vector<std::string> images;
  for (int i = 0; i < 40; ++i) images.push_back(image_named(std::to_string(i)));
  {
    RemoteContext first;
    for (const std::string& image : images) load_library(image);
  }
  RemoteContext second;
  // Each third image: those between are loaded in vain.
  for (std::size_t i = 0; i < images.size(); i += 3) load_library(images[i]);
  CHECK(second.driver->calls("cuLibraryLoadData") <= 14 + 16);
}

TEST_CASE("what a file says of the loads of earlier sessions is a hint") {
  const ImageFolder folder;
  const std::string a = image_named("a"), b = image_named("b");
  {
    RemoteContext first;
    load_library(a);
    load_library(b);
  }
  namespace fs = std::filesystem;
  fs::path note;
  for (const auto& entry : fs::directory_iterator(test::image_folder))
    if (entry.path().extension() == ".next") note = entry.path();
  REQUIRE(!note.empty());
  const auto write = [&](const std::string& bytes) { std::ofstream(note, std::ios::binary) << bytes; };
  SECTION("of no image") {
    for (const auto& entry : fs::directory_iterator(test::image_folder))
      if (entry.path() != note && entry.path().extension().empty() && entry.path().stem() != note.stem())
        fs::remove(entry.path());
  }
  SECTION("no message") { write(std::string(600, '\xff')); }
  SECTION("nothing") { write(""); }
  SECTION("a part of a message") {
    std::ifstream stream(note, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(stream), {});
    write(bytes.substr(0, 40));
  }
  RemoteContext second;
  load_library(a);
  load_library(b);
}

TEST_CASE("the program is told for how many threads of a block its code was compiled") {
  RemoteContext remote;
  CUjit_option options[] = {CU_JIT_OPTIMIZATION_LEVEL, CU_JIT_THREADS_PER_BLOCK};
  const auto number = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
  void* values[] = {number(3), number(100)};
  const bool library = GENERATE(false, true);
  CUmodule module = nullptr;
  CUlibrary loaded = nullptr;
  if (library)
    REQUIRE(cuLibraryLoadData(&loaded, test::kernels, options, values, 2, nullptr, nullptr, 0) == CUDA_SUCCESS);
  else REQUIRE(cuModuleLoadDataEx(&module, test::kernels, 2, options, values) == CUDA_SUCCESS);
  CHECK(values[0] == number(3));
  CHECK(values[1] == number(128));
}

TEST_CASE("functions that earlier sessions found in a module come with it") {
  const ImageFolder folder;
  const auto find = [](const char* name) {
    CUmodule module = nullptr;
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    CUfunction function = nullptr;
    REQUIRE(cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
    return std::pair(module, function);
  };
  {
    RemoteContext first;
    find("fill32");
  }
  RemoteContext second;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(trips([&] { std::tie(module, function) = find("fill32"); }) == 1);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  // What is known is refused as what is not known.
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&function, module, "fill32") == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSetCurrent(second.context) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&function, module, "fill32") == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an answer that came ahead outlives other contexts") {
  const ImageFolder folder;
  const std::string a = image_named("a"), b = image_named("b");
  {
    RemoteContext first;
    load_library(a);
    load_library(b);
  }
  RemoteContext second;
  load_library(a);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second.context) == CUDA_SUCCESS);
  CHECK(trips([&] { load_library(b); }) == 0);
}

TEST_CASE("what is no image, or a bad one, is refused, and the compiler's words come back") {
  RemoteContext remote;
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleLoadData(&module, "\x01\x02\x03 neither ELF nor PTX") == CUDA_ERROR_INVALID_IMAGE);
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library,
                            "\x7f"
                            "ELF but no more",
                            nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  CHECK(cuLibraryGetKernel(&kernel, library, "scale") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  char log[100] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CHECK(cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_90\n syntax error\n", 2, options, values) ==
        CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log) == "line 1: syntax error");
  CHECK(reinterpret_cast<std::size_t>(values[1]) == 20);
}

TEST_CASE("a log without room is one in which nothing is written") {
  RemoteContext remote;
  char log[100] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CUmodule module = nullptr;
  // A program that passes its arrays twice passes the second time what the driver wrote the first time.
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuModuleLoadDataEx(&module, ".version 8.0\n.entry one(.param .u64 a)\n", 2, options, values) ==
            CUDA_SUCCESS);
    CHECK(values[1] == nullptr);
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  }
  std::strcpy(log, "untouched");
  CHECK(cuModuleLoadDataEx(&module, ".version 8.0\n.target sm_90\n syntax error\n", 2, options, values) ==
        CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log) == "untouched");
  CHECK(values[1] == nullptr);
}

TEST_CASE("separately compiled code is linked by the host's driver") {
  RemoteContext remote;
  const auto container = [](std::string text) {
    text.resize(text.size() + 1);
    std::string bytes("\x50\xED\x55\xBA\x01\x00\x10\x00", 8);
    const std::uint64_t length = text.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    return bytes + text;
  };
  const std::string nothing("\x50\xED\x55\xBA\x01\x00\x10\x00\0\0\0\0\0\0\0\0", 16);
  const std::string first = container(".version 8.0\n.entry one(.param .u64 a)\n");
  const std::string second = container(".version 8.0\n.entry two(.param .u32 b)\n");
  const void* list[] = {first.data(), second.data(), nullptr};
  struct {
    std::uint32_t magic = 0x466243B1;
    std::uint32_t version = 2;
    const void* container;
    const void* more;
  } wrapper{.container = nothing.data(), .more = list};
  CUlibrary library = nullptr;
  REQUIRE(cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  CHECK(cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  CHECK(cuLibraryGetKernel(&kernel, library, "two") == CUDA_SUCCESS);
  CHECK(cuLibraryGetKernel(&kernel, library, "three") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}

TEST_CASE("functions are found by name; those of an unloaded module are unknown") {
  RemoteContext remote;
  CUmodule module = nullptr;
  CUfunction fill = nullptr, again = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  CHECK(cuModuleGetFunction(&again, module, "fill32") == CUDA_SUCCESS);
  CHECK(again == fill);
  CHECK(cuModuleGetFunction(&again, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuModuleGetFunction(&again, reinterpret_cast<CUmodule>(1), "fill32") == CUDA_ERROR_INVALID_HANDLE);
  unsigned count = 0;
  CHECK(cuModuleGetFunctionCount(&count, module) == CUDA_SUCCESS);
  CHECK(count == 3);
  CUfunction all[3] = {};
  CHECK(cuModuleEnumerateFunctions(all, 3, module) == CUDA_SUCCESS);
  CHECK(all[0] == fill);
  const char* name = nullptr;
  CHECK(cuFuncGetName(&name, all[1]) == CUDA_SUCCESS);
  CHECK(std::string(name) == "crash");
  std::size_t offset = 9, bytes = 9;
  const auto before = client::stats::round_trips();
  CHECK(cuFuncGetParamInfo(all[0], 1, &offset, &bytes) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(bytes == 4);
  CHECK(cuFuncGetParamInfo(all[0], 3, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(client::stats::round_trips() == before);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuFuncGetParamInfo(fill, 0, &offset, &bytes) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a function at the address of an unloaded one has its own parameters") {
  RemoteContext remote;
  for (int round = 0; round < 40; ++round) {
    const bool wide = round % 2 != 0;
    const std::string text = std::string(".version 8.0\n.target sm_90\n.entry ") +
                             (wide ? "one(.param .u64 a, .param .u64 b)" : "two(.param .u32 a)") + "\n// " +
                             std::to_string(round);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module, text.c_str()) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&function, module, wide ? "one" : "two") == CUDA_SUCCESS);
    std::uint64_t a = 0x1111111111111111, b = 0x2222222222222222;
    void* arguments[] = {&a, &b};
    REQUIRE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    const auto launches = remote.driver->launches();
    REQUIRE(launches.back().parameters.size() == (wide ? 16 : 4));
    if (wide) CHECK(std::memcmp(launches.back().parameters.data() + 8, &b, 8) == 0);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  }
}

TEST_CASE("libraries have kernels, and kernels functions in each context") {
  RemoteContext remote;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
  unsigned count = 0;
  CHECK(cuLibraryGetKernelCount(&count, library) == CUDA_SUCCESS);
  CHECK(count == 3);
  int value = 0;
  const auto asked = client::stats::round_trips();
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked);  // they came with the kernel
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20, kernel, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(client::stats::round_trips() == asked + 1);  // whether it is allowed the driver says
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, kernel, 0) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 1);  // what is surely allowed needs no answer
  // Answers that an attribute may change are asked for again.
  int blocks = 0;
  const auto occupancy = [&] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0); };
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 2);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 60, kernel, 0) == CUDA_SUCCESS);
  CHECK(occupancy() == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == asked + 3);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel, 0) == CUDA_SUCCESS);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 65536);
  // Both launch, by the same call.
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned n = 4, word = 3;
  void* arguments[] = {&memory, &n, &word};
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) ==
        CUDA_SUCCESS);
  word = 4;
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  unsigned back = 0;
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 4);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLibraryGetKernel(&kernel, library, "fill32") == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("code that the driver compiles when it is first asked about holds the thread that asks, and its context") {
  RemoteContext remote;
  CUlibrary library = nullptr;
  CUcontext its = nullptr, other = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&its, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  remote.driver->hold("cuKernelGetParamInfo", true);
  const auto beside = [](auto act) { return std::async(std::launch::async, act); };
  auto found = beside([&] {
    CUkernel kernel = nullptr;
    const CUresult bad = cuCtxSetCurrent(its);
    return bad != CUDA_SUCCESS ? bad : cuLibraryGetKernel(&kernel, library, "fill32");
  });
  CHECK(found.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  auto closed_other = beside([&] { return cuCtxDestroy_v2(other); });
  CHECK(closed_other.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  auto closed = beside([&] { return cuCtxDestroy_v2(its); });
  CHECK(closed.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
  remote.driver->hold("cuKernelGetParamInfo", false);
  for (auto* const one : {&closed_other, &closed}) CHECK(one->get() == CUDA_SUCCESS);
  const CUresult result = found.get();
  CHECK((result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED));
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a kernel is found before there is a context, with its parameters") {
  test::Remote remote;
  CUlibrary library = nullptr;
  CUkernel crash = nullptr, fill = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&crash, library, "crash") == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&fill, library, "fill32") == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned n = 4, word = 3, back = 0;
  void* arguments[] = {&memory, &n, &word};
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(fill), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) ==
        CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 3);
}

TEST_CASE("variables of modules are device memory while the module is there") {
  RemoteContext remote;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  CUdeviceptr table = 0;
  std::size_t bytes = 0;
  REQUIRE(cuModuleGetGlobal_v2(&table, &bytes, module, "table") == CUDA_SUCCESS);
  CHECK(bytes == 256);
  CUdeviceptr none = 5;
  CHECK(cuModuleGetGlobal_v2(&none, &bytes, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(none == 0);
  const float values[] = {1, 2, 3};
  float back[3] = {};
  REQUIRE(cuMemcpyHtoD_v2(table + 16, values, sizeof(values)) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(back, table + 16, sizeof(back)) == CUDA_SUCCESS);
  CHECK(back[2] == 3);
  CUmemorytype type{};
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, table) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a variable is asked for once, while its module is there") {
  RemoteContext remote;
  const auto asked = [&] { return remote.driver->calls("cuModuleGetGlobal_v2"); };
  CUdeviceptr table = 0, again = 0;
  std::size_t bytes = 0;
  for (std::size_t round = 1; round < 4; ++round) {
    CUmodule module = nullptr;
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetGlobal_v2(&table, nullptr, module, "table") == CUDA_SUCCESS);
    CHECK(asked() == round);
    for (int i = 0; i < 5; ++i) {
      REQUIRE(cuModuleGetGlobal_v2(&again, &bytes, module, "table") == CUDA_SUCCESS);
      CHECK(again == table);
      CHECK(bytes == 256);
    }
    CHECK(asked() == round);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(cuModuleGetGlobal_v2(&again, nullptr, module, "table") == CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_CASE("a module's variable goes with the module's context, whatever context was current when it was found") {
  RemoteContext remote;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  CUcontext other = nullptr, its = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  CUdeviceptr table = 0;
  REQUIRE(cuModuleGetGlobal_v2(&table, nullptr, module, "table") == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, table) == CUDA_SUCCESS);
  CHECK(its == remote.context);
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  unsigned word = 5, back = 0;
  CHECK(cuMemcpyHtoD_v2(table, &word, sizeof(word)) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(&back, table, sizeof(back)) == CUDA_SUCCESS);
  CHECK(back == 5);
}

TEST_CASE("that the worker looks at a kernel's code fails no call, whatever the kernel belongs to") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  unsigned count = 1, value = 7;
  REQUIRE(cuMemAllocManaged(&memory, 4, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  void* arguments[] = {&memory, &count, &value};
  CUlibrary library = nullptr;
  CUmodule behind = nullptr, module = nullptr;
  CUfunction functions[2] = {};
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetModule(&behind, library) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&functions[0], behind, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&functions[1], module, "fill32") == CUDA_SUCCESS);
  const auto before = client::stats::of(Opcode::examineKernel).sent.load();
  for (int round = 0; round < 2; ++round) {
    for (const CUfunction function : functions)
      REQUIRE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CHECK(client::stats::of(Opcode::examineKernel).sent.load() == before + 2);
  CHECK(*reinterpret_cast<unsigned*>(memory) == value);
}

TEST_CASE("functions and variables of the module behind a library go with the library, however many come") {
  RemoteContext remote;
  CUdeviceptr memory = 0;
  unsigned count = 1, value = 0, back = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  void* arguments[] = {&memory, &count, &value};
  std::size_t variables = 0;
  for (; value < 600; ++value) {  // the worker gives indices again after some hundred
    CUlibrary library = nullptr;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUdeviceptr table = 0;
    CUcontext other = nullptr, its = nullptr;
    REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuLibraryGetModule(&module, library) == CUDA_SUCCESS);
    if (value == 0) REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&function, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetGlobal_v2(&table, nullptr, module, "table") == CUDA_SUCCESS);
    REQUIRE(cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, table) == CUDA_SUCCESS);
    REQUIRE(its == remote.context);
    if (other) {
      REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
      REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
    }
    REQUIRE(cuMemcpyHtoD_v2(table, &value, sizeof(value)) == CUDA_SUCCESS);
    REQUIRE(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(&back, memory, sizeof(back)) == CUDA_SUCCESS);
    REQUIRE(back == value);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    const char* name = nullptr;
    REQUIRE(cuFuncGetName(&name, function) == CUDA_ERROR_INVALID_HANDLE);
    variables += cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, table) == CUDA_SUCCESS;
  }
  CHECK(variables == 0);
}

TEST_CASE("the function of a kernel that is known well is not waited for") {
  RemoteContext remote;
  const auto sent_before = frames(Opcode::kernelFunction);
  LoadedKernel fill;
  CUfunction function = nullptr, again = nullptr;
  CHECK(trips([&] {
          REQUIRE(cuKernelGetFunction(&function, fill.kernel) == CUDA_SUCCESS);
          REQUIRE(cuKernelGetFunction(&again, fill.kernel) == CUDA_SUCCESS);
          int value = 0;
          CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function) == CUDA_SUCCESS);
          CHECK(value == 1024);
          std::size_t offset = 0, bytes = 0;
          CHECK(cuFuncGetParamInfo(function, 1, &offset, &bytes) == CUDA_SUCCESS);
          CHECK(offset == 8);
          const char* name = nullptr;
          CHECK(cuFuncGetName(&name, function) == CUDA_SUCCESS);
          CHECK(std::string(name) == "fill32");
          CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536) == CUDA_SUCCESS);
        }) == 0);
  CHECK(again == function);
  CHECK(function != reinterpret_cast<CUfunction>(fill.kernel));
  CHECK(frames(Opcode::kernelFunction) == sent_before + 1);
  // It is the driver's: it launches, and what was set is set.
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  unsigned n = 4, word = 7, back = 0;
  void* arguments[] = {&memory, &n, &word};
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 65536, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(&back, memory, 4) == CUDA_SUCCESS);
  CHECK(back == 7);
  CHECK(remote.driver->launches().back().shared_bytes == 65536);
  int value = 0;
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_SUCCESS);
  // It goes with its library.
  REQUIRE(cuLibraryUnload(fill.library) == CUDA_SUCCESS);
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an attribute that is set through a function is its own, whatever its kernel has") {
  RemoteContext remote;
  LoadedKernel fill;
  const CUfunction function = fill.function();
  const auto set = [&](CUfunction f) {
    CHECK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 30) == CUDA_SUCCESS);
    remote.hear_out();
  };
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 30, fill.kernel, 0) == CUDA_SUCCESS);
  set(function);
  CHECK(remote.driver->calls("cuFuncSetAttribute") == 1);
  set(function);
  CHECK(remote.driver->calls("cuFuncSetAttribute") == 1);
  // A function without a kernel has no other attributes.
  CUmodule module = nullptr;
  CUfunction plain = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&plain, module, "fill32") == CUDA_SUCCESS);
  int present = 1;
  REQUIRE(cuFuncGetAttribute(&present, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, plain) == CUDA_SUCCESS);
  CHECK(cuFuncSetAttribute(plain, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, present) == CUDA_SUCCESS);
  remote.hear_out();
  CHECK(remote.driver->calls("cuFuncSetAttribute") == 1);
}

TEST_CASE("a kernel has a function in each context, which goes with that") {
  RemoteContext remote;
  LoadedKernel fill;
  const CUfunction here = fill.function();
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  const CUfunction there = fill.function();
  CHECK(there != here);
  // It has parameters.
  CHECK(cuLaunchKernel(there, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  int value = 0;
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, there) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, here) == CUDA_SUCCESS);
}

TEST_CASE("a module's function goes with the module, whatever context was current when it was found") {
  RemoteContext remote;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUcontext other = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&function, module, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(remote.context) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  unsigned count = 1, value = 5;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  void* arguments[] = {&memory, &count, &value};
  CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.driver->launches().size() == 1);
}

TEST_CASE("the function of a kernel for which the driver has no room is missed late") {
  RemoteContext remote;
  LoadedKernel fill;
  CUfunction function = nullptr;
  remote.driver->script("cuKernelGetFunction", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CHECK(cuKernelGetFunction(&function, fill.kernel) == CUDA_SUCCESS);
  remote.hear_out();
  CHECK(cuCtxSynchronize() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE(
    "the function of a kernel that was set up differently, or that was found in a module, is the worker's to name") {
  RemoteContext remote;
  SECTION("attributes of the kernel were set") {
    LoadedKernel fill;
    REQUIRE(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, fill.kernel, 0) ==
            CUDA_SUCCESS);
    CUfunction function = nullptr;
    CHECK(trips([&] { function = fill.function(); }) == 1);
    int value = 0;
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function) == CUDA_SUCCESS);
    CHECK(value == 50);
  }
  SECTION("the program has the library's module") {
    LoadedKernel fill;
    CUmodule module = nullptr;
    remote.driver->script("cuLibraryGetModule", CUDA_ERROR_NOT_SUPPORTED, 1);
    CHECK(cuLibraryGetModule(&module, fill.library) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(cuLibraryGetModule(nullptr, fill.library) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuLibraryGetModule(&module, nullptr) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(trips([&] { fill.function(); }) == 0);
    REQUIRE(cuLibraryGetModule(&module, fill.library) == CUDA_SUCCESS);
    LoadedKernel another;
    CHECK(trips([&] { another.function(); }) == 1);
  }
}

TEST_CASE("the first answer about clusters brings those about others") {
  RemoteContext remote;
  LoadedKernel fill, crash("crash");
  const CUfunction function = fill.function(), other = crash.function();
  const auto ask_all = [&] {
    for (const unsigned x : {1u, 2u, 4u, 8u})
      for (unsigned y = 1; x * y <= 8; y *= 2) CHECK(clusters(function, x, y) == clusters_expected(x, y));
    for (unsigned n = 1; n <= 8; ++n) {  // cuDNN's way
      CHECK(clusters(function, n, 1) == clusters_expected(n, 1));
      CHECK(clusters(function, 1, n) == clusters_expected(1, n));
    }
  };
  CHECK(trips(ask_all) == 1);
  CHECK(trips(ask_all) == 0);
  // They are for this block and this much shared memory.
  CHECK(trips([&] { CHECK(clusters(function, 2, 1, 1024) == clusters_expected(2, 1)); }) == 1);
  CHECK(trips([&] { CHECK(clusters(function, 2, 1, 1024, 64) == clusters_expected(2, 1)); }) == 1);
  // What the driver refuses it is asked about.
  CHECK(trips([&] { CHECK(clusters(function, 16, 1) == -static_cast<int>(CUDA_ERROR_INVALID_CLUSTER_SIZE)); }) == 1);
  // On a grid that is larger than a cluster.
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  CUlaunchConfig config{.gridDimX = 8,
                        .gridDimY = 2,
                        .gridDimZ = 1,
                        .blockDimX = 128,
                        .blockDimY = 1,
                        .blockDimZ = 1,
                        .sharedMemBytes = 0,
                        .hStream = nullptr,
                        .attrs = &attribute,
                        .numAttrs = 1};
  CHECK(trips([&] {
          for (const unsigned x : {4u, 2u, 1u, 8u}) {
            attribute.value.clusterDim = {x, 1, 1};
            int found = 0;
            CHECK(cuOccupancyMaxActiveClusters(&found, function, &config) == CUDA_SUCCESS);
            CHECK(found == clusters_expected(x, 1));
          }
        }) == 1);
  attribute.value.clusterDim = {1, 4, 1};
  int found = 0;
  CHECK(cuOccupancyMaxActiveClusters(&found, function, &config) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  // An attribute of another kernel changes nothing of it, one of its own does, and so does one of its kernel.
  CHECK(cuFuncSetAttribute(other, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) == CUDA_SUCCESS);
  CHECK(trips(ask_all) == 0);
  CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) == CUDA_SUCCESS);
  CHECK(trips([&] { CHECK(clusters(function, 16, 1) == clusters_expected(16, 1)); }) == 1);
  CHECK(trips(ask_all) == 0);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 30, fill.kernel, 0) == CUDA_SUCCESS);
  CHECK(trips(ask_all) == 1);
}

// What cuBLASLt does when it looks for the best of its kernels.
TEST_CASE("a tuner that asks about clusters of many kernels makes one round trip for each") {
  constexpr unsigned kernels = 20;
  std::string image = ".version 8.0\n.target sm_90\n.address_size 64\n";
  for (unsigned i = 0; i < kernels; ++i) image += ".entry gemm" + std::to_string(i) + "(.param .u64 a)\n";
  RemoteContext remote;
  LoadedKernel first("gemm0", image.c_str());
  std::vector<CUkernel> found(kernels);
  for (unsigned i = 0; i < kernels; ++i)
    REQUIRE(cuLibraryGetKernel(&found[i], first.library, ("gemm" + std::to_string(i)).c_str()) == CUDA_SUCCESS);
  CHECK(trips([&] {
          for (unsigned round = 0; round < 2; ++round) {
            for (const CUkernel kernel : found) {
              CUfunction function = nullptr;
              REQUIRE(cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
              REQUIRE(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200'000) ==
                      CUDA_SUCCESS);
              for (const auto& [x, y] : {std::pair{1u, 1u}, {2u, 1u}, {1u, 2u}, {2u, 2u}})
                CHECK(clusters(function, x, y, 200'000) == clusters_expected(x, y));
            }
          }
        }) == kernels);
}

TEST_CASE("attributes that are asked for while another thread sets them are not kept as they were") {
  test::HoldBack hold;
  const test::Wrapping wrapping([&](auto channel) { return hold.wrap(std::move(channel)); });
  RemoteContext remote;
  remote.driver->script("cuKernelGetAttribute", CUDA_ERROR_FUNCTION_NOT_LOADED, 1);  // the first is asked for again
  LoadedKernel fill;
  const CUfunction function = fill.function();
  const auto held = [&](Opcode opcode, auto&& ask) {
    const auto before = frames(opcode);
    hold.begin();
    auto asking = std::async(std::launch::async, [&] {
      const CUresult bad = cuCtxSetCurrent(remote.context);
      return bad != CUDA_SUCCESS ? bad : ask();
    });
    while (frames(opcode) == before) std::this_thread::yield();
    // It is posted, behind the question.
    CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 60, fill.kernel, 0) == CUDA_SUCCESS);
    hold.end();
    CHECK(asking.get() == CUDA_SUCCESS);
  };
  int value = 0;
  held(Opcode::functionAttributes, [&] {
    int threads = 0;
    return cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fill.kernel, 0);
  });
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, fill.kernel, 0) ==
        CUDA_SUCCESS);
  CHECK(value == 60);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, fill.kernel, 0) == CUDA_SUCCESS);
  int blocks = 0;
  const auto occupancy = [&] { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0); };
  held(Opcode::cuOccupancyMaxActiveBlocksPerMultiprocessor, occupancy);
  CHECK(trips([&] { CHECK(occupancy() == CUDA_SUCCESS); }) == 1);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, fill.kernel, 0) == CUDA_SUCCESS);
  const auto ask_clusters = [&] {
    return clusters(function, 2, 2) == clusters_expected(2, 2) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  };
  held(Opcode::clusterOccupancy, ask_clusters);
  CHECK(trips([&] { CHECK(ask_clusters() == CUDA_SUCCESS); }) == 1);
}

TEST_CASE("attributes set by several threads at once are what the driver says") {
  RemoteContext remote;
  LoadedKernel fill;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::future<CUresult>> threads;
    for (int i = 0; i < 4; ++i)
      threads.push_back(std::async(std::launch::async, [&, i] {
        CUresult result = CUDA_SUCCESS;
        for (int n = 0; n < 5 && result == CUDA_SUCCESS; ++n)
          result = cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 20 * i + n, fill.kernel, 0);
        return result;
      }));
    for (auto& thread : threads) CHECK(thread.get() == CUDA_SUCCESS);
    int value = 0;
    CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, fill.kernel, 0) ==
          CUDA_SUCCESS);
    std::size_t free = 0, total = 0;
    REQUIRE(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);  // so that all that was set has been set
    CHECK(static_cast<std::uint64_t>(value) == (remote.driver->last_arguments("cuKernelSetAttribute")[1] & 0xFFFFFFFF));
  }
}

TEST_CASE("what was known of functions goes when the primary context is reset") {
  RemoteContext remote;
  LoadedKernel fill;
  const CUfunction function = fill.function();
  CUmodule module = nullptr;
  CUfunction of_module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&of_module, module, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, fill.kernel, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
  int value = 0;
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, of_module) == CUDA_ERROR_INVALID_HANDLE);
  // A kernel belongs to no context. What its attributes are now the driver says.
  CHECK(trips([&] {
          CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, fill.kernel, 0) ==
                CUDA_SUCCESS);
        }) == 1);
  CHECK(value == 0);
  CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, fill.function()) == CUDA_SUCCESS);
}

TEST_CASE("kernels that come along with their code are left out where the driver has no room for them") {
  const ImageFolder folder;
  {
    const RemoteContext first;  // its host knows now what is looked for in this code
    CUmodule module = nullptr;
    CUfunction fill = nullptr;
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  }
  for (const bool room : {true, false}) {
    RemoteContext remote;
    const std::array asks{"cuFuncGetParamInfo", "cuKernelGetParamInfo", "cuFuncGetAttribute", "cuKernelGetAttribute"};
    if (!room)
      for (const char* const ask : asks) remote.driver->script(ask, CUDA_ERROR_OUT_OF_MEMORY, 2);
    CUmodule module = nullptr;
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    remote.driver->reset();
    CUfunction fill = nullptr;
    int value = 0;
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fill) == CUDA_SUCCESS);
    CHECK(value > 0);
  }
}

TEST_CASE("threads load one image at once, which travels in parts") {
  RemoteContext remote;
  std::string image = test::kernels;
  image += "// " + std::string(9u << 20, 'x') + std::to_string(::getpid()) + "\n";
  std::vector<std::future<CUresult>> loads;
  for (int i = 0; i < 4; ++i)
    loads.push_back(std::async(std::launch::async, [&] {
      CUmodule module = nullptr;
      if (const CUresult bad = cuCtxSetCurrent(remote.context); bad != CUDA_SUCCESS) return bad;
      return cuModuleLoadData(&module, image.c_str());
    }));
  for (auto& load : loads) CHECK(load.get() == CUDA_SUCCESS);
}

TEST_CASE("a kernel's function is in the module behind its library") {
  RemoteContext remote;
  LoadedKernel fill;
  CUmodule of_function = nullptr, of_library = nullptr;
  const CUfunction function = fill.function();
  REQUIRE(cuFuncGetModule(&of_function, function) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetModule(&of_library, fill.library) == CUDA_SUCCESS);
  CHECK(of_function == of_library);
  CHECK(cuFuncGetModule(nullptr, function) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncGetModule(&of_function, nullptr) == CUDA_ERROR_INVALID_VALUE);
}
