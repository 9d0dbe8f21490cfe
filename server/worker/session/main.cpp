// fargpu-worker: executes one session. Started by fargpud, never by hand; what it is told comes over the link.

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <thread>

#include "attach.h"
#include "server/worker/base/driver_library.h"
#include "facts.h"
#include "sandbox.h"
#include "server/worker/memory/link_exchange.h"
#include "partition.h"
#include "protocol/channel_tls.h"
#include "protocol/handshake.h"
#include "server/quota/bandwidth.h"
#include "server/quota/paced_channel.h"
#include "server/sm_groups.h"
#include "server/worker_link.h"

namespace fargpu::server {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // their shadow memory lies where mappings would go, and their reports start programs
#else
constexpr bool sanitized = false;
#endif

// The kernel places mappings below the largest possible stack. With a limit of 48 TiB they begin near 0x4fff_0000_0000 instead of
// 0x7fff_0000_0000, where a client process has its own: so what the driver places by itself (module globals) can be reserved there.
// Takes effect at exec. Returns whether the process is displaced.
bool displace(char** arguments) {
  if (sanitized) return false;
  constexpr rlim_t displacement = 0x3000'0000'0000;
  constexpr const char* mark = "FARGPU_WORKER_DISPLACED";
  constexpr std::size_t thread_stack_bytes = 8u << 20;
  if (std::getenv(mark)) {
    ::unsetenv(mark);
    // The limit is also the default size of thread stacks, of which nobody has 48 TiB.
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, thread_stack_bytes);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
    const rlimit usual{thread_stack_bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_STACK, &usual);
    return true;
  }
  const rlimit large{displacement, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_STACK, &large) != 0) return false;  // a hard limit: globals may then meet the client's mappings
  ::setenv(mark, "1", 1);
  ::execv("/proc/self/exe", arguments);
  return false;
}

struct Options {
  std::string driver;
  int link = -1;
  std::string devices;
  std::string sm_groups;
  std::string user;
  bool sandbox = false;
  bool warm_context = false;
  std::uint64_t image_bytes_max = 8ull << 30;
  std::uint64_t host_bytes_max = 0;
  long spin_us = 0;
  unsigned launch_threads = 0;
  unsigned silence_seconds = 30;
};

int fail(int link, const std::string& text) {
  send_link(link, [&](wire::WorkerMessage::Builder message) { message.setFailed(text); });
  return 1;
}

// The connection's keys are made from the ticket, which the broker gave to the client and to us: nobody else can finish the handshake.
std::unique_ptr<Channel> accept_session(int descriptor, const std::string& peer, wire::Session::Reader session) {
  const auto bytes = [](capnp::Data::Reader data) { return std::span(reinterpret_cast<const std::byte*>(data.begin()), data.size()); };
  return accept_by_key(descriptor, peer, bytes(session.getTicketName()), bytes(session.getTicket()));
}

/// Lanes of a session that speaks TLS. Whoever knows the key's name gets a handshake, on a thread of its own, because it takes as long as
/// the other end likes; only the client has the rest of the key.
class EncryptedLanes {
 public:
  /// `give`: what becomes of a connection after its handshake.
  EncryptedLanes(std::span<const std::byte> key, std::function<void(std::unique_ptr<Channel>)> give)
      : name_(key.first(std::min(key.size(), limits::lane_name_bytes))), secret_(key.subspan(name_.size())), give_(std::move(give)) {}

  void asked(Descriptor descriptor, std::span<const std::byte> lane_message) {
    if (!asks_for_lane(lane_message, name_) || under_way_ >= limits::lanes_max) return;
    ++under_way_;
    std::thread([this, descriptor = descriptor.release()] {
      try {
        give_(accept_by_key(descriptor, "the client's bulk lane", name_, secret_));
      } catch (const std::exception&) {  // it was not the client after all, or it is gone
      }
      --under_way_;
    }).detach();
  }

 private:
  const std::span<const std::byte> name_, secret_;
  const std::function<void(std::unique_ptr<Channel>)> give_;
  std::atomic<unsigned> under_way_{0};
};

bool said_ready = false;  // to the broker, to which it is a session's end then that nothing goes on here

int run(const Options& options) {
  // The driver itself offers no other devices than these: nothing a client sends can name one, wherever a device number may stand.
  if (!options.devices.empty()) ::setenv("CUDA_VISIBLE_DEVICES", options.devices.c_str(), 1);
  try {
    if (!options.user.empty()) become_user(options.user);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // forgotten with the former user
    if (options.sandbox && !sanitized) enter_sandbox();
  } catch (const SystemError& error) {
    return fail(options.link, error.what());
  }
  static DriverTable driver;
  try {
    load_driver(options.driver, driver);
  } catch (const DriverError& error) {
    return fail(options.link, error.what());
  }
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NO_DEVICE && !options.devices.empty())
      return fail(options.link, "the driver has none of the devices " + options.devices);
    const char* name = "?";
    driver.cuGetErrorName(result, &name);
    return fail(options.link, "the driver '" + options.driver + "' does not initialise: " + name);
  }
  int count = 0;
  driver.cuDeviceGetCount(&count);
  std::vector<int> devices(static_cast<std::size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  if (!options.devices.empty() && std::count(options.devices.begin(), options.devices.end(), ',') + 1 != count)
    return fail(options.link, "the driver does not have all of the devices " + options.devices);
  if (devices.empty()) return fail(options.link, "the driver '" + options.driver + "' has no devices");
  std::vector<std::vector<CUdevResource>> parts;
  if (!options.sm_groups.empty()) {
    const auto groups = parse_sm_groups(options.sm_groups);
    if (!groups || groups->size() != devices.size())
      return fail(options.link, "groups of multiprocessors of so many devices: " + options.sm_groups);
    try {
      for (std::size_t i = 0; i < devices.size(); ++i) parts.push_back(choose_sm_groups(driver, devices[i], (*groups)[i]));
    } catch (const DriverError& error) {
      return fail(options.link, error.what());
    }
  }
  if (options.warm_context) {  // what takes longest of a session's start, done before there is one
    CUcontext context{};
    driver.cuDevicePrimaryCtxRetain(&context, devices.front());
  }
  if (!send_link(options.link, [&](wire::WorkerMessage::Builder message) {
        auto ready = message.initReady();
        write_facts(driver, devices, ready.initFacts());
        auto groups = ready.initSmGroups(static_cast<unsigned>(devices.size()));
        for (unsigned i = 0; i < groups.size(); ++i) groups.set(i, count_sm_groups(driver, devices[i]));
      }))
    return 1;
  said_ready = true;

  PrintedByKernels printed;
  // The session, or the word to end.
  AttachOptions attach;
  std::unique_ptr<Channel> channel;
  std::shared_ptr<TenantAccount> account;
  std::shared_ptr<Bandwidth> bandwidth;
  std::vector<std::byte> attach_message;
  std::vector<std::byte> session_lane_key;
  bool session_is_encrypted = false;
  {
    auto packet = receive_link(options.link);
    if (!packet || packet->message.empty()) return 0;  // the broker is gone
    {
      MessageReader reader(packet->message);
      if (!reader.root<wire::WorkerMessage>().isAccount() || packet->descriptor < 0) return 0;
      account = std::make_shared<TenantAccount>(TenantAccount::open(packet->descriptor));
    }
    packet = receive_link(options.link);
    if (!packet || packet->message.empty()) return 0;
    MessageReader reader(packet->message);
    const auto message = reader.root<wire::WorkerMessage>();
    if (!message.isSession() || packet->descriptor < 0 || message.getSession().getSlot() >= account->slots()) return 0;
    attach.session_id = message.getSession().getId();
    attach.memory_limits.assign(devices.size(), message.getSession().getMemoryBytes());
    attach.account_place = AccountPlace{account, message.getSession().getSlot()};
    bandwidth = std::make_shared<Bandwidth>(AccountPlace{account, message.getSession().getSlot()});
    attach.image_folder = message.getSession().getImageFolder().cStr();
    attach.turns.work_max = std::chrono::seconds(message.getSession().getKernelSecondsMax());
    attach.scrub = message.getSession().getScrub();
    const auto bytes = message.getSession().getAttach();
    attach_message.assign(reinterpret_cast<const std::byte*>(bytes.begin()), reinterpret_cast<const std::byte*>(bytes.end()));
    const auto lane_bytes = message.getSession().getLaneKey();
    session_lane_key.assign(reinterpret_cast<const std::byte*>(lane_bytes.begin()), reinterpret_cast<const std::byte*>(lane_bytes.end()));
    const std::string peer = message.getSession().getPeer().cStr();
    if (message.getSession().getTicketName().size() == 0) {
      channel = make_socket_channel(packet->descriptor, peer);
    } else {
      session_is_encrypted = true;
      try {
        channel = accept_session(packet->descriptor, peer, message.getSession());
        attach_message = receive_control(*channel, limits::connect_timeout);
      } catch (const std::exception& error) {  // no handshake, or no attach
        send_link(options.link, [&](wire::WorkerMessage::Builder ended) { ended.setEnded(std::string("no session: ") + error.what()); });
        return 0;
      }
    }
  }
  // By a Unix socket come programs of this machine, whose bytes burden no network.
  if (!channel->passes_descriptors()) channel = pace(std::move(channel), bandwidth, true);
  ::prctl(PR_SET_TIMERSLACK, 1000);  // nanoseconds: short sleeps between looks at the GPU would take 50 us longer
  attach.devices = devices;
  attach.parts = parts;
  attach.printed = &printed;
  attach.image_bytes_max = options.image_bytes_max;
  attach.host_bytes_max = options.host_bytes_max;
  attach.spin = std::chrono::microseconds(options.spin_us);
  attach.launch_threads = std::min(options.launch_threads, 3 * std::thread::hardware_concurrency() / 8);
  attach.silence = std::chrono::seconds(options.silence_seconds);
  attach.driver_band = displaced_band();
  if (options.sandbox) hide_memory();
  attach.report = [&](const SessionUsage& used) {
    send_link(options.link, [&](wire::WorkerMessage::Builder message) {
      const auto write = [](const std::vector<std::uint64_t>& from, auto to) {
        for (unsigned i = 0; i < from.size(); ++i) to.set(i, from[i]);
      };
      auto usage = message.initUsage();
      write(used.memory_bytes, usage.initMemoryBytes(static_cast<unsigned>(used.memory_bytes.size())));
      usage.setCalls(used.calls);
      write(used.busy_ns, usage.initBusyNs(static_cast<unsigned>(used.busy_ns.size())));
      usage.setWaitedNs(used.waited_ns);
    });
  };
  attach.turns.asks = true;
  attach.turns.tell = [&](const scheduler::Activity& activity, std::uint64_t number, scheduler::Time since) {
    send_link(options.link, [&](wire::WorkerMessage::Builder message) {
      auto told = message.initActivity();
      told.setWants(activity.wants);
      told.setBusy(activity.busy);
      told.setNumber(number);
      told.setSinceNs(since.count());
    });
  };
  // From now on this process belongs to its client. If the broker dies, the session goes on, and nothing but the client ends it; the
  // next broker of this host does not know of it.
  ::prctl(PR_SET_PDEATHSIG, 0);
  // The broker's word to stop ends the session; what other sessions share comes by it too.
  static std::mutex mutex;
  static Session* session = nullptr;
  static std::string stop_why;
  static std::optional<scheduler::Turn> turn;
  attach.running = [](Session* now) {
    const std::lock_guard lock(mutex);
    session = now;
    if (session && turn) session->hear_turn(*turn);
    if (session && !stop_why.empty()) session->stop(stop_why);
  };
  static LinkExchange exchange(options.link);
  static const bool encrypted = session_is_encrypted;
  static std::vector<std::byte> lane_key;
  lane_key = std::move(session_lane_key);
  attach.lane_key = lane_key;
  const auto give_lane = [bandwidth](std::unique_ptr<Channel> lane, bool known) {
    if (!lane->passes_descriptors()) lane = pace(std::move(lane), bandwidth, false);
    const std::lock_guard lock(mutex);
    take_lane(session, std::move(lane), known);
  };
  static EncryptedLanes encrypted_lanes(lane_key, [give_lane](std::unique_ptr<Channel> lane) { give_lane(std::move(lane), true); });
  attach.exchange = &exchange;
  // False when the broker is gone.
  const auto hear = [link = options.link, give_lane] {
    try {
      const auto packet = receive_link(link);
      if (!packet) return true;
      if (packet->message.empty()) return false;
      Descriptor descriptor(packet->descriptor);
      MessageReader reader(packet->message);
      const auto message = reader.root<wire::WorkerMessage>();
      if (message.isFetched()) exchange.heard(message.getFetched(), std::move(descriptor));
      if (message.isUnshared()) exchange.heard_unshared(message.getUnshared());
      if (message.isLane()) {
        const auto first = message.getLane();
        if (descriptor.number() < 0) return true;
        const std::span<const std::byte> asked(reinterpret_cast<const std::byte*>(first.begin()), first.size());
        if (encrypted) encrypted_lanes.asked(std::move(descriptor), asked);
        else give_lane(make_socket_channel(descriptor.release(), "the client's bulk lane"), asks_for_lane(asked, lane_key));
        return true;
      }
      const std::lock_guard lock(mutex);
      if (message.isTurn()) {
        const auto told = message.getTurn();
        turn = scheduler::Turn{.granted = told.getGranted(),
                               .quiet = told.getQuiet(),
                               .until = scheduler::Time(told.getUntilNs()),
                               .ahead = scheduler::Time(told.getAheadNs()),
                               .number = told.getNumber()};
        if (session) session->hear_turn(*turn);
      }
      if (!message.isStop()) return true;
      stop_why = message.getStop().cStr();
      if (session) session->stop(stop_why);
      return true;
    } catch (const std::exception&) {  // without that word, a turn perhaps, the session could wait for ever
      const std::lock_guard lock(mutex);
      stop_why = "out of memory";
      if (session) session->stop(stop_why);
      return true;
    }
  };
  // The first word is right behind the session: whether it may give work. Who begins without it asks for what he has.
  if (hear()) {
    std::thread([hear] {
      while (hear()) {}
    }).detach();
  }

  // Of whose executor a driver call does not come back, because it waits for a kernel that never ends perhaps: such a session hears neither
  // its client, which gives it up after as long a silence, nor the broker, and keeps to no bound of time.
  std::thread([link = options.link, seconds = options.silence_seconds] {
    std::uint64_t rounds = 0;
    for (unsigned still = 0; still <= seconds; std::this_thread::sleep_for(std::chrono::seconds(1))) {
      const std::lock_guard lock(mutex);
      const std::uint64_t now = session ? session->rounds() : 0;
      still = session && now == std::exchange(rounds, now) ? still + 1 : 0;
    }
    send_link(link, [&](wire::WorkerMessage::Builder message) {
      message.setEnded("a call to the driver has not come back for " + std::to_string(seconds) + " s");
    });
    std::_Exit(0);
  }).detach();

  const std::string why = serve_session(*channel, attach_message, driver, attach);
  send_link(options.link, [&](wire::WorkerMessage::Builder message) { message.setEnded(why); });
  return 0;
}

// Whatever is thrown, for the want of memory most likely, before there is a session that could end by it.
int run_to_an_end(const Options& options) {
  try {
    return run(options);
  } catch (const std::exception& error) {
    const std::string why = std::string("no session: ") + error.what();
    if (!said_ready) return fail(options.link, why);
    send_link(options.link, [&](wire::WorkerMessage::Builder message) { message.setEnded(why); });
    return 0;
  }
}

}  // namespace
}  // namespace fargpu::server

int main(int argc, char** argv) {
  using namespace fargpu::server;
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);           // the broker decides when workers end
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // without a session there is nothing to outlive the broker for
  displace(argv);
  Options options;
  CLI::App app("Executes one fargpu session. Started by fargpud.", "fargpu-worker");
  app.add_option("--driver", options.driver, "Driver library, by path")->required();
  app.add_option("--link", options.link, "Descriptor of the link to the broker")->required();
  app.add_option("--devices", options.devices, "The driver's ordinals to offer, comma-separated (default: all)");
  app.add_option("--sm-groups", options.sm_groups,
                 "Groups of multiprocessors of each device that the session's kernels may be on: 0,1,2:4 (default: all)");
  app.add_option("--user", options.user, "Become this user first");
  app.add_flag("--sandbox", options.sandbox, "Give up what is not needed before the driver is loaded");
  app.add_flag("--warm-context", options.warm_context, "Create the first device's primary context before there is a session");
  app.add_option("--image-bytes-max", options.image_bytes_max, "Bytes kept there");
  app.add_option("--host-bytes-max", options.host_bytes_max, "Bytes of this host's memory that the session may take; 0 for no bound");
  app.add_option("--spin-us", options.spin_us, "Microseconds to poll before sleeping");
  app.add_option("--launch-threads", options.launch_threads,
                 "Threads that give kernels to the driver while many come; three eighths of the processors at most");
  app.add_option("--silence-seconds", options.silence_seconds, "Seconds of silence after which the client is taken for dead");
  CLI11_PARSE(app, argc, argv);
  const int status = run_to_an_end(options);
  // Tearing the driver down takes long and is the kernel's business anyway.
  std::_Exit(status);
}
