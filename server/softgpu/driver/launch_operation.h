#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "driver/module.h"
#include "driver/operation.h"

namespace fargpu::softgpu {

/// What a launch is asked for besides its arguments.
struct LaunchShape {
  ThreadDimensions grid;
  ThreadDimensions block;
  ThreadDimensions cluster;
  bool is_cluster_given = false;
  bool is_cooperative = false;
  uint32_t dynamic_shared_bytes = 0;
  int priority = 0;
};

/// The launch of a kernel with its arguments.
class KernelOperation : public Operation {
 public:
  /// Checks as the driver does before it accepts a launch; throws the error it gives.
  KernelOperation(CUfunction handle, const LaunchShape& shape, void** arguments, void** extra);

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_KERNEL; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const override;
  std::unique_ptr<Operation> clone() const override;

  const std::shared_ptr<Function>& function() const { return function_; }
  /// As the program named it: a function or a kernel.
  CUfunction handle() const { return handle_; }
  const LaunchShape& shape() const { return shape_; }
  /// Pointers to the arguments, valid while this lives.
  void** arguments();

  /// Attributes of graph nodes.
  LaunchShape& mutable_shape() { return shape_; }
  void check() const;

 private:
  void copy_arguments(void** arguments, void** extra);
  void check_cluster(const FunctionSettings& settings) const;

  CUfunction handle_;
  std::shared_ptr<Function> function_;
  std::shared_ptr<Module> module_;
  LaunchShape shape_;
  std::vector<std::byte> argument_bytes_;
  std::vector<void*> argument_pointers_;
};

}  // namespace fargpu::softgpu
