#include "api/entry.h"  // first: it makes cuda.h declare the exported names

#include <algorithm>

#include "common/limits.h"
#include "driver/module.h"
#include "driver/occupancy.h"

using namespace fargpu::softgpu;

namespace {

CUresult active_blocks(int* result, CUfunction handle, int block_size, size_t dynamic_bytes, unsigned flags) {
  return entry([&] {
    require(result != nullptr && block_size > 0);
    require(flags == CU_OCCUPANCY_DEFAULT || flags == CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE);
    auto function = find_function(handle);
    int threads_max = function->settings().get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function->kernel());
    *result = block_size > threads_max ? 0
                                       : static_cast<int>(blocks_per_multiprocessor(
                                             function->kernel(), static_cast<uint64_t>(block_size), dynamic_bytes));
  });
}

/// The block size that fills a multiprocessor best, the largest of equals.
CUresult best_block_size(int* grid_size, int* block_size, CUfunction handle, CUoccupancyB2DSize dynamic_bytes_for,
                         size_t dynamic_bytes, int block_size_limit, unsigned flags) {
  return entry([&] {
    require(grid_size != nullptr && block_size != nullptr && block_size_limit >= 0);
    require(flags == CU_OCCUPANCY_DEFAULT || flags == CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE);
    auto context = current_context();
    auto function = find_function(handle);
    int most = function->settings().get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function->kernel());
    if (block_size_limit != 0) most = std::min(most, block_size_limit);
    int best_threads = 0, best_blocks = 0;
    *block_size = 0;
    auto consider = [&](int size) {
      size_t bytes = dynamic_bytes_for != nullptr ? dynamic_bytes_for(size) : dynamic_bytes;
      auto blocks = static_cast<int>(blocks_per_multiprocessor(function->kernel(), static_cast<uint64_t>(size), bytes));
      if (blocks * size <= best_threads) return;
      best_threads = blocks * size;
      best_blocks = blocks;
      *block_size = size;
    };
    if (most % 32 != 0) consider(most);
    for (int size = most / 32 * 32; size > 0; size -= 32) consider(size);
    *grid_size = best_blocks * context->device().multiprocessor_count();
  });
}

}  // namespace

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block_size,
                                                     size_t dynamic_bytes) {
  return active_blocks(blocks, function, block_size, dynamic_bytes, CU_OCCUPANCY_DEFAULT);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int block_size,
                                                              size_t dynamic_bytes, unsigned int flags) {
  return active_blocks(blocks, function, block_size, dynamic_bytes, flags);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, CUfunction function,
                                          CUoccupancyB2DSize dynamic_bytes_for, size_t dynamic_bytes,
                                          int block_size_limit) {
  return best_block_size(grid_size, block_size, function, dynamic_bytes_for, dynamic_bytes, block_size_limit,
                         CU_OCCUPANCY_DEFAULT);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size, CUfunction function,
                                                   CUoccupancyB2DSize dynamic_bytes_for, size_t dynamic_bytes,
                                                   int block_size_limit, unsigned int flags) {
  return best_block_size(grid_size, block_size, function, dynamic_bytes_for, dynamic_bytes, block_size_limit, flags);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int block_size) {
  return entry([&] {
    require(bytes != nullptr && blocks > 0 && block_size > 0);
    const Routine& kernel = find_function(handle)->kernel();
    // The largest amount with which that many blocks still fit.
    size_t fits = 0, too_much = shared_bytes_per_block_optin + 1;
    auto has_room = [&](size_t amount) {
      return amount + kernel.static_shared_bytes <= shared_bytes_per_block_optin &&
             blocks_per_multiprocessor(kernel, static_cast<uint64_t>(block_size), amount) >=
                 static_cast<uint32_t>(blocks);
    };
    require(has_room(0));
    while (too_much - fits > 1) {
      size_t middle = fits + (too_much - fits) / 2;
      (has_room(middle) ? fits : too_much) = middle;
    }
    *bytes = fits;
  });
}

namespace {

/// Cluster dimensions of a launch configuration; one block if it names none.
uint64_t cluster_blocks(const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& d = config.attrs[i].value.clusterDim;
      return uint64_t{d.x} * d.y * d.z;
    }
  return 1;
}

}  // namespace

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
  return entry([&] {
    require(size != nullptr && config != nullptr);
    auto function = find_function(handle);
    *size = static_cast<int>(function->settings().non_portable_cluster_allowed ? cluster_blocks_max
                                                                               : cluster_blocks_portable);
  });
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle, const CUlaunchConfig* config) {
  return entry([&] {
    require(clusters != nullptr && config != nullptr);
    auto function = find_function(handle);
    uint64_t blocks = cluster_blocks(*config);
    require(blocks != 0 && blocks <= cluster_blocks_max, CUDA_ERROR_INVALID_CLUSTER_SIZE);
    uint64_t threads = uint64_t{config->blockDimX} * config->blockDimY * config->blockDimZ;
    uint64_t resident = uint64_t{blocks_per_multiprocessor(function->kernel(), threads, config->sharedMemBytes)} *
                        static_cast<uint64_t>(current_context()->device().multiprocessor_count());
    *clusters = static_cast<int>(resident / blocks);
  });
}
