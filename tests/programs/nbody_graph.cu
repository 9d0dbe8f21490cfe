// Gravity among bodies: time steps captured in a graph, whose time step and copies are changed between launches.

#include "program.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

constexpr int block_size = 64;
constexpr int steps_in_graph = 4;
constexpr int launches = 12;
constexpr float softening = 0.01F;

// Multiplications and additions are rounded one by one, on both sides, so that GPU and CPU agree bit by bit.
#ifdef __CUDA_ARCH__
__device__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ float inverse_root(float a) { return __fdiv_rn(1.0F, __fsqrt_rn(a)); }
#else
__host__ __device__ float times(float a, float b) { return a * b; }
__host__ __device__ float plus(float a, float b) { return a + b; }
__host__ __device__ float inverse_root(float a) { return 1.0F / std::sqrt(a); }
#endif

__host__ __device__ float squared(float x, float y, float z) {
  return plus(plus(times(x, x), times(y, y)), times(z, z));
}

/// Adds to an acceleration what a body at `there` contributes; the mass of a body is its w.
__host__ __device__ void attract(float4 here, float4 there, float3& sum) {
  const float x = plus(there.x, -here.x), y = plus(there.y, -here.y), z = plus(there.z, -here.z);
  const float inverse = inverse_root(plus(squared(x, y, z), softening));
  const float pull = times(there.w, times(inverse, times(inverse, inverse)));
  sum = {plus(sum.x, times(x, pull)), plus(sum.y, times(y, pull)), plus(sum.z, times(z, pull))};
}

__host__ __device__ float4 moved(float4 from, float by_x, float by_y, float by_z, float seconds) {
  return {plus(from.x, times(by_x, seconds)), plus(from.y, times(by_y, seconds)), plus(from.z, times(by_z, seconds)),
          from.w};
}

__global__ void kick(const float4* positions, float4* velocities, int bodies, float seconds) {
  __shared__ float4 tile[block_size];
  const int i = blockIdx.x * block_size + threadIdx.x;
  float3 sum = {0, 0, 0};
  for (int first = 0; first < bodies; first += block_size) {
    tile[threadIdx.x] = positions[first + threadIdx.x];
    __syncthreads();
    for (const float4& there : tile) attract(positions[i], there, sum);
    __syncthreads();
  }
  velocities[i] = moved(velocities[i], sum.x, sum.y, sum.z, seconds);
}

__global__ void drift(float4* positions, const float4* velocities, float seconds) {
  const int i = blockIdx.x * block_size + threadIdx.x;
  positions[i] = moved(positions[i], velocities[i].x, velocities[i].y, velocities[i].z, seconds);
}

__global__ void kinetic_energy(const float4* positions, const float4* velocities, double* sums) {
  __shared__ double shared[block_size];
  const int i = blockIdx.x * block_size + threadIdx.x;
  shared[threadIdx.x] = 0.5 * positions[i].w * squared(velocities[i].x, velocities[i].y, velocities[i].z);
  for (int width = block_size / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) shared[threadIdx.x] += shared[threadIdx.x + width];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = shared[0];
}

/// What the host is told at the end of each graph: the energies of all blocks, which it sums up.
struct Journal {
  const double* sums;
  int blocks;
  std::vector<double> energies;
};

void CUDART_CB write_down(void* data) {
  auto* journal = static_cast<Journal*>(data);
  double energy = 0;
  for (int block = 0; block < journal->blocks; ++block) energy += journal->sums[block];
  journal->energies.push_back(energy);
}

struct Simulation {
  int bodies;
  float4 *positions, *velocities, *trajectory;
  double *sums, *pinned_sums;
  Journal journal;
};

cudaGraph_t captured(Simulation& s, cudaStream_t stream, float seconds, int steps) {
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const int blocks = s.bodies / block_size;
  for (int step = 0; step < steps; ++step) {
    kick<<<blocks, block_size, 0, stream>>>(s.positions, s.velocities, s.bodies, seconds);
    CUDA(cudaGetLastError());
    drift<<<blocks, block_size, 0, stream>>>(s.positions, s.velocities, seconds);
    CUDA(cudaGetLastError());
  }
  const size_t bytes = s.bodies * sizeof(float4);
  CUDA(cudaMemcpyAsync(s.trajectory, s.positions, bytes, cudaMemcpyDeviceToDevice, stream));
  kinetic_energy<<<blocks, block_size, 0, stream>>>(s.positions, s.velocities, s.sums);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpyAsync(s.pinned_sums, s.sums, blocks * sizeof(double), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaLaunchHostFunc(stream, write_down, &s.journal));
  cudaStreamCaptureStatus status;
  CUDA(cudaStreamIsCapturing(stream, &status));
  HOLDS(status == cudaStreamCaptureStatusActive);
  cudaGraph_t graph;
  CUDA(cudaStreamEndCapture(stream, &graph));
  return graph;
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, cudaGraphNodeType wanted) {
  size_t count = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> all(count), found;
  CUDA(cudaGraphGetNodes(graph, all.data(), &count));
  for (cudaGraphNode_t node : all) {
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(node, &type));
    if (type == wanted) found.push_back(node);
  }
  return found;
}

/// The node that copies within the device, into the trajectory.
cudaGraphNode_t trajectory_node(cudaGraph_t graph, const Simulation& s) {
  for (cudaGraphNode_t node : nodes_of(graph, cudaGraphNodeTypeMemcpy)) {
    cudaMemcpy3DParms copy;
    CUDA(cudaGraphMemcpyNodeGetParams(node, &copy));
    if (copy.srcPtr.ptr == s.positions) return node;
  }
  HOLDS(!"the graph has a node that copies the positions");
  return nullptr;
}

/// Changes the time step of each kernel node in place, and says how many nodes there were.
int change_time_step(cudaGraph_t graph, cudaGraphExec_t runnable, float seconds) {
  int changed = 0;
  for (cudaGraphNode_t node : nodes_of(graph, cudaGraphNodeTypeKernel)) {
    cudaKernelNodeParams params;
    CUDA(cudaGraphKernelNodeGetParams(node, &params));
    const bool kicks = params.func == reinterpret_cast<void*>(kick);
    const bool drifts = params.func == reinterpret_cast<void*>(drift);
    if (!kicks && !drifts) continue;
    HOLDS(params.blockDim.x == block_size && params.sharedMemBytes == 0);
    void* words[4];
    for (int i = 0; i < (kicks ? 3 : 2); ++i) words[i] = params.kernelParams[i];
    words[kicks ? 3 : 2] = &seconds;
    params.kernelParams = words;
    CUDA(cudaGraphExecKernelNodeSetParams(runnable, node, &params));
    ++changed;
  }
  return changed;
}

float random_float(uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<float>(state >> 40) / (1 << 24) - 0.5F;
}

void step_on_cpu(std::vector<float4>& positions, std::vector<float4>& velocities, float seconds) {
  for (size_t i = 0; i < positions.size(); ++i) {
    float3 sum = {0, 0, 0};
    for (const float4& there : positions) attract(positions[i], there, sum);
    velocities[i] = moved(velocities[i], sum.x, sum.y, sum.z, seconds);
  }
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = moved(positions[i], velocities[i].x, velocities[i].y, velocities[i].z, seconds);
}

bool equal(const float4& a, const float4& b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

}  // namespace

int main(int count, char** words) {
  const int bodies = block_size * static_cast<int>(8 * std::sqrt(program::scale(count, words)));
  const size_t bytes = bodies * sizeof(float4);
  uint64_t seed = 42;
  std::vector<float4> positions(bodies), velocities(bodies);
  for (float4& p : positions) p = {random_float(seed), random_float(seed), random_float(seed), 1.0F / bodies};
  for (float4& v : velocities) v = {random_float(seed), random_float(seed), random_float(seed), 0};

  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Simulation s = {};
  s.bodies = bodies;
  CUDA(cudaMallocAsync(&s.positions, bytes, stream));
  CUDA(cudaMallocAsync(&s.velocities, bytes, stream));
  CUDA(cudaMallocAsync(&s.trajectory, bytes * launches, stream));
  CUDA(cudaMallocAsync(&s.sums, bodies / block_size * sizeof(double), stream));
  CUDA(cudaMallocHost(&s.pinned_sums, bodies / block_size * sizeof(double)));
  s.journal = {s.pinned_sums, bodies / block_size, {}};
  CUDA(cudaMemcpyAsync(s.positions, positions.data(), bytes, cudaMemcpyHostToDevice, stream));
  CUDA(cudaMemcpyAsync(s.velocities, velocities.data(), bytes, cudaMemcpyHostToDevice, stream));

  float seconds[launches];
  for (int i = 0; i < launches; ++i) seconds[i] = i < 3 ? 0.01F : i < 6 ? 0.005F : i < 9 ? 0.0025F : 0.004F;
  const int steps_of_last = steps_in_graph / 2;
  cudaGraph_t graph = captured(s, stream, seconds[0], steps_in_graph);
  cudaGraphExec_t runnable, older = nullptr;
  CUDA(cudaGraphInstantiate(&runnable, graph, 0));
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventRecord(begin, stream));
  // Launches are only queued here: a change of the runnable graph holds for later launches, never for queued ones.
  // Its nodes are named by those of the graph that it was made from, also after an update from another one.
  for (int i = 0; i < launches; ++i) {
    if (i == 3 || i == 9) HOLDS(change_time_step(graph, runnable, seconds[i]) == 2 * steps_in_graph);
    if (i == 6) {
      cudaGraph_t again = captured(s, stream, seconds[i], steps_in_graph);
      cudaGraphExecUpdateResultInfo info;
      CUDA(cudaGraphExecUpdate(runnable, again, &info));
      HOLDS(info.result == cudaGraphExecUpdateSuccess);
      CUDA(cudaGraphDestroy(again));
    }
    if (i == launches - 1) {
      cudaGraph_t shorter = captured(s, stream, seconds[i], steps_of_last);
      cudaGraphExecUpdateResultInfo info;
      HOLDS(cudaGraphExecUpdate(runnable, shorter, &info) == cudaErrorGraphExecUpdateFailure);
      HOLDS(cudaGetLastError() == cudaErrorGraphExecUpdateFailure && cudaGetLastError() == cudaSuccess);
      HOLDS(info.result == cudaGraphExecUpdateErrorTopologyChanged && info.errorNode == nullptr);
      CUDA(cudaGraphDestroy(std::exchange(graph, shorter)));
      older = runnable;  // of which launches may still run
      CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    }
    CUDA(cudaGraphExecMemcpyNodeSetParams1D(runnable, trajectory_node(graph, s), s.trajectory + i * bodies, s.positions,
                                            bytes, cudaMemcpyDeviceToDevice));
    CUDA(cudaGraphLaunch(runnable, stream));
  }
  CUDA(cudaEventRecord(end, stream));
  std::vector<float4> trajectory(static_cast<size_t>(bodies) * launches);
  CUDA(cudaMemcpyAsync(trajectory.data(), s.trajectory, bytes * launches, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  float milliseconds = -1;
  CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  HOLDS(milliseconds > 0);
  HOLDS(s.journal.energies.size() == launches);

  for (int i = 0; i < launches; ++i) {
    const int steps = i == launches - 1 ? steps_of_last : steps_in_graph;
    for (int step = 0; step < steps; ++step) step_on_cpu(positions, velocities, seconds[i]);
    double energy = 0;
    for (int b = 0; b < bodies; ++b) {
      HOLDS(equal(trajectory[static_cast<size_t>(i) * bodies + b], positions[b]));
      energy += 0.5 * positions[b].w * squared(velocities[b].x, velocities[b].y, velocities[b].z);
    }
    // The terms are equal; only the order of the additions differs, by some 1e-16 of the sum for each body.
    HOLDS(std::abs(s.journal.energies[i] - energy) <= 1e-12 * energy);
  }
  CUDA(cudaGraphExecDestroy(runnable));
  CUDA(cudaGraphExecDestroy(older));
  CUDA(cudaGraphDestroy(graph));
  for (void* memory : {static_cast<void*>(s.positions), static_cast<void*>(s.velocities),
                       static_cast<void*>(s.trajectory), static_cast<void*>(s.sums)})
    CUDA(cudaFreeAsync(memory, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaFreeHost(s.pinned_sums));
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaStreamDestroy(stream));
  char line[120];
  std::snprintf(line, sizeof line, "%d bodies, %d graphs, kinetic energy %.6f to %.6f", bodies, launches,
                s.journal.energies.front(), s.journal.energies.back());
  return program::passed(line);
}
