#include "link_exchange.h"

#include <fcntl.h>
#include <poll.h>

#include <chrono>
#include <utility>

#include "next_broker.h"
#include "protocol/data.h"
#include "protocol/limits.h"

namespace fargpu::server {
namespace {

void describe(wire::Share::Builder share, const ShareKey& key, const SharedThing& thing, const ShareKey* came_by) {
  share.setKey(wire_of(key));
  share.setDevice(thing.device);
  share.setBytes(thing.bytes);
  share.setEvent(data_of(thing.event));
  if (came_by) share.setCameBy(wire_of(*came_by));
}

SharedThing duplicate_of(const SharedThing& thing) {
  const int number = thing.descriptor.number();
  return {thing.device, thing.bytes, Descriptor(number < 0 ? -1 : ::fcntl(number, F_DUPFD_CLOEXEC, 0)), thing.event};
}

}  // namespace

// Rather than so busy that the link has no room.
bool LinkExchange::broker_gone() const {
  pollfd link{link_, POLLOUT, 0};
  return ::poll(&link, 1, 0) > 0 && (link.revents & (POLLHUP | POLLERR)) != 0;
}

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
  const std::lock_guard lock(mutex_);
  flush();
  const bool sent =
      given_back_.empty() &&
      send_link(
          link_, [&](wire::WorkerMessage::Builder message) { describe(message.initShare(), key, thing, came_by); },
          thing.descriptor.number());
  if (!remembers_ || (!sent && !broker_gone())) return sent;
  Own own{duplicate_of(thing), came_by ? std::optional(*came_by) : std::nullopt};
  const bool kept = own.thing.descriptor.number() >= 0 || thing.descriptor.number() < 0;
  if (kept) shared_.insert_or_assign(key, std::move(own));
  return sent || kept;
}

void LinkExchange::unshare_event(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  shared_.erase(key);
  give_back({key, true});
}

void LinkExchange::let_go(const ShareKey& key) {
  const std::lock_guard lock(mutex_);
  if (const auto loan = loans_.find(key); loan != loans_.end() && --loan->second.times == 0) loans_.erase(loan);
  give_back({key, false});
}

void LinkExchange::unshare_memory(const ShareKey& key) {
  std::unique_lock lock(mutex_);
  shared_.erase(key);
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
  const auto deadline = std::chrono::steady_clock::now() + limits::connect_timeout;
  answered_ = false;
  answer_.reset();
  while (true) {
    const std::uint64_t links = links_;
    const bool sent = send_link(link_, [&](wire::WorkerMessage::Builder message) {
      auto fetch = message.initFetch();
      fetch.setRequest(request);
      fetch.setKey(wire_of(key));
    });
    if (!sent && !(remembers_ && broker_gone())) return std::nullopt;
    if (!changed_.wait_until(lock, deadline, [&] { return answered_ || links_ != links; })) {
      ++request_;  // an answer to this one comes too late
      return std::nullopt;
    }
    if (answered_) break;
  }
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
    answer_ = {share.getDevice(), share.getBytes(), std::move(descriptor), copy_of(share.getEvent())};
    if (const auto key = share_key(share.getKey()); remembers_ && key && answer_->device >= 0) {
      Loan& loan = loans_[*key];
      loan.device = answer_->device;
      loan.bytes = answer_->bytes;
      ++loan.times;
    }
  }
  changed_.notify_one();
}

bool LinkExchange::recount_to(int next) const {
  for (const auto& [key, loan] : loans_) {
    const bool told = recount(next, [&](wire::WorkerMessage::Builder message) {
      auto holds = message.initHolds();
      holds.setKey(wire_of(key));
      holds.setDevice(loan.device);
      holds.setBytes(loan.bytes);
      holds.setTimes(loan.times);
    });
    if (!told) return false;
  }
  for (const auto& [key, own] : shared_) {
    const bool told = recount(
        next,
        [&](wire::WorkerMessage::Builder message) {
          describe(message.initShares(), key, own.thing, own.came_by ? &*own.came_by : nullptr);
        },
        own.thing.descriptor.number());
    if (!told) return false;
  }
  return true;
}

void LinkExchange::link_changed() {
  given_back_.clear();  // as the next broker was told
  unshares_.reset();
  ++links_;
  changed_.notify_all();
}

}  // namespace fargpu::server
