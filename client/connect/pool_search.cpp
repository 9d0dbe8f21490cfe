#include "pool_search.h"

#include <algorithm>
#include <utility>

#include "client/base/log.h"

namespace fargpu::client {
namespace {

using namespace std::chrono_literals;

// Each full host is looked at so often, one after the other.
constexpr std::chrono::milliseconds look_interval = 1s;
constexpr std::chrono::milliseconds look_interval_min = 50ms;
// A refusal does not advise a client to wait that asks with a wait, however short.
constexpr std::chrono::milliseconds shortest_wait = 1ms;

}  // namespace

PoolSearch::PoolSearch(std::vector<PoolHost> hosts, PoolContacts::Order order, bool hold, Check check)
    : hosts_(std::move(hosts)),
      order_(order),
      hold_(hold),
      check_(std::move(check)),
      give_up_(Clock::now() + config().lease.wait),
      contacts_(hosts_, order) {}

std::optional<PoolSearch::Found> PoolSearch::next() {
  const std::chrono::milliseconds patience = config().lease.wait;
  while (auto contact = contacts_.next()) {
    const auto wait = hosts_.size() == 1 ? patience : std::min(patience, shortest_wait);
    if (auto found = ask(std::move(*contact), wait, {})) return found;
  }
  return hosts_.size() == 1 ? std::nullopt : queue();
}

// Nothing if the host gives no lease, or if `meanwhile` has found something better.
std::optional<PoolSearch::Found> PoolSearch::ask(PoolContacts::Contact contact, std::chrono::milliseconds wait,
                                                 const ControlConnection::Meanwhile& meanwhile) {
  try {
    check_(*contact.broker);
    LeaseOptions wish = config().lease;
    wish.wait = wait;
    Ticket ticket;
    const auto take_ticket = [&](wire::LeaseAnswer::Reader answer) { ticket = read_ticket(answer); };
    if (!contact.broker->ask_for_lease(wish, hold_, take_ticket, meanwhile)) return std::nullopt;
    return Found{std::move(contact.broker), contact.host, contact.place, std::move(ticket)};
  } catch (const DialError& error) {
    log::info("{}", error.what());
    if (error.reason == wire::Failure::Reason::NO_CAPACITY) full_.push_back({contact.place, contact.offer});
    contacts_.failed(contact.place, error);
    return std::nullopt;
  }
}

// One host's queue at a time: a place in several would keep devices from others that nobody uses in the end.
std::optional<PoolSearch::Found> PoolSearch::queue() {
  while (!full_.empty() && Clock::now() < give_up_) {
    const auto sooner = [this](const Full& one, const Full& other) {
      return order_ == PoolContacts::Order::load ? better(one.offer, other.offer) : one.place < other.place;
    };
    const Full chosen = *std::min_element(full_.begin(), full_.end(), sooner);
    forget(chosen.place);
    auto broker = connect(chosen.place);
    if (!broker) continue;
    log::info("waiting at {}, and watching {} other hosts", broker->name(), full_.size());
    std::optional<Found> elsewhere;
    std::size_t looks = 0;
    ControlConnection::Meanwhile meanwhile;
    if (!full_.empty()) {
      meanwhile.interval = std::max(look_interval / static_cast<int>(full_.size()), look_interval_min);
      meanwhile.go_on = [&] {
        if (!full_.empty()) elsewhere = look_at(full_[looks++ % full_.size()].place);
        return !elsewhere;
      };
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up_ - Clock::now());
    auto found = ask({std::move(broker), hosts_[chosen.place], chosen.place, chosen.offer},
                     std::max(left, shortest_wait), meanwhile);
    if (elsewhere) return elsewhere;
    if (found) return found;
    forget(chosen.place);  // its answer is final: the time is over, or its queue is full
  }
  return std::nullopt;
}

// A lease of a host that was full, if it has room now.
std::optional<PoolSearch::Found> PoolSearch::look_at(std::size_t place) {
  auto broker = connect(place);
  if (!broker) return std::nullopt;
  const auto full = std::find_if(full_.begin(), full_.end(), [&](const Full& host) { return host.place == place; });
  try {
    full->offer = ask_for_offer(*broker);
    if (!full->offer.room) return std::nullopt;
  } catch (const DialError& error) {
    contacts_.failed(place, error);
    forget(place);
    return std::nullopt;
  }
  const Offer offer = full->offer;
  forget(place);
  return ask({std::move(broker), hosts_[place], place, offer}, shortest_wait, {});
}

std::unique_ptr<ControlConnection> PoolSearch::connect(std::size_t place) {
  try {
    return std::make_unique<ControlConnection>(hosts_[place]);
  } catch (const DialError& error) {
    contacts_.failed(place, error);
  } catch (const std::exception& error) {
    contacts_.failed(place, {CUDA_ERROR_SYSTEM_NOT_READY, address_text(hosts_[place]) + ": " + error.what()});
  }
  forget(place);
  return nullptr;
}

void PoolSearch::forget(std::size_t place) {
  std::erase_if(full_, [&](const Full& host) { return host.place == place; });
}

}  // namespace fargpu::client
