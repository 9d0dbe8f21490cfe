#include "memory_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "protocol/text.h"

namespace fargpu::server {
namespace {

constexpr auto interval = std::chrono::seconds(1);
constexpr unsigned looks_after_calls = 2;

// What it is charged for there.
std::uint64_t on_device(const AccountSlot& slot, std::size_t device) {
  const std::uint64_t charged = slot.charged[device];
  return charged - std::min<std::uint64_t>(slot.away[device], charged) + slot.inherited[device];
}

// Whether what is held together is more than it may be.
bool beyond_limit(const Lease& lease, AccountSlot& slot, std::size_t device) {
  TenantAccount& account = *lease.account;
  return (lease.memory_bytes != 0 && account.held(lease.id, static_cast<int>(device)) > lease.memory_bytes) ||
         (slot.unreserved != 0 && account.held_unreserved() > account.unreserved_max());
}

}  // namespace

// The driver takes memory for what it is asked to do. Asking NVML costs milliseconds, so that idle sessions are not
// looked at.
asio::awaitable<void> MemoryWatch::run() {
  asio::steady_timer timer(io_);
  unsigned looks = 0;
  while (true) {
    timer.expires_after(interval);
    co_await timer.async_wait(asio::use_awaitable);
    if (anything_new()) looks = looks_after_calls;
    if (looks == 0) continue;
    --looks;
    co_await look();
  }
}

bool MemoryWatch::anything_new() {
  std::uint64_t calls_now = 0;
  for (const Worker& worker : workers_.all())
    if (worker.state == Worker::State::session) calls_now += worker.calls + worker.session;
  return calls_now != std::exchange(calls_then_, calls_now);
}

// What changes while NVML is asked is no matter of the driver's: the larger of before and after counts, and the smaller
// of two looks.
asio::awaitable<void> MemoryWatch::look() {
  std::map<std::pair<pid_t, std::size_t>, std::uint64_t> before;
  const auto each = [&](auto&& use) {
    for (Worker& worker : workers_.all()) {
      if (worker.state != Worker::State::session) continue;
      const Lease& lease = worker.lease->lease();
      worker.driver_bytes.resize(lease.devices.size());
      for (std::size_t d = 0; d < lease.devices.size(); ++d) use(worker, lease, worker.slot(), d);
    }
  };
  each([&](const Worker& worker, const Lease&, AccountSlot& slot, std::size_t d) {
    before[{worker.process, d}] = on_device(slot, d);
  });
  if (before.empty()) co_return;
  co_await devices_.refresh(workers_.device_uuids());
  each([&](Worker& worker, const Lease& lease, AccountSlot& slot, std::size_t d) {
    const auto seen = devices_.process_bytes(lease.devices[d], worker.process);
    const auto known = before.find({worker.process, d});
    if (!seen || known == before.end()) return;
    const std::uint64_t charged = std::max(known->second, on_device(slot, d));
    const std::uint64_t taken = *seen > charged ? *seen - charged : 0;
    slot.taken[d] = std::min(taken, std::exchange(worker.driver_bytes[d], taken));
    if (settings_.driver_bytes_max == 0 || slot.taken[d] <= settings_.driver_bytes_max || !beyond_limit(lease, slot, d))
      return;
    workers_.stop(
        worker,
        fmt::format(
            "the driver has taken {} of device {} for this session's code, variables and local memory, and the session "
            "is beyond its limit by that (driver_bytes_max here is {})",
            bytes_text(slot.taken[d]), d, bytes_text(settings_.driver_bytes_max)));
  });
}

}  // namespace fargpu::server
