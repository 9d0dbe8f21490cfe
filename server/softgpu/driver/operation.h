#pragma once

#include <cuda.h>

#include <functional>
#include <memory>

#include "driver/context.h"
#include "driver/event.h"
#include "driver/task.h"

namespace fargpu::softgpu {

/// What a stream or a graph can be asked to do, with everything it needs. The same object serves
/// a call that goes to a stream at once and a node of a graph that is launched again and again.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual CUgraphNodeType type() const = 0;
  /// A task that does it once, on behalf of a stream of the context.
  virtual std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const = 0;
  virtual std::unique_ptr<Operation> clone() const = 0;
};

class EmptyOperation : public Operation {
 public:
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_EMPTY; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override { return make_marker(); }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<EmptyOperation>(); }
};

/// Calls a function of the program.
class HostOperation : public Operation {
 public:
  HostOperation(CUhostFn function, void* user_data) : function(function), user_data(user_data) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_HOST; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<HostOperation>(*this); }

  CUhostFn function;
  void* user_data;
};

class EventRecordOperation : public Operation {
 public:
  explicit EventRecordOperation(std::shared_ptr<Event> event) : event(std::move(event)) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override { return event->make_record(); }
  std::unique_ptr<Operation> clone() const override { return std::make_unique<EventRecordOperation>(*this); }

  std::shared_ptr<Event> event;
};

class EventWaitOperation : public Operation {
 public:
  explicit EventWaitOperation(std::shared_ptr<Event> event) : event(std::move(event)) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>&) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<EventWaitOperation>(*this); }

  std::shared_ptr<Event> event;
};

/// Writes values to memory, or waits until memory has values (stream memory operations).
class MemoryOpsOperation : public Operation {
 public:
  /// Throws INVALID_VALUE for operations that do not exist.
  MemoryOpsOperation(CUcontext context, unsigned count, const CUstreamBatchMemOpParams* ops, unsigned flags);
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
  std::shared_ptr<Task> make_task(const std::shared_ptr<Context>& context) const override;
  std::unique_ptr<Operation> clone() const override { return std::make_unique<MemoryOpsOperation>(*this); }

  CUcontext node_context;
  std::vector<CUstreamBatchMemOpParams> ops;
  unsigned flags;
};

/// True on threads that run a function of the program for a stream; such functions must not call
/// the driver.
bool is_in_host_function();
/// Runs a function of the program so marked.
void run_host_function(const std::function<void()>& function);

}  // namespace fargpu::softgpu
