// Green contexts: parts of a device, for streams of its primary context.

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "hand_made_client.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

CUdevResource whole() {
  CUdevResource resource{};
  REQUIRE(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  return resource;
}

CUgreenCtx make_green(unsigned processors = 8) {
  const CUdevResource all = whole();
  CUdevResource group{};
  unsigned count = 1;
  REQUIRE(cuDevSmResourceSplitByCount(&group, &count, &all, nullptr, 0, processors) == CUDA_SUCCESS);
  CUdevResourceDesc description = nullptr;
  REQUIRE(cuDevResourceGenerateDesc(&description, &group, 1) == CUDA_SUCCESS);
  CUgreenCtx green = nullptr;
  REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  return green;
}

}  // namespace

TEST_CASE("a device's processors are split as the driver says") {
  RemoteContext remote;
  const CUdevResource all = whole();
  CHECK(all.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(all.sm.smCount == 20);
  CHECK(all.sm.minSmPartitionSize == 8);
  CHECK(all.sm.smCoscheduledAlignment == 8);
  unsigned count = 0;
  REQUIRE(cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, 5) == CUDA_SUCCESS);
  CHECK(count == 2);
  CUdevResource groups[4] = {}, rest{};
  count = 4;
  REQUIRE(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 5) == CUDA_SUCCESS);
  CHECK(count == 2);
  CHECK(groups[0].sm.smCount == 8);
  CHECK(groups[1].sm.smCount == 8);
  CHECK(rest.sm.smCount == 4);
  CUdevResource of_context{};
  CHECK(cuCtxGetDevResource(remote.context, &of_context, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(of_context.sm.smCount == 20);
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  CHECK(cuDeviceGetDevResource(9, &rest, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGetDevResource(0, nullptr, CU_DEV_RESOURCE_TYPE_SM) == invalid);
  CHECK(cuDeviceGetDevResource(0, &rest, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(cuDevSmResourceSplitByCount(groups, &count, &all, nullptr, 0, 21) == invalid);
  CHECK(cuDevSmResourceSplitByCount(groups, nullptr, &all, nullptr, 0, 8) == invalid);
  CUdevResource made_up = all;
  std::memset(made_up._internal_padding, 0x41, sizeof(made_up._internal_padding));
  CHECK(cuDevSmResourceSplitByCount(groups, &count, &made_up, nullptr, 0, 8) == invalid);
  made_up.type = CU_DEV_RESOURCE_TYPE_INVALID;
  CHECK(cuDevSmResourceSplitByCount(groups, &count, &made_up, nullptr, 0, 8) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevResourceDesc description = nullptr;
  CHECK(cuDevResourceGenerateDesc(&description, groups, 0) == invalid);
  CHECK(cuDevResourceGenerateDesc(nullptr, groups, 1) == invalid);
  CHECK(cuDevResourceGenerateDesc(&description, &made_up, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUgreenCtx green = nullptr;
  CHECK(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == invalid);
  REQUIRE(cuDevResourceGenerateDesc(&description, groups, 2) == CUDA_SUCCESS);
  CHECK(cuGreenCtxCreate(&green, description, 0, 0) == invalid);
  CHECK(cuGreenCtxCreate(&green, description, 9, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxGetDevResource(green, &rest, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(rest.sm.smCount == 16);
  CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
  CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  const CUgreenCtx next = make_green();  // the handle of the first stays what it was
  CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuGreenCtxDestroy(next) == CUDA_SUCCESS);
  CHECK(cuGreenCtxDestroy(reinterpret_cast<CUgreenCtx>(0x770)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuGreenCtxGetDevResource(green, &rest, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("streams of green contexts work on memory of the primary context") {
  RemoteContext remote;
  const CUgreenCtx green = make_green();
  CUstream stream = nullptr;
  CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxStreamCreate(&stream, reinterpret_cast<CUgreenCtx>(remote.context), CU_STREAM_NON_BLOCKING, 0) ==
        CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, -1) == CUDA_SUCCESS);
  CUgreenCtx found = nullptr;
  CUcontext context = nullptr;
  CHECK(cuStreamGetGreenCtx(stream, &found) == CUDA_SUCCESS);
  CHECK(found == green);
  CHECK(cuStreamGetCtx_v2(stream, &context, &found) == CUDA_SUCCESS);
  CHECK(context == remote.context);
  CHECK(found == green);
  CHECK(cuStreamGetGreenCtx(nullptr, &found) == CUDA_SUCCESS);
  CHECK(found == nullptr);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 6, 16, stream) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);  // an event of the primary context
  CHECK(cuStreamWaitEvent(nullptr, event, 0) == CUDA_SUCCESS);
  unsigned value = 0;
  REQUIRE(cuMemcpyDtoH_v2(&value, memory, 4) == CUDA_SUCCESS);
  CHECK(value == 6);
  CHECK(cuGreenCtxRecordEvent(green, event) == CUDA_SUCCESS);
  CHECK(cuGreenCtxWaitEvent(green, event) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  unsigned long long id = 0, own = 0;
  CHECK(cuGreenCtxGetId(green, &id) == CUDA_SUCCESS);
  CHECK(cuCtxGetId(remote.context, &own) == CUDA_SUCCESS);
  CHECK(id != own);
  CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
}

TEST_CASE("waiting for a primary context is waiting for its green ones") {
  RemoteContext remote;
  const CUgreenCtx green = make_green();
  CUstream stream = nullptr;
  REQUIRE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 4) == CUDA_SUCCESS);
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 64, 0) == CUDA_SUCCESS);
  std::atomic_ref seen(*static_cast<unsigned*>(pinned));
  seen = 0;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 3, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue32_v2(stream, reinterpret_cast<CUdeviceptr>(pinned), 1, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(seen == 1);
}

TEST_CASE("a capture in a green context is one in its primary context") {
  RemoteContext remote;
  const CUgreenCtx green = make_green();
  CUstream stream = nullptr;
  CUevent event = nullptr;
  REQUIRE(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuCtxRecordEvent(remote.context, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuCtxRecordEvent(remote.context, event) == CUDA_SUCCESS);
}

TEST_CASE("a green context can be current; what is made in it outlives it, but for streams") {
  RemoteContext remote;
  const CUgreenCtx green = make_green(16);
  CUcontext converted = nullptr, current = nullptr;
  REQUIRE(cuCtxFromGreenCtx(&converted, green) == CUDA_SUCCESS);
  CHECK(converted != remote.context);
  REQUIRE(cuCtxPushCurrent_v2(converted) == CUDA_SUCCESS);
  CUdevice device = 7;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 0);
  CUdevResource resource{};
  CHECK(cuCtxGetDevResource(nullptr, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxGetDevResource(converted, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(resource.sm.smCount == 16);
  CHECK(cuCtxDestroy_v2(converted) == CUDA_ERROR_INVALID_CONTEXT);
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  void* pinned = nullptr;
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  auto& word = *reinterpret_cast<volatile unsigned*>(managed);
  word = 3;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemHostAlloc(&pinned, 64, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 5, 16, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory + 4, 8, 1, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CUgreenCtx found = nullptr;
  CHECK(cuStreamGetGreenCtx(nullptr, &found) == CUDA_SUCCESS);
  CHECK(found == green);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxDestroy(green) == CUDA_SUCCESS);  // it is popped
  REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == remote.context);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamDestroy_v2(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, nullptr) == CUDA_SUCCESS);
  unsigned words[2] = {};
  REQUIRE(cuMemcpyDtoH_v2(words, memory, 8) == CUDA_SUCCESS);
  CHECK(words[0] == 5);
  CHECK(words[1] == 8);
  CUfunction fill = nullptr;
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  word = 4;
  REQUIRE(cuMemcpyDtoD_v2(memory, managed, 4) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32_v2(managed, 6, 1) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH_v2(words, memory, 4) == CUDA_SUCCESS);
  CHECK(words[0] == 4);
  CHECK(word == 6);
  CHECK(cuMemFree_v2(managed) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  CHECK(cuCtxFromGreenCtx(&converted, green) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a green context keeps the primary one alive, which is not reset under it") {
  RemoteContext remote;
  const CUgreenCtx green = make_green();
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 0;
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
  CHECK(remote.driver->calls("cuGreenCtxDestroy") == 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_ERROR_NOT_PERMITTED);
  CHECK(remote.driver->calls("cuGreenCtxDestroy") == 0);
  CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
  CHECK(cuGreenCtxDestroy(green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(remote.driver->calls("cuGreenCtxDestroy") == 1);
  CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
}

TEST_CASE("execution affinity is the driver's answer") {
  RemoteContext remote;
  CUexecAffinityParam affinity{};
  REQUIRE(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS);
  CHECK(affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
  CHECK(affinity.param.smCount.val == 20);
  CHECK(cuCtxGetExecAffinity(&affinity, static_cast<CUexecAffinityType>(5)) == CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
}

TEST_CASE("a session with a part of the processors has that for the device, and cannot leave it") {
  RemoteContext remote(test::Remote::default_config(), {}, nullptr, {}, false, {1});
  int processors = 0;
  CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) == CUDA_SUCCESS);
  CHECK(processors == 8);
  CHECK(whole().sm.smCount == 8);
  CUdevResource of_context{};
  CHECK(cuCtxGetDevResource(remote.context, &of_context, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(of_context.sm.smCount == 8);
  CHECK(remote.driver->calls("cuGreenCtxCreate") == 1);
  // Another context would be of all of them.
  CUcontext created = nullptr;
  CHECK(cuCtxCreate_v4(&created, nullptr, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(remote.driver->calls("cuCtxCreate_v4") == 0);
  // So would a green one of more than the part.
  CUdevResource group{};
  const CUdevResource all = whole();
  unsigned count = 1;
  CHECK(cuDevSmResourceSplitByCount(&group, &count, &all, nullptr, 0, 16) == CUDA_ERROR_INVALID_VALUE);
  const CUgreenCtx green = make_green(8);
  CHECK(cuGreenCtxGetDevResource(green, &group, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(group.sm.smCount == 8);
  unsigned long long own = 0, of_green = 0;
  CHECK(cuCtxGetId(remote.context, &own) == CUDA_SUCCESS);
  CHECK(cuGreenCtxGetId(green, &of_green) == CUDA_SUCCESS);
  CHECK(own != of_green);
  // All else is as ever.
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  unsigned words = 16, value = 7;
  void* arguments[] = {&memory, &words, &value};
  REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  unsigned seen = 0;
  REQUIRE(cuMemcpyDtoH_v2(&seen, memory, 4) == CUDA_SUCCESS);
  CHECK(seen == 7);
  CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuGreenCtxDestroy") == 2);
  CUcontext anew = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&anew, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(anew) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuGreenCtxCreate") == 3);
  CHECK(whole().sm.smCount == 8);
}

TEST_CASE("a part is told of before there is a context, and is the one that the context has then") {
  test::Remote remote(test::Remote::default_config(), {}, nullptr, {}, false, {0});
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  CHECK(whole().sm.smCount == 8);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(remote.driver->calls("cuGreenCtxCreate") == 1);
  CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
}

TEST_CASE("a worker makes green contexts only of its own resources, within an open primary context") {
  HandMadeClient client;
  client.send_call<wire::SplitResource>(Opcode::splitResource, [](wire::SplitResource::Builder in) {
    in.setResource(1);
    in.setGroups(~0u);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::DescribeResources>(
      Opcode::describeResources, [](wire::DescribeResources::Builder in) { in.initResources(1).set(0, 99); });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::DescribeResources>(Opcode::describeResources, [](auto) {});
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::DeviceResource>(Opcode::deviceResource, [](wire::DeviceResource::Builder in) {
    in.setType(CU_DEV_RESOURCE_TYPE_SM);
    in.getOf().setDevice(3);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_DEVICE);
  client.send_call<wire::DeviceResource>(Opcode::deviceResource, [](wire::DeviceResource::Builder in) {
    in.setType(CU_DEV_RESOURCE_TYPE_SM);
    in.getOf().setContext(0x1234);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_CONTEXT);
  client.send_call<wire::DeviceResource>(Opcode::deviceResource, [](wire::DeviceResource::Builder in) {
    in.setType(CU_DEV_RESOURCE_TYPE_SM);
    in.getOf().setDevice(0);
  });
  CHECK(client.reply() == CUDA_SUCCESS);
  client.send_call<wire::DescribeResources>(Opcode::describeResources,
                                            [](wire::DescribeResources::Builder in) { in.initResources(1).set(0, 1); });
  CHECK(client.reply() == CUDA_SUCCESS);
  const auto open = [&](std::uint64_t resources) {
    client.send_call<wire::OpenContext>(Opcode::openContext, [&](wire::OpenContext::Builder in) {
      in.setContext(Handle(HandleKind::context, 9, 1).value());
      in.setResources(resources);
    });
    return client.reply();
  };
  const std::uint64_t description = Handle(HandleKind::resourcedesc, Handle::worker_index_first, 1).value();
  CHECK(open(0x77) != CUDA_SUCCESS);
  CHECK(open(description) == CUDA_ERROR_INVALID_CONTEXT);  // the primary context is not open
  client.open_context();
  CHECK(open(description) == CUDA_SUCCESS);
  CHECK(open(description) == CUDA_ERROR_INVALID_VALUE);  // that handle is taken
}

TEST_CASE("a worker opens nothing of a device beside a session's part of it") {
  HandMadeClient client(0, false, false, server::SessionOptions().output_bytes_max, {1});
  client.open_context();
  const auto open = [&](std::uint32_t number, bool primary) {
    client.send_call<wire::OpenContext>(Opcode::openContext, [&](wire::OpenContext::Builder in) {
      in.setContext(Handle(HandleKind::context, number, 1).value());
      in.setPrimary(primary);
    });
    return client.reply();
  };
  CHECK(open(9, true) == CUDA_ERROR_INVALID_VALUE);  // the first one stands for it
  CHECK(open(9, false) == CUDA_ERROR_NOT_SUPPORTED);
}
