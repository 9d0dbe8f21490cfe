#include "driver/conditional.h"

#include <map>
#include <mutex>
#include <utility>

#include "driver/graph.h"

namespace fargpu::softgpu {
namespace {

constexpr unsigned body_count_max = 4096;

std::mutex& conditions_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

/// Those that exist. What a kernel passes as a handle may be anything.
std::map<CUgraphConditionalHandle, std::weak_ptr<Condition>>& conditions() {
  static auto* all = new std::map<CUgraphConditionalHandle, std::weak_ptr<Condition>>();
  return *all;
}

CUgraphConditionalHandle next_handle() {
  static std::atomic<CUgraphConditionalHandle> next{1};
  return next++;
}

}  // namespace

Condition::Condition(std::shared_ptr<Context> context, unsigned default_value, bool assigns_default)
    : handle_(next_handle()),
      context_(std::move(context)),
      default_value_(default_value),
      assigns_default_(assigns_default),
      value_(default_value) {}

std::shared_ptr<Condition> Condition::create(std::shared_ptr<Context> context, unsigned default_value,
                                             bool assigns_default) {
  auto condition = std::make_shared<Condition>(std::move(context), default_value, assigns_default);
  std::lock_guard lock(conditions_mutex());
  conditions()[condition->handle()] = condition;
  return condition;
}

Condition::~Condition() {
  std::lock_guard lock(conditions_mutex());
  conditions().erase(handle_);
}

std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle) {
  std::lock_guard lock(conditions_mutex());
  auto found = conditions().find(handle);
  return found == conditions().end() ? nullptr : found->second.lock();
}

ConditionalOperation::ConditionalOperation(std::shared_ptr<Condition> condition, CUgraphConditionalNodeType kind,
                                           unsigned count)
    : condition_(std::move(condition)), kind_(kind) {
  switch (kind) {
    case CU_GRAPH_COND_TYPE_IF: require(count == 1 || count == 2); break;
    case CU_GRAPH_COND_TYPE_WHILE: require(count == 1); break;
    case CU_GRAPH_COND_TYPE_SWITCH: require(count >= 1 && count <= body_count_max); break;
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
  require(!condition_->has_node);
  for (unsigned i = 0; i < count; ++i) {
    bodies_.push_back(std::make_shared<Graph>());
    bodies_.back()->is_child = true;
    body_handles_.push_back(GraphTable::instance().add(bodies_.back()));
  }
  condition_->has_node = true;
}

ConditionalOperation::~ConditionalOperation() {
  condition_->has_node = false;
  for (CUgraph body : body_handles_) GraphTable::instance().remove(body);
}

std::shared_ptr<Task> ConditionalOperation::make_task(const std::shared_ptr<Context>&) const {
  throw Failure(CUDA_ERROR_UNKNOWN);  // executable graphs hold its bodies as such
}

std::unique_ptr<Operation> ConditionalOperation::clone() const { throw Failure(CUDA_ERROR_NOT_SUPPORTED); }

size_t chosen_body(CUgraphConditionalNodeType kind, unsigned value, size_t count) {
  if (kind == CU_GRAPH_COND_TYPE_SWITCH) return value < count ? value : count;
  if (value != 0) return 0;
  return kind == CU_GRAPH_COND_TYPE_IF ? 1 : count;  // an IF may have a second body, for zero
}

}  // namespace fargpu::softgpu
