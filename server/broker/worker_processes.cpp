// The processes of workers: started, kept ready, listened to, told to end, reaped.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "event_log.h"
#include "host_facts.h"
#include "passed_descriptors.h"
#include "protocol/errors.h"
#include "protocol/limits.h"
#include "protocol/text.h"
#include "protocol/version.h"
#include "workers.h"

namespace fargpu::server {
namespace {

constexpr auto retry_after_failure = std::chrono::seconds(5);
constexpr int exit_unknown_option = 109;  // CLI11's, of a worker that is told what it does not know

std::size_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

scheduler::Rules rules_of(const Settings& settings) {
  return {.policy = settings.policy,
          .quantum = std::chrono::milliseconds(settings.quantum_ms),
          .grace = std::chrono::milliseconds(settings.grace_ms)};
}

std::string end_of(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Workers::Workers(asio::io_context& io, const Settings& settings, const Succession& succession)
    : io_(io),
      settings_(settings),
      succession_(succession),
      host_(settings),
      shares_(descriptor_limit() / 4,
              [this](pid_t heir, int device, std::uint64_t bytes, bool pays) { charge(heir, device, bytes, pays); }),
      dials_(io, settings),
      scheduling_(io, rules_of(settings)),
      evictions_(io, settings, [this](std::uint64_t session) { return on_devices(session); }),
      retry_(io),
      watch_(io) {}

std::list<Worker>::iterator Workers::by_process(pid_t process) {
  return std::find_if(workers_.begin(), workers_.end(), [&](const Worker& w) { return w.process == process; });
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
  const int error = spawn_worker(process, worker_arguments(settings_, profile, warm, has_door), environment_of(profile),
                                 theirs, door.socket.number());
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

void Workers::on_message(Worker& worker, wire::WorkerMessage::Reader message, Descriptor descriptor) {
  if (worker.state == Worker::State::ending) return;  // of no interest any more
  switch (message.which()) {
    case wire::WorkerMessage::READY:
      require(worker, Worker::State::starting, message.getReady().getFacts().getDevices().size());
      take_ready(worker, message.getReady());
      return;
    case wire::WorkerMessage::FAILED:
      require(worker, Worker::State::starting);
      fail(worker, printable(message.getFailed().cStr(), 512));
      return;
    default: on_session_message(worker, message, std::move(descriptor));
  }
}

void Workers::require(const Worker& worker, Worker::State state, std::size_t devices) {
  if (worker.state != state || devices > limits::devices_max)
    throw ProtocolError("the worker sent a message out of its turn");
}

void Workers::take_ready(Worker& worker, wire::Ready::Reader ready) {
  if (const std::string release = printable(ready.getRelease().cStr()); release != our_release)
    throw ProtocolError(
        fmt::format("{} is of fargpu {}, fargpud of {}; if the package was upgraded, restart fargpud, whose "
                    "sessions go on; else install both from the same package",
                    settings_.worker, release.empty() ? "before 0.2.0" : release, our_release));
  if (worker.profile.devices.empty()) {
    auto facts = std::make_unique<capnp::MallocMessageBuilder>();
    copy_facts(ready.getFacts(), facts->initRoot<wire::HostFacts>());
    const std::string refused = refuse_facts ? refuse_facts(facts->getRoot<wire::HostFacts>()) : "";
    if (!refused.empty()) throw ProtocolError(refused);
    // What one sees that was started for a client (under its variables, with a part of the multiprocessors) is that
    // client's affair.
    if (worker.profile.standard()) {
      failure_.clear();
      host_.take_facts(std::move(facts), ready.getSmGroups());
      if (on_facts) on_facts();
      host_.take_rdma(ready.getRdma());
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

// A worker without a session ends when its link does.
void Workers::end(Worker& worker) {
  worker.state = Worker::State::ending;
  worker.hang_up();
}

void Workers::kill(Worker& worker) {
  worker.state = Worker::State::ending;
  worker.signal(SIGKILL);
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
      worker.signal(SIGTERM);  // it may be in the driver
      if (const auto when_ready = std::exchange(worker.when_ready, nullptr)) when_ready(nullptr, why);
    }
  }
}

void Workers::kill_all() {
  for (const Worker& worker : workers_) worker.signal(SIGKILL);
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
  forget_session(*worker);
  if (!worker->door.empty()) ::unlink(worker->door.c_str());
  worker->hang_up();
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

std::size_t Workers::taken() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) {
    return w.state == Worker::State::session || w.state == Worker::State::reserved || w.when_ready;
  }));
}

}  // namespace fargpu::server
