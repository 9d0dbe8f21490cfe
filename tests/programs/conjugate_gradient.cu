// Conjugate gradients for a 2D Poisson problem in CSR form: by streams with scalars on the host, and by a graph.

#include <algorithm>
#include <cmath>
#include <vector>

#include "program.h"

namespace {

constexpr int block_threads = 128, dot_blocks = 16, launches_at_once = 8;
constexpr double tolerance = 1e-10;

struct Csr {
  int rows;
  int *first, *column;
  double* value;
};

/// What a graph's kernels know of the iteration.
struct Scalars {
  double residual, old_residual, curvature;
  unsigned int arrived;
};

struct Vectors {
  double *x, *r, *p, *q, *partial;
};

__global__ void multiply(Csr matrix, const double* in, double* out) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= matrix.rows) return;
  double sum = 0;
  for (int i = matrix.first[row]; i < matrix.first[row + 1]; ++i) sum += matrix.value[i] * in[matrix.column[i]];
  out[row] = sum;
}

/// The block that arrives last adds the sums of all blocks, always in the same order. `arrived` must be 0 before.
__global__ void dot(const double* a, const double* b, int count, double* partial, unsigned int* arrived, double* out) {
  __shared__ double sums[block_threads];
  __shared__ bool last;
  double sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += a[i] * b[i];
  sums[threadIdx.x] = sum;
  for (int half = block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sums[0];
    __threadfence();
    last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  double total = 0;
  for (int i = 0; i < gridDim.x; ++i) total += static_cast<volatile double*>(partial)[i];
  *out = total;
}

__device__ void step(Vectors v, int i, double alpha) {
  v.x[i] = fma(alpha, v.p[i], v.x[i]);
  v.r[i] = fma(-alpha, v.q[i], v.r[i]);
}

__global__ void step_by(Vectors v, int count, double alpha) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) step(v, i, alpha);
}

__global__ void turn_by(Vectors v, int count, double beta) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) v.p[i] = fma(beta, v.p[i], v.r[i]);
}

/// Once converged a graph changes nothing any more, however often it is launched again.
__global__ void step_or_rest(Vectors v, int count, const Scalars* scalars, double target) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && scalars->old_residual > target) step(v, i, scalars->old_residual / scalars->curvature);
}

__global__ void turn_or_rest(Vectors v, int count, const Scalars* scalars, double target) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && scalars->old_residual > target)
    v.p[i] = fma(scalars->residual / scalars->old_residual, v.p[i], v.r[i]);
}

template <typename T>
T* on_device(const std::vector<T>& source) {
  T* memory = nullptr;
  CUDA(cudaMalloc(&memory, source.size() * sizeof(T)));
  CUDA(cudaMemcpy(memory, source.data(), source.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

struct Problem {
  int rows, blocks;
  double target;
  Csr matrix;
  double* b;
  Vectors v;
  Scalars* scalars;

  void start(double* first_residual, cudaStream_t stream) const {
    CUDA(cudaMemsetAsync(v.x, 0, rows * sizeof(double), stream));
    CUDA(cudaMemsetAsync(scalars, 0, sizeof *scalars, stream));
    CUDA(cudaMemcpyAsync(v.r, b, rows * sizeof(double), cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaMemcpyAsync(v.p, b, rows * sizeof(double), cudaMemcpyDefault, stream));
    dot<<<dot_blocks, block_threads, 0, stream>>>(v.r, v.r, rows, v.partial, &scalars->arrived, &scalars->residual);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(first_residual, &scalars->residual, sizeof(double), cudaMemcpyDeviceToHost, stream));
  }
};

/// Every dot product comes to the host, and the host computes alpha and beta.
std::vector<double> solve_by_streams(const Problem& problem, double* pinned, int limit) {
  cudaStream_t stream, side;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  cudaEvent_t known, stepped, begin, end;
  for (cudaEvent_t* event : {&begin, &end}) CUDA(cudaEventCreate(event));
  for (cudaEvent_t* event : {&known, &stepped}) CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  const auto dot_to_host = [&](const double* a, const double* b, double* out) {
    CUDA(cudaMemsetAsync(&problem.scalars->arrived, 0, sizeof(unsigned int), side));
    dot<<<dot_blocks, block_threads, 0, side>>>(a, b, problem.rows, problem.v.partial, &problem.scalars->arrived,
                                                &problem.scalars->curvature);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(out, &problem.scalars->curvature, sizeof *out, cudaMemcpyDeviceToHost, side));
    CUDA(cudaEventRecord(known, side));
    CUDA(cudaEventSynchronize(known));
  };
  CUDA(cudaEventRecord(begin, stream));
  problem.start(&pinned[0], stream);
  CUDA(cudaStreamSynchronize(stream));
  std::vector<double> residuals{pinned[0]};
  while (residuals.back() > problem.target && int(residuals.size()) < limit) {
    multiply<<<problem.blocks, block_threads, 0, stream>>>(problem.matrix, problem.v.p, problem.v.q);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(stepped, stream));
    CUDA(cudaStreamWaitEvent(side, stepped));
    dot_to_host(problem.v.p, problem.v.q, &pinned[1]);
    step_by<<<problem.blocks, block_threads, 0, stream>>>(problem.v, problem.rows, residuals.back() / pinned[1]);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(stepped, stream));
    CUDA(cudaStreamWaitEvent(side, stepped));
    dot_to_host(problem.v.r, problem.v.r, &pinned[2]);
    turn_by<<<problem.blocks, block_threads, 0, stream>>>(problem.v, problem.rows, pinned[2] / residuals.back());
    CUDA(cudaGetLastError());
    residuals.push_back(pinned[2]);
  }
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  HOLDS(milliseconds > 0);
  HOLDS(cudaEventElapsedTime(&milliseconds, known, end) == cudaErrorInvalidResourceHandle);
  HOLDS(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  for (cudaEvent_t event : {known, stepped, begin, end}) CUDA(cudaEventDestroy(event));
  for (cudaStream_t each : {stream, side}) CUDA(cudaStreamDestroy(each));
  return residuals;
}

struct Journal {
  const double* latest;
  double target;
  std::vector<double> residuals;
};

void CUDART_CB note(void* data) {
  Journal& journal = *static_cast<Journal*>(data);
  if (journal.residuals.back() > journal.target) journal.residuals.push_back(*journal.latest);
}

template <typename... Arguments>
cudaGraphNode_t add_kernel(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, void* kernel, int blocks,
                           Arguments... arguments) {
  void* words[] = {&arguments...};
  cudaKernelNodeParams parameters{};
  parameters.func = kernel;
  parameters.gridDim = dim3(blocks);
  parameters.blockDim = dim3(block_threads);
  parameters.kernelParams = words;
  cudaGraphNode_t node = nullptr;
  CUDA(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &parameters));
  return node;
}

cudaGraphNode_t add_clearing(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, unsigned int* word) {
  cudaMemsetParams parameters{};
  parameters.dst = word;
  parameters.elementSize = sizeof *word;
  parameters.width = parameters.height = 1;
  cudaGraphNode_t node = nullptr;
  CUDA(cudaGraphAddMemsetNode(&node, graph, after.data(), after.size(), &parameters));
  return node;
}

cudaGraph_t captured_product(const Problem& problem, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  multiply<<<problem.blocks, block_threads, 0, stream>>>(problem.matrix, problem.v.p, problem.v.q);
  CUDA(cudaGetLastError());
  dot<<<dot_blocks, block_threads, 0, stream>>>(problem.v.p, problem.v.q, problem.rows, problem.v.partial,
                                                &problem.scalars->arrived, &problem.scalars->curvature);
  CUDA(cudaGetLastError());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA(cudaStreamIsCapturing(stream, &status));
  HOLDS(status == cudaStreamCaptureStatusActive);
  CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

/// One iteration is one graph. The second round leaves its residuals elsewhere, by changed parameters of two nodes.
std::vector<double> solve_by_graph(const Problem& problem, double* pinned, int limit) {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr, product = captured_product(problem, stream), inner = nullptr;
  CUDA(cudaGraphCreate(&graph, 0));
  Scalars* scalars = problem.scalars;
  Journal journals[] = {{&pinned[0], problem.target, {}}, {&pinned[1], problem.target, {}}};
  cudaGraphNode_t keep = nullptr, child = nullptr, fetch = nullptr, host = nullptr;
  const cudaGraphNode_t clear = add_clearing(graph, {}, &scalars->arrived);
  CUDA(cudaGraphAddMemcpyNode1D(&keep, graph, nullptr, 0, &scalars->old_residual, &scalars->residual, sizeof(double),
                                cudaMemcpyDeviceToDevice));
  CUDA(cudaGraphAddChildGraphNode(&child, graph, &clear, 1, product));
  CUDA(cudaGraphChildGraphNodeGetGraph(child, &inner));
  HOLDS(inner != product);
  CUDA(cudaGraphDestroy(product));
  const cudaGraphNode_t stepped = add_kernel(graph, {child, keep}, (void*)step_or_rest, problem.blocks, problem.v,
                                             problem.rows, (const Scalars*)scalars, problem.target);
  const cudaGraphNode_t clear_again = add_clearing(graph, {child}, &scalars->arrived);
  const cudaGraphNode_t squared =
      add_kernel(graph, {stepped, clear_again}, (void*)dot, dot_blocks, (const double*)problem.v.r,
                 (const double*)problem.v.r, problem.rows, problem.v.partial, &scalars->arrived, &scalars->residual);
  const cudaGraphNode_t turned = add_kernel(graph, {squared}, (void*)turn_or_rest, problem.blocks, problem.v,
                                            problem.rows, (const Scalars*)scalars, problem.target);
  CUDA(cudaGraphAddMemcpyNode1D(&fetch, graph, &squared, 1, &pinned[0], &scalars->residual, sizeof(double),
                                cudaMemcpyDeviceToHost));
  cudaHostNodeParams told{note, &journals[0]};
  CUDA(cudaGraphAddHostNode(&host, graph, &fetch, 1, &told));

  size_t nodes = 0, edges = 0, ends = 1;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  CUDA(cudaGraphNodeGetDependentNodes(turned, nullptr, nullptr, &ends));
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CUDA(cudaGraphNodeGetType(child, &type));
  HOLDS(nodes == 9 && edges == 9 && ends == 0 && type == cudaGraphNodeTypeGraph);
  CUDA(cudaGraphGetNodes(inner, nullptr, &nodes));
  HOLDS(nodes == 2);
  HOLDS(cudaGraphAddDependencies(graph, &host, &host, nullptr, 1) == cudaErrorInvalidValue);
  HOLDS(cudaGetLastError() == cudaErrorInvalidValue);

  cudaGraphExec_t runnable = nullptr;
  CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  CUDA(cudaGraphUpload(runnable, stream));
  for (int round = 0; round < 2; ++round) {
    Journal& journal = journals[round];
    if (round == 1) {
      told.userData = &journal;
      CUDA(cudaGraphExecHostNodeSetParams(runnable, host, &told));
      CUDA(cudaGraphExecMemcpyNodeSetParams1D(runnable, fetch, &pinned[1], &scalars->residual, sizeof(double),
                                              cudaMemcpyDeviceToHost));
    }
    problem.start(&pinned[2], stream);
    CUDA(cudaStreamSynchronize(stream));
    journal.residuals = {pinned[2]};
    while (journal.residuals.back() > problem.target && int(journal.residuals.size()) < limit) {
      for (int i = 0; i < launches_at_once; ++i) CUDA(cudaGraphLaunch(runnable, stream));
      CUDA(cudaStreamSynchronize(stream));
      HOLDS(pinned[round] <= problem.target || pinned[round] == journal.residuals.back());
    }
  }
  HOLDS(journals[0].residuals == journals[1].residuals);
  CUDA(cudaGraphExecDestroy(runnable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  return journals[0].residuals;
}

}  // namespace

int main(int count, char** words) {
  const int scale = program::scale(count, words), side = 64 * int(std::sqrt(double(std::min(scale, 64)))),
            rows = side * side;
  std::vector<int> first{0}, column;
  std::vector<double> value, b(rows), truth(rows);
  for (int i = 0; i < rows; ++i) truth[i] = std::sin(0.1 * (i % side)) + ((i / side) * 7 % 13) / 13.0;
  for (int row = 0; row < rows; ++row) {
    const int x = row % side, y = row / side;
    const auto add = [&](bool inside, int where, double entry) {
      if (!inside) return;
      column.push_back(where);
      value.push_back(entry);
      b[row] += entry * truth[where];
    };
    add(y > 0, row - side, -1), add(x > 0, row - 1, -1), add(true, row, 4);
    add(x < side - 1, row + 1, -1), add(y < side - 1, row + side, -1);
    first.push_back(int(column.size()));
  }
  const std::vector<double> zeros(rows);
  double square = 0;
  for (double entry : b) square += entry * entry;
  Problem problem{rows, (rows + block_threads - 1) / block_threads, square * tolerance * tolerance, {}, on_device(b)};
  problem.matrix = {rows, on_device(first), on_device(column), on_device(value)};
  problem.v = {on_device(zeros), on_device(zeros), on_device(zeros), on_device(zeros), on_device(zeros)};
  CUDA(cudaMalloc(&problem.scalars, sizeof(Scalars)));
  double* pinned = nullptr;
  CUDA(cudaMallocHost(&pinned, 3 * sizeof(double)));
  cudaFuncAttributes attributes{};
  CUDA(cudaFuncGetAttributes(&attributes, dot));
  HOLDS(attributes.sharedSizeBytes >= block_threads * sizeof(double) && attributes.maxThreadsPerBlock >= block_threads);

  std::vector<double> residuals[2], solutions[2];
  for (int variant = 0; variant < 2; ++variant) {
    residuals[variant] =
        variant == 0 ? solve_by_streams(problem, pinned, 20 * side) : solve_by_graph(problem, pinned, 20 * side);
    solutions[variant].resize(rows);
    CUDA(cudaMemcpy(solutions[variant].data(), problem.v.x, rows * sizeof(double), cudaMemcpyDeviceToHost));
  }
  // Both variants do the same operations in the same order, so they agree bit by bit.
  HOLDS(residuals[0] == residuals[1] && solutions[0] == solutions[1]);
  HOLDS(residuals[0].back() <= problem.target && int(residuals[0].size()) > side / 2);
  // The smallest eigenvalue is about 2 (pi / side)^2, so an error is at most that much larger than its residual.
  const double bound = 1.1 * std::sqrt(problem.target) * side * side / (2 * 9.8) + 1e-9;
  double error = 0;
  for (int i = 0; i < rows; ++i) error += (solutions[0][i] - truth[i]) * (solutions[0][i] - truth[i]);
  HOLDS(std::sqrt(error) < bound);
  for (void* memory : {(void*)problem.b, (void*)problem.matrix.first, (void*)problem.matrix.column,
                       (void*)problem.matrix.value, (void*)problem.v.x, (void*)problem.v.r, (void*)problem.v.p,
                       (void*)problem.v.q, (void*)problem.v.partial, (void*)problem.scalars})
    CUDA(cudaFree(memory));
  CUDA(cudaFreeHost(pinned));
  char line[120];
  std::snprintf(line, sizeof line, "%d unknowns solved twice in %zu iterations", rows, residuals[0].size() - 1);
  return program::passed(line);
}
