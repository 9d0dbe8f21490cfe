#pragma once
// The broker's worker processes: started, kept ready, given to sessions, reaped.

#include <sys/types.h>

#include <asio.hpp>

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "lease.h"
#include "server/worker_link.h"
#include "scheduling.h"
#include "settings.h"
#include "shared_things.h"
#include "succession.h"
#include "tenant_totals.h"

namespace fargpu::server {

using Environment = std::map<std::string, std::string>;

/// What a worker is started with, and what it can therefore serve.
struct WorkerProfile {
  Environment environment;        ///< variables that clients have an opinion on
  std::vector<unsigned> devices;  ///< places among the broker's devices; empty for all
  SmGroups sm_groups;             ///< as in a lease
  bool standard() const { return environment.empty() && devices.empty() && sm_groups.empty(); }
  bool operator==(const WorkerProfile&) const = default;
};

/// How a session's connection begins.
struct SessionOpening {
  int descriptor = -1;                     ///< taken
  std::span<const std::byte> attach;       ///< the client's first message; empty if it is still to come, within TLS
  std::span<const std::byte> ticket_name;  ///< of TLS: its identity
  std::span<const std::byte> ticket;       ///< and its key
};

struct Worker {
  enum class State {
    starting,  ///< its driver is being initialised
    ready,     ///< waiting for a session
    reserved,  ///< promised to the client that brings its ticket
    session,   ///< serving
    ending,    ///< done, or told to stop
  };
  pid_t process = -1;
  State state = State::starting;
  bool warm = false;  ///< started ahead, with the standard profile
  WorkerProfile profile;
  std::unique_ptr<asio::posix::stream_descriptor> link;
  std::string door;  ///< the path at which the next broker finds it; empty: it will not
  /// Its process, of a session that this broker has taken over: it is no child of this one.
  std::unique_ptr<asio::posix::stream_descriptor> exit;

  // Of a session. The lease from when the worker is promised until the process is gone: until then it holds what it
  // held.
  std::unique_ptr<LeaseSession> lease;
  std::uint64_t session = 0;
  ClientFacts client;
  std::chrono::system_clock::time_point started;
  std::uint64_t calls = 0;
  std::vector<std::uint64_t> driver_bytes;  ///< what the driver took besides, when it was last looked at
  std::vector<std::byte> lane_key;
  std::vector<std::vector<std::byte>> link_keys;  ///< of connections that other hosts' workers may make
  std::uint32_t dials = 0;                        ///< to other hosts, so far
  bool told_to_stop = false;
  std::uint64_t alive = 0;             ///< as its account said when it was last looked at
  unsigned still = 0;                  ///< for how many looks it has said the same
  std::uint64_t resuming_since = 0;    ///< Unix time since when it waits for its client to come back; 0: it does not
  std::vector<std::uint64_t> busy_ns;  ///< for which each of its devices had work of it
  std::uint64_t waited_ns = 0;         ///< for which it had work and no turn
  std::uint64_t known_bytes = 0;       ///< of contents that the host had, and it did not send
  std::uint64_t kept_bytes = 0;        ///< of those that it sent and the host has kept
  std::uint64_t images_not_kept = 0;   ///< images that it sent and the folder has not taken
  bool by_rdma = false;                ///< it talks to its client by RDMA
  /// What the session holds of the broker's device at this place, wherever it is.
  std::uint64_t used_bytes(unsigned place) const;
  /// Of that, what is on the device.
  std::uint64_t there_bytes(unsigned place) const;
  /// Of its own memory, what is on its lease's device of this number.
  std::uint64_t own_bytes_there(std::size_t device) const;
  /// The number of the broker's device at this place among those of its lease.
  std::optional<std::size_t> number_of(unsigned place) const;
  AccountSlot& slot() const;

  /// Called once when it becomes ready, or fails (with the reason).
  std::function<void(Worker*, const std::string& failure)> when_ready;
  /// Runs until it is ready.
  std::unique_ptr<asio::steady_timer> start_deadline;
  /// Runs from the end of its session: it has nothing to do any more.
  std::unique_ptr<asio::steady_timer> end_deadline;
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
  std::optional<wire::HostFacts::Reader> facts() const;
  /// Into how many groups of multiprocessors each device can be divided, as the last worker said that could tell.
  const std::vector<unsigned>& sm_groups() const { return sm_groups_; }
  /// By which devices workers offer RDMA, by network interface.
  const std::map<std::string, std::string>& rdma() const { return rdma_; }
  /// Of all devices, 16 bytes each; none before there are facts.
  std::vector<std::string> device_uuids() const;
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
  void become_ready(Worker& worker);
  std::list<Worker>::iterator by_process(pid_t process);
  Rooms::Bytes on_devices(std::uint64_t session) const;
  void begin_turns(const Worker& worker, bool taken_over);
  Worker& start(const WorkerProfile& profile, bool warm);
  std::vector<std::string> arguments_of(const WorkerProfile& profile, bool warm, bool has_door) const;
  std::string devices_argument(const WorkerProfile& profile) const;
  std::string image_folder(const Worker& worker) const;
  static bool may_share(const Worker& one, const Worker& other);
  void listen(Worker& worker);
  void watch_exit(Worker& worker);
  void ended(std::list<Worker>::iterator worker, std::optional<int> status);
  static void signal(const Worker& worker, int number);
  bool take(Worker& worker, LinkPacket packet);
  std::size_t waiting() const;
  void end(Worker& worker);
  static void hang_up(Worker& worker);
  void kill(Worker& worker);
  void fail(Worker& worker, const std::string& why);
  void rest(const std::string& why);
  void on_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor);
  Environment environment_of(const WorkerProfile& profile) const;
  void note(std::uint64_t session, EventLog::Level level, const char* event, std::vector<Field> fields);
  void take_facts(std::unique_ptr<capnp::MallocMessageBuilder> facts, capnp::List<std::uint32_t>::Reader sm_groups);
  void take_rdma(capnp::List<wire::RdmaInterface>::Reader interfaces);
  void take_ready(Worker& worker, wire::Ready::Reader ready);
  void take_usage(Worker& worker, wire::Usage::Reader usage);
  void take_resuming(Worker& worker, wire::Resuming::Reader told);
  void end_session(Worker& worker, const std::string& reason, SessionEnd end);
  void watch();
  void look();
  /// A worker's question for what another one shares.
  struct Asked {
    pid_t worker = -1;
    std::uint64_t request = 0;
    ShareKey key{};
  };
  void answer(Worker& worker, wire::Fetch::Reader fetch);
  void take_share(Worker& worker, wire::Share::Reader share, Descriptor descriptor);
  void admit(Worker& worker, capnp::Data::Reader key);
  static void add_link_key(Worker& worker, capnp::Data::Reader key);
  void dial(Worker& worker, wire::Dial::Reader wanted);
  void hear_sharers(const Worker& asks);
  bool lend(Worker& worker, const Asked& asked);
  void charge(pid_t heir, int device, std::uint64_t bytes, bool pays);

  asio::io_context& io_;
  const Settings& settings_;
  const Succession& succession_;
  std::list<Worker> workers_;  // stable addresses
  SharedThings shares_;
  Dials dials_;
  Scheduling scheduling_;
  Evictions evictions_;
  std::uint64_t faults_ = 0;
  ConnectionFailures notes_{~std::uint64_t{0}};  // lines of the log, by sessions
  std::map<std::string, TenantTotals> totals_;
  std::string failure_;
  // A builder, because a message reader may be asked only so often.
  std::unique_ptr<capnp::MallocMessageBuilder> facts_;
  std::vector<unsigned> sm_groups_;
  std::map<std::string, std::string> rdma_;  // devices by which workers offer RDMA, by interface
  std::set<std::string> without_rdma_;       // interfaces of which the log says so
  std::deque<std::pair<std::uint64_t, std::vector<std::byte>>> ended_lane_keys_;  // of the sessions that ended last
  bool stopping_ = false;
  asio::steady_timer retry_;
  asio::steady_timer watch_;
  bool watching_ = false;
  std::vector<Asked> asked_;  // and is answered when all that others have said is heard
  bool hearing_ = false;      // just now
};

}  // namespace fargpu::server
