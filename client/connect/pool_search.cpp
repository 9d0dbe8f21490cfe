#include "pool_search.h"

#include <algorithm>
#include <thread>
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

PoolSearch::PoolSearch(std::vector<PoolHost> hosts, PoolContacts::Order order, bool hold, Check check,
                       LeaseOptions wish)
    : hosts_(std::move(hosts)),
      wish_(std::move(wish)),
      order_(order),
      hold_(hold),
      check_(std::move(check)),
      give_up_(Clock::now() + wish_.wait),
      contacts_(hosts_, order) {}

std::optional<PoolSearch::Found> PoolSearch::next() {
  const std::chrono::milliseconds patience = wish_.wait;
  while (auto contact = contacts_.next()) {
    const auto wait = hosts_.size() == 1 ? patience : std::min(patience, shortest_wait);
    const std::string pool = contact->broker->pool();
    if (const auto asked = others_.find(pool); !pool.empty() && asked != others_.end()) {
      asked->second.push_back({contact->place, contact->offer});
      continue;
    }
    if (!pool.empty()) others_[pool];
    if (auto found = ask(std::move(*contact), wait, {})) return found;
    if (!pool.empty() && !answered_) others_.erase(pool);  // the next member may
  }
  return hosts_.size() == 1 ? std::nullopt : queue();
}

// Nothing if the host gives no lease, or if `meanwhile` has found something better. Hosts of its pool that do not
// answer may be back before the wait is over.
std::optional<PoolSearch::Found> PoolSearch::ask(PoolContacts::Contact contact, std::chrono::milliseconds wait,
                                                 const ControlConnection::Meanwhile& meanwhile) {
  const auto until = Clock::now() + wait;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    auto found = ask_once(contact, std::max(left, std::min(wait, shortest_wait)), meanwhile);
    if (found || !out_of_reach_) return found;
    if (Clock::now() + look_interval >= until) {
      full_.push_back({contact.place, contact.offer});
      return std::nullopt;
    }
    std::this_thread::sleep_for(look_interval);
    unreached_.clear();
    contact.broker = connect(contact.place);
    if (!contact.broker) return std::nullopt;
  }
}

std::optional<PoolSearch::Found> PoolSearch::ask_once(PoolContacts::Contact& contact, std::chrono::milliseconds wait,
                                                      const ControlConnection::Meanwhile& meanwhile) {
  answered_ = out_of_reach_ = false;
  const auto until = Clock::now() + wait;
  const bool of_pool = !contact.broker->pool().empty();
  std::optional<DialError> in_vain;
  std::vector<std::string>& unreached = unreached_[contact.broker->pool()];
  try {
    for (int placements = 1;; ++placements) {
      check_(*contact.broker);
      LeaseOptions wish = wish_;
      wish.follows = true;
      wish.hosts = 1;
      wish.unreached = unreached;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      wish.wait = placements == 1 ? wait : std::max(left, std::min(wait, shortest_wait));
      Ticket ticket;
      std::optional<Placement> placement;
      const auto take = [&](wire::LeaseAnswer::Reader answer) {
        placement = read_placement(answer, *contact.broker, wish);
        if (!placement) ticket = read_ticket(answer);
      };
      if (!contact.broker->ask_for_lease(wish, hold_, take, meanwhile)) return std::nullopt;
      if (!placement) return Found{std::move(contact.broker), contact.host, contact.place, std::move(ticket), false};
      try {
        return go_to(*placement, contact.place);
      } catch (const DialError& failure) {
        const Placement::Part& part = placement->parts.at(0);
        in_vain = placed_there(part.host, failure, part.name);
        give_up(contact.host, placement->name);
        if (!place_again(*in_vain, placements)) throw *in_vain;
        if (!in_vain->unreached.empty()) unreached.push_back(in_vain->unreached);
      }
      contact.broker = std::make_unique<ControlConnection>(contact.host);
    }
  } catch (const DialError& failure) {
    DialError error = no_other_host(in_vain, failure);
    if (error.unreached.empty())
      error = told_with(in_vain, of_pool ? told_of_outage(contact.host, wish_, failure) : failure);
    log::info("{}", error.what());
    answered_ = error.reason == wire::Failure::Reason::NO_CAPACITY || error.reason == wire::Failure::Reason::DENIED ||
                !error.unreached.empty();
    out_of_reach_ = !error.unreached.empty();
    if (error.reason == wire::Failure::Reason::NO_CAPACITY) full_.push_back({contact.place, contact.offer});
    contacts_.failed(contact.place, error);
    return std::nullopt;
  }
}

PoolSearch::Found PoolSearch::go_to(const Placement& placement, std::size_t place) {
  const Placement::Part& part = placement.parts.at(0);
  auto broker = connect_to_part(part);
  check_(*broker);
  LeaseOptions wish = wish_;
  wish.job = placement.job;
  wish.placement = placement.name;
  wish.hosts = 1;
  wish.wait = std::chrono::milliseconds(0);
  Ticket ticket;
  broker->ask_for_lease(wish, hold_, [&](wire::LeaseAnswer::Reader answer) { ticket = read_ticket(answer); }, {});
  log::info("{} of pool '{}' has the lease", broker->name(), broker->pool());
  return {std::move(broker), part.host, place, std::move(ticket), true};
}

// One host's queue at a time: a place in several would keep devices from others that nobody uses in the end.
std::optional<PoolSearch::Found> PoolSearch::queue() {
  away_ = contacts_.silent();
  while (!full_.empty() && Clock::now() < give_up_) {
    const auto sooner = [this](const Full& one, const Full& other) {
      return order_ == PoolContacts::Order::load ? better(one.offer, other.offer) : one.place < other.place;
    };
    const Full chosen = *std::min_element(full_.begin(), full_.end(), sooner);
    forget(chosen.place);
    auto broker = connect(chosen.place);
    if (!broker) continue;
    const std::string pool = broker->pool();
    log::info("waiting at {}, and watching {} other hosts", broker->name(), full_.size() + away_.size());
    std::optional<Found> elsewhere;
    std::size_t looks = 0;
    ControlConnection::Meanwhile meanwhile;
    if (const std::size_t others = full_.size() + away_.size(); others > 0) {
      meanwhile.interval = std::max(look_interval / static_cast<int>(others), look_interval_min);
      meanwhile.go_on = [&] {
        const std::size_t all = full_.size() + away_.size();
        if (all == 0) return true;
        const std::size_t next = looks++ % all;
        elsewhere = next < full_.size() ? look_at(full_[next].place) : call_again(away_[next - full_.size()]);
        return !elsewhere;
      };
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up_ - Clock::now());
    auto found = ask({std::move(broker), hosts_[chosen.place], chosen.place, chosen.offer},
                     std::max(left, shortest_wait), meanwhile);
    if (elsewhere) return elsewhere;
    if (found) return found;
    if (const auto others = others_.find(pool); !answered_ && others != others_.end() && !others->second.empty()) {
      full_.push_back(others->second.back());
      others->second.pop_back();
    }
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

// A lease of a host that did not answer, if it does now and has room. If it is full it is looked at as others are.
std::optional<PoolSearch::Found> PoolSearch::call_again(std::size_t place) {
  const auto contact = contacts_.again(place);
  if (!contact) return std::nullopt;
  std::erase(away_, place);
  if (!contact->broker->pool().empty()) return std::nullopt;  // another member of it is asked, which answers for it too
  full_.push_back({place, {}});
  return look_at(place);
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
