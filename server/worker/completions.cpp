#include "completions.h"

#include <algorithm>

namespace fargpu::server {

CUresult Completions::take_event(ContextState& context, CUevent& event) {
  if (context.free_events.empty()) return driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  event = context.free_events.back();
  context.free_events.pop_back();
  return CUDA_SUCCESS;
}

// Asked again where it fails: a failure of the work or of the device is said again, one of the question itself says nothing of the work,
// which may still be under way.
CUresult Completions::query(CUevent event) {
  const CUresult result = driver_.cuEventQuery(event);
  return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? result : driver_.cuEventQuery(event);
}

void Completions::after(StreamState& stream, Kind kind, Done done) {
  CUevent event = nullptr;
  CUresult recorded = take_event(*stream.context, event);
  if (recorded == CUDA_SUCCESS) recorded = driver_.cuEventRecord(event, stream.cuda);
  if (recorded != CUDA_SUCCESS) {
    if (event) stream.context->free_events.push_back(event);
    // Whoever is called back relies on the work being complete: it is waited for here, and nothing is lost but time.
    soon(kind, driver_.cuStreamSynchronize(stream.cuda), std::move(done));
    return;
  }
  queues_[&stream].push_back({event, stream.submitted, kind, std::move(done)});
}

void Completions::after_event(CUevent event, ContextState& context, Done done) {
  events_.push_back({event, &context, std::move(done)});
}

void Completions::soon(Kind kind, CUresult result, Done done) { soon_.push_back({kind, {result, std::move(done)}}); }

// Takes what is complete off the front of each stream's queue. Signals are only gathered; deliveries run at once, and the second
// sweep runs those that became complete while the first was looking elsewhere.
bool Completions::sweep(Kind last_wanted, std::vector<Ready>& signals) {
  bool progress = false;
  std::vector<Ready> deliveries;
  for (auto it = queues_.begin(); it != queues_.end();) {
    auto& [stream, queue] = *it;
    while (!queue.empty()) {
      Entry& entry = queue.front();
      if (entry.kind == Kind::signal && last_wanted == Kind::delivery) break;
      const CUresult result = query(entry.event);
      if (result == CUDA_ERROR_NOT_READY) break;
      passed_(entry.event);
      stream->context->free_events.push_back(entry.event);
      if (result == CUDA_SUCCESS) stream->passed = std::max(stream->passed, entry.submitted);  // a failure is for whoever waits
      (entry.kind == Kind::delivery ? deliveries : signals).push_back({result, std::move(entry.done)});
      queue.pop_front();
      progress = true;
    }
    it = queue.empty() ? queues_.erase(it) : std::next(it);
  }
  for (Ready& ready : deliveries) ready.done(ready.result);
  return progress;
}

bool Completions::poll() {
  if (empty()) return false;
  std::vector<Ready> signals;
  bool progress = sweep(Kind::signal, signals);
  for (std::size_t i = 0; i < events_.size();) {
    const CUresult result = query(events_[i].event);
    if (result == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    passed_(events_[i].event);
    signals.push_back({result, std::move(events_[i].done)});
    events_[i] = std::move(events_.back());
    events_.pop_back();
    progress = true;
  }
  std::vector<std::pair<Kind, Ready>> due;
  due.swap(soon_);
  for (auto& [kind, ready] : due) {
    progress = true;
    if (kind == Kind::delivery) ready.done(ready.result);
    else signals.push_back(std::move(ready));
  }
  if (!signals.empty()) {
    std::vector<Ready> none;
    sweep(Kind::delivery, none);
    for (Ready& ready : signals) ready.done(ready.result);
  }
  return progress;
}

void Completions::abandon(StreamState& stream, CUresult result) {
  const auto found = queues_.find(&stream);
  if (found == queues_.end()) return;
  std::deque<Entry> entries = std::move(found->second);
  queues_.erase(found);
  for (Entry& entry : entries) {
    stream.context->free_events.push_back(entry.event);
    soon(entry.kind, result, std::move(entry.done));
  }
}

void Completions::abandon(ContextState& context, CUresult result) {
  for (StreamState* stream : context.streams) abandon(*stream, result);
  for (std::size_t i = 0; i < events_.size();) {
    if (events_[i].context != &context) {
      ++i;
      continue;
    }
    soon(Kind::signal, result, std::move(events_[i].done));
    events_[i] = std::move(events_.back());
    events_.pop_back();
  }
}

}  // namespace fargpu::server
