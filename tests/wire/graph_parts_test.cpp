// Graphs that call functions of the program and copy from and to its memory: cut into pieces, run in order, changed,
// copied, given back.

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

using Function = std::function<void()>;
void CUDA_CB call(void* function) { (*static_cast<Function*>(function))(); }

/// Waits, within reason, for what another thread brings about.
bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

struct Graphs : RemoteContext {
  Graphs() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 1 << 16) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8_v2(memory, 0, 1 << 16) == CUDA_SUCCESS);
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  }
  CUDA_MEMCPY3D in(CUdeviceptr to, const void* from, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
  }
  CUDA_MEMCPY3D out(void* to, CUdeviceptr from, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = to;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
  }
  CUgraphNode add(const CUDA_MEMCPY3D& copy, std::vector<CUgraphNode> after = {}, CUgraph to = nullptr) {
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddMemcpyNode(&node, to ? to : graph, after.data(), after.size(), &copy, context) == CUDA_SUCCESS);
    return node;
  }
  CUgraphNode add(Function& function, std::vector<CUgraphNode> after = {}, CUgraph to = nullptr) {
    const CUDA_HOST_NODE_PARAMS params{call, &function};
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddHostNode(&node, to ? to : graph, after.data(), after.size(), &params) == CUDA_SUCCESS);
    return node;
  }
  CUgraphNode add_set(CUdeviceptr at, unsigned value, std::vector<CUgraphNode> after = {}, CUgraph to = nullptr) {
    CUDA_MEMSET_NODE_PARAMS params{at, 0, value, 4, 1, 1};
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddMemsetNode(&node, to ? to : graph, after.data(), after.size(), &params, context) == CUDA_SUCCESS);
    return node;
  }
  CUgraphExec instantiate(CUgraph which = nullptr) {
    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiateWithFlags(&exec, which ? which : graph, 0) == CUDA_SUCCESS);
    return exec;
  }
  void run(CUgraphExec exec) {
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  }
  unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    REQUIRE(cuMemcpyDtoH_v2(&value, at, 4) == CUDA_SUCCESS);
    return value;
  }
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  CUgraph graph = nullptr;
};

}  // namespace

TEST_CASE("a graph runs functions of the program between its pieces, at each launch") {
  Graphs g;
  std::vector<int> order;
  unsigned seen = 0, other = 0;
  Function first = [&] {
    order.push_back(1);
    seen += 1;
  };
  Function second = [&] { order.push_back(2); };
  // fetch 7 -> device; out to `seen`; function adds one; back to the device; function; memset elsewhere
  unsigned source = 7;
  const CUgraphNode fetched = g.add(g.in(g.memory, &source, 4));
  const CUgraphNode told = g.add(g.out(&seen, g.memory, 4), {fetched});
  const CUgraphNode called = g.add(first, {told});
  const CUgraphNode back = g.add(g.in(g.memory + 4, &seen, 4), {called});
  const CUgraphNode again = g.add(second, {back});
  g.add_set(g.memory + 8, 55, {again});
  g.add(g.out(&other, g.memory + 4, 4), {again});
  const CUgraphExec exec = g.instantiate();
  CHECK(order.empty());
  g.run(exec);
  CHECK(order == std::vector<int>{1, 2});
  CHECK(seen == 8);
  CHECK(other == 8);
  CHECK(g.word(g.memory) == 7);
  CHECK(g.word(g.memory + 4) == 8);
  CHECK(g.word(g.memory + 8) == 55);
  source = 40;
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(order.size() == 8);
  CHECK(seen == 41);
  CHECK(other == 41);
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
}

TEST_CASE("a launch reads the program's memory when the stream gets there") {
  Graphs g;
  unsigned source = 1;
  g.add(g.in(g.memory, &source, 4));
  const CUgraphExec exec = g.instantiate();
  Function change = [&] { source = 99; };
  REQUIRE(cuLaunchHostFunc(g.stream, call, &change) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(g.word(g.memory) == 99);
}

TEST_CASE("rows of copies in graphs find their places") {
  Graphs g;
  std::vector<unsigned char> source(64 * 8), target(32 * 8, 0xee);
  std::iota(source.begin(), source.end(), static_cast<unsigned char>(0));
  CUDA_MEMCPY3D in = g.in(g.memory, source.data(), 10);
  in.Height = 3;
  in.Depth = 2;
  in.srcPitch = 64;
  in.srcHeight = 4;
  in.srcXInBytes = 5;
  in.srcY = 1;
  in.dstPitch = 16;
  in.dstHeight = 3;
  CUDA_MEMCPY3D out = g.out(target.data(), g.memory, 10);
  out.Height = 3;
  out.Depth = 2;
  out.srcPitch = 16;
  out.srcHeight = 3;
  out.dstPitch = 32;
  out.dstHeight = 4;
  out.dstXInBytes = 2;
  const CUgraphNode node = g.add(in);
  g.add(out, {node});
  g.run(g.instantiate());
  for (std::size_t z = 0; z < 2; ++z) {
    for (std::size_t y = 0; y < 4; ++y) {
      for (std::size_t x = 0; x < 32; ++x) {
        const unsigned char wanted = y < 3 && x >= 2 && x < 12 ? source[(z * 4 + y + 1) * 64 + 5 + x - 2] : 0xee;
        INFO(x << " " << y << " " << z);
        REQUIRE(target[(z * 4 + y) * 32 + x] == wanted);
      }
    }
  }
  CUDA_MEMCPY3D back;
  REQUIRE(cuGraphMemcpyNodeGetParams(node, &back) == CUDA_SUCCESS);
  CHECK(std::memcmp(&back, &in, sizeof(in)) == 0);
  in.dstDevice = 0x10;
  CUgraphNode bad = nullptr;
  CHECK(cuGraphAddMemcpyNode(&bad, g.graph, nullptr, 0, &in, g.context) == CUDA_ERROR_INVALID_VALUE);
  in = g.in(g.memory, nullptr, 4);
  CHECK(cuGraphAddMemcpyNode(&bad, g.graph, nullptr, 0, &in, g.context) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies and host functions are captured, and done at each launch") {
  Graphs g;
  std::vector<unsigned> source(3000, 5), target(3000, 0);
  int calls = 0;
  Function count = [&] { ++calls; };
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemcpyHtoDAsync_v2(g.memory, source.data(), 12000, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(g.memory + 4, 6, 1, g.stream) == CUDA_SUCCESS);
  CHECK(cuLaunchHostFunc(g.stream, call, &count) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoHAsync_v2(target.data(), g.memory, 12000, g.stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  CHECK(target[0] == 0);
  CHECK(calls == 0);
  CUgraphNode nodes[4] = {};
  std::size_t n = 4;
  REQUIRE(cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
  REQUIRE(n == 4);
  CUDA_HOST_NODE_PARAMS params{};
  REQUIRE(cuGraphHostNodeGetParams(nodes[2], &params) == CUDA_SUCCESS);
  CHECK(params.fn == call);
  CHECK(params.userData == &count);
  CUDA_MEMCPY3D copy;
  REQUIRE(cuGraphMemcpyNodeGetParams(nodes[3], &copy) == CUDA_SUCCESS);
  CHECK(copy.dstHost == target.data());
  CHECK(copy.srcDevice == g.memory);
  CHECK(cuGraphHostNodeGetParams(nodes[3], &params) == CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec exec = g.instantiate(graph);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  for (unsigned round = 10; round < 13; ++round) {
    std::fill(source.begin(), source.end(), round);
    g.run(exec);
    CHECK(target[0] == round);
    CHECK(target[1] == 6);
    CHECK(target[2999] == round);
  }
  CHECK(calls == 3);
}

TEST_CASE("what is captured does not wait for what the stream still has to do") {
  Graphs g;
  std::mutex gate;
  gate.lock();
  Function wait = [&] { const std::lock_guard pass(gate); };
  REQUIRE(cuLaunchHostFunc(g.stream, call, &wait) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(g.memory, 6, 1, g.stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  std::size_t n = 0;
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  CHECK(n == 1);
  gate.unlock();
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(g.word(g.memory) == 0);
}

TEST_CASE("work that the stream was given before is no part of what is captured") {
  Graphs g;
  std::promise<void> gate;
  Function wait = [&] { gate.get_future().wait(); };
  REQUIRE(cuLaunchHostFunc(g.stream, call, &wait) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(g.memory, 6, 1, g.stream) == CUDA_SUCCESS);
  std::jthread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.set_value();
  });
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cuMemsetD32Async(g.memory + 4, 7, 1, g.stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  std::size_t n = 0;
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  CHECK(n == 1);
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(g.word(g.memory) == 6);
  CHECK(g.word(g.memory + 4) == 0);
}

TEST_CASE("pinned memory that a graph writes is newest for later copies") {
  Graphs g;
  unsigned* pinned = nullptr;
  const std::size_t bytes = 2u << 20;
  REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), bytes, 0) == CUDA_SUCCESS);
  pinned[0] = 3;
  const CUgraphNode set = g.add_set(g.memory, 77);
  g.add(g.out(pinned, g.memory, 4), {set});
  const CUgraphExec exec = g.instantiate();
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoDAsync_v2(g.memory + 16, pinned, 4, g.stream) == CUDA_SUCCESS);  // no wait in between
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(pinned[0] == 77);
  CHECK(g.word(g.memory + 16) == 77);
  // A synchronous copy waits for what writes its source.
  pinned[0] = 4;
  REQUIRE(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyHtoD_v2(g.memory + 20, pinned, 4) == CUDA_SUCCESS);
  CHECK(g.word(g.memory + 20) == 77);
}

TEST_CASE("a graph's copies go where kernels see memory that they came to use later") {
  Graphs g;
  // Of larger ones client and worker cannot have pages of their own in one process: kernels_mapped.
  const std::size_t bytes = 4096;
  const bool registered = GENERATE(false, true);
  std::vector<unsigned> own(registered ? bytes / 4 + 1024 : 0);
  unsigned* pinned = nullptr;
  if (registered) {
    pinned = reinterpret_cast<unsigned*>((reinterpret_cast<std::uintptr_t>(own.data()) + 4095) / 4096 * 4096);
    REQUIRE(cuMemHostRegister_v2(pinned, bytes, 0) == CUDA_SUCCESS);
  } else {
    REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), bytes, 0) == CUDA_SUCCESS);
  }
  const CUgraphNode first = g.add(g.in(g.memory, pinned, 4));
  const CUgraphNode second = g.add(g.out(pinned + 1, g.memory, 4), {first});
  const bool with_function = GENERATE(false, true);
  Function change = [&] { pinned[3] = pinned[1] + 100; };
  CUgraphNode third = second;
  if (with_function) third = g.add(g.in(g.memory + 8, pinned + 3, 4), {g.add(change, {second})});
  CUgraph child = nullptr;  // as a node of another graph
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  g.add(g.in(g.memory + 16, pinned + 5, 4), {}, child);
  CUgraphNode inner = nullptr;
  REQUIRE(cuGraphAddChildGraphNode(&inner, g.graph, &third, 1, child) == CUDA_SUCCESS);
  const CUgraphExec exec = g.instantiate();
  const auto check = [&](unsigned value) {
    pinned[0] = value;
    pinned[5] = value + 5;
    g.run(exec);
    CHECK(pinned[1] == value);
    CHECK(g.word(g.memory) == value);
    if (with_function) CHECK(g.word(g.memory + 8) == value + 100);
    CHECK(g.word(g.memory + 16) == value + 5);
  };
  check(7);
  CUdeviceptr seen = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&seen, pinned, 0) == CUDA_SUCCESS);
  const auto fill = [&](std::size_t word, unsigned value) {
    REQUIRE(cuMemsetD32Async(seen + 4 * word, value, 1, g.stream) == CUDA_SUCCESS);
  };
  for (unsigned value = 20; value < 23; ++value) {
    check(value);
    // What the GPU wrote there is what the next launch copies, without the program between; and what it copied, the GPU
    // finds.
    fill(0, 10 * value);
    fill(5, 11 * value);
    REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoDAsync_v2(g.memory + 32, seen + 4, 4, g.stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
    CHECK(g.word(g.memory) == 10 * value);
    CHECK(g.word(g.memory + 16) == 11 * value);
    CHECK(g.word(g.memory + 32) == 10 * value);
    CHECK(pinned[1] == 10 * value);
  }
  // The program is told what it said, and a later instance is as good.
  CUDA_MEMCPY3D copy;
  REQUIRE(cuGraphMemcpyNodeGetParams(first, &copy) == CUDA_SUCCESS);
  CHECK(copy.srcHost == pinned);
  REQUIRE(cuGraphNodeSetEnabled(exec, second, 0) == CUDA_SUCCESS);
  pinned[0] = 50;
  g.run(exec);
  CHECK(pinned[1] == 220);
  CHECK(g.word(g.memory) == 50);
  const CUgraphExec again = g.instantiate();
  g.run(again);
  CHECK(pinned[1] == 50);
  if (!registered) return;
  // Not registered any more, it is memory of the program alone.
  REQUIRE(cuMemHostUnregister(pinned) == CUDA_SUCCESS);
  pinned[0] = 60;
  g.run(again);
  CHECK(pinned[1] == 60);
}

TEST_CASE("nodes are not forgotten to be disabled when an update brings the first copy to the program") {
  Graphs g;
  const CUDA_MEMCPY3D within = [&] {
    CUDA_MEMCPY3D copy = g.in(g.memory + 16, nullptr, 4);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = g.memory;
    return copy;
  }();
  const CUgraphNode node = g.add(within);
  const CUgraphExec exec = g.instantiate();
  CUgraph other = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  unsigned seen = 77;
  g.add(g.out(&seen, g.memory, 4), {}, other);
  REQUIRE(cuMemsetD32_v2(g.memory, 5, 1) == CUDA_SUCCESS);
  REQUIRE(cuGraphNodeSetEnabled(exec, node, 0) == CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  CHECK(cuGraphExecUpdate_v2(exec, other, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
  g.run(exec);  // as it was
  CHECK(seen == 77);
  CHECK(g.word(g.memory + 16) == 0);
  REQUIRE(cuGraphNodeSetEnabled(exec, node, 1) == CUDA_SUCCESS);
  g.run(exec);
  CHECK(g.word(g.memory + 16) == 5);
  CHECK(cuGraphExecUpdate_v2(exec, other, &info) == CUDA_SUCCESS);
  g.run(exec);
  CHECK(seen == 5);
}

TEST_CASE("a graph with conditions says that its copies cannot go where kernels see the memory") {
  Graphs g;
  unsigned* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, 0) == CUDA_SUCCESS);
  CUgraphConditionalHandle handle = 0;
  REQUIRE(cuGraphConditionalHandleCreate(&handle, g.graph, g.context, 1, 0) == CUDA_SUCCESS);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  params.conditional.ctx = g.context;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddNode_v2(&node, g.graph, nullptr, nullptr, 0, &params) == CUDA_SUCCESS);
  g.add(g.in(g.memory, pinned, 4), {}, params.conditional.phGraph_out[0]);
  const CUgraphExec exec = g.instantiate();
  CUdeviceptr seen = 0;
  REQUIRE(cuMemHostGetDevicePointer_v2(&seen, pinned, 0) == CUDA_SUCCESS);
  const CUresult launched = cuGraphLaunch(exec, g.stream);
  // Shared memory was named by its address when the copy was added.
  const CUresult expected = g.session().shares_memory() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  CHECK((launched == CUDA_SUCCESS ? cuStreamSynchronize(g.stream) : launched) == expected);
}

TEST_CASE("memory that kernels see too is named as it is") {
  Graphs g;
  unsigned* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 4096, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  pinned[0] = 1;
  Function change = [&] { pinned[0] = 21; };
  const CUgraphNode changed = g.add(change);
  const CUgraphNode node = g.add(g.in(g.memory, pinned, 4), {changed});
  g.add(g.out(pinned + 1, g.memory, 4), {node});
  CUDA_MEMCPY3D copy;
  REQUIRE(cuGraphMemcpyNodeGetParams(node, &copy) == CUDA_SUCCESS);
  CHECK(copy.srcMemoryType == CU_MEMORYTYPE_HOST);
  CHECK(copy.srcHost == pinned);
  g.run(g.instantiate());
  CHECK(pinned[1] == 21);
  CHECK(g.word(g.memory) == 21);
}

TEST_CASE("memory that the program has freed fails the launch") {
  Graphs g;
  unsigned* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 2u << 20, 0) == CUDA_SUCCESS);
  g.add(g.in(g.memory, pinned, 4));
  const CUgraphExec exec = g.instantiate();
  g.run(exec);
  REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  // Of shared memory the graph has the address, at which the GPU finds nothing; the fake driver does.
  const bool shared = g.session().shares_memory();
  CHECK(cuStreamSynchronize(g.stream) == (shared ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST_CASE("child graphs and copies of graphs keep their parts") {
  Graphs g;
  int calls = 0;
  unsigned seen = 0, source = 9;
  Function count = [&] { ++calls; };
  CUgraph child = nullptr;
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  const CUgraphNode in = g.add(g.in(g.memory, &source, 4), {}, child);
  const CUgraphNode function = g.add(count, {in}, child);
  g.add(g.out(&seen, g.memory, 4), {function}, child);
  CUgraphNode nested = nullptr;
  const CUgraphNode before = g.add_set(g.memory, 1);
  REQUIRE(cuGraphAddChildGraphNode(&nested, g.graph, &before, 1, child) == CUDA_SUCCESS);
  g.add_set(g.memory + 4, 2, {nested});
  REQUIRE(cuGraphDestroy(child) == CUDA_SUCCESS);
  CUgraph clone = nullptr;
  REQUIRE(cuGraphClone(&clone, g.graph) == CUDA_SUCCESS);
  CUgraphNode found = nullptr;
  CHECK(cuGraphNodeFindInClone(&found, nested, clone) == CUDA_SUCCESS);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(found, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH);
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  const CUgraphExec exec = g.instantiate(clone);
  REQUIRE(cuGraphDestroy(clone) == CUDA_SUCCESS);
  g.run(exec);
  CHECK(calls == 1);
  CHECK(seen == 9);
  CHECK(g.word(g.memory + 4) == 2);
  // Launched into a capture it becomes a child graph again.
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CUgraph captured = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &captured) == CUDA_SUCCESS);
  CHECK(calls == 1);
  source = 10;
  g.run(g.instantiate(captured));
  CHECK(calls == 2);
  CHECK(seen == 10);
}

TEST_CASE("executable graphs with parts are changed like others") {
  Graphs g;
  std::vector<int> order;
  Function one = [&] { order.push_back(1); };
  Function two = [&] { order.push_back(2); };
  unsigned source = 5, elsewhere = 6, seen = 0;
  const CUgraphNode in = g.add(g.in(g.memory, &source, 4));
  const CUgraphNode set = g.add_set(g.memory + 4, 7, {in});
  const CUgraphNode function = g.add(one, {set});
  g.add(g.out(&seen, g.memory, 4), {function});
  const CUgraphExec exec = g.instantiate();
  g.run(exec);
  CHECK(seen == 5);

  const CUDA_HOST_NODE_PARAMS host{call, &two};
  CHECK(cuGraphExecHostNodeSetParams(exec, function, &host) == CUDA_SUCCESS);
  CUDA_MEMCPY3D copy = g.in(g.memory, &elsewhere, 4);
  CHECK(cuGraphExecMemcpyNodeSetParams(exec, in, &copy, g.context) == CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS memset{g.memory + 4, 0, 8, 4, 1, 1};
  CHECK(cuGraphExecMemsetNodeSetParams(exec, set, &memset, g.context) == CUDA_SUCCESS);
  g.run(exec);
  CHECK(order == std::vector<int>{1, 2});
  CHECK(seen == 6);
  CHECK(g.word(g.memory + 4) == 8);
  // The graph itself was not changed.
  CUDA_HOST_NODE_PARAMS now{};
  CHECK(cuGraphHostNodeGetParams(function, &now) == CUDA_SUCCESS);
  CHECK(now.userData == &one);

  CHECK(cuGraphNodeSetEnabled(exec, in, 0) == CUDA_SUCCESS);
  unsigned enabled = 9;
  CHECK(cuGraphNodeGetEnabled(exec, in, &enabled) == CUDA_SUCCESS);
  CHECK(enabled == 0);
  elsewhere = 60;
  g.run(exec);
  CHECK(seen == 6);
  CHECK(cuGraphNodeSetEnabled(exec, in, 1) == CUDA_SUCCESS);
  g.run(exec);
  CHECK(seen == 60);

  CHECK(cuGraphHostNodeSetParams(function, &host) == CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  CHECK(cuGraphExecUpdate_v2(exec, g.graph, &info) == CUDA_SUCCESS);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  order.clear();
  g.run(exec);
  CHECK(seen == 5);
  CHECK(order == std::vector<int>{2});
  g.add(one);
  CHECK(cuGraphExecUpdate_v2(exec, g.graph, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  g.run(exec);
  CHECK(order.size() == 2);
  CHECK(cuGraphUpload(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
}

TEST_CASE("events of graphs hold those who wait for them") {
  Graphs g;
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  std::mutex gate;
  gate.lock();
  Function wait = [&] { const std::lock_guard pass(gate); };
  const CUgraphNode function = g.add(wait);
  const CUgraphNode set = g.add_set(g.memory, 3, {function});
  CUgraphNode record = nullptr;
  REQUIRE(cuGraphAddEventRecordNode(&record, g.graph, &set, 1, event) == CUDA_SUCCESS);
  CUevent told = nullptr;
  CHECK(cuGraphEventRecordNodeGetEvent(record, &told) == CUDA_SUCCESS);
  CHECK(told == event);
  const CUgraphExec exec = g.instantiate();
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(other, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync_v2(g.memory + 4, g.memory, 4, other) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
  gate.unlock();
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(g.word(g.memory + 4) == 3);
  // And a graph waits for an event that is held back.
  CUgraph waiting = nullptr;
  REQUIRE(cuGraphCreate(&waiting, 0) == CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddEventWaitNode(&node, waiting, nullptr, 0, event) == CUDA_SUCCESS);
  g.add_set(g.memory + 8, 4, {node}, waiting);
  const CUgraphExec waits = g.instantiate(waiting);
  gate.lock();
  REQUIRE(cuLaunchHostFunc(g.stream, call, &wait) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(waits, other) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(other) == CUDA_ERROR_NOT_READY);
  CHECK(g.word(g.memory + 8) == 0);
  gate.unlock();
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(g.word(g.memory + 8) == 4);
}

TEST_CASE("a value is written when copies to the program before it are there, and not waited for in vain") {
  Graphs g;
  unsigned copied = 0;
  const auto add_value = [&](CUstreamBatchMemOpType type, std::vector<CUgraphNode> after) {
    CUstreamBatchMemOpParams operation{};
    operation.waitValue.operation = type;
    operation.waitValue.address = g.memory + 64;
    operation.waitValue.value = 1;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS params{g.context, 1, &operation, 0};
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddBatchMemOpNode(&node, g.graph, after.data(), after.size(), &params) == CUDA_SUCCESS);
    return node;
  };
  const bool in_order = GENERATE(true, false);
  std::vector<CUgraphNode> before;
  if (in_order) before.push_back(add_value(CU_STREAM_MEM_OP_WAIT_VALUE_32, {}));
  const CUgraphNode copy = g.add(g.out(&copied, g.memory, 4), before);
  add_value(CU_STREAM_MEM_OP_WRITE_VALUE_32, {copy});
  if (in_order) {
    const CUgraphExec exec = g.instantiate();
    const std::size_t launches = g.driver->calls("cuGraphLaunch");
    g.run(exec);
    CHECK(g.driver->calls("cuGraphLaunch") == launches + 2);
    CHECK(g.word(g.memory + 64) == 1);
    return;
  }
  // The wait would be in the piece that must be over before the write, be it that of the graph or of one within it.
  CUgraph outer = g.graph;
  for (int depth = GENERATE(0, 1, 2); depth > 0; --depth) {
    CUgraphNode child = nullptr;
    CUgraph within = outer;
    REQUIRE(cuGraphCreate(&outer, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, within) == CUDA_SUCCESS);
  }
  std::swap(outer, g.graph);
  add_value(CU_STREAM_MEM_OP_WAIT_VALUE_32, {});
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  CHECK(cuGraphInstantiateWithParams(&exec, g.graph, &params) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_ERROR);
}

TEST_CASE("events recorded and awaited from outside of a capture become nodes") {
  Graphs g;
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CHECK(cuEventRecordWithFlags(event, g.stream, CU_EVENT_RECORD_EXTERNAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitEvent(g.stream, event, CU_EVENT_WAIT_EXTERNAL) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuEventRecord(event, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(g.stream, event, CU_EVENT_WAIT_EXTERNAL) == CUDA_SUCCESS);
  CHECK(cuEventRecordWithFlags(event, g.stream, CU_EVENT_RECORD_EXTERNAL) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  CUgraphNode nodes[2] = {};
  std::size_t n = 2;
  REQUIRE(cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
  CUevent told = nullptr;
  CHECK(cuGraphEventWaitNodeGetEvent(nodes[0], &told) == CUDA_SUCCESS);
  CHECK(told == event);
  CHECK(cuGraphEventRecordNodeGetEvent(nodes[1], &told) == CUDA_SUCCESS);
  CHECK(told == event);
  g.run(g.instantiate(graph));
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
}

TEST_CASE("launches of one graph come one after the other, on whatever stream") {
  Graphs g;
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  int running = 0, most = 0, calls = 0;
  unsigned counter = 0;
  Function function = [&] {
    most = std::max(most, ++running);
    ++calls;
    ++counter;
  };
  Function end = [&] { --running; };
  const CUgraphNode begin = g.add(function);
  const CUgraphNode in = g.add(g.in(g.memory, &counter, 4), {begin});
  g.add(end, {in});
  const CUgraphExec exec = g.instantiate();
  for (int i = 0; i < 20; ++i) REQUIRE(cuGraphLaunch(exec, i % 2 ? g.stream : other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(calls == 20);
  CHECK(most == 1);
  CHECK(g.word(g.memory) == 20);
}

TEST_CASE("conditional nodes run where the driver can, and are refused by name where it cannot") {
  Graphs g;
  CUgraphConditionalHandle handle = 0;
  REQUIRE(cuGraphConditionalHandleCreate(&handle, g.graph, nullptr, 1, CU_GRAPH_COND_ASSIGN_DEFAULT) == CUDA_SUCCESS);
  CHECK(handle != 0);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  params.conditional.ctx = g.context;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddNode_v2(&node, g.graph, nullptr, nullptr, 0, &params) == CUDA_SUCCESS);
  REQUIRE(params.conditional.phGraph_out != nullptr);
  const CUgraph body = params.conditional.phGraph_out[0];
  unsigned source = 12, seen = 0;
  g.add(g.in(g.memory, &source, 4), {}, body);
  g.add(g.out(&seen, g.memory, 4), {node});
  CUgraphExec exec = g.instantiate();
  g.run(exec);
  CHECK(seen == 12);
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CUgraph clone = nullptr;
  CHECK(cuGraphClone(&clone, g.graph) != CUDA_SUCCESS);
  // A function in the same graph would need it cut, and such graphs cannot be copied.
  Function nothing = [] {};
  g.add(nothing, {node});
  CHECK(cuGraphInstantiateWithFlags(&exec, g.graph, 0) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("user objects end when the last graph lets go") {
  Graphs g;
  std::atomic<int> ended{0};
  const auto end = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  CUuserObject object = nullptr;
  CHECK(cuUserObjectCreate(&object, &ended, end, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuUserObjectCreate(&object, &ended, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuUserObjectCreate(&object, &ended, end, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuUserObjectCreate(&object, &ended, end, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS);
  CHECK(cuUserObjectRetain(object, 1) == CUDA_SUCCESS);
  CHECK(cuGraphRetainUserObject(g.graph, object, 3, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS);
  CHECK(cuGraphReleaseUserObject(g.graph, object, 2) == CUDA_SUCCESS);
  CUgraph clone = nullptr;
  REQUIRE(cuGraphClone(&clone, g.graph) == CUDA_SUCCESS);
  const CUgraphExec exec = g.instantiate();
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(clone) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(ended == 0);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(soon([&] { return ended == 1; }));
  CHECK(soon([&] { return cuUserObjectRetain(object, 1) == CUDA_ERROR_INVALID_VALUE; }));
  REQUIRE(cuUserObjectCreate(&object, &ended, end, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS);
  CHECK(cuUserObjectRelease(object, 1) == CUDA_SUCCESS);
  CHECK(soon([&] { return ended == 2; }));
}

TEST_CASE("references of user objects are their owners'") {
  Graphs g;
  fake::FakeDriver& driver = fake::FakeDriver::instance();
  std::atomic<int> ended{0};
  const auto end = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned move = CU_GRAPH_USER_OBJECT_MOVE, too_many = 1u << 31;
  CUuserObject object = nullptr;
  REQUIRE(cuUserObjectCreate(&object, &ended, end, 3, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS);
  CUgraph other = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);

  SECTION("the program's") {
    CHECK(cuUserObjectRelease(object, 4) == invalid);
    for (const unsigned count : {0u, too_many, ~0u}) {
      CHECK(cuUserObjectRelease(object, count) == invalid);
      CHECK(cuUserObjectRetain(object, count) == invalid);
    }
    CHECK(cuUserObjectRetain(object, 2) == CUDA_SUCCESS);
    CHECK(cuUserObjectRelease(object, 4) == CUDA_SUCCESS);
    CHECK(cuUserObjectRelease(object, 2) == invalid);
    CHECK(ended == 0);
    CHECK(cuUserObjectRelease(object, 1) == CUDA_SUCCESS);
    CHECK(cuUserObjectRelease(object, 1) == invalid);
    CHECK(cuUserObjectRetain(object, 1) == invalid);
    CHECK(cuGraphRetainUserObject(g.graph, object, 1, 0) == invalid);
  }
  SECTION("a graph's") {
    CHECK(cuGraphReleaseUserObject(g.graph, object, 1) == invalid);
    CHECK(cuGraphRetainUserObject(g.graph, object, 4, move) == invalid);
    CHECK(cuGraphRetainUserObject(g.graph, object, 1, 2) == invalid);
    for (const unsigned count : {0u, too_many}) CHECK(cuGraphRetainUserObject(g.graph, object, count, 0) == invalid);
    CHECK(cuGraphRetainUserObject(g.graph, object, 2, 0) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(other, object, 1) == invalid);
    CHECK(cuGraphReleaseUserObject(g.graph, object, 3) == invalid);
    CHECK(cuUserObjectRelease(object, 3) == CUDA_SUCCESS);  // those of the graph are not the program's
    CHECK(cuUserObjectRelease(object, 1) == invalid);
    CHECK(cuGraphRetainUserObject(other, object, 1, move) == invalid);
    CHECK(ended == 0);
    CHECK(cuUserObjectRetain(object, 1) == CUDA_SUCCESS);  // while a graph has it, the program can have it again
    CHECK(cuGraphRetainUserObject(other, object, 1, move) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(g.graph, object, 2) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(g.graph, object, 1) == invalid);
    REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
    g.graph = nullptr;
    CHECK(cuGraphReleaseUserObject(other, object, 1) == CUDA_SUCCESS);
  }
  SECTION("those of graphs within others") {
    CHECK(cuGraphRetainUserObject(other, object, 3, move) == CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddChildGraphNode(&node, g.graph, nullptr, 0, other) == CUDA_SUCCESS);
    CUgraph within = nullptr, clone = nullptr;
    REQUIRE(cuGraphChildGraphNodeGetGraph(node, &within) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(within, object, 4) == invalid);
    CHECK(cuGraphReleaseUserObject(within, object, 2) == CUDA_SUCCESS);
    REQUIRE(cuGraphClone(&clone, other) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(other) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(other, object, 1) == invalid);
    CHECK(cuGraphReleaseUserObject(clone, object, 4) == invalid);
    CHECK(cuGraphReleaseUserObject(clone, object, 3) == CUDA_SUCCESS);
    CHECK(ended == 0);
    REQUIRE(cuGraphDestroyNode(node) == CUDA_SUCCESS);
    CHECK(cuGraphReleaseUserObject(within, object, 1) == invalid);
    CHECK(cuGraphRetainUserObject(within, object, 1, 0) == invalid);
    REQUIRE(cuGraphDestroy(clone) == CUDA_SUCCESS);
  }
  SECTION("what the driver refuses changes nothing") {
    const unsigned releases = driver->calls("cuUserObjectRelease");
    driver->script("cuUserObjectRelease", CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(cuUserObjectRelease(object, 3) == CUDA_ERROR_OUT_OF_MEMORY);
    driver->script("cuGraphRetainUserObject", CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(cuGraphRetainUserObject(g.graph, object, 1, 0) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuGraphReleaseUserObject(g.graph, object, 1) == invalid);
    CHECK(cuUserObjectRelease(object, 3) == CUDA_SUCCESS);
    CHECK(driver->calls("cuUserObjectRelease") == releases + 2);
  }
  CHECK(soon([&] { return ended == 1; }));
  CHECK(soon([&] { return cuUserObjectRetain(object, 1) == invalid; }));
  CHECK(ended == 1);
}

TEST_CASE("copies of a graph within another one keep what was added to it there") {
  Graphs g;
  std::vector<int> order;
  Function one = [&] { order.push_back(1); }, two = [&] { order.push_back(2); };
  CUgraph child = nullptr, within = nullptr, copy = nullptr;
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  const CUgraphNode early = g.add(one, {}, child);
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddChildGraphNode(&node, g.graph, nullptr, 0, child) == CUDA_SUCCESS);
  REQUIRE(cuGraphChildGraphNodeGetGraph(node, &within) == CUDA_SUCCESS);
  CUgraphNode its_early = nullptr;
  std::size_t count = 1;
  REQUIRE(cuGraphGetNodes(within, &its_early, &count) == CUDA_SUCCESS);
  CHECK(its_early != early);
  g.add(two, {its_early}, within);
  if (GENERATE(false, true)) {
    CUgraphNode again = nullptr;
    REQUIRE(cuGraphCreate(&copy, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddChildGraphNode(&again, copy, nullptr, 0, within) == CUDA_SUCCESS);
  } else {
    REQUIRE(cuGraphClone(&copy, within) == CUDA_SUCCESS);
  }
  const CUgraphExec exec = g.instantiate(copy);
  REQUIRE(cuGraphDestroy(child) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  g.graph = nullptr;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for the parts to go
  g.run(exec);
  CHECK(order == std::vector<int>{1, 2});
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(copy) == CUDA_SUCCESS);
  CHECK(soon([&] { return g.session().graph_parts.within(0, ~std::uint64_t{0}).empty(); }));
}

TEST_CASE("nothing is left of graphs that are gone") {
  Graphs g;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  std::size_t before = 0;
  unsigned word = 1;
  Function nothing = [] {};
  constexpr int rounds = 12;
  for (int round = 0; round < rounds; ++round) {
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    const CUgraphNode in = g.add(g.in(g.memory, &word, 4), {}, graph);
    const CUgraphNode function = g.add(nothing, {in}, graph);
    g.add(g.out(&word, g.memory, 4), {function}, graph);
    const CUgraphExec exec = g.instantiate(graph);
    const CUDA_HOST_NODE_PARAMS host{call, &nothing};
    CHECK(cuGraphHostNodeSetParams(function, &host) == CUDA_SUCCESS);
    CHECK(cuGraphExecHostNodeSetParams(exec, function, &host) == CUDA_SUCCESS);
    g.run(exec);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    if (round == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      before = g.driver->objects();
    }
  }
  // The worker keeps events for later, more of them when it was slow; what a round left would be ten times there.
  CHECK(soon([&] { return g.driver->objects() < before + rounds / 2; }));
  CHECK(soon([&] { return g.session().graph_parts.within(0, ~std::uint64_t{0}).empty(); }));
  CHECK(soon([&] { return !g.session().graphs.any_launched(); }));
}

TEST_CASE("what another copy or function of a node takes the place of does not stay") {
  Graphs g;
  unsigned words[2] = {1, 2};
  int called = 0;
  Function count = [&] { ++called; };
  const CUgraphNode in = g.add(g.in(g.memory, &words[0], 4));
  const CUgraphNode function = g.add(count, {in});
  const CUgraphExec exec = g.instantiate();
  const CUDA_HOST_NODE_PARAMS host{call, &count};
  constexpr int rounds = 40;
  const std::size_t pinned = g.driver->calls("cuMemHostRegister_v2");
  const std::size_t unpinned = g.driver->calls("cuMemHostUnregister");
  for (int round = 0; round < rounds; ++round) {
    CUDA_MEMCPY3D copy = g.in(g.memory, &words[round % 2], 4);
    REQUIRE(cuGraphExecMemcpyNodeSetParams(exec, in, &copy, g.context) == CUDA_SUCCESS);
    REQUIRE(cuGraphExecHostNodeSetParams(exec, function, &host) == CUDA_SUCCESS);
    REQUIRE(cuGraphMemcpyNodeSetParams(in, &copy) == CUDA_SUCCESS);
    REQUIRE(cuGraphHostNodeSetParams(function, &host) == CUDA_SUCCESS);
    g.run(exec);
    CHECK(g.word(g.memory) == words[round % 2]);
  }
  CHECK(called == rounds);
  const CUgraphExec anew = g.instantiate();
  g.run(anew);
  CHECK(g.word(g.memory) == words[(rounds - 1) % 2]);
  CHECK(called == rounds + 1);
  CHECK(soon([&] { return g.session().graph_parts.within(0, ~std::uint64_t{0}).size() < 6; }));
  // New copies have the memory of the old ones.
  CHECK(g.driver->calls("cuMemHostRegister_v2") - pinned < rounds);
  CHECK(g.driver->calls("cuMemHostUnregister") == unpinned);
}

TEST_CASE("nodes that are destroyed leave nothing") {
  Graphs g;
  unsigned word = 1;
  Function nothing = [] {};
  for (int round = 0; round < 4; ++round) {
    const CUgraphNode in = g.add(g.in(g.memory, &word, 4));
    const CUgraphNode function = g.add(nothing, {in});
    CHECK(cuGraphDestroyNode(in) == CUDA_SUCCESS);
    CHECK(cuGraphDestroyNode(function) == CUDA_SUCCESS);
  }
  CHECK(soon([&] { return g.session().graph_parts.within(0, ~std::uint64_t{0}).empty(); }));
}

TEST_CASE("a launch that waits calls the functions that it had, whatever the executable graph has since") {
  Graphs g;
  std::mutex gate;
  gate.lock();
  std::vector<int> order;
  Function wait = [&] { const std::lock_guard pass(gate); };
  Function one = [&] { order.push_back(1); }, two = [&] { order.push_back(2); }, three = [&] { order.push_back(3); };
  const CUgraphNode node = g.add(one);
  const CUgraphExec exec = g.instantiate();
  const auto launch_with = [&](Function& function) {
    const CUDA_HOST_NODE_PARAMS host{call, &function};
    REQUIRE(cuGraphExecHostNodeSetParams(exec, node, &host) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  };
  REQUIRE(cuLaunchHostFunc(g.stream, call, &wait) == CUDA_SUCCESS);
  launch_with(two);
  launch_with(three);
  CUgraph other = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  g.add(one, {}, other);
  CUgraphExecUpdateResultInfo info{};
  REQUIRE(cuGraphExecUpdate_v2(exec, other, &info) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  gate.unlock();
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(order == std::vector<int>{2, 3, 1});
}

TEST_CASE("a launch that waits calls the functions of a child graph that it had") {
  Graphs g;
  test::Gate gate;
  std::vector<int> order;
  Function one = [&] { order.push_back(1); }, two = [&] { order.push_back(2); };
  const auto fill = [&](CUgraph graph, Function& function) {
    CUgraph child = nullptr;
    REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
    g.add(function, {}, child);
    const CUgraphNode before = g.add_set(g.memory, 1, {}, graph);
    CUgraphNode inner = nullptr;
    REQUIRE(cuGraphAddChildGraphNode(&inner, graph, &before, 1, child) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(child) == CUDA_SUCCESS);
  };
  CUgraph other = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  fill(g.graph, one);
  fill(other, two);
  const CUgraphExec exec = g.instantiate();
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(g.stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  REQUIRE(cuGraphExecUpdate_v2(exec, other, &info) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(other) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  gate.open();
  CHECK(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  CHECK(order == std::vector<int>{1, 2});
}

TEST_CASE("a failed context runs no functions of graphs, and nobody waits for ever") {
  Graphs g;
  CUmodule module = nullptr;
  CUfunction crash = nullptr;
  REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&crash, module, "crash") == CUDA_SUCCESS);
  int calls = 0;
  Function count = [&] { ++calls; };
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = crash;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  CUgraphNode kernel = nullptr;
  REQUIRE(cuGraphAddKernelNode_v2(&kernel, g.graph, nullptr, 0, &params) == CUDA_SUCCESS);
  g.add(count, {kernel});
  const CUgraphExec exec = g.instantiate();
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(g.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(calls == 0);
  CHECK(soon([&] { return !g.session().graphs.any_launched(); }));
}

TEST_CASE("rows without gaps are captured as one") {
  Graphs g;
  std::vector<unsigned char> source(96);
  std::iota(source.begin(), source.end(), static_cast<unsigned char>(1));
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = source.data();
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = g.memory;
  in.WidthInBytes = in.srcPitch = in.dstPitch = 32;
  in.Height = 3;
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemcpy2DAsync_v2(&in, g.stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  g.run(g.instantiate(graph));
  std::vector<unsigned char> target(96);
  REQUIRE(cuMemcpyDtoH_v2(target.data(), g.memory, target.size()) == CUDA_SUCCESS);
  CHECK(target == source);
}

TEST_CASE("arrays take part in graphs like other memory") {
  Graphs g;
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR description{16, 4, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  REQUIRE(cuArrayCreate_v2(&array, &description) == CUDA_SUCCESS);
  std::vector<unsigned> source(64), target(64);
  std::iota(source.begin(), source.end(), 100u);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = source.data();
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  in.dstArray = array;
  in.WidthInBytes = 64;
  in.Height = 4;
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemcpy2DAsync_v2(&in, g.stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  CUgraphNode filled = nullptr, node = nullptr;
  std::size_t n = 1;
  REQUIRE(cuGraphGetNodes(graph, &filled, &n) == CUDA_SUCCESS);
  CUDA_MEMCPY3D out{};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.srcXInBytes = 8;
  out.srcY = 1;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = target.data();
  out.dstPitch = 40;
  out.WidthInBytes = 16;
  out.Height = 3;
  out.Depth = 1;
  REQUIRE(cuGraphAddMemcpyNode(&node, graph, &filled, 1, &out, g.context) == CUDA_SUCCESS);
  CUDA_MEMCPY3D back;
  REQUIRE(cuGraphMemcpyNodeGetParams(node, &back) == CUDA_SUCCESS);
  CHECK(back.srcArray == array);
  CHECK(back.srcXInBytes == 8);
  CHECK(back.dstHost == target.data());
  g.run(g.instantiate(graph));
  CHECK(target[0] == 118);
  CHECK(target[3] == 121);
  CHECK(target[4] == 0);
  CHECK(target[10] == 134);
  CHECK(target[20] == 150);
  out.Height = 4;
  CHECK(cuGraphAddMemcpyNode(&node, graph, &filled, 1, &out, g.context) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory through which a graph copies goes with its context, and the graph then copies nowhere") {
  Graphs g;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  std::vector<unsigned> target(16, 1);
  g.add(g.out(target.data(), g.memory, 64));
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, g.graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(g.context) == CUDA_SUCCESS);
  const unsigned before = g.driver->calls("cuGraphLaunch");
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(g.stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(g.driver->calls("cuGraphLaunch") == before);
  CHECK(target[0] == 1);
}

TEST_CASE("a graph knows the part whose memory has gone with its context, whatever is made of it later") {
  Graphs g;
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate_v4(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  std::vector<unsigned> target(16, 1), other(16, 1), source(16, 5);
  const CUgraphNode in = g.add(g.in(g.memory, source.data(), 64));
  const CUgraphNode out = g.add(g.out(target.data(), g.memory, 64), {in});
  const CUgraphExec early = g.instantiate();
  REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(g.context) == CUDA_SUCCESS);
  CUDA_MEMCPY3D named{};
  REQUIRE(cuGraphMemcpyNodeGetParams(out, &named) == CUDA_SUCCESS);
  CHECK(named.dstHost == target.data());
  // New parts lie elsewhere: nothing is taken for another's.
  const std::vector<std::vector<unsigned>> more(8, std::vector<unsigned>(16, 7));
  CUgraph others = nullptr;
  REQUIRE(cuGraphCreate(&others, 0) == CUDA_SUCCESS);
  for (const auto& words : more) g.add(g.in(g.memory + 1024, words.data(), 64), {}, others);
  const CUgraphExec late = g.instantiate();
  REQUIRE(cuGraphNodeSetEnabled(early, in, 0) == CUDA_SUCCESS);  // has its plan made anew
  const std::size_t before = g.driver->calls("cuGraphLaunch");
  for (const CUgraphExec exec : {early, late}) {
    REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(g.stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  CHECK(g.driver->calls("cuGraphLaunch") == before);
  CHECK(target[0] == 1);
  // With parts in a context that is there it runs.
  const CUDA_MEMCPY3D from = g.in(g.memory, source.data(), 64), to = g.out(other.data(), g.memory, 64);
  REQUIRE(cuGraphMemcpyNodeSetParams(in, &from) == CUDA_SUCCESS);
  REQUIRE(cuGraphMemcpyNodeSetParams(out, &to) == CUDA_SUCCESS);
  g.run(g.instantiate());
  CHECK(other == source);
  CHECK(target[0] == 1);
}

TEST_CASE("user objects are let go of, whatever an earlier call met") {
  Graphs g;
  std::atomic<int> ended{0};
  const auto end = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  CUuserObject object = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(cuMemAlloc_v2(&memory, 64) == CUDA_SUCCESS);
  REQUIRE(cuUserObjectCreate(&object, &ended, end, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) == CUDA_SUCCESS);
  REQUIRE(cuGraphRetainUserObject(g.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS);
  const auto fail = [&] {
    g.driver->script("cuMemsetD8Async", CUDA_ERROR_UNKNOWN, 1);
    REQUIRE(cuMemsetD8Async(memory, 1, 64, nullptr) == CUDA_SUCCESS);
    g.hear_out();
  };
  fail();
  CHECK(cuUserObjectRelease(object, 1) == CUDA_ERROR_UNKNOWN);
  fail();
  CHECK(cuGraphReleaseUserObject(g.graph, object, 1) == CUDA_ERROR_UNKNOWN);
  CHECK(soon([&] { return ended == 1; }));
}
