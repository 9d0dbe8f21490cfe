// Occupancy questions whose arguments need hand work. CUDA Driver API, "Occupancy".

#include <algorithm>

#include "calls_module.capnp.h"
#include "client/entry.h"
#include "client/launch_codec.h"
#include "client/remote_call.h"
#include "client/session.h"
#include "client_hand.h"
#include "operations.capnp.h"

namespace fargpu::client::hand {
namespace {

CUresult active_blocks(Thread& thread, const Function& function, int block, std::size_t shared_bytes, unsigned flags, int& blocks) {
  using Request = wire::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
  RemoteCall<Request> call(thread, Opcode::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, ContextNeed::current);
  if (!call) return call.error();
  auto in = call.in();
  in.setFunc(function.handle.value());
  in.setBlockSize(block);
  in.setDynamicSMemSize(shared_bytes);
  in.setFlags(flags);
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS)
    blocks = call.out<wire::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsReply>().getNumBlocks();
  return result;
}

CUresult attribute(Thread& thread, CUfunction f, CUfunction_attribute which, int& value) {
  return cuFuncGetAttribute(thread, &value, which, f);
}

// Launches with such clusters will be accepted.
void learn_fit(Function& function, const Context& context, const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = config.attrs[i].value.clusterDim;
    const std::uint64_t fit = fit_of(context, {config.blockDimX, config.blockDimY, config.blockDimZ}, config.sharedMemBytes, {cluster.x, cluster.y, cluster.z});
    if (!function.launch_known(fit)) function.learn_launch(fit);
  }
}

CUresult cluster_question(Thread& thread, int* value, CUfunction f, const CUlaunchConfig* config, bool potential) {
  if (!value || !config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  Function* const function = thread.session().functions().find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  RemoteCall<wire::ClusterOccupancy> call(thread, Opcode::clusterOccupancy, ContextNeed::current);
  if (!call) return call.error();
  auto in = call.in();
  in.setFunction(function->handle.value());
  in.setGridX(config->gridDimX);
  in.setGridY(config->gridDimY);
  in.setGridZ(config->gridDimZ);
  in.setBlockX(config->blockDimX);
  in.setBlockY(config->blockDimY);
  in.setBlockZ(config->blockDimZ);
  in.setSharedBytes(config->sharedMemBytes);
  in.setPotential(potential);
  if (const CUresult bad = write_attributes(thread, config->attrs, config->numAttrs, in.initAttributes(config->numAttrs));
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult result = call.recall();
  if (result != CUDA_SUCCESS) return result;
  *value = call.out<wire::ClusterOccupancyReply>().getValue();
  if (!potential && *value > 0) learn_fit(*function, *thread.context(), *config);
  return result;
}

}  // namespace

// The block size that keeps most threads active on a multiprocessor: the sizes are tried from the largest down, in steps of a
// warp, each with the shared memory that the program's function says it needs.
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(Thread& thread, int* min_grid, int* block_size, CUfunction f,
                                                   CUoccupancyB2DSize shared_of_block, std::size_t shared_bytes, int limit,
                                                   unsigned flags) {
  if (!min_grid || !block_size) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = thread.session().functions().find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const Device& device = thread.session().facts().devices[static_cast<std::size_t>(context->device)];
  const int warp = device.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  const int threads_max = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  int block_max = 0;
  if (const CUresult bad = attribute(thread, f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, block_max); bad != CUDA_SUCCESS) return bad;
  block_max = std::min(block_max, device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  if (limit > 0) block_max = std::min(block_max, limit);
  int best_block = 0, best_blocks = 0;
  // A limit that is no multiple of a warp is itself the first candidate.
  for (int block = block_max; block > 0; block = (block - 1) / warp * warp) {
    const std::size_t shared = shared_of_block ? shared_of_block(block) : shared_bytes;
    int blocks = 0;
    if (const CUresult bad = active_blocks(thread, *function, block, shared, flags, blocks); bad != CUDA_SUCCESS) return bad;
    if (blocks * block > best_blocks * best_block) {
      best_block = block;
      best_blocks = blocks;
    }
    if (best_blocks * best_block == threads_max) break;  // it cannot be better
  }
  *block_size = best_block;
  *min_grid = best_blocks * device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(Thread& thread, int* min_grid, int* block_size, CUfunction f,
                                          CUoccupancyB2DSize shared_of_block, std::size_t shared_bytes, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(thread, min_grid, block_size, f, shared_of_block, shared_bytes, limit, 0);
}

CUresult cuOccupancyMaxActiveClusters(Thread& thread, int* clusters, CUfunction f, const CUlaunchConfig* config) {
  return cluster_question(thread, clusters, f, config, false);
}

CUresult cuOccupancyMaxPotentialClusterSize(Thread& thread, int* size, CUfunction f, const CUlaunchConfig* config) {
  return cluster_question(thread, size, f, config, true);
}

}  // namespace fargpu::client::hand
