// Kernel launches.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "client/call/stats.h"
#include "fixture.h"
#include "hand_made_client.h"
#include "making_room.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

struct Kernels : RemoteContext {
  Kernels() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&mixed, module, "mixed") == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  }
  CUresult launch(unsigned block, unsigned shared = 0) {
    void* arguments[] = {&memory, &count, &value};
    return cuLaunchKernel(fill, 1, 1, 1, block, 1, 1, shared, nullptr, arguments, nullptr);
  }
  CUmodule module = nullptr;
  CUfunction fill = nullptr, mixed = nullptr;
  CUdeviceptr memory = 0;
  unsigned count = 8, value = 1;
};

// Kernels on two devices, to be launched together.
struct Together : Kernels {
  Together() {
    REQUIRE(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent_v2(other) == CUDA_SUCCESS);
    CUmodule there = nullptr;
    REQUIRE(cuModuleLoadData(&there, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&functions[1], there, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memories[1], 4096) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
    functions[0] = fill;
    memories[0] = memory;
    for (int i = 0; i < 2; ++i) {
      for (void* argument : {static_cast<void*>(&memories[i]), static_cast<void*>(&count), static_cast<void*>(&value)})
        arguments[i].push_back(argument);
      launches.push_back({functions[i], 2, 1, 1, 32, 1, 1, 0, streams[i], arguments[i].data()});
    }
  }
  CUresult launch(unsigned flags = 0) {
    return cuLaunchCooperativeKernelMultiDevice(launches.data(), static_cast<unsigned>(launches.size()), flags);
  }
  unsigned word(int i) {
    unsigned got = 0;
    REQUIRE(cuMemcpyDtoHAsync_v2(&got, memories[i], 4, streams[i]) == CUDA_SUCCESS);
    return got;
  }
  CUcontext other = nullptr;
  CUfunction functions[2] = {};
  CUstream streams[2] = {};
  CUdeviceptr memories[2] = {};
  std::vector<void*> arguments[2];
  std::vector<CUDA_LAUNCH_PARAMS> launches;
};

}  // namespace

TEST_CASE("arguments arrive laid out as the kernel wants them, from either form") {
  Kernels k;
  std::uint8_t a = 0xAA;
  std::uint64_t b = 0x0123456789abcdef;
  std::uint16_t c = 0xBEEF;
  float d = 2.5F;
  void* arguments[] = {&a, &b, &c, &d};
  REQUIRE(cuLaunchKernel(k.mixed, 2, 3, 4, 5, 6, 7, 1000, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  unsigned char block[24] = {};
  std::memcpy(block, &a, 1);
  std::memcpy(block + 8, &b, 8);
  std::memcpy(block + 16, &c, 2);
  std::memcpy(block + 20, &d, 4);
  std::size_t size = sizeof(block);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  REQUIRE(cuLaunchKernel(k.mixed, 2, 3, 4, 5, 6, 7, 1000, nullptr, nullptr, extra) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto launches = k.driver->launches();
  REQUIRE(launches.size() == 2);
  for (const auto& launch : launches) {
    CHECK(launch.kernel == "mixed");
    CHECK(launch.grid[2] == 4);
    CHECK(launch.block[1] == 6);
    CHECK(launch.shared_bytes == 1000);
    REQUIRE(launch.parameters.size() == 24);
    CHECK(std::memcmp(launch.parameters.data(), &a, 1) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 8, &b, 8) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 16, &c, 2) == 0);
    CHECK(std::memcmp(launch.parameters.data() + 20, &d, 4) == 0);
  }
}

TEST_CASE("only the first launch of a class waits for the driver's word") {
  Kernels k;
  const auto waited = [] { return client::stats::of(Opcode::launch).waited.load(); };
  const auto before = waited();
  REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == before + 1);
  for (int i = 0; i < 50; ++i) REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == before + 1);
  REQUIRE(k.launch(64) == CUDA_SUCCESS);  // another class
  CHECK(waited() == before + 2);
  CHECK(k.launch(2048) == CUDA_ERROR_INVALID_VALUE);  // refused, each time
  CHECK(k.launch(2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(k.launch(32, 300 * 1024) == CUDA_ERROR_INVALID_VALUE);
  // What was accepted may not be any more once an attribute has changed.
  const auto later = waited();
  REQUIRE(cuFuncSetAttribute(k.fill, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50) == CUDA_SUCCESS);
  REQUIRE(k.launch(32) == CUDA_SUCCESS);
  CHECK(waited() == later + 1);
}

TEST_CASE("what a block of arguments leaves out is zero") {
  Kernels k;
  unsigned char block[12];
  std::memset(block, 0xAB, sizeof(block));
  std::size_t size = sizeof(block);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  REQUIRE(cuLaunchKernel(k.mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const auto parameters = k.driver->launches().back().parameters;
  REQUIRE(parameters.size() == 24);
  CHECK(parameters[0] == std::byte{0xAB});
  CHECK(parameters[11] == std::byte{0xAB});
  for (std::size_t i = 12; i < 24; ++i) CHECK(parameters[i] == std::byte{0});
}

TEST_CASE("no arguments at all are none of a kernel with parameters") {
  Kernels k;
  unsigned char block[24] = {};
  std::size_t size = 0;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CHECK(cuLaunchKernel(k.mixed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
  CHECK(k.driver->launches().empty());
}

TEST_CASE("whether the grid divides into the clusters that are preferred makes classes of launches") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION;
  attribute.value.preferredClusterDim.x = 2;
  attribute.value.preferredClusterDim.y = attribute.value.preferredClusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto waited = [] { return client::stats::of(Opcode::launch).waited.load(); };
  REQUIRE(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_SUCCESS);
  const auto before = waited();
  config.gridDimX = 6;
  REQUIRE(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_SUCCESS);
  CHECK(waited() == before);
  config.gridDimX = 5;
  REQUIRE(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_SUCCESS);
  CHECK(waited() == before + 1);
}

TEST_CASE("what an event was made for makes classes of launches that record it") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto waited = [] { return client::stats::of(Opcode::launch).waited.load(); };
  const auto launch_with = [&](unsigned flags) {
    REQUIRE(cuEventCreate(&attribute.value.launchCompletionEvent.event, flags) == CUDA_SUCCESS);
    return cuLaunchKernelEx(&config, k.fill, arguments, nullptr);
  };
  REQUIRE(launch_with(CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  const auto before = waited();
  REQUIRE(launch_with(CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  CHECK(waited() == before);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  k.driver->script("cuLaunchKernelEx", CUDA_ERROR_INVALID_VALUE, 1);  // one with timing cannot be recorded so
  CHECK(launch_with(CU_EVENT_DEFAULT) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("launches that make no sense are refused in the caller") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CHECK(k.launch(0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 0, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 1, 1 << 20, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernel(reinterpret_cast<CUfunction>(k.module), 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr) ==
        CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  void* extra[] = {CU_LAUNCH_PARAM_END};
  std::size_t bytes = 16;
  void* block[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, block) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernelEx(nullptr, k.fill, arguments, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(k.driver->launches().empty());
}

TEST_CASE("launch attributes and cooperative launches reach the driver") {
  Kernels k;
  void* arguments[] = {&k.memory, &k.count, &k.value};
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim.x = 2;
  attributes[0].value.clusterDim.y = attributes[0].value.clusterDim.z = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  REQUIRE(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(k.driver->launches().size() == 1);
  CHECK(k.driver->launches()[0].attributes == 2);
  attributes[1].id = static_cast<CUlaunchAttributeID>(999);
  CHECK(cuLaunchKernelEx(&config, k.fill, arguments, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuLaunchCooperativeKernel(k.fill, 8, 1, 1, 1, 1, 1, 0, nullptr, arguments) == CUDA_SUCCESS);
  CHECK(cuLaunchCooperativeKernel(k.fill, 9, 1, 1, 1, 1, 1, 0, nullptr, arguments) ==
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_CASE("cooperative launches on several devices go to the driver at once") {
  Together t;
  int can = 0;
  CHECK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, 0) == CUDA_SUCCESS);
  CHECK(can == 1);  // as the host's driver says
  t.value = 7;
  REQUIRE(t.launch(CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC) == CUDA_SUCCESS);
  CHECK(t.driver->calls("cuLaunchCooperativeKernelMultiDevice") == 1);
  CHECK(t.driver->launches().size() == 2);
  CHECK(t.word(0) == 7);
  CHECK(t.word(1) == 7);
  CHECK(cuStreamSynchronize(t.streams[1]) == CUDA_SUCCESS);
  // What the driver says of it comes back.
  for (auto& launch : t.launches) launch.gridDimX = 9;
  CHECK(t.launch() == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  t.launches[0].gridDimX = 1;
  CHECK(t.launch() == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE(
    "launches on several devices wait for what is held back on any of their streams, and hold back what follows on "
    "all") {
  Together t;
  std::atomic<bool> go{false};
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  REQUIRE(cuLaunchHostFunc(t.streams[1], wait, &go) == CUDA_SUCCESS);
  t.value = 3;
  REQUIRE(t.launch() == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(t.memories[0], 5, 1, t.streams[0]) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(t.streams[0]) == CUDA_ERROR_NOT_READY);
  CHECK(t.driver->calls("cuLaunchCooperativeKernelMultiDevice") == 0);
  CHECK(t.driver->calls("cuMemsetD32Async") == 0);
  go = true;
  REQUIRE(cuStreamSynchronize(t.streams[0]) == CUDA_SUCCESS);
  CHECK(t.driver->calls("cuLaunchCooperativeKernelMultiDevice") == 1);
  CHECK(t.word(0) == 5);
  CHECK(t.word(1) == 3);
}

TEST_CASE("launches on several devices that cannot be are refused before they travel") {
  Together t;
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  CHECK(cuLaunchCooperativeKernelMultiDevice(nullptr, 2, 0) == invalid);
  CHECK(cuLaunchCooperativeKernelMultiDevice(t.launches.data(), 0, 0) == invalid);
  CHECK(cuLaunchCooperativeKernelMultiDevice(t.launches.data(), 1000, 0) == invalid);
  CHECK(t.launch(4) == invalid);
  for (const CUstream none : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    t.launches[1].hStream = none;
    CHECK(t.launch() == invalid);
  }
  t.launches[1].hStream = reinterpret_cast<CUstream>(0x770);
  CHECK(t.launch() == CUDA_ERROR_INVALID_HANDLE);
  t.launches[1].hStream = t.streams[0];
  CHECK(t.launch() == CUDA_ERROR_INVALID_DEVICE);  // the same one twice
  t.launches[1].hStream = t.streams[1];
  t.launches[1].function = nullptr;
  CHECK(t.launch() == CUDA_ERROR_INVALID_HANDLE);
  t.launches[1].function = t.functions[1];
  t.launches[1].blockDimY = 0;
  CHECK(t.launch() == invalid);
  t.launches[1].blockDimY = 1;
  REQUIRE(cuStreamBeginCapture_v2(t.streams[1], CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(t.launch() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(t.driver->calls("cuLaunchCooperativeKernelMultiDevice") == 0);
}

TEST_CASE("a worker takes no launch on several devices that names what the session does not have") {
  HandMadeClient client;
  client.open_context();
  const auto launch = [&](std::vector<std::uint64_t> streams, std::uint64_t function) {
    client.send_call<wire::LaunchTogether>(Opcode::launchTogether, [&](wire::LaunchTogether::Builder in) {
      auto list = in.initLaunches(static_cast<unsigned>(streams.size()));
      for (unsigned i = 0; i < streams.size(); ++i) {
        list[i].setStream(streams[i]);
        list[i].setFunction(function);
      }
    });
    return client.reply();
  };
  CHECK(launch({}, 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(std::vector<std::uint64_t>(1000, 1), 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch({1}, 5) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch({0x1234567, 0}, 5) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("a launch that finds no room on the device waits for it, and nothing comes before it") {
  const bool made = GENERATE(true, false);
  std::atomic<int> wishes = 0, empty = 0;
  test::make_room = [&](const server::RoomWish& wish) {
    ++wishes;
    if (wish.bytes.at(0) == 0) ++empty;
    return made;
  };
  {
    Kernels k;
    REQUIRE(k.launch(32) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    k.driver->script("cuLaunchKernel", CUDA_ERROR_OUT_OF_MEMORY, made ? 3 : 2);
    k.value = 2;
    REQUIRE(k.launch(32) == CUDA_SUCCESS);
    k.value = 3;
    REQUIRE(cuMemsetD32Async(k.memory, 7, 1, nullptr) == CUDA_SUCCESS);
    unsigned got[2] = {};
    const CUresult copied = cuMemcpyDtoH_v2(got, k.memory, sizeof(got)), later = cuCtxSynchronize();
    if (made) CHECK(copied == CUDA_SUCCESS);
    CHECK((made ? later == CUDA_SUCCESS : copied == CUDA_ERROR_OUT_OF_MEMORY || later == CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(wishes == (made ? 3 : 1));
    CHECK(empty == 0);
    if (made) {
      CHECK(got[0] == 7);
      CHECK(got[1] == 2);
    }
  }
  test::make_room = nullptr;
}

TEST_CASE("code that finds no room on the device waits for it, and fails where nobody makes any") {
  const bool made = GENERATE(true, false);
  int wishes = 0;
  test::make_room = [&](const server::RoomWish&) {
    ++wishes;
    return made;
  };
  {
    RemoteContext remote;
    for (const char* const load : {"cuModuleLoadDataEx", "cuLibraryLoadData"})
      remote.driver->script(load, CUDA_ERROR_OUT_OF_MEMORY, 2);
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, test::kernels) == (made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(wishes == (made ? 2 : 1));
    if (made) {  // and where its functions are looked for
      for (const char* const find : {"cuModuleGetFunction", "cuLibraryGetKernel", "cuKernelGetFunction"})
        remote.driver->script(find, CUDA_ERROR_OUT_OF_MEMORY, 1);
      CUfunction function = nullptr;
      CHECK(cuModuleGetFunction(&function, module, "fill32") == CUDA_SUCCESS);
      CHECK(wishes == 3);
    }
    // Code of a library is looked at beside the executor first.
    remote.driver->reset();
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    const std::string image = std::string(test::kernels) + (made ? "// one\n" : "// two\n");  // that nobody has loaded
    REQUIRE(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
    wishes = 0;
    remote.driver->script("cuLibraryGetKernel", CUDA_ERROR_OUT_OF_MEMORY, made ? 3 : 1000);
    CHECK(cuLibraryGetKernel(&kernel, library, "crash") == (made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(wishes == 1);
  }
  test::make_room = nullptr;
}

TEST_CASE("what the driver takes memory for by itself waits for room") {
  int wishes = 0;
  test::make_room = [&](const server::RoomWish&) {
    ++wishes;
    return true;
  };
  {
    Kernels k;
    const auto lacks_once = [&](std::initializer_list<const char*> symbols) {
      wishes = 0;
      for (const char* const symbol : symbols) k.driver->script(symbol, CUDA_ERROR_OUT_OF_MEMORY, 1);
    };
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(cuModuleLoadData(&module,
                             ".version 8.0\n.target sm_90\n.address_size 64\n"
                             ".entry first() { ret; }\n.entry second() { ret; }\n") == CUDA_SUCCESS);
    lacks_once({"cuFuncGetParamInfo"});
    CHECK(cuModuleGetFunction(&function, module, "first") == CUDA_SUCCESS);
    CHECK(wishes == 1);
    lacks_once({"cuFuncGetAttribute"});
    CHECK(cuModuleGetFunction(&function, module, "second") == CUDA_SUCCESS);
    CHECK(wishes == 1);
    int value = 0;
    CHECK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function) == CUDA_SUCCESS);
    CHECK(value > 0);

    lacks_once({"cuStreamCreate", "cuStreamCreateWithPriority"});
    CUstream stream = nullptr;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    CHECK(cuMemsetD32Async(k.memory, 8, 1, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(wishes == 1);

    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(k.memory, 9, 1, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    lacks_once({"cuGraphInstantiateWithParams"});
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    CHECK(wishes == 1);
    lacks_once({"cuGraphLaunch"});
    CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(wishes == 1);
    unsigned got = 0;
    CHECK(cuMemcpyDtoH_v2(&got, k.memory, sizeof(got)) == CUDA_SUCCESS);
    CHECK(got == 9);
  }
  test::make_room = nullptr;
}
