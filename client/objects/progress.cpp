// What is known to be done of the work that streams and events stand for: streams of one context tell of each other.

#include <algorithm>

#include "context.h"
#include "stream.h"

namespace fargpu::client {

// The legacy stream waits for all blocking ones, and they for it: an awaited call on any of them is one on all.
bool Stream::idle() const { return reached(legacy() ? context->blocking_submitted.load() : submitted.load()); }
// A wait for the legacy stream is one for all blocking ones.
bool Stream::finished() const {
  std::uint64_t done = std::max(settled.load(), context->completed.load());
  if (blocking()) done = std::max(done, context->legacy.settled.load());
  return submitted.load() <= done;
}

bool Stream::as_good_as_idle() const {
  const std::uint64_t own = blocking() ? context->blocking_awaited.load() : awaited.load();
  return reached(std::max(own, context->waits_for_event.load()));
}

// The legacy stream itself waits for all blocking ones.
bool Stream::behind_legacy() const { return legacy() || (blocking() && !reached(context->legacy.submitted.load())); }

bool Stream::reached(std::uint64_t call) const {
  std::uint64_t done = std::max(completed.load(), context->completed.load());
  if (blocking()) done = std::max(done, context->blocking_completed.load());
  return call <= done;
}

void Stream::complete(std::uint64_t number, std::uint64_t items_then) {
  pass(number, items_then);
  raise(settled, number);
}

void Stream::pass(std::uint64_t number, std::uint64_t items_then) {
  raise(completed, number);
  raise(retired, items_then);
  // The legacy stream waits for all blocking ones.
  if (legacy()) raise(context->blocking_completed, number);
}

void Stream::abandon() {
  raise(retired, items.load());
  capture = nullptr;
}

bool Event::complete() const {
  if (recorded_by_work.load(std::memory_order_relaxed) || shared()) return false;
  const std::uint64_t record = recorded.load();
  if (record == 0 || completed.load() >= record) return true;
  const Stream* const where = recorded_on();
  if (!where) return false;
  std::uint64_t done = std::max(where->completed.load(), where->context->completed.load());
  if (where->blocking()) done = std::max(done, where->context->blocking_completed.load());
  return done >= record && recorded.load() == record;
}

// The call is none of long ago: it is near the last one that has asked, or recorded.
void Event::hear(std::uint32_t call, bool failed) {
  const std::uint64_t near = std::max(watched.load(), recorded.load());
  const auto since = static_cast<std::int32_t>(call - static_cast<std::uint32_t>(near));
  told = (near + static_cast<std::uint64_t>(std::int64_t{since})) << 1 | static_cast<std::uint64_t>(failed);
}

Event::Watch Event::watch(std::uint64_t record) const {
  const std::uint64_t asked = watched.load();
  if (record == 0 || asked <= record || recorded_by_work || shared()) return Watch::none;
  const std::uint64_t last = told.load();
  if (last >> 1 < asked) return Watch::waiting;
  return (last & 1) != 0 ? Watch::none : Watch::over;
}

}  // namespace fargpu::client
