#include "workers.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <numeric>
#include <set>

#include "contents.h"
#include "event_log.h"
#include "host_facts.h"
#include "passed_descriptors.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/rdma/networks.h"
#include "protocol/same_secret.h"
#include "protocol/text.h"
#include "protocol/version.h"
#include "session_record.h"

extern char** environ;

namespace fargpu::server {
namespace {

constexpr auto retry_after_failure = std::chrono::seconds(5);
constexpr auto end_patience = std::chrono::seconds(5);
constexpr std::size_t ended_lane_keys_max = 1024;
constexpr int link_descriptor = 3, door_descriptor = 4;  // of a worker
constexpr int exit_unknown_option = 109;                 // CLI11's, of a worker that is told what it does not know

// Of our own environment, what a process needs and what NVIDIA's driver, RDMA's libraries, sanitizers and the software
// GPU read. Not what a client may have an opinion on (CUDA_*), and nothing else: the service may have been started with
// secrets.
bool passes_to_worker(std::string_view variable) {
  constexpr std::string_view names[] = {"HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER"};
  constexpr std::string_view groups[] = {
      "ASAN_", "FARGPU_FAKE_", "FARGPU_SOFTGPU_", "FARGPU_TEST_", "GLIBC_", "IBV_",  "LC_",   "LD_",
      "LSAN_", "MALLOC_",      "MLX5_",           "NVIDIA_",      "RDMAV_", "TSAN_", "UBSAN_"};
  const std::string_view name = variable.substr(0, variable.find('='));
  return std::ranges::find(names, name) != std::end(names) ||
         std::ranges::any_of(groups, [&](std::string_view group) { return name.starts_with(group); });
}

// The worker's environment: some of ours, and the client's.
std::vector<std::string> compose(const Environment& environment) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable)
    if (passes_to_worker(*variable)) variables.emplace_back(*variable);
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// As posix_spawn: 0, or the error. The process has `link` and, unless it is negative, `door` under a worker's numbers
// for them, and no other descriptor of ours.
int spawn(pid_t& process, std::vector<std::string> arguments, std::vector<std::string> variables, int link, int door) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // In this order: the door's number here is higher than both.
  posix_spawn_file_actions_adddup2(&actions, link, link_descriptor);
  if (door >= 0) posix_spawn_file_actions_adddup2(&actions, door, door_descriptor);
  // Nothing else of ours: neither the listening sockets, which would outlive us in it, nor the connections of other
  // clients.
  posix_spawn_file_actions_addclosefrom_np(&actions, (door >= 0 ? door_descriptor : link_descriptor) + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own: a Ctrl-C at our terminal is for us alone.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawn(&process, arguments.front().c_str(), &actions, &attributes,
                                  pointers(arguments).data(), pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::size_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

std::uint64_t host_bytes_max(const Settings& settings) {
  if (settings.host_bytes_max != 0) return settings.host_bytes_max;
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) /
         2;
}

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

scheduler::Rules rules_of(const Settings& settings) {
  return {.policy = settings.policy,
          .quantum = std::chrono::milliseconds(settings.quantum_ms),
          .grace = std::chrono::milliseconds(settings.grace_ms)};
}

// Empty where there are no random numbers: then nobody is let in by it.
std::vector<std::byte> random_lane_key() {
  std::vector<std::byte> key(limits::lane_name_bytes + 32);
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) key.clear();
  return key;
}

std::string end_of(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

// The one among `workers` that serves this session; their end if none does.
template <class List>
auto by_session(List& workers, std::uint64_t session) {
  return std::find_if(workers.begin(), workers.end(),
                      [&](const Worker& w) { return w.state == Worker::State::session && w.session == session; });
}

}  // namespace

std::optional<std::size_t> Worker::number_of(unsigned place) const {
  const std::vector<unsigned>& devices = lease->lease().devices;
  const auto found = std::find(devices.begin(), devices.end(), place);
  if (found == devices.end()) return std::nullopt;
  return static_cast<std::size_t>(found - devices.begin());
}

std::uint64_t Worker::used_bytes(unsigned place) const {
  const auto device = number_of(place);
  return device ? slot().held[*device] + slot().inherited[*device] : 0;
}

std::uint64_t Worker::there_bytes(unsigned place) const {
  const auto device = number_of(place);
  return device ? own_bytes_there(*device) + slot().inherited[*device] : 0;
}

std::uint64_t Worker::own_bytes_there(std::size_t device) const {
  const std::uint64_t held = slot().held[device];  // read once: the worker writes it
  return held - std::min<std::uint64_t>(slot().away[device], held);
}

AccountSlot& Worker::slot() const { return lease->lease().account->slot(lease->slot()); }

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

void Workers::begin_turns(const Worker& worker, bool taken_over) {
  const Lease& lease = worker.lease->lease();
  const scheduler::Share share = share_of(lease);
  const int link = worker.link->native_handle();
  scheduling_.begin(worker.session, lease.id, share, link);
  evictions_.begin(worker.session, {lease.devices, share.priority, lease.memory_bytes, taken_over}, link);
}

std::list<Worker>::iterator Workers::by_process(pid_t process) {
  return std::find_if(workers_.begin(), workers_.end(), [&](const Worker& w) { return w.process == process; });
}

Workers::Workers(asio::io_context& io, const Settings& settings, const Succession& succession)
    : io_(io),
      settings_(settings),
      succession_(succession),
      shares_(descriptor_limit() / 4,
              [this](pid_t heir, int device, std::uint64_t bytes, bool pays) { charge(heir, device, bytes, pays); }),
      dials_(io, settings),
      scheduling_(io, rules_of(settings)),
      evictions_(io, settings, [this](std::uint64_t session) { return on_devices(session); }),
      retry_(io),
      watch_(io) {}

// The driver's own numbers of a profile's devices.
std::string Workers::devices_argument(const WorkerProfile& profile) const {
  if (profile.devices.empty()) return settings_.devices;
  const std::vector<int> offered = parse_devices(settings_.devices);
  std::string text;
  for (const unsigned place : profile.devices)
    text += (text.empty() ? "" : ",") + std::to_string(offered.empty() ? static_cast<int>(place) : offered.at(place));
  return text;
}

// What a tenant has sent is no other's to find: not even whether it is there.
std::string Workers::image_folder(const Worker& worker) const {
  return settings_.image_folder.empty() ? "" : settings_.image_folder + "/" + worker.lease->lease().tenant;
}

// What sessions give each other names devices by their numbers, so both must have the same; and both are one tenant's.
bool Workers::may_share(const Worker& one, const Worker& other) {
  return one.lease && other.lease && one.lease->lease().tenant == other.lease->lease().tenant &&
         one.profile.devices == other.profile.devices;
}

// With the eight connections that the driver gives a context by itself, a device takes a hundred contexts, however
// little memory they have; with one, it takes 180 at least (measured on an H200, driver 580).
Environment Workers::environment_of(const WorkerProfile& profile) const {
  constexpr std::size_t few = 32;  // on each device
  Environment environment = profile.environment;
  const auto known = facts();
  const std::size_t devices = known ? std::max(1u, known->getDevices().size()) : 1;
  const auto alive = std::count_if(workers_.begin(), workers_.end(),
                                   [](const Worker& worker) { return worker.state != Worker::State::ending; });
  if (static_cast<std::size_t>(alive) >= few * devices) environment.emplace("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  return environment;
}

std::vector<std::string> Workers::arguments_of(const WorkerProfile& profile, bool warm, bool has_door) const {
  std::vector<std::string> arguments{settings_.worker,
                                     "--driver",
                                     settings_.driver,
                                     "--link",
                                     std::to_string(link_descriptor),
                                     "--image-bytes-max",
                                     std::to_string(settings_.image_bytes_max),
                                     "--content-bytes-max",
                                     std::to_string(settings_.content_bytes_max),
                                     "--host-bytes-max",
                                     std::to_string(host_bytes_max(settings_)),
                                     "--spin-us",
                                     std::to_string(settings_.spin_us),
                                     "--launch-threads",
                                     std::to_string(settings_.launch_threads),
                                     "--silence-seconds",
                                     std::to_string(settings_.silence_seconds)};
  if (const std::string devices = devices_argument(profile); !devices.empty())
    arguments.insert(arguments.end(), {"--devices", devices});
  if (!profile.sm_groups.empty()) arguments.insert(arguments.end(), {"--sm-groups", text_of(profile.sm_groups)});
  if (has_door) arguments.insert(arguments.end(), {"--door", std::to_string(door_descriptor)});
  if (settings_.sandbox) arguments.emplace_back("--sandbox");
  arguments.insert(arguments.end(), {"--rdma-networks", settings_.rdma_networks, "--rdma-transports",
                                     settings_.rdma_transports, "--gpudirect", settings_.gpudirect});
  if (!settings_.worker_user.empty()) arguments.insert(arguments.end(), {"--user", settings_.worker_user});
  if (settings_.warm_context && warm) arguments.emplace_back("--warm-context");
  return arguments;
}

Worker& Workers::start(const WorkerProfile& profile, bool warm) {
  Succession::Door door;
  try {
    door = succession_.make_door();
  } catch (const SystemError& error) {  // the session is worth more than its succession
    EventLog::warn("no door", {{"reason", error.what()},
                               {"meaning", "the host's next fargpud will not take over the session of this worker"}});
  }
  const auto [ours, theirs] = make_link();
  const bool has_door = door.socket.number() >= 0;
  pid_t process = -1;
  const int error = spawn(process, arguments_of(profile, warm, has_door), compose(environment_of(profile)), theirs,
                          door.socket.number());
  ::close(theirs);
  if (error != 0) {
    ::close(ours);
    if (has_door) ::unlink(door.path.c_str());
    throw SystemError("cannot start the worker '" + settings_.worker + "': " + std::strerror(error));
  }
  ::fcntl(ours, F_SETFL, ::fcntl(ours, F_GETFL) | O_NONBLOCK);

  Worker& worker = workers_.emplace_back();
  worker.process = process;
  worker.warm = warm;
  worker.profile = profile;
  worker.door = std::move(door.path);
  worker.link = std::make_unique<asio::posix::stream_descriptor>(io_, ours);
  worker.start_deadline = std::make_unique<asio::steady_timer>(io_, std::chrono::seconds(settings_.start_seconds));
  worker.start_deadline->async_wait([this, process](const asio::error_code& error) {
    const auto late = by_process(process);
    if (error || late == workers_.end() || late->state != Worker::State::starting) return;
    fail(*late, fmt::format("the worker was not ready within {} s", settings_.start_seconds));
    kill(*late);
  });
  EventLog::debug("worker started", {{"worker", process}, {"warm", warm}});
  listen(worker);
  return worker;
}

void Workers::listen(Worker& worker) {
  worker.link->async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, process = worker.process](const asio::error_code& error) {
                            const auto found = by_process(process);
                            if (error || found == workers_.end()) return;
                            // One packet at a time: a worker that never stops talking keeps nobody else waiting.
                            if (auto packet = receive_from_worker(found->link->native_handle())) {
                              if (packet->message.empty()) return;  // it ended; reap() hears of it
                              if (!take(*found, std::move(*packet))) {
                                kill(*found);
                                return;
                              }
                            }
                            if (found->link->is_open()) listen(*found);
                          });
}

// A worker executes what strangers sent: what it says is not trusted either. False if it made no sense.
bool Workers::take(Worker& worker, LinkPacket packet) {
  Descriptor descriptor(packet.descriptor, close_aside);
  try {
    if (packet.had_more) throw ProtocolError("the worker passed more than one descriptor at a time");
    MessageReader reader(packet.message);
    on_message(worker, reader.root<wire::WorkerMessage>(), std::move(descriptor));
    return true;
  } catch (const kj::Exception& error) {
    fail(worker, std::string("the worker sent a message that cannot be read: ") + error.getDescription().cStr());
  } catch (const ProtocolError& error) {
    fail(worker, error.what());
  }
  return false;
}

// A worker without a session ends when its link does.
void Workers::end(Worker& worker) {
  worker.state = Worker::State::ending;
  hang_up(worker);
}

// What was not read of it may have descriptors.
void Workers::hang_up(Worker& worker) {
  if (worker.link->is_open()) hang_up_aside(worker.link->release());
}

void Workers::kill(Worker& worker) {
  worker.state = Worker::State::ending;
  signal(worker, SIGKILL);
}

// The number of a process that is no child may be another's by now.
void Workers::signal(const Worker& worker, int number) {
  if (!worker.exit) ::kill(worker.process, number);
  else ::syscall(SYS_pidfd_send_signal, worker.exit->native_handle(), number, nullptr, 0);
}

// It does not become what it was meant to be. What happens in the environment that a client asked for is that client's
// affair.
void Workers::fail(Worker& worker, const std::string& why) {
  ++faults_;
  EventLog::error("worker failed", {{"worker", worker.process}, {"session", worker.session}, {"reason", why}});
  const bool never_ready = worker.state == Worker::State::starting;
  if (worker.state == Worker::State::session) end_session(worker, why, SessionEnd::fault);
  worker.state = Worker::State::ending;
  if (worker.start_deadline) worker.start_deadline->cancel();
  if (never_ready && worker.profile.standard()) rest(why);
  if (const auto when_ready = std::exchange(worker.when_ready, nullptr)) when_ready(nullptr, why);
}

void Workers::on_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor) {
  const auto require = [&](Worker::State state, std::size_t devices = 0) {
    if (worker.state != state || devices > limits::devices_max)
      throw ProtocolError("the worker sent a message out of its turn");
  };
  if (worker.state == Worker::State::ending) return;  // of no interest any more
  switch (message.which()) {
    case wire::WorkerMessage::READY:
      require(Worker::State::starting, message.getReady().getFacts().getDevices().size());
      take_ready(worker, message.getReady());
      return;
    case wire::WorkerMessage::FAILED:
      require(Worker::State::starting);
      fail(worker, printable(message.getFailed().cStr(), 512));
      return;
    case wire::WorkerMessage::USAGE:
      require(Worker::State::session, message.getUsage().getBusyNs().size());
      take_usage(worker, message.getUsage());
      return;
    case wire::WorkerMessage::TOLD:
      require(Worker::State::session);
      note(worker.session, EventLog::Level::info, "session note",
           {{"session", worker.session}, {"text", printable(message.getTold().cStr(), 512)}});
      return;
    case wire::WorkerMessage::ACTIVITY:
      require(Worker::State::session);
      scheduling_.heard(worker.session, message.getActivity());
      return;
    case wire::WorkerMessage::RESIDENCY:
      require(Worker::State::session);
      evictions_.heard(worker.session, message.getResidency());
      return;
    case wire::WorkerMessage::WANT_ROOM:
      require(Worker::State::session);
      evictions_.wants(worker.session, message.getWantRoom());
      return;
    case wire::WorkerMessage::RESUMING:
      require(Worker::State::session);
      take_resuming(worker, message.getResuming());
      return;
    case wire::WorkerMessage::SHARE:
      require(Worker::State::session);
      take_share(worker, message.getShare(), std::move(descriptor));
      return;
    case wire::WorkerMessage::UNSHARE:
      require(Worker::State::session);
      shares_.remove(worker.process, message.getUnshare());
      send_link(worker.link->native_handle(),
                [&](wire::WorkerMessage::Builder answer) { answer.setUnshared(message.getUnshare()); });
      return;
    case wire::WorkerMessage::LET_GO:
      require(Worker::State::session);
      shares_.let_go(worker.process, message.getLetGo());
      return;
    case wire::WorkerMessage::FETCH:
      require(Worker::State::session);
      answer(worker, message.getFetch());
      return;
    case wire::WorkerMessage::ADMIT:
      require(Worker::State::session);
      admit(worker, message.getAdmit());
      return;
    case wire::WorkerMessage::SHUT_OUT: {
      require(Worker::State::session);
      const auto key = message.getShutOut();
      const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(key.begin()), key.size());
      std::erase_if(worker.link_keys, [&](const auto& known) { return same_secret(known, bytes); });
      return;
    }
    case wire::WorkerMessage::DIAL:
      require(Worker::State::session);
      dial(worker, message.getDial());
      return;
    case wire::WorkerMessage::ENDED:
      require(Worker::State::session);
      end_session(worker, printable(message.getEnded().cStr(), 512),
                  worker.told_to_stop ? SessionEnd::stopped : SessionEnd::client);
      return;
    default: throw ProtocolError("the worker sent a message that only the broker sends");
  }
}

void Workers::take_ready(Worker& worker, wire::Ready::Reader ready) {
  if (const std::string release = printable(ready.getRelease().cStr()); release != our_release)
    throw ProtocolError(fmt::format("{} is of fargpu {}, fargpud of {}; install both from the same package",
                                    settings_.worker, release.empty() ? "before 0.2.0" : release, our_release));
  if (worker.profile.devices.empty()) {
    auto facts = std::make_unique<capnp::MallocMessageBuilder>();
    copy_facts(ready.getFacts(), facts->initRoot<wire::HostFacts>());
    const std::string refused = refuse_facts ? refuse_facts(facts->getRoot<wire::HostFacts>()) : "";
    if (!refused.empty()) throw ProtocolError(refused);
    // What one sees that was started for a client (under its variables, with a part of the multiprocessors) is that
    // client's affair.
    if (worker.profile.standard()) {
      take_facts(std::move(facts), ready.getSmGroups());
      take_rdma(ready.getRdma());
    }
  }
  worker.start_deadline->cancel();
  EventLog::debug("worker ready", {{"worker", worker.process}});
  if (const auto when_ready = std::exchange(worker.when_ready, nullptr)) {
    worker.state = Worker::State::reserved;
    when_ready(&worker, "");
  } else {
    become_ready(worker);
  }
}

void Workers::take_share(Worker& worker, wire::Share::Reader share, Descriptor descriptor) {
  if (!shares_.add(worker.process, worker.lease->lease().tenant, share, std::move(descriptor)))
    note(worker.session, EventLog::Level::warn, "too much shared",
         {{"session", worker.session}, {"worker", worker.process}});
}

// A session can cause such lines as often as it likes; a few of each minute are worth a place.
void Workers::note(std::uint64_t session, EventLog::Level level, const char* event, std::vector<Field> fields) {
  const auto told = notes_.add(std::to_string(session), ConnectionFailures::Clock::now());
  if (told == ConnectionFailures::Told::not_any_more) level = EventLog::Level::debug;
  if (told == ConnectionFailures::Told::last)
    fields.emplace_back("further", "those of this session in this minute are logged at level debug only");
  EventLog::write(level, event, fields);
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

void Workers::take_facts(std::unique_ptr<capnp::MallocMessageBuilder> facts,
                         capnp::List<std::uint32_t>::Reader sm_groups) {
  failure_.clear();
  facts_ = std::move(facts);
  // One that MPS gives a percentage makes no groups.
  std::vector<unsigned> groups;
  for (const std::uint32_t count : sm_groups) groups.push_back(std::min(count, sm_groups_max));
  groups.resize(facts_->getRoot<wire::HostFacts>().getDevices().size());
  if (std::any_of(groups.begin(), groups.end(), [](unsigned count) { return count != 0; }))
    sm_groups_ = std::move(groups);
  if (on_facts) on_facts();
}

// Every worker that is started for any client tells this. The operator may have changed something since the last one.
void Workers::take_rdma(capnp::List<wire::RdmaInterface>::Reader interfaces) {
  std::map<std::string, std::string> offered;
  const bool wanted = settings_.rdma_networks != rdma::Networks::usual && settings_.rdma_networks != "none";
  const auto warn = [&](const std::string& where, const std::string& reason) {
    if (wanted && without_rdma_.insert(where).second)
      EventLog::warn("no RDMA", {{"interface", where},
                                 {"reason", reason},
                                 {"meaning", "clients of this network go by TCP; repair that, or see rdma_networks"}});
  };
  if (interfaces.size() == 0) warn("none", "no address of this machine is in rdma_networks");
  constexpr unsigned interfaces_max = 64;
  for (unsigned i = 0; i < std::min(interfaces.size(), interfaces_max); ++i) {
    const auto one = interfaces[i];
    const std::string name = printable(one.getName().cStr(), 64);
    if (one.getWhyNone().size() > 0) warn(name, printable(one.getWhyNone().cStr(), 512));
    else offered.emplace(name, printable(one.getDevices().cStr(), 256));
  }
  for (const auto& [name, devices] : offered)
    if (!rdma_.contains(name)) EventLog::info("RDMA offered", {{"interface", name}, {"devices", devices}});
  rdma_ = std::move(offered);
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

// Looks at each session's worker once a second, while there are any.
void Workers::watch() {
  if (std::exchange(watching_, true)) return;
  watch_.expires_after(std::chrono::seconds(1));
  watch_.async_wait([this](const asio::error_code& error) {
    watching_ = false;
    if (!error) look();
  });
}

// A worker whose process does not run (stopped by a signal, frozen with its container, held by a debugger) ends by
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

void Workers::admit(Worker& worker, capnp::Data::Reader key) {
  add_link_key(worker, key);
  send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder answer) { answer.setAdmitted(key); });
}

void Workers::add_link_key(Worker& worker, capnp::Data::Reader key) {
  if (key.size() != limits::lane_name_bytes + 32 || worker.link_keys.size() == limits::links_max)
    throw ProtocolError("the worker lets in more links than there can be");
  const auto* const bytes = reinterpret_cast<const std::byte*>(key.begin());
  worker.link_keys.emplace_back(bytes, bytes + key.size());
}

// The program's word for where the other host is: a session that tries many addresses is after something else.
void Workers::dial(Worker& worker, wire::Dial::Reader wanted) {
  const std::string host = wanted.getHost().cStr();
  const auto answer = [this, process = worker.process, session = worker.session, request = wanted.getRequest(), host](
                          int descriptor, const std::string& failure) {
    if (!failure.empty())
      note(session, EventLog::Level::info, "no link",
           {{"session", session}, {"host", printable(host, 256)}, {"reason", failure}});
    const auto found = by_process(process);
    if (found != workers_.end() && found->state == Worker::State::session && found->session == session)
      send_link(
          found->link->native_handle(),
          [&](wire::WorkerMessage::Builder message) {
            auto dialled = message.initDialled();
            dialled.setRequest(request);
            dialled.setFailure(failure);
          },
          descriptor);
    if (descriptor >= 0) ::close(descriptor);
  };
  if (++worker.dials > dials_of_session_max) return answer(-1, "the session has connected to other hosts often enough");
  dials_.dial(host, wanted.getPort(), answer);
}

// A session asks for a thing whose handle it has from the one that shares it. The worker of that one has told the thing
// before, but its word may still be unread, behind others. So the words of all workers are heard first. A worker that
// asks in these is answered behind them.
void Workers::answer(Worker& worker, wire::Fetch::Reader fetch) {
  const auto key = share_key(fetch.getKey());
  if (!key) throw ProtocolError("the worker asks for what cannot be shared");
  const Asked asked{worker.process, fetch.getRequest(), *key};
  if (lend(worker, asked)) return;
  asked_.push_back(asked);
  if (std::exchange(hearing_, true)) return;
  hear_sharers(worker);
  hearing_ = false;
  for (const Asked& one : std::exchange(asked_, {})) {
    const auto found = by_process(one.worker);
    if (found == workers_.end() || found->state != Worker::State::session || lend(*found, one)) continue;
    send_link(found->link->native_handle(),
              [&](wire::WorkerMessage::Builder message) { message.initFetched().setRequest(one.request); });
  }
}

void Workers::hear_sharers(const Worker& asks) {
  constexpr int packets_max = 256;  // of each
  for (Worker& other : workers_) {
    for (int packets = 0; packets < packets_max; ++packets) {
      if (&other == &asks || other.state != Worker::State::session || !may_share(asks, other)) break;
      auto packet = receive_from_worker(other.link->native_handle());
      if (!packet || packet->message.empty()) break;
      if (!take(other, std::move(*packet))) kill(other);
    }
  }
}

// Gives a worker what another one shares; false if there is nothing by that key.
bool Workers::lend(Worker& worker, const Asked& asked) {
  const capnp::Data::Reader key = wire_of(asked.key);
  const SharedThing* const thing = shares_.lend(key, worker.process, [&](pid_t process) {
    const auto other = by_process(process);
    return other != workers_.end() && other->state == Worker::State::session && may_share(worker, *other);
  });
  if (!thing) return false;
  const bool sent = send_link(
      worker.link->native_handle(),
      [&](wire::WorkerMessage::Builder message) {
        auto fetched = message.initFetched();
        fetched.setRequest(asked.request);
        auto share = fetched.initShare();
        share.setKey(key);
        share.setDevice(thing->device);
        share.setBytes(thing->bytes);
        share.setEvent(data_of(thing->event));
      },
      thing->descriptor.number());
  if (!sent && thing->device >= 0) shares_.let_go(worker.process, key);
  return true;
}

// For memory of a session that has given it up, or ended.
void Workers::charge(pid_t heir, int device, std::uint64_t bytes, bool pays) {
  const auto found = by_process(heir);
  if (found == workers_.end() || !found->lease) return;
  auto& inherited = found->slot().inherited[device];
  if (pays) inherited += bytes;
  else inherited -= bytes;
}

Worker* Workers::reserve(const WorkerProfile& profile, std::function<void(Worker*, const std::string&)> got) {
  for (Worker& worker : workers_) {
    if (worker.state != Worker::State::ready || worker.profile != profile) continue;
    worker.state = Worker::State::reserved;
    got(&worker, "");
    warm_up();
    return nullptr;
  }
  // One that is starting anyway and that nobody waits for.
  for (Worker& worker : workers_) {
    if (worker.state != Worker::State::starting || worker.when_ready || worker.profile != profile) continue;
    worker.when_ready = std::move(got);
    warm_up();  // it is nobody's warm one any more
    return &worker;
  }
  try {
    Worker& worker = start(profile, profile.standard());
    worker.when_ready = std::move(got);
    return &worker;
  } catch (const SystemError& error) {
    rest(error.what());
    got(nullptr, error.what());
    return nullptr;
  }
}

void Workers::release(Worker& worker) {
  if (worker.state != Worker::State::reserved) return;
  worker.lease.reset();
  become_ready(worker);
}

// For the next request. One of a rare profile is not worth keeping, and each costs device memory.
void Workers::become_ready(Worker& worker) {
  worker.state = Worker::State::ready;
  const auto ready = std::ranges::count_if(
      workers_, [](const Worker& w) { return w.profile.standard() && w.state == Worker::State::ready; });
  if (!worker.profile.standard() || static_cast<std::size_t>(ready) > settings_.warm_workers) end(worker);
}

bool Workers::begin_session(Worker& worker, std::uint64_t id, const ClientFacts& client,
                            const SessionOpening& opening) {
  const Lease& lease = worker.lease->lease();
  worker.lane_key = random_lane_key();
  worker.session = id;
  worker.client = client;
  worker.started = std::chrono::system_clock::now();
  std::vector<std::byte> record;
  if (!worker.door.empty()) {
    MessageWriter writer;
    write_record({worker.process, id, worker.started, worker.lane_key, client, *worker.lease}, device_uuids(),
                 writer.root<wire::SessionRecord>());
    record = succession_.seal(writer.finish());
  }
  const bool sent =
      send_link(
          worker.link->native_handle(), [](wire::WorkerMessage::Builder message) { message.setAccount(); },
          lease.account->descriptor()) &&
      send_link(
          worker.link->native_handle(),
          [&](wire::WorkerMessage::Builder message) {
            auto session = message.initSession();
            session.setId(id);
            session.setAttach(data_of(opening.attach));
            session.setPeer(client.peer);
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
                lease.resume_seconds.value_or(settings_.resume_seconds_of(client.by_loopback))));
            session.setEvicts(evictions_.any());
            session.setScrub(settings_.scrub == "always" || (settings_.scrub == "tenants" && lease.among_tenants));
          },
          opening.descriptor);
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
  if (!lease.sm_groups.empty())
    EventLog::info("multiprocessors", {{"session", id}, {"lease", lease.id}, {"groups", text_of(lease.sm_groups)}});
  else if (lease.compute_percent != 0 && lease.compute_percent < scheduler::percent_max &&
           scheduling_.rules().policy != "fixed")
    EventLog::warn("share not kept", {{"session", id},
                                      {"lease", lease.id},
                                      {"percent", lease.compute_percent},
                                      {"policy", scheduling_.rules().policy},
                                      {"meaning", "only the policy 'fixed' keeps leases to their percentage"}});
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

void Workers::warm_up() {
  if (stopping_) return;
  if (!failure_.empty() && std::chrono::steady_clock::now() < retry_.expiry()) return;
  try {
    while (waiting() < settings_.warm_workers) start({}, true);
  } catch (const SystemError& error) {
    EventLog::error("no worker", {{"reason", error.what()}});
    rest(error.what());
  }
}

// Those of the standard environment that nobody has yet.
std::size_t Workers::waiting() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) {
    return w.profile.standard() && !w.when_ready &&
           (w.state == Worker::State::ready || w.state == Worker::State::starting);
  }));
}

// A driver that does not start is tried again only now and then.
void Workers::rest(const std::string& why) {
  failure_ = why;
  retry_.expires_after(retry_after_failure);
  retry_.async_wait([this](const asio::error_code& error) {
    if (!error) warm_up();
  });
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

void Workers::notify_all(const std::string& line) {
  for (const Worker& worker : workers_)
    if (worker.state == Worker::State::session)
      send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder message) { message.setNotice(line); });
}

void Workers::stop_all(const std::string& why) {
  stopping_ = true;
  retry_.cancel();
  for (Worker& worker : workers_) {
    if (worker.state == Worker::State::session) {
      worker.told_to_stop = true;
      send_link(worker.link->native_handle(), [&](wire::WorkerMessage::Builder message) { message.setStop(why); });
    } else if (worker.state != Worker::State::ending) {
      if (worker.start_deadline) worker.start_deadline->cancel();
      end(worker);
      signal(worker, SIGTERM);  // it may be in the driver
      if (const auto when_ready = std::exchange(worker.when_ready, nullptr)) when_ready(nullptr, why);
    }
  }
}

void Workers::end_all(const std::string& why) {
  for (Worker& worker : workers_)
    if (worker.state == Worker::State::session) end_session(worker, why, SessionEnd::stopped);
  kill_all();
}

void Workers::kill_all() {
  for (const Worker& worker : workers_) signal(worker, SIGKILL);
}

void Workers::reap() {
  while (true) {
    int status = 0;
    const pid_t process = ::waitpid(-1, &status, WNOHANG);
    if (process <= 0) break;
    const auto found = by_process(process);
    if (found != workers_.end()) ended(found, status);
  }
  warm_up();
}

// `status`: as waitpid tells it; of a child only.
void Workers::ended(std::list<Worker>::iterator worker, std::optional<int> status) {
  // What it said last may still be in the link; a process that it left behind may go on talking.
  for (int packets = 0; packets < 100 && worker->link->is_open(); ++packets) {
    auto packet = receive_from_worker(worker->link->native_handle());
    if (!packet || packet->message.empty() || !take(*worker, std::move(*packet))) break;
  }
  const std::string how = status ? end_of(*status) : "it is no child of this fargpud, which therefore knows no more";
  if (worker->state == Worker::State::starting) {
    if (status && WIFEXITED(*status) && WEXITSTATUS(*status) == exit_unknown_option)
      fail(*worker,
           fmt::format("{} knows fewer options than fargpud {} gives it, so it is of an older release; install "
                       "both from the same package",
                       settings_.worker, our_release));
    else fail(*worker, "the worker ended before it was ready (" + how + ")");
  } else if (worker->state != Worker::State::ending) {
    ++faults_;
    EventLog::warn("worker died", {{"worker", worker->process}, {"session", worker->session}, {"how", how}});
    if (worker->state == Worker::State::session)
      end_session(*worker, "its worker died (" + how + ")", SessionEnd::fault);
  }
  shares_.remove_all(worker->process);
  scheduling_.end(worker->session);
  evictions_.end(worker->session);
  if (!worker->door.empty()) ::unlink(worker->door.c_str());
  hang_up(*worker);
  std::list<Worker> gone;
  gone.splice(gone.end(), workers_, worker);
  if (on_end) on_end(gone.front());
}

void Workers::watch_exit(Worker& worker) {
  worker.exit->async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, process = worker.process](const asio::error_code& error) {
                            const auto found = by_process(process);
                            if (!error && found != workers_.end()) ended(found, std::nullopt);
                          });
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

bool Workers::serves(std::uint64_t session) const { return by_session(workers_, session) != workers_.end(); }

std::size_t Workers::sessions() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(),
                                                [](const Worker& w) { return w.state == Worker::State::session; }));
}

std::vector<std::string> Workers::device_uuids() const {
  std::vector<std::string> uuids;
  if (const auto known = facts())
    for (const auto device : known->getDevices())
      uuids.emplace_back(reinterpret_cast<const char*>(device.getUuid().begin()), device.getUuid().size());
  return uuids;
}

std::size_t Workers::taken() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) {
    return w.state == Worker::State::session || w.state == Worker::State::reserved || w.when_ready;
  }));
}

std::optional<wire::HostFacts::Reader> Workers::facts() const {
  if (!facts_) return std::nullopt;
  return facts_->getRoot<wire::HostFacts>().asReader();
}

}  // namespace fargpu::server
