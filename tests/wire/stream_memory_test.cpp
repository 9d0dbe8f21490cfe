// Stream memory operations: on memory of the GPU, which the GPU executes, and on memory of the host, which the client
// does.

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "client/call/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Streams : RemoteContext {
  Streams() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(memory, 0, 4096) == CUDA_SUCCESS);
    REQUIRE(cuMemHostAlloc(&pinned, 4096, 0) == CUDA_SUCCESS);
    std::memset(pinned, 0, 4096);
  }
  unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    REQUIRE(cuMemcpyDtoHAsync_v2(&value, at, 4, other) == CUDA_SUCCESS);
    return value;
  }
  std::atomic_ref<unsigned> flag(std::size_t i = 0) { return std::atomic_ref(static_cast<unsigned*>(pinned)[i]); }
  CUdeviceptr host(std::size_t i = 0) const { return reinterpret_cast<CUdeviceptr>(pinned) + 4 * i; }
  CUstream stream = nullptr, other = nullptr;
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
};

CUstreamBatchMemOpParams operation(CUstreamBatchMemOpType type, CUdeviceptr address, std::uint64_t value,
                                   unsigned flags = 0) {
  CUstreamBatchMemOpParams params{};
  params.operation = type;
  params.waitValue.address = address;
  params.waitValue.value64 = value;
  params.waitValue.flags = flags;
  return params;
}

}  // namespace

TEST_CASE("operations on memory of the GPU go to the driver in one call, without a round trip") {
  Streams s;
  const auto before = client::stats::round_trips();
  REQUIRE(cuStreamWriteValue32_v2(s.stream, s.memory + 8, 77, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue64_v2(s.stream, s.memory + 16, 0x1'0000'0002, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.memory + 8, 70, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue64_v2(s.stream, s.memory + 16, 1, CU_STREAM_WAIT_VALUE_NOR) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);
  CUstreamBatchMemOpParams batch[4] = {
      operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, s.memory + 8, 77, CU_STREAM_WAIT_VALUE_EQ),
      operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.memory, 5),
      {},
      operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, s.memory + 32, 6)};
  batch[2].operation = CU_STREAM_MEM_OP_BARRIER;
  REQUIRE(cuStreamBatchMemOp_v2(s.stream, 4, batch, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.driver->calls("cuStreamBatchMemOp_v2") == 5);
  CHECK(s.driver->last_arguments("cuStreamBatchMemOp_v2")[1] == 4);
  CHECK(s.word(s.memory) == 5);
  CHECK(s.word(s.memory + 8) == 77);
  CHECK(s.word(s.memory + 16) == 2);
  CHECK(s.word(s.memory + 20) == 1);
  CHECK(s.word(s.memory + 32) == 6);
}

TEST_CASE("a stream waits for a value that the program writes later, and holds up nobody else") {
  Streams s;
  const unsigned flags = GENERATE(unsigned{CU_STREAM_WAIT_VALUE_EQ}, unsigned{CU_STREAM_WAIT_VALUE_GEQ},
                                  unsigned{CU_STREAM_WAIT_VALUE_AND});
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 4, flags) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(s.memory, 9, 1, s.stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(s.stream) == CUDA_ERROR_NOT_READY);
  s.flag() = 3;  // equal to, and-ed with and less than what is waited for: none of it holds
  REQUIRE(cuMemsetD32Async(s.memory + 4, 8, 1, s.other) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.other) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(s.stream) == CUDA_ERROR_NOT_READY);
  CHECK(s.word(s.memory) == 0);
  CHECK(s.word(s.memory + 4) == 8);
  s.flag() = 4;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 9);
  CHECK(s.driver->calls("cuStreamBatchMemOp_v2") == 0);  // the GPU waits for nothing that this process does
}

TEST_CASE("what the program wrote before the value is read by what waited for it") {
  Streams s;
  auto* const source = static_cast<unsigned*>(s.pinned) + 16;
  *source = 1;
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(s.memory, source, 4, s.stream) == CUDA_SUCCESS);
  std::thread later([&] {
    *source = 42;
    s.flag() = 1;
  });
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  later.join();
  CHECK(s.word(s.memory) == 42);
}

TEST_CASE("what is unmapped while a stream waits for the program can be mapped again at once") {
  Streams s;
  constexpr std::size_t piece = 2u << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, piece, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, piece, &prop, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(range, piece, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemSetAccess(range, piece, &access, 1) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync_v2(s.memory, s.memory + 64, 4, s.stream) == CUDA_SUCCESS);
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, s.stream) == CUDA_SUCCESS);
  REQUIRE(cuCtxWaitEvent(s.context, event) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(range, piece) == CUDA_SUCCESS);  // does not wait for what this thread is to write
  CHECK(cuMemMap(range, piece, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemSetAccess(range, piece, &access, 1) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(range, piece) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(range, piece) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc_v2(&memory, piece) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(s.stream) == CUDA_ERROR_NOT_READY);
  s.flag() = 1;
  CHECK(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a copy behind a wait on the GPU's memory reads pinned memory when the stream gets there") {
  Streams s;
  auto* const source = static_cast<unsigned*>(s.pinned);
  *source = 1;
  s.driver->pause(true);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.memory, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(s.memory + 64, source, 4, s.stream) == CUDA_SUCCESS);
  *source = 2;
  s.driver->pause(false);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  if (!s.session().shares_memory()) {
    CHECK(s.word(s.memory + 64) == 2);
  } else {
    // The driver reads the memory itself, at its own time, which for the fake one is at once: it was given the
    // program's own.
    const auto* const given = reinterpret_cast<const unsigned*>(s.driver->last_arguments("cuMemcpyHtoDAsync_v2").at(1));
    CHECK(*given == 2);
    *source = 3;
    CHECK(*given == 3);
  }
}

TEST_CASE("a stream writes to memory of the host, seen without a call; mixed batches keep their order") {
  Streams s;
  REQUIRE(cuStreamWriteValue32_v2(s.stream, s.host(1), 11, 0) == CUDA_SUCCESS);
  for (int i = 0; i < 5000 && s.flag(1) != 11; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(s.flag(1) == 11);
  CUstreamBatchMemOpParams batch[] = {operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.memory, 1),
                                      operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, s.host(2), 7, CU_STREAM_WAIT_VALUE_EQ),
                                      operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.memory + 4, 2),
                                      operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, s.host(4), 0x2'0000'0003)};
  REQUIRE(cuStreamBatchMemOp_v2(s.stream, 4, batch, 0) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(s.stream) == CUDA_ERROR_NOT_READY);
  CHECK(s.word(s.memory) == 1);
  CHECK(s.word(s.memory + 4) == 0);
  s.flag(2) = 7;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory + 4) == 2);
  CHECK(s.flag(4) == 3);
  CHECK(s.flag(5) == 2);
  // One stream's write ends another one's wait.
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(8), 1, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue32_v2(s.other, s.host(8), 1, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
}

TEST_CASE("what kernels write to memory of the host ends a wait there") {
  Streams s;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  std::vector<unsigned> words(64, 0);
  REQUIRE(cuMemHostRegister_v2(words.data(), 256, CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  CUdeviceptr device = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, words.data(), 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, device + 8, 5, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  unsigned count = 4, value = 5;
  void* arguments[] = {&device, &count, &value};
  REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, s.other, arguments, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(words[2] == 5);
  REQUIRE(cuMemHostUnregister(words.data()) == CUDA_SUCCESS);
}

TEST_CASE("a first launch behind a wait does not wait itself") {
  Streams s;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, 0) == CUDA_SUCCESS);
  unsigned count = 1, value = 5;
  void* arguments[] = {&s.memory, &count, &value};
  REQUIRE(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, s.stream, arguments, nullptr) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 0);
  s.flag() = 1;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 5);
}

TEST_CASE("comparison is cyclic, and all bits may count") {
  Streams s;
  auto* const wide = static_cast<std::uint64_t*>(s.pinned);
  s.flag() = 5;
  // 5 has wrapped around.
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 0xffff'fff0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
  wide[1] = ~0ull << 1;
  REQUIRE(cuStreamWaitValue64_v2(s.stream, s.host(2), 0, CU_STREAM_WAIT_VALUE_NOR) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue64_v2(s.stream, s.host(2), 1, CU_STREAM_WAIT_VALUE_NOR) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(s.stream) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(wide[1]).store(0);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
}

TEST_CASE("stream memory operations: what is refused") {
  Streams s;
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  CHECK(cuStreamWaitValue32_v2(s.stream, s.memory + 2, 0, 0) == invalid);
  CHECK(cuStreamWaitValue64_v2(s.stream, s.memory + 4, 0, 0) == invalid);
  CHECK(cuStreamWriteValue32_v2(s.stream, s.memory + 4096, 0, 0) == invalid);
  CHECK(cuStreamWriteValue32_v2(s.stream, managed, 0, 0) == invalid);
  CHECK(cuStreamWriteValue32_v2(s.stream, 0, 0, 0) == invalid);
  CHECK(cuStreamWriteValue32_v2(s.stream, s.memory, 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == invalid);
  CHECK(cuStreamWaitValue32_v2(s.stream, s.memory, 0, 4) == invalid);
  CHECK(cuStreamWaitValue32_v2(s.stream, s.memory, 0, CU_STREAM_WAIT_VALUE_FLUSH) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuStreamBatchMemOp_v2(s.stream, 0, nullptr, 0) == invalid);
  std::vector<CUstreamBatchMemOpParams> many(257, operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.memory, 1));
  CHECK(cuStreamBatchMemOp_v2(s.stream, 257, many.data(), 0) == invalid);
  CHECK(cuStreamBatchMemOp_v2(s.stream, 2, many.data(), 1) == invalid);
  many[1].operation = static_cast<CUstreamBatchMemOpType>(99);
  CHECK(cuStreamBatchMemOp_v2(s.stream, 2, many.data(), 0) == invalid);
  CHECK(cuStreamWaitValue32_v2(reinterpret_cast<CUstream>(0x1230), s.memory, 0, 0) == CUDA_ERROR_INVALID_HANDLE);
  // The first version is not offered by this driver, and says so.
  int offered = 1;
  REQUIRE(cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0) == CUDA_SUCCESS);
  CHECK(offered == 0);
  CHECK(cuStreamWaitValue32(s.stream, s.memory, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuStreamWriteValue64(s.stream, s.memory, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuStreamBatchMemOp(s.stream, 1, many.data(), 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(s.driver->calls("cuStreamBatchMemOp_v2") == 0);
  CHECK(s.word(s.memory) == 0);
}

TEST_CASE("where the driver offers the first version, it does what the second does") {
  REQUIRE(::setenv("FARGPU_FAKE_FIRST_MEMORY_OPERATIONS", "1", 1) == 0);
  Streams s;
  REQUIRE(::unsetenv("FARGPU_FAKE_FIRST_MEMORY_OPERATIONS") == 0);
  REQUIRE(cuStreamWriteValue32(s.stream, s.memory, 4, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue64(s.stream, s.memory + 8, 5, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32(s.stream, s.memory, 4, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue64(s.stream, s.memory + 8, 5, 0) == CUDA_SUCCESS);
  CUstreamBatchMemOpParams write = operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.host(), 6);
  REQUIRE(cuStreamBatchMemOp(s.stream, 1, &write, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 4);
  CHECK(s.word(s.memory + 8) == 5);
  CHECK(s.flag() == 6);
}

TEST_CASE("a capture does not begin behind work that waits for a value that the same thread writes later") {
  Streams s;
  CUgraph graph = nullptr;
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(s.memory, 6, 1, s.stream) == CUDA_SUCCESS);  // which would be captured otherwise
  CHECK(cuStreamBeginCapture_v2(s.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuStreamEndCapture(s.stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(cuStreamBeginCapture_v2(s.other, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(s.other, &graph) == CUDA_SUCCESS);
  s.flag() = 1;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(s.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(s.stream, &graph) == CUDA_SUCCESS);
}

TEST_CASE("nor does a stream join one") {
  Streams s;
  CUevent fork = nullptr;
  CUgraph graph = nullptr;
  REQUIRE(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(s.other, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(fork, s.other) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(s.stream, fork, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuStreamEndCapture(s.other, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  s.flag() = 1;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
}

TEST_CASE("captured memory operations become nodes; those on memory of the host cannot") {
  Streams s;
  REQUIRE(cuStreamBeginCapture_v2(s.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue32_v2(s.stream, s.memory, 3, 0) == CUDA_SUCCESS);
  CHECK(cuStreamWaitValue32_v2(s.stream, s.host(), 3, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(s.stream, &graph) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 0);
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, s.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 3);
  // A node may write to memory of the host, which the GPU then sees, but not wait for it.
  CUstreamBatchMemOpParams write = operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, s.host(3), 12);
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{s.context, 1, &write, 0};
  CUgraph own = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphCreate(&own, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddBatchMemOpNode(&node, own, nullptr, 0, &params) == CUDA_SUCCESS);
  write.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  CHECK(cuGraphAddBatchMemOpNode(&node, own, nullptr, 0, &params) == CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE(cuGraphInstantiateWithFlags(&exec, own, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, s.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.flag(3) == 12);
}

namespace {

// A graph of one node that sets a word of the memory.
struct OneMemset {
  explicit OneMemset(const Streams& s) : memory(s.memory), context(s.context) {
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    const CUDA_MEMSET_NODE_PARAMS params = to(1);
    REQUIRE(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  }
  CUDA_MEMSET_NODE_PARAMS to(unsigned value) const { return {memory, 0, value, 4, 1, 1}; }
  CUresult change(unsigned value) const {
    const CUDA_MEMSET_NODE_PARAMS params = to(value);
    return cuGraphExecMemsetNodeSetParams(exec, node, &params, context);
  }
  CUresult update() const {
    CUgraphExecUpdateResultInfo info;
    return cuGraphExecUpdate_v2(exec, graph, &info);
  }
  const CUdeviceptr memory;
  const CUcontext context;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
};

}  // namespace

TEST_CASE("graphs are changed while a stream waits for a value that the same thread writes later") {
  Streams s;
  const OneMemset one(s), other(s);
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(one.exec, s.stream) == CUDA_SUCCESS);
  const CUDA_MEMSET_NODE_PARAMS params = one.to(2);
  CHECK(cuGraphMemsetNodeSetParams(one.node, &params) == CUDA_SUCCESS);
  CHECK(other.change(3) == CUDA_SUCCESS);
  CHECK(other.update() == CUDA_SUCCESS);
  CHECK(cuGraphNodeSetEnabled(other.exec, other.node, 1) == CUDA_SUCCESS);
  // The launch that is held back is of this one as it was: it cannot be waited for.
  CHECK(one.change(4) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(one.update() == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(cuGraphNodeSetEnabled(one.exec, one.node, 0) == CUDA_ERROR_NOT_SUPPORTED);
  s.flag() = 1;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 1);
  CHECK(one.change(4) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(one.exec, s.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 4);
}

TEST_CASE("a change to an executable graph comes behind a launch that a host function holds back") {
  Streams s;
  const OneMemset one(s), other(s);
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(s.stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  CHECK(one.change(5) == CUDA_SUCCESS);  // no launch of it is held back
  REQUIRE(cuGraphLaunch(one.exec, s.stream) == CUDA_SUCCESS);
  CHECK(other.change(6) == CUDA_SUCCESS);
  gate.wait_entered();
  std::thread opener([&] { gate.open(); });
  CHECK(one.change(7) == CUDA_SUCCESS);
  opener.join();
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 5);
}

TEST_CASE("a context whose stream waits for a value that nobody will write can be destroyed") {
  Streams s;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32_v2(stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(s.context) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("what is destroyed while a stream waits for a value goes when that is over, and nobody waits") {
  Streams s;
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle allocation = 0;
  REQUIRE(cuMemCreate(&allocation, 2u << 20, &properties, 0) == CUDA_SUCCESS);
  const OneMemset one(s);
  CUcontext context = nullptr;  // not the one whose stream waits
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(s.context) == CUDA_SUCCESS);
  const unsigned unloaded = s.driver->calls("cuModuleUnload");
  REQUIRE(cuStreamWaitValue32_v2(s.stream, s.host(), 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(s.memory, 9, 1, s.stream) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuMemRelease(allocation) == CUDA_SUCCESS);
  CHECK(cuGraphDestroyNode(one.node) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(s.driver->calls("cuModuleUnload") == unloaded);
  s.flag() = 1;
  REQUIRE(cuStreamSynchronize(s.stream) == CUDA_SUCCESS);
  CHECK(s.word(s.memory) == 9);
  std::size_t nodes = 1;
  CHECK(cuGraphGetNodes(one.graph, nullptr, &nodes) == CUDA_SUCCESS);
  CHECK(nodes == 0);
  for (int i = 0; i < 2000 && s.driver->calls("cuModuleUnload") == unloaded; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(s.driver->calls("cuModuleUnload") == unloaded + 1);  // beside the executor, and perhaps behind the answer
}
