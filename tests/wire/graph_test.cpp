// Graphs: built by hand, captured, launched.

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "client/call/stats.h"
#include "fixture.h"

using namespace fargpu;
using test::RemoteContext;

namespace {

struct Graphs : RemoteContext {
  Graphs() {
    REQUIRE(cuModuleLoadData(&module, test::kernels) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&fill, module, "fill32") == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemAlloc_v2(&memory, 4096) == CUDA_SUCCESS);
  }
  CUresult launch(unsigned words, unsigned with) {
    count = words;
    value = with;
    return cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
  unsigned word(std::size_t index) {
    unsigned back = 0;
    REQUIRE(cuMemcpyDtoHAsync_v2(&back, memory + 4 * index, 4, stream) == CUDA_SUCCESS);
    return back;
  }
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0;
  unsigned count = 0, value = 0;
  void* arguments[3] = {&memory, &count, &value};
};

}  // namespace

TEST_CASE("a call whose arguments fill more than a message is refused, and the session goes on") {
  RemoteContext remote;
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&first, graph, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&second, graph, nullptr, 0) == CUDA_SUCCESS);
  constexpr std::size_t too_many = 600000;
  const std::vector<CUgraphNode> from(too_many, first), to(too_many, second);
  CHECK(cuGraphAddDependencies(graph, from.data(), to.data(), too_many) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a captured graph runs as often as it is launched, without a round trip") {
  Graphs g;
  REQUIRE(g.launch(10, 1) == CUDA_SUCCESS);  // its class is known from now on
  REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(g.launch(10, 5) == CUDA_SUCCESS);
  REQUIRE(g.launch(2, 6) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &graph) == CUDA_SUCCESS);
  CHECK(g.word(0) == 1);  // captured, not run
  std::size_t n = 0;
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  CHECK(n == 2);
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  const auto before = client::stats::round_trips();
  for (int i = 0; i < 10; ++i) REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(client::stats::round_trips() == before);
  CHECK(g.word(0) == 6);
  CHECK(g.word(9) == 5);
  CHECK(g.driver->launches().size() == 21);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);  // lives without its graph
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
}

TEST_CASE("a kernel node that is given other arguments again costs no round trip") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = g.fill;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = g.arguments;
  g.count = 1;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params) == CUDA_SUCCESS);
  CUgraphExec exec = nullptr, other = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&other, graph, 0) == CUDA_SUCCESS);
  CUstream aside = nullptr;
  REQUIRE(cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::uint64_t before = 0;
  const auto set = [&](CUgraphExec in, unsigned value) {
    g.value = value;
    before = client::stats::round_trips();
    return cuGraphExecKernelNodeSetParams_v2(in, node, &params);
  };
  const auto trips = [&] { return client::stats::round_trips() - before; };
  CHECK(set(exec, 1) == CUDA_SUCCESS);
  CHECK(trips() == 1);
  CHECK(set(exec, 2) == CUDA_SUCCESS);
  CHECK(trips() == 0);
  REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(0) == 2);

  SECTION("changes and launches keep their order, whatever the launches wait for, on all streams") {
    test::Gate gate;
    REQUIRE(cuLaunchHostFunc(g.stream, test::Gate::pass, &gate) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
    CHECK(set(exec, 3) == CUDA_SUCCESS);
    CHECK(set(exec, 4) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, aside) == CUDA_SUCCESS);
    CHECK(set(exec, 5) == CUDA_SUCCESS);
    CHECK(trips() == 0);
    REQUIRE(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
    gate.open();
    REQUIRE(cuStreamSynchronize(g.stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(aside) == CUDA_SUCCESS);
    std::vector<unsigned> values;
    for (const auto& launch : g.driver->launches()) values.push_back(std::to_integer<unsigned>(launch.parameters[12]));
    CHECK(values == std::vector<unsigned>{2, 2, 4, 5});
  }
  SECTION("another shape, another executable graph and one that was updated are asked for") {
    params.gridDimX = 2;
    CHECK(set(exec, 1) == CUDA_SUCCESS);
    CHECK(trips() == 1);
    CHECK(set(other, 1) == CUDA_SUCCESS);
    CHECK(trips() == 1);
    CUgraphExecUpdateResultInfo info{};
    REQUIRE(cuGraphExecUpdate_v2(exec, graph, &info) == CUDA_SUCCESS);
    CHECK(set(exec, 1) == CUDA_SUCCESS);
    CHECK(trips() == 1);
  }
  SECTION("an attribute of the function may make the driver refuse it") {
    REQUIRE(cuFuncSetAttribute(g.fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024) == CUDA_SUCCESS);
    CHECK(set(exec, 1) == CUDA_SUCCESS);
    CHECK(trips() == 1);
  }
  SECTION("what is gone is refused at once") {
    CHECK(set(other, 1) == CUDA_SUCCESS);
    REQUIRE(cuGraphExecDestroy(other) == CUDA_SUCCESS);
    CHECK(set(other, 1) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuGraphDestroyNode(node) == CUDA_SUCCESS);
    CHECK(set(exec, 1) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("nodes go with their graph") {
  Graphs g;
  for (int round = 0; round < 20; ++round) {
    CUgraph graph = nullptr;
    CUgraphNode first = nullptr, second = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&first, graph, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&second, graph, &first, 1) == CUDA_SUCCESS);
    CHECK(first != second);
    CUgraphNode nodes[3] = {};
    std::size_t n = 3;
    REQUIRE(cuGraphGetNodes(graph, nodes, &n) == CUDA_SUCCESS);
    CHECK(n == 2);
    CHECK(nodes[0] == first);
    CHECK(nodes[1] == second);
    CUgraphNodeType type{};
    CHECK(cuGraphNodeGetType(second, &type) == CUDA_SUCCESS);
    CHECK(type == CU_GRAPH_NODE_TYPE_EMPTY);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CHECK(cuGraphNodeGetType(second, &type) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuGraphGetNodes(graph, nodes, &n) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("kernel nodes carry their arguments, and bad handles are refused") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS params{};
  g.count = 3;
  g.value = 8;
  params.func = g.fill;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = g.arguments;
  CUgraphNode node = nullptr;
  CHECK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params) == CUDA_SUCCESS);
  params.ctx = reinterpret_cast<CUcontext>(g.module);  // ignored beside a function
  CHECK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params) == CUDA_SUCCESS);
  params.ctx = nullptr;
  params.func = reinterpret_cast<CUfunction>(g.module);
  CHECK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuGraphAddEmptyNode(&node, reinterpret_cast<CUgraph>(g.stream), nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphLaunch(reinterpret_cast<CUgraphExec>(graph), g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("parameters of nodes come back as they were given") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS kernel{};
  g.count = 3;
  g.value = 8;
  kernel.func = g.fill;
  kernel.gridDimX = 2;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 32;
  kernel.sharedMemBytes = 64;
  kernel.kernelParams = g.arguments;
  CUgraphNode node = nullptr, other = nullptr;
  REQUIRE(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &kernel) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS back{};
  REQUIRE(cuGraphKernelNodeGetParams_v2(node, &back) == CUDA_SUCCESS);
  CHECK(back.func == g.fill);
  CHECK(back.gridDimX == 2);
  CHECK(back.blockDimX == 32);
  CHECK(back.sharedMemBytes == 64);
  REQUIRE(back.kernelParams != nullptr);
  CHECK(*static_cast<CUdeviceptr*>(back.kernelParams[0]) == g.memory);
  CHECK(*static_cast<unsigned*>(back.kernelParams[1]) == 3);
  CHECK(*static_cast<unsigned*>(back.kernelParams[2]) == 8);
  // As programs do: read, change, write.
  *static_cast<unsigned*>(back.kernelParams[2]) = 9;
  CHECK(cuGraphKernelNodeSetParams_v2(node, &back) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS_v1 older{};
  REQUIRE(cuGraphKernelNodeGetParams(node, &older) == CUDA_SUCCESS);
  CHECK(older.func == g.fill);
  CHECK(*static_cast<unsigned*>(older.kernelParams[2]) == 9);
  CUDA_HOST_NODE_PARAMS host{};
  CHECK(cuGraphHostNodeGetParams(node, &host) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphKernelNodeGetParams_v2(node, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphKernelNodeGetParams_v2(nullptr, &back) == CUDA_ERROR_INVALID_VALUE);

  CUlibrary library = nullptr;
  CUkernel entry = nullptr;
  REQUIRE(cuLibraryLoadData(&library, test::kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuLibraryGetKernel(&entry, library, "fill32") == CUDA_SUCCESS);
  back.func = nullptr;
  back.kern = entry;
  REQUIRE(cuGraphAddKernelNode_v2(&other, graph, nullptr, 0, &back) == CUDA_SUCCESS);
  CUDA_KERNEL_NODE_PARAMS by_kernel{};
  REQUIRE(cuGraphKernelNodeGetParams_v2(other, &by_kernel) == CUDA_SUCCESS);
  CHECK(by_kernel.func == nullptr);
  CHECK(by_kernel.kern == entry);
  CHECK(cuGraphDestroyNode(other) == CUDA_SUCCESS);

  CUkernelNodeAttrValue attribute{};
  attribute.priority = -3;
  CHECK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddKernelNode_v2(&other, graph, nullptr, 0, &back) == CUDA_SUCCESS);
  CHECK(cuGraphKernelNodeCopyAttributes(other, node) == CUDA_SUCCESS);
  attribute.priority = 0;
  CHECK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &attribute) == CUDA_SUCCESS);
  CHECK(attribute.priority == -3);
  CHECK(cuGraphKernelNodeGetAttribute(other, static_cast<CUkernelNodeAttrID>(999), &attribute) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, nullptr) == CUDA_ERROR_INVALID_VALUE);

  const CUDA_MEMSET_NODE_PARAMS memset{g.memory, 64, 5, 4, 3, 2};
  REQUIRE(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &memset, g.context) == CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS memset_back{};
  REQUIRE(cuGraphMemsetNodeGetParams(node, &memset_back) == CUDA_SUCCESS);
  CHECK(memset_back.dst == g.memory);
  CHECK(memset_back.pitch == 64);
  CHECK(memset_back.width == 3);
  CHECK(memset_back.height == 2);
  memset_back.value = 6;
  CHECK(cuGraphMemsetNodeSetParams(node, &memset_back) == CUDA_SUCCESS);

  CUstreamBatchMemOpParams operations[2]{};
  operations[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[0].writeValue.address = g.memory + 512;
  operations[0].writeValue.value = 44;
  operations[1].operation = CU_STREAM_MEM_OP_BARRIER;
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{g.context, 2, operations, 0};
  REQUIRE(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &batch) == CUDA_SUCCESS);
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch_back{};
  REQUIRE(cuGraphBatchMemOpNodeGetParams(node, &batch_back) == CUDA_SUCCESS);
  REQUIRE(batch_back.count == 2);
  CHECK(batch_back.paramArray[0].writeValue.address == g.memory + 512);
  CHECK(batch_back.paramArray[0].writeValue.value == 44);
  CHECK(batch_back.paramArray[1].operation == CU_STREAM_MEM_OP_BARRIER);
  operations[0].writeValue.address = 16;
  CHECK(cuGraphBatchMemOpNodeSetParams(node, &batch) == CUDA_ERROR_INVALID_VALUE);

  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  operations[0].writeValue.address = g.memory + 516;
  operations[0].writeValue.value = 45;
  CHECK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(0) == 6);
  CHECK(g.word(128) == 0);
  CHECK(g.word(129) == 45);

  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  any.memOp.ctx = g.context;
  any.memOp.count = 2;
  any.memOp.paramArray = operations;
  operations[0].writeValue.value = 46;
  CHECK(cuGraphNodeSetParams(node, &any) == CUDA_SUCCESS);
  CHECK(cuGraphExecNodeSetParams(exec, node, &any) == CUDA_SUCCESS);
  any.type = CU_GRAPH_NODE_TYPE_EMPTY;
  CHECK(cuGraphNodeSetParams(node, &any) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphLaunch(exec, g.stream) == CUDA_SUCCESS);
  CHECK(g.word(129) == 46);
}

TEST_CASE("a graph that cannot be instantiated names its node") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUgraphNode first = nullptr, second = nullptr;
  REQUIRE(cuGraphAddEmptyNode(&first, graph, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&second, graph, &first, 1) == CUDA_SUCCESS);
  g.driver->script("cuGraphInstantiateWithParams", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CUgraphExec exec = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  CHECK(cuGraphInstantiateWithParams(&exec, graph, &params) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(exec == nullptr);
  CHECK(cuGraphInstantiateWithParams(&exec, graph, &params) == CUDA_SUCCESS);
  CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  CHECK(params.hErrNode_out == nullptr);
}

TEST_CASE("a graph is printed on the client's disk") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  for (int i = 0; i < 3; ++i) REQUIRE(cuGraphAddEmptyNode(&node, graph, nullptr, 0) == CUDA_SUCCESS);
  const auto path = std::filesystem::temp_directory_path() / ("fargpu_graph_" + std::to_string(::getpid()) + ".dot");
  CHECK(cuGraphDebugDotPrint(graph, path.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) == CUDA_SUCCESS);
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(text.starts_with("digraph dot {\n"));
  CHECK(text.ends_with("}\n"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  std::filesystem::remove(path);
  CHECK(cuGraphDebugDotPrint(graph, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphDebugDotPrint(graph, "/nowhere/at/all.dot", 0) == CUDA_ERROR_OPERATING_SYSTEM);
}

TEST_CASE("a capture may go on in a graph that is there") {
  Graphs g;
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(g.launch(1, 1) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCaptureToGraph(g.stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
  REQUIRE(g.launch(1, 4) == CUDA_SUCCESS);
  CUgraph ended = nullptr;
  REQUIRE(cuStreamEndCapture(g.stream, &ended) == CUDA_SUCCESS);
  CHECK(ended == graph);
  std::size_t n = 0;
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  CHECK(n == 1);
}

TEST_CASE("a graph into which a stream was captured stays, whether or not the end asks for it") {
  Graphs g;
  CUgraph graph = nullptr, inner = nullptr, child = nullptr, ended = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child) == CUDA_SUCCESS);
  REQUIRE(cuGraphChildGraphNodeGetGraph(node, &inner) == CUDA_SUCCESS);
  const std::size_t destroyed = g.driver->calls("cuGraphDestroy");
  const CUgraph into = GENERATE_COPY(as<bool>{}, true, false) ? graph : inner;
  const auto nodes = [&] {
    std::size_t n = 0;
    CHECK(cuGraphGetNodes(into, nullptr, &n) == CUDA_SUCCESS);
    return n;
  };
  const std::size_t before = nodes();
  REQUIRE(cuStreamBeginCaptureToGraph(g.stream, into, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_SUCCESS);
  REQUIRE(g.launch(1, 4) == CUDA_SUCCESS);
  SECTION("without a place for it") { REQUIRE(cuStreamEndCapture(g.stream, nullptr) == CUDA_SUCCESS); }
  SECTION("of a capture that is invalid") {
    CHECK(cuStreamQuery(g.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(g.stream, &ended) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  CHECK(nodes() == before + 1);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(g.driver->calls("cuGraphDestroy") == destroyed);
}

TEST_CASE("a child graph into which a stream is captured is not replaced") {
  Graphs g;
  CUgraph graph = nullptr, child = nullptr, inner = nullptr, captured = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child) == CUDA_SUCCESS);
  REQUIRE(cuGraphChildGraphNodeGetGraph(node, &inner) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCaptureToGraph(g.stream, inner, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = child;
  CHECK(cuGraphNodeSetParams(node, &params) == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(cuStreamEndCapture(g.stream, &captured) == CUDA_SUCCESS);
  CHECK(captured == inner);
  CHECK(cuGraphNodeSetParams(node, &params) != CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("a graph into which a stream is captured is not destroyed, and loses no nodes") {
  Graphs g;
  CUgraph graph = nullptr, seen = nullptr;
  CUgraphNode node = nullptr;
  SECTION("one that was there") {
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&node, graph, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCaptureToGraph(g.stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED) ==
            CUDA_SUCCESS);
  }
  SECTION("the capture's own") {
    REQUIRE(cuStreamBeginCapture_v2(g.stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CUstreamCaptureStatus status{};
    REQUIRE(cuStreamGetCaptureInfo_v3(g.stream, &status, nullptr, &graph, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&node, graph, nullptr, 0) == CUDA_SUCCESS);
  }
  CHECK(cuGraphDestroyNode(node) == CUDA_ERROR_ILLEGAL_STATE);
  std::size_t n = 0;
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  g.hear_out();
  CHECK(g.launch(1, 4) == CUDA_ERROR_ILLEGAL_STATE);  // what the destruction had to say
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  REQUIRE(g.launch(1, 4) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(g.stream, &seen) == CUDA_SUCCESS);
  CHECK(seen == graph);
  CHECK(cuGraphDestroyNode(node) == CUDA_SUCCESS);
  CHECK(cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS);
  CHECK(n == 1);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a graph does not become part of itself") {
  Graphs g;
  CUgraph outer = nullptr, inner = nullptr, embedded = nullptr;
  CUgraphNode node = nullptr, other = nullptr;
  REQUIRE(cuGraphCreate(&outer, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&node, outer, nullptr, 0) == CUDA_SUCCESS);
  CHECK(cuGraphAddChildGraphNode(&other, outer, nullptr, 0, outer) == CUDA_ERROR_INVALID_VALUE);
  CUgraphNodeParams moved{};
  moved.type = CU_GRAPH_NODE_TYPE_GRAPH;
  moved.graph.graph = outer;
  moved.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  CHECK(cuGraphAddNode_v2(&other, outer, nullptr, nullptr, 0, &moved) == CUDA_ERROR_INVALID_VALUE);
  // Nor of a graph within it, however deep.
  REQUIRE(cuGraphCreate(&inner, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddChildGraphNode(&node, inner, nullptr, 0, outer) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddChildGraphNode(&node, outer, nullptr, 0, inner) == CUDA_SUCCESS);  // a copy goes in
  REQUIRE(cuGraphChildGraphNodeGetGraph(node, &embedded) == CUDA_SUCCESS);
  CHECK(cuGraphAddChildGraphNode(&other, embedded, nullptr, 0, outer) == CUDA_ERROR_INVALID_VALUE);
  std::size_t n = 1;
  REQUIRE(cuGraphGetNodes(embedded, &node, &n) == CUDA_SUCCESS);
  CUgraph deepest = nullptr;
  REQUIRE(cuGraphChildGraphNodeGetGraph(node, &deepest) == CUDA_SUCCESS);
  CHECK(cuGraphAddChildGraphNode(&other, deepest, nullptr, 0, outer) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphAddChildGraphNode(&other, deepest, nullptr, 0, embedded) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphAddChildGraphNode(&other, outer, nullptr, 0, embedded) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(outer) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(inner) == CUDA_SUCCESS);
}

TEST_CASE("a node of a child graph that is gone leaves no handle that means another") {
  Graphs g;
  CUgraph child = nullptr, graph = nullptr;
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddEmptyNode(&node, child, nullptr, 0) == CUDA_SUCCESS);
  for (int round = 0; round < 20; ++round) {
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUgraphNode nested = nullptr, inner = nullptr, fresh = nullptr;
    REQUIRE(cuGraphAddChildGraphNode(&nested, graph, nullptr, 0, child) == CUDA_SUCCESS);
    CUgraph embedded = nullptr;
    REQUIRE(cuGraphChildGraphNodeGetGraph(nested, &embedded) == CUDA_SUCCESS);
    std::size_t n = 1;
    REQUIRE(cuGraphGetNodes(embedded, &inner, &n) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroyNode(nested) == CUDA_SUCCESS);
    // The driver may give a new node the place of an old one.
    CUgraph other = nullptr;
    REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddEmptyNode(&fresh, other, nullptr, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    CUgraphNodeType type{};
    CHECK(cuGraphNodeGetType(fresh, &type) == CUDA_SUCCESS);
    CHECK(cuGraphDestroy(other) == CUDA_SUCCESS);
  }
}
