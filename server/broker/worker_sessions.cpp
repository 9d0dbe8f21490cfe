// The sessions that workers serve: begun or taken over, counted, watched, ended.

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "contents.h"
#include "event_log.h"
#include "passed_descriptors.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/same_secret.h"
#include "protocol/text.h"
#include "session_record.h"
#include "workers.h"

namespace fargpu::server {
namespace {

constexpr auto end_patience = std::chrono::seconds(5);
constexpr std::size_t ended_lane_keys_max = 1024;

scheduler::Share share_of(const Lease& lease) {
  scheduler::Share share;
  share.devices.assign(lease.devices.begin(), lease.devices.end());
  if (lease.compute_percent != 0) share.percent = lease.compute_percent;
  if (lease.weight != 0) share.weight = lease.weight;
  share.owner = lease.tenant;
  switch (lease.priority) {
    case wire::Priority::LATENCY_CRITICAL: share.priority = scheduler::Priority::critical; break;
    case wire::Priority::BEST_EFFORT: share.priority = scheduler::Priority::best_effort; break;
    default: break;
  }
  return share;
}

// Empty where there are no random numbers: then nobody is let in by it.
std::vector<std::byte> random_lane_key() {
  std::vector<std::byte> key(limits::lane_name_bytes + 32);
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) key.clear();
  return key;
}

// The one among `workers` that serves this session; their end if none does.
template <class List>
auto by_session(List& workers, std::uint64_t session) {
  return std::find_if(workers.begin(), workers.end(),
                      [&](const Worker& w) { return w.state == Worker::State::session && w.session == session; });
}

}  // namespace

bool Workers::begin_session(Worker& worker, std::uint64_t id, const ClientFacts& client,
                            const SessionOpening& opening) {
  const Lease& lease = worker.lease->lease();
  worker.lane_key = random_lane_key();
  worker.session = id;
  worker.client = client;
  worker.started = std::chrono::system_clock::now();
  const bool sent = send_session(worker, opening, sealed_record(worker));
  close_aside(opening.descriptor);
  if (!sent) {
    kill(worker);  // if it is there at all
    return false;
  }
  worker.state = Worker::State::session;
  worker.alive = 0;
  worker.still = 0;
  watch();
  ++totals_[lease.tenant].started;
  log_share(worker);
  begin_turns(worker, /*taken_over=*/false);
  EventLog::info("session started", {{"session", id},
                                     {"worker", worker.process},
                                     {"program", client.program},
                                     {"client", client.host_name},
                                     {"pid", client.process_id},
                                     {"peer", client.peer},
                                     {"tenant", client.tenant},
                                     {"identity", client.identity},
                                     {"lease", lease.id},
                                     {"transport", client.shares_memory ? "shm" : "tcp"}});
  warm_up();
  return true;
}

// What the worker keeps for the host's next broker; nothing for one that it will not find.
std::vector<std::byte> Workers::sealed_record(const Worker& worker) const {
  if (worker.door.empty()) return {};
  MessageWriter writer;
  write_record({worker.process, worker.session, worker.started, worker.lane_key, worker.client, *worker.lease},
               device_uuids(), writer.root<wire::SessionRecord>());
  return succession_.seal(writer.finish());
}

// The account first, by which the worker counts. False if the worker is gone.
bool Workers::send_session(const Worker& worker, const SessionOpening& opening,
                           std::span<const std::byte> record) const {
  const Lease& lease = worker.lease->lease();
  const int link = worker.link->native_handle();
  const auto account = [](wire::WorkerMessage::Builder message) { message.setAccount(); };
  if (!send_link(link, account, lease.account->descriptor())) return false;
  return send_link(
      link,
      [&](wire::WorkerMessage::Builder message) {
        auto session = message.initSession();
        session.setId(worker.session);
        session.setAttach(data_of(opening.attach));
        session.setPeer(worker.client.peer);
        session.setTicketName(data_of(opening.ticket_name));
        session.setTicket(data_of(opening.ticket));
        session.setMemoryBytes(lease.memory_bytes);
        session.setSlot(static_cast<std::uint32_t>(worker.lease->slot()));
        session.setImageFolder(image_folder(worker));
        session.setContentFolder(content_folder(settings_, lease.tenant).string());
        session.setKernelSecondsMax(
            static_cast<std::uint32_t>(lease.kernel_seconds_max.value_or(settings_.kernel_seconds_max)));
        session.setLaneKey(data_of(worker.lane_key));
        session.setRecord(data_of(record));
        session.setResumeSeconds(static_cast<std::uint32_t>(
            lease.resume_seconds.value_or(settings_.resume_seconds_of(worker.client.by_loopback))));
        session.setEvicts(evictions_.any());
        session.setScrub(settings_.scrub == "always" || (settings_.scrub == "tenants" && lease.among_tenants));
      },
      opening.descriptor);
}

void Workers::log_share(const Worker& worker) const {
  const Lease& lease = worker.lease->lease();
  if (!lease.sm_groups.empty())
    EventLog::info("multiprocessors",
                   {{"session", worker.session}, {"lease", lease.id}, {"groups", text_of(lease.sm_groups)}});
  else if (lease.compute_percent != 0 && lease.compute_percent < scheduler::percent_max &&
           scheduling_.rules().policy != "fixed")
    EventLog::warn("share not kept", {{"session", worker.session},
                                      {"lease", lease.id},
                                      {"percent", lease.compute_percent},
                                      {"policy", scheduling_.rules().policy},
                                      {"meaning", "only the policy 'fixed' keeps leases to their percentage"}});
}

void Workers::begin_turns(const Worker& worker, bool taken_over) {
  const Lease& lease = worker.lease->lease();
  const scheduler::Share share = share_of(lease);
  const int link = worker.link->native_handle();
  scheduling_.begin(worker.session, lease.id, share, link);
  evictions_.begin(worker.session, {lease.devices, share.priority, lease.memory_bytes, taken_over}, link);
}

// What a session has of others is not moved.
Rooms::Bytes Workers::on_devices(std::uint64_t session) const {
  Rooms::Bytes bytes;
  for (const Worker& worker : workers_) {
    if (worker.session != session || !worker.lease) continue;
    for (std::size_t d = 0; d < worker.lease->lease().devices.size(); ++d) bytes.push_back(worker.own_bytes_there(d));
    break;
  }
  return bytes;
}

// What a tenant has sent is no other's to find: not even whether it is there.
std::string Workers::image_folder(const Worker& worker) const {
  return settings_.image_folder.empty() ? "" : settings_.image_folder + "/" + worker.lease->lease().tenant;
}

Worker& Workers::take_over(Succession::Found found, wire::SessionRecord::Reader record, WorkerProfile profile,
                           std::unique_ptr<LeaseSession> lease) {
  std::list<Worker> fresh(1);
  Worker& worker = fresh.front();
  worker.process = found.process;
  worker.state = Worker::State::session;
  worker.profile = std::move(profile);
  worker.door = std::move(found.door);
  worker.link = std::make_unique<asio::posix::stream_descriptor>(io_, found.link.release());
  worker.exit = std::make_unique<asio::posix::stream_descriptor>(io_, found.exit.release());
  worker.lease = std::move(lease);
  worker.session = record.getSession();
  worker.client = read_client(record.getClient());
  worker.started = std::chrono::system_clock::time_point(std::chrono::milliseconds(record.getStartedMs()));
  const auto key = record.getLaneKey();
  worker.lane_key.assign(reinterpret_cast<const std::byte*>(key.begin()),
                         reinterpret_cast<const std::byte*>(key.end()));
  workers_.splice(workers_.end(), fresh);
  const Lease& of = worker.lease->lease();
  EventLog::info("session taken over", {{"session", worker.session},
                                        {"worker", worker.process},
                                        {"program", worker.client.program},
                                        {"client", worker.client.host_name},
                                        {"pid", worker.client.process_id},
                                        {"tenant", of.tenant},
                                        {"lease", of.id},
                                        {"release", printable(record.getRelease().cStr())}});
  begin_turns(worker, /*taken_over=*/true);
  listen(worker);
  watch_exit(worker);
  watch();
  return worker;
}

void Workers::take_over(Worker& worker, wire::WorkerMessage::Reader told, Descriptor descriptor) {
  switch (told.which()) {
    case wire::WorkerMessage::KEPT: return;  // that it is here is due to that
    case wire::WorkerMessage::HOLDS: shares_.take_over(worker.process, told.getHolds()); return;
    case wire::WorkerMessage::SHARES:
      if (const auto key = share_key(told.getShares().getKey()); key && shares_.shared(*key))
        return;  // the first has it
      take_share(worker, told.getShares(), std::move(descriptor));
      return;
    case wire::WorkerMessage::ADMITS: add_link_key(worker, told.getAdmits()); return;
    case wire::WorkerMessage::RECOUNTED: worker.resuming_since = told.getRecounted().getSince(); return;
    default: throw ProtocolError("the worker tells what a new broker need not know");
  }
}

void Workers::on_session_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor) {
  switch (message.which()) {
    case wire::WorkerMessage::USAGE:
      require(worker, Worker::State::session, message.getUsage().getBusyNs().size());
      take_usage(worker, message.getUsage());
      return;
    case wire::WorkerMessage::TOLD:
      require(worker, Worker::State::session);
      note(worker.session, EventLog::Level::info, "session note",
           {{"session", worker.session}, {"text", printable(message.getTold().cStr(), 512)}});
      return;
    case wire::WorkerMessage::ACTIVITY:
      require(worker, Worker::State::session);
      scheduling_.heard(worker.session, message.getActivity());
      return;
    case wire::WorkerMessage::RESIDENCY:
      require(worker, Worker::State::session);
      evictions_.heard(worker.session, message.getResidency());
      return;
    case wire::WorkerMessage::WANT_ROOM:
      require(worker, Worker::State::session);
      evictions_.wants(worker.session, message.getWantRoom());
      return;
    case wire::WorkerMessage::RESUMING:
      require(worker, Worker::State::session);
      take_resuming(worker, message.getResuming());
      return;
    case wire::WorkerMessage::SHARE:
    case wire::WorkerMessage::UNSHARE:
    case wire::WorkerMessage::LET_GO:
    case wire::WorkerMessage::FETCH:
      require(worker, Worker::State::session);
      on_sharing_message(worker, message, std::move(descriptor));
      return;
    case wire::WorkerMessage::ADMIT:
    case wire::WorkerMessage::SHUT_OUT:
    case wire::WorkerMessage::DIAL:
      require(worker, Worker::State::session);
      on_link_message(worker, message);
      return;
    case wire::WorkerMessage::ENDED:
      require(worker, Worker::State::session);
      end_session(worker, printable(message.getEnded().cStr(), 512),
                  worker.told_to_stop ? SessionEnd::stopped : SessionEnd::client);
      return;
    default: throw ProtocolError("the worker sent a message that only the broker sends");
  }
}

// What a worker takes back of an earlier word does not count: totals only grow.
void Workers::take_usage(Worker& worker, wire::Usage::Reader usage) {
  TenantTotals& totals = totals_[worker.lease->lease().tenant];
  const auto more = [](std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; };
  if (usage.getCalls() != worker.calls) evictions_.worked(worker.session);
  worker.calls = usage.getCalls();
  const auto busy_ns = usage.getBusyNs();  // once: each look at a list counts towards what a message may be read
  worker.busy_ns.resize(busy_ns.size());
  for (unsigned i = 0; i < busy_ns.size(); ++i) {
    totals.busy_ns += more(busy_ns[i], worker.busy_ns[i]);
    if (busy_ns[i] != worker.busy_ns[i]) evictions_.worked(worker.session);
    worker.busy_ns[i] = busy_ns[i];
  }
  totals.known_bytes += more(usage.getKnownBytes(), worker.known_bytes);
  totals.kept_bytes += more(usage.getKeptBytes(), worker.kept_bytes);
  worker.known_bytes = usage.getKnownBytes();
  worker.kept_bytes = usage.getKeptBytes();
  if (usage.getImagesNotKept() > worker.images_not_kept)
    note(worker.session, EventLog::Level::warn, "images not kept",
         {{"folder", settings_.image_folder},
          {"session", worker.session},
          {"meaning",
           "each session sends this GPU code again; make room there, raise image_bytes_max, or set --image-folder"}});
  worker.images_not_kept = usage.getImagesNotKept();
  if (usage.getByRdma() && !worker.by_rdma) EventLog::info("session by RDMA", {{"session", worker.session}});
  worker.by_rdma = usage.getByRdma();
  totals.waited_ns += more(usage.getWaitedNs(), worker.waited_ns);
  worker.waited_ns = usage.getWaitedNs();
}

void Workers::take_resuming(Worker& worker, wire::Resuming::Reader told) {
  worker.resuming_since = told.getSince();
  if (worker.resuming_since != 0) {
    note(worker.session, EventLog::Level::warn, "session resuming",
         {{"session", worker.session},
          {"program", worker.client.program},
          {"reason", printable(told.getWhy().cStr(), 512)}});
    return;
  }
  ++totals_[worker.lease->lease().tenant].resumed;
  note(worker.session, EventLog::Level::info, "session resumed",
       {{"session", worker.session}, {"program", worker.client.program}, {"peer", printable(told.getPeer().cStr())}});
}

// A session can cause such lines as often as it likes; a few of each minute are worth a place.
void Workers::note(std::uint64_t session, EventLog::Level level, const char* event, std::vector<Field> fields) {
  const auto told = notes_.add(std::to_string(session), ConnectionFailures::Clock::now());
  if (told == ConnectionFailures::Told::not_any_more) level = EventLog::Level::debug;
  if (told == ConnectionFailures::Told::last)
    fields.emplace_back("further", "those of this session in this minute are logged at level debug only");
  EventLog::write(level, event, fields);
}

// Looks at each session's worker once a second, while there are any.
void Workers::watch() {
  if (std::exchange(watching_, true)) return;
  watch_.expires_after(std::chrono::seconds(1));
  watch_.async_wait([this](const asio::error_code& error) {
    watching_ = false;
    if (!error) look();
  });
}

// A worker that does not run (stopped by a signal, frozen with its container, held by a debugger) ends by
// nothing that it is told, and would hold its lease for as long. Its client has given it up after `silence_seconds`;
// until a session runs, its connection may take `handshake_seconds`. Looks are counted, not time: one that this process
// was not there for does not count.
void Workers::look() {
  const std::uint64_t looks_max = settings_.silence_seconds + settings_.handshake_seconds;
  for (Worker& worker : workers_) {
    if (worker.state != Worker::State::session) continue;
    const std::uint64_t alive = worker.slot().alive;
    worker.still = std::exchange(worker.alive, alive) == alive ? worker.still + 1 : 0;
    if (worker.still <= looks_max) continue;
    ++faults_;
    const std::string why = fmt::format("its worker has not run for {} s", worker.still);
    EventLog::warn("worker killed", {{"worker", worker.process}, {"session", worker.session}, {"reason", why}});
    end_session(worker, why, SessionEnd::fault);
    kill(worker);
  }
  if (sessions() > 0) watch();
}

void Workers::stop(Worker& worker, const std::string& why) {
  if (worker.state != Worker::State::session) return;
  if (std::exchange(worker.told_to_stop, true)) {
    EventLog::warn("worker killed", {{"worker", worker.process}, {"session", worker.session}, {"reason", why}});
    end_session(worker, why, SessionEnd::stopped);
    kill(worker);
    return;
  }
  EventLog::warn("session stopped", {{"session", worker.session}, {"reason", why}});
  send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder message) { message.setStop(why); });
}

bool Workers::end(std::uint64_t session, const std::string& why) {
  const auto found = by_session(workers_, session);
  if (found == workers_.end()) return false;
  stop(*found, why);
  if (found->state != Worker::State::session) return true;
  found->end_deadline = std::make_unique<asio::steady_timer>(io_, end_patience);
  found->end_deadline->async_wait([this, session, why](const asio::error_code& error) {
    const auto late = by_session(workers_, session);
    if (!error && late != workers_.end()) stop(*late, why);
  });
  return true;
}

// What it had of the device is there until its process has ended, which it is made to do. Until then it pays for what
// others have of it, too: nothing is counted twice.
void Workers::end_session(Worker& worker, const std::string& reason, SessionEnd end) {
  worker.state = Worker::State::ending;
  TenantTotals& totals = totals_[worker.lease->lease().tenant];
  ++totals.ended_by(end);
  totals.moved += worker.slot().moved;
  worker.end_deadline = std::make_unique<asio::steady_timer>(io_, end_patience);
  worker.end_deadline->async_wait([this, process = worker.process](const asio::error_code& error) {
    const auto late = by_process(process);
    if (!error && late != workers_.end()) kill(*late);
  });
  worker.link_keys.clear();
  ended_lane_keys_.emplace_back(worker.session, std::move(worker.lane_key));
  if (ended_lane_keys_.size() > ended_lane_keys_max) ended_lane_keys_.pop_front();
  EventLog::info(
      "session ended",
      {{"session", worker.session},
       {"worker", worker.process},
       {"calls", worker.calls},
       {"busy_ms", std::accumulate(worker.busy_ns.begin(), worker.busy_ns.end(), std::uint64_t{0}) / 1'000'000},
       {"waited_ms", worker.waited_ns / 1'000'000},
       {"turn_messages", scheduling_.words(worker.session)},
       {"reason", reason}});
  scheduling_.end(worker.session);
}

void Workers::end_all(const std::string& why) {
  for (Worker& worker : workers_)
    if (worker.state == Worker::State::session) end_session(worker, why, SessionEnd::stopped);
  kill_all();
}

void Workers::forget_session(const Worker& worker) {
  shares_.remove_all(worker.process);
  scheduling_.end(worker.session);
  evictions_.end(worker.session);
}

void Workers::notify_all(const std::string& line) {
  for (const Worker& worker : workers_)
    if (worker.state == Worker::State::session)
      send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder message) { message.setNotice(line); });
}

Workers::LaneVerdict Workers::judge_lane(std::uint64_t session, std::span<const std::byte> key, bool name_only) const {
  const auto fits = [&](std::span<const std::byte> known) {
    if (name_only) known = known.first(std::min(known.size(), limits::lane_name_bytes));
    return same_secret(known, key);
  };
  if (const auto worker = by_session(workers_, session); worker != workers_.end())
    return fits(worker->lane_key) || std::any_of(worker->link_keys.begin(), worker->link_keys.end(), fits)
               ? LaneVerdict::rightly
               : LaneVerdict::by_stranger;
  for (const auto& [ended, known] : ended_lane_keys_)
    if (ended == session) return fits(known) ? LaneVerdict::too_late : LaneVerdict::by_stranger;
  return LaneVerdict::by_stranger;
}

void Workers::add_lane(std::uint64_t session, int descriptor, std::span<const std::byte> lane_message) {
  if (const auto worker = by_session(workers_, session); worker != workers_.end())
    send_link(
        worker->link->native_handle(),
        [&](wire::WorkerMessage::Builder message) { message.setLane(data_of(lane_message)); }, descriptor);
  close_aside(descriptor);
}

bool Workers::serves(std::uint64_t session) const { return by_session(workers_, session) != workers_.end(); }

std::size_t Workers::sessions() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(),
                                                [](const Worker& w) { return w.state == Worker::State::session; }));
}

bool Workers::giving_back(const std::function<std::uint64_t(const Lease& lease, unsigned device)>& least) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    if (worker.state != Worker::State::ending || !worker.lease) return false;
    const Lease& lease = worker.lease->lease();
    for (std::size_t d = 0; d < lease.devices.size(); ++d) {
      const std::uint64_t held = std::max<std::uint64_t>(lease.memory_bytes, worker.slot().charged[d]);
      if (held >= least(lease, lease.devices[d])) return true;
    }
    return false;
  });
}

}  // namespace fargpu::server
