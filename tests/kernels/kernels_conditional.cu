// Graphs with conditional nodes: kernels decide what of them is executed, and how often.

#include "harness.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

extern "C" __global__ void add(unsigned* value, unsigned by) { *value += by; }

extern "C" __global__ void decide(cudaGraphConditionalHandle handle, const unsigned* value) {
  cudaGraphSetConditional(handle, *value);
}

/// One less; the loop goes on until none is left, and finds the first number there again then.
extern "C" __global__ void count_down(cudaGraphConditionalHandle handle, unsigned* left, unsigned again) {
  *left -= 1;
  cudaGraphSetConditional(handle, *left != 0);
  if (*left == 0) *left = again;
}

#else

namespace {

/// A graph with conditional nodes, and what its kernels count.
class Conditional {
 public:
  explicit Conditional(std::vector<unsigned> values) : values_(values) {
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph_, 0));
    OK(cuCtxGetCurrent(&context_));
  }
  ~Conditional() {
    if (exec_) cuGraphExecDestroy(exec_);
    cuGraphDestroy(graph_);
    cuStreamDestroy(stream_);
  }
  Conditional(const Conditional&) = delete;
  Conditional& operator=(const Conditional&) = delete;

  CUgraph graph() const { return graph_; }
  CUstream stream() const { return stream_; }
  CUdeviceptr value(size_t i) const { return values_.address() + i * sizeof(unsigned); }
  std::vector<unsigned> values() const { return values_.get(); }
  void put(const std::vector<unsigned>& values) { values_.put(values); }

  CUgraphConditionalHandle condition(unsigned value = 0, unsigned flags = 0) {
    CUgraphConditionalHandle handle = 0;
    OK(cuGraphConditionalHandleCreate(&handle, graph_, context_, value, flags));
    return handle;
  }

  /// The bodies of a new node.
  std::vector<CUgraph> node(CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned count,
                            CUgraph graph, std::vector<CUgraphNode> after = {}, CUgraphNode* made = nullptr) {
    CUgraphNodeParams params;
    OK(try_node(handle, type, count, graph, after, made, params));
    HOLDS(params.conditional.phGraph_out != nullptr);
    return {params.conditional.phGraph_out, params.conditional.phGraph_out + count};
  }
  CUresult try_node(CUgraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned count, CUgraph graph,
                    const std::vector<CUgraphNode>& after, CUgraphNode* made, CUgraphNodeParams& params) {
    params = {};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = count;
    params.conditional.ctx = context_;
    CUgraphNode own;
    return cuGraphAddNode_v2(made ? made : &own, graph, after.data(), nullptr, after.size(), &params);
  }

  template <class... Arguments>
  CUgraphNode kernel(CUgraph graph, std::vector<CUgraphNode> after, const char* name, Arguments... arguments) {
    void* pointers[] = {static_cast<void*>(&arguments)...};
    CUDA_KERNEL_NODE_PARAMS params{};
    params.func = kernels_.get(name);
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.kernelParams = pointers;
    CUgraphNode node;
    OK(cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
  }

  void launch(int times = 1) {
    if (!exec_) OK(cuGraphInstantiateWithFlags(&exec_, graph_, 0));
    for (int i = 0; i < times; ++i) OK(cuGraphLaunch(exec_, stream_));
    OK(cuStreamSynchronize(stream_));
  }

 private:
  Kernels kernels_;
  Buffer<unsigned> values_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

}  // namespace

CASE(loop) {
  Conditional c({5, 0, 0});
  const CUgraphConditionalHandle handle = c.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  CUgraphNode loop;
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_WHILE, 1, c.graph(), {}, &loop)[0];
  const CUgraphNode counted = c.kernel(body, {}, "add", c.value(1), 1u);
  c.kernel(body, {counted}, "count_down", handle, c.value(0), 5u);
  c.kernel(c.graph(), {loop}, "add", c.value(2), 1u);
  c.launch();
  expect_same(c.values(), {5u, 5u, 1u});
  c.launch(3);
  expect_same(c.values(), {5u, 20u, 4u});
}

CASE(loop_that_does_not_begin) {
  Conditional c({5, 0, 0});
  const CUgraphConditionalHandle handle = c.condition(0, CU_GRAPH_COND_ASSIGN_DEFAULT);
  CUgraphNode loop;
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_WHILE, 1, c.graph(), {}, &loop)[0];
  c.kernel(body, {}, "count_down", handle, c.value(0), 5u);
  c.kernel(c.graph(), {loop}, "add", c.value(2), 1u);
  c.launch(2);
  expect_same(c.values(), {5u, 0u, 2u});
}

CASE(if_and_else) {
  Conditional c({1, 0, 0});
  const CUgraphConditionalHandle handle = c.condition();
  const CUgraphNode decided = c.kernel(c.graph(), {}, "decide", handle, c.value(0));
  const std::vector<CUgraph> bodies = c.node(handle, CU_GRAPH_COND_TYPE_IF, 2, c.graph(), {decided});
  c.kernel(bodies[0], {}, "add", c.value(1), 1u);
  c.kernel(bodies[1], {}, "add", c.value(2), 1u);
  c.launch();
  expect_same(c.values(), {1u, 1u, 0u});
  c.put({0, 1, 0});
  c.launch();
  expect_same(c.values(), {0u, 1u, 1u});
}

CASE(switch_over_bodies) {
  constexpr unsigned count = 4;
  Conditional c({0, 0, 0, 0, 0});
  const CUgraphConditionalHandle handle = c.condition();
  const CUgraphNode decided = c.kernel(c.graph(), {}, "decide", handle, c.value(0));
  const std::vector<CUgraph> bodies = c.node(handle, CU_GRAPH_COND_TYPE_SWITCH, count, c.graph(), {decided});
  for (unsigned i = 0; i < count; ++i) c.kernel(bodies[i], {}, "add", c.value(1 + i), i + 1);
  std::vector<unsigned> wanted(1 + count);
  for (const unsigned value : {2u, 0u, 3u, 1u, 2u, 4u, 77u}) {  // beyond the last body none is executed
    wanted[0] = value;
    c.put(wanted);
    c.launch();
    if (value < count) wanted[1 + value] += value + 1;
    expect_same(c.values(), wanted);
  }
}

CASE(loop_within_loop) {
  Conditional c({3, 4, 0, 0});
  const CUgraphConditionalHandle outer = c.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT), inner = c.condition();
  const CUgraph outer_body = c.node(outer, CU_GRAPH_COND_TYPE_WHILE, 1, c.graph())[0];
  const CUgraphNode again = c.kernel(outer_body, {}, "decide", inner, c.value(1));
  CUgraphNode loop;
  const CUgraph inner_body = c.node(inner, CU_GRAPH_COND_TYPE_WHILE, 1, outer_body, {again}, &loop)[0];
  const CUgraphNode counted = c.kernel(inner_body, {}, "add", c.value(2), 1u);
  c.kernel(inner_body, {counted}, "count_down", inner, c.value(1), 4u);
  const CUgraphNode turn = c.kernel(outer_body, {loop}, "add", c.value(3), 1u);
  c.kernel(outer_body, {turn}, "count_down", outer, c.value(0), 3u);
  c.launch(2);
  expect_same(c.values(), {3u, 4u, 24u, 6u});
}

// Without CU_GRAPH_COND_ASSIGN_DEFAULT a value stays from one launch to the next.
CASE(value_that_stays) {
  Conditional c({1, 0});
  const CUgraphConditionalHandle handle = c.condition();
  CUgraphNode chosen;
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_IF, 1, c.graph(), {}, &chosen)[0];
  c.kernel(body, {}, "add", c.value(1), 1u);
  c.kernel(c.graph(), {chosen}, "decide", handle, c.value(0));
  c.launch();  // which sets it at its end only
  const unsigned first = c.values()[1];
  c.launch(2);
  HOLDS(c.values()[1] == first + 2);
}

// As frameworks make loops: the body is captured, and the stream goes before the graph is instantiated.
CASE(captured_body) {
  Conditional c({6, 0, 9});
  Kernels kernels;
  const CUgraphConditionalHandle handle = c.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_WHILE, 1, c.graph())[0];
  CUstream capture;
  OK(cuStreamCreate(&capture, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCaptureToGraph(capture, body, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(kernels.try_launch("add", {}, {}, 0, capture, c.value(1), 1u));
  OK(cuMemsetD32Async(c.value(2), 3, 1, capture));
  OK(kernels.try_launch("count_down", {}, {}, 0, capture, handle, c.value(0), 6u));
  CUgraph captured = nullptr;
  OK(cuStreamEndCapture(capture, &captured));
  HOLDS(captured == body);
  OK(cuStreamDestroy(capture));
  c.launch(2);
  expect_same(c.values(), {6u, 12u, 3u});
  OK(cuMemsetD8(c.value(2), 0, 4));
  OK(cuCtxSynchronize());
}

CASE(copies_in_a_body) {
  Conditional c({2, 0, 0});
  const CUgraphConditionalHandle handle = c.condition(1, CU_GRAPH_COND_ASSIGN_DEFAULT);
  CUgraphNode loop;
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_WHILE, 1, c.graph(), {}, &loop)[0];
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = c.value(1);
  copy.dstDevice = c.value(2);
  copy.WidthInBytes = sizeof(unsigned);
  copy.Height = copy.Depth = 1;
  const CUgraphNode counted = c.kernel(body, {}, "add", c.value(1), 7u);
  CUgraphNode copied;
  OK(cuGraphAddMemcpyNode(&copied, body, &counted, 1, &copy, context));
  c.kernel(body, {copied}, "count_down", handle, c.value(0), 2u);
  c.launch();
  expect_same(c.values(), {2u, 14u, 14u});
}

// A body that does not run leaves the program's memory alone, whatever it would copy there.
CASE(copies_to_the_host_in_bodies) {
  constexpr unsigned untouched = 55;
  Conditional c({1, 10, 20});
  unsigned* host = nullptr;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&host), 3 * sizeof(unsigned), 0));
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  const auto copy_to = [&](CUgraph graph, const std::vector<CUgraphNode>& after, CUdeviceptr from, unsigned* to) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcDevice = from;
    copy.dstHost = to;
    copy.WidthInBytes = sizeof(unsigned);
    copy.Height = copy.Depth = 1;
    CUgraphNode node;
    OK(cuGraphAddMemcpyNode(&node, graph, after.data(), after.size(), &copy, context));
  };
  const CUgraphConditionalHandle handle = c.condition();
  const CUgraphNode decided = c.kernel(c.graph(), {}, "decide", handle, c.value(0));
  const std::vector<CUgraph> bodies = c.node(handle, CU_GRAPH_COND_TYPE_IF, 2, c.graph(), {decided});
  copy_to(bodies[0], {}, c.value(1), host);  // both write the first word, each a word of its own too
  copy_to(bodies[0], {}, c.value(1), host + 1);
  copy_to(bodies[1], {}, c.value(2), host);
  copy_to(bodies[1], {}, c.value(2), host + 2);
  for (const unsigned chosen : {1u, 0u, 0u, 1u}) {
    c.put({chosen, 10, 20});
    std::fill_n(host, 3, untouched);
    c.launch();
    const std::vector<unsigned> wanted = chosen ? std::vector{10u, 10u, untouched} : std::vector{20u, untouched, 20u};
    expect_same(std::vector(host, host + 3), wanted);
  }
  OK(cuMemFreeHost(host));
}

CASE(what_conditional_nodes_cannot_be) {
  Conditional c({0});
  CUgraphConditionalHandle handle = 0;
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphConditionalHandleCreate(&handle, c.graph(), context, 0, 2));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphConditionalHandleCreate(&handle, nullptr, context, 0, 0));
  handle = c.condition();
  CUgraphNodeParams params;
  HOLDS(c.try_node(handle, CU_GRAPH_COND_TYPE_WHILE, 2, c.graph(), {}, nullptr, params) != CUDA_SUCCESS);
  HOLDS(c.try_node(handle, CU_GRAPH_COND_TYPE_IF, 0, c.graph(), {}, nullptr, params) != CUDA_SUCCESS);
  const CUgraph body = c.node(handle, CU_GRAPH_COND_TYPE_IF, 1, c.graph())[0];
  c.kernel(body, {}, "add", c.value(0), 1u);
  CUgraph clone = nullptr, outer = nullptr;
  HOLDS(cuGraphClone(&clone, c.graph()) != CUDA_SUCCESS);
  OK(cuGraphCreate(&outer, 0));
  CUgraphNode child;
  HOLDS(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, c.graph()) != CUDA_SUCCESS);
  OK(cuGraphDestroy(outer));
  c.launch();
}

#endif
