#include "completions.h"

#include <algorithm>

namespace fargpu::server {

CUresult query_event(DriverTable& driver, CUevent event) {
  const CUresult result = driver.cuEventQuery(event);
  return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? result : driver.cuEventQuery(event);
}

CUresult Completions::take_event(ContextState& context, CUevent& event) {
  if (context.free_events.empty()) return driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  event = context.free_events.back();
  context.free_events.pop_back();
  return CUDA_SUCCESS;
}

CUresult Completions::query(StreamState& stream, Entry& entry) {
  if (entry.later) {
    const CUresult recorded = entry.later->load(std::memory_order_acquire);
    if (recorded == CUDA_ERROR_NOT_READY) return recorded;
    entry.later.reset();
    // The callback relies on the work being complete: it is waited for here, and nothing is lost but time.
    if (recorded != CUDA_SUCCESS) return driver_.cuStreamSynchronize(stream.cuda);
  }
  return query(entry.event);
}

void Completions::after(StreamState& stream, Kind kind, Done done) {
  stream.looked_at = stream.submitted;
  CUevent event = nullptr;
  Recorded recorded{.result = take_event(*stream.context, event)};
  if (recorded.result == CUDA_SUCCESS) recorded = record_(stream, event);
  if (recorded.result != CUDA_SUCCESS) {
    if (event) driver_.cuEventDestroy_v2(event);
    soon(kind, driver_.cuStreamSynchronize(stream.cuda), std::move(done));  // as in query()
    return;
  }
  Queue& queue = queues_[&stream];
  queue.entries.push_back({event, std::move(recorded.later), stream.submitted, ++last_number_, kind, std::move(done)});
  queue.deliveries += kind == Kind::delivery;
  ++queued_;
  if (kind != Kind::release) ++wanted_;
}

void Completions::after_event(CUevent event, std::uint64_t handle, ContextState& context, Done done) {
  events_.push_back({event, handle, &context, std::move(done)});
}

// Without a result the driver is asked once more.
template <class Taken>
void Completions::take_events(Taken&& taken, std::optional<CUresult> result) {
  for (std::size_t i = 0; i < events_.size();) {
    if (!taken(events_[i])) {
      ++i;
      continue;
    }
    const CUresult now = result ? *result : query(events_[i].event);
    if (!result && now != CUDA_ERROR_NOT_READY) passed_(events_[i].event, now);
    soon(Kind::signal, now == CUDA_ERROR_NOT_READY ? CUDA_ERROR_CAPTURED_EVENT : now, std::move(events_[i].done));
    events_[i] = std::move(events_.back());
    events_.pop_back();
  }
}

void Completions::captured(std::uint64_t handle) {
  if (events_.empty()) return;
  take_events([&](const EventEntry& entry) { return entry.handle == handle; }, std::nullopt);
}

void Completions::soon(Kind kind, CUresult result, Done done) {
  soon_.push_back({kind, {result, std::move(done), ++last_number_}});
}

void Completions::note_passed(ContextState& context, CUevent event, CUresult result) {
  const CUresult before = forget_passed(context);
  passed_events_.push_back({&context, event, before == CUDA_SUCCESS ? result : before});
}

CUresult Completions::forget_passed(ContextState& context) {
  CUresult result = CUDA_SUCCESS;
  std::erase_if(passed_events_, [&](const PassedEvent& known) {
    if (known.context != &context) return false;
    context.free_events.push_back(known.event);
    result = known.result;
    return true;
  });
  return result;
}

void Completions::tell_passed() {
  for (const auto& [context, event, result] : passed_events_) {
    passed_(event, result);
    context->free_events.push_back(event);
  }
  passed_events_.clear();
}

// Takes what is complete out of a stream's queue. Of that, what comes later than `last_wanted` keeps its place.
bool Completions::take_complete(StreamState& stream, Queue& queue, Kind last_wanted,
                                const std::array<ReadyList*, kinds>& ready) {
  bool progress = false;
  for (auto it = queue.entries.begin(); it != queue.entries.end();) {
    if (last_wanted < Kind::signal && queue.deliveries == 0) break;
    Entry& entry = *it;
    const CUresult result = query(stream, entry);
    if (result == CUDA_ERROR_NOT_READY) break;
    if (entry.kind > last_wanted) {
      ++it;
      continue;
    }
    note_passed(*stream.context, entry.event, result);
    const std::uint64_t passed = result == CUDA_SUCCESS ? entry.submitted : 0;  // a failure: for the waits
    ready[static_cast<std::size_t>(entry.kind)]->push_back({result, std::move(entry.done), entry.number});
    if (entry.kind != Kind::release) --wanted_;
    queue.deliveries -= entry.kind == Kind::delivery;
    it = queue.entries.erase(it);
    // While something is still to be delivered the stream is not known to be idle, though its work is complete.
    const std::uint64_t most = queue.deliveries == 0 ? passed : std::min(passed, stream.submitted - 1);
    stream.passed = std::max(stream.passed, most);
    --queued_;
    progress = true;
  }
  return progress;
}

// Signals and deliveries are gathered, releases run at once.
bool Completions::sweep(Kind last_wanted, std::size_t streams_max) {
  bool progress = false;
  ReadyList releases;
  auto it = queues_.find(next_);
  for (std::size_t left = std::min(streams_max, queues_.size()); left > 0; --left) {
    if (it == queues_.end()) it = queues_.begin();
    auto& [stream, queue] = *it;
    progress |= take_complete(*stream, queue, last_wanted, {&releases, &deliveries_, &signals_});
    it = queue.entries.empty() ? queues_.erase(it) : std::next(it);
  }
  next_ = it == queues_.end() ? nullptr : it->first;
  for (Ready& ready : releases) ready.done(ready.result);
  return progress;
}

// One after the other, while there is room: each may be as large as what the client has pinned. Whether all have been
// called.
bool Completions::call_back(ReadyList& ready) {
  while (!ready.empty() && room_()) {
    tell_passed();
    const Ready next = std::move(ready.front());
    ready.pop_front();
    next.done(next.result);
  }
  return ready.empty();
}

bool Completions::look_at_events(std::size_t events_max) {
  bool progress = false;
  for (std::size_t left = std::min(events_max, events_.size()); left > 0; --left) {
    if (next_event_ >= events_.size()) next_event_ = 0;
    EventEntry& entry = events_[next_event_];
    const CUresult result = query(entry.event);
    if (result == CUDA_ERROR_NOT_READY) {
      ++next_event_;
      continue;
    }
    passed_(entry.event, result);
    signals_.push_back({result, std::move(entry.done)});
    entry = std::move(events_.back());
    events_.pop_back();
    progress = true;
  }
  return progress;
}

// The second sweep gathers what became complete while the first was looking elsewhere, so that deliveries come before
// signals, and behind all that were asked for before them: those are complete too where the GPU ordered them.
bool Completions::poll(std::size_t streams_max) {
  if (empty()) return false;
  bool progress = sweep(Kind::signal, streams_max);
  progress |= look_at_events(streams_max);
  std::vector<std::pair<Kind, Ready>> due;
  due.swap(soon_);
  for (auto& [kind, ready] : due) {
    progress = true;
    if (kind == Kind::signal) signals_.push_back(std::move(ready));
    else if (kind == Kind::delivery) deliveries_.push_back(std::move(ready));
    else ready.done(ready.result);
  }
  if (!signals_.empty() || !deliveries_.empty()) sweep(Kind::delivery, queues_.size());
  deliveries_.sort([](const Ready& one, const Ready& other) { return one.number < other.number; });
  const std::size_t left = deliveries_.size() + signals_.size();
  if (call_back(deliveries_)) call_back(signals_);
  return progress || deliveries_.size() + signals_.size() < left;
}

void Completions::abandon(StreamState& stream, CUresult result) {
  const auto found = queues_.find(&stream);
  if (found == queues_.end()) return;
  std::deque<Entry> entries = std::move(found->second.entries);
  queues_.erase(found);
  queued_ -= entries.size();
  for (Entry& entry : entries) {
    if (entry.kind != Kind::release) --wanted_;
    stream.context->free_events.push_back(entry.event);
    soon(entry.kind, result, std::move(entry.done));
  }
}

void Completions::abandon(ContextState& context, CUresult result) {
  forget_passed(context);
  for (StreamState* stream : context.streams) abandon(*stream, result);
  take_events([&](const EventEntry& entry) { return entry.context == &context; }, result);
}

}  // namespace fargpu::server
