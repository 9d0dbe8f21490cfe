#include "bandwidth.h"

#include <algorithm>
#include <array>

#include "protocol/errors.h"

namespace fargpu::server {
namespace {

using Time = Bandwidth::Time;

constexpr std::size_t message_bytes = 4096;
constexpr std::size_t pieces_max = 64;
constexpr Time pieces_of = std::chrono::milliseconds(2);  // fewer bytes than move in that are not worth waking up for
constexpr Time wait_max = std::chrono::milliseconds(200);
constexpr Time debt_max = std::chrono::minutes(1);

// Rates and times are such that the product of a time of seconds and a rate does not fit 64 bits.
std::uint64_t bytes_in(Time time, std::uint64_t rate) {
  return static_cast<std::uint64_t>(static_cast<long double>(time.count()) * static_cast<long double>(rate) / 1e9L);
}

std::int64_t time_of(std::uint64_t bytes, std::uint64_t rate) {
  return static_cast<std::int64_t>(static_cast<long double>(bytes) * 1e9L / static_cast<long double>(rate));
}

std::uint64_t least(std::uint64_t rate) { return std::max<std::uint64_t>(message_bytes, bytes_in(pieces_of, rate)); }

// Whatever a worker in somebody's hands wrote: neither more than what is saved up, nor debts for ever.
Time from_of(std::int64_t paid, Time now) { return std::clamp(Time(paid), now - Bandwidth::burst, now + debt_max); }

class PacedChannel final : public Channel {
 public:
  PacedChannel(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first)
      : channel_(std::move(channel)), bandwidth_(std::move(bandwidth)), ahead_(first ? Bandwidth::burst : Time(0)) {}

  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t bytes = 0;
    for (const Bytes& piece : pieces) bytes += piece.size();
    std::size_t may = bytes;
    if (bytes <= message_bytes) bandwidth_->take_all(bytes);
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
    return {};  // whoever waits looks again
  }

  void close() noexcept override { channel_->close(); }
  int descriptor() const override { return channel_->descriptor(); }
  std::string peer() const override { return channel_->peer(); }
  bool passes_descriptors() const override { return channel_->passes_descriptors(); }
  bool send_descriptor(int descriptor) override { return channel_->send_descriptor(descriptor); }
  int receive_descriptor() override { return channel_->receive_descriptor(); }
  bool shares_memory() const override { return channel_->shares_memory(); }

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
  const std::shared_ptr<Bandwidth> bandwidth_;
  const Time ahead_;
};

}  // namespace

std::size_t Bandwidth::take(std::size_t wanted, Time ahead, Time now) {
  const std::uint64_t limit = rate();
  if (limit == MemoryAccount::no_limit || wanted == 0) return wanted;
  std::atomic<std::int64_t>& paid = place_.account->paid(place_.slot);
  std::int64_t known = paid;
  while (true) {
    const Time from = from_of(known, now);
    const Time left = now + ahead - from;
    if (left <= Time(0)) return 0;
    const std::uint64_t may = bytes_in(left, limit);
    if (may < std::min<std::uint64_t>(wanted, least(limit))) return 0;
    const std::size_t taken = std::min<std::uint64_t>(wanted, may);
    if (paid.compare_exchange_weak(known, from.count() + time_of(taken, limit))) return taken;
  }
}

void Bandwidth::take_all(std::size_t bytes, Time now) {
  const std::uint64_t limit = rate();
  if (limit == MemoryAccount::no_limit) return;
  std::atomic<std::int64_t>& paid = place_.account->paid(place_.slot);
  std::int64_t known = paid;
  while (!paid.compare_exchange_weak(known, from_of(known, now).count() + time_of(bytes, limit))) {}
}

void Bandwidth::give_back(std::size_t bytes) {
  const std::uint64_t limit = rate();
  if (limit != MemoryAccount::no_limit && bytes > 0) place_.account->paid(place_.slot) -= time_of(bytes, limit);
}

Bandwidth::Time Bandwidth::wait(Time ahead, Time now) const {
  const std::uint64_t limit = rate();
  if (limit == MemoryAccount::no_limit) return Time(0);
  const Time from = from_of(place_.account->paid(place_.slot), now);
  return std::clamp(Time(time_of(least(limit), limit)) - (now + ahead - from), Time(0), wait_max);
}

std::unique_ptr<Channel> pace(std::unique_ptr<Channel> channel, std::shared_ptr<Bandwidth> bandwidth, bool first) {
  return std::make_unique<PacedChannel>(std::move(channel), std::move(bandwidth), first);
}

}  // namespace fargpu::server
