#pragma once
// What sessions of the fixture may be put behind: their client's end of the channel, changed.

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "protocol/channel.h"
#include "server/worker/memory/gpu_direct.h"
#include "tests/wrapped_channel.h"

namespace fargpu::test {

/// Makes the client's end of the next sessions; nothing if it stays as it is. Where client and worker share memory,
/// from when they do, and where they are joined by RDMA, from then on.
extern std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap_channel;

/// Where the worker of the next sessions keeps images; with the session if it is empty.
extern std::filesystem::path image_folder;
/// Where workers keep contents of memory; empty: they keep none.
extern std::filesystem::path content_folder;

/// For how long the worker of the next sessions waits for a client whose connection broke; zero: not at all.
extern std::chrono::milliseconds resume_time;

/// Makes what the next sessions that go by RDMA go by into memory of the GPU, by the card of tests/unit/gpu_card.h;
/// null: they do not.
extern std::function<std::shared_ptr<server::GpuDirect>()> make_gpu_direct;

/// Whether clients of the next sessions that go by RDMA take nothing else.
extern bool only_rdma;

/// Sets wrap_channel for as long as it lives.
struct Wrapping {
  template <class Wrap>
  explicit Wrapping(Wrap&& wrap) : before(std::exchange(wrap_channel, std::forward<Wrap>(wrap))) {}
  ~Wrapping() { wrap_channel = before; }
  decltype(wrap_channel) before;
};

/// What the client is told can be held back: what it sends goes on its way meanwhile.
class HoldBack {
 public:
  /// From now on; calls that want answers wait.
  void begin() { set(true); }
  void end() { set(false); }
  std::unique_ptr<Channel> wrap(std::unique_ptr<Channel> channel) {
    return std::make_unique<Held>(std::move(channel), *this);
  }

 private:
  class Held final : public WrappedChannel {
   public:
    Held(std::unique_ptr<Channel> channel, HoldBack& hold) : WrappedChannel(std::move(channel)), hold_(hold) {}
    std::size_t receive_some(std::span<std::byte> buffer) override {
      std::unique_lock lock(hold_.mutex_);
      hold_.changed_.wait(lock, [&] { return !hold_.held_; });
      lock.unlock();
      return WrappedChannel::receive_some(buffer);
    }

   private:
    HoldBack& hold_;
  };
  void set(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

}  // namespace fargpu::test
