// Memory that graphs allocate and free: at addresses of the session, held for as long as anything can use it.

#include <catch2/catch.hpp>
#include <functional>
#include <thread>
#include <vector>

#include "calls_graph.capnp.h"
#include "hand_made_client.h"

using namespace fargpu;
using test::HandMadeClient;
using test::RemoteContext;

namespace {

bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

cuuint64_t attribute(CUgraphMem_attribute which) {
  cuuint64_t value = 0;
  REQUIRE(cuDeviceGetGraphMemAttribute(0, which, &value) == CUDA_SUCCESS);
  return value;
}

CUDA_MEM_ALLOC_NODE_PARAMS allocation(std::size_t bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  params.bytesize = bytes;
  return params;
}

struct Graphs : RemoteContext {
  Graphs() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  }
  CUdeviceptr allocate(std::size_t bytes, CUgraphNode& node, CUgraph to = nullptr) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(bytes);
    REQUIRE(cuGraphAddMemAllocNode(&node, to ? to : graph, nullptr, 0, &params) == CUDA_SUCCESS);
    return params.dptr;
  }
  CUgraphNode set(CUdeviceptr at, unsigned value, CUgraphNode after, CUgraph to = nullptr) {
    CUDA_MEMSET_NODE_PARAMS params{at, 0, value, 4, 1, 1};
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphAddMemsetNode(&node, to ? to : graph, &after, after ? 1 : 0, &params, context) == CUDA_SUCCESS);
    return node;
  }
  CUgraphExec instantiate(CUgraph which = nullptr, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiateWithFlags(&exec, which ? which : graph, flags) == CUDA_SUCCESS);
    return exec;
  }
  unsigned word(CUdeviceptr at) {
    unsigned value = 0;
    REQUIRE(cuMemcpyDtoHAsync_v2(&value, at, 4, stream) == CUDA_SUCCESS);
    return value;
  }
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
};

}  // namespace

TEST_CASE("memory that a launch leaves allocated lives until it is freed") {
  Graphs g;
  CUgraphNode allocated = nullptr;
  const CUdeviceptr memory = g.allocate(1000, allocated);
  CHECK(memory % 512 == 0);
  g.set(memory, 7, allocated);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(allocated, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CUDA_MEM_ALLOC_NODE_PARAMS back{};
  CHECK(cuGraphMemAllocNodeGetParams(allocated, &back) == CUDA_SUCCESS);
  CHECK(back.dptr == memory);
  CHECK(back.bytesize == 1000);
  CHECK(back.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  CUdeviceptr none = 0;
  CHECK(cuGraphMemFreeNodeGetParams(allocated, &none) == CUDA_ERROR_INVALID_VALUE);

  CUgraphExec exec = g.instantiate();
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_ERROR_INVALID_VALUE);  // nothing has allocated it yet
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(memory) == 7);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_ERROR_INVALID_VALUE);  // it is allocated already
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);

  // It outlives the graph.
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 1024);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(g.word(memory) == 7);
  CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
  CHECK(soon([] { return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0; }));
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory that a graph frees itself goes with the graph; what is kept of it can be trimmed") {
  Graphs g;
  CUgraphNode allocated = nullptr, freed = nullptr;
  const CUdeviceptr memory = g.allocate(3 << 20, allocated);
  const CUgraphNode last = g.set(memory, 7, allocated);
  REQUIRE(cuGraphAddMemFreeNode(&freed, g.graph, &last, 1, memory) == CUDA_SUCCESS);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(freed, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_FREE);
  CUdeviceptr back = 0;
  CHECK(cuGraphMemFreeNodeGetParams(freed, &back) == CUDA_SUCCESS);
  CHECK(back == memory);
  CUgraphExec exec = g.instantiate();
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);  // only the graph may
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 4 << 20);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 4 << 20);
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 4 << 20);  // the executable graph still has the node
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(soon([] { return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0; }));
  CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 4 << 20);
  CHECK(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 4 << 20);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 4 << 20);
  cuuint64_t value = 1;
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value) == CUDA_ERROR_INVALID_VALUE);
  value = 0;
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value) == CUDA_SUCCESS);
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value) == CUDA_SUCCESS);
  CHECK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value) == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) == 0);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) == 0);
  CHECK(cuDeviceGetGraphMemAttribute(9, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGraphMemTrim(9) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("one graph may free what another one allocated, and launches may free what the last one left") {
  Graphs g;
  CUgraphNode node = nullptr;
  const CUdeviceptr memory = g.allocate(64, node);
  CUgraph freeing = nullptr;
  REQUIRE(cuGraphCreate(&freeing, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddMemFreeNode(&node, freeing, nullptr, 0, memory) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&node, freeing, nullptr, 0, memory) == CUDA_ERROR_INVALID_VALUE);  // twice
  CHECK(cuGraphAddMemFreeNode(&node, g.graph, nullptr, 0, memory) == CUDA_ERROR_INVALID_VALUE);  // another one does
  const CUgraphExec allocates = g.instantiate(), frees = g.instantiate(freeing);
  CHECK(cuGraphLaunch(frees, g.stream) == CUDA_ERROR_INVALID_VALUE);  // nothing there
  for (int i = 0; i < 3; ++i) {
    REQUIRE(cuGraphLaunch(allocates, g.stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(frees, g.stream) == CUDA_SUCCESS);
  }
  CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);

  CUgraph third = nullptr;
  REQUIRE(cuGraphCreate(&third, 0) == CUDA_SUCCESS);
  const CUdeviceptr again = g.allocate(64, node, third);
  const CUgraphExec repeated = g.instantiate(third, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphLaunch(repeated, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(again, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(again, g.stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE(
    "an allocation is freed by other graphs also when only its executable graph is left, or nothing but the memory") {
  Graphs g;
  CUgraphNode node = nullptr;
  const CUdeviceptr memory = g.allocate(64, node);
  const CUgraphExec allocates = g.instantiate();
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  const auto make_freeing = [&](CUgraph& freeing) {
    REQUIRE(cuGraphCreate(&freeing, 0) == CUDA_SUCCESS);
    return cuGraphAddMemFreeNode(&node, freeing, nullptr, 0, memory);
  };
  CUgraph first = nullptr, second = nullptr;
  REQUIRE(make_freeing(first) == CUDA_SUCCESS);
  const CUgraphExec frees = g.instantiate(first);
  REQUIRE(cuGraphDestroy(first) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cuGraphLaunch(allocates, g.stream) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(frees, g.stream) == CUDA_SUCCESS);
  }
  REQUIRE(cuGraphLaunch(allocates, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(allocates) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 512);
  REQUIRE(make_freeing(second) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(g.instantiate(second), g.stream) == CUDA_SUCCESS);
  CHECK(soon([] { return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0; }));
  CHECK(cuGraphAddMemFreeNode(&node, second, nullptr, 0, memory) == CUDA_ERROR_INVALID_VALUE);  // no graph's any more
}

TEST_CASE("what a graph frees itself no other one may free, also when only its executable graph is left") {
  Graphs g;
  CUgraphNode allocated = nullptr, node = nullptr;
  const CUdeviceptr memory = g.allocate(64, allocated);
  REQUIRE(cuGraphAddMemFreeNode(&node, g.graph, &allocated, 1, memory) == CUDA_SUCCESS);
  g.instantiate();
  CUgraph other = nullptr;
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&node, other, nullptr, 0, memory) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphDestroy(g.graph) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&node, other, nullptr, 0, memory) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an updated executable graph allocates and frees what its new graph does") {
  Graphs g;
  CUgraphNode allocated = nullptr;
  const CUdeviceptr memory = g.allocate(64, allocated);
  CUgraphNode set = g.set(memory, 7, allocated);
  const CUgraphExec exec = g.instantiate();
  CUgraphExecUpdateResultInfo info{};
  CUDA_MEMSET_NODE_PARAMS params{memory, 0, 8, 4, 1, 1};
  REQUIRE(cuGraphMemsetNodeSetParams(set, &params) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecUpdate_v2(exec, g.graph, &info) == CUDA_SUCCESS);  // from its own graph
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(memory) == 8);
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_SUCCESS);

  CUgraph another = nullptr;
  REQUIRE(cuGraphCreate(&another, 0) == CUDA_SUCCESS);
  const CUdeviceptr elsewhere = g.allocate(64, allocated, another);
  REQUIRE(elsewhere != memory);
  set = g.set(elsewhere, 9, allocated, another);
  REQUIRE(cuGraphExecUpdate_v2(exec, another, &info) == CUDA_SUCCESS);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(elsewhere) == 9);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(elsewhere, g.stream) == CUDA_SUCCESS);

  CUgraphExec second = nullptr;
  CHECK(cuGraphInstantiateWithFlags(&second, another, 0) == CUDA_ERROR_NOT_SUPPORTED);  // it has one
  second = g.instantiate();  // the first one has none any more
  CHECK(cuGraphExecUpdate_v2(exec, g.graph, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
  CUgraph empty = nullptr;
  REQUIRE(cuGraphCreate(&empty, 0) == CUDA_SUCCESS);
  CUgraphNode plain = nullptr;
  REQUIRE(cuGraphAddEmptyNode(&plain, empty, nullptr, 0) == CUDA_SUCCESS);
  g.set(elsewhere, 9, plain, empty);
  CHECK(cuGraphExecUpdate_v2(exec, empty, &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

TEST_CASE("captured allocations become nodes in the order of the stream") {
  Graphs g;
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUdeviceptr memory = 0, kept = 0;
  REQUIRE(cuMemAllocAsync(&memory, 512, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(memory, 3, 1, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&kept, 512, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync_v2(kept, memory, 4, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(memory, g.stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(0x1234000, g.stream) == CUDA_ERROR_INVALID_VALUE);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  std::size_t count = 0;
  REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
  REQUIRE(count == 5);
  std::vector<CUgraphNode> nodes(count);
  REQUIRE(cuGraphGetNodes(graph, nodes.data(), &count) == CUDA_SUCCESS);
  std::vector<CUgraphNodeType> types(count);
  for (std::size_t i = 0; i < count; ++i) REQUIRE(cuGraphNodeGetType(nodes[i], &types[i]) == CUDA_SUCCESS);
  CHECK(types == std::vector<CUgraphNodeType>{CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEMSET,
                                              CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEMCPY,
                                              CU_GRAPH_NODE_TYPE_MEM_FREE});
  std::size_t edges = 4;
  CUgraphNode from[4] = {}, to[4] = {};
  REQUIRE(cuGraphGetEdges_v2(graph, from, to, nullptr, &edges) == CUDA_SUCCESS);
  REQUIRE(edges == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(from[i] == nodes[i]);
    CHECK(to[i] == nodes[i + 1]);
  }
  const CUgraphExec exec = g.instantiate(graph);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(kept) == 3);
  CHECK(cuMemFreeAsync(kept, g.stream) == CUDA_SUCCESS);
}

TEST_CASE("memory of a capture that fails goes back, and its nodes are forgotten") {
  Graphs g;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CUdeviceptr memory = 0;
    REQUIRE(cuMemAllocAsync(&memory, 512, g.stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(g.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);  // breaks it
    CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(g.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(cuMemFree_v2(memory) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(soon([] { return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0; }));
}

TEST_CASE("what graphs with memory nodes do not allow") {
  Graphs g;
  CUgraphNode allocated = nullptr, node = nullptr;
  const CUdeviceptr memory = g.allocate(512, allocated);
  const CUgraphNode last = g.set(memory, 1, allocated);
  constexpr CUresult unsupported = CUDA_ERROR_NOT_SUPPORTED, invalid = CUDA_ERROR_INVALID_VALUE;
  CUgraph clone = nullptr, parent = nullptr;
  CHECK(cuGraphClone(&clone, g.graph) == unsupported);
  CHECK(cuGraphDestroyNode(last) == unsupported);
  CHECK(cuGraphRemoveDependencies(g.graph, &allocated, &last, 1) == unsupported);
  CHECK(cuGraphRemoveDependencies_v2(g.graph, &allocated, &last, nullptr, 1) == unsupported);
  REQUIRE(cuGraphCreate(&parent, 0) == CUDA_SUCCESS);
  CHECK(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, g.graph) == unsupported);
  CUgraphExec exec = g.instantiate(), second = nullptr;
  CHECK(cuGraphInstantiateWithFlags(&second, g.graph, 0) == unsupported);
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(g.stream, &clone) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  exec = g.instantiate();  // the only one again
  // Bad parameters.
  CUdeviceptr plain = 0;
  REQUIRE(cuMemAlloc_v2(&plain, 512) == CUDA_SUCCESS);
  CHECK(cuGraphAddMemFreeNode(&node, parent, nullptr, 0, plain) == invalid);
  CHECK(cuGraphAddMemFreeNode(&node, parent, nullptr, 0, 0) == invalid);
  CUDA_MEM_ALLOC_NODE_PARAMS params = allocation(0);
  CHECK(cuGraphAddMemAllocNode(&node, parent, nullptr, 0, &params) == invalid);
  CHECK(cuGraphAddMemAllocNode(&node, parent, nullptr, 0, nullptr) == invalid);
  params = allocation(64);
  params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuGraphAddMemAllocNode(&node, parent, nullptr, 0, &params) == invalid);
  params = allocation(64);
  params.poolProps.location.id = 17;
  CHECK(cuGraphAddMemAllocNode(&node, parent, nullptr, 0, &params) == CUDA_ERROR_INVALID_DEVICE);
  params = allocation(std::size_t{1} << 50);
  CHECK(cuGraphAddMemAllocNode(&node, parent, nullptr, 0, &params) == CUDA_ERROR_OUT_OF_MEMORY);
  params = allocation(64);
  CHECK(cuGraphAddMemAllocNode(&node, reinterpret_cast<CUgraph>(0x77), nullptr, 0, &params) == invalid);
  CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 512);
}

TEST_CASE("a graph with memory nodes is instantiated again behind the end of its executable graph") {
  Graphs g;
  CUgraphNode node = nullptr;
  const CUdeviceptr memory = g.allocate(512, node);
  g.set(memory, 7, node);
  CUgraphExec exec = g.instantiate();
  test::Gate gate;
  REQUIRE(cuLaunchHostFunc(g.stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  std::thread opens([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  CHECK(cuGraphInstantiateWithFlags(&exec, g.graph, 0) == CUDA_SUCCESS);
  opens.join();
  CHECK(g.word(memory) == 7);
  CHECK(cuMemFreeAsync(memory, g.stream) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
}

TEST_CASE("a graph with memory nodes goes over to another one by being moved") {
  Graphs g;
  CUgraphNode allocated = nullptr, child = nullptr;
  const CUdeviceptr memory = g.allocate(512, allocated);
  g.set(memory, 6, allocated);
  CUgraph parent = nullptr;
  REQUIRE(cuGraphCreate(&parent, 0) == CUDA_SUCCESS);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = g.graph;
  params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  REQUIRE(cuGraphAddNode_v2(&child, parent, nullptr, nullptr, 0, &params) == CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS more = allocation(64);
  CUgraphNode node = nullptr;
  CHECK(cuGraphAddMemAllocNode(&node, g.graph, nullptr, 0, &more) == CUDA_ERROR_NOT_SUPPORTED);
  const CUgraphExec exec = g.instantiate(parent);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(memory) == 6);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(memory) == CUDA_SUCCESS);
}

TEST_CASE("a worker takes no memory for a node's that the session does not have") {
  HandMadeClient client;
  client.open_context();
  const std::uint64_t graph = client.create_graph();
  const auto add = [&](auto&& fill) { return client.add_node(graph, fill); };
  const auto allocate = [&](std::uint64_t address, std::uint64_t bytes) {
    return add([&](wire::NodeParameters::Builder node) {
      node.initAllocation().setAddress(address);
      node.getAllocation().setBytes(bytes);
      node.getAllocation().setPart(5);
    });
  };
  CHECK(allocate(0x1000'0000'0000, 512) == CUDA_ERROR_INVALID_VALUE);
  CHECK(allocate(0x400000, 512) == CUDA_ERROR_INVALID_VALUE);
  CHECK(allocate(~0ull - 10, ~0ull) == CUDA_ERROR_INVALID_VALUE);
  CHECK(add([](wire::NodeParameters::Builder node) { node.setFree(0x1000'0000'0000); }) == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CaptureMemory>(Opcode::captureMemory, [](wire::CaptureMemory::Builder in) {
    in.setStream(1);
    in.initParameters().setEmpty();
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
  client.send_call<wire::CaptureMemory>(Opcode::captureMemory, [](wire::CaptureMemory::Builder in) {
    in.setStream(1);
    in.initParameters().setFree(1);
  });
  CHECK(client.reply() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);  // it is not captured
  client.send_call<wire::StreamMemory>(Opcode::streamMemory, [](wire::StreamMemory::Builder in) {
    in.setStream(1);
    auto operation = in.initOperations(1)[0];
    operation.setOperation(CU_STREAM_MEM_OP_WRITE_VALUE_32);
    operation.setAddress(0x400000);
  });
  CHECK(client.reply() == CUDA_ERROR_INVALID_VALUE);
}
