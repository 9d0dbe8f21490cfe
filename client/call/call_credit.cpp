#include "call_credit.h"

#include "protocol/errors.h"

namespace fargpu::client {

// By one thread at a time, the one that reads.
void CallCredit::settled(std::uint64_t bytes) {
  if (bytes > taken_.load(std::memory_order_relaxed))
    throw ProtocolError("the worker settles more calls than were sent");
  if (bytes < settled_.load(std::memory_order_relaxed))
    throw ProtocolError("the worker takes back what it has settled");
  settled_.store(bytes, std::memory_order_release);
  none_since_.store(0, std::memory_order_relaxed);
}

std::chrono::steady_clock::time_point CallCredit::none_since(std::chrono::steady_clock::time_point now) {
  using Clock = std::chrono::steady_clock;
  std::int64_t since = 0;
  const std::int64_t first = now.time_since_epoch().count();
  if (none_since_.compare_exchange_strong(since, first, std::memory_order_relaxed)) since = first;
  return Clock::time_point(Clock::duration(since));
}

}  // namespace fargpu::client
