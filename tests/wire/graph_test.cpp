// Graphs: built by hand, captured, launched.

#include <catch2/catch.hpp>

#include "client/stats.h"
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
  params.func = reinterpret_cast<CUfunction>(g.module);
  CHECK(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &params) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuGraphAddEmptyNode(&node, reinterpret_cast<CUgraph>(g.stream), nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphLaunch(reinterpret_cast<CUgraphExec>(graph), g.stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
}
