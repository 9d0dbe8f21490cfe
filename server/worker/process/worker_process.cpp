#include "worker_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <thread>
#include <utility>

#include "displacement.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/rdma/handover.h"
#include "protocol/version.h"
#include "sandbox.h"
#include "sanitized.h"
#include "server/quota/paced_channel.h"
#include "server/sm_groups.h"
#include "server/worker/base/driver_library.h"
#include "server/worker/base/partition.h"
#include "server/worker/session/facts.h"
#include "server/worker/session/lane_requests.h"
#include "server/worker_link.h"

namespace fargpu::server {
namespace {

/// A client whose connection has broken waits so many times `resume_seconds` for a host's next broker (the client's
/// resumption).
constexpr int broker_patience = 10;

void set_all(capnp::List<std::uint64_t>::Builder list, const std::vector<std::uint64_t>& values) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, values[i]);
}

int fail(int link, const std::string& text) {
  send_link(link, [&](wire::WorkerMessage::Builder message) { message.setFailed(text); });
  return 1;
}

}  // namespace

WorkerProcess::WorkerProcess(WorkerOptions options)
    : options_(std::move(options)),
      next_broker_(options_.door),
      exchange_(options_.link, next_broker_.may_come()),
      door_(
          options_.link,
          [this](std::unique_ptr<Channel> channel) { return pace(std::move(channel), bandwidth_, /*first=*/false); },
          [this](int connection) { return rdma_of_link(connection); }) {}

int WorkerProcess::run() {
  try {
    return live();
  } catch (const std::exception& error) {  // most likely memory ran out before there was a session that could end by it
    const std::string why = std::string("no session: ") + error.what();
    if (!introduced_) return fail(options_.link, why);
    end(why);
    return 0;
  }
}

int WorkerProcess::live() {
  try {
    confine();
    load_driver();
  } catch (const SystemError& error) {
    return fail(options_.link, error.what());
  } catch (const DriverError& error) {
    return fail(options_.link, error.what());
  }
  if (!introduce()) return 1;
  printed_.emplace();
  if (receive_session()) serve();
  return 0;
}

void WorkerProcess::confine() {
  // The driver itself offers no other devices than these: nothing a client sends can name one, wherever a device number
  // may stand.
  if (!options_.devices.empty()) ::setenv("CUDA_VISIBLE_DEVICES", options_.devices.c_str(), 1);
  if (!options_.user.empty()) become_user(options_.user);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // forgotten with the former user
  next_broker_.open(options_.link);
  rdma_.emplace(options_.rdma_networks, options_.rdma_transports, options_.gpudirect != "off");
  if (options_.sandbox && !sanitized) enter_sandbox();
}

void WorkerProcess::load_driver() {
  server::load_driver(options_.driver, driver_);
  if (const CUresult result = driver_.cuInit(0); result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NO_DEVICE && !options_.devices.empty())
      throw DriverError("the driver has none of the devices " + options_.devices);
    const char* name = "?";
    driver_.cuGetErrorName(result, &name);
    throw DriverError("the driver '" + options_.driver + "' does not initialise: " + name);
  }
  int count = 0;
  driver_.cuDeviceGetCount(&count);
  devices_.resize(static_cast<std::size_t>(count));
  std::iota(devices_.begin(), devices_.end(), 0);
  if (!options_.devices.empty() && std::count(options_.devices.begin(), options_.devices.end(), ',') + 1 != count)
    throw DriverError("the driver does not have all of the devices " + options_.devices);
  if (devices_.empty()) throw DriverError("the driver '" + options_.driver + "' has no devices");
  if (!options_.sm_groups.empty()) choose_parts();
  if (options_.warm_context) {  // what takes longest of a session's start, done before there is one
    CUcontext context{};
    driver_.cuDevicePrimaryCtxRetain(&context, devices_.front());
  }
}

void WorkerProcess::choose_parts() {
  const auto groups = parse_sm_groups(options_.sm_groups);
  if (!groups || groups->size() != devices_.size())
    throw DriverError("groups of multiprocessors of so many devices: " + options_.sm_groups);
  for (std::size_t i = 0; i < devices_.size(); ++i)
    parts_.push_back(choose_sm_groups(driver_, devices_[i], (*groups)[i]));
}

bool WorkerProcess::introduce() {
  introduced_ = send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto ready = message.initReady();
    ready.setRelease(our_release);
    write_facts(driver_, devices_, ready.initFacts());
    auto groups = ready.initSmGroups(static_cast<unsigned>(devices_.size()));
    for (unsigned i = 0; i < groups.size(); ++i) groups.set(i, count_sm_groups(driver_, devices_[i]));
    const std::vector<RdmaHost::Interface> interfaces = rdma_->interfaces();
    auto list = ready.initRdma(static_cast<unsigned>(interfaces.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setName(interfaces[i].name);
      list[i].setDevices(interfaces[i].devices);
      list[i].setWhyNone(interfaces[i].why_none);
    }
  });
  return introduced_;
}

bool WorkerProcess::receive_session() {
  if (!receive_account()) return false;
  const auto packet = receive_link(options_.link);
  if (!packet || packet->message.empty()) return false;
  MessageReader reader(packet->message);
  const auto message = reader.root<wire::WorkerMessage>();
  if (!message.isSession() || packet->descriptor < 0 || message.getSession().getSlot() >= account_->slots())
    return false;
  take_session(message.getSession());
  return take_connection(message.getSession(), packet->descriptor);
}

bool WorkerProcess::receive_account() {
  const auto packet = receive_link(options_.link);
  if (!packet || packet->message.empty()) return false;  // the broker is gone
  MessageReader reader(packet->message);
  if (!reader.root<wire::WorkerMessage>().isAccount() || packet->descriptor < 0) return false;
  account_ = std::make_shared<TenantAccount>(TenantAccount::open(packet->descriptor));
  return true;
}

void WorkerProcess::take_session(wire::Session::Reader session) {
  const AccountPlace place{account_, session.getSlot()};
  bandwidth_ = std::make_shared<Bandwidth>(place);
  attach_.session.id = session.getId();
  attach_.session.memory_limits.assign(devices_.size(), session.getMemoryBytes());
  attach_.session.account_place = place;
  attach_.session.image_folder = session.getImageFolder().cStr();
  attach_.session.content_folder = session.getContentFolder().cStr();
  attach_.session.turns.work_max = std::chrono::seconds(session.getKernelSecondsMax());
  attach_.session.scrub = session.getScrub();
  attach_.lane_key = copy_of(session.getLaneKey());
  attach_.session.residency = {.want = [this](const RoomWish& wish) { want_room(wish); },
                               .tell = [this](const ResidencyNews& news) { tell_residency(news); },
                               .others_leave = session.getEvicts()};
  if (const char* const calls = std::getenv("FARGPU_TEST_EVICT_CALLS"))
    attach_.session.evict_calls = std::strtoull(calls, nullptr, 10);
  record_ = copy_of(session.getRecord());
  if (session.getResumeSeconds() == 0) return;
  attach_.session.resumption = std::make_shared<Resumption>(Resumption::Options{
      .time = std::chrono::seconds(session.getResumeSeconds()),
      .clock_stands =
          [this, most = std::chrono::seconds(session.getResumeSeconds()) * broker_patience] {
            const auto since = broker_away_since_.load();
            return next_broker_.may_come() && since != broker_there && std::chrono::steady_clock::now() - since < most;
          },
      .tell = [this](const Resumption::Break* what, const std::string& peer) { tell_resuming(what, peer); }});
}

bool WorkerProcess::take_connection(wire::Session::Reader session, int descriptor) {
  const std::string peer = session.getPeer().cStr();
  if (session.getTicketName().size() == 0) {
    attach_message_ = copy_of(session.getAttach());
    channel_ = make_socket_channel(descriptor, peer);
  } else {
    // The connection's keys are made from the ticket, which the broker gave to the client and to us: nobody else can
    // finish the handshake.
    try {
      channel_ = accept_by_key(descriptor, peer, bytes_of(session.getTicketName()), bytes_of(session.getTicket()));
      attach_message_ = receive_control(*channel_, limits::connect_timeout);
    } catch (const std::exception& error) {  // no handshake, or no attach
      end(std::string("no session: ") + error.what());
      return false;
    }
    encrypted_lanes_.emplace(attach_.lane_key, [this](std::unique_ptr<Channel> lane, const LaneWish& wish) {
      give_lane(std::move(lane), wish);
    });
  }
  attach_.rdma = rdma_->offer(channel_->descriptor());
  attach_.session.direct = attach_.rdma->direct = gpu_direct();
  attach_.wrap = [this](std::unique_ptr<Channel> channel) { return pace(std::move(channel), bandwidth_, true); };
  // By a Unix socket come programs of this machine, whose bytes burden no network.
  if (!channel_->passes_descriptors()) channel_ = pace(std::move(channel_), bandwidth_, true);
  return true;
}

// One GPU only: memory of one that a card reaches is of no use to others.
std::shared_ptr<GpuDirect> WorkerProcess::gpu_direct() {
  if (options_.gpudirect == "off" || !attach_.rdma->devices) return nullptr;
  GpuDirect::Options options = rdma_->direct_options(channel_->descriptor());
  if (options.devices && devices_.size() != 1) {
    options.devices = nullptr;
    options.why_none = "the session has several GPUs";
  }
  options.measures = options_.gpudirect != "on";
  options.tell = [this](const std::string& line) {
    send_link(options_.link, [&](wire::WorkerMessage::Builder message) { message.setTold(line); });
  };
  return std::make_shared<GpuDirect>(driver_, devices_.front(), std::move(options));
}

void WorkerProcess::serve() {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: short sleeps between looks at the GPU would take 50 us longer
  complete_options();
  if (options_.sandbox) hide_memory();
  ::prctl(PR_SET_PDEATHSIG, 0);  // from now on this process belongs to its client
  // The first message is right behind the session: whether it may give work. A session that begins without it would ask
  // for what it has.
  const bool first = hear_broker();
  std::thread([this, first] {
    for (bool there = first; there || meet_next_broker(); there = hear_broker()) {}
  }).detach();
  std::thread([this] { watch(); }).detach();
  bool told = false;
  attach_.over = [&](const std::string& why) {
    end(why);
    told = true;
  };
  const std::string why = serve_session(*channel_, attach_message_, driver_, attach_);
  if (!told) end(why);
}

void WorkerProcess::complete_options() {
  SessionOptions& session = attach_.session;
  session.devices = devices_;
  session.parts = parts_;
  session.printed = &*printed_;
  session.image_bytes_max = options_.image_bytes_max;
  session.content_bytes_max = options_.content_bytes_max;
  session.host_bytes_max = options_.host_bytes_max;
  session.spin = std::chrono::microseconds(options_.spin_us);
  session.launch_threads = std::min(options_.launch_threads, 3 * std::thread::hardware_concurrency() / 8);
  session.silence = std::chrono::seconds(options_.silence_seconds);
  session.exchange = &exchange_;
  session.peers = &door_;
  session.report = [this](const SessionUsage& used) { tell_usage(used); };
  session.turns.asks = true;
  session.turns.tell = [this](const scheduler::Activity& activity, std::uint64_t number, scheduler::Time since) {
    tell_activity(activity, number, since);
  };
  attach_.driver_band = displaced_band();
  attach_.running = [this](Session* now) { running_.set(now); };
}

void WorkerProcess::tell_usage(const SessionUsage& used) {
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto usage = message.initUsage();
    usage.setCalls(used.calls);
    set_all(usage.initBusyNs(static_cast<unsigned>(used.busy_ns.size())), used.busy_ns);
    usage.setWaitedNs(used.waited_ns);
    usage.setKnownBytes(used.known_bytes);
    usage.setKeptBytes(used.kept_bytes);
    usage.setImagesNotKept(used.images_not_kept);
    usage.setByRdma(attach_.rdma->taken);
  });
}

void WorkerProcess::tell_activity(const scheduler::Activity& activity, std::uint64_t number, scheduler::Time since) {
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto told = message.initActivity();
    told.setWants(activity.wants);
    told.setBusy(activity.busy);
    told.setNumber(number);
    told.setSinceNs(since.count());
  });
}

void WorkerProcess::tell_residency(const ResidencyNews& news) {
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto told = message.initResidency();
    told.setState(news.state);
    set_all(told.initAwayBytes(static_cast<unsigned>(news.away.size())), news.away);
    set_all(told.initRestBytes(static_cast<unsigned>(news.rest.size())), news.rest);
    told.setHostBytes(news.host_bytes);
    told.setDiskBytes(news.disk_bytes);
    told.setRefusal(news.refusal);
    told.setBusy(news.busy);
    told.setOrder(news.order);
  });
}

void WorkerProcess::want_room(const RoomWish& wish) {
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto told = message.initWantRoom();
    told.setRequest(wish.request);
    set_all(told.initBytes(static_cast<unsigned>(wish.bytes.size())), wish.bytes);
    told.setNeeded(wish.needed);
  });
}

void WorkerProcess::end(const std::string& why) {
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) { message.setEnded(why); });
}

bool WorkerProcess::hear_broker() {
  try {
    const auto packet = receive_link(options_.link);
    if (!packet) return true;
    if (packet->message.empty()) return false;
    Descriptor descriptor(packet->descriptor);
    MessageReader reader(packet->message);
    hear(reader.root<wire::WorkerMessage>(), std::move(descriptor));
  } catch (const std::exception&) {  // without that message, a turn perhaps, the session could wait for ever
    running_.stop("out of memory");
  }
  return true;
}

bool WorkerProcess::meet_next_broker() {
  broker_away_since_ = std::chrono::steady_clock::now();
  try {
    const Descriptor next = next_broker_.wait();
    if (next.number() < 0) return false;
    // What is said meanwhile goes to one of them.
    const auto shares = exchange_.hold();
    const auto links = door_.hold();
    const std::lock_guard client(away_mutex_);
    if (recount_to(next.number()) && ::dup3(next.number(), options_.link, O_CLOEXEC) >= 0) {
      exchange_.link_changed();
      running_.hear_of_new_broker();
      broker_away_since_ = broker_there;
    }
  } catch (const std::exception&) {  // most likely there was no memory; the broker sees that it was not told all
  }
  return true;  // where it is gone already, the link says so again
}

bool WorkerProcess::recount_to(int next) const {
  const auto kept = [&](wire::WorkerMessage::Builder message) { message.setKept(data_of(record_)); };
  const auto recounted = [&](wire::WorkerMessage::Builder message) { describe_absence(message.initRecounted()); };
  return recount(next, kept, account_->descriptor()) && exchange_.recount_to(next) && door_.recount_to(next) &&
         recount(next, recounted);
}

void WorkerProcess::hear(wire::WorkerMessage::Reader message, Descriptor descriptor) {
  switch (message.which()) {
    case wire::WorkerMessage::FETCHED: exchange_.heard(message.getFetched(), std::move(descriptor)); return;
    case wire::WorkerMessage::UNSHARED: exchange_.heard_unshared(message.getUnshared()); return;
    case wire::WorkerMessage::ADMITTED: door_.heard_admitted(bytes_of(message.getAdmitted())); return;
    case wire::WorkerMessage::DIALLED: door_.heard(message.getDialled(), std::move(descriptor)); return;
    case wire::WorkerMessage::LANE: hear_lane(bytes_of(message.getLane()), std::move(descriptor)); return;
    case wire::WorkerMessage::TURN: {
      const auto told = message.getTurn();
      running_.hear_turn({.granted = told.getGranted(),
                          .quiet = told.getQuiet(),
                          .until = scheduler::Time(told.getUntilNs()),
                          .ahead = scheduler::Time(told.getAheadNs()),
                          .number = told.getNumber()});
      return;
    }
    case wire::WorkerMessage::EVICT: {
      const auto told = message.getEvict();
      std::vector<std::uint64_t> bytes;
      for (const std::uint64_t one : told.getLeaveBytes()) bytes.push_back(one);
      running_.hear_evict({.number = told.getNumber(),
                           .bytes = std::move(bytes),
                           .host_bytes_max = told.getHostBytesMax(),
                           .disk_bytes_max = told.getDiskBytesMax(),
                           .file = std::move(descriptor),
                           .patience = std::chrono::milliseconds(told.getPatienceMs())});
      return;
    }
    case wire::WorkerMessage::ROOM:
      running_.hear_room(message.getRoom().getRequest(), message.getRoom().getMade());
      return;
    case wire::WorkerMessage::NOTICE: running_.notify(message.getNotice().cStr()); return;
    case wire::WorkerMessage::STOP: running_.stop(message.getStop().cStr()); return;
    default: return;
  }
}

void WorkerProcess::hear_lane(std::span<const std::byte> lane_message, Descriptor descriptor) {
  if (descriptor.number() < 0) return;
  if (const auto peer = running_.read_peer(lane_message)) return meet_peer(std::move(descriptor), *peer);
  if (encrypted_lanes_) return encrypted_lanes_->asked(std::move(descriptor), lane_message);
  const LaneWish wish = read_lane(lane_message, attach_.lane_key);
  give_lane(make_socket_channel(descriptor.release(), wish.channel == 0 ? "the client" : "the client's bulk lane"),
            wish);
}

// A link goes by RDMA only where the session does: the client has allowed then that others may read what goes by it.
std::shared_ptr<rdma::OpenedDevices> WorkerProcess::rdma_of_link(int connection) const {
  return attach_.rdma->taken ? rdma_->offer(connection)->devices : nullptr;
}

// On a thread of its own, because a handshake takes as long as the other end likes.
void WorkerProcess::meet_peer(Descriptor descriptor, const PeerWish& wish) {
  if (peers_met_ >= limits::links_max) return;
  ++peers_met_;
  std::thread([this, wish, number = descriptor.release()] {
    try {
      const std::string peer = "another host's worker";
      const std::span<const std::byte> key(wish.key);
      auto channel = wish.encrypted ? accept_by_key(number, peer, key.first(limits::lane_name_bytes),
                                                    key.subspan(limits::lane_name_bytes))
                                    : make_socket_channel(number, peer);
      if (const auto devices = wish.rdma ? rdma_of_link(number) : nullptr)
        channel = rdma::hand_over(*channel, devices, {}).go_on(std::move(channel));
      running_.take_peer(pace(std::move(channel), bandwidth_, /*first=*/false), wish);
    } catch (const std::exception&) {  // it was not that worker after all, or it is gone
    } catch (const kj::Exception&) {}
    --peers_met_;
  }).detach();
}

// By RDMA both ends meet first, and a client that comes back says more. That takes as long as it likes, so it is waited
// for elsewhere: this may be the thread that hears the broker.
void WorkerProcess::give_lane(std::unique_ptr<Channel> lane, const LaneWish& wish) {
  const bool by_rdma = wish.known && attach_.rdma->taken;
  if (!wish.resumes && !by_rdma) return running_.take_lane(paced(std::move(lane), wish), wish);
  if (!wish.known || (wish.resumes && !attach_.session.resumption) || lanes_met_ > limits::lanes_max) return;
  ++lanes_met_;
  std::thread([this, wish, by_rdma, lane = std::move(lane)]() mutable {
    if (wish.resumes) {
      attach_.session.resumption->claim(std::move(lane), [&](Channel& connection) -> GoOn {
        GoOn go_on = by_rdma ? meet_by_rdma(connection, *attach_.rdma, wish.channel != 0) : GoOn();
        return [this, wish, go_on](std::unique_ptr<Channel> met) {
          return paced(go_on ? go_on(std::move(met)) : std::move(met), wish);
        };
      });
    } else if (auto taken = lane_by_rdma(std::move(lane), *attach_.rdma)) {
      running_.take_lane(paced(std::move(taken), wish), wish);
    }
    --lanes_met_;
  }).detach();
}

std::unique_ptr<Channel> WorkerProcess::paced(std::unique_ptr<Channel> lane, const LaneWish& wish) {
  if (lane->passes_descriptors()) return lane;
  return pace(std::move(lane), bandwidth_, /*first=*/wish.resumes && wish.channel == 0);
}

void WorkerProcess::tell_resuming(const Resumption::Break* what, const std::string& peer) {
  const std::lock_guard lock(away_mutex_);
  client_away_.reset();
  if (what) client_away_ = ClientAway{static_cast<std::uint64_t>(std::time(nullptr)), what->why};
  send_link(options_.link, [&](wire::WorkerMessage::Builder message) {
    auto told = message.initResuming();
    told.setPeer(peer);
    describe_absence(told);
  });
}

void WorkerProcess::describe_absence(wire::Resuming::Builder told) const {
  if (!client_away_) return;
  told.setSince(client_away_->since);
  told.setWhy(client_away_->why);
}

// While a call to the driver does not come back, perhaps because it waits for a kernel that never ends, the session's
// loop stands still: it hears neither its client, which gives it up after as long a silence, nor the broker, and keeps
// to no bound of time. While this process does not run at all, the broker sees that it no longer says so.
void WorkerProcess::watch() {
  std::uint64_t rounds = 0;
  AccountSlot& account = account_->slot(attach_.session.account_place->slot);
  for (unsigned still = 0; still <= options_.silence_seconds; std::this_thread::sleep_for(std::chrono::seconds(1))) {
    ++account.alive;
    const auto now = running_.rounds();
    still = now && *now == std::exchange(rounds, *now) ? still + 1 : 0;
  }
  end("a call to the driver has not come back for " + std::to_string(options_.silence_seconds) + " s");
  std::_Exit(0);
}

}  // namespace fargpu::server
