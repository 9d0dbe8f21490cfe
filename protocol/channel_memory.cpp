#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "channel.h"
#include "errors.h"
#include "program_memory.h"

namespace fargpu {
namespace {

/// Bytes under way in one direction. The wakers tell pollers of a change; they are level signals in that every waiter
/// looks at the state again after waking.
struct Pipe {
  explicit Pipe(std::size_t capacity_bytes) : ring(capacity_bytes) {}

  std::mutex mutex;
  std::vector<std::byte> ring;
  std::size_t head = 0;  // next byte to read
  std::size_t used = 0;
  bool closed = false;
  Waker filled;
  Waker emptied;

  /// `readable` becomes false if some of the bytes cannot be read; those before have been written.
  std::size_t write(Channel::Bytes bytes, bool& readable) {
    const std::lock_guard lock(mutex);
    if (closed) throw ChannelClosed("the other end of the channel is closed");
    std::size_t written = 0;
    while (written < bytes.size() && used < ring.size()) {
      const std::size_t at = (head + used) % ring.size();
      const std::size_t part = std::min({bytes.size() - written, ring.size() - used, ring.size() - at});
      // Callers rely on it that memory is found unreadable as by a socket.
      if (!read_program_memory(bytes.data() + written, ring.data() + at, part)) {
        readable = false;
        break;
      }
      used += part;
      written += part;
    }
    if (written > 0) filled.signal();
    return written;
  }

  std::size_t read(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex);
    std::size_t got = 0;
    while (got < buffer.size() && used > 0) {
      const std::size_t part = std::min({buffer.size() - got, used, ring.size() - head});
      std::memcpy(buffer.data() + got, ring.data() + head, part);
      head = (head + part) % ring.size();
      used -= part;
      got += part;
    }
    if (got > 0) emptied.signal();
    if (got == 0 && closed && !buffer.empty()) throw ChannelClosed("the other end of the channel is closed");
    return got;
  }

  void close() noexcept {
    const std::lock_guard lock(mutex);
    closed = true;
    filled.signal();
    emptied.signal();
  }

  bool is_closed() {
    const std::lock_guard lock(mutex);
    return closed;
  }
  bool readable() {
    const std::lock_guard lock(mutex);
    return used > 0 || closed;
  }
  bool writable() {
    const std::lock_guard lock(mutex);
    return used < ring.size() || closed;
  }
};

class MemoryChannel final : public Channel {
 public:
  MemoryChannel(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out) : in_(std::move(in)), out_(std::move(out)) {}
  ~MemoryChannel() override { close(); }

  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t sent = 0;
    bool readable = true;
    for (const Bytes& piece : pieces) {
      const std::size_t part = out_->write(piece, readable);
      sent += part;
      if (part < piece.size()) break;
    }
    if (sent == 0 && !readable) throw SystemError("memory to be sent cannot be read");
    return sent;
  }

  std::size_t receive_some(std::span<std::byte> buffer) override { return in_->read(buffer); }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    const auto ready = [&] {
      return Interest{.readable = interest.readable && in_->readable(),
                      .writable = interest.writable && out_->writable()};
    };
    Interest now = ready();
    if (now.readable || now.writable || in_->is_closed()) return now;
    std::array<pollfd, 3> polled{};
    polled[0] = {interest.readable ? in_->filled.descriptor() : -1, POLLIN, 0};
    polled[1] = {interest.writable ? out_->emptied.descriptor() : -1, POLLIN, 0};
    polled[2] = {waker ? waker->descriptor() : -1, POLLIN, 0};
    // Several threads may wait on one waker and drain it under each other: look again now and then.
    constexpr Timeout step = std::chrono::milliseconds(5);
    Timeout left = timeout;
    while (true) {
      const Timeout slice = left < Timeout::zero() ? step : std::min(left, step);
      const timespec time{slice.count() / 1'000'000'000, slice.count() % 1'000'000'000};
      ::ppoll(polled.data(), polled.size(), &time, nullptr);
      if (polled[0].revents) in_->filled.drain();
      if (polled[1].revents) out_->emptied.drain();
      now = ready();
      if (now.readable || now.writable || in_->is_closed()) return now;
      if (polled[2].revents) {
        waker->drain();
        return now;
      }
      if (left >= Timeout::zero() && (left -= slice) <= Timeout::zero()) return now;
    }
  }

  void close() noexcept override {
    in_->close();
    out_->close();
  }

  std::string peer() const override { return "this process"; }

 private:
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
};

}  // namespace

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_memory_channel(std::size_t capacity_bytes) {
  auto forth = std::make_shared<Pipe>(capacity_bytes);
  auto back = std::make_shared<Pipe>(capacity_bytes);
  return {std::make_unique<MemoryChannel>(back, forth), std::make_unique<MemoryChannel>(forth, back)};
}

}  // namespace fargpu
