#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "channel.h"
#include "errors.h"
#include "limits.h"
#include "sealed_memory.h"
#include "sleepers.h"

namespace fargpu {
namespace {

constexpr std::size_t header_bytes = 4096;
// So much is copied before the other end hears of it: both copy at the same time.
constexpr std::size_t published_bytes = 128u << 10;

/// What both ends see of one direction. Either may write anything here at any time: an end believes its own position
/// only, which it keeps elsewhere, and checks the other's.
struct Positions {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  alignas(64) std::atomic<std::uint32_t> writer_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && 2 * sizeof(Positions) <= header_bytes);

std::size_t memory_bytes(std::size_t ring_bytes) { return header_bytes + 2 * ring_bytes; }

class SharedChannel final : public Channel {
 public:
  SharedChannel(std::shared_ptr<Channel> socket, int memory, std::size_t ring_bytes, bool first)
      : socket_(std::move(socket)), ring_bytes_(ring_bytes) {
    if (!std::has_single_bit(ring_bytes) || ring_bytes < limits::ring_bytes_min ||
        ring_bytes > limits::ring_bytes_max || !is_sealed_memory(memory, memory_bytes(ring_bytes)))
      throw ProtocolError(socket_->peer() + " shares memory that is no channel");
    void* const mapped = ::mmap(nullptr, memory_bytes(ring_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (mapped == MAP_FAILED) throw SystemError("no address space for a channel");
    memory_ = static_cast<std::byte*>(mapped);
    auto* const positions = reinterpret_cast<Positions*>(memory_);
    auto* const rings = memory_ + header_bytes;
    out_ = positions + (first ? 0 : 1);
    in_ = positions + (first ? 1 : 0);
    out_ring_ = rings + (first ? 0 : ring_bytes);
    in_ring_ = rings + (first ? ring_bytes : 0);
  }

  ~SharedChannel() override {
    close();
    ::munmap(memory_, memory_bytes(ring_bytes_));
  }

  std::size_t send_some(std::span<const Bytes> pieces) override {
    std::size_t sent = 0;
    for (Bytes piece : pieces) {
      while (!piece.empty()) {
        if (over_.load(std::memory_order_relaxed)) throw ended();
        const std::uint64_t written = written_.load(std::memory_order_relaxed);
        const std::uint64_t used = written - out_->read.load(std::memory_order_acquire);
        if (used > ring_bytes_) throw ProtocolError(peer() + " says it has read what was not written");
        const std::size_t part = std::min({piece.size(), ring_bytes_ - used, published_bytes});
        if (part == 0) return sent;
        const std::size_t begin = written & (ring_bytes_ - 1), straight = std::min(part, ring_bytes_ - begin);
        std::memcpy(out_ring_ + begin, piece.data(), straight);
        std::memcpy(out_ring_, piece.data() + straight, part - straight);
        written_.store(written + part, std::memory_order_relaxed);
        out_->written.store(written + part, std::memory_order_release);
        wake(out_->reader_sleeps);
        piece = piece.subspan(part);
        sent += part;
      }
    }
    return sent;
  }

  std::size_t receive_some(std::span<std::byte> buffer) override {
    std::size_t received = 0;
    while (received < buffer.size()) {
      const bool over = over_.load(std::memory_order_acquire);  // first: what was written before the end counts
      const std::uint64_t read = read_.load(std::memory_order_relaxed);
      const std::uint64_t there = in_->written.load(std::memory_order_acquire) - read;
      if (there > ring_bytes_) throw ProtocolError(peer() + " says it has written more than there is room for");
      const std::size_t part = std::min({buffer.size() - received, static_cast<std::size_t>(there), published_bytes});
      if (part == 0) {
        if (received == 0 && over) throw ended();
        break;
      }
      const std::size_t begin = read & (ring_bytes_ - 1), straight = std::min(part, ring_bytes_ - begin);
      std::memcpy(buffer.data() + received, in_ring_ + begin, straight);
      std::memcpy(buffer.data() + received + straight, in_ring_, part - straight);
      read_.store(read + part, std::memory_order_relaxed);
      in_->read.store(read + part, std::memory_order_release);
      wake(in_->writer_sleeps);
      received += part;
    }
    return received;
  }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    if (const Interest now = ready(interest); now.readable || now.writable) return now;
    const auto begin = std::chrono::steady_clock::now();
    const Sleepers::Sleeper sleeper(sleepers_, waker);
    while (true) {
      if (interest.readable) in_->reader_sleeps.store(1, std::memory_order_relaxed);
      if (interest.writable) out_->writer_sleeps.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // as in wake(): one of the two sees what the other did
      Interest now = ready(interest);
      if (now.readable || now.writable || over_) return now;
      Timeout left = timeout;
      if (timeout >= Timeout::zero())
        left = std::max(Timeout::zero(), timeout - Timeout(std::chrono::steady_clock::now() - begin));
      const bool word = socket_->wait({.readable = true}, left, &sleeper.waker()).readable;
      if (word) hear(&sleeper.waker());
      now = ready(interest);
      if (now.readable || now.writable || over_) return now;
      const bool time_over = timeout >= Timeout::zero() && std::chrono::steady_clock::now() - begin >= timeout;
      if (time_over || (!word && waker)) return now;
    }
  }

  void close() noexcept override {
    over_ = true;
    socket_->close();
  }

  std::string peer() const override { return socket_->peer(); }

  bool passes_descriptors() const override { return true; }
  bool send_descriptor(int descriptor) override { return socket_->send_descriptor(descriptor); }
  int receive_descriptor() override {
    hear();
    const std::lock_guard lock(mutex_);
    return socket_->receive_descriptor();
  }
  bool shares_memory() const override { return true; }
  std::string medium() const override { return "shared memory"; }

 private:
  // Takes what is on the socket: words that woke `self`, descriptors, its end.
  void hear(const Waker* self = nullptr) {
    const std::lock_guard lock(mutex_);
    std::array<std::byte, 64> words;
    try {
      // One that sends without end does not hold this up; each descriptor comes by itself.
      for (int i = 0; i < 64 && socket_->receive_some(words) > 0; ++i) {}
    } catch (const ChannelClosed&) {
      over_.store(true, std::memory_order_release);
    }
    sleepers_.wake(self);
  }

  void wake(std::atomic<std::uint32_t>& sleeps) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeps.load(std::memory_order_relaxed) == 0 || sleeps.exchange(0, std::memory_order_relaxed) == 0) return;
    static constexpr std::array<std::byte, 1> word{};
    const Bytes piece(word);
    try {
      socket_->send_some(std::span(&piece, 1));  // where there is no room, enough is there to wake it
    } catch (const ChannelClosed&) {
      over_.store(true, std::memory_order_release);
    }
  }

  Interest ready(Interest interest) const {
    const bool over = over_.load(std::memory_order_acquire);
    const bool readable = over || in_->written.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
    const bool writable =
        over || written_.load(std::memory_order_relaxed) - out_->read.load(std::memory_order_acquire) != ring_bytes_;
    return {.readable = interest.readable && readable, .writable = interest.writable && writable};
  }

  ChannelClosed ended() const { return ChannelClosed(peer() + " closed the connection"); }

  const std::shared_ptr<Channel> socket_;
  const std::size_t ring_bytes_;
  std::byte* memory_ = nullptr;
  Positions* out_ = nullptr;
  Positions* in_ = nullptr;
  std::byte* out_ring_ = nullptr;
  std::byte* in_ring_ = nullptr;
  std::atomic<std::uint64_t> written_{0};  // our own; atomic because waiting threads look too
  std::atomic<std::uint64_t> read_{0};
  std::atomic<bool> over_{false};  // nothing more will come, or be taken
  std::mutex mutex_;               // reading the socket
  // A word on the socket is for all that sleep, but only one takes it: that one wakes the others.
  Sleepers sleepers_{[this] {
    in_->reader_sleeps.store(0, std::memory_order_relaxed);
    out_->writer_sleeps.store(0, std::memory_order_relaxed);
  }};
};

}  // namespace

std::unique_ptr<Channel> make_shared_channel(std::shared_ptr<Channel> socket, int memory, std::size_t ring_bytes,
                                             bool first) {
  return std::make_unique<SharedChannel>(std::move(socket), memory, ring_bytes, first);
}

int make_ring_memory(std::size_t ring_bytes) { return make_sealed_memory("fargpu-channel", memory_bytes(ring_bytes)); }

}  // namespace fargpu
