// Occupancy questions whose arguments need hand work. CUDA Driver API, "Occupancy".

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>

#include "calls_module.capnp.h"
#include "client/session/arguments.h"
#include "client/session/entry.h"
#include "client/code/launch_attributes.h"
#include "client/code/launch_class.h"
#include "client/call/remote_call.h"
#include "client/session/session.h"
#include "client/call/stats.h"
#include "client_hand.h"
#include "cuda_facts.h"
#include "operations.capnp.h"
#include "protocol/launch_shape.h"

namespace fargpu::client::hand {
namespace {

CUresult active_blocks(Thread& thread, const Function& function, int block, std::size_t shared_bytes, unsigned flags,
                       int& blocks) {
  using Request = wire::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
  RemoteCall<Request> call(thread);
  auto in = call.in();
  in.setFunc(function.handle.value());
  in.setBlockSize(block);
  in.setDynamicSMemSize(shared_bytes);
  in.setFlags(flags);
  call.about(function.handle);
  const CUresult result = call.recall();
  if (result == CUDA_SUCCESS) blocks = call.out().getNumBlocks();
  return result;
}

CUresult attribute(Thread& thread, CUfunction f, CUfunction_attribute which, int& value) {
  return cuFuncGetAttribute(thread, &value, which, f);
}

// Launches with such clusters will be accepted.
void learn_fit(Function& function, std::uint64_t changes, const Context& context, const CUlaunchConfig& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = config.attrs[i].value.clusterDim;
    const std::uint64_t fit = fit_of(context, {config.blockDimX, config.blockDimY, config.blockDimZ},
                                     config.sharedMemBytes, {cluster.x, cluster.y, cluster.z});
    if (!function.launch_known(fit)) function.learn_launch(fit, changes);
  }
}

/// A question about clusters, in the form in which its answer is kept.
class ClusterQuestion {
 public:
  using Size = std::array<unsigned, 3>;

  ClusterQuestion(const Context& context, const CUlaunchConfig& config, bool potential)
      : grid_{config.gridDimX, config.gridDimY, config.gridDimZ} {
    add(context.id());
    add(potential);
    add(config.sharedMemBytes);
    for (const unsigned size : {config.blockDimX, config.blockDimY, config.blockDimZ}) add(size);
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const CUlaunchAttribute& attribute = config.attrs[i];
      const LaunchAttributeFacts* const facts = launch_attribute_facts(attribute.id);
      add(attribute.id);
      if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && cluster_ == Size{})
        cluster_ = {attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z};
      else if (facts) rest_.append(reinterpret_cast<const char*>(&attribute.value), facts->bytes);
    }
  }
  std::string key() const { return key(grid_, cluster_); }
  /// Of the same question about other clusters, as ClusterOccupancy has it.
  std::string key(const Size& cluster) const { return key(grid_ == cluster_ ? cluster : grid_, cluster); }

 private:
  template <class Number>
  void add(Number number) {
    rest_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  std::string key(const Size& grid, const Size& cluster) const {
    std::string key(reinterpret_cast<const char*>(grid.data()), sizeof(grid));
    key.append(reinterpret_cast<const char*>(cluster.data()), sizeof(cluster));
    return key + rest_;
  }

  Size grid_;
  Size cluster_{};  // zeros where the question names none
  std::string rest_;
};

CUresult cluster_question(Thread& thread, int* value, CUfunction f, const CUlaunchConfig* config, bool potential) {
  constexpr std::size_t answers_max = 1024;  // that are kept of one function
  if (!value || !f || !config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const StreamUse stream(thread, config->hStream);
  if (!stream) return stream.error();
  Context& context = *stream->context;
  RemoteCall<wire::ClusterOccupancy> call(thread, &context);
  if (const CUresult bad = call.refusal(); bad != CUDA_SUCCESS) return bad;
  const ClusterQuestion question(context, *config, potential);
  std::uint64_t changes = 0;
  const auto take = [&](int answer) {
    *value = answer;
    if (!potential && answer > 0) learn_fit(*function, changes, context, *config);
    return CUDA_SUCCESS;
  };
  std::optional<int> known;
  {
    const std::lock_guard lock(function->mutex);
    changes = function->changes;
    if (const auto found = function->clusters.find(question.key()); found != function->clusters.end())
      known = found->second;
  }
  if (known) {
    stats::of(Opcode::clusterOccupancy).recalled.fetch_add(1, std::memory_order_relaxed);
    return take(*known);
  }
  auto in = call.in();
  in.setFunction(function->handle.value());
  write_shape(*config, in);
  in.setPotential(potential);
  if (const CUresult bad = write_attributes(session_of(thread).events, config->attrs, config->numAttrs,
                                            in.initAttributes(config->numAttrs));
      bad != CUDA_SUCCESS)
    return bad;
  const CUresult result = call.wait();
  if (result != CUDA_SUCCESS) return result;
  const auto out = call.out();
  {
    const std::lock_guard lock(function->mutex);
    if (function->changes == changes) {  // else it may be an answer about what was before
      if (function->clusters.size() >= answers_max) function->clusters.clear();
      function->clusters[question.key()] = out.getValue();
      for (const auto other : out.getOthers())
        if (!potential && function->clusters.size() < answers_max)
          function->clusters.emplace(question.key({other.getX(), other.getY(), other.getZ()}), other.getValue());
    }
  }
  return take(out.getValue());
}

}  // namespace

// The block size that keeps most threads active on a multiprocessor: the sizes are tried from the largest down, in
// steps of a warp, each with the shared memory that the program's function says it needs.
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(Thread& thread, int* min_grid, int* block_size, CUfunction f,
                                                   CUoccupancyB2DSize shared_of_block, std::size_t shared_bytes,
                                                   int limit, unsigned flags) {
  if (!min_grid || !block_size || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  const Function* const function = session_of(thread).functions.find(f);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const Context* const context = thread.context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  const Device& device = session_of(thread).terms.facts.at(context->device);
  const int warp = device.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  const int threads_max = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  int block_max = 0;
  if (const CUresult bad = attribute(thread, f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, block_max);
      bad != CUDA_SUCCESS)
    return bad;
  block_max = std::min(block_max, device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  if (limit > 0) block_max = std::min(block_max, limit);
  int best_block = 0, best_blocks = 0;
  // A limit that is no multiple of a warp is itself the first candidate.
  for (int block = block_max; block > 0; block = (block - 1) / warp * warp) {
    const std::size_t shared = shared_of_block ? shared_of_block(block) : shared_bytes;
    int blocks = 0;
    if (const CUresult bad = active_blocks(thread, *function, block, shared, flags, blocks); bad != CUDA_SUCCESS)
      return bad;
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

CUresult cuOccupancyMaxActiveClusters(Thread& thread, int* clusters, CUfunction f, const CUlaunchConfig* config) {
  return cluster_question(thread, clusters, f, config, false);
}

CUresult cuOccupancyMaxPotentialClusterSize(Thread& thread, int* size, CUfunction f, const CUlaunchConfig* config) {
  return cluster_question(thread, size, f, config, true);
}

}  // namespace fargpu::client::hand
