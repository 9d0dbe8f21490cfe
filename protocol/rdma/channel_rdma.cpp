#include "channel_rdma.h"

#include <openssl/rand.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "protocol/device_bytes.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/program_memory.h"
#include "protocol/sleepers.h"
#include "protocol/straight_sender.h"
#include "protocol/text.h"
#include "ring_parts.h"
#include "stable_memory.h"

namespace fargpu::rdma {
namespace {

using Clock = std::chrono::steady_clock;

// So much is copied before the device begins to put it: both work at the same time.
constexpr std::size_t step_bytes = 256u << 10;
constexpr std::size_t straight_bytes_min = 32u << 10;  // less is gathered
// For so long, at most, what was sent before the end is let out, and waited for.
constexpr auto parting = std::chrono::milliseconds(100);
constexpr std::uint64_t had_all = ~std::uint64_t{0}, rdma_failed = ~std::uint64_t{1};
constexpr auto moment = std::chrono::microseconds(30);
constexpr int arming = 16;
constexpr Channel::Timeout unarmed_sleep = std::chrono::microseconds(50);
constexpr Channel::Timeout looked_at_sleep = std::chrono::microseconds(200);
constexpr int looks_for_lock = 2000;
constexpr int looks_at_once = 4;  // what a thread does until it comes again takes longer than one
constexpr int looks_of_work = 64;
// What UCX reads of an address or a key says itself where it ends: behind what a peer sent it finds zeros.
constexpr std::size_t facts_bytes_max = 4096, zeros_behind = 16384;

/// In front of each message.
struct Head {
  std::array<std::byte, secret_bytes> secret;
  std::uint64_t written;  ///< the sender has written so much; the message's body are the last of these bytes
  std::uint64_t read;     ///< and read so much of what it was sent
};
static_assert(sizeof(Head) == 32 && sizeof(Head) <= head_bytes_max);

}  // namespace

class RdmaChannel final : public Channel, public StraightSender {
 public:
  RdmaChannel(std::shared_ptr<OpenedDevices> devices, std::size_t ring_bytes, std::shared_ptr<std::byte> ring)
      : devices_(std::move(devices)),
        rdma_(devices_->functions()),
        ring_bytes_(ring_bytes),
        gpu_ring_(std::move(ring)) {
    if (gpu_ring_) bodies_.resize(ring_bytes);
    std::array<char, why_bytes> why{};
    const Events events{this, on_message, on_flushed, on_failed};
    line_ = rdma_.open_line(devices_->context(), ring_bytes, gpu_ring_.get(), &events, why.data());
    if (!line_) throw RdmaError(printable(why.data(), why_bytes));
    in_ring_ = static_cast<std::byte*>(rdma_.ring(line_));
    End end{};
    rdma_.end(line_, &end);
    const auto bytes_of = [](const void* data, std::size_t size) {
      const auto* const begin = static_cast<const std::byte*>(data);
      return std::vector<std::byte>(begin, begin + size);
    };
    own_ = {bytes_of(end.address, end.address_bytes), bytes_of(end.key, end.key_bytes), end.ring, ring_bytes,
            std::vector<std::byte>(secret_bytes)};
    if (RAND_bytes(reinterpret_cast<unsigned char*>(own_.secret.data()), secret_bytes) != 1)
      throw RdmaError("there are no random numbers for the key of a connection");
  }

  ~RdmaChannel() override {
    close();
    if (mirror_) ::munmap(mirror_, other_.ring_bytes);
  }

  const EndFacts& facts() const { return own_; }

  void connect(const EndFacts& other) {
    if (!std::has_single_bit(other.ring_bytes) || other.ring_bytes < limits::ring_bytes_min ||
        other.ring_bytes > limits::rdma_ring_bytes || other.secret.size() != secret_bytes || other.address.empty() ||
        other.address.size() > facts_bytes_max || other.key.empty() || other.key.size() > facts_bytes_max)
      throw ProtocolError("the other end of a connection by RDMA is none");
    other_ = other;
    other_.address.resize(other.address.size() + zeros_behind);
    other_.key.resize(other.key.size() + zeros_behind);
    std::copy(other.secret.begin(), other.secret.end(), other_secret_.begin());
    void* const mirror = ::mmap(nullptr, other.ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mirror == MAP_FAILED) throw RdmaError("no memory for a connection by RDMA");
    mirror_ = static_cast<std::byte*>(mirror);
    ::madvise(mirror_, other.ring_bytes, MADV_DONTFORK);  // a child has no use for it, and the device no other pages
    std::array<char, why_bytes> why{};
    if (rdma_.knows_memory()) {
      mirror_memory_ = rdma_.know(devices_->context(), mirror_, other.ring_bytes, MemoryKind::host, why.data());
      if (!mirror_memory_) throw RdmaError(printable(why.data(), why_bytes));
    }
    const End end{other_.address.data(), other.address.size(), other_.key.data(), other.key.size(), other_.ring};
    if (!rdma_.connect(line_, &end, why.data())) throw RdmaError(printable(why.data(), why_bytes));
  }

  void meet(std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    std::unique_lock lock(mutex_);
    say_how_far();
    while (!met_) {
      work();
      if (!fault_.empty()) throw RdmaError(fault_);
      if (Clock::now() >= deadline) throw RdmaError("the other end does not answer by RDMA");
      pollfd polled{rdma_.descriptor(line_), POLLIN, 0};
      if (!met_ && rdma_.arm(line_)) ::poll(&polled, 1, 1);  // it may still be on its way to be connected
    }
  }

  std::string describe() const {
    const std::lock_guard lock(mutex_);
    std::array<char, 256> text{};
    rdma_.describe(line_, text.data(), text.size());
    return printable(text.data(), text.size());
  }

  void set_connection(std::shared_ptr<Channel> connection) {
    connection_ = std::move(connection);
    goes_by_ = describe();
  }

  // --- the channel ---------------------------------------------------------------------------------------------------

  std::size_t send_some(std::span<const Bytes> pieces) override {
    const Use use(*this);
    if (!use) throw_end();
    std::size_t sent = 0, gathered = 0;
    const auto hand_over = [&] {
      if (gathered > 0) post(std::exchange(gathered, 0));
    };
    for (Bytes piece : pieces) {
      while (!piece.empty()) {
        std::size_t room = other_.ring_bytes - (filled_ - other_read_.load(std::memory_order_acquire));
        if (room == 0) {
          hand_over();
          room = look_for_room();
        }
        const std::size_t begin = filled_ & (other_.ring_bytes - 1);
        const std::size_t part =
            std::min({piece.size(), room, step_bytes - gathered, static_cast<std::size_t>(other_.ring_bytes - begin)});
        if (part == 0) return sent;
        if (part >= straight_bytes_min && within(piece.first(part), lent_)) {
          hand_over();
          if (post_straight(piece.first(part))) {
            sent += part;
            piece = piece.subspan(part);
            continue;
          }
        }
        if (!read_program_memory(piece.data(), mirror_ + begin, part)) {
          hand_over();
          throw_if_on_device(piece.data());
          if (sent == 0) throw SystemError("memory to be sent cannot be read");
          return sent;
        }
        filled_ += part;
        gathered += part;
        sent += part;
        piece = piece.subspan(part);
        if (gathered == step_bytes) hand_over();
      }
    }
    hand_over();
    see_landed();
    return sent;
  }

  std::size_t receive_some(std::span<std::byte> buffer) override {
    if (buffer.empty()) return 0;
    const Use use(*this);
    if (!use) throw_end();
    const bool over = over_.load(std::memory_order_acquire);  // first: what came before the end counts
    bool came = false;
    if (in_written_.load(std::memory_order_acquire) == read_.load(std::memory_order_relaxed)) {
      looks_.fetch_add(1, std::memory_order_relaxed);
      // A thread that has it looks as well, and one that sends goes first.
      std::unique_lock lock(mutex_, std::defer_lock);
      if (senders_.load(std::memory_order_relaxed) == 0 && lock.try_lock()) {
        for (int i = 0; i < looks_at_once && !came && senders_.load(std::memory_order_relaxed) == 0; ++i) came = look();
        if (changed_) sleepers_.wake();  // what only came is for this thread
      }
    }
    const std::uint64_t read = read_.load(std::memory_order_relaxed);
    const std::uint64_t there = in_written_.load(std::memory_order_acquire) - read;
    const std::size_t begin = read & (ring_bytes_ - 1);
    std::size_t got = std::min<std::size_t>(buffer.size(), there);
    if (got == 0) {
      if (!finished()) return 0;
      const std::lock_guard lock(mutex_);
      throw_fault();
      if (over && in_written_ == read_) throw_end();
      return 0;
    }
    const std::byte* from = in_ring_;
    if (gpu_ring_) {
      // Up to where the bytes lie elsewhere: a frame's head, which comes in a message, by itself.
      const std::lock_guard lock(parts_mutex_);
      const RingParts::Part part = parts_.at(read);
      got = std::min<std::size_t>(got, part.end - read);
      if (part.in_messages) from = bodies_.data();
    }
    const std::size_t straight = std::min(got, ring_bytes_ - begin);
    if (!take(from + begin, buffer.first(straight)) ||
        (got > straight && !take(from, buffer.subspan(straight, got - straight)))) {
      if (came) sleepers_.wake();
      throw_if_on_device(from);
      throw_if_on_device(buffer.data());
      throw SystemError("memory to receive into cannot be written");
    }
    read_.store(read + got, std::memory_order_release);
    if (read + got - told_read_.load(std::memory_order_relaxed) >= ring_bytes_ / 4) {
      const std::lock_guard lock(mutex_);
      if (fault_.empty()) say_how_far();
    }
    if (came && got < there) sleepers_.wake();  // this thread may not come for the rest
    return got;
  }

  void lend(Bytes bytes) override { lent_ = bytes; }

  bool needs(Bytes bytes) override {
    const Use use(*this);
    if (!use) return false;
    const std::lock_guard lock(mutex_);
    if (work()) sleepers_.wake();
    return std::any_of(straight_.begin(), straight_.end(), [&](const Straight& one) {
      return one.bytes.data() < bytes.data() + bytes.size() && bytes.data() < one.bytes.data() + one.bytes.size();
    });
  }

  Interest wait(Interest interest, Timeout timeout, Waker* waker) override {
    const Use use(*this);
    if (!use) return interest;
    if (const Interest now = ready(interest); now.readable || now.writable) return now;
    const auto deadline = Clock::now() + std::max(timeout, Timeout::zero());
    const WaitForRoom for_room(*this, interest.writable);
    const Sleepers::Sleeper sleeper(sleepers_, waker);
    std::uint64_t looks = looks_.load(std::memory_order_relaxed);
    while (true) {
      // While another thread looks, it takes what comes. Each message would wake this one for nothing, by a system call
      // of the other end's where that is in shared memory.
      const std::uint64_t looks_now = looks_.load(std::memory_order_relaxed);
      const bool looked_at = std::exchange(looks, looks_now) != looks_now;
      bool armed = false, changed = false;
      if (!looked_at) {
        const std::lock_guard lock(mutex_);
        // Where the other end's shared memory has no room, nothing will tell when it has.
        for (int i = 0; i < arming && fault_.empty() && !(armed = rdma_.arm(line_)); ++i) changed |= work();
        changed |= work();  // what came before it was armed
      }
      if (changed) sleepers_.wake(&sleeper.waker());
      Interest now = ready(interest);
      if (now.readable || now.writable || finished()) return now;
      Timeout left = timeout;
      if (timeout >= Timeout::zero()) left = std::max<Timeout>(deadline - Clock::now(), Timeout::zero());
      const Timeout longest = looked_at ? looked_at_sleep : unarmed_sleep;
      if (!armed && (left < Timeout::zero() || left > longest)) left = longest;
      const bool woken = sleep(left, armed, sleeper.waker());
      now = ready(interest);
      if (now.readable || now.writable || finished()) return now;
      if ((woken && waker) || (timeout >= Timeout::zero() && Clock::now() >= deadline)) return now;
    }
  }

  // What was sent is had by the other end before this one goes, which takes its device's part in it along.
  void let_out() noexcept override {
    const Use use(*this);
    if (!use || !connection_) return;
    const auto deadline = Clock::now() + parting;
    try {
      {
        const std::lock_guard lock(mutex_);
        if (!fault_.empty() || over_) return;
        parted_ = false;
        tell(posted_);
      }
      while (!parted_ && !finished() && Clock::now() < deadline) {
        pollfd polled{connection_->descriptor(), POLLIN, 0};
        const bool word = ::poll(&polled, 1, 1) > 0;
        const std::lock_guard lock(mutex_);
        if (word) hear_connection();
        if (work()) sleepers_.wake();
      }
    } catch (const std::exception&) {  // the other end is gone, or memory is: it ends all the same
    }
  }

  // A program may keep a channel long after its session. What UCX has for it, descriptors among that, goes now.
  void close() noexcept override {
    if (closed_.exchange(true)) return;
    let_out();
    tell_failure();
    over_.store(true, std::memory_order_release);
    if (connection_) connection_->close();
    sleepers_.wake();
    if (uses_.fetch_or(no_more_uses) == 0) take_down();
  }

  bool takes_device_bytes() const override { return true; }

  int descriptor() const override { return connection_ ? connection_->descriptor() : -1; }
  std::string medium() const override { return "RDMA (" + goes_by_ + ")"; }
  std::string peer() const override { return connection_ ? connection_->peer() : "the other end"; }

 private:
  // --- what the plugin tells, under the mutex -----------------------------------------------------------------------

  static void on_message(void* self, const void* head, std::size_t head_bytes, const void* body,
                         std::size_t body_bytes) {
    static_cast<RdmaChannel*>(self)->hear(head, head_bytes, static_cast<const std::byte*>(body), body_bytes);
  }
  static void on_flushed(void* self) {
    auto& channel = *static_cast<RdmaChannel*>(self);
    if (channel.flushing_.empty()) return;
    channel.landed_ = channel.flushing_.front();
    channel.flushing_.pop_front();
  }
  static void on_failed(void* self, const char* why) {
    auto& channel = *static_cast<RdmaChannel*>(self);
    channel.line_failed_ = true;
    channel.fail(printable(why, why_bytes));
  }

  void fail(const std::string& why) {
    if (fault_.empty()) fault_ = why;
    failed_.store(true, std::memory_order_release);
    changed_ = true;
  }

  // Everybody on the network can send messages here: one without the key is not heard. One that says nothing new, such
  // as an old one come again, changes nothing.
  void hear(const void* head_bytes, std::size_t size, const std::byte* body, std::size_t body_bytes) {
    Head head;
    if (size != sizeof(head)) return;
    std::memcpy(&head, head_bytes, sizeof(head));
    unsigned difference = 0;  // all of it, so that the time tells nothing
    for (std::size_t i = 0; i < secret_bytes; ++i)
      difference |= std::to_integer<unsigned>(head.secret[i] ^ own_.secret[i]);
    if (difference != 0) return;
    met_ = true;
    const std::uint64_t other_read = other_read_.load(std::memory_order_relaxed);
    if (head.read > posted_) return fail("the other end says it has read what was not written");
    if (head.read > other_read) {
      other_read_.store(head.read, std::memory_order_release);
      // Each message says so, and to wake a thread takes longer than the message did.
      if (waiting_for_room_ > 0) changed_ = true;
    }
    const std::uint64_t written = in_written_.load(std::memory_order_relaxed);
    if (head.written <= written) return;
    if (head.written - read_.load(std::memory_order_acquire) > ring_bytes_)
      return fail("the other end says it has written more than there is room for");
    if (body_bytes > 0) {
      if (head.written - written != body_bytes) return fail("the other end leaves bytes out");
      const std::size_t begin = written & (ring_bytes_ - 1), straight = std::min(body_bytes, ring_bytes_ - begin);
      std::byte* const to = gpu_ring_ ? bodies_.data() : in_ring_;
      std::memcpy(to + begin, body, straight);
      std::memcpy(to, body + straight, body_bytes - straight);
    }
    if (gpu_ring_) {
      const std::lock_guard lock(parts_mutex_);
      if (!parts_.add(head.written, body_bytes > 0, read_.load(std::memory_order_acquire)))
        return fail("the other end sends in smaller parts than it may");
    }
    in_written_.store(head.written, std::memory_order_release);
    came_ = true;
  }

  // --- under the mutex ----------------------------------------------------------------------------------------------

  // Lets the plugin work until it has no more to do. Returns whether anything is new for threads that wait.
  bool work() {
    bool news = false;
    for (int looks = 0; looks < looks_of_work; ++looks) {
      news |= look();
      if (!worked_) break;
    }
    return news;
  }

  // Lets the plugin work until it has told of something, and says what follows from that. Returns whether anything is
  // new: bytes have come, or something else has changed.
  bool look() {
    changed_ = came_ = worked_ = false;
    if (!fault_.empty()) return false;
    worked_ = rdma_.progress(line_);
    while (!straight_.empty() && straight_.front().end <= landed_) straight_.pop_front();
    if (fault_.empty() && landed_ > told_written_) {
      told_written_ = landed_;
      say_how_far();
    }
    if (flushing_.empty()) landing_.store(false, std::memory_order_relaxed);
    return changed_ || came_;
  }

  void say_how_far() { say({}); }

  void say(Bytes body) {
    Head head{other_secret_, told_written_, read_.load(std::memory_order_relaxed)};
    told_read_.store(head.read, std::memory_order_relaxed);
    if (!rdma_.send(line_, &head, sizeof(head), body.data(), body.size())) fail("a message by RDMA cannot be sent");
  }

  // A line fails also because the other end has gone. The connection tells that in plainer words, at nearly that time.
  void throw_fault() {
    if (fault_.empty()) return;
    const auto deadline = Clock::now() + parting;
    while (line_failed_ && connection_) {
      hear_connection();
      if (over_.load(std::memory_order_relaxed)) throw_end();
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd polled{connection_->descriptor(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) == 0) line_failed_ = false;
    }
    throw ChannelClosed("connection to " + peer() + " lost: " + fault_);
  }

  void broke(const std::string& why) {
    if (broke_.load()) return;
    broke_why_ = why;
    broke_.store(true, std::memory_order_release);
  }

  // The connection is whole and ends in order, by which the other end would know that this one goes for good.
  void tell_failure() noexcept {
    try {
      const std::lock_guard lock(mutex_);
      if (connection_ && !fault_.empty() && !over_) tell(rdma_failed);
    } catch (const std::exception&) {  // the other end is gone, or memory is
    }
  }

  // By it comes its end, and before that some words: how much the other end has sent by RDMA, that it has had all that
  // was sent to it, and that its RDMA has failed.
  void hear_connection() {
    const auto deadline = Clock::now() + parting;
    try {
      while (Clock::now() < deadline) {
        const std::size_t got =
            connection_->receive_some(std::as_writable_bytes(std::span(&word_, 1)).subspan(word_bytes_));
        if (got == 0) return;
        word_bytes_ += got;
        if (word_bytes_ < sizeof(word_)) continue;
        word_bytes_ = 0;
        if (word_ == had_all) {
          parted_ = true;
          continue;
        }
        if (word_ == rdma_failed) {
          broke("connection to " + peer() + " lost: RDMA has failed there");
          continue;
        }
        if (word_ > in_written_ + ring_bytes_)
          return fail("the other end says it has sent more than there is room for");
        const bool waits = in_written_ < word_;
        while (in_written_ < word_ && fault_.empty() && Clock::now() < deadline) work();
        tell(had_all);
        if (waits) return;  // an honest end says nothing behind it
      }
    } catch (const ChannelClosed& closed) {
      if (!is_end(closed)) broke(closed.what());
      over_.store(true, std::memory_order_release);
    }
  }

  // ---------------------------------------------------------------------------------------------------------------------

  // A thread that looks for what comes has the mutex nearly always, each time for less than it takes to sleep.
  std::unique_lock<std::mutex> lock_to_send() {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) return lock;
    senders_.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < looks_for_lock && !lock.try_lock(); ++i) {}
    if (!lock) lock.lock();
    senders_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
  }

  // Where the process ends meanwhile, the ring goes with UCX: a read of the plugin's says so, or the kernel.
  bool take(const std::byte* from, std::span<std::byte> to) const {
    if (!gpu_ring_ && OwnMemory::in_effect())
      return rdma_.read(line_, static_cast<std::uint64_t>(from - in_ring_), to.data(), to.size());
    return write_program_memory(from, to.data(), to.size());
  }

  static bool within(Bytes part, Bytes all) {
    return part.data() >= all.data() && part.data() + part.size() <= all.data() + all.size();
  }

  // The bytes go to the other end's ring from where they lie. False if nothing keeps them there.
  bool post_straight(Bytes bytes) {
    auto hold = StableMemory::of_process().hold(bytes, devices_);
    if (!hold) return false;
    const auto lock = lock_to_send();
    throw_fault();
    if (over_.load(std::memory_order_relaxed)) throw_end();
    const std::size_t place = filled_ & (other_.ring_bytes - 1);
    filled_ += bytes.size();
    posted_ = filled_;
    if (!rdma_.put(line_, place, bytes.data(), bytes.size(), hold->known())) fail("bytes cannot be put by RDMA");
    straight_.push_back({filled_, bytes, std::move(*hold)});
    flush();
    throw_fault();
    if (work()) sleepers_.wake();
    return true;
  }

  void flush() {
    flushing_.push_back(filled_);
    landing_.store(true, std::memory_order_relaxed);
    if (!rdma_.flush(line_)) fail("bytes cannot be put by RDMA");
  }

  // The last `bytes` of the mirror go to the other end's ring, in which they have the same place.
  void post(std::size_t bytes) {
    const auto lock = lock_to_send();
    throw_fault();
    if (over_.load(std::memory_order_relaxed)) throw_end();
    const std::uint64_t begin = filled_ - bytes;
    const std::size_t place = begin & (other_.ring_bytes - 1);
    const std::size_t straight = std::min<std::size_t>(bytes, other_.ring_bytes - place);
    const auto both = [&](auto&& each) {
      each(place, straight);
      if (bytes > straight) each(std::size_t{0}, bytes - straight);
    };
    posted_ = filled_;
    // A message overtakes what is being put.
    if (bytes <= message_bytes_max && flushing_.empty() && landed_ == told_written_) {
      both([&](std::size_t at, std::size_t part) {
        told_written_ += part;
        say({mirror_ + at, part});
      });
      landed_ = told_written_;
    } else {
      both([&](std::size_t at, std::size_t part) {
        if (!rdma_.put(line_, at, mirror_ + at, part, mirror_memory_)) fail("bytes cannot be put by RDMA");
      });
      flush();
    }
    throw_fault();
    if (work()) sleepers_.wake();
  }

  // A device is done in a moment: then the other end hears of it now, and not when a thread comes to look.
  void see_landed() {
    if (!landing_.load(std::memory_order_relaxed)) return;
    const auto begin = Clock::now();
    do {
      const auto lock = lock_to_send();
      if (work()) sleepers_.wake();
    } while (landing_.load(std::memory_order_relaxed) && Clock::now() - begin < moment);
  }

  std::size_t look_for_room() {
    const auto lock = lock_to_send();
    if (work()) sleepers_.wake();
    throw_fault();
    if (over_.load(std::memory_order_relaxed)) throw_end();
    return other_.ring_bytes - (filled_ - other_read_.load(std::memory_order_relaxed));
  }

  // Until something happens, or the time is over. Returns whether the waker was signalled.
  bool sleep(Timeout left, bool armed, Waker& waker) {
    std::array<pollfd, 3> polled{};
    polled[0] = {armed ? rdma_.descriptor(line_) : -1, POLLIN, 0};
    polled[1] = {connection_->descriptor(), POLLIN, 0};
    polled[2] = {waker.descriptor(), POLLIN, 0};
    const timespec time{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    ::ppoll(polled.data(), polled.size(), left < Timeout::zero() ? nullptr : &time, nullptr);
    if (polled[2].revents) waker.drain();
    bool changed = polled[1].revents != 0;
    {
      const std::lock_guard lock(mutex_);
      if (changed) hear_connection();
      changed |= work();
    }
    // Those that sleep on must arm the descriptor anew.
    if (changed || polled[0].revents) sleepers_.wake(&waker);
    return polled[2].revents != 0;
  }

  void tell(std::uint64_t word) {
    const Bytes bytes = std::as_bytes(std::span(&word, 1));
    connection_->send_some(std::span(&bytes, 1));
  }

  bool finished() const { return over_.load(std::memory_order_acquire) || failed_.load(std::memory_order_acquire); }

  Interest ready(Interest interest) const {
    const bool readable =
        finished() || in_written_.load(std::memory_order_acquire) != read_.load(std::memory_order_relaxed);
    const bool writable = finished() || filled_ - other_read_.load(std::memory_order_acquire) != other_.ring_bytes;
    return {.readable = interest.readable && readable, .writable = interest.writable && writable};
  }

  /// A thread in wait() that wants room, from before it looks for the last time.
  class WaitForRoom {
   public:
    WaitForRoom(RdmaChannel& channel, bool waits) : channel_(channel), waits_(waits) { add(1); }
    ~WaitForRoom() { add(-1); }
    WaitForRoom(const WaitForRoom&) = delete;
    WaitForRoom& operator=(const WaitForRoom&) = delete;

   private:
    void add(int count) {
      if (!waits_) return;
      const std::lock_guard lock(channel_.mutex_);
      channel_.waiting_for_room_ += count;
    }

    RdmaChannel& channel_;
    const bool waits_;
  };

  /// A thread that uses the line. None begins to after close(), and the last one that does takes the line down.
  class Use {
   public:
    explicit Use(RdmaChannel& channel) : channel_(channel) {
      unsigned uses = channel.uses_.load();
      while ((uses & no_more_uses) == 0 && !granted_) granted_ = channel.uses_.compare_exchange_weak(uses, uses + 1);
    }
    ~Use() {
      if (granted_ && channel_.uses_.fetch_sub(1) == (no_more_uses | 1)) channel_.take_down();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const { return granted_; }

   private:
    RdmaChannel& channel_;
    bool granted_ = false;
  };
  static constexpr unsigned no_more_uses = 1u << 31;

  void take_down() noexcept {
    rdma_.close_line(line_);
    straight_.clear();
    if (mirror_memory_) rdma_.forget(devices_->context(), mirror_memory_);
  }

  [[noreturn]] void throw_end() const {
    if (broke_.load(std::memory_order_acquire)) throw ChannelClosed(broke_why_);
    throw ChannelEnded(peer() + " closed the connection");
  }

  const std::shared_ptr<OpenedDevices> devices_;
  const Interface& rdma_;
  const std::size_t ring_bytes_;
  // In memory of a GPU, which the processor cannot write: what comes in messages lies in the same place of `bodies_`.
  const std::shared_ptr<std::byte> gpu_ring_;
  std::vector<std::byte> bodies_;
  std::mutex parts_mutex_;  // after the line's
  RingParts parts_;         // of what is in the ring
  std::shared_ptr<Channel> connection_;
  std::string goes_by_;
  std::atomic<unsigned> uses_{0};  // of the line
  Line* line_ = nullptr;
  EndFacts own_, other_;
  std::array<std::byte, secret_bytes> other_secret_{};
  std::byte* in_ring_ = nullptr;
  std::byte* mirror_ = nullptr;  // of the other end's ring: what is there, or on its way
  Memory* mirror_memory_ = nullptr;
  Bytes lent_;                                // the sender's
  std::atomic<std::uint64_t> filled_{0};      // of the mirror; the sender's
  std::atomic<std::uint64_t> other_read_{0};  // of what was sent, by the other end
  std::atomic<std::uint64_t> in_written_{0};  // in this end's ring, as the other end says
  std::atomic<std::uint64_t> read_{0};        // of it; the receiver's
  std::atomic<std::uint64_t> told_read_{0};   // of that, what the other end knows
  std::atomic<std::uint64_t> looks_{0};       // of receivers that found nothing there
  std::atomic<bool> landing_{false};          // the device has not said of all that it lies there
  std::atomic<bool> over_{false};             // nothing more will come, or be taken
  std::atomic<bool> broke_{false};            // before that: the connection did not end in order
  std::atomic<bool> failed_{false};           // fault_ says why
  std::atomic<bool> closed_{false};
  std::atomic<bool> parted_{false};  // the other end has had all that was sent
  std::atomic<int> senders_{0};      // that wait for the mutex
  mutable std::mutex mutex_;         // of the line, and of everything below; after it, the sleepers'
  std::uint64_t posted_ = 0;         // of what was filled, what the line has
  std::uint64_t landed_ = 0;         // of that, what is known to lie in the other end's ring
  std::uint64_t told_written_ = 0;   // of that, what the other end has been told
  std::deque<std::uint64_t> flushing_;
  /// Sent from where they lie, until the line is done with them.
  struct Straight {
    std::uint64_t end;  // of the stream, where they end
    Bytes bytes;
    StableMemory::Hold hold;
  };
  std::deque<Straight> straight_;
  std::string broke_why_;  // written once, before broke_
  std::string fault_;
  bool line_failed_ = false;  // as UCX says: its words are the fault
  std::uint64_t word_ = 0;    // that comes by the connection
  std::size_t word_bytes_ = 0;
  bool met_ = false;
  int waiting_for_room_ = 0;  // threads
  bool changed_ = false;      // by what the line told last: room that is waited for, or a fault
  bool came_ = false;         // bytes
  bool worked_ = false;       // the plugin, so that there may be more
  Sleepers sleepers_;
};

ChannelEnd::ChannelEnd(std::shared_ptr<OpenedDevices> devices, std::size_t ring_bytes, std::shared_ptr<std::byte> ring)
    : channel_(std::make_unique<RdmaChannel>(std::move(devices), ring_bytes, std::move(ring))) {}
ChannelEnd::~ChannelEnd() = default;
ChannelEnd::ChannelEnd(ChannelEnd&&) noexcept = default;
ChannelEnd& ChannelEnd::operator=(ChannelEnd&&) noexcept = default;

const EndFacts& ChannelEnd::facts() const { return channel_->facts(); }
void ChannelEnd::connect(const EndFacts& other) { channel_->connect(other); }
void ChannelEnd::meet(std::chrono::milliseconds timeout) { channel_->meet(timeout); }
std::string ChannelEnd::describe() const { return channel_->describe(); }

std::unique_ptr<Channel> ChannelEnd::open(std::shared_ptr<Channel> connection) && {
  channel_->set_connection(std::move(connection));
  return std::move(channel_);
}

}  // namespace fargpu::rdma
