#pragma once
// One client connection while it belongs to the broker: hello, leases, status, and what leads to a worker.

#include <asio.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker.h"
#include "control_channel.h"
#include "event_log.h"

namespace fargpu::server {

/// Lives as long as something is under way on it.
class Broker::Connection final : public PendingConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Broker& broker, asio::ip::tcp::socket socket, Transport transport);
  Connection(Broker& broker, asio::local::stream_protocol::socket socket, Transport transport);
  ~Connection();

  const std::string& source() const override { return source_; }
  void cut(const std::string& why) override;
  void start();

 private:
  // connection.cpp: its course
  static constexpr auto control_idle_max = std::chrono::seconds(60);
  void begin();
  void stop_calling();
  asio::awaitable<void> serve();
  asio::awaitable<bool> open_tls();
  asio::awaitable<bool> on_request(wire::Control::Reader control);
  asio::awaitable<bool> on_hello(wire::Hello::Reader hello);
  std::string identify(wire::Hello::Reader hello);
  void require_hello() const;
  void write_host(wire::HelloAnswer::Builder answer, const std::optional<LocalKeys::Number>& proof) const;
  asio::awaitable<void> outlast();
  bool administers() const { return keeper_ || broker_.may_administer(client_.tenant, here_); }
  std::chrono::seconds handshake_time() const { return std::chrono::seconds(broker_.settings_.handshake_seconds); }
  void expire_after(std::chrono::milliseconds time);
  void refused(const std::string& reason);
  static JobKey read_job(capnp::Data::Reader bytes);

  // connection_queries.cpp: what clients ask of the host, and what administrators change
  asio::awaitable<void> on_status();
  asio::awaitable<void> on_contents(wire::ContentsRequest::Reader request);
  asio::awaitable<void> on_administration(wire::AdministrationRequest::Reader request);
  asio::awaitable<std::string> set_pool_tenant(wire::PoolTenant::Reader wanted);
  asio::awaitable<std::string> outcome_of_eviction(std::uint64_t session);

  // connection_lease.cpp: a lease, and the worker that is promised with it
  struct LeaseAttempt;
  asio::awaitable<bool> on_lease(wire::LeaseRequest::Reader request);
  static std::string read_request(wire::LeaseRequest::Reader request, LeaseAttempt& attempt);
  std::string mps_trouble() const;
  bool begins(const std::optional<JobKey>& job) const;
  asio::awaitable<bool> wait_for_lease(wire::LeaseRequest::Reader request, LeaseAttempt& attempt);
  std::optional<LeaseRefusal> try_lease(LeaseAttempt& attempt);
  void wait_in_queue(LeaseAttempt& attempt, const LeaseRefusal& refusal);
  asio::awaitable<bool> wait_for_change(std::chrono::steady_clock::time_point deadline);
  asio::awaitable<bool> sleep(asio::steady_timer& wake);
  asio::awaitable<void> hold_lease(std::shared_ptr<Lease> lease, bool wants_facts);
  asio::awaitable<bool> promise_worker(Environment environment, std::shared_ptr<Lease> lease,
                                       std::unique_ptr<LeaseSession> session);
  static void write_lease(const Lease& lease, wire::LeaseAnswer::Builder answer);
  void log_grant(const Lease& lease, EventLog::Level level) const;
  asio::awaitable<bool> refuse_attempt(const LeaseAttempt& attempt, const LeaseRefusal& refusal);
  asio::awaitable<bool> refuse_lease(wire::Failure::Reason reason, std::string text);

  // connection_pool.cpp: the pool's part in a lease
  struct PoolQuestion;
  /// What has come of a question so far.
  enum class Placing {
    open,   ///< it is asked again
    here,   ///< the request goes on at this host
    ended,  ///< it was answered, or its client has gone
  };
  asio::awaitable<bool> go_by_pool(wire::LeaseRequest::Reader request, LeaseAttempt& attempt);
  pool::RequestRecord record_of(wire::LeaseRequest::Reader request, const LeaseWish& wish, const JobKey& job) const;
  asio::awaitable<bool> ask_pool(wire::LeaseRequest::Reader request, LeaseAttempt& attempt);
  asio::awaitable<Placing> wait_for_registry(PoolQuestion& question);
  pool::RequestRecord next_record(PoolQuestion& question) const;
  asio::awaitable<bool> wait_for_answer(PoolQuestion& question, pool::Request& asked);
  asio::awaitable<Placing> on_silence(PoolQuestion& question);
  asio::awaitable<Placing> on_refusal(PoolQuestion& question, const pool::Refusal& refusal);
  asio::awaitable<Placing> on_placement(PoolQuestion& question, const pool::Request& asked);
  asio::awaitable<Placing> ask_again(PoolQuestion& question, std::chrono::milliseconds after);
  asio::awaitable<bool> refuse_for_now(const LeaseAttempt& attempt, const std::string& text);
  asio::awaitable<bool> refuse_here(const std::string& text);
  asio::awaitable<void> send_places(const std::vector<pool::Part>& parts, const std::string& placement,
                                    const JobKey& job);

  // connection_sessions.cpp: connections that go on to a session's worker
  asio::awaitable<void> on_attach(wire::Attach::Reader attach);
  asio::awaitable<void> on_route(wire::Route::Reader route);
  asio::awaitable<void> on_lane(wire::Lane::Reader lane);

  Broker& broker_;
  ControlChannel channel_;
  const Transport transport_;
  ShownCredentials shown_;
  asio::steady_timer deadline_;
  std::string source_;
  ClientFacts client_;
  bool here_ = false;     // from this machine
  bool near_ = false;     // by TCP, from this machine
  bool welcome_ = false;  // its hello was answered so
  bool keeper_ = false;   // root or the broker's own user
  KnownBy known_by_;
  std::optional<LocalKeys::Pair> local_;
  PendingConnections::Place place_;  // among the pending ones
  bool pending_ = false;
  std::optional<Tickets::Ticket> ticket_;  // what this connection was promised
  std::optional<JobKey> job_;              // that the client belongs to
  std::shared_ptr<Lease> lease_;           // that this connection holds
  std::chrono::steady_clock::time_point granted_{};
  FairLimit::Place counted_;  // among those that wait for a lease or hold one
};

/// A request for a lease, and how far it is.
struct Broker::Connection::LeaseAttempt {
  // A program's end, which its starter sees first, can have been heard of here by then.
  static constexpr auto end_heard_within = std::chrono::milliseconds(100);

  // What the client asks for.
  Environment environment;
  LeaseWish wish;
  bool hold = false;         ///< the connection holds the lease; no session
  bool wants_facts = false;  ///< of the lease's devices
  bool waits = false;        ///< up to the deadline
  std::optional<JobKey> job;
  std::chrono::steady_clock::time_point deadline;

  // What it has.
  std::shared_ptr<Lease> lease;
  std::unique_ptr<LeaseSession> session;  ///< if it is for one
  std::shared_ptr<Waiter> place;          ///< in the queue
  std::chrono::steady_clock::time_point begin;
  std::shared_ptr<Lease> placed;  ///< here, by the pool

  /// `fresh`: it was made in this attempt, so that nobody has missed what it had, and nobody is to be woken.
  void take_back_lease(bool fresh) {
    lease->passing = fresh;
    lease.reset();
  }
  /// Said to a client that has not waited; only `fargpu run` holds leases.
  const char* advice() const { return waits ? "" : hold ? " or wait with --wait" : " or wait with FARGPU_WAIT"; }
};

}  // namespace fargpu::server
