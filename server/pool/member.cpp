#include "member.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "protocol/text.h"

namespace fargpu::server::pool {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// After which a host that says nothing is none of the pool any more.
constexpr auto lifetime = 10s;
// For which the pool remembers it all the same, less up to a third. It is told of seldom, and the pool forgets by
// itself.
constexpr auto memory = 15min;
constexpr auto look_at_lifetime = 1s;
constexpr auto join_again_after = 500ms;
constexpr auto join_again_after_max = 5s;
// Room is told at most so often, beyond what leases change.
constexpr auto tell_after = 50ms;
// Many members see at once that there is no placer.
constexpr unsigned election_spread_ms = 200;
constexpr std::size_t operations_max = transaction_max - 8;
constexpr auto view_age_max = 1s;
constexpr auto tell_max = 2s;
constexpr int set_attempts_max = 3;

std::string new_id() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) id += fmt::format("{:08x}", device());
  return id;
}

// Members leave out what is longer than a record may be.
std::string too_long(const HostRecord& host) {
  const std::size_t bytes = write(host).size();
  if (bytes <= record_bytes_max && host.tenants.size() <= tenants_max) return "";
  return fmt::format(
      "what this host tells of itself is {} long, as its settings name {}; a record of the registry has at most {}, "
      "and {}",
      bytes_text(bytes), so_many(host.tenants.size(), "tenant"), bytes_text(record_bytes_max),
      so_many(tenants_max, "tenant"));
}

// Another host is a member under the name of this one.
struct NameTaken : RegistryError {
  explicit NameTaken(const std::string& what) : RegistryError(Kind::denied, what) {}
};

bool ends_with_key(const std::string& key, const std::string& prefix, std::string& rest) {
  if (!key.starts_with(prefix)) return false;
  rest = key.substr(prefix.size());
  return is_name(rest);
}

}  // namespace

// What is told about this host and asked by it, over all its stays in the pool.
class Member::State : public std::enable_shared_from_this<State> {
 public:
  State(asio::io_context& io, Registry& registry, const MemberOptions& options, HostDuties duties)
      : io_(io),
        registry_(registry),
        options_(options),
        keys_(options.pool),
        at_(keys_.at(options.host)),
        duties_(std::move(duties)),
        pause_(io),
        write_(io) {}

  void start() {
    asio::co_spawn(
        io_, [self = shared_from_this()] { return self->live(); }, asio::detached);
  }
  void stop(std::function<void()> left) {
    left_ = std::move(left);
    stopping_ = true;
    end(nullptr);
    pause_.cancel();
    if (!living_) finish();
  }
  void abandon() {
    stopping_ = true;
    duties_ = {};
    left_ = nullptr;
    withdrawn_ = nullptr;
    end(nullptr);
    pause_.cancel();
  }

  void withdraw_requests(std::function<void()> done);

  void changed() {
    tell_room_ = true;
    write_.cancel();
  }
  void ended(const std::string& id) {
    if (known_.erase(id) == 0) return;
    erase(keys_.lease(options_.host, id));
    changed();
  }
  asio::awaitable<void> shown();
  // A client that has come all the same keeps its lease: its host enters it again.
  void given_up(const std::string& id, const std::vector<std::string>& hosts) {
    for (const std::string& host : hosts) erase(keys_.lease(host, id));
  }
  void entered(const std::string& id, const LeaseRecord& lease) {
    known_.insert(id);
    if (stay_) put(keys_.lease(options_.host, id), write(lease));
  }

  class OwnRequest;
  std::shared_ptr<Request> request(RequestRecord wish);
  void take_back(const std::string& id, bool answered);

  asio::awaitable<std::optional<LeaseRecord>> find(std::string id);
  asio::awaitable<std::shared_ptr<const PoolView>> view();
  asio::awaitable<void> set_tenant(std::string tenant, std::optional<TenantRecord> limits);

  bool in_touch() const { return stay_ && stay_->joined; }
  const std::string& trouble() const { return trouble_; }
  bool name_is_taken() const { return name_taken_; }
  Clock::time_point lost_at() const { return lost_at_; }
  const Placer* placer() const { return stay_ ? stay_->placer.get() : nullptr; }

 private:
  // From joining to the moment at which something goes wrong with the registry.
  struct Stay {
    std::unique_ptr<Lifetime> lifetime;
    std::shared_ptr<Placer> placer;
    bool joined = false, over = false;
    std::exception_ptr failure;
  };
  using StayPointer = std::shared_ptr<Stay>;

  asio::awaitable<void> live();
  asio::awaitable<void> stay(StayPointer stay);
  asio::awaitable<std::int64_t> join(StayPointer stay);
  asio::awaitable<void> leave(StayPointer stay);
  void end(std::exception_ptr failure);
  void finish() {
    if (left_) std::exchange(left_, nullptr)();
  }
  void told_withdrawn() {
    if (withdrawn_) std::exchange(withdrawn_, nullptr)();
  }
  // A part of a stay, which ends with it, and ends it.
  template <class Work>
  void spawn(StayPointer stay, Work work) {
    asio::co_spawn(
        io_,
        [self = shared_from_this(), stay, work = std::move(work)]() -> asio::awaitable<void> {
          std::exception_ptr failure;
          try {
            co_await work(self, stay);
          } catch (...) {
            failure = std::current_exception();
          }
          if (failure && !stay->over && self->stay_ == stay) self->end(failure);
        },
        asio::detached);
  }
  asio::awaitable<void> watch_own(StayPointer stay, std::int64_t after);
  asio::awaitable<void> watch_placer(StayPointer stay, std::int64_t after);
  asio::awaitable<void> campaign(StayPointer stay);
  asio::awaitable<void> write_out(StayPointer stay);
  asio::awaitable<void> mind_lifetime(StayPointer stay);
  asio::awaitable<void> wait(std::chrono::milliseconds time);
  asio::awaitable<std::shared_ptr<const PoolView>> look_at_all();

  void hear(const std::vector<Change>& changes, std::int64_t revision);
  void on_lease(const std::string& id, const Change& change);
  void on_answer(const std::string& id, const Change& change);

  void put(std::string key, std::string value) { queue({Operation::What::put, std::move(key), std::move(value), 0}); }
  void erase(std::string key) { queue({Operation::What::erase, std::move(key), {}, 0}); }
  void queue(Operation operation) {
    if (!stay_) return;  // at the next joining everything is written anew
    outbox_[operation.key] = std::move(operation);
    write_.cancel();
  }

  asio::io_context& io_;
  Registry& registry_;
  const MemberOptions options_;
  const Keys keys_;
  const std::string at_;
  HostDuties duties_;
  asio::steady_timer pause_;
  asio::steady_timer write_;
  StayPointer stay_;
  bool living_ = false, stopping_ = false;
  std::function<void()> left_;
  bool withdrawing_ = false;
  std::function<void()> withdrawn_;
  std::string trouble_ = "it was not joined yet";
  bool name_taken_ = false;
  bool lost_told_ = false;
  Clock::time_point lost_at_{};

  std::map<std::string, Operation> outbox_;   // by key: the last one counts
  std::unique_ptr<Lifetime> known_lifetime_;  // of what the pool remembers of this host; of all its stays
  bool told_known_ = false;
  bool tell_room_ = false, writing_ = false;
  RoomRecord told_room_;
  HostRecord told_host_;
  std::unique_ptr<Lifetime> before_;  // of the last stay, until this host has joined anew
  Clock::time_point before_until_{};
  bool went_back_ = false;       // the store is another one, or one of the past
  std::int64_t seen_ = 0;        // leases of revisions up to this one were given to the host
  std::set<std::string> known_;  // leases that the host keeps
  std::map<std::string, std::weak_ptr<OwnRequest>> requests_;
  std::string placer_host_;
  std::shared_ptr<const PoolView> view_;
  Clock::time_point view_since_{};
  std::shared_ptr<asio::steady_timer> viewing_;  // ends with the reading of the whole pool that is under way
  std::exception_ptr view_failure_;
};

// --- requests -------------------------------------------------------------------------------------------------------

class Member::State::OwnRequest final : public Request {
 public:
  OwnRequest(std::weak_ptr<State> state, RequestRecord record)
      : state_(std::move(state)), record_(std::move(record)), id_(new_id()) {}
  ~OwnRequest() override {
    if (const auto state = state_.lock()) state->take_back(id_, answer_.has_value());
  }
  const std::optional<Answer>& answer() const override { return answer_; }
  const std::string& id() const override { return id_; }
  const RequestRecord& record() const { return record_; }
  void take(Answer answer) {
    answer_ = std::move(answer);
    if (const auto tell = answered) tell();
  }

 private:
  const std::weak_ptr<State> state_;
  const RequestRecord record_;
  const std::string id_;
  std::optional<Answer> answer_;
};

std::shared_ptr<Request> Member::State::request(RequestRecord wish) {
  wish.front = options_.host;
  const auto request = std::make_shared<OwnRequest>(weak_from_this(), std::move(wish));
  if (withdrawing_) return request;
  requests_[request->id()] = request;
  if (in_touch()) {
    put(keys_.request(request->id()), write(request->record()));
  } else if (!request->record().waits) {
    asio::post(io_, [this, self = shared_from_this(), weak = std::weak_ptr(request)] {
      if (const auto request = weak.lock(); request && !request->answer())
        request->take(Refusal{
            true, fmt::format("the registry of pool '{}' is of no use now: {}; try later", options_.pool, trouble_)});
    });
  }
  return request;
}

void Member::State::take_back(const std::string& id, bool answered) {
  requests_.erase(id);
  if (!answered) erase(keys_.request(id));
}

void Member::State::withdraw_requests(std::function<void()> done) {
  for (const auto& [id, weak] : requests_) {
    const auto request = weak.lock();
    if (!request || !request->answer()) erase(keys_.request(id));
  }
  requests_.clear();
  withdrawing_ = true;
  withdrawn_ = std::move(done);
  write_.cancel();
  if (!stay_) told_withdrawn();
}

// --- stays ----------------------------------------------------------------------------------------------------------

asio::awaitable<void> Member::State::wait(std::chrono::milliseconds time) {
  asio::steady_timer timer(io_, time);
  asio::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> Member::State::live() {
  living_ = true;
  std::chrono::milliseconds again = join_again_after;
  while (!stopping_) {
    const auto stay = std::make_shared<Stay>();
    std::string why;
    bool name_taken = false;
    stay_ = stay;
    try {
      co_await this->stay(stay);
    } catch (const NameTaken& error) {
      why = error.what();
      name_taken = true;
    } catch (const RegistryError& error) {
      why = error.what();
      if (error.kind == RegistryError::Kind::strange) {
        seen_ = 0;
        went_back_ = true;
      }
    } catch (const std::exception& error) {
      why = error.what();
    }
    stay->over = true;
    if (stay->placer) stay->placer->stop();
    const bool was_joined = stay->joined;
    stay->joined = false;
    if (was_joined) lost_at_ = Clock::now();
    if (was_joined && !stopping_) {
      // What stands in the registry of this host stays there for as long as if it had said nothing. Its successor
      // begins a lifetime of its own, and parts of this stay may live on without one.
      before_ = std::move(stay->lifetime);
      before_until_ = Clock::now() + lifetime;
    } else if (Clock::now() >= before_until_) {
      before_ = nullptr;
    }
    stay_ = nullptr;
    writing_ = false;
    outbox_.clear();
    write_.cancel();
    told_withdrawn();
    if (stopping_) {
      if (duties_.log) co_await leave(stay);
      break;
    }
    trouble_ = why;
    name_taken_ = name_taken;
    if (was_joined || !std::exchange(lost_told_, true))
      duties_.log(true, "pool out of reach",
                  {{"pool", options_.pool}, {"reason", why}, {"meaning", "sessions go on; it is tried again"}});
    lost_told_ = true;
    again = was_joined ? join_again_after : std::min<std::chrono::milliseconds>(again * 2, join_again_after_max);
    pause_.expires_after(again);
    asio::error_code ignored;
    co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  living_ = false;
  finish();
}

void Member::State::end(std::exception_ptr failure) {
  if (!stay_ || stay_->over) return;
  stay_->failure = std::move(failure);
  stay_->over = true;
  if (stay_->placer) stay_->placer->stop();
  write_.cancel();
  pause_.cancel();
}

// What is bound to the lifetime goes at once.
asio::awaitable<void> Member::State::leave(StayPointer stay) {
  if (!stay->lifetime && !before_) co_return;
  Transaction transaction;
  transaction.erase(keys_.host(options_.host));
  transaction.erase(keys_.room(options_.host));
  transaction.erase(keys_.known(options_.host));
  try {
    co_await registry_.commit(std::move(transaction));
  } catch (const RegistryError&) {}
  stay->lifetime.reset();
  before_.reset();
  known_lifetime_.reset();
}

asio::awaitable<void> Member::State::stay(StayPointer stay) {
  const std::int64_t after = co_await join(stay);
  if (stay->over) co_return;
  stay->joined = true;
  before_ = nullptr;
  went_back_ = false;
  trouble_.clear();
  name_taken_ = false;
  lost_told_ = false;
  duties_.log(false, "joined pool", {{"pool", options_.pool}, {"as", options_.host}});
  spawn(stay, [after](auto self, auto of) { return self->watch_own(of, after); });
  spawn(stay, [after](auto self, auto of) { return self->watch_placer(of, after); });
  spawn(stay, [](auto self, auto of) { return self->write_out(of); });
  // What was asked for while this host joined.
  for (const auto& [id, weak] : requests_)
    if (const auto request = weak.lock(); request && !request->answer())
      put(keys_.request(id), write(request->record()));
  if (duties_.joined) duties_.joined();
  co_await mind_lifetime(stay);
  if (stay->failure) std::rethrow_exception(stay->failure);
}

asio::awaitable<void> Member::State::mind_lifetime(StayPointer stay) {
  while (!stay->over) {
    if (!stay->lifetime->lasts())
      throw RegistryError(RegistryError::Kind::lifetime_over,
                          fmt::format("the registry has not heard of this host for {} s", lifetime / 1s));
    pause_.expires_after(look_at_lifetime);
    asio::error_code ignored;
    co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

// Leases come first, so that nobody takes their room for free.
asio::awaitable<std::int64_t> Member::State::join(StayPointer stay) {
  stay->lifetime = co_await registry_.begin_lifetime(lifetime);
  const std::int64_t bound = stay->lifetime->id();
  std::vector<std::string> prefixes{keys_.host(options_.host), at_, keys_.requests()};
  const Snapshot snapshot = co_await registry_.read(std::move(prefixes));
  std::int64_t host_revision = 0;
  std::vector<Operation> operations;
  const std::map<std::string, LeaseRecord> kept = duties_.kept();
  for (const Entry& entry : snapshot.entries) {
    if (entry.key != keys_.host(options_.host)) continue;
    const auto record = read<HostRecord>(entry.value);
    if (record && record->identity != options_.identity)
      throw NameTaken(
          fmt::format("another host is a member under the name '{}', at {}; give this one another "
                      "name by pool_host",
                      options_.host, record->address));
    host_revision = entry.modified;
  }
  for (const Entry& entry : snapshot.entries) {
    std::string id;
    if (ends_with_key(entry.key, at_ + "lease/", id)) {
      if (kept.contains(id)) continue;
      // Placed after this host last looked: by a broker before this one, or while the registry was away. What a store
      // of the past has may have ended since.
      const bool news = entry.created > seen_ && !went_back_;
      const auto record = news ? read<LeaseRecord>(entry.value) : std::nullopt;
      if (record && duties_.admit(id, *record)) {
        operations.push_back({Operation::What::put, entry.key, entry.value, bound});
        known_.insert(id);
      } else {
        operations.push_back({Operation::What::erase, entry.key, {}, 0});
      }
    } else if (ends_with_key(entry.key, at_ + "answer/", id)) {
      on_answer(id, {false, entry});
      operations.push_back({Operation::What::erase, entry.key, {}, 0});
    } else if (ends_with_key(entry.key, keys_.requests(), id)) {
      const auto record = read<RequestRecord>(entry.value);
      const auto own = requests_.find(id);
      if (record && record->front == options_.host && (own == requests_.end() || own->second.expired()))
        operations.push_back({Operation::What::erase, entry.key, {}, 0});
    }
  }
  for (const auto& [id, lease] : kept) {
    operations.push_back({Operation::What::put, keys_.lease(options_.host, id), write(lease), bound});
    known_.insert(id);
  }
  for (std::size_t i = 0; i < operations.size(); i += operations_max) {
    Transaction transaction;
    transaction.operations.assign(
        operations.begin() + static_cast<std::ptrdiff_t>(i),
        operations.begin() + static_cast<std::ptrdiff_t>(std::min(operations.size(), i + operations_max)));
    co_await registry_.commit(std::move(transaction));
  }
  // What has just been entered is counted in the room that is told, and so is what was placed meanwhile.
  std::vector<std::string> own{at_};
  Snapshot entered = co_await registry_.read(std::move(own));
  std::vector<Change> changes;
  for (Entry& entry : entered.entries) changes.push_back({false, std::move(entry)});
  hear(changes, entered.revision);
  HostRecord host = duties_.describe();
  if (const std::string complaint = too_long(host); !complaint.empty())
    throw RegistryError(RegistryError::Kind::denied, complaint);
  told_host_ = std::move(host);
  told_room_ = duties_.room();
  told_room_.seen = seen_;
  auto known_lifetime = co_await registry_.begin_lifetime(memory);
  Transaction transaction;
  transaction.require_modified(keys_.host(options_.host), host_revision);
  transaction.put(keys_.host(options_.host), write(told_host_), bound);
  transaction.put(keys_.room(options_.host), write(told_room_), bound);
  told_known_ = told_room_.state != RoomRecord::State::draining;
  if (told_known_) transaction.put(keys_.known(options_.host), write(told_host_), known_lifetime->id());
  else transaction.erase(keys_.known(options_.host));
  const Outcome outcome = co_await registry_.commit(std::move(transaction));
  if (outcome.committed) known_lifetime_ = std::move(known_lifetime);  // the one before has no key any more
  else throw NameTaken(fmt::format("another host joins under the name '{}' at this moment", options_.host));
  co_return entered.revision;
}

// --- what concerns this host ----------------------------------------------------------------------------------------

asio::awaitable<void> Member::State::watch_own(StayPointer stay, std::int64_t after) {
  const std::unique_ptr<Watch> watch = registry_.watch(at_, after);
  while (!stay->over) {
    const Changes changes = co_await watch->next();
    if (stay->over) co_return;
    hear(changes.changes, changes.revision);
  }
}

// The leases of a transaction are the host's before an answer tells of them.
void Member::State::hear(const std::vector<Change>& changes, std::int64_t revision) {
  std::string id;
  for (const Change& change : changes)
    if (ends_with_key(change.entry.key, at_ + "lease/", id)) on_lease(id, change);
  seen_ = std::max(seen_, revision);
  for (const Change& change : changes)
    if (ends_with_key(change.entry.key, at_ + "answer/", id)) on_answer(id, change);
}

void Member::State::on_lease(const std::string& id, const Change& change) {
  if (change.deleted) {
    if (!known_.contains(id)) return;
    duties_.withdraw(id);
    // What goes on here stands there.
    const auto kept = duties_.kept();
    if (const auto lease = kept.find(id); lease != kept.end())
      put(keys_.lease(options_.host, id), write(lease->second));
    else known_.erase(id);
    changed();
    return;
  }
  if (known_.contains(id)) {
    // The placer counts what was entered after the room that it knows of, also what the host has entered itself.
    if (change.entry.created > told_room_.seen) changed();
    return;
  }
  tell_room_ = true;
  const auto record = read<LeaseRecord>(change.entry.value);
  if (!record || !duties_.admit(id, *record)) return erase(change.entry.key);
  known_.insert(id);
  // The placer does not know yet that this host has joined anew.
  if (change.entry.lifetime != stay_->lifetime->id()) put(change.entry.key, change.entry.value);
  write_.cancel();
}

void Member::State::on_answer(const std::string& id, const Change& change) {
  if (change.deleted) return;
  erase(change.entry.key);
  const auto record = read<AnswerRecord>(change.entry.value);
  const auto place = requests_.find(id);
  const auto request = place == requests_.end() ? nullptr : place->second.lock();
  if (!request || request->answer()) {
    // Its client has gone.
    if (record && !request)
      for (const Part& part : record->parts) erase(keys_.lease(part.host, id));
    return;
  }
  if (!record) request->take(Refusal{true, "the pool's answer cannot be understood; try later"});
  else if (record->parts.empty()) request->take(Refusal{record->may_change, record->text});
  else request->take(record->parts);
}

// --- writing --------------------------------------------------------------------------------------------------------

asio::awaitable<void> Member::State::write_out(StayPointer stay) {
  Clock::time_point told{};
  while (!stay->over) {
    if (tell_room_ && Clock::now() >= told + tell_after) {
      tell_room_ = false;
      RoomRecord room = duties_.room();
      // A host that nothing has happened to is not told of again for the number of a revision.
      room.seen = told_room_.seen;
      const bool counted = seen_ > told_room_.seen;
      if (room != told_room_ || counted) {
        room.seen = seen_;
        told_room_ = std::move(room);
        outbox_[keys_.room(options_.host)] = {Operation::What::put, keys_.room(options_.host), write(told_room_), 0};
        told = Clock::now();
      }
      // One that is drained is about to be taken out of the pool perhaps, or to be back.
      const bool known = told_room_.state != RoomRecord::State::draining;
      bool tell_known = known != told_known_;
      if (HostRecord host = duties_.describe(); host != told_host_) {
        told_host_ = std::move(host);
        if (const std::string complaint = too_long(told_host_); !complaint.empty())
          throw RegistryError(RegistryError::Kind::denied, complaint);
        outbox_[keys_.host(options_.host)] = {Operation::What::put, keys_.host(options_.host), write(told_host_), 0};
        tell_known |= known;
      }
      if (tell_known) {
        const std::string key = keys_.known(options_.host);
        if (known) put(key, write(told_host_));
        else erase(key);
        told_known_ = known;
      }
    }
    if (outbox_.empty()) {
      told_withdrawn();
      write_.expires_after(tell_room_ ? std::chrono::milliseconds(tell_after) : std::chrono::milliseconds(1h));
      asio::error_code ignored;
      co_await write_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      continue;
    }
    Transaction transaction;
    while (!outbox_.empty() && transaction.operations.size() < operations_max) {
      Operation operation = std::move(outbox_.begin()->second);
      outbox_.erase(outbox_.begin());
      if (operation.what == Operation::What::put)
        operation.lifetime = (operation.key == keys_.known(options_.host) ? known_lifetime_ : stay->lifetime)->id();
      transaction.operations.push_back(std::move(operation));
    }
    writing_ = true;
    co_await registry_.commit(std::move(transaction));
    writing_ = false;
  }
}

// Others may show what they had read just before.
asio::awaitable<void> Member::State::shown() {
  const auto self = shared_from_this();
  const auto until = Clock::now() + tell_max;
  while (in_touch() && (tell_room_ || writing_ || !outbox_.empty()) && Clock::now() < until) co_await wait(10ms);
  view_ = nullptr;
  if (in_touch()) co_await wait(view_age_max);
}

// --- the placer -----------------------------------------------------------------------------------------------------

asio::awaitable<void> Member::State::watch_placer(StayPointer stay, std::int64_t after) {
  std::vector<std::string> prefix{keys_.placer()};
  const Snapshot snapshot = co_await registry_.read(std::move(prefix));
  if (stay->over) co_return;
  placer_host_.clear();
  bool there = false;
  for (const Entry& entry : snapshot.entries) {
    if (entry.key != keys_.placer()) continue;
    there = true;
    placer_host_ = entry.value;
    // A broker before this one was it.
    if (entry.value == options_.host && entry.lifetime != stay->lifetime->id()) {
      Transaction transaction;
      transaction.require_modified(entry.key, entry.modified);
      transaction.erase(entry.key);
      co_await registry_.commit(std::move(transaction));
      if (stay->over) co_return;
      there = false;
    }
  }
  const std::unique_ptr<Watch> watch = registry_.watch(keys_.placer(), std::max(after, snapshot.revision));
  if (!there) co_await campaign(stay);
  while (!stay->over) {
    const Changes changes = co_await watch->next();
    bool gone = false;
    for (const Change& change : changes.changes) {
      if (change.entry.key != keys_.placer()) continue;
      gone = change.deleted;
      placer_host_ = change.deleted ? "" : change.entry.value;
    }
    if (gone && !stay->over) co_await campaign(stay);
  }
}

asio::awaitable<void> Member::State::campaign(StayPointer stay) {
  if (!options_.places) co_return;
  std::random_device random;
  co_await wait(std::chrono::milliseconds(random() % election_spread_ms));
  if (stay->over) co_return;
  Transaction transaction;
  transaction.require_absent(keys_.placer());
  transaction.put(keys_.placer(), options_.host, stay->lifetime->id());
  const Outcome outcome = co_await registry_.commit(std::move(transaction));
  if (!outcome.committed || stay->over) co_return;
  duties_.log(false, "elected placer", {{"pool", options_.pool}});
  if (stay->placer) stay->placer->stop();
  stay->placer = std::make_shared<Placer>(io_, registry_, keys_, outcome.revision, duties_.log);
  spawn(stay, [placer = stay->placer](auto, auto of) -> asio::awaitable<void> {
    co_await placer->run();
    if (of->placer == placer) of->placer = nullptr;
  });
}

// --- looking --------------------------------------------------------------------------------------------------------

asio::awaitable<std::optional<LeaseRecord>> Member::State::find(std::string id) {
  if (!is_name(id)) co_return std::nullopt;
  const std::string key = keys_.lease(options_.host, id);
  std::vector<std::string> prefix{key};
  const Snapshot snapshot = co_await registry_.read(std::move(prefix));
  for (const Entry& entry : snapshot.entries)
    if (entry.key == key) co_return read<LeaseRecord>(entry.value);
  co_return std::nullopt;
}

asio::awaitable<std::shared_ptr<const PoolView>> Member::State::view() {
  if (view_ && Clock::now() - view_since_ < view_age_max) co_return view_;
  if (const auto viewing = viewing_) {
    asio::error_code ignored;
    co_await viewing->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  } else {
    viewing_ = std::make_shared<asio::steady_timer>(io_, asio::steady_timer::time_point::max());
    view_failure_ = nullptr;
    try {
      view_ = co_await look_at_all();
      view_since_ = Clock::now();
    } catch (...) {
      view_failure_ = std::current_exception();
    }
    std::exchange(viewing_, nullptr)->cancel();
  }
  if (view_failure_) std::rethrow_exception(view_failure_);
  co_return view_;
}

asio::awaitable<std::shared_ptr<const PoolView>> Member::State::look_at_all() {
  std::vector<std::string> everything{keys_.root()};
  const Snapshot snapshot = co_await registry_.read(std::move(everything));
  const auto view = std::make_shared<PoolView>();
  std::vector<std::pair<std::int64_t, RequestRecord>> waiting;
  for (const Entry& entry : snapshot.entries) {
    std::string name;
    if (entry.key == keys_.placer()) {
      view->placer = entry.value;
    } else if (ends_with_key(entry.key, keys_.hosts(), name)) {
      if (auto record = read<HostRecord>(entry.value)) view->hosts[name].record = std::move(*record);
    } else if (ends_with_key(entry.key, keys_.known_hosts(), name)) {
      if (auto record = read<HostRecord>(entry.value)) view->away[name] = std::move(*record);
    } else if (ends_with_key(entry.key, keys_.rooms(), name)) {
      if (auto record = read<RoomRecord>(entry.value)) view->hosts[name].room = std::move(*record);
    } else if (ends_with_key(entry.key, keys_.tenants(), name)) {
      if (const auto record = read<TenantRecord>(entry.value)) view->tenants[name] = *record;
    } else if (ends_with_key(entry.key, keys_.requests(), name)) {
      if (auto record = read<RequestRecord>(entry.value)) waiting.emplace_back(entry.created, std::move(*record));
    } else if (entry.key.starts_with(keys_.everybody())) {
      const std::string rest = entry.key.substr(keys_.everybody().size());
      const std::string host = rest.substr(0, rest.find('/'));
      const auto record = rest.starts_with(host + "/lease/") ? read<LeaseRecord>(entry.value) : std::nullopt;
      if (!record) continue;
      ++view->hosts[host].leases;
      Limits& use = view->uses[record->tenant];
      use.memory_bytes += record->memory_bytes * record->gpus;
      use.compute_percent += record->compute_percent * record->gpus;
      ++use.leases;
    }
  }
  std::erase_if(view->hosts, [](const auto& host) { return host.second.record.identity.empty(); });
  std::erase_if(view->away, [&](const auto& host) { return view->hosts.contains(host.first); });
  std::stable_sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [created, request] : waiting) view->waiting.push_back(std::move(request));
  co_return view;
}

// If the answer is lost, or somebody else was faster, the registry says what stands there now. The condition keeps a
// transaction whose answer was lost from taking place later, after one that repeats it.
asio::awaitable<void> Member::State::set_tenant(std::string tenant, std::optional<TenantRecord> limits) {
  const std::string key = keys_.tenant(tenant);
  const std::optional<std::string> wanted = limits ? std::optional(write(*limits)) : std::nullopt;
  std::optional<RegistryError> failure;
  for (int attempt = 0; attempt < set_attempts_max; ++attempt) {
    std::vector<std::string> prefix{key};
    const Snapshot snapshot = co_await registry_.read(std::move(prefix));
    const auto entry = std::find_if(snapshot.entries.begin(), snapshot.entries.end(),
                                    [&](const Entry& entry) { return entry.key == key; });
    const bool there = entry != snapshot.entries.end();
    failure.reset();
    if (wanted ? there && entry->value == *wanted : !there) break;
    Transaction transaction;
    transaction.require_modified(key, there ? entry->modified : 0);
    if (wanted) transaction.put(key, *wanted);
    else transaction.erase(key);
    try {
      const Outcome outcome = co_await registry_.commit(std::move(transaction));
      if (outcome.committed) break;
      failure.emplace(RegistryError::Kind::unavailable, "others set the same limits at this moment");
    } catch (const RegistryError& error) {
      if (error.kind != RegistryError::Kind::unavailable) throw;
      failure.emplace(error);
    }
  }
  view_ = nullptr;
  if (failure) throw RegistryError(*failure);
}

// --- the member -----------------------------------------------------------------------------------------------------

Member::Member(asio::io_context& io, Registry& registry, MemberOptions options, HostDuties duties)
    : options_(std::move(options)), state_(std::make_shared<State>(io, registry, options_, std::move(duties))) {}
Member::~Member() { state_->abandon(); }

void Member::start() { state_->start(); }
void Member::stop(std::function<void()> left) { state_->stop(std::move(left)); }
void Member::withdraw_requests(std::function<void()> done) { state_->withdraw_requests(std::move(done)); }
void Member::changed() { state_->changed(); }
asio::awaitable<void> Member::shown() { return state_->shown(); }
void Member::ended(const std::string& id) { state_->ended(id); }
void Member::given_up(const std::string& id, const std::vector<std::string>& hosts) { state_->given_up(id, hosts); }
void Member::entered(const std::string& id, const LeaseRecord& lease) { state_->entered(id, lease); }
std::shared_ptr<Request> Member::request(const RequestRecord& wish) { return state_->request(wish); }
asio::awaitable<std::optional<LeaseRecord>> Member::find(std::string id) { return state_->find(std::move(id)); }
bool Member::in_touch() const { return state_->in_touch(); }
std::string Member::trouble() const { return state_->trouble(); }
bool Member::name_is_taken() const { return state_->name_is_taken(); }
std::chrono::steady_clock::time_point Member::lost_at() const { return state_->lost_at(); }
bool Member::is_placer() const { return state_->placer() != nullptr; }
const PlacerCounts* Member::counts() const { return state_->placer() ? &state_->placer()->counts() : nullptr; }
asio::awaitable<std::shared_ptr<const PoolView>> Member::view() { return state_->view(); }
asio::awaitable<void> Member::set_tenant(std::string tenant, std::optional<TenantRecord> limits) {
  return state_->set_tenant(std::move(tenant), std::move(limits));
}

}  // namespace fargpu::server::pool
