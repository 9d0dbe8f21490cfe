#include "stream_order.h"

#include <algorithm>

namespace fargpu::server {

std::vector<std::uint64_t> StreamOrder::before(const StreamState& stream, std::uint64_t awaited_event) const {
  std::vector<std::uint64_t> items;
  const auto add = [&](std::uint64_t item) {
    if (item != 0 && item != running_ && items_.contains(item)) items.push_back(item);
  };
  add(stream.last_item);
  if (!stream.apart) add(stream.context->last_wait);
  const StreamState& legacy = *stream.context->legacy;
  if (&stream == &legacy) {
    for (const StreamState* other : stream.context->streams)
      if (other->blocking && other != &stream) add(other->last_item);
  } else if (stream.blocking) {
    add(legacy.last_item);
  }
  if (const auto record = records_.find(awaited_event); awaited_event != 0 && record != records_.end())
    add(record->second);
  return items;
}

std::vector<std::uint64_t> StreamOrder::before_capture(const StreamState& stream) const {
  std::vector<std::uint64_t> items = before(stream, 0);
  std::erase_if(items, [&](std::uint64_t item) { return items_.at(item).of_program; });
  // A record of the whole context would break the capture.
  for (const auto& [id, item] : items_)
    if (item.records_in == stream.context && id != running_) items.push_back(id);
  return items;
}

std::uint64_t StreamOrder::enqueue(const std::vector<std::uint64_t>& before, StreamState* stream,
                                   std::vector<std::uint64_t> recorded_events, Job job, std::uint64_t launched) {
  const std::uint64_t id = next_++;
  Item& item = items_[id];
  item.job = std::move(job);
  item.stream = stream;
  item.events = std::move(recorded_events);
  item.launched = launched;
  if (launched != 0) launches_[launched] = id;
  for (const std::uint64_t other : before) {
    const auto found = items_.find(other);
    if (found == items_.end() || other == id) continue;
    found->second.followers.push_back(id);
    ++followers_;
    ++item.waits_for;
  }
  if (stream) stream->last_item = id;
  for (const std::uint64_t event : item.events) records_[event] = id;
  if (item.waits_for == 0) ready_.insert(id);
  drain();
  return id;
}

// One after the other in the order of arrival, never one within another: chains can be long.
void StreamOrder::drain() {
  if (draining_) return;
  draining_ = true;
  while (!ready_.empty()) {
    const std::uint64_t id = *ready_.begin();
    ready_.erase(ready_.begin());
    run(id);
  }
  draining_ = false;
}

void StreamOrder::after_all(Job job, std::vector<std::uint64_t> recorded_events, const ContextState* records_in) {
  if (items_.empty() || (items_.size() == 1 && items_.begin()->first == running_)) {
    job();
    return;
  }
  // What comes before another such wait need not be waited for twice: many in a row would wait for each other as often
  // as there are pairs.
  std::vector<std::uint64_t> all;
  const auto last = items_.find(last_all_);
  for (auto it = last == items_.end() ? items_.begin() : last; it != items_.end(); ++it)
    if (it->first != running_) all.push_back(it->first);
  if (running_ == 0) last_all_ = next_;  // else what runs is not waited for
  const std::uint64_t id = enqueue(all, nullptr, std::move(recorded_events), std::move(job));
  if (const auto item = items_.find(id); item != items_.end()) item->second.records_in = records_in;
}

std::uint64_t StreamOrder::hold_context(ContextState& context, std::uint64_t item, Job job) {
  std::vector<std::uint64_t> items{item};
  if (items_.contains(context.last_wait)) items.push_back(context.last_wait);
  context.last_wait = next_;
  return enqueue(items, nullptr, {}, std::move(job));
}

void StreamOrder::records(std::uint64_t item, std::uint64_t event) {
  const auto found = items_.find(item);
  if (found == items_.end()) return;
  found->second.events.push_back(event);
  records_[event] = item;
}

void StreamOrder::awaits(std::uint64_t item, std::uint64_t event) {
  const auto found = items_.find(item);
  if (found == items_.end()) return;
  if (awaited_.emplace(event, item).second) found->second.awaited.push_back(event);
}

void StreamOrder::only_records(std::uint64_t item) {
  if (const auto found = items_.find(item); found != items_.end()) found->second.only_records = true;
}

// The held record of an event goes, if nothing waits for it: its stream may wait for the thread that records the event
// on another one. False if it stays. What was held back until now records where it had its place.
bool StreamOrder::supersede(std::uint64_t event) {
  const auto record = records_.find(event);
  if (running_ != 0 || record == records_.end()) return false;
  Item& item = items_.at(record->second);
  if (!item.only_records) return false;
  item.superseded = true;
  if (!item.followers.empty()) superseded_.insert(event);
  records_.erase(record);
  return true;
}

std::vector<std::uint64_t> StreamOrder::before_records(std::vector<std::uint64_t> events) {
  // Each once: a client may name an event as often as it likes.
  std::sort(events.begin(), events.end());
  events.erase(std::unique(events.begin(), events.end()), events.end());
  std::vector<std::uint64_t> items;
  const auto add = [&](std::uint64_t item) {
    if (item != 0 && item != running_) items.push_back(item);
  };
  for (const std::uint64_t event : events) {
    const auto waits = awaited_.lower_bound({event, 0});
    const bool any = waits != awaited_.end() && waits->first == event;
    for (auto it = waits; it != awaited_.end() && it->first == event; ++it) add(it->second);
    if (any || !supersede(event)) add(record_of(event));
  }
  return items;
}

void StreamOrder::hold_behind_copy(ContextState& context, std::uint64_t item) {
  if (const auto copy = items_.find(item); copy != items_.end()) copy->second.copy = true;
  hold_context(context, item, [] {});
}

std::vector<std::uint64_t> StreamOrder::copies() const {
  std::vector<std::uint64_t> held;
  for (const auto& [id, item] : items_)
    if (item.copy) held.push_back(id);
  return held;
}

void StreamOrder::after_record(std::uint64_t event, Job job, bool awaits) {
  const auto record = records_.find(event);
  if (record == records_.end()) return job();
  const std::uint64_t item = enqueue({record->second}, nullptr, {}, std::move(job));
  if (awaits) this->awaits(item, event);
}

std::uint64_t StreamOrder::launch_of(std::uint64_t exec) const {
  const auto found = launches_.find(exec);
  return found == launches_.end() || (running_ != 0 && found->second >= running_) ? 0 : found->second;
}

std::vector<std::uint64_t> StreamOrder::items(const std::function<bool(const StreamState*)>& which) const {
  std::vector<std::uint64_t> items;
  for (const auto& [id, item] : items_) {
    if (running_ != 0 && id >= running_) break;
    if (which(item.stream)) items.push_back(id);
  }
  return items;
}

std::uint64_t StreamOrder::hold(StreamState& stream) {
  if (running_ != 0 && items_.at(running_).stream == &stream) {
    ++items_.at(running_).holders;
    return running_;
  }
  const std::uint64_t id = next_++;
  Item& item = items_[id];
  item.stream = &stream;
  item.holders = 1;
  // What is held back there already, as when a stream becomes full while bytes for it are still to come, stays before
  // later work.
  if (const auto last = items_.find(stream.last_item); last != items_.end() && last->first != id) {
    last->second.followers.push_back(id);
    ++followers_;
    ++item.waits_for;
    item.job = [] {};
  }
  stream.last_item = id;
  return id;
}

std::uint64_t StreamOrder::hold_for_program(StreamState& stream, bool function) {
  const std::uint64_t id = hold(stream);
  items_.at(id).of_program = true;
  items_.at(id).function = function;
  return id;
}

void StreamOrder::leave_out_functions(const StreamState& stream, std::vector<std::uint64_t>& items) const {
  std::erase_if(items, [&](std::uint64_t id) {
    const Item& item = items_.at(id);
    return item.function && item.stream == &stream;
  });
}

std::uint64_t StreamOrder::postpone(StreamState& stream, std::uint64_t launched) {
  if (running_ != 0) {
    ++items_.at(running_).holders;
    return running_;
  }
  const std::uint64_t id = hold(stream);
  items_.at(id).launched = launched;
  if (launched != 0) launches_[launched] = id;
  return id;
}

void StreamOrder::resume(std::uint64_t id, Job job) {
  Item& item = items_.at(id);
  --item.holders;
  item.job = std::move(job);
  if (item.waits_for == 0) ready_.insert(id);
  drain();
}

std::uint64_t StreamOrder::hold() {
  const std::uint64_t id = next_++;
  items_[id].holders = 1;
  return id;
}

void StreamOrder::release(std::uint64_t id) {
  const auto found = items_.find(id);
  if (found == items_.end() || found->second.holders == 0 || --found->second.holders > 0) return;
  // What still has to run ends then.
  if (id != running_ && !found->second.job) finish(id);
  drain();
}

void StreamOrder::run(std::uint64_t id) {
  running_ = id;
  const Job job = std::move(items_.at(id).job);
  job();
  running_ = 0;
  if (items_.at(id).holders == 0) finish(id);
}

void StreamOrder::finish(std::uint64_t id) {
  const auto found = items_.find(id);
  const Item item = std::move(found->second);
  items_.erase(found);
  followers_ -= item.followers.size();
  for (const std::uint64_t event : item.events) {
    if (item.superseded) superseded_.erase(event);
    const auto record = records_.find(event);
    if (record != records_.end() && record->second == id) records_.erase(record);
  }
  for (const std::uint64_t event : item.awaited) awaited_.erase({event, id});
  if (const auto launch = launches_.find(item.launched); launch != launches_.end() && launch->second == id)
    launches_.erase(launch);
  if (item.stream && item.stream->last_item == id) item.stream->last_item = 0;
  for (const std::uint64_t follower : item.followers) {
    const auto waiting = items_.find(follower);
    if (waiting != items_.end() && --waiting->second.waits_for == 0) ready_.insert(follower);
  }
}

void StreamOrder::forget(const StreamState& stream) {
  for (auto& [id, item] : items_)
    if (item.stream == &stream) item.stream = nullptr;
}

}  // namespace fargpu::server
