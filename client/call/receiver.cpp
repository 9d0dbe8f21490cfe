#include "receiver.h"

#include <algorithm>
#include <thread>

#include "client/base/uncancelled.h"
#include "protocol/errors.h"
#include "protocol/words.h"

namespace fargpu::client {
namespace {

constexpr std::chrono::nanoseconds moment = SpareProcessors::moment;  // sleeping takes longer than most answers
/// For how long one that attends looks before it sleeps: to be woken takes little of the steps of a program that take
/// longer.
constexpr std::chrono::nanoseconds attend_spin = std::chrono::milliseconds(1);
constexpr auto attend_sleep = std::chrono::milliseconds(100);  // then it asks whether it is to go on
constexpr auto pass_time = std::chrono::microseconds(20);

/// Counts a thread while it waits.
class Caller {
 public:
  explicit Caller(std::atomic<unsigned>& callers) : callers_(callers) {
    callers_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Caller() { callers_.fetch_sub(1, std::memory_order_relaxed); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

 private:
  std::atomic<unsigned>& callers_;
};

}  // namespace

Receiver::Receiver(Channel& channel, PushHandler& pushes, std::chrono::nanoseconds spin)
    : channel_(channel), pushes_(pushes), spin_(spin), reader_(channel, *this, /*frames_before=*/1) {}  // attachAnswer

void Receiver::expect(std::uint64_t number, PendingReply& pending) {
  const std::lock_guard lock(mutex_);
  if (lost_) throw ChannelClosed(lost_why_);
  pending_[static_cast<std::uint32_t>(number)] = &pending;
}

void Receiver::wait(std::uint64_t number, PendingReply& pending, Manner manner) {
  try {
    wait_for([&] { return pending.done.load(std::memory_order_acquire); }, manner);
  } catch (...) {
    forget(number);
    throw;
  }
}

void Receiver::forget(std::uint64_t number) noexcept {
  const Uncancelled uncancelled;
  std::unique_lock lock(mutex_);
  stop_reading(words("a call could not be sent"));
  channel_.close();  // which ends the reading of the thread that reads
  changed_.wait(lock, [&] { return !reading_; });
  pending_.erase(static_cast<std::uint32_t>(number));
}

void Receiver::wait_until(const std::function<bool()>& ready, Channel::Timeout ask_again) {
  wait_for(ready, Manner::spin, ask_again);
}

template <class Ready>
void Receiver::wait_for(Ready&& ready, Manner manner, Channel::Timeout ask_again) {
  const auto spin = manner == Manner::spin ? spin_ : std::min(spin_, moment);
  const Uncancelled uncancelled;
  const Caller caller(callers_);
  std::unique_lock lock(mutex_);
  while (!ready()) {
    if (passing_.load(std::memory_order_relaxed)) {
      let_pass(lock);
      if (ready()) return;
    }
    if (reading_) {  // also after a loss: the thread that reads may be writing where this one wants its data
      if (ask_again == Channel::forever) changed_.wait(lock);
      else changed_.wait_for(lock, ask_again);
      continue;
    }
    if (lost_) throw ChannelClosed(lost_why_);
    if (!stopped_why_.empty()) throw ChannelClosed(stopped_why_);
    read(lock, [&] { read_until(ready, spin, ask_again); });  // the next one that waits reads on
  }
}

// A thread that takes what is there is done with it sooner than this one would sleep.
void Receiver::let_pass(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const auto end = std::chrono::steady_clock::now() + pass_time;
  while (passing_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < end) {}
  lock.lock();
}

// Reads without the lock. A reader that has thrown is in the middle of something, and is never used again.
template <class Read>
void Receiver::read(std::unique_lock<std::mutex>& lock, Read&& read) {
  reading_ = true;
  lock.unlock();
  std::string failure;
  std::exception_ptr thrown;
  try {
    read();
  } catch (const std::exception& error) {
    failure = words(error.what());
    thrown = std::current_exception();
  } catch (...) {
    thrown = std::current_exception();
  }
  passing_.store(false, std::memory_order_release);
  lock.lock();
  reading_ = false;
  if (thrown) stop_reading(failure.empty() ? words("the worker broke the protocol") : failure);
  changed_.notify_all();
  if (thrown) std::rethrow_exception(thrown);
}

void Receiver::stop_reading(const std::string& why) {
  if (stopped_why_.empty()) stopped_why_ = words(why);
}

// A processor that slept for milliseconds takes tenths of one to be back at full speed, which a program pays that waits
// in each of its steps. So this looks on for about as long as steps take. Most answers come within a moment; after that
// other threads go first. Where all processors are busy it sleeps soon.
template <class Ready>
void Receiver::read_until(Ready&& ready, std::chrono::nanoseconds spin, Channel::Timeout ask_again) {
  const auto begin = std::chrono::steady_clock::now();
  auto heard = begin;
  Spell spell(spare_);
  while (!ready()) {
    const bool progress = reader_.pump();
    const auto now = std::chrono::steady_clock::now();
    if (progress) heard = now;
    if (now - heard < std::min(spin, spare_.first_look(now))) continue;
    if (now - begin < spin && spell.go_on(now)) continue;
    if (progress) continue;
    spell.stop();
    channel_.wait({.readable = true}, ask_again);  // lose() closes the channel, which ends this wait
  }
}

bool Receiver::serve() {
  if (callers_.load(std::memory_order_relaxed) > 0) return false;
  const Uncancelled uncancelled;
  std::unique_lock lock(mutex_);
  if (reading_ || lost_ || !stopped_why_.empty()) return false;
  bool progress = false;
  passing_.store(true, std::memory_order_relaxed);
  read(lock, [&] { progress = reader_.pump(); });
  return progress;
}

Receiver::Attended Receiver::attend(const std::function<bool()>& ready, Waker& waker) {
  auto heard = std::chrono::steady_clock::now();
  Spell spell(spare_);
  while (!ready()) {
    if (callers_.load(std::memory_order_relaxed) > 0) return Attended::others;
    const bool progress = serve();
    const auto now = std::chrono::steady_clock::now();
    if (progress) {
      heard = now;
      continue;
    }
    const auto spin = std::min(spin_, attend_spin);
    if (now - heard < std::min(spin, spare_.first_look(now))) continue;
    if (now - heard < spin && spell.go_on(now)) continue;
    spell.stop();
    if (over()) return Attended::over;
    channel_.wait({.readable = true}, attend_sleep, &waker);
  }
  return Attended::ready;
}

bool Receiver::over() {
  const std::lock_guard lock(mutex_);
  return lost_ || !stopped_why_.empty();
}

std::string Receiver::lose(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!lost_) {
    lost_ = true;
    lost_why_ = words(why);
  }
  channel_.close();
  changed_.notify_all();
  return lost_why_;
}

std::optional<std::span<std::byte>> Receiver::place(const FrameHeader& header, std::span<const std::byte> message) {
  std::span<std::byte> target;
  if (header.kind == FrameKind::data) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(header.subject);
    if (found != pending_.end()) {
      PendingReply& pending = *found->second;
      const auto rest = pending.target.subspan(std::min(pending.arrived_bytes, pending.target.size()));
      if (rest.size() >= header.bulk_bytes) target = rest.first(header.bulk_bytes);
    }
  } else if (header.kind == FrameKind::control) {
    MessageReader reader(message);
    const auto push = reader.root<wire::Control>();
    if (push.isDeliver()) target = pushes_.place_delivery(push.getDeliver(), header.bulk_bytes);
  }
  if (target.empty()) {
    discarded_.resize(header.bulk_bytes);
    target = discarded_;
  }
  return target;
}

void Receiver::take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) {
  confirmed_.store(static_cast<std::uint32_t>(reader_.frames()), std::memory_order_relaxed);
  bytes_.fetch_add(reader_.wire_bytes(), std::memory_order_relaxed);
  switch (header.kind) {
    case FrameKind::reply: {
      const std::lock_guard lock(mutex_);
      const auto found = pending_.find(header.subject);
      if (found == pending_.end())
        throw ProtocolError("a reply to call " + std::to_string(header.subject) + ", for which nobody waits");
      PendingReply& pending = *found->second;
      pending_.erase(found);
      pending.result = static_cast<CUresult>(header.detail);
      pending.message.assign(message.begin(), message.end());
      pending.done.store(true, std::memory_order_release);
      changed_.notify_all();
      return;
    }
    case FrameKind::data: {
      const std::lock_guard lock(mutex_);
      const auto found = pending_.find(header.subject);
      if (found == pending_.end()) return;
      found->second->arrived_bytes += bulk.size();
      found->second->spoiled |= reader_.spoiled();
      return;
    }
    case FrameKind::control: {
      MessageReader reader(message);
      pushes_.on_push(reader.root<wire::Control>(), bulk.data() == discarded_.data() ? std::span<std::byte>{} : bulk);
      { const std::lock_guard lock(mutex_); }  // a thread that looked before this came is asleep by now
      changed_.notify_all();
      return;
    }
    case FrameKind::confirm:
    case FrameKind::heartbeat:
      return;  // that something came is all they say; the service thread answers by its own heartbeat
    case FrameKind::call: break;
  }
  throw ProtocolError("a frame of a kind that a worker does not send");
}

}  // namespace fargpu::client
