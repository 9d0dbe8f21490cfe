#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "driver/capture.h"
#include "driver/handle_table.h"
#include "driver/shared_event.h"
#include "driver/task.h"

namespace fargpu::softgpu {

class Context;
class Stream;

/// A place in a stream that others can wait for, and the time at which the stream got there.
class Event {
 public:
  /// One recording; a later one replaces it, but threads and streams that wait for this one go on doing so.
  struct Record {
    std::shared_ptr<Task> task;
    std::atomic<int64_t> time_ns{0};
  };

  /// `shared`: what other processes have of it; null if nothing.
  Event(std::shared_ptr<Context> context, unsigned flags, std::shared_ptr<SharedEvent> shared = {})
      : context_(std::move(context)), flags_(flags), shared_(std::move(shared)) {}

  const std::shared_ptr<Context>& context() const { return context_; }
  bool has_timing() const { return !(flags_ & CU_EVENT_DISABLE_TIMING); }
  bool blocks() const { return flags_ & CU_EVENT_BLOCKING_SYNC; }
  unsigned flags() const { return flags_; }
  const std::shared_ptr<SharedEvent>& shared() const { return shared_; }

  /// The task that notes the time; it becomes the last record at once. The caller puts it where
  /// it belongs.
  std::shared_ptr<Task> make_record();
  /// Of this process. Null if nothing was recorded yet.
  std::shared_ptr<Record> last() const;
  /// Whether the stream has got to the last record, whichever process made it.
  bool is_over() const;
  /// A task that ends then. Null if nothing was recorded yet.
  std::shared_ptr<Task> last_task() const;

  /// Set while the event was last recorded in a stream that is being captured.
  std::shared_ptr<CapturedPlace> captured() const;
  void set_captured(std::shared_ptr<CapturedPlace> place);

 private:
  std::shared_ptr<Context> context_;
  const unsigned flags_;
  const std::shared_ptr<SharedEvent> shared_;
  mutable std::mutex mutex_;
  std::shared_ptr<Record> last_;
  std::shared_ptr<CapturedPlace> captured_;
};

using EventTable = HandleTable<Event, CUevent>;

int64_t now_ns();

}  // namespace fargpu::softgpu
