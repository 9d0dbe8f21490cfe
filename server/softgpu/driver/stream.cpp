#include "driver/stream.h"

#include "driver/context.h"

namespace fargpu::softgpu {
namespace {

// As many as NVIDIA's driver takes before a launch blocks.
constexpr int waiting_launches_max = 1024;

uint64_t next_stream_id() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

std::mutex& graph_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

Stream::Stream(std::shared_ptr<Context> context, Kind kind, unsigned flags, int priority)
    : context_(std::move(context)), kind_(kind), flags_(flags), priority_(priority), id_(next_stream_id()) {}

void Stream::enqueue(const std::shared_ptr<Task>& task) { context_->enqueue(*this, task); }

std::shared_ptr<Task> Stream::everything_so_far() { return context_->everything_before(*this); }

bool Stream::is_idle() {
  std::shared_ptr<Task> task = everything_so_far();
  return task == nullptr || task->is_done();
}

void Stream::synchronize() {
  if (std::shared_ptr<Task> task = everything_so_far()) task->wait();
  context_->flush_print();
  context_->check();
}

void Stream::begin_launch() {
  int waiting = waiting_launches_.fetch_add(1) + 1;
  while (waiting > waiting_launches_max) {
    waiting_launches_.wait(waiting);
    waiting = waiting_launches_.load();
  }
}

void Stream::end_launch() {
  waiting_launches_.fetch_sub(1);
  waiting_launches_.notify_all();
}

}  // namespace fargpu::softgpu
