#pragma once
// What sessions of the fixture may be put behind: their client's end of the channel, changed.

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "protocol/channel.h"

namespace fargpu::test {

/// Makes the client's end of the next sessions; nothing if it stays as it is. Where client and worker share memory, from when they do.
extern std::function<std::unique_ptr<Channel>(std::unique_ptr<Channel>)> wrap_channel;

/// Where the worker of the next sessions keeps images; with the session if it is empty.
extern std::filesystem::path image_folder;

/// A channel that is another's but for what a test makes different.
class WrappedChannel : public Channel {
 public:
  explicit WrappedChannel(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}
  std::size_t send_some(std::span<const Bytes> pieces) override { return channel_->send_some(pieces); }
  std::size_t receive_some(std::span<std::byte> buffer) override { return channel_->receive_some(buffer); }
  Interest wait(Interest interest, Timeout timeout, Waker* waker) override { return channel_->wait(interest, timeout, waker); }
  void close() noexcept override { channel_->close(); }
  std::string peer() const override { return channel_->peer(); }
  bool passes_descriptors() const override { return channel_->passes_descriptors(); }
  bool send_descriptor(int descriptor) override { return channel_->send_descriptor(descriptor); }
  int receive_descriptor() override { return channel_->receive_descriptor(); }
  bool shares_memory() const override { return channel_->shares_memory(); }

 private:
  const std::unique_ptr<Channel> channel_;
};

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
  /// From now on; whoever wants answers waits.
  void begin() { set(true); }
  void end() { set(false); }
  std::unique_ptr<Channel> wrap(std::unique_ptr<Channel> channel) { return std::make_unique<Held>(std::move(channel), *this); }

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
