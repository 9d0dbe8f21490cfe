#include "link_exchange.h"

#include "protocol/limits.h"

namespace fargpu::server {

// What is given back has to arrive: it holds memory, and counts.
void LinkExchange::flush() {
  std::erase_if(given_back_, [&](const GivenBack& what) { return send(what); });
}

bool LinkExchange::send(const GivenBack& what) {
  return send_link(link_, [&](wire::WorkerMessage::Builder message) {
    if (what.own) message.setUnshare(wire_of(what.key));
    else message.setLetGo(wire_of(what.key));
  });
}

bool LinkExchange::give_back(const GivenBack& what) {
  flush();
  const bool sent = given_back_.empty() && send(what);
  if (!sent) given_back_.push_back(what);
  return sent;
}

bool LinkExchange::share(const ShareKey& key, const SharedThing& thing, const ShareKey* came_by) {
  flush();
  return given_back_.empty() && send_link(
                                    link_,
                                    [&](wire::WorkerMessage::Builder message) {
                                      auto share = message.initShare();
                                      share.setKey(wire_of(key));
                                      share.setDevice(thing.device);
                                      share.setBytes(thing.bytes);
                                      share.setEvent(capnp::Data::Reader(
                                          reinterpret_cast<const kj::byte*>(thing.event.data()), thing.event.size()));
                                      if (came_by) share.setCameBy(wire_of(*came_by));
                                    },
                                    thing.descriptor.number());
}

void LinkExchange::unshare_memory(const ShareKey& key) {
  std::unique_lock lock(mutex_);
  unshares_ = key;
  if (give_back({key, true})) changed_.wait_for(lock, limits::connect_timeout, [&] { return !unshares_; });
  unshares_.reset();
}

void LinkExchange::heard_unshared(capnp::Data::Reader key) {
  const std::lock_guard lock(mutex_);
  if (unshares_ && share_key(key) == unshares_) unshares_.reset();
  changed_.notify_one();
}

std::optional<SharedThing> LinkExchange::fetch(const ShareKey& key) {
  std::unique_lock lock(mutex_);
  const std::uint64_t request = ++request_;
  answered_ = false;
  answer_.reset();
  const bool sent = send_link(link_, [&](wire::WorkerMessage::Builder message) {
    auto fetch = message.initFetch();
    fetch.setRequest(request);
    fetch.setKey(wire_of(key));
  });
  if (!sent || !changed_.wait_for(lock, limits::connect_timeout, [&] { return answered_; })) return std::nullopt;
  return std::exchange(answer_, std::nullopt);
}

void LinkExchange::heard(wire::Fetched::Reader fetched, Descriptor descriptor) {
  const std::lock_guard lock(mutex_);
  if (fetched.getRequest() != request_ || answered_) {  // too late
    const auto key = share_key(fetched.getShare().getKey());
    if (key && fetched.getShare().getDevice() >= 0) send({*key, false});
    return;
  }
  answered_ = true;
  if (fetched.hasShare()) {
    const auto share = fetched.getShare();
    const auto event = share.getEvent();
    const auto* const bytes = reinterpret_cast<const std::byte*>(event.begin());
    answer_ = {share.getDevice(), share.getBytes(), std::move(descriptor), {bytes, bytes + event.size()}};
  }
  changed_.notify_one();
}

}  // namespace fargpu::server
