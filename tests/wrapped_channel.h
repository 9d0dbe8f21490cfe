#pragma once

#include <memory>
#include <string>
#include <utility>

#include "protocol/channel.h"

namespace fargpu::test {

/// A channel that is another's but for what a test makes different.
class WrappedChannel : public Channel {
 public:
  explicit WrappedChannel(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  std::size_t send_some(std::span<const Bytes> pieces) override { return channel_->send_some(pieces); }
  std::size_t receive_some(std::span<std::byte> buffer) override { return channel_->receive_some(buffer); }
  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    return channel_->wait(interest, timeout, waker);
  }
  void let_out() noexcept override { channel_->let_out(); }
  void close() noexcept override { channel_->close(); }
  int descriptor() const override { return channel_->descriptor(); }
  std::string peer() const override { return channel_->peer(); }
  bool passes_descriptors() const override { return channel_->passes_descriptors(); }
  bool send_descriptor(int descriptor) override { return channel_->send_descriptor(descriptor); }
  int receive_descriptor() override { return channel_->receive_descriptor(); }
  bool shares_memory() const override { return channel_->shares_memory(); }

 private:
  const std::shared_ptr<Channel> channel_;
};

}  // namespace fargpu::test
