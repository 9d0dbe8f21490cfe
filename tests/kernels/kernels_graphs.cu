// Graphs whose memory is not there yet when they are captured, as cuDNN captures its plans, and puts addresses in
// later; graphs that change, and graphs that wait for values.

#include "harness.h"

#ifdef __CUDACC__

extern "C" __global__ void sum_to(unsigned* out, const unsigned* values, int count) {
  unsigned sum = 0;
  for (int i = 0; i < count; ++i) sum += values[i];
  *out = sum;
}

#else

#include <chrono>
#include <thread>

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

// The graph that an executable graph was made from names its nodes, also after updates with other graphs.
CASE(nodes_after_an_update) {
  Kernels kernels;
  Buffer<unsigned> values(std::vector<unsigned>{1, 2, 4, 8}), out(1);
  for (const bool with_function : {false, true}) {
    const auto captured = [&](Capture& capture, int count) {
      OK(kernels.try_launch("sum_to", {}, {}, 0, capture.stream, out.address(), values.address(), count));
      if (with_function)
        OK(cuLaunchHostFunc(
            capture.stream, [](void*) {}, nullptr));
      capture.end();
    };
    Capture first;
    captured(first, 1);
    CUgraphExec executable;
    OK(cuGraphInstantiateWithFlags(&executable, first.graph, 0));
    const auto sum = [&] {
      OK(cuGraphLaunch(executable, first.stream));
      OK(cuStreamSynchronize(first.stream));
      return out.get()[0];
    };
    HOLDS(sum() == 1);
    {
      Capture second;
      captured(second, 2);
      CUgraphExecUpdateResultInfo info;
      OK(cuGraphExecUpdate(executable, second.graph, &info));
    }
    HOLDS(sum() == 3);
    CUgraphNode nodes[2];
    size_t count = 2;
    OK(cuGraphGetRootNodes(first.graph, nodes, &count));
    HOLDS(count == 1);
    CUDA_KERNEL_NODE_PARAMS params;
    OK(cuGraphKernelNodeGetParams(nodes[0], &params));
    int four = 4;
    CUdeviceptr out_address = out.address(), values_address = values.address();
    void* arguments[] = {&out_address, &values_address, &four};
    params.kernelParams = arguments;
    OK(cuGraphExecKernelNodeSetParams(executable, nodes[0], &params));
    HOLDS(sum() == 15);
    out.clear();
    OK(cuGraphNodeSetEnabled(executable, nodes[0], 0));
    HOLDS(sum() == 0);
    OK(cuGraphExecDestroy(executable));
  }
}

// A change is for the launches after it, and for none before, whether they have begun or not.
CASE(changed_after_a_launch) {
  Kernels kernels;
  constexpr unsigned launches = 4, count_max = 20'000;
  Buffer<unsigned> values(count_max), out(1);
  enum class By { parameters, enabling, update };
  for (const By by : {By::parameters, By::enabling, By::update}) {
    for (const bool behind_a_function : {false, true}) {
      std::vector<unsigned> sums(launches), ones(count_max, 1);
      const auto captured = [&](Capture& capture, int count, unsigned& sum) {
        OK(cuMemcpyHtoDAsync(values.address(), ones.data(), 4 * count_max, capture.stream));
        OK(kernels.try_launch("sum_to", {}, {}, 0, capture.stream, out.address(), values.address(), count));
        OK(cuMemcpyDtoHAsync(&sum, out.address(), 4, capture.stream));
        capture.end();
      };
      Capture first;
      captured(first, 1, sums[0]);
      CUgraphExec executable;
      OK(cuGraphInstantiateWithFlags(&executable, first.graph, 0));
      CUgraphNode nodes[4], copy_out = nullptr, kernel = nullptr;
      size_t all = 4;
      OK(cuGraphGetNodes(first.graph, nodes, &all));
      for (size_t i = 0; i < all; ++i) {
        CUgraphNodeType type;
        OK(cuGraphNodeGetType(nodes[i], &type));
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) kernel = nodes[i];
        size_t behind = 0;
        OK(cuGraphNodeGetDependentNodes(nodes[i], nullptr, nullptr, &behind));
        if (behind == 0) copy_out = nodes[i];
      }
      HOLDS(kernel && copy_out);
      const auto change = [&](unsigned launch) {
        if (by == By::enabling) return OK(cuGraphNodeSetEnabled(executable, copy_out, 0));
        if (by == By::update) {
          Capture again;
          captured(again, static_cast<int>(launch) + 1, sums[launch]);
          CUgraphExecUpdateResultInfo info;
          return OK(cuGraphExecUpdate(executable, again.graph, &info));
        }
        CUDA_KERNEL_NODE_PARAMS launched;
        OK(cuGraphKernelNodeGetParams(kernel, &launched));
        int count = static_cast<int>(launch) + 1;
        CUdeviceptr to = out.address(), from = values.address();
        void* arguments[] = {&to, &from, &count};
        launched.kernelParams = arguments;
        OK(cuGraphExecKernelNodeSetParams(executable, kernel, &launched));
        CUDA_MEMCPY3D copied;
        OK(cuGraphMemcpyNodeGetParams(copy_out, &copied));
        copied.dstHost = &sums[launch];
        CUcontext context;
        OK(cuCtxGetCurrent(&context));
        OK(cuGraphExecMemcpyNodeSetParams(executable, copy_out, &copied, context));
      };
      const auto delay = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
      if (behind_a_function) OK(cuLaunchHostFunc(first.stream, delay, nullptr));
      for (unsigned launch = 0; launch < launches; ++launch) {
        if (launch > 0) change(launch);
        OK(cuGraphLaunch(executable, first.stream));
      }
      OK(cuStreamSynchronize(first.stream));
      for (unsigned launch = 0; launch < launches; ++launch)
        HOLDS(sums[launch] == (by == By::enabling && launch > 0 ? 0 : launch + 1));
      if (by == By::enabling) {
        sums[0] = 77;
        OK(cuGraphLaunch(executable, first.stream));
        OK(cuStreamSynchronize(first.stream));
        HOLDS(sums[0] == 77);
      }
      OK(cuGraphExecDestroy(executable));
    }
  }
}

// What is disabled stays so when the executable graph is updated.
CASE(disabled_before_an_update) {
  Kernels kernels;
  Buffer<unsigned> values(std::vector<unsigned>{1, 2, 4, 8}), out(1);
  for (const bool with_function : {false, true}) {
    unsigned sums[2] = {};
    const auto captured = [&](Capture& capture, int count, unsigned& sum) {
      OK(kernels.try_launch("sum_to", {}, {}, 0, capture.stream, out.address(), values.address(), count));
      if (with_function)
        OK(cuLaunchHostFunc(
            capture.stream, [](void*) {}, nullptr));
      OK(cuMemcpyDtoHAsync(&sum, out.address(), 4, capture.stream));
      capture.end();
    };
    Capture first;
    captured(first, 1, sums[0]);
    CUgraphExec executable;
    OK(cuGraphInstantiateWithFlags(&executable, first.graph, 0));
    CUgraphNode kernel;
    size_t roots = 1;
    OK(cuGraphGetRootNodes(first.graph, &kernel, &roots));
    const auto run = [&] {
      OK(cuGraphLaunch(executable, first.stream));
      OK(cuStreamSynchronize(first.stream));
    };
    run();
    HOLDS(sums[0] == 1);
    OK(cuGraphNodeSetEnabled(executable, kernel, 0));
    for (const int count : {2, 3}) {
      Capture again;
      captured(again, count, sums[1]);
      CUgraphExecUpdateResultInfo info;
      OK(cuGraphExecUpdate(executable, again.graph, &info));
      unsigned enabled = 1;
      OK(cuGraphNodeGetEnabled(executable, kernel, &enabled));
      HOLDS(enabled == 0);
      run();
      HOLDS(sums[1] == 1);
    }
    OK(cuGraphNodeSetEnabled(executable, kernel, 1));
    run();
    HOLDS(sums[1] == 7);
    OK(cuGraphExecDestroy(executable));
  }
}

// A stream that joined a capture asks for the graph, and begins a capture of its own later, which fails.
CASE(asked_for_by_another_stream) {
  Buffer<unsigned> out(2);
  Capture capture;
  CUstream other;
  CUevent event;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const auto join = [&](CUstream from, CUstream to) {
    OK(cuEventRecord(event, from));
    OK(cuStreamWaitEvent(to, event, 0));
  };
  join(capture.stream, other);
  OK(cuMemsetD32Async(out.address(), 5, 1, other));
  CUstreamCaptureStatus status;
  CUgraph asked = nullptr;
  OK(cuStreamGetCaptureInfo(other, &status, nullptr, &asked, nullptr, nullptr, nullptr));
  join(other, capture.stream);
  capture.end();
  HOLDS(capture.graph == asked);
  OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  join(other, capture.stream);
  OK(cuMemsetD32Async(out.address() + 4, 6, 1, capture.stream));
  CUgraph none = nullptr;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(other, &none));
  size_t nodes = 0;
  OK(cuGraphGetNodes(capture.graph, nullptr, &nodes));
  HOLDS(nodes == 1);
  CUgraphExec executable;
  OK(cuGraphInstantiateWithFlags(&executable, capture.graph, 0));
  OK(cuGraphLaunch(executable, other));
  OK(cuStreamSynchronize(other));
  HOLDS(out.get()[0] == 5);
  OK(cuGraphExecDestroy(executable));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(other));
}

// What a graph waits for, and what lies behind the graph, may be changed until the value comes. What a graph has copied
// is there when the value that it writes afterwards is.
CASE(values_in_graphs) {
  constexpr size_t words = 1 << 20;
  Buffer<unsigned> flags(2), out(2), large(words);
  flags.clear();
  unsigned *pinned, *copied;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 2 * sizeof(unsigned), 0));
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&copied), words * sizeof(unsigned), 0));
  Capture capture;
  OK(cuStreamWaitValue32(capture.stream, flags.address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuMemcpyHtoDAsync(out.address(), pinned, sizeof(unsigned), capture.stream));
  OK(cuMemsetD32Async(large.address(), 7, words, capture.stream));
  OK(cuMemcpyDtoHAsync(copied, large.address(), large.bytes(), capture.stream));
  OK(cuStreamWriteValue32(capture.stream, flags.address() + 4, 1, 0));
  OK(cuStreamWriteValue32(capture.stream, flags.address(), 0, 0));
  capture.end();
  CUgraphExec exec;
  OK(cuGraphInstantiate(&exec, capture.graph, 0));
  CUstream other;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (unsigned round = 1; round <= 3; ++round) {
    pinned[0] = pinned[1] = 0;
    std::memset(copied, 0, large.bytes());
    OK(cuGraphLaunch(exec, capture.stream));
    OK(cuMemcpyHtoDAsync(out.address() + 4, pinned + 1, sizeof(unsigned), capture.stream));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pinned[0] = 10 * round;
    pinned[1] = 20 * round;
    OK(cuStreamWriteValue32(other, flags.address(), 1, 0));
    unsigned written = 0;
    for (int look = 0; look < 10000 && written == 0; ++look) {
      OK(cuMemcpyDtoHAsync(&written, flags.address() + 4, sizeof(written), other));
      OK(cuStreamSynchronize(other));
    }
    HOLDS(written == 1);
    HOLDS(copied[0] == 7 && copied[words - 1] == 7);
    OK(cuStreamSynchronize(capture.stream));
    HOLDS(out.get()[0] == 10 * round);
    HOLDS(out.get()[1] == 20 * round);
    OK(cuMemsetD32(flags.address() + 4, 0, 1));
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuStreamDestroy(other));
  OK(cuMemFreeHost(pinned));
  OK(cuMemFreeHost(copied));
}

// Outside of captures such memory is refused at once.
CASE(no_placeholders_elsewhere) {
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(placeholder, 3, 10, nullptr));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(placeholder, 3, 10));
  OK(cuCtxSynchronize());
}

#endif
