// A lease for a client, and the worker that is promised with it.

#include <algorithm>

#include "connection.h"
#include "event_log.h"
#include "host_facts.h"
#include "mps.h"
#include "protocol/data.h"
#include "protocol/driver_variables.h"
#include "protocol/limits.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

constexpr unsigned environment_max = 64;

// What clients may set for their workers; the list the client sends is not trusted to be harmless.
bool environment_allowed(const std::string& name, const std::string& value) {
  const bool known =
      std::find(std::begin(driver_variables), std::end(driver_variables), name) != std::end(driver_variables);
  return known && value.size() <= 64 && value.find('\0') == std::string::npos;
}

}  // namespace

asio::awaitable<bool> Broker::Connection::on_lease(wire::LeaseRequest::Reader request) {
  LeaseAttempt attempt;
  const std::string wrong = read_request(request, attempt);
  if (!wrong.empty()) co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, wrong);
  const std::string missing = mps_trouble();
  if (!missing.empty()) co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, missing);
  counted_ = broker_.patient_.take(client_.tenant);
  if (!counted_)
    co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY,
                                    "too many clients wait for this host; try later");
  deadline_.cancel();
  attempt.begin = std::chrono::steady_clock::now();
  const bool first = begins(attempt.job);
  const bool of_pool = broker_.pool_ && (first || request.getPlacement().size() > 0);
  // A job that asks for nothing in particular counts on what is there: it is not much less for what is being given
  // back.
  if (first && !(of_pool && attempt.hold) && attempt.wish.memory_bytes == 0) {
    const auto until = attempt.begin + Broker::giving_back_max;
    while (broker_.much_is_given_back(client_.tenant) && std::chrono::steady_clock::now() < until)
      if (!co_await wait_for_change(until)) co_return false;
  }
  if (of_pool && !co_await go_by_pool(request, attempt)) co_return false;
  if (!co_await wait_for_lease(request, attempt)) co_return false;
  attempt.place.reset();
  attempt.placed.reset();
  if (broker_.pool_) broker_.pool_->came(attempt.lease);
  // The processes of a job come to the lease that their starter has waited for.
  if (first) broker_.admissions_.waited(std::chrono::steady_clock::now() - attempt.begin);
  if (attempt.hold) {
    co_await hold_lease(std::move(attempt.lease), attempt.wants_facts);
    co_return true;
  }
  counted_ = {};
  co_return co_await promise_worker(std::move(attempt.environment), std::move(attempt.lease),
                                    std::move(attempt.session));
}

// Why the request is none that can be answered; empty if it is one.
std::string Broker::Connection::read_request(wire::LeaseRequest::Reader request, LeaseAttempt& attempt) {
  if (request.getEnvironment().size() > environment_max) return "too many environment variables";
  for (const auto variable : request.getEnvironment()) {
    const std::string name = variable.getName().cStr(), value = variable.getValue().cStr();
    if (!environment_allowed(name, value))
      return "environment variable " + printable(name) + " is not one that this host takes";
    attempt.environment[name] = value;
  }
  attempt.wish = {request.getGpus(), request.getMemoryBytes(), request.getComputePercent(), std::nullopt};
  if (request.getPriorityAsked() || request.getPriority() != wire::Priority::NORMAL)
    attempt.wish.priority = request.getPriority();
  attempt.hold = request.getHold();
  attempt.wants_facts = request.getWantsFacts();
  if (request.hasJob()) attempt.job = read_job(request.getJob());
  if (attempt.hold && !attempt.job) return "a lease to hold needs a job";
  attempt.waits = request.getWaitMs() > 0;
  attempt.deadline =
      std::chrono::steady_clock::now() +
      std::min<std::chrono::milliseconds>(std::chrono::milliseconds(request.getWaitMs()), limits::lease_wait_max);
  return "";
}

// Without its daemon the driver would run the programs as if there were no `mps`: beside others, with nothing of their
// own.
std::string Broker::Connection::mps_trouble() const {
  const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
  return tenant && !tenant->mps.empty() ? mps_complaint(tenant->mps) : "";
}

bool Broker::Connection::begins(const std::optional<JobKey>& job) const {
  return !job || !broker_.leases_.find(client_.tenant, *job);
}

// True once the attempt has its lease. False if it was refused, or its client has gone.
asio::awaitable<bool> Broker::Connection::wait_for_lease(wire::LeaseRequest::Reader request, LeaseAttempt& attempt) {
  while (const auto refusal = try_lease(attempt)) {
    const bool soon = broker_.sessions_are_ending();
    const auto until = std::max(
        attempt.deadline,
        attempt.begin + (soon ? std::chrono::milliseconds(Broker::giving_back_max) : LeaseAttempt::end_heard_within));
    if (!refusal->may_change || std::chrono::steady_clock::now() >= until)
      co_return co_await refuse_attempt(attempt, *refusal);
    EventLog::debug("lease waits", {{"peer", client_.peer}, {"program", client_.program}, {"reason", refusal->text}});
    wait_in_queue(attempt, *refusal);
    if (!co_await wait_for_change(until)) co_return false;
    // The lease that the job had here may have ended, or the registry may be back.
    if (broker_.pool_ && !attempt.placed && begins(attempt.job)) {
      const bool goes_on = co_await go_by_pool(request, attempt);
      if (!goes_on) co_return false;
    }
  }
  co_return true;
}

// What would have to change before this client can have a lease; nothing once it has one. Then the attempt has it, and
// its session if it is for one.
std::optional<LeaseRefusal> Broker::Connection::try_lease(LeaseAttempt& attempt) {
  const Waiter* const place = attempt.place.get();
  const auto now = std::chrono::system_clock::now();
  const bool first = begins(attempt.job);
  // A job that has begun goes on while the host is drained, with further processes too.
  const auto state = broker_.state_.at(now);
  if (state == ServiceState::State::stopping || (state == ServiceState::State::draining && first))
    return LeaseRefusal{false, broker_.state_.refusal(now)};
  if (client_.tenant.empty())
    return LeaseRefusal{
        false,
        "root and the user of fargpud may look after this host, but are of no tenant here; ask for GPUs as a user "
        "that a tenant lists under `users`, or set FARGPU_TOKEN_FILE"};
  if (broker_.workers_.taken() + broker_.leases_.before(place, client_.tenant, Shortage::host_sessions) >=
      broker_.settings_.sessions_max) {
    return LeaseRefusal{true, all_sessions_taken(broker_.settings_.sessions_max, "this host"), Shortage::host_sessions};
  }
  const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
  if (!tenant) return LeaseRefusal{false, fmt::format("this host has no tenant '{}' any more", client_.tenant)};
  auto granted = broker_.leases_.grant(*tenant, attempt.wish, attempt.job, place);
  if (auto* const refusal = std::get_if<LeaseRefusal>(&granted)) return std::move(*refusal);
  attempt.lease = std::get<std::shared_ptr<Lease>>(granted);
  if (attempt.hold) {
    // A job that could have no session is not begun.
    auto refusal = first ? broker_.leases_.sessions_taken(*tenant, place) : std::nullopt;
    if (refusal) attempt.take_back_lease(first);
    return refusal;
  }
  auto begun = broker_.leases_.begin_session(attempt.lease, place);
  if (auto* const refusal = std::get_if<LeaseRefusal>(&begun)) {
    attempt.take_back_lease(first);
    return std::move(*refusal);
  }
  attempt.session = std::get<std::unique_ptr<LeaseSession>>(std::move(begun));
  return std::nullopt;
}

void Broker::Connection::wait_in_queue(LeaseAttempt& attempt, const LeaseRefusal& refusal) {
  if (const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant); !attempt.place && tenant) {
    attempt.place = broker_.leases_.wait(*tenant, attempt.wish);
    attempt.place->program = client_.program;
    attempt.place->host_name = client_.host_name;
    attempt.place->process_id = client_.process_id;
    attempt.place->job = attempt.job;
  }
  if (attempt.place) {
    attempt.place->shortage = refusal.shortage;
    attempt.place->reason = refusal.text;
  }
}

// Until a lease or a session has ended somewhere, or the time is over. False if the client has gone meanwhile.
asio::awaitable<bool> Broker::Connection::wait_for_change(std::chrono::steady_clock::time_point deadline) {
  constexpr auto look_at_client = std::chrono::seconds(1);
  asio::steady_timer wake(broker_.io_);
  bool changed = false;
  const auto watch = broker_.leases_.watch([&] {
    changed = true;
    wake.cancel();
  });
  while (!changed && std::chrono::steady_clock::now() < deadline) {
    wake.expires_at(std::min(deadline, std::chrono::steady_clock::now() + look_at_client));
    if (!co_await sleep(wake)) co_return false;
  }
  co_return true;
}

// Until the timer's time, or its end. False if the client has gone meanwhile.
asio::awaitable<bool> Broker::Connection::sleep(asio::steady_timer& wake) {
  asio::error_code ignored;
  co_await wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return channel_.client_is_there();
}

// Answers with a lease that this connection holds from then on.
asio::awaitable<void> Broker::Connection::hold_lease(std::shared_ptr<Lease> lease, bool wants_facts) {
  expire_after(handshake_time());
  co_await channel_.send([&](wire::Control::Builder control) {
    auto answer = control.initLeaseAnswer();
    write_lease(*lease, answer);
    const auto facts = wants_facts ? broker_.workers_.facts() : std::nullopt;
    if (facts) copy_facts(*facts, lease->devices, lease->memory_bytes, answer.initFacts());
  });
  log_grant(*lease, EventLog::Level::info);
  lease_ = std::move(lease);
  granted_ = std::chrono::steady_clock::now();
  ++lease_->holders;
  lease_->left.reset();
}

// Answers with the ticket of a worker for a session of the lease. False if the answer is a refusal, or the client has
// gone. There is news in any case: a worker becomes ready in its time, or fails. It is waited for by a timer that the
// news cancels. A client that has gone leaves the worker to the next one, which may be itself again.
asio::awaitable<bool> Broker::Connection::promise_worker(Environment environment, std::shared_ptr<Lease> lease,
                                                         std::unique_ptr<LeaseSession> session) {
  std::string failure;
  bool news = false;
  asio::steady_timer wake(broker_.io_);
  Worker* const starts = broker_.workers_.reserve(
      broker_.profile(std::move(environment), *lease), [&](Worker* worker, const std::string& why) {
        // Promised before anything else can happen to the worker: then its end ends the promise too.
        if (worker) {
          worker->lease = std::move(session);
          ticket_ = broker_.tickets_.issue(*worker, client_, transport_ == Transport::tls);
        }
        failure = why;
        news = true;
        wake.cancel();
      });
  while (!news) {
    wake.expires_after(std::chrono::milliseconds(10));
    // One with variables of its own is hardly of use to others: its client is charged for it until it is ready.
    if (co_await sleep(wake) || news || !starts->profile.standard()) continue;
    broker_.workers_.forget(*starts);
    co_return false;
  }
  expire_after(handshake_time());
  if (!ticket_) co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, failure);
  ++broker_.admissions_.granted;
  log_grant(*lease, EventLog::Level::debug);
  co_await channel_.send([&](wire::Control::Builder control) {
    auto answer = control.initLeaseAnswer();
    answer.setTicket(data_of(*ticket_));
    if (transport_ == Transport::tls) {
      const Tickets::Name& name = broker_.tickets_.name_of(*ticket_);
      answer.setTicketName(data_of(name));
    }
    write_lease(*lease, answer);
  });
  co_return true;
}

void Broker::Connection::write_lease(const Lease& lease, wire::LeaseAnswer::Builder answer) {
  answer.setLease(lease.id);
  answer.setMemoryBytes(lease.memory_bytes);
  auto devices = answer.initDevices(static_cast<unsigned>(lease.devices.size()));
  for (unsigned i = 0; i < devices.size(); ++i) devices.set(i, lease.devices[i]);
}

void Broker::Connection::log_grant(const Lease& lease, EventLog::Level level) const {
  EventLog::write(level, "lease granted",
                  {{"peer", client_.peer},
                   {"program", client_.program},
                   {"tenant", client_.tenant},
                   {"identity", client_.identity},
                   {"lease", lease.id}});
}

asio::awaitable<bool> Broker::Connection::refuse_attempt(const LeaseAttempt& attempt, const LeaseRefusal& refusal) {
  const bool drained = !broker_.state_.serves(std::chrono::system_clock::now());
  const auto reason = drained              ? wire::Failure::Reason::DRAINING
                      : refusal.may_change ? wire::Failure::Reason::NO_CAPACITY
                                           : wire::Failure::Reason::DENIED;
  if (attempt.placed) broker_.pool_->give_up(attempt.placed);
  const bool told = reason == wire::Failure::Reason::NO_CAPACITY;
  return refuse_lease(reason, refusal.text + (told ? attempt.advice() : ""));
}

asio::awaitable<bool> Broker::Connection::refuse_lease(wire::Failure::Reason reason, std::string text) {
  ++broker_.admissions_.refused[reason];
  EventLog::info("lease refused", {{"peer", client_.peer},
                                   {"program", client_.program},
                                   {"tenant", client_.tenant},
                                   {"identity", client_.identity},
                                   {"reason", text}});
  co_await channel_.send([&](wire::Control::Builder control) {
    auto failure = control.initLeaseAnswer().initFailure();
    failure.setReason(reason);
    failure.setText(text);
  });
  co_return false;
}

}  // namespace fargpu::server
