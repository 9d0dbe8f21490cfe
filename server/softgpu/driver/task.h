#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fargpu::softgpu {

/// A piece of asynchronous work that starts once all tasks it depends on are done. Streams, events
/// and graphs are made of these.
class Task : public std::enable_shared_from_this<Task> {
 public:
  virtual ~Task() = default;

  /// To be called before submit(); a null or finished task adds nothing.
  void depend_on(const std::shared_ptr<Task>& other);
  /// No dependencies will be added any more. A task is submitted exactly once.
  void submit();

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  void wait() const { is_done_.wait(false, std::memory_order_acquire); }

 protected:
  /// Called once on some thread when the task may start. Must lead to complete(), then or later.
  virtual void start() = 0;
  void complete();

 private:
  void release_dependency();

  std::atomic<bool> is_done_{false};
  std::atomic<int> pending_{1};  // dependencies, and one for submit()
  std::mutex mutex_;
  std::vector<std::shared_ptr<Task>> successors_;
};

/// A task that runs a function.
class FunctionTask : public Task {
 public:
  enum class Place {
    inline_on_completion,  // on the thread that finished the last dependency: must be short
    service,               // on a service thread
  };
  explicit FunctionTask(Place place, std::function<void()> function = {})
      : place_(place), function_(std::move(function)) {}

 private:
  void start() override;
  void run();

  const Place place_;
  std::function<void()> function_;
};

/// A task whose end comes from elsewhere: the function is given a callback to report it.
class DeferredTask : public Task {
 public:
  using Finish = std::function<void()>;
  explicit DeferredTask(std::function<void(Finish)> function) : function_(std::move(function)) {}

 private:
  void start() override;

  std::function<void(Finish)> function_;
};

/// A task without work, to wait for others.
inline std::shared_ptr<Task> make_marker() {
  return std::make_shared<FunctionTask>(FunctionTask::Place::inline_on_completion);
}

}  // namespace fargpu::softgpu
