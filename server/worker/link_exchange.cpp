#include "link_exchange.h"

#include "protocol/limits.h"

namespace fargpu::server {

// What is no longer shared has to arrive: it holds memory, and counts.
void LinkExchange::flush() {
  std::erase_if(unshares_, [&](const ShareKey& key) {
    return send_link(link_, [&](wire::WorkerMessage::Builder message) { message.setUnshare(wire_of(key)); });
  });
}

bool LinkExchange::share(const ShareKey& key, const SharedThing& thing) {
  flush();
  return unshares_.empty() && send_link(
      link_,
      [&](wire::WorkerMessage::Builder message) {
        auto share = message.initShare();
        share.setKey(wire_of(key));
        share.setDevice(thing.device);
        share.setBytes(thing.bytes);
        share.setEvent(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(thing.event.data()), thing.event.size()));
      },
      thing.descriptor.number());
}

void LinkExchange::unshare(const ShareKey& key) {
  unshares_.push_back(key);
  flush();
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
  if (fetched.getRequest() != request_ || answered_) return;  // too late
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
