// Functions under the names and in the forms that older toolkits gave them, which programs built then still call: each
// does what its successor does. Says "the same" at its end.

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <cstdio>
#include <cstdlib>

namespace {

void check(bool good, const char* what, int line) {
  if (good) return;
  std::printf("line %d: %s\n", line, what);
  std::exit(1);
}
#define OK(call) check((call) == CUDA_SUCCESS, #call, __LINE__)
#define HOLDS(condition) check((condition), #condition, __LINE__)

const char* const ptx =
    ".version 8.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry store(.param .u64 address, .param .u32 value) {\n"
    "  .reg .b32 %r<2>; .reg .b64 %rd<2>;\n"
    "  ld.param.u64 %rd1, [address]; ld.param.u32 %r1, [value];\n"
    "  st.global.u32 [%rd1], %r1; ret;\n}\n";

void contexts() {
  CUcontext made = nullptr, popped = nullptr, attached = nullptr;
  OK(cuCtxCreate_v2(&made, 0, 0));
  OK(cuCtxPopCurrent(&popped));
  HOLDS(popped == made);
  OK(cuCtxPushCurrent(made));
  OK(cuCtxAttach(&attached, 0));
  HOLDS(attached == made);
  OK(cuCtxDetach(made));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, 0));
  OK(cuEventDestroy(event));
  HOLDS(cuEventQuery(event) != CUDA_SUCCESS);
  OK(cuCtxDestroy(made));
  OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
  unsigned flags = 0;
  int active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  HOLDS(flags == CU_CTX_SCHED_YIELD);
  OK(cuDevicePrimaryCtxRetain(&made, 0));
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  HOLDS(active == 0);
}

void graphs() {
  CUdeviceptr out = 0;
  unsigned value = 1, seen = 0;
  OK(cuMemAlloc_v2(&out, 4));
  CUmodule module = nullptr;
  OK(cuModuleLoadData(&module, ptx));
  CUDA_KERNEL_NODE_PARAMS_v1 kernel{};
  OK(cuModuleGetFunction(&kernel.func, module, "store"));
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  void* parameters[] = {&out, &value};
  kernel.kernelParams = parameters;
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr, before = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
  OK(cuGraphAddEmptyNode(&before, graph, nullptr, 0));
  OK(cuGraphAddDependencies(graph, &before, &node, 1));
  std::size_t count = 0;
  OK(cuGraphNodeGetDependencies(node, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphNodeGetDependencies_v2(node, nullptr, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphNodeGetDependentNodes(before, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphGetEdges(graph, nullptr, nullptr, &count));
  HOLDS(count == 1);
  OK(cuGraphRemoveDependencies(graph, &before, &node, 1));
  OK(cuGraphGetEdges(graph, nullptr, nullptr, &count));
  HOLDS(count == 0);
  CUgraphNodeParams general{};
  CUgraphNode added = nullptr;
  general.type = CU_GRAPH_NODE_TYPE_EMPTY;
  OK(cuGraphAddNode(&added, graph, &node, 1, &general));
  value = 2;
  OK(cuGraphKernelNodeSetParams(node, &kernel));
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuMemcpyDtoH_v2(&seen, out, 4));
  HOLDS(seen == 2);
  value = 3;
  OK(cuGraphExecKernelNodeSetParams(executable, node, &kernel));
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuMemcpyDtoH_v2(&seen, out, 4));
  HOLDS(seen == 3);
  CUgraphNode wrong = nullptr;
  CUgraphExecUpdateResult result{};
  OK(cuGraphExecUpdate(executable, graph, &wrong, &result));
  HOLDS(result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  OK(cuGraphLaunch(executable, nullptr));
  OK(cuMemcpyDtoH_v2(&seen, out, 4));
  HOLDS(seen == 2);
}

void captures() {
  CUdeviceptr out = 0;
  CUstream stream = nullptr;
  OK(cuMemAlloc_v2(&out, 4));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream));
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0;
  OK(cuStreamGetCaptureInfo(stream, &status, &id));
  HOLDS(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0);
  OK(cuMemsetD8Async(out, 0, 4, stream));
  OK(cuStreamUpdateCaptureDependencies(stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(cuMemsetD8Async(out, 1, 4, stream));
  OK(cuStreamUpdateCaptureDependencies_v2(stream, nullptr, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  std::size_t edges = 1;
  OK(cuGraphGetEdges(graph, nullptr, nullptr, &edges));
  HOLDS(edges == 0);
}

void memory() {
  CUdeviceptr managed = 0;
  OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemAdvise(managed, 1 << 20, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
  int mostly = 0;
  OK(cuMemRangeGetAttribute(&mostly, sizeof(mostly), CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, 1 << 20));
  HOLDS(mostly == 1);
  OK(cuMemPrefetchAsync(managed, 1 << 20, 0, nullptr));
  OK(cuCtxSynchronize());
  CUdeviceptr opened = 0;
  HOLDS(cuIpcOpenMemHandle(&opened, CUipcMemHandle{}, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
}

}  // namespace

int main() {
  OK(cuInit(0));
  contexts();
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  graphs();
  captures();
  memory();
  std::printf("the same\n");
}
