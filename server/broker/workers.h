#pragma once
// The broker's workers: processes that are started, kept ready, given to sessions and reaped
// (worker_processes.cpp), the sessions that they serve (worker_sessions.cpp), and what these have to do with each other
// (worker_peers.cpp).

#include <asio.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client_facts.h"
#include "connection_failures.h"
#include "control.capnp.h"
#include "dials.h"
#include "event_log.h"
#include "evictions.h"
#include "known_host.h"
#include "lease.h"
#include "server/worker_link.h"
#include "scheduling.h"
#include "settings.h"
#include "shared_things.h"
#include "succession.h"
#include "tenant_totals.h"
#include "worker.h"

namespace fargpu::server {

/// How a session's connection begins.
struct SessionOpening {
  int descriptor = -1;                     ///< taken
  std::span<const std::byte> attach;       ///< the client's first message; empty if it is still to come, within TLS
  std::span<const std::byte> ticket_name;  ///< of TLS: its identity
  std::span<const std::byte> ticket;       ///< and its key
};

/// Everything runs on the broker's one thread.
class Workers {
 public:
  Workers(asio::io_context& io, const Settings& settings, const Succession& succession);

  /// A worker of this profile, reserved: at once if a warm one fits, else when a new one is ready. `got` hears of it,
  /// or why not. Returns the worker that starts for it; null if `got` has heard already.
  Worker* reserve(const WorkerProfile& profile, std::function<void(Worker*, const std::string& failure)> got);
  /// The worker that starts for this is not wanted any more, and `got` does not hear of it: the next one may have it.
  void forget(Worker& starting) { starting.when_ready = nullptr; }
  /// The reservation was not used. The worker waits for another one, or ends if enough do.
  void release(Worker& worker);
  /// Gives a reserved worker its session. False if the worker is gone.
  bool begin_session(Worker& worker, std::uint64_t id, const ClientFacts& client, const SessionOpening& opening);
  /// A session that an earlier broker began goes on as one of this. Returns its worker.
  Worker& take_over(Succession::Found found, wire::SessionRecord::Reader record, WorkerProfile profile,
                    std::unique_ptr<LeaseSession> lease);
  /// What a worker that was taken over holds, shares, lets in, and does. Throws ProtocolError.
  void take_over(Worker& worker, wire::WorkerMessage::Reader told, Descriptor descriptor);
  SharedThings& shares() { return shares_; }
  /// Ends a worker whose session cannot be taken over after all.
  void drop(Worker& worker, const std::string& why) {
    fail(worker, why);
    kill(worker);
  }
  /// Of a connection that asks to be a bulk lane of a session, by the session's key or, where TLS is spoken, the key's
  /// name: whether that is right, or was until the session ended.
  enum class LaneVerdict { rightly, too_late, by_stranger };
  LaneVerdict judge_lane(std::uint64_t session, std::span<const std::byte> key, bool name_only) const;
  /// Hands such a connection on to a session's worker. Takes the descriptor.
  void add_lane(std::uint64_t session, int descriptor, std::span<const std::byte> lane_message);
  /// Keeps as many warm workers as the settings say.
  void warm_up();
  /// Has a worker end its session, or ends the worker if it has been told before. The client hears why.
  void stop(Worker& worker, const std::string& why);
  /// As `stop`, and kills the worker if it does not end its session soon. False if there is no such session.
  bool end(std::uint64_t session, const std::string& why);
  /// Gives all sessions a line for the people who run their programs.
  void notify_all(const std::string& line);
  /// No new workers; sessions are told to end, workers without one end now.
  void stop_all(const std::string& why);
  /// All sessions end now, which the log tells, and the processes are killed.
  void end_all(const std::string& why);
  void kill_all();

  /// Children that have ended (after SIGCHLD).
  void reap();

  const std::list<Worker>& all() const { return workers_; }
  std::list<Worker>& all() { return workers_; }
  bool serves(std::uint64_t session) const;
  std::size_t sessions() const;
  /// Sessions, and workers promised to somebody.
  std::size_t taken() const;
  /// Whether a session is over whose process is not gone yet, and with it what it had of a device: at least so much.
  bool giving_back(const std::function<std::uint64_t(const Lease& lease, unsigned device)>& least) const;
  /// Facts of all devices as the last worker with the standard profile told them; null before the first.
  std::optional<wire::HostFacts::Reader> facts() const { return host_.facts(); }
  /// Into how many groups of multiprocessors each device can be divided, as the last worker said that could tell.
  const std::vector<unsigned>& sm_groups() const { return host_.sm_groups(); }
  /// By which devices workers offer RDMA, by network interface.
  const std::map<std::string, std::string>& rdma() const { return host_.rdma(); }
  /// Those of all devices, 16 bytes each; none before there are facts.
  std::vector<std::string> device_uuids() const { return host_.device_uuids(); }
  /// Why the last worker with the standard environment could not start; empty if it could.
  const std::string& failure() const { return failure_; }

  const Dials& dials() const { return dials_; }
  /// Workers that ended by a fault so far.
  std::uint64_t faults() const { return faults_; }
  /// By tenants that have had sessions.
  const std::map<std::string, TenantTotals>& totals() const { return totals_; }
  Evictions& evictions() { return evictions_; }
  const Evictions& evictions() const { return evictions_; }
  Scheduling& scheduling() { return scheduling_; }
  const Scheduling& scheduling() const { return scheduling_; }

  /// Told when a worker has ended, and is none of them any more.
  std::function<void(const Worker& gone)> on_end;
  /// Asked of facts that a worker tells: why they cannot be the host's; empty if they can.
  std::function<std::string(wire::HostFacts::Reader)> refuse_facts;
  /// Told when facts are known.
  std::function<void()> on_facts;

 private:
  // worker_processes.cpp
  Worker& start(const WorkerProfile& profile, bool warm);
  Environment environment_of(const WorkerProfile& profile) const;
  void become_ready(Worker& worker);
  std::size_t waiting() const;
  void rest(const std::string& why);
  void listen(Worker& worker);
  bool take(Worker& worker, LinkPacket packet);
  void on_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor);
  /// Throws ProtocolError where a worker says something in another state, or of more devices than there can be.
  static void require(const Worker& worker, Worker::State state, std::size_t devices = 0);
  void take_ready(Worker& worker, wire::Ready::Reader ready);
  void fail(Worker& worker, const std::string& why);
  void end(Worker& worker);
  void kill(Worker& worker);
  void watch_exit(Worker& worker);
  void ended(std::list<Worker>::iterator worker, std::optional<int> status);
  std::list<Worker>::iterator by_process(pid_t process);

  // worker_sessions.cpp
  std::vector<std::byte> sealed_record(const Worker& worker) const;
  bool send_session(const Worker& worker, const SessionOpening& opening, std::span<const std::byte> record) const;
  void log_share(const Worker& worker) const;
  std::string image_folder(const Worker& worker) const;
  void begin_turns(const Worker& worker, bool taken_over);
  Rooms::Bytes on_devices(std::uint64_t session) const;
  void on_session_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor);
  void take_usage(Worker& worker, wire::Usage::Reader usage);
  void take_resuming(Worker& worker, wire::Resuming::Reader told);
  void note(std::uint64_t session, EventLog::Level level, const char* event, std::vector<Field> fields);
  void watch();
  void look();
  void end_session(Worker& worker, const std::string& reason, SessionEnd end);
  /// The process of an ended session is gone: others get what it had.
  void forget_session(const Worker& worker);

  // worker_peers.cpp
  /// A worker's question for what another one shares.
  struct Asked {
    pid_t worker = -1;
    std::uint64_t request = 0;
    ShareKey key{};
  };
  void on_sharing_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor);
  void take_share(Worker& worker, wire::Share::Reader share, Descriptor descriptor);
  static bool may_share(const Worker& one, const Worker& other);
  void answer(Worker& worker, wire::Fetch::Reader fetch);
  void hear_sharers(const Worker& asks);
  bool lend(Worker& worker, const Asked& asked);
  void charge(pid_t heir, int device, std::uint64_t bytes, bool pays);
  void on_link_message(Worker& worker, wire::WorkerMessage::Reader message);
  void admit(Worker& worker, capnp::Data::Reader key);
  static void add_link_key(Worker& worker, capnp::Data::Reader key);
  void dial(Worker& worker, wire::Dial::Reader wanted);

  asio::io_context& io_;
  const Settings& settings_;
  const Succession& succession_;
  std::list<Worker> workers_;  // stable addresses
  KnownHost host_;
  SharedThings shares_;
  Dials dials_;
  Scheduling scheduling_;
  Evictions evictions_;
  std::uint64_t faults_ = 0;
  ConnectionFailures notes_{~std::uint64_t{0}};  // lines of the log, by sessions
  std::map<std::string, TenantTotals> totals_;
  std::string failure_;
  std::deque<std::pair<std::uint64_t, std::vector<std::byte>>> ended_lane_keys_;  // of the sessions that ended last
  bool stopping_ = false;
  asio::steady_timer retry_;
  asio::steady_timer watch_;
  bool watching_ = false;
  std::vector<Asked> asked_;  // and is answered when all that others have said is heard
  bool hearing_ = false;      // just now
};

}  // namespace fargpu::server
