#include "attach.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "control.capnp.h"
#include "facts.h"
#include "opcodes.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/rdma/handover.h"
#include "protocol/version.h"
#include "resumption.h"
#include "server/exchange.h"
#include "server/quota/ledger.h"
#include "server/worker/base/partition.h"
#include "server/worker/call/dispatch.h"

namespace fargpu::server {
namespace {

/// Why a session is not begun.
struct Refusal {
  wire::Failure::Reason reason;
  std::string text;
};

std::optional<Refusal> check_versions(wire::Attach::Reader attach, DriverTable& driver) {
  if (const Versions theirs = versions_of(attach); !common_version(our_versions, theirs))
    return Refusal{wire::Failure::Reason::VERSION_MISMATCH,
                   versions_apart({"this host", our_release, our_versions}, {"the client", "", theirs})};
  int version = 0;
  driver.cuDriverGetVersion(&version);
  if (static_cast<std::uint32_t>(version) >= attach.getDriverVersion()) return std::nullopt;
  return Refusal{wire::Failure::Reason::VERSION_MISMATCH,
                 "the driver of this host is of CUDA level " + std::to_string(version) + ", the client's of " +
                     std::to_string(attach.getDriverVersion()) +
                     "; set FARGPU_DRIVER_VERSION=" + std::to_string(version) + " there, or update the driver here"};
}

bool plausible(wire::Range::Reader range) {
  constexpr std::uint64_t unit = std::uint64_t{1} << 30, least = std::uint64_t{1} << 40, end = std::uint64_t{1} << 47;
  return range.getBytes() >= unit && range.getBytes() < end && range.getBase() >= least &&
         range.getBase() < end - range.getBytes() && range.getBase() % unit == 0 && range.getBytes() % unit == 0;
}

// The first of the client's ranges that can be had here too.
template <class Reserve>
Window choose(capnp::List<wire::Range>::Reader offered, Reserve&& reserve) {
  for (const auto range : offered) {
    if (!plausible(range)) continue;
    const Window window{range.getBase(), range.getBytes()};
    if (reserve(window)) return window;
  }
  return {};
}

/// The session's windows, reserved here. The end of a process gives its addresses back; in one process with its client
/// a session does.
class ReservedWindows {
 public:
  ReservedWindows(DriverTable& driver, wire::Attach::Reader attach, bool one_process)
      : driver_(driver),
        one_process_(one_process),
        device_(choose(attach.getDeviceWindows(), [this](const Window& window) { return reserve_device(window); })),
        host_(choose(attach.getHostWindows(),
                     [this](const Window& window) { return one_process_ || reserve_window(window); })) {}
  ReservedWindows(const ReservedWindows&) = delete;
  ReservedWindows& operator=(const ReservedWindows&) = delete;
  ~ReservedWindows() {
    if (one_process_ && device_.bytes > 0) driver_.cuMemAddressFree(device_.base, device_.bytes);
  }

  bool complete() const { return device_.bytes > 0 && host_.bytes > 0; }
  const Window& device() const { return device_; }
  const Window& host() const { return host_; }

 private:
  bool reserve_device(const Window& window) {
    CUdeviceptr got = 0;
    if (driver_.cuMemAddressReserve(&got, window.bytes, 0, window.base, 0) != CUDA_SUCCESS) return false;
    if (got == window.base) return true;
    driver_.cuMemAddressFree(got, window.bytes);
    return false;
  }

  DriverTable& driver_;
  const bool one_process_;
  const Window device_;
  const Window host_;
};

void send_answer(Channel& channel, const std::function<void(wire::AttachAnswer::Builder)>& fill) {
  send_control(channel, 1, [&](wire::Control::Builder control) { fill(control.initAttachAnswer()); });
}

std::string refuse(Channel& channel, const Refusal& refusal) {
  send_answer(channel, [&](wire::AttachAnswer::Builder answer) {
    auto failure = answer.initFailure();
    failure.setReason(refusal.reason);
    failure.setText(refusal.text);
  });
  return "refused: " + refusal.text;
}

Refusal no_room() {
  return {
      wire::Failure::Reason::NO_CAPACITY,
      "the session may take too little of this host's memory: its calls need room for " +
          std::to_string(limits::credit_bytes_min) +
          " bytes; raise host_bytes_max of fargpud, or host_memory of the tenant, or end other sessions of the lease"};
}

// What the session may have is the device, as far as programs are concerned.
void write_shares(const SessionOptions& session, capnp::List<wire::DeviceFacts>::Builder devices) {
  Ledger ledger(session.memory_limits, session.account_place);
  int number = 0;
  for (auto device : devices) device.setMemoryBytes(std::min(device.getMemoryBytes(), ledger.share(number++).limit));
  for (unsigned i = 0; i < session.parts.size(); ++i)
    for (auto attribute : devices[i].getAttributes())
      if (attribute.getAttribute() == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        attribute.setValue(static_cast<int>(processors_of(session.parts[i])));
}

void welcome(Channel& channel, DriverTable& driver, const AttachOptions& options, std::uint32_t version,
             std::uint64_t credit_bytes, bool shares_memory, bool resumes, const std::string& rdma_refusal) {
  const SessionOptions& session = options.session;
  send_answer(channel, [&](wire::AttachAnswer::Builder answer) {
    if (!rdma_refusal.empty()) answer.setRdmaRefusal(rdma_refusal);
    if (shares_memory) answer.setRingBytes(limits::ring_bytes);
    if (resumes) {
      const auto secret = session.resumption->first_secret();
      answer.setResumeSecret(data_of(secret));
      answer.setResumeMs(static_cast<std::uint32_t>(session.resumption->time().count()));
    }
    answer.setProtocolVersion(version);
    answer.setOrigin(static_cast<std::uint8_t>(session.origin));
    answer.setCompression(true);
    if (!session.content_folder.empty() && !shares_memory) answer.setContentBytes(session.content_bytes_max);
    answer.setCreditBytes(credit_bytes);
    answer.setSessionId(session.id);
    answer.setSilenceMs(static_cast<std::uint32_t>(session.silence.count()));
    answer.setLaneKey(data_of(options.lane_key));
    const auto write = [](const Window& window, wire::Range::Builder range) {
      range.setBase(window.base);
      range.setBytes(window.bytes);
    };
    write(session.device_window, answer.initDeviceWindow());
    write(session.host_window, answer.initHostWindow());
    write(options.driver_band, answer.initDriverBand());
    write_facts(driver, session.devices, answer.initFacts());
    write_shares(session, answer.getFacts().getDevices());
    auto opcodes = answer.initOpcodes(opcode_max / 8 + 1);
    for (unsigned opcode = 1; opcode <= opcode_max; ++opcode)
      if (service_of(static_cast<std::uint16_t>(opcode)))
        opcodes[opcode / 8] |= static_cast<kj::byte>(1u << opcode % 8);
  });
}

// A wish that this version does not know is none.
Compression compression_of(wire::Compression wanted) {
  switch (wanted) {
    case wire::Compression::AUTOMATIC: return Compression::automatic;
    case wire::Compression::ALWAYS: return Compression::always;
    default: return Compression::never;
  }
}

/// Memory between the ends of a socket.
struct SharedRings {
  explicit SharedRings(Channel& socket)
      : memory(std::in_place, make_ring_memory(limits::ring_bytes)),
        channel(make_shared_channel(std::shared_ptr<Channel>(&socket, [](Channel*) {}), memory->number(),
                                    limits::ring_bytes, false)) {}
  /// To the client, once it has been told so.
  void hand_over(Channel& socket) {
    if (!socket.send_descriptor(memory->number()))
      throw ChannelClosed(socket.peer() + " does not take the memory that it asked for");
    memory.reset();
  }

  std::optional<Descriptor> memory;
  const std::unique_ptr<Channel> channel;
};

/// RDMA in the place of a connection, if the client wants it and both have it.
struct ByRdma {
  ByRdma(Channel& connection, bool wanted, const AttachOptions& options) {
    if (!wanted) return;
    if (!options.rdma || !options.rdma->devices) {
      refusal = options.rdma ? options.rdma->why_none : "the host offers none";
      return;
    }
    auto handed = rdma::hand_over(connection, options.rdma->devices, {});
    if (!handed.end) return;  // which the client knows by now
    auto by_rdma = std::move(*handed.end).open(std::shared_ptr<Channel>(&connection, [](Channel*) {}));
    channel = options.wrap ? options.wrap(std::move(by_rdma)) : std::move(by_rdma);
    options.rdma->taken = true;
  }

  std::shared_ptr<Channel> channel;
  std::string refusal;
};

// Returns why the session ended.
std::string run_session(Session& session) {
  try {
    return session.run();
  } catch (const kj::Exception& error) {
    return std::string("protocol error: ") + error.getDescription().cStr();
  } catch (const ProtocolError& error) {
    return std::string("protocol error: ") + error.what();
  } catch (const std::exception& error) {  // most likely memory has run out
    return std::string("the worker cannot go on: ") + error.what();
  }
}

}  // namespace

std::string serve_session(Channel& channel, std::span<const std::byte> attach_message, DriverTable& driver,
                          AttachOptions options) {
  try {
    MessageReader reader(attach_message);
    const auto attach = reader.root<wire::Control>().getAttach();
    if (const auto refusal = check_versions(attach, driver)) return refuse(channel, *refusal);
    SessionOptions& session_options = options.session;
    const ReservedWindows windows(driver, attach, session_options.one_process);
    if (!windows.complete()) {
      return refuse(
          channel,
          {wire::Failure::Reason::HOST_ERROR,
           "no address range that the client offers is free in the worker; this is a fault of the host's set-up"});
    }
    session_options.device_window = windows.device();
    session_options.host_window = windows.host();
    session_options.memory_limits.resize(session_options.devices.size());
    const bool shares_memory = attach.getSharedMemory() && channel.passes_descriptors();
    session_options.hears_notices = attach.getHearsNotices();
    session_options.hears_returns = attach.getHearsReturns();
    session_options.origin = attach.getOrigin() & Handle::origin_max;
    if (!shares_memory) session_options.compression = compression_of(attach.getCompression());
    std::optional<SharedRings> shared;
    if (shares_memory) shared.emplace(channel);
    ByRdma by_rdma(channel, attach.getRdma() && !shares_memory, options);
    // Between processes of one machine a connection ends with one of them.
    if (!attach.getResumes() || shares_memory) session_options.resumption = nullptr;
    std::shared_ptr<Channel> line = by_rdma.channel;
    if (!line) line = std::shared_ptr<Channel>(shared ? shared->channel.get() : &channel, [](Channel*) {});
    if (session_options.resumption) line = session_options.resumption->wrap(std::move(line), /*number=*/0);
    Channel& frames = *line;
    // A channel by RDMA uses the connection until it is closed, and is kept for longer.
    const auto close = [](Channel* channel) { channel->close(); };
    const std::unique_ptr<Channel, decltype(close)> closing(by_rdma.channel ? &frames : nullptr, close);
    auto session = std::make_unique<Session>(frames, driver, session_options);
    if (session->credit_bytes() == 0) return refuse(channel, no_room());
    welcome(channel, driver, options, *common_version(our_versions, versions_of(attach)), session->credit_bytes(),
            shares_memory, session_options.resumption != nullptr, by_rdma.refusal);
    if (shared) shared->hand_over(channel);
    if (options.running) options.running(session.get());
    const std::string why = run_session(*session);
    if (options.running) options.running(nullptr);
    frames.close();
    channel.close();
    if (options.over) options.over(why);
    session->finish_keeping();
    // A process of its own frees everything by its end, which nothing can hold up. The driver could: a kernel may never
    // end.
    if (!session_options.one_process) {
      (void)session.release();
      if (by_rdma.channel) (void)new std::shared_ptr<Channel>(by_rdma.channel);  // its threads may use it
    }
    return why;
  } catch (const kj::Exception& error) {
    return std::string("malformed attach message: ") + error.getDescription().cStr();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace fargpu::server
