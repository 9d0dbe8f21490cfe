#include "streams.h"

#include <algorithm>

namespace fargpu::etcd {
namespace {

using namespace std::chrono_literals;

// A member of a pool that cannot take so much at once reads everything anew.
constexpr std::size_t parts_bytes_max = 64 << 20;

std::string range_end(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  ++prefix.back();
  return prefix;
}

}  // namespace

// --- lifetimes ------------------------------------------------------------------------------------------------------

KeepStream::KeepStream(StreamOwner& store, pb::Lease::Stub& stub, std::shared_ptr<grpc::Channel> channel,
                       std::uint64_t joining)
    : Stream(store, std::move(channel), joining) {
  rw_ = stub.PrepareAsyncLeaseKeepAlive(&context_, store.queue_.get());
}

void KeepStream::ask(Keeper* keeper) {
  keeper->asks = true;
  keeper->asked = Clock::now();
  pb::LeaseKeepAliveRequest request;
  request.set_id(keeper->id);
  write(std::move(request));
}

void KeepStream::on_response() {
  for (Keeper* const keeper : store_.keepers_) {
    if (keeper->id != response_.id() || keeper->over || !keeper->asks) continue;
    keeper->asks = false;
    if (response_.ttl() <= 0 || Clock::now() >= keeper->until) {
      keeper->over = true;
      keeper->events.lasts(keeper->events.owner, 0);
      return;
    }
    keeper->until = keeper->asked + std::chrono::seconds(response_.ttl());
    keeper->next = keeper->asked + Clock::duration(keeper->seconds) / 3;
    keeper->events.lasts(keeper->events.owner, keeper->until.time_since_epoch() / 1ns);
    return;
  }
}

// --- watches --------------------------------------------------------------------------------------------------------

WatchStream::WatchStream(StreamOwner& store, pb::Watch::Stub& stub, std::shared_ptr<grpc::Channel> channel,
                         std::uint64_t joining)
    : Stream(store, std::move(channel), joining) {
  rw_ = stub.PrepareAsyncWatch(&context_, store.queue_.get());
}

// One is created at a time: an answer that refuses one does not say which.
void WatchStream::add(Watch* watch) {
  if (watch->id >= 0 || created_ == watch || std::find(to_create_.begin(), to_create_.end(), watch) != to_create_.end())
    return;
  to_create_.push_back(watch);
  create_next();
}

void WatchStream::create_next() {
  if (creating_ || to_create_.empty()) return;
  creating_ = true;
  created_ = to_create_.front();
  to_create_.pop_front();
  created_->parts.Clear();
  created_->part_bytes = 0;
  pb::WatchRequest request;
  pb::WatchCreateRequest& create = *request.mutable_create_request();
  create.set_key(created_->prefix);
  create.set_range_end(range_end(created_->prefix));
  create.set_start_revision(created_->next);
  create.set_progress_notify(true);
  create.set_fragment(true);
  write(std::move(request));
}

void WatchStream::remove(Watch* watch) {
  std::erase(to_create_, watch);
  if (created_ == watch) created_ = nullptr;
  if (watch->id >= 0 && by_id_.erase(watch->id) > 0) cancel_watch(watch->id);
  watch->id = -1;
}

void WatchStream::cancel_watch(std::int64_t id) {
  pb::WatchRequest request;
  request.mutable_cancel_request()->set_watch_id(id);
  write(std::move(request));
}

void WatchStream::on_created() {
  creating_ = false;
  Watch* const watch = std::exchange(created_, nullptr);
  if (!watch) {
    if (!response_.canceled()) cancel_watch(response_.watch_id());
  } else if (response_.canceled()) {
    const Trouble why = trouble_of(response_.cancel_reason(), store_.address());
    store_.fail(watch, why.failure, why.why);
  } else {
    watch->id = response_.watch_id();
    by_id_[watch->id] = watch;
  }
  create_next();
}

void WatchStream::on_response() {
  if (response_.created()) return on_created();
  const auto found = by_id_.find(response_.watch_id());
  if (found == by_id_.end()) return;
  Watch* const watch = found->second;
  if (!response_.canceled()) return on_changes(watch);
  by_id_.erase(found);
  watch->id = -1;
  if (response_.compact_revision() > 0)
    return store_.fail(watch, Failure::compacted,
                       "etcd has forgotten changes up to revision " + std::to_string(response_.compact_revision()));
  const Trouble why = trouble_of(response_.cancel_reason(), store_.address());
  if (why.failure == Failure::unavailable) return store_.leave(joining_, why);
  store_.fail(watch, why.failure, why.why);
}

// Changes of one transaction may come in several parts.
void WatchStream::on_changes(Watch* watch) {
  watch->part_bytes += response_.ByteSizeLong();
  if (watch->part_bytes > parts_bytes_max)
    return store_.fail(watch, Failure::compacted, "etcd tells of too many changes at once");
  if (response_.fragment() || watch->parts.events_size() > 0) {
    watch->parts.mutable_events()->MergeFrom(response_.events());
    if (response_.fragment()) return;
    response_.mutable_events()->Swap(watch->parts.mutable_events());
    watch->parts.Clear();
  }
  watch->part_bytes = 0;
  if (!store_.is_same(response_.header(), 0)) return;
  if (response_.events_size() == 0) {  // all changes up to that one have been told
    watch->next = std::max(watch->next, response_.header().revision() + 1);
    return;
  }
  std::vector<Change> changes;
  changes.reserve(static_cast<std::size_t>(response_.events_size()));
  std::int64_t last = watch->next;
  for (const pb::Event& event : response_.events()) {
    const pb::KeyValue& kv = event.kv();
    if (kv.mod_revision() < last)
      return store_.fail(watch, Failure::strange, "etcd tells of changes out of their order");
    last = kv.mod_revision();
    changes.push_back({event.type() == pb::Event::DELETE ? 1U : 0U,
                       {{kv.key().data(), kv.key().size()},
                        {kv.value().data(), kv.value().size()},
                        kv.create_revision(),
                        kv.mod_revision(),
                        kv.lease()}});
  }
  watch->next = last + 1;
  store_.saw(last);
  watch->events.changes(watch->events.owner, changes.data(), changes.size(), last);
}

}  // namespace fargpu::etcd
