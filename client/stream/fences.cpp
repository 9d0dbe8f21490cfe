#include "fences.h"

#include <vector>

#include "operations.capnp.h"
#include "client/call/remote_call.h"

namespace fargpu::client {

void Fences::after(Thread& thread, Stream& stream, Action action) {
  std::uint64_t fence;
  {
    const std::lock_guard lock(mutex_);
    fence = next_++;
    waiting_.emplace(fence, std::move(action));
  }
  send(thread, fence, stream.context, stream.wire());
}

void Fences::after_all(Thread& thread, Action action) {
  std::uint64_t fence;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t submitted = calls_.submitted();
    if (last_all_ != 0 && submitted == last_all_submitted_ && waiting_.contains(last_all_)) {
      waiting_.emplace(last_all_, std::move(action));
      return;
    }
    fence = next_++;
    last_all_ = fence;
    last_all_submitted_ = submitted;
    waiting_.emplace(fence, std::move(action));
  }
  send(thread, fence, nullptr, 0);
}

void Fences::passed(std::uint64_t fence) {
  std::vector<Action> actions;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = waiting_.equal_range(fence);
    for (auto it = begin; it != end; ++it) actions.push_back(std::move(it->second));
    waiting_.erase(begin, end);
  }
  for (const Action& action : actions) action();
}

void Fences::send(Thread& thread, std::uint64_t fence, Context* context, std::uint64_t stream) {
  RemoteCall<wire::Fence> call(calls_, thread, context);
  auto in = call.in();
  in.setFence(fence);
  in.setStream(stream);
  call.tell();
}

}  // namespace fargpu::client
