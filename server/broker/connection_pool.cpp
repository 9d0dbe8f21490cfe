// The pool's part in a lease: where its registry places what a client asks this host for.

#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>

#include "connection.h"
#include "event_log.h"
#include "protocol/data.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

using Clock = std::chrono::steady_clock;

// A registry that says nothing about a request for so long is as one that is away.
constexpr auto registry_silence_max = std::chrono::seconds(10);
// A host that has lost the registry goes on with another member of etcd, or with another leader, within moments.
constexpr auto registry_back_max = std::chrono::seconds(4);
constexpr auto registry_trouble_max = std::chrono::seconds(10);  // of one request, if it is lost again and again
constexpr auto registry_away_max = std::chrono::seconds(2);
// For so long a host that clients of one address did not reach is not taken for that address: others may have room
// soon.
constexpr auto doubt_max = std::chrono::seconds(1);
constexpr auto ask_in_doubt_again = std::chrono::milliseconds(200);
constexpr auto ask_pool_again = std::chrono::milliseconds(50);
constexpr int placements_max = 4;  // of one request, if hosts have no room although they seemed to

}  // namespace

/// A request to the pool's registry, and how far it is.
struct Broker::Connection::PoolQuestion {
  wire::LeaseRequest::Reader request;
  LeaseAttempt& attempt;
  const bool local;  ///< the host goes on by itself while the registry is away
  pool::RequestRecord record;
  asio::steady_timer wake;
  Clock::time_point begin{};
  Clock::time_point until{};        ///< of asking with a wait
  Clock::time_point doubt_until{};  ///< of asking without the hosts in doubt
  bool doubts = false;              ///< it was asked without them, this time
  std::string last_reason{};
  int placements = 0;
};

// What a pool's registry has to do with a request. True: it goes on as at a host by itself; a lease that was placed
// here is the job's then. False: it was answered, or its client has gone.
asio::awaitable<bool> Broker::Connection::go_by_pool(wire::LeaseRequest::Reader request, LeaseAttempt& attempt) {
  PoolHost& pool = *broker_.pool_;
  if (request.getPlacement().size() > 0) {
    if (!attempt.job)
      co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "a placement without the job it is for");
    const std::string reason =
        co_await pool.find(printable(request.getPlacement().cStr()), client_.tenant, *attempt.job);
    if (!reason.empty()) co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY, reason);
    attempt.placed = broker_.leases_.find(client_.tenant, *attempt.job);
    co_return true;
  }
  // What this host by itself refuses better.
  const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
  const auto state = broker_.state_.at(std::chrono::system_clock::now());
  if (!tenant || state == ServiceState::State::stopping || attempt.wish.compute_percent > 100 ||
      (state == ServiceState::State::draining && !request.getFollowsPlaces()) ||
      (attempt.wish.priority && rank(*attempt.wish.priority) > rank(tenant->priority)))
    co_return true;
  co_return co_await ask_pool(request, attempt);
}

pool::RequestRecord Broker::Connection::record_of(wire::LeaseRequest::Reader request, const LeaseWish& wish,
                                                  const JobKey& job) const {
  pool::RequestRecord record;
  record.front = broker_.pool_->member().options().host;
  record.tenant = client_.tenant;
  record.job = text_of(job);
  record.gpus = wish.gpus;
  record.hosts = std::max(1u, request.getFollowsPlaces() ? request.getHosts() : 1u);
  record.memory_bytes = wish.memory_bytes;
  record.compute_percent = wish.compute_percent;
  if (wish.priority) record.priority = text_of(*wish.priority);
  record.only_front = !request.getFollowsPlaces();
  for (const auto host : request.getUnreached()) {
    if (record.unreached.size() == pool::avoid_max || !pool::is_name(host.cStr())) continue;
    record.unreached.push_back(printable(host.cStr()));
    broker_.pool_->not_reached(source_, record.unreached.back());
  }
  // A program without a job, or before it, comes to one host each time, where it can share memory. A client that does
  // not reach others reaches this one.
  record.prefers_front = !request.getHold() || !record.unreached.empty();
  record.program = client_.program;
  record.client = fmt::format("{}:{}", client_.host_name, client_.process_id);
  record.since = static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  return record;
}

asio::awaitable<bool> Broker::Connection::ask_pool(wire::LeaseRequest::Reader request, LeaseAttempt& attempt) {
  if (!attempt.job) {
    attempt.job.emplace();
    if (::getrandom(attempt.job->data(), attempt.job->size(), 0) != static_cast<ssize_t>(attempt.job->size()))
      co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, "no random numbers");
  }
  PoolQuestion question{.request = request,
                        .attempt = attempt,
                        .local = broker_.settings_.pool_outage == "local",
                        .record = record_of(request, attempt.wish, *attempt.job),
                        .wake = asio::steady_timer(broker_.io_)};
  question.begin = Clock::now();
  question.until = attempt.deadline;
  question.doubt_until = question.begin + doubt_max;
  while (true) {
    Placing placing = co_await wait_for_registry(question);
    if (placing != Placing::open) co_return placing == Placing::here;
    // The queue is the pool's now. A place in this host's own would keep the room from what is placed here.
    attempt.place.reset();
    const auto asked = broker_.pool_->member().request(next_record(question));
    if (!co_await wait_for_answer(question, *asked)) co_return false;
    if (!asked->answer()) placing = co_await on_silence(question);
    else if (const auto* const refusal = std::get_if<pool::Refusal>(&*asked->answer()))
      placing = co_await on_refusal(question, *refusal);
    else placing = co_await on_placement(question, *asked);
    if (placing != Placing::open) co_return placing == Placing::here;
  }
}

// The registry may be away for a moment, as while this host joins.
asio::awaitable<Broker::Connection::Placing> Broker::Connection::wait_for_registry(PoolQuestion& question) {
  PoolHost& pool = *broker_.pool_;
  pool::Member& member = pool.member();
  const auto begin = question.begin;
  while (!member.in_touch()) {
    const auto back = std::min(member.lost_at() + registry_back_max, begin + registry_trouble_max);
    if (Clock::now() >=
        (question.local ? back : std::max({question.attempt.deadline, begin + registry_away_max, back}))) {
      if (!question.local) {
        co_await refuse_here(pool.why_no_leases() + (member.name_is_taken() ? "" : "; try later"));
        co_return Placing::ended;
      }
      EventLog::warn("lease without the pool", {{"tenant", client_.tenant}, {"reason", member.trouble()}});
      co_return Placing::here;
    }
    question.wake.expires_after(std::chrono::milliseconds(100));
    if (!co_await sleep(question.wake)) co_return Placing::ended;
  }
  co_return Placing::open;
}

// What the registry is asked for this time: without the hosts in doubt, as long as there may be others.
pool::RequestRecord Broker::Connection::next_record(PoolQuestion& question) const {
  pool::RequestRecord& record = question.record;
  record.doubted = broker_.pool_->doubted(source_);
  std::erase_if(record.doubted, [&](const std::string& host) {
    return std::ranges::find(record.unreached, host) != record.unreached.end();
  });
  question.doubts = !record.doubted.empty() && Clock::now() < question.doubt_until;
  record.waits = !question.doubts && Clock::now() < question.until;
  pool::RequestRecord of_sure = record;
  if (question.doubts) of_sure.avoid.insert(of_sure.avoid.end(), record.doubted.begin(), record.doubted.end());
  of_sure.avoid.resize(std::min(of_sure.avoid.size(), pool::avoid_max));
  return of_sure;
}

// Until there is an answer, or none is waited for any more. False if the client has gone meanwhile.
asio::awaitable<bool> Broker::Connection::wait_for_answer(PoolQuestion& question, pool::Request& asked) {
  const pool::Member& member = broker_.pool_->member();
  const bool waits = question.record.waits;
  const auto patience = question.doubts ? question.doubt_until
                        : waits         ? question.until
                                        : Clock::now() + registry_silence_max;
  asked.answered = [&question] { question.wake.cancel(); };
  while (!asked.answer() && Clock::now() < patience && (member.in_touch() || (waits && !question.local))) {
    question.wake.expires_at(std::min(patience, Clock::now() + std::chrono::seconds(1)));
    if (!co_await sleep(question.wake)) co_return false;
  }
  co_return true;
}

asio::awaitable<Broker::Connection::Placing> Broker::Connection::on_silence(PoolQuestion& question) {
  const PoolHost& pool = *broker_.pool_;
  const bool in_touch = broker_.pool_->member().in_touch(), waits = question.record.waits;
  if (waits && in_touch && !question.last_reason.empty()) {
    co_await refuse_for_now(question.attempt, question.last_reason);
    co_return Placing::ended;
  }
  if (question.doubts || waits || !in_touch) co_return Placing::open;  // once more, for the reason; or by itself
  co_await refuse_here(
      fmt::format("no placer of pool '{}' has answered for {} s: `fargpu doctor` tells more; try later", pool.name(),
                  registry_silence_max.count()));
  co_return Placing::ended;
}

asio::awaitable<Broker::Connection::Placing> Broker::Connection::on_refusal(PoolQuestion& question,
                                                                            const pool::Refusal& refusal) {
  if (question.doubts) {
    if (!refusal.may_change) question.doubt_until = question.begin;
    co_return co_await ask_again(question, refusal.may_change ? ask_in_doubt_again : ask_pool_again);
  }
  if (!refusal.may_change) {
    co_await refuse_lease(wire::Failure::Reason::DENIED, refusal.text);
    co_return Placing::ended;
  }
  // What has just ended may not have been heard of by the placer.
  const auto grace = broker_.sessions_are_ending() ? std::chrono::milliseconds(Broker::giving_back_max)
                                                   : 3 * LeaseAttempt::end_heard_within;
  question.last_reason = refusal.text;
  question.until = std::max(question.attempt.deadline, question.begin + grace);
  if (Clock::now() >= question.until) {
    co_await refuse_for_now(question.attempt, question.last_reason);
    co_return Placing::ended;
  }
  co_return co_await ask_again(question, ask_pool_again);
}

asio::awaitable<Broker::Connection::Placing> Broker::Connection::on_placement(PoolQuestion& question,
                                                                              const pool::Request& asked) {
  LeaseAttempt& attempt = question.attempt;
  pool::RequestRecord& record = question.record;
  const auto parts = std::get<std::vector<pool::Part>>(*asked.answer());
  if (parts.size() != 1 || parts.front().host != record.front) {
    if (question.request.getFollowsPlaces()) {
      co_await send_places(parts, asked.id(), *attempt.job);
      co_return Placing::ended;
    }
    co_await refuse_for_now(attempt,
                            "the pool has placed this job at other hosts, which this client is too old to follow");
    co_return Placing::ended;
  }
  const std::string reason = co_await broker_.pool_->find(asked.id(), client_.tenant, *attempt.job);
  attempt.placed = broker_.leases_.find(client_.tenant, *attempt.job);
  if (attempt.placed) co_return Placing::here;
  if (++question.placements == placements_max) {
    co_await refuse_for_now(attempt, reason);
    co_return Placing::ended;
  }
  if (!record.only_front) record.avoid = {record.front};
  co_return co_await ask_again(question, ask_pool_again);
}

// Open once the time has passed.
asio::awaitable<Broker::Connection::Placing> Broker::Connection::ask_again(PoolQuestion& question,
                                                                           std::chrono::milliseconds after) {
  question.wake.expires_after(after);
  // In a variable: g++ 12 puts the condition of a coroutine without any in front of its frame.
  const bool there = co_await sleep(question.wake);
  co_return there ? Placing::open : Placing::ended;
}

asio::awaitable<bool> Broker::Connection::refuse_for_now(const LeaseAttempt& attempt, const std::string& text) {
  return refuse_lease(wire::Failure::Reason::NO_CAPACITY, text + attempt.advice());
}

// Another member may be in touch with the registry.
asio::awaitable<bool> Broker::Connection::refuse_here(const std::string& text) {
  return refuse_lease(wire::Failure::Reason::DRAINING, text);
}

asio::awaitable<void> Broker::Connection::send_places(const std::vector<pool::Part>& parts,
                                                      const std::string& placement, const JobKey& job) {
  std::vector<std::string> names;
  for (const pool::Part& part : parts) names.push_back(part.host);
  const std::string hosts = fmt::format("{}", fmt::join(names, ","));
  broker_.pool_->sent(placement, client_.tenant, std::move(names));
  EventLog::info("lease placed elsewhere", {{"peer", client_.peer},
                                            {"program", client_.program},
                                            {"tenant", client_.tenant},
                                            {"placement", placement},
                                            {"hosts", hosts}});
  ++broker_.admissions_.granted;
  expire_after(handshake_time());
  co_await channel_.send([&](wire::Control::Builder control) {
    auto answer = control.initLeaseAnswer();
    auto places = answer.initPlaces(static_cast<unsigned>(parts.size()));
    for (unsigned i = 0; i < places.size(); ++i) {
      places[i].setAddress(parts[i].address);
      places[i].setGpus(parts[i].gpus);
      places[i].setHost(parts[i].host);
      places[i].setIdentity(parts[i].identity);
    }
    answer.setPlacement(placement);
    answer.setPlacementJob(data_of(job));
  });
}

}  // namespace fargpu::server
