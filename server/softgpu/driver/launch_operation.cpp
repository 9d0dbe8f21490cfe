#include "driver/launch_operation.h"

#include <algorithm>
#include <cstring>

#include "common/limits.h"
#include "common/log.h"
#include "driver/driver.h"
#include "driver/occupancy.h"
#include "exec/executor.h"

namespace fargpu::softgpu {
namespace {

bool is_within(const ThreadDimensions& d, const uint32_t (&limit)[3]) {
  return d.x != 0 && d.y != 0 && d.z != 0 && d.x <= limit[0] && d.y <= limit[1] && d.z <= limit[2];
}

}  // namespace

KernelOperation::KernelOperation(CUfunction handle, const LaunchShape& shape, void** arguments, void** extra)
    : handle_(handle), function_(find_function(handle)), module_(function_->module()), shape_(shape) {
  const Routine& kernel = function_->kernel();
  if (!kernel.unsupported.empty()) {
    log_line("kernel " + kernel.name + " cannot be launched: " + kernel.unsupported);
    throw Failure(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (kernel.required_cluster && !shape_.is_cluster_given) {
    shape_.cluster = *kernel.required_cluster;
    shape_.is_cluster_given = true;
  }
  FunctionSettings settings = function_->settings();
  if (!shape_.is_cluster_given && settings.required_cluster[0] != 0) {
    shape_.cluster = {static_cast<uint32_t>(settings.required_cluster[0]),
                      static_cast<uint32_t>(std::max(1, settings.required_cluster[1])),
                      static_cast<uint32_t>(std::max(1, settings.required_cluster[2]))};
    shape_.is_cluster_given = true;
  }
  check();
  copy_arguments(arguments, extra);
}

void KernelOperation::check() const {
  const Routine& kernel = function_->kernel();
  FunctionSettings settings = function_->settings();
  require(is_within(shape_.grid, grid_dimension_max));
  require(is_within(shape_.block, block_dimension_max));
  uint64_t threads = shape_.block.count();
  require(threads <= threads_per_block_max);
  if (kernel.required_threads)
    require(shape_.block.x == kernel.required_threads->x && shape_.block.y == kernel.required_threads->y &&
            shape_.block.z == kernel.required_threads->z);
  if (kernel.max_threads) require(threads <= kernel.max_threads->count());
  uint64_t shared_max = std::max<uint64_t>(
      static_cast<uint64_t>(settings.dynamic_shared_bytes_max) + kernel.static_shared_bytes, shared_bytes_per_block);
  require(uint64_t{shape_.dynamic_shared_bytes} + kernel.static_shared_bytes <= shared_max);
  check_cluster(settings);
  uint32_t resident = blocks_per_multiprocessor(kernel, threads, shape_.dynamic_shared_bytes);
  require(resident != 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  if (shape_.is_cooperative) {
    uint64_t device_blocks =
        uint64_t{resident} * static_cast<uint64_t>(module_->context()->device().multiprocessor_count());
    require(shape_.grid.count() <= device_blocks, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  }
}

void KernelOperation::check_cluster(const FunctionSettings& settings) const {
  const Routine& kernel = function_->kernel();
  if (!shape_.is_cluster_given) {
    require(!settings.cluster_must_be_set, CUDA_ERROR_INVALID_CLUSTER_SIZE);
    return;
  }
  const ThreadDimensions& cluster = shape_.cluster;
  require(cluster.x != 0 && cluster.y != 0 && cluster.z != 0, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  uint64_t most = settings.non_portable_cluster_allowed ? cluster_blocks_max : cluster_blocks_portable;
  if (kernel.max_cluster_rank != 0) most = std::min<uint64_t>(most, kernel.max_cluster_rank);
  require(cluster.count() <= most, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  bool divides = shape_.grid.x % cluster.x == 0 && shape_.grid.y % cluster.y == 0 && shape_.grid.z % cluster.z == 0;
  require(divides, CUDA_ERROR_INVALID_CLUSTER_SIZE);
  if (kernel.required_cluster)
    require(cluster.x == kernel.required_cluster->x && cluster.y == kernel.required_cluster->y &&
                cluster.z == kernel.required_cluster->z,
            CUDA_ERROR_INVALID_CLUSTER_SIZE);
}

void KernelOperation::copy_arguments(void** arguments, void** extra) {
  const Routine& kernel = function_->kernel();
  argument_bytes_.resize(kernel.parameter_bytes);
  if (arguments != nullptr && extra != nullptr && *extra == CU_LAUNCH_PARAM_END) extra = nullptr;
  require(arguments == nullptr || extra == nullptr);
  if (arguments != nullptr) {
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      require(arguments[i] != nullptr);
      std::memcpy(argument_bytes_.data() + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
    }
  } else if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
      if (item[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = item[1];
      else if (item[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const size_t*>(item[1]);
      else throw Failure(CUDA_ERROR_INVALID_VALUE);
    }
    // Buffers are often rounded up behind the last parameter, and may end early.
    require(buffer != nullptr);
    std::memcpy(argument_bytes_.data(), buffer, std::min<size_t>(bytes, kernel.parameter_bytes));
  } else {
    require(kernel.parameters.empty());
  }
}

void** KernelOperation::arguments() {
  argument_pointers_.clear();
  for (const ParameterLayout& parameter : function_->kernel().parameters)
    argument_pointers_.push_back(argument_bytes_.data() + parameter.offset);
  return argument_pointers_.data();
}

std::unique_ptr<Operation> KernelOperation::clone() const { return std::make_unique<KernelOperation>(*this); }

std::shared_ptr<Task> KernelOperation::make_task(const std::shared_ptr<Context>&) const {
  // A graph may hold kernels of several contexts; each runs in its own.
  std::shared_ptr<Context> context = module_->context();
  return std::make_shared<DeferredTask>([context, operation = *this](const DeferredTask::Finish& finish) {
    if (context->has_failed()) return finish();
    const Routine& kernel = operation.function_->kernel();
    const LaunchShape& shape = operation.shape_;
    Device& device = context->device();
    Launch launch;
    launch.program = operation.module_->program();
    launch.kernel = &kernel;
    launch.constants = operation.module_->constants();
    launch.keep_alive = operation.module_;
    launch.grid = shape.grid;
    launch.block = shape.block;
    launch.cluster = shape.cluster;
    launch.is_cluster_explicit = shape.is_cluster_given;
    launch.is_cooperative = shape.is_cooperative;
    launch.dynamic_shared_bytes = shape.dynamic_shared_bytes;
    launch.parameters = operation.argument_bytes_;
    launch.stack_bytes = kernel.stack_bytes;
    if (kernel.has_recursion)
      launch.stack_bytes +=
          std::max<uint32_t>(stack_bytes_min, static_cast<uint32_t>(context->limit(CU_LIMIT_STACK_SIZE)));
    launch.page_table = &addresses().page_table(device.ordinal());
    launch.services = context.get();
    launch.multiprocessor_count = static_cast<uint32_t>(device.multiprocessor_count());
    uint64_t resident = uint64_t{launch.multiprocessor_count} *
                        blocks_per_multiprocessor(kernel, shape.block.count(), shape.dynamic_shared_bytes) /
                        shape.cluster.count();
    DeviceAddress workspace = 0;
    try {
      addresses().replace_unmapped_host();
      if (shape.is_cooperative) workspace = context->take_grid_workspace();
    } catch (const Failure& failure) {
      context->fail(failure.code(), "no memory for what a launch needs");
      return finish();
    }
    launch.workspace = workspace;
    uint64_t grid_id = device.begin_grid();
    launch.grid_id = grid_id;
    auto on_complete = [context, finish, grid_id, workspace](const Fault& fault) {
      context->device().end_grid(grid_id);
      if (workspace != 0) context->give_back_grid_workspace(workspace);
      context->fail(fault);
      finish();
    };
    Executor::instance().submit(std::make_shared<Grid>(std::move(launch), resident, std::move(on_complete)));
  });
}

}  // namespace fargpu::softgpu
