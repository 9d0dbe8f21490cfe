#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver/device.h"
#include "driver/device_heap.h"
#include "driver/handle_table.h"
#include "protocol/context_storage.h"
#include "driver/print_buffer.h"
#include "driver/stream.h"
#include "exec/fault.h"
#include "exec/launch.h"

namespace fargpu::softgpu {

/// A context: what a program's streams, modules and allocations on one device belong to, and
/// end with.
class Context : public std::enable_shared_from_this<Context>, public DeviceServices {
 public:
  Context(Device& device, bool is_primary);
  /// A green context: it has streams of its own, and all else is its home's, a primary context.
  explicit Context(std::shared_ptr<Context> home);

  /// What objects made here belong to: the context itself, but for green ones.
  std::shared_ptr<Context> home() { return home_ != nullptr ? home_ : shared_from_this(); }
  bool is_green() const { return home_ != nullptr; }

  Device& device() const { return device_; }
  uint64_t id() const { return id_; }
  bool is_primary() const { return is_primary_; }
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }

  /// Primary contexts come to life when they are first retained, and can do so again.
  void revive();
  bool is_alive() const { return is_alive_; }
  /// Waits for all work, then ends everything that belongs to the context.
  void destroy();

  // ---- errors ------------------------------------------------------------------------------------------------------

  /// Throws the error that a kernel of the device left behind.
  void check() const;
  bool has_failed() const { return device_.has_failed(); }
  void fail(CUresult error, std::string_view message);
  void fail(const Fault& fault);

  // ---- streams -----------------------------------------------------------------------------------------------------

  std::shared_ptr<Stream> legacy_stream();
  /// The default stream of the calling thread.
  std::shared_ptr<Stream> per_thread_stream();
  std::shared_ptr<Stream> create_stream(unsigned flags, int priority);
  /// Work that is in the stream goes on.
  void destroy_stream(const std::shared_ptr<Stream>& stream);

  void enqueue(Stream& stream, const std::shared_ptr<Task>& task);
  /// Puts a group of tasks into a stream: all of them lie between the first and the last.
  void enqueue_pair(Stream& stream, const std::shared_ptr<Task>& first, const std::shared_ptr<Task>& last);
  std::shared_ptr<Task> everything_before(Stream& stream);
  /// The last tasks of all streams, those of green contexts with this home included.
  std::vector<std::shared_ptr<Task>> everything();
  /// Work enqueued from now on, in any stream, waits for the task.
  void make_all_wait_for(const std::shared_ptr<Task>& task);
  /// True if a stream that the legacy stream waits for is being captured; under graph_mutex().
  bool has_captured_blocking_stream();
  void synchronize();

  // ---- settings ----------------------------------------------------------------------------------------------------

  std::atomic<unsigned> flags{0};
  size_t limit(CUlimit limit) const;
  void set_limit(CUlimit limit, size_t value);
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  /// Retains of a primary context; under primary_mutex.
  int retain_count = 0;
  /// How many of these are of green contexts.
  int green_count = 0;
  std::mutex primary_mutex;
  std::mutex peers_mutex;
  std::set<CUcontext> peers;
  ContextStorage storage;

  void flush_print() { home_ != nullptr ? home_->flush_print() : print_buffer_.flush(); }
  /// Memory in which the blocks of one cooperative grid meet (cooperative_groups finds it through
  /// environment registers); it is zero.
  DeviceAddress take_grid_workspace();
  void give_back_grid_workspace(DeviceAddress workspace);

  // ---- DeviceServices ----------------------------------------------------------------------------------------------

  void print(std::string_view text) override { print_buffer_.append(text); }
  void report_assertion(std::string_view text) override;
  DeviceAddress allocate(uint64_t bytes) override;
  bool release(DeviceAddress address) override { return heap_.release(address); }
  const Texture* find_texture(uint64_t handle) override;
  bool set_condition(uint64_t handle, uint32_t value) override;

 private:
  std::vector<std::shared_ptr<Context>> greens() const;

  Device& device_;
  const std::shared_ptr<Context> home_;
  const uint64_t id_;
  const bool is_primary_;
  std::atomic<bool> is_alive_{false};

  /// Makes a task wait for what must come before it in the stream; under the lock.
  void order_behind(Stream& stream, Task& task);

  std::mutex submission_mutex_;
  std::shared_ptr<Stream> legacy_stream_;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread_streams_;
  std::set<std::shared_ptr<Stream>> streams_;          // created ones
  std::vector<std::shared_ptr<Task>> orphaned_tasks_;  // of streams that were destroyed
  std::shared_ptr<Task> first_of_new_streams_;         // what all of the context waits for

  PrintBuffer print_buffer_;
  DeviceHeap heap_;
  std::atomic<size_t> stack_bytes_{1024};
  std::array<std::atomic<size_t>, CU_LIMIT_MAX> other_limits_{};
};

/// Contexts that exist, primary ones always.
using ContextTable = HandleTable<Context, CUcontext>;

/// Every context that exists.
std::vector<std::shared_ptr<Context>> all_contexts();
/// Null if there is none with this id (any more).
CUcontext context_of_id(uint64_t id);

// ---- the stack of contexts of the calling thread -------------------------------------------------------------------

/// Throws INVALID_CONTEXT if there is none, CONTEXT_IS_DESTROYED if it is gone.
std::shared_ptr<Context> current_context();
/// The home of the current context, and throws the error that it has.
std::shared_ptr<Context> usable_context();
/// The top of the stack as it is; null if the stack is empty.
CUcontext current_handle();
void push_current(CUcontext context);
CUcontext pop_current();
/// Replaces the top; null only removes it.
void set_current(CUcontext context);

/// The stream a handle means in the current context.
std::shared_ptr<Stream> find_stream(CUstream handle, bool per_thread_default);

}  // namespace fargpu::softgpu
