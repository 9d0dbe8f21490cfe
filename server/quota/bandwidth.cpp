#include "bandwidth.h"

#include <algorithm>
#include <cstdint>

namespace fargpu::server {
namespace {

using Time = Bandwidth::Time;

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

std::uint64_t least(std::uint64_t rate) {
  return std::max<std::uint64_t>(Bandwidth::message_bytes, bytes_in(pieces_of, rate));
}

// Whatever a worker in somebody's hands wrote: neither more than what is saved up, nor debts for ever.
Time from_of(std::int64_t paid, Time now) { return std::clamp(Time(paid), now - Bandwidth::burst, now + debt_max); }

}  // namespace

std::size_t Bandwidth::take(std::size_t wanted, Time ahead, Time now) {
  const std::uint64_t limit = rate();
  if (limit == TenantAccount::no_limit || wanted == 0) return wanted;
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
  if (limit == TenantAccount::no_limit) return;
  std::atomic<std::int64_t>& paid = place_.account->paid(place_.slot);
  std::int64_t known = paid;
  while (!paid.compare_exchange_weak(known, from_of(known, now).count() + time_of(bytes, limit))) {}
}

void Bandwidth::give_back(std::size_t bytes) {
  const std::uint64_t limit = rate();
  if (limit != TenantAccount::no_limit && bytes > 0) place_.account->paid(place_.slot) -= time_of(bytes, limit);
}

Bandwidth::Time Bandwidth::wait(Time ahead, Time now) const {
  const std::uint64_t limit = rate();
  if (limit == TenantAccount::no_limit) return Time(0);
  const Time from = from_of(place_.account->paid(place_.slot), now);
  return std::clamp(Time(time_of(least(limit), limit)) - (now + ahead - from), Time(0), wait_max);
}

}  // namespace fargpu::server
