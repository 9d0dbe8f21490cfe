#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/capture.h"
#include "driver/handle_table.h"
#include "driver/task.h"

namespace fargpu::softgpu {

class Context;

/// An ordered queue of work. The last task of a stream stands for all before it.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind : uint8_t { created, legacy, per_thread };

  Stream(std::shared_ptr<Context> context, Kind kind, unsigned flags, int priority);

  const std::shared_ptr<Context>& context() const { return context_; }
  Kind kind() const { return kind_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  void set_priority(int priority) { priority_ = priority; }
  uint64_t id() const { return id_; }
  /// True if it waits for the legacy stream and that for it.
  bool is_blocking() const { return !(flags_ & CU_STREAM_NON_BLOCKING); }

  /// Appends a task behind everything that must be done before it, and lets it run.
  void enqueue(const std::shared_ptr<Task>& task);
  /// A task that ends when everything enqueued so far has.
  std::shared_ptr<Task> everything_so_far();
  bool is_idle();
  /// Waits, then throws the context's error if there is one.
  void synchronize();

  /// Bounds how much work waits: blocks while there are too many launches.
  void begin_launch();
  void end_launch();

  // Changed under graph_mutex().
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_dependencies;

  // Launch attributes that stick to the stream.
  std::mutex attributes_mutex;
  CUstreamAttrValue access_policy = {};
  CUstreamAttrValue synchronization_policy = {};
  CUstreamAttrValue memory_domain_map = {};
  CUstreamAttrValue memory_domain = {};

 private:
  friend class Context;

  std::shared_ptr<Context> context_;
  const Kind kind_;
  const unsigned flags_;
  std::atomic<int> priority_;
  const uint64_t id_;
  std::shared_ptr<Task> tail_;  // under the context's submission lock
  std::atomic<int> waiting_launches_{0};
};

using StreamTable = HandleTable<Stream, CUstream>;

}  // namespace fargpu::softgpu
