#include "driver/context.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/log.h"
#include "driver/conditional.h"
#include "driver/driver.h"
#include "driver/event.h"
#include "driver/module.h"
#include "driver/texture_objects.h"

namespace fargpu::softgpu {
namespace {

uint64_t next_context_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

CUresult code_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::none: return CUDA_SUCCESS;
    case FaultKind::illegal_address:
    case FaultKind::stack_overflow: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case FaultKind::misaligned_address: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case FaultKind::illegal_instruction: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case FaultKind::invalid_address_space: return CUDA_ERROR_INVALID_ADDRESS_SPACE;
    case FaultKind::invalid_pc: return CUDA_ERROR_INVALID_PC;
    case FaultKind::assertion: return CUDA_ERROR_ASSERT;
    case FaultKind::trap:
    case FaultKind::deadlock:
    case FaultKind::launch_failure: return CUDA_ERROR_LAUNCH_FAILED;
  }
  return CUDA_ERROR_LAUNCH_FAILED;
}

thread_local std::vector<CUcontext> context_stack;

}  // namespace

Context::Context(Device& device, bool is_primary) : device_(device), id_(next_context_id()), is_primary_(is_primary) {}

Context::Context(std::shared_ptr<Context> home)
    : device_(home->device()), home_(std::move(home)), id_(next_context_id()), is_primary_(false) {}

std::vector<std::shared_ptr<Context>> Context::greens() const {
  std::vector<std::shared_ptr<Context>> found;
  if (!is_primary_) return found;
  for (const auto& context : all_contexts())
    if (context->home_.get() == this && context->is_alive()) found.push_back(context);
  return found;
}

void Context::revive() {
  std::lock_guard lock(submission_mutex_);
  if (is_alive_) return;
  legacy_stream_ = std::make_shared<Stream>(shared_from_this(), Stream::Kind::legacy, 0, 0);
  stack_bytes_ = 1024;
  for (auto& limit : other_limits_) limit = 0;
  other_limits_[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  other_limits_[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  other_limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  print_buffer_.set_limit(size_t{1} << 20);
  heap_.reset();
  heap_.set_limit(uint64_t{8} << 20);
  is_alive_ = true;
}

void Context::destroy() {
  for (const auto& green : greens()) green->destroy();
  if (is_alive_) storage.clear(handle());
  for (const auto& task : everything()) task->wait();
  flush_print();
  {
    std::lock_guard lock(submission_mutex_);
    if (!is_alive_) return;
    is_alive_ = false;
    for (const auto& stream : streams_) StreamTable::instance().remove(reinterpret_cast<CUstream>(stream.get()));
    streams_.clear();
    per_thread_streams_.clear();
    orphaned_tasks_.clear();
    first_of_new_streams_ = nullptr;
    legacy_stream_ = nullptr;
  }
  if (is_green()) return;
  EventTable::instance().remove_if([&](const Event& event) { return event.context().get() == this; });
  unload_modules_of(*this);
  remove_textures_of(*this);
  addresses().free_all_of(id_);
  heap_.reset();
  std::lock_guard lock(peers_mutex);
  peers.clear();
}

// ---- errors --------------------------------------------------------------------------------------------------------

void Context::check() const { device_.check(); }

void Context::fail(CUresult error, std::string_view message) {
  if (device_.fail(error)) log_line(message);
}

void Context::fail(const Fault& fault) {
  if (fault) fail(code_of(fault.kind), fault.message);
}

// ---- streams -------------------------------------------------------------------------------------------------------

std::shared_ptr<Stream> Context::legacy_stream() {
  std::lock_guard lock(submission_mutex_);
  require(legacy_stream_ != nullptr, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return legacy_stream_;
}

std::shared_ptr<Stream> Context::per_thread_stream() {
  std::lock_guard lock(submission_mutex_);
  require(is_alive_, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  std::shared_ptr<Stream>& stream = per_thread_streams_[std::this_thread::get_id()];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(shared_from_this(), Stream::Kind::per_thread, 0, 0);
    stream->tail_ = first_of_new_streams_;
  }
  return stream;
}

std::shared_ptr<Stream> Context::create_stream(unsigned stream_flags, int priority) {
  auto stream = std::make_shared<Stream>(shared_from_this(), Stream::Kind::created, stream_flags, priority);
  std::lock_guard lock(submission_mutex_);
  require(is_alive_, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  stream->tail_ = first_of_new_streams_;
  streams_.insert(stream);
  StreamTable::instance().add(stream);
  return stream;
}

void Context::destroy_stream(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(submission_mutex_);
  if (streams_.erase(stream) == 0) return;
  std::erase_if(orphaned_tasks_, [](const auto& task) { return task->is_done(); });
  if (stream->tail_ != nullptr && !stream->tail_->is_done()) orphaned_tasks_.push_back(stream->tail_);
}

void Context::order_behind(Stream& stream, Task& task) {
  require(is_alive_, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  task.depend_on(stream.tail_);
  if (stream.kind_ == Stream::Kind::legacy) {
    // The legacy stream waits for all blocking streams, and they for it.
    for (const auto& other : streams_)
      if (other->is_blocking()) task.depend_on(other->tail_);
    for (const auto& [thread, other] : per_thread_streams_) task.depend_on(other->tail_);
    for (const auto& orphaned : orphaned_tasks_) task.depend_on(orphaned);
  } else if (stream.is_blocking()) {
    task.depend_on(legacy_stream_->tail_);
  }
}

void Context::enqueue(Stream& stream, const std::shared_ptr<Task>& task) { enqueue_pair(stream, task, task); }

void Context::enqueue_pair(Stream& stream, const std::shared_ptr<Task>& first, const std::shared_ptr<Task>& last) {
  {
    std::lock_guard lock(submission_mutex_);
    order_behind(stream, *first);
    stream.tail_ = last;
  }
  first->submit();
  if (last != first) last->submit();
}

std::shared_ptr<Task> Context::everything_before(Stream& stream) {
  bool is_legacy = stream.kind_ == Stream::Kind::legacy;
  if (!is_legacy) {
    std::lock_guard lock(submission_mutex_);
    if (stream.tail_ != nullptr && !stream.tail_->is_done()) return stream.tail_;
    bool waits_for_legacy = stream.is_blocking() && legacy_stream_ != nullptr;
    return waits_for_legacy ? legacy_stream_->tail_ : nullptr;
  }
  std::shared_ptr<Task> marker = make_marker();
  {
    std::lock_guard lock(submission_mutex_);
    marker->depend_on(stream.tail_);
    for (const auto& other : streams_)
      if (other->is_blocking()) marker->depend_on(other->tail_);
    for (const auto& [thread, other] : per_thread_streams_) marker->depend_on(other->tail_);
  }
  marker->submit();
  return marker;
}

std::vector<std::shared_ptr<Task>> Context::everything() {
  std::vector<std::shared_ptr<Task>> tasks;
  for (const auto& green : greens()) {
    auto more = green->everything();
    tasks.insert(tasks.end(), more.begin(), more.end());
  }
  std::lock_guard lock(submission_mutex_);
  tasks.insert(tasks.end(), orphaned_tasks_.begin(), orphaned_tasks_.end());
  auto add = [&](const std::shared_ptr<Stream>& stream) {
    if (stream != nullptr && stream->tail_ != nullptr) tasks.push_back(stream->tail_);
  };
  add(legacy_stream_);
  for (const auto& stream : streams_) add(stream);
  for (const auto& [thread, stream] : per_thread_streams_) add(stream);
  return tasks;
}

void Context::make_all_wait_for(const std::shared_ptr<Task>& task) {
  for (const auto& green : greens()) green->make_all_wait_for(task);
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(submission_mutex_);
    all.assign(streams_.begin(), streams_.end());
    for (const auto& [thread, stream] : per_thread_streams_) all.push_back(stream);
    if (legacy_stream_ != nullptr) all.push_back(legacy_stream_);
    // Streams to come begin behind it, and behind what others began behind.
    std::shared_ptr<Task> both = make_marker();
    both->depend_on(first_of_new_streams_);
    both->depend_on(task);
    both->submit();
    first_of_new_streams_ = both;
  }
  for (const auto& stream : all) {
    std::shared_ptr<Task> marker = make_marker();
    marker->depend_on(task);
    enqueue(*stream, marker);
  }
}

bool Context::has_captured_blocking_stream() {
  std::lock_guard lock(submission_mutex_);
  auto is_captured = [](const auto& stream) { return stream->is_blocking() && stream->capture != nullptr; };
  return std::any_of(streams_.begin(), streams_.end(), is_captured) ||
         std::any_of(per_thread_streams_.begin(), per_thread_streams_.end(),
                     [&](const auto& entry) { return is_captured(entry.second); });
}

void Context::synchronize() {
  for (const auto& task : everything()) task->wait();
  flush_print();
  check();
}

// ---- settings ------------------------------------------------------------------------------------------------------

size_t Context::limit(CUlimit limit) const {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE: return stack_bytes_;
    case CU_LIMIT_PRINTF_FIFO_SIZE: return print_buffer_.limit();
    case CU_LIMIT_MALLOC_HEAP_SIZE: return heap_.limit();
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: return other_limits_[limit];
    case CU_LIMIT_SHMEM_SIZE:
    case CU_LIMIT_CIG_ENABLED:
    case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: throw Failure(CUDA_ERROR_UNSUPPORTED_LIMIT);
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

void Context::set_limit(CUlimit limit, size_t value) {
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:
      require(value <= size_t{512} << 10);
      stack_bytes_ = (value + 15) / 16 * 16;
      return;
    case CU_LIMIT_PRINTF_FIFO_SIZE: return print_buffer_.set_limit(value);
    case CU_LIMIT_MALLOC_HEAP_SIZE: require(heap_.set_limit(value)); return;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
    case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: other_limits_[limit] = value; return;
    case CU_LIMIT_SHMEM_SIZE:
    case CU_LIMIT_CIG_ENABLED:
    case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: throw Failure(CUDA_ERROR_UNSUPPORTED_LIMIT);
    default: throw Failure(CUDA_ERROR_INVALID_VALUE);
  }
}

DeviceAddress Context::take_grid_workspace() {
  constexpr uint64_t workspace_bytes = 512;
  DeviceAddress workspace = addresses().allocate(device_.ordinal(), id_, workspace_bytes);
  auto spans = addresses().spans(workspace, workspace_bytes);
  std::memset(spans->front().host, 0, workspace_bytes);
  return workspace;
}

void Context::give_back_grid_workspace(DeviceAddress workspace) { addresses().free(workspace); }

// ---- DeviceServices ------------------------------------------------------------------------------------------------

void Context::report_assertion(std::string_view text) {
  flush_print();
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

DeviceAddress Context::allocate(uint64_t bytes) {
  return heap_.allocate(bytes, [&](uint64_t heap_bytes) -> DeviceAddress {
    try {
      return addresses().allocate(device_.ordinal(), id_, heap_bytes);
    } catch (const Failure&) {
      return 0;
    }
  });
}

const Texture* Context::find_texture(uint64_t handle) { return texture_of(handle); }

bool Context::set_condition(uint64_t handle, uint32_t value) {
  const std::shared_ptr<Condition> condition = find_condition(handle);
  if (condition == nullptr || &condition->context() != this) return false;
  condition->set(value);
  return true;
}

std::vector<std::shared_ptr<Context>> all_contexts() { return ContextTable::instance().all(); }

CUcontext context_of_id(uint64_t id) {
  for (const auto& context : all_contexts())
    if (context->id() == id) return context->handle();
  return nullptr;
}

// ---- the stack of contexts -----------------------------------------------------------------------------------------

CUcontext current_handle() { return context_stack.empty() ? nullptr : context_stack.back(); }

std::shared_ptr<Context> current_context() {
  CUcontext handle = current_handle();
  require(handle != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  std::shared_ptr<Context> context = ContextTable::instance().find(handle);
  require(context != nullptr && context->is_alive(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return context;
}

std::shared_ptr<Context> usable_context() {
  std::shared_ptr<Context> context = current_context()->home();
  context->check();
  return context;
}

void push_current(CUcontext context) { context_stack.push_back(context); }

CUcontext pop_current() {
  require(!context_stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
  CUcontext top = context_stack.back();
  context_stack.pop_back();
  return top;
}

void set_current(CUcontext context) {
  if (!context_stack.empty()) context_stack.pop_back();
  if (context != nullptr) context_stack.push_back(context);
}

std::shared_ptr<Stream> find_stream(CUstream handle, bool per_thread_default) {
  if (handle == nullptr)
    return per_thread_default ? current_context()->per_thread_stream() : current_context()->legacy_stream();
  if (handle == CU_STREAM_LEGACY) return current_context()->legacy_stream();
  if (handle == CU_STREAM_PER_THREAD) return current_context()->per_thread_stream();
  std::shared_ptr<Stream> stream = StreamTable::instance().get(handle);
  require(stream->context()->is_alive(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return stream;
}

}  // namespace fargpu::softgpu
