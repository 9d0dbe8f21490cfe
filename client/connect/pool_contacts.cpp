#include "pool_contacts.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>

#include "client/base/log.h"
#include "client/base/threads.h"

namespace fargpu::client {
namespace {

// Longer than a host takes that is far away, and shorter than people notice.
constexpr auto head_start = std::chrono::milliseconds(500);

}  // namespace

void warn_of_twin(const std::string& address, const std::string& other) noexcept try {
  log::write_once(log::Level::warn, "twin " + address,
                  address == other
                      ? address + " stands in FARGPU_POOL twice, and is used once"
                      : address + " in FARGPU_POOL leads to the host of " + other + ", which is used once");
} catch (const std::exception&) {  // no memory for it
}

struct PoolContacts::State {
  struct Host {
    bool answered = false;  // or failed
    bool given = false;
    bool twin = false;  // of a host that has answered before
    std::string name, identity;
    std::unique_ptr<ControlConnection> broker;
    Offer offer;
    std::optional<DialError> error;
    bool starved = false;  // there was no memory, not even to say so

    bool ready() const { return broker && !given; }
  };
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Host> hosts;
  bool over = false;  // nobody takes an answer any more

  static std::optional<DialError> connect(const PoolHost& host, bool with_offer,
                                          std::unique_ptr<ControlConnection>& broker, Offer& offer) {
    try {
      auto connection = std::make_unique<ControlConnection>(host);
      if (with_offer) offer = ask_for_offer(*connection);
      broker = std::move(connection);
      return std::nullopt;
    } catch (const DialError& failure) {
      return failure;
    } catch (const std::exception& failure) {
      return DialError(CUDA_ERROR_SYSTEM_NOT_READY, address_text(host) + ": " + failure.what());
    }
  }

  /// On a thread of its own, perhaps: does not throw.
  void call(std::size_t place, const PoolHost& host, bool with_offer) {
    std::unique_ptr<ControlConnection> broker;
    Offer offer;
    std::optional<DialError> error;
    std::string name, identity;
    try {
      error = connect(host, with_offer, broker, offer);
      if (broker) {
        name = broker->name();
        identity = broker->host_identity();
      }
    } catch (const std::exception&) {  // no memory, not even to say so
      broker = nullptr;
    }
    const std::lock_guard lock(mutex);
    if (over) return;
    Host& own = hosts[place];
    const Host* const first = twin_of(identity, own);
    own.twin = first != nullptr;
    if (first) warn_of_twin(name, first->name);
    else own.broker = std::move(broker);
    own.offer = offer;
    own.starved = !own.broker && !error && !own.twin;
    own.error = std::move(error);
    own.name = std::move(name);
    own.identity = std::move(identity);
    own.answered = true;
    changed.notify_all();
  }

  const Host* twin_of(const std::string& identity, const Host& of) const {
    if (identity.empty()) return nullptr;
    const auto first =
        std::ranges::find_if(hosts, [&](const Host& host) { return &host != &of && host.identity == identity; });
    return first == hosts.end() ? nullptr : &*first;
  }
};

PoolContacts::PoolContacts(std::vector<PoolHost> hosts, Order order)
    : hosts_(std::move(hosts)), order_(hosts_.size() > 1 ? order : Order::pool), state_(std::make_shared<State>()) {
  state_->hosts.resize(hosts_.size());
}

PoolContacts::~PoolContacts() {
  const std::lock_guard lock(state_->mutex);
  state_->over = true;
}

void PoolContacts::call(std::size_t place) {
  // The last host is waited for in any case, and needs no thread while no other one is silent.
  const auto silent = [](const State::Host& host) { return !host.answered; };
  bool alone = place + 1 == hosts_.size();
  {
    const std::lock_guard lock(state_->mutex);
    alone = alone && std::none_of(state_->hosts.begin(), state_->hosts.end() - 1, silent);
  }
  if (alone && order_ == Order::pool) return state_->call(place, hosts_[place], /*with_offer=*/false);
  call_by_thread(place);
}

void PoolContacts::call_by_thread(std::size_t place) {
  start_thread("fargpu-contact", [state = state_, place, host = hosts_[place], with_offer = order_ == Order::load] {
    state->call(place, host, with_offer);
  });
}

// Under the mutex.
PoolContacts::Contact PoolContacts::give(std::size_t place) {
  State::Host& host = state_->hosts[place];
  host.given = true;
  return {std::move(host.broker), hosts_[place], place, host.offer};
}

// All of them, or those that come soon after the first one.
void PoolContacts::wait_for_offers() {
  while (called_ < hosts_.size()) call(called_++);
  std::unique_lock lock(state_->mutex);
  const auto& hosts = state_->hosts;
  const auto all = [&] { return std::ranges::all_of(hosts, &State::Host::answered); };
  state_->changed.wait(lock, [&] { return std::ranges::any_of(hosts, &State::Host::ready) || all(); });
  state_->changed.wait_for(lock, head_start, all);
}

std::optional<PoolContacts::Contact> PoolContacts::next() {
  if (order_ == Order::load && called_ == 0) wait_for_offers();
  const auto first_ready = [&]() -> State::Host* {
    State::Host* first = nullptr;
    for (State::Host& host : state_->hosts)
      if (host.ready() && (!first || (order_ == Order::load && better(host.offer, first->offer)))) first = &host;
    return first;
  };
  const auto waited_for = [&] {
    return std::any_of(state_->hosts.begin(), state_->hosts.begin() + static_cast<std::ptrdiff_t>(called_),
                       [](const State::Host& host) { return !host.answered; });
  };
  for (;;) {
    {
      std::unique_lock lock(state_->mutex);
      const auto decided = [&] { return first_ready() || !waited_for(); };
      if (called_ == hosts_.size()) state_->changed.wait(lock, decided);
      else state_->changed.wait_for(lock, head_start, decided);
      if (State::Host* const host = first_ready()) return give(static_cast<std::size_t>(host - state_->hosts.data()));
      if (called_ == hosts_.size()) return std::nullopt;
    }
    call(called_++);
  }
}

std::vector<PoolContacts::Contact> PoolContacts::all() {
  if (called_ == 0) wait_for_offers();
  std::vector<Contact> found;
  const std::lock_guard lock(state_->mutex);
  for (std::size_t place = 0; place < hosts_.size(); ++place)
    if (state_->hosts[place].ready()) found.push_back(give(place));
  std::stable_sort(found.begin(), found.end(),
                   [](const Contact& one, const Contact& other) { return better(one.offer, other.offer); });
  return found;
}

std::optional<PoolContacts::Contact> PoolContacts::again(std::size_t place) {
  {
    const std::lock_guard lock(state_->mutex);
    State::Host& host = state_->hosts[place];
    if (host.ready()) return give(place);
    if (!host.answered || host.twin) return std::nullopt;
    host.answered = host.given = false;
  }
  call_by_thread(place);
  return std::nullopt;
}

void PoolContacts::failed(std::size_t place, DialError error) {
  const std::lock_guard lock(state_->mutex);
  state_->hosts[place].error = std::move(error);
}

std::size_t PoolContacts::hosts() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::size_t>(std::ranges::count(state_->hosts, false, &State::Host::twin));
}

std::vector<std::size_t> PoolContacts::silent() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < called_; ++place) {
    const State::Host& host = state_->hosts[place];
    const bool failed = host.error && host.error->result == CUDA_ERROR_SYSTEM_NOT_READY &&
                        host.error->reason == wire::Failure::Reason::NONE;
    if (!host.answered || failed) places.push_back(place);
  }
  return places;
}

std::vector<DialError> PoolContacts::errors() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<DialError> errors;
  for (std::size_t place = 0; place < hosts_.size(); ++place) {
    const State::Host& host = state_->hosts[place];
    if (host.starved) throw std::bad_alloc();
    if (host.error) errors.push_back(*host.error);
    else if (place < called_ && !host.answered)
      errors.emplace_back(CUDA_ERROR_SYSTEM_NOT_READY, address_text(hosts_[place]) + " has not answered yet");
  }
  return errors;
}

}  // namespace fargpu::client
