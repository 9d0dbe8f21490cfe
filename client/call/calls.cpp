#include "calls.h"

#include <algorithm>

namespace fargpu::client {

constinit std::atomic<Calls*> Calls::default_{nullptr};
constinit std::atomic<Calls& (*)()> Calls::first_{nullptr};

Calls::Calls(Channel& channel, PushHandler& pushes, std::chrono::nanoseconds spin, std::function<void()> wake,
             Compression compression, const std::bitset<opcode_max + 1>& served, std::uint64_t credit_bytes,
             Contexts& all_contexts, Captures& all_captures, CallEvents& their_events)
    : receiver(channel, pushes, spin),
      commands(
          channel, [this] { return receiver.confirmed(); }, std::move(wake), compression),
      credit(credit_bytes),
      contexts(all_contexts),
      captures(all_captures),
      events(their_events),
      served_(served) {}

void lose_for(CallEvents& events, const char* why, const char* detail) noexcept {
  try {
    events.lose(std::string(why) + detail);
  } catch (const std::exception&) {
    events.lose("out of memory");
  }
}

void Calls::note_wait(std::chrono::nanoseconds took) {
  const auto us = static_cast<std::uint32_t>(std::min<std::int64_t>(took.count() / 1000, limits::stream_credit_max));
  std::uint32_t shortest = shortest_wait_us_.load(std::memory_order_relaxed);
  while (us < shortest && !shortest_wait_us_.compare_exchange_weak(shortest, us, std::memory_order_relaxed)) {}
}

std::uint64_t Calls::stream_credit() const {
  const std::uint32_t shortest = shortest_wait_us_.load(std::memory_order_relaxed);
  if (shortest == unknown_wait) return limits::stream_credit;
  return std::min<std::uint64_t>(
      limits::stream_credit + static_cast<std::uint64_t>(shortest * limits::stream_credit_per_us),
      limits::stream_credit_max);
}

void Calls::take_credit(Thread& thread, Stream& stream) {
  if (stream.capture.load(std::memory_order_relaxed)) return;
  const std::uint64_t items = stream.items.load(std::memory_order_relaxed);
  std::uint64_t fenced = stream.fenced.load(std::memory_order_relaxed);
  if (items - fenced >= limits::stream_fence_interval && stream.fenced.compare_exchange_strong(fenced, items))
    events.fence_wanted(thread, stream, items);
  const auto has_room = [&] { return stream.items.load() - stream.retired.load() < stream_credit(); };
  if (has_room()) [[likely]]
    return;
  commands.flush();
  receiver.wait_until(has_room);
}

// What is to be settled must have left. The waiting thread reads, so that functions of the program are called
// meanwhile.
bool Calls::wait_for_credit(std::uint64_t bytes, CreditShare share, bool for_a_moment) {
  using Clock = std::chrono::steady_clock;
  // Longer than a line, or a host with much to do, keeps a word back.
  constexpr auto moment = std::chrono::milliseconds(100);
  commands.flush();
  bool taken = false;
  const auto has_some = [&] { return taken || (taken = credit.take(bytes, share)); };
  if (!for_a_moment) {
    receiver.wait_until(has_some);
    return true;
  }
  const auto over = [&] {
    const auto now = Clock::now();
    return now - credit.none_since(now) >= moment;
  };
  receiver.wait_until([&] { return has_some() || over(); }, moment / 4);
  return taken;
}

}  // namespace fargpu::client
