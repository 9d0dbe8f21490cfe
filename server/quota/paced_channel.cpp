#include "paced_channel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/straight_sender.h"

namespace fargpu::server {
namespace {

using Time = Bandwidth::Time;

constexpr std::size_t pieces_max = 64;

class PacedChannel final : public Channel, public StraightSender {
 public:
  PacedChannel(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first)
      : channel_(std::move(channel)),
        straight_(dynamic_cast<StraightSender*>(channel_.get())),
        bandwidth_(std::move(bandwidth)),
        ahead_(first ? Bandwidth::burst : Time(0)) {}

  void lend(Bytes bytes) override {
    if (straight_) straight_->lend(bytes);
  }
  bool needs(Bytes bytes) override { return straight_ && straight_->needs(bytes); }
  bool takes_device_bytes() const override { return straight_ && straight_->takes_device_bytes(); }

  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t bytes = 0;
    for (const Bytes& piece : pieces) bytes += piece.size();
    std::size_t may = bytes;
    if (bytes <= Bandwidth::message_bytes) bandwidth_->take_all(bytes);
    else may = bandwidth_->take(bytes, ahead_);
    if (may == 0) return 0;
    std::array<Bytes, pieces_max> some;
    std::size_t count = 0, sum = 0;
    for (; count < pieces.size() && count < pieces_max && sum < may; ++count) {
      some[count] = pieces[count].first(std::min(pieces[count].size(), may - sum));
      sum += some[count].size();
    }
    return settle(may, [&] { return channel_->send_some(std::span<const Bytes>(some.data(), count)); });
  }

  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (buffer.empty()) return channel_->receive_some(buffer);
    const std::size_t may = bandwidth_->take(buffer.size(), ahead_);
    if (may == 0) return 0;
    return settle(may, [&] { return channel_->receive_some(buffer.first(may)); });
  }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    const Time pause = bandwidth_->wait(ahead_);
    if (pause <= Time(0) || (!interest.readable && !interest.writable)) return channel_->wait(interest, timeout, waker);
    channel_->wait({}, timeout < Timeout(0) ? pause : std::min(timeout, pause), waker);
    return {};  // the waiting thread looks again
  }

  void let_out() noexcept override { channel_->let_out(); }
  void close() noexcept override { channel_->close(); }
  int descriptor() const override { return channel_->descriptor(); }
  std::string peer() const override { return channel_->peer(); }
  bool passes_descriptors() const override { return channel_->passes_descriptors(); }
  bool send_descriptor(int descriptor) override { return channel_->send_descriptor(descriptor); }
  int receive_descriptor() override { return channel_->receive_descriptor(); }
  bool shares_memory() const override { return channel_->shares_memory(); }
  std::string medium() const override { return channel_->medium(); }

 private:
  template <class Move>
  std::size_t settle(std::size_t taken, Move&& move) {
    std::size_t moved = 0;
    try {
      moved = move();
    } catch (...) {
      bandwidth_->give_back(taken);
      throw;
    }
    bandwidth_->give_back(taken - moved);
    bandwidth_->moved(moved);
    return moved;
  }

  const std::unique_ptr<Channel> channel_;
  StraightSender* const straight_;
  const std::shared_ptr<Bandwidth> bandwidth_;
  const Time ahead_;
};

}  // namespace

std::unique_ptr<Channel> pace(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first) {
  return std::make_unique<PacedChannel>(std::move(channel), std::move(bandwidth), first);
}

}  // namespace fargpu::server
