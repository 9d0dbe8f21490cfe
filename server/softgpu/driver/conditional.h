#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "driver/operation.h"

namespace fargpu::softgpu {

class Graph;

/// A value that kernels set (cudaGraphSetConditional) and that a conditional node goes by. Its graph owns it; programs
/// and kernels know it by a handle. Threads: any.
class Condition {
 public:
  static std::shared_ptr<Condition> create(std::shared_ptr<Context> context, unsigned default_value,
                                           bool assigns_default);
  Condition(std::shared_ptr<Context> context, unsigned default_value, bool assigns_default);
  ~Condition();
  Condition(const Condition&) = delete;

  CUgraphConditionalHandle handle() const { return handle_; }
  Context& context() const { return *context_; }
  unsigned value() const { return value_; }
  void set(unsigned value) { value_ = value; }
  /// A launch of its graph begins.
  void begin() {
    if (assigns_default_) value_ = default_value_;
  }

  bool has_node = false;  // under graph_mutex()

 private:
  const CUgraphConditionalHandle handle_;
  const std::shared_ptr<Context> context_;
  const unsigned default_value_;
  const bool assigns_default_;
  std::atomic<unsigned> value_;
};

/// Null if there is no such condition.
std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle);

/// A node that executes graphs by the value of a condition.
class ConditionalOperation : public Operation {
 public:
  /// Throws INVALID_VALUE for what is no kind of conditional node, and for a condition that has a node already.
  ConditionalOperation(std::shared_ptr<Condition> condition, CUgraphConditionalNodeType kind, unsigned count);
  ~ConditionalOperation() override;
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_CONDITIONAL; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override;
  /// Throws NOT_SUPPORTED: CUDA has no copies of such nodes (CUgraphNodeType).
  std::unique_ptr<Operation> clone() const override;

  const std::shared_ptr<Condition>& condition() const { return condition_; }
  CUgraphConditionalNodeType kind() const { return kind_; }
  const std::vector<std::shared_ptr<Graph>>& bodies() const { return bodies_; }
  /// For CUDA_CONDITIONAL_NODE_PARAMS::phGraph_out: the node's own.
  CUgraph* body_handles() { return body_handles_.data(); }

 private:
  const std::shared_ptr<Condition> condition_;
  const CUgraphConditionalNodeType kind_;
  std::vector<std::shared_ptr<Graph>> bodies_;
  std::vector<CUgraph> body_handles_;
};

/// Which of the bodies a node of this kind executes for a value; their count if it executes none.
size_t chosen_body(CUgraphConditionalNodeType kind, unsigned value, size_t count);

}  // namespace fargpu::softgpu
