#include "dial.h"

#include <cstring>

#include "log.h"
#include "protocol/handshake.h"
#include "protocol/message.h"

namespace fargpu::client {
namespace {

void write_windows(const std::vector<Window>& windows, capnp::List<wire::Range>::Builder list) {
  for (unsigned i = 0; i < windows.size(); ++i) {
    list[i].setBase(windows[i].base);
    list[i].setBytes(windows[i].bytes);
  }
}

// Keeps the one that the worker took and gives the others up.
Window keep_window(const std::vector<Window>& offered, wire::Range::Reader taken, const std::string& host) {
  Window kept;
  for (const Window& window : offered) {
    if (window.base == taken.getBase() && window.bytes == taken.getBytes()) kept = window;
    else release_window(window);
  }
  if (kept.bytes == 0) throw ProtocolError(host + " took an address window that was not offered");
  return kept;
}

// A connection that the session's worker has taken as a bulk lane.
std::unique_ptr<Channel> open_lane(const Connect& connect, std::uint64_t session, const std::vector<kj::byte>& key, const std::string& host) {
  auto channel = connect();
  send_control(*channel, 1, [&](wire::Control::Builder control) {
    auto lane = control.initLane();
    lane.setSessionId(session);
    lane.setKey(capnp::Data::Reader(key.data(), key.size()));
  });
  const auto message = receive_control(*channel, limits::connect_timeout);
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isLaneAnswer()) throw ProtocolError(host + " did not answer to a bulk lane");
  check_failure(control.getLaneAnswer(), host);
  return channel;
}

struct OfferedWindows {
  std::vector<Window> device = reserve_device_windows();
  std::vector<Window> host = reserve_host_windows();
};

}  // namespace

std::unique_ptr<Session> attach(std::unique_ptr<Channel> channel, std::span<const std::byte> ticket, const Config& config,
                                const std::string& host_name, Connect connect) {
  OfferedWindows offered;
  if (offered.device.empty() || offered.host.empty()) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "no address range for device memory is free in this process (is the address space limited, "
                    "`ulimit -v`?)");
  }
  send_control(*channel, 1, [&](wire::Control::Builder control) {
    auto attach = control.initAttach();
    attach.setTicket(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(ticket.data()), ticket.size()));
    attach.setProtocolVersion(wire::PROTOCOL_VERSION);
    attach.setSpecHash(spec_hash);
    attach.setDriverVersion(static_cast<std::uint32_t>(config.driver_version));
    write_windows(offered.device, attach.initDeviceWindows(static_cast<unsigned>(offered.device.size())));
    write_windows(offered.host, attach.initHostWindows(static_cast<unsigned>(offered.host.size())));
    auto opcodes = attach.initOpcodes(opcode_max / 8 + 1);
    std::memset(opcodes.begin(), 0xFF, opcodes.size());
  });
  const auto message = receive_control(*channel, limits::lease_timeout);
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isAttachAnswer()) throw ProtocolError(host_name + " did not answer to attach");
  const auto answer = control.getAttachAnswer();
  check_failure(answer.getFailure(), host_name);

  Terms terms;
  terms.host = host_name;
  terms.session_id = answer.getSessionId();
  terms.lanes = config.lanes;
  if (connect && answer.hasLaneKey()) {
    const auto bytes = answer.getLaneKey();
    terms.open_lane = [connect = std::move(connect), session = terms.session_id, key = std::vector<kj::byte>(bytes.begin(), bytes.end()),
                       host_name] { return open_lane(connect, session, key, host_name); };
  }
  if (answer.getSilenceMs() > 0) terms.silence = std::chrono::milliseconds(answer.getSilenceMs());
  terms.device_window = keep_window(offered.device, answer.getDeviceWindow(), host_name);
  terms.host_window = keep_window(offered.host, answer.getHostWindow(), host_name);
  terms.driver_band = {answer.getDriverBand().getBase(), answer.getDriverBand().getBytes()};
  // Pages of ours are put over parts of it later, so it must be of a shape that cannot reach beyond what is reserved here.
  constexpr std::uint64_t unit = 1u << 30, most = 1ull << 40;
  if (terms.driver_band.base % unit != 0 || terms.driver_band.bytes % unit != 0 || terms.driver_band.bytes > most)
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, host_name + " names addresses for its driver's variables that no host of ours has");
  if (terms.driver_band.bytes > 0 && !reserve_window(terms.driver_band)) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    fmt::format("the addresses {:#x} to {:#x}, where the GPU host's driver places its variables, are in use "
                                "in this process; start it again, or without what maps memory there",
                                terms.driver_band.base, terms.driver_band.base + terms.driver_band.bytes));
  }
  terms.facts = read_facts(answer.getFacts());
  if (config.visible_set) select_devices(terms.facts, config.visible_devices);
  const auto opcodes = answer.getOpcodes();
  for (unsigned i = 0; i <= opcode_max && i / 8 < opcodes.size(); ++i) terms.worker_opcodes.set(i, opcodes[i / 8] >> i % 8 & 1);
  if (terms.facts.driver_version < config.driver_version) {
    throw DialError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    fmt::format("the driver at {} is of CUDA level {}, but programs here see {}; set FARGPU_DRIVER_VERSION={} "
                                "or update the driver there",
                                host_name, terms.facts.driver_version, config.driver_version, terms.facts.driver_version));
  }
  return std::make_unique<Session>(std::move(channel), std::move(terms), config.spin);
}

std::unique_ptr<Session> dial(const Config& config) {
  if (!config.number_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.number_error);
  require_pool(config);
  std::unique_ptr<DialError> first;
  for (const PoolHost& host : config.hosts) {
    try {
      ControlConnection broker(host);
      Ticket ticket;
      broker.ask_for_lease(/*hold=*/false, [&](wire::LeaseAnswer::Reader answer) {
        const auto bytes = [](capnp::Data::Reader data) {
          return std::vector<std::byte>(reinterpret_cast<const std::byte*>(data.begin()), reinterpret_cast<const std::byte*>(data.end()));
        };
        ticket = {bytes(answer.getTicket()), bytes(answer.getTicketName())};
      });
      // Where keys were made from the ticket, nothing else is shown of it.
      const std::span<const std::byte> shown = ticket.name.empty() ? std::span<const std::byte>(ticket.secret) : std::span<const std::byte>();
      // Bulk lanes do not speak TLS: where it is spoken, all bytes go by the one connection.
      const Connect connect = ticket.name.empty() ? Connect([host] { return connect_session(host, {}); }) : Connect();
      auto session = attach(connect_session(host, ticket), shown, config, broker.name(), connect);
      log::info("session {} at {}, {} device(s)", session->terms().session_id, broker.name(),
                session->facts().devices.size());
      return session;
    } catch (const DialError& error) {
      log::info("{}", error.what());
      if (!first) first = std::make_unique<DialError>(error);
    } catch (const std::exception& error) {
      if (!first) first = std::make_unique<DialError>(CUDA_ERROR_SYSTEM_NOT_READY, address_text(host) + ": " + error.what());
    }
  }
  throw *first;
}

}  // namespace fargpu::client
