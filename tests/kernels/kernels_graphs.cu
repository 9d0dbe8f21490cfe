// Graphs whose memory is not there yet when they are captured: cuDNN captures its plans so, and puts addresses in
// later.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void sum_to(unsigned* out, const unsigned* values, int count) {
  unsigned sum = 0;
  for (int i = 0; i < count; ++i) sum += values[i];
  *out = sum;
}

#else

namespace {

/// What no allocation of the program's is at.
constexpr CUdeviceptr placeholder = 0x6000'0000'0000;

struct Capture {
  Capture() {
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  }
  ~Capture() {
    if (graph) cuGraphDestroy(graph);
    cuStreamDestroy(stream);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  void end() { OK(cuStreamEndCapture(stream, &graph)); }

  CUstream stream = nullptr;
  CUgraph graph = nullptr;
};

}  // namespace

CASE(placeholders_in_captures) {
  Kernels kernels;
  constexpr int count = 1000;
  Buffer<unsigned> values(count), out(1);
  Capture capture;
  OK(cuMemsetD32Async(placeholder, 3, count, capture.stream));
  OK(cuMemsetD8Async(placeholder + (1 << 20), 0, 4, capture.stream));
  OK(kernels.try_launch("sum_to", {}, {}, 0, capture.stream, placeholder, placeholder, count));
  capture.end();
  // The addresses of the program come into the nodes.
  CUgraphNode nodes[8];
  size_t all = 8;
  OK(cuGraphGetNodes(capture.graph, nodes, &all));
  HOLDS(all == 3);
  CUdeviceptr out_address = out.address(), values_address = values.address();
  for (size_t i = 0; i < all; ++i) {
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(nodes[i], &type));
    if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
      CUDA_MEMSET_NODE_PARAMS params;
      OK(cuGraphMemsetNodeGetParams(nodes[i], &params));
      params.dst = params.dst == placeholder ? values_address : out_address;
      OK(cuGraphMemsetNodeSetParams(nodes[i], &params));
    } else {
      CUDA_KERNEL_NODE_PARAMS params;
      OK(cuGraphKernelNodeGetParams(nodes[i], &params));
      int n = count;
      void* arguments[] = {&out_address, &values_address, &n};
      params.kernelParams = arguments;
      OK(cuGraphKernelNodeSetParams(nodes[i], &params));
    }
  }
  CUgraphExec executable;
  OK(cuGraphInstantiateWithFlags(&executable, capture.graph, 0));
  OK(cuGraphLaunch(executable, capture.stream));
  OK(cuStreamSynchronize(capture.stream));
  HOLDS(out.get()[0] == 3 * count);
  OK(cuGraphExecDestroy(executable));
}

// Outside of captures such memory is refused at once.
CASE(no_placeholders_elsewhere) {
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(placeholder, 3, 10, nullptr));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(placeholder, 3, 10));
  OK(cuCtxSynchronize());
}

#endif
