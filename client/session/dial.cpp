#include "dial.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <set>

#include "client/base/log.h"
#include "client/call/trace.h"
#include "client/connect/over_breaks.h"
#include "client/connect/pool_search.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "protocol/rdma/handover.h"
#include "protocol/text.h"
#include "protocol/tls.h"
#include "protocol/version.h"
#include "protocol/words.h"

namespace fargpu::client {
namespace {

void write_windows(const std::vector<Window>& windows, capnp::List<wire::Range>::Builder list) {
  for (unsigned i = 0; i < windows.size(); ++i) {
    list[i].setBase(windows[i].base);
    list[i].setBytes(windows[i].bytes);
  }
}

// The one that the worker took.
Window window_taken(const std::vector<Window>& offered, wire::Range::Reader taken, const std::string& host) {
  for (const Window& window : offered)
    if (window.base == taken.getBase() && window.bytes == taken.getBytes()) return window;
  throw ProtocolError(host + " took an address window that was not offered");
}

// The worker has said that it shares memory, and sends it: from now on frames go through that.
std::unique_ptr<Channel> share_memory(std::unique_ptr<Channel> socket, std::uint64_t ring_bytes) {
  const auto deadline = std::chrono::steady_clock::now() + limits::connect_timeout;
  std::array<std::byte, 1> word;
  int memory;
  while ((memory = socket->receive_descriptor()) < 0) {
    if (socket->receive_some(word) > 0) continue;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) throw ChannelClosed(socket->peer() + " does not share the memory that it promised");
    socket->wait({.readable = true}, left);
  }
  const auto closed = [](const int* descriptor) { ::close(*descriptor); };
  const std::unique_ptr<int, decltype(closed)> owner(&memory, closed);
  return make_shared_channel(std::move(socket), memory, ring_bytes, true);
}

// A connection of a session that goes by RDMA, which comes back: by TCP if RDMA works no more, unless nothing else will
// do. `useless`: it met the last time, and carried nothing.
GoOn meet_by_rdma(Channel& connection, wire::RdmaEnd::Reader heard, bool useless, const RdmaChoice& rdma,
                  const Config& config, const std::string& host) {
  const bool tries = !useless || rdma.required;
  const auto handed = std::make_shared<rdma::HandedOver>(rdma::hand_over(connection, tries ? rdma.devices : nullptr,
                                                                         tries ? "" : "RDMA has carried nothing there",
                                                                         heard, limits::connect_timeout));
  if (!handed->end) {
    if (rdma.required) throw ChannelClosed("no RDMA: " + handed->text);
    log::info("{}: a connection of the session goes on by TCP and not by RDMA: {}", host, handed->text);
    return {};
  }
  return [handed, wrap = config.wrap_shared](std::unique_ptr<Channel> met) {
    auto channel = std::move(*handed).go_on(std::move(met));
    return wrap ? wrap(std::move(channel)) : std::move(channel);
  };
}

// A connection that the session's worker has taken as a bulk lane. `devices`: of a session that goes by RDMA, on whose
// lanes nothing else will do.
std::unique_ptr<Channel> open_lane(const Connect& connect, const LaneRequest& request, const std::string& host,
                                   const std::shared_ptr<rdma::OpenedDevices>& devices) {
  auto channel = connect(request);
  if (devices) {
    auto handed = rdma::hand_over(*channel, devices, {});
    if (!handed.end) throw ChannelClosed("no RDMA: " + handed.text);
    channel = std::move(handed).go_on(std::move(channel));
  }
  const auto message = receive_control(*channel, limits::connect_timeout);
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isLaneAnswer()) throw ProtocolError(host + " did not answer to a bulk lane");
  check_failure(control.getLaneAnswer(), host);
  return channel;
}

// Where a driver places its variables differs from worker to worker, and bands of several must not meet. A driver
// begins at the upper end and goes downwards.
constexpr std::uint64_t band_of_several = std::uint64_t{64} << 30;

/// Another worker's band may be free.
struct BandTaken : DialError {
  explicit BandTaken(const std::string& text) : DialError(CUDA_ERROR_SYSTEM_NOT_READY, text) {}
};

// The program has heard of these devices before the session began: they must be the ones.
std::vector<Device> as_told(const std::vector<Device>& found, const std::vector<Device>& told,
                            const std::string& host) {
  for (const Device& device : told) {
    if (device.worker_ordinal < 0) continue;
    const auto number = static_cast<std::size_t>(device.worker_ordinal);
    if (number >= found.size() ||
        !std::equal(std::begin(device.uuid.bytes), std::end(device.uuid.bytes), std::begin(found[number].uuid.bytes)))
      throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                      host + " has other devices now than it had when the program began; start the program again");
  }
  return told;
}

// The worker keeps a session for a client that may come back, unless it is told that this one does not. Returns when it
// has ended the session, which counts for the tenant until then.
void say_goodbye(std::unique_ptr<Channel> connection) noexcept {
  constexpr auto patience = std::chrono::seconds(1);
  try {
    ResumableChannel channel(std::move(connection), limits::resume_log_bytes,
                             {.broke = {}, .impatience = [](const ResumableChannel::Break& what) { return what.why; }});
    send_control(channel, 2, [](wire::Control::Builder control) {
      control.initGoodbye().setText("the session cannot be used here");
    });
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::array<std::byte, 4096> rest;
    do {
      channel.wait({.readable = true}, patience);
      channel.receive_some(rest);
    } while (!channel.resuming() && std::chrono::steady_clock::now() < deadline);
  } catch (const std::exception&) {  // its end
  }
}

/// A session that the worker has begun, until it has begun here too.
class BegunThere {
 public:
  BegunThere(std::unique_ptr<Channel>& connection, rdma::HandedOver& by_rdma, bool resumes)
      : connection_(connection), by_rdma_(by_rdma), resumes_(resumes) {}
  BegunThere(const BegunThere&) = delete;
  BegunThere& operator=(const BegunThere&) = delete;
  ~BegunThere() {
    if (resumes_ && connection_) say_goodbye(std::move(by_rdma_).go_on(std::move(connection_)));
  }

 private:
  std::unique_ptr<Channel>& connection_;  // null as soon as a session has it
  rdma::HandedOver& by_rdma_;             // by which it goes, if it does not go by the connection
  const bool resumes_;                    // if not, it ends with its connection
};

// What is reserved for a session that may not come to be: another host's session needs the same addresses.
class OfferedWindows {
 public:
  explicit OfferedWindows(unsigned origin)
      : device(reserve_device_windows(origin)), host(reserve_host_windows(origin)) {}
  OfferedWindows(const OfferedWindows&) = delete;
  OfferedWindows& operator=(const OfferedWindows&) = delete;
  ~OfferedWindows() {
    for (const auto* const list : std::initializer_list<const std::vector<Window>*>{&device, &host, &band})
      for (const Window& window : *list)
        if (!kept_.contains(window.base)) release_window(window);
  }
  void keep(const Terms& terms) { kept_ = {terms.device_window.base, terms.host_window.base, terms.driver_band.base}; }

  const std::vector<Window> device;
  const std::vector<Window> host;
  std::vector<Window> band;

 private:
  std::set<std::uint64_t> kept_;
};

void write_attach(wire::Attach::Builder attach, std::span<const std::byte> ticket, const Config& config,
                  const Channel& channel, bool resumes, const RdmaChoice& rdma, const Place& place,
                  const OfferedWindows& offered) {
  attach.setTicket(data_of(ticket));
  write_versions(attach);
  attach.setDriverVersion(static_cast<std::uint32_t>(config.driver_version));
  attach.setCompression(static_cast<wire::Compression>(config.compression));
  attach.setHearsNotices(true);
  attach.setHearsReturns(trace::enabled);
  attach.setResumes(resumes);
  attach.setOrigin(static_cast<std::uint8_t>(place.origin));
  attach.setSharedMemory(channel.passes_descriptors() && config.transport != Transport::tcp && !rdma.required);
  attach.setRdma(rdma.devices != nullptr);
  write_windows(offered.device, attach.initDeviceWindows(static_cast<unsigned>(offered.device.size())));
  write_windows(offered.host, attach.initHostWindows(static_cast<unsigned>(offered.host.size())));
}

// Null if the session ends with its connection.
std::shared_ptr<Resumption> begin_resumption(const Connect& connect, wire::AttachAnswer::Reader answer,
                                             const Config& config, const std::string& host, const RdmaChoice& rdma,
                                             bool by_rdma) {
  if (!answer.hasResumeSecret()) return nullptr;
  decltype(Resumption::Terms::meet) meet;
  if (by_rdma)
    meet = [rdma, config, host](Channel& connection, wire::RdmaEnd::Reader heard, bool useless) {
      return meet_by_rdma(connection, heard, useless, rdma, config, host);
    };
  return std::make_shared<Resumption>(connect,
                                      Resumption::Terms{.session = answer.getSessionId(),
                                                        .lane_key = copy_of(answer.getLaneKey()),
                                                        .secret = copy_of(answer.getResumeSecret()),
                                                        .host = host,
                                                        .time = std::chrono::milliseconds(answer.getResumeMs()),
                                                        .meet = std::move(meet)});
}

// `resumption`, `devices`: null where lanes do not come back, and where they do not go by RDMA.
decltype(Terms::open_lane) lane_opener(Connect connect, wire::AttachAnswer::Reader answer, const std::string& host,
                                       std::shared_ptr<Resumption> resumption,
                                       std::shared_ptr<rdma::OpenedDevices> devices) {
  return [connect = std::move(connect), session = answer.getSessionId(), key = copy_of(answer.getLaneKey()), host,
          resumption = std::move(resumption), devices = std::move(devices)]() -> std::shared_ptr<Channel> {
    const std::uint32_t number = resumption ? resumption->next_lane() : 0;
    auto lane = open_lane(connect, {.session = session, .key = key, .channel = number}, host, devices);
    return resumption ? resumption->wrap(std::move(lane), number) : std::move(lane);
  };
}

// The band in which the host's driver places its variables, which must lie at the same addresses here. Throws
// DialError.
Window reserve_driver_band(wire::Range::Reader named, const Place& place, const std::string& host,
                           OfferedWindows& offered) {
  Window band{named.getBase(), named.getBytes()};
  // Pages of ours are put over parts of it later, so it must be of a shape that cannot reach beyond what is reserved
  // here.
  constexpr std::uint64_t unit = 1u << 30, most = 1ull << 40;
  if (band.base % unit != 0 || band.bytes % unit != 0 || band.bytes > most)
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    host + " names addresses for its driver's variables that no host of ours has");
  if (!place.devices.empty() && band.bytes > band_of_several) {
    band.base += band.bytes - band_of_several;
    band.bytes = band_of_several;
  }
  if (band.bytes > 0 && !reserve_window(band)) {
    throw BandTaken(
        fmt::format("the addresses {:#x} to {:#x}, where the GPU host's driver places its variables, are in use "
                    "in this process; start it again, or without what maps memory there",
                    band.base, band.base + band.bytes));
  }
  if (band.bytes > 0) offered.band.push_back(band);
  return band;
}

std::bitset<opcode_max + 1> read_opcodes(wire::AttachAnswer::Reader answer) {
  std::bitset<opcode_max + 1> served;
  const auto opcodes = answer.getOpcodes();
  for (unsigned i = 0; i <= opcode_max && i / 8 < opcodes.size(); ++i) served.set(i, opcodes[i / 8] >> i % 8 & 1);
  return served;
}

bool wants_rdma(const Config& config, const PoolHost& host) {
  return config.transport == Transport::rdma || host.transport == PoolHost::Transport::rdma;
}

// By the loopback a program sends faster than it hashes. A tunnel that begins there is a reason to ask for it.
ContentCache content_cache_for(const Config& config, const Channel& channel) {
  if (config.content_cache != ContentCache::usual) return config.content_cache;
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getpeername(channel.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return ContentCache::automatic;
  const auto& four = reinterpret_cast<const sockaddr_in&>(address);
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  const bool loopback = address.ss_family == AF_UNIX ||
                        (address.ss_family == AF_INET && ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) ||
                        (address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr));
  return loopback ? ContentCache::never : ContentCache::automatic;
}

}  // namespace

void require_transport(const Config& config, const ControlConnection& broker) {
  const bool local = !broker.address().socket.empty();
  if (config.transport == Transport::shm && !local) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "FARGPU_TRANSPORT=shm, but " + broker.name() +
                        " is on another machine, in another container, or shares no memory; unset it");
  }
  if (config.transport == Transport::tcp && local)
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "FARGPU_TRANSPORT=tcp, but " + broker.name() + " is no TCP address; unset one of them");
}

std::unique_ptr<Session> attach(std::unique_ptr<Channel> channel, std::span<const std::byte> ticket,
                                const Config& config, const std::string& host_name, Connect connect,
                                const RdmaChoice& rdma, const Place& place) {
  OfferedWindows offered(place.origin);
  if (offered.device.empty() || offered.host.empty()) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "no address range for device memory is free in this process (is the address space limited, "
                    "`ulimit -v`?)");
  }
  send_control(*channel, 1, [&](wire::Control::Builder control) {
    write_attach(control.initAttach(), ticket, config, *channel, connect != nullptr, rdma, place, offered);
  });
  auto message = receive_control(*channel, limits::lease_timeout);
  rdma::HandedOver by_rdma;
  if (rdma.devices) {
    MessageReader reader(message);
    if (const auto control = reader.root<wire::Control>(); control.isRdma()) {
      by_rdma = rdma::hand_over(*channel, rdma.devices, {}, control.getRdma());
      message = receive_control(*channel, limits::lease_timeout);
    }
  }
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isAttachAnswer()) throw ProtocolError(host_name + " did not answer to attach");
  const auto answer = control.getAttachAnswer();
  check_failure(answer.getFailure(), host_name);
  const BegunThere begun(channel, by_rdma, answer.hasResumeSecret());
  if (!speaks(answer.getProtocolVersion()))
    throw ProtocolError(
        fmt::format("{} answered with protocol {}, which it was not offered", host_name, answer.getProtocolVersion()));

  if (answer.getOrigin() != place.origin) {
    throw DialError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    host_name +
                        " is of a release that serves no program with GPUs of several hosts; update it, or "
                        "leave FARGPU_HOSTS unset");
  }
  const std::string no_rdma =
      by_rdma.text.empty() ? "the host says: " + printable(answer.getRdmaRefusal().cStr(), 512) : by_rdma.text;
  if (rdma.devices && !by_rdma.end) {
    if (rdma.required) throw DialError::of_rdma(host_name + ": no RDMA: " + no_rdma);
    log::info("{}: the session goes by TCP and not by RDMA: {}", host_name, no_rdma);
  }

  Terms terms;
  terms.host = host_name;
  terms.origin = place.origin;
  terms.peer = place.peer;
  terms.session_id = answer.getSessionId();
  const bool shares_memory = answer.getRingBytes() > 0;
  terms.lanes = shares_memory ? 0 : config.lanes;  // large copies go through memory then
  terms.lanes_fixed = config.lanes_fixed;
  if (answer.getCompression() && !shares_memory) terms.compression = config.compression;
  if (!shares_memory) terms.contents = {content_cache_for(config, *channel), answer.getContentBytes()};
  terms.one_process = config.one_process;
  std::shared_ptr<Resumption> resumption;
  if (connect && answer.hasLaneKey() && !shares_memory) {
    resumption = begin_resumption(connect, answer, config, host_name, rdma, by_rdma.end.has_value());
    terms.resumes = resumption != nullptr;
    terms.open_lane =
        lane_opener(std::move(connect), answer, host_name, resumption, by_rdma.end ? rdma.devices : nullptr);
  }
  terms.credit_bytes = answer.getCreditBytes();
  if (terms.credit_bytes < limits::credit_bytes_min)
    throw ProtocolError(host_name + " grants less credit for calls than a session needs");
  if (answer.getSilenceMs() > 0) terms.silence = std::chrono::milliseconds(answer.getSilenceMs());
  terms.device_window = window_taken(offered.device, answer.getDeviceWindow(), host_name);
  terms.host_window = window_taken(offered.host, answer.getHostWindow(), host_name);
  terms.driver_band = reserve_driver_band(answer.getDriverBand(), place, host_name, offered);
  terms.facts = read_facts(answer.getFacts());
  if (!place.devices.empty()) terms.facts.devices = as_told(terms.facts.devices, place.devices, host_name);
  else if (config.visible_set) select_devices(terms.facts, config.visible_devices);
  terms.worker_opcodes = read_opcodes(answer);
  if (terms.facts.driver_version < config.driver_version) {
    throw DialError(
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        fmt::format("the driver at {} is of CUDA level {}, but programs here see {}; set FARGPU_DRIVER_VERSION={} "
                    "or update the driver there",
                    host_name, terms.facts.driver_version, config.driver_version, terms.facts.driver_version));
  }
  const auto go_on_by = [&](std::unique_ptr<Channel> other) {
    channel = config.wrap_shared ? config.wrap_shared(std::move(other)) : std::move(other);
  };
  if (by_rdma.end) go_on_by(std::move(by_rdma).go_on(std::move(channel)));
  if (shares_memory) go_on_by(share_memory(std::move(channel), answer.getRingBytes()));
  std::shared_ptr<Channel> line = std::move(channel);
  if (resumption) line = resumption->wrap(std::move(line), 0);
  auto session = std::make_unique<Session>(std::move(line), std::move(terms), config.spin);
  offered.keep(session->terms);
  try {
    session->start();
  } catch (...) {
    session.release()->lose(words("its threads cannot be started"));  // one of them may run
    throw;
  }
  return session;
}

namespace {

// Attaches to the worker that the ticket is for.
std::unique_ptr<Session> attach_by(const Ticket& ticket, ControlConnection& broker, const PoolHost& host,
                                   const Config& config, const Place& place) {
  // Where keys were made from the ticket, nothing else is shown of it.
  const std::span<const std::byte> shown =
      ticket.name.empty() ? std::span<const std::byte>(ticket.secret) : std::span<const std::byte>();
  const PoolHost near = broker.address();
  const Connect connect = [near, encrypted = !ticket.name.empty()](const LaneRequest& request) {
    return connect_lane(near, encrypted, request);
  };
  Place there = place;
  if (host.socket.empty()) there.peer = {host.host, host.port, broker.far_encrypted()};
  std::unique_ptr<Session> session;
  try {
    auto channel = connect_session(near, ticket);
    const RdmaChoice rdma = choose_rdma(config, *channel, wants_rdma(config, host));
    if (!rdma.devices && !rdma.why_not.empty()) {
      if (rdma.required) throw DialError::of_rdma(broker.name() + ": no RDMA: on this machine: " + rdma.why_not);
      log::info("{}: the session goes by TCP and not by RDMA: {}", broker.name(), rdma.why_not);
    }
    session = attach(std::move(channel), shown, config, broker.name(), connect, rdma, there);
  } catch (const ChannelClosed& error) {
    // The end of the worker alone is no reason to have another one end, too.
    const bool broke = is_break(error);
    const DialError::Line line = broke ? DialError::Line::broke : broker.line();
    const std::string end = std::string(error.what()) + " before the session began: ";
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    broker.name() + ": " +
                        (broke || !is_end(error) ? error.what()
                         : line == DialError::Line::whole
                             ? end + "the worker has ended; the log of fargpud there says why"
                             : end + "the host's fargpud has been shut down, or has ended; try again later"))
        .by_line(line);
  } catch (const TlsError& error) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, broker.name() + ": " + error.what())
        .by_line(error.cause == TlsError::Cause::closed ? DialError::Line::broke : DialError::Line::whole);
  } catch (DialError& error) {
    // A ticket lasts as long as the connection by which it came.
    if (error.reason == wire::Failure::Reason::DENIED) error.line = broker.line();
    throw;
  }
  const auto& devices = session->terms.facts.devices;
  const auto served =
      std::count_if(devices.begin(), devices.end(), [](const Device& device) { return device.worker_ordinal >= 0; });
  log::info("session {} at {}, {}, by {}", session->terms.session_id, broker.name(),
            so_many(static_cast<std::size_t>(served), "device"), session->medium());
  return session;
}

std::unique_ptr<Session> dial_once(const Config& config, const PoolHost& host, const LeaseOptions& wish,
                                   const Place& place) {
  constexpr int workers_tried = 8;
  for (int tried = 1;; ++tried) {
    try {
      ControlConnection broker(host);
      require_transport(config, broker);
      Ticket ticket;
      broker.ask_for_lease(wish, /*hold=*/false,
                           [&](wire::LeaseAnswer::Reader answer) { ticket = read_ticket(answer); }, {});
      return attach_by(ticket, broker, host, config, place);
    } catch (const BandTaken& taken) {
      if (tried == workers_tried) throw;
      log::info("{}: another worker is asked for: {}", address_text(host), taken.what());
    } catch (const DialError&) {
      throw;
    } catch (const kj::Exception& error) {  // what() is more than a line
      throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, address_text(host) + ": " + error.getDescription().cStr());
    } catch (const std::exception& error) {
      throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, address_text(host) + ": " + error.what());
    }
  }
}

std::unique_ptr<Session> dial_once(const Config& config) {
  PoolSearch search(
      config.hosts, PoolContacts::Order::pool, /*hold=*/false,
      [&](ControlConnection& broker) { require_transport(config, broker); }, config.lease);
  while (const auto found = search.next()) {
    const auto failed = [&](DialError error) {
      log::info("{}", error.what());
      search.failed(found->place, found->placed ? placed_there(found->host, error) : std::move(error));
    };
    try {
      return attach_by(found->ticket, *found->broker, found->host, config, {});
    } catch (const DialError& error) {
      failed(error);
    } catch (const kj::Exception& error) {  // what() is more than a line
      failed({CUDA_ERROR_SYSTEM_NOT_READY, address_text(found->host) + ": " + error.getDescription().cStr()});
    } catch (const std::exception& error) {
      failed({CUDA_ERROR_SYSTEM_NOT_READY, address_text(found->host) + ": " + error.what()});
    }
  }
  throw none_usable(search.errors());
}

}  // namespace

std::unique_ptr<Session> dial(const Config& config, const PoolHost& host, const LeaseOptions& wish,
                              const Place& place) {
  return over_breaks([&] { return dial_once(config, host, wish, place); }, wish.wait, wish.job.has_value());
}

std::unique_ptr<Session> dial(const Config& config) {
  if (!config.number_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.number_error);
  require_pool(config);
  return over_breaks([&] { return dial_once(config); }, config.lease.wait, config.lease.job.has_value());
}

}  // namespace fargpu::client
