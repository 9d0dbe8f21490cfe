#include "dial.h"

#include <unistd.h>

#include <asio.hpp>

#include <cstring>

#include "log.h"
#include "protocol/handshake.h"
#include "protocol/message.h"

namespace fargpu::client {
namespace {

std::string program_name() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return "?";
  const std::string text(path, static_cast<std::size_t>(length));
  return text.substr(text.rfind('/') + 1);
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string address_text(const PoolHost& host) {
  const bool v6 = host.host.find(':') != std::string::npos;
  return (v6 ? "[" + host.host + "]" : host.host) + ":" + std::to_string(host.port);
}

CUresult result_of(wire::Failure::Reason reason) {
  switch (reason) {
    case wire::Failure::Reason::VERSION_MISMATCH:
      return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case wire::Failure::Reason::NO_CAPACITY:
    case wire::Failure::Reason::DRAINING:
    case wire::Failure::Reason::HOST_ERROR:
      return CUDA_ERROR_SYSTEM_NOT_READY;
    default:
      return CUDA_ERROR_NOT_PERMITTED;
  }
}

void check(wire::Failure::Reader failure, const std::string& host) {
  if (failure.getReason() != wire::Failure::Reason::NONE)
    throw DialError(result_of(failure.getReason()), host + ": " + failure.getText().cStr());
}

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

struct OfferedWindows {
  std::vector<Window> device = reserve_device_windows();
  std::vector<Window> host = reserve_host_windows();
};

}  // namespace

std::unique_ptr<Channel> connect_to(const PoolHost& host) {
  const std::string address = address_text(host);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  asio::error_code outcome = asio::error::timed_out;
  asio::ip::tcp::resolver resolver(io);
  asio::error_code resolved;
  const auto endpoints = resolver.resolve(host.host, std::to_string(host.port), resolved);
  if (resolved)
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "no address for host '" + host.host + "' (" + resolved.message() + "); check FARGPU_POOL");
  asio::async_connect(socket, endpoints, [&](const asio::error_code& error, const auto&) { outcome = error; });
  io.run_for(limits::connect_timeout);
  if (outcome) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, "cannot connect to " + address + " (" + outcome.message() +
                                                     "); is fargpud running there and FARGPU_POOL right? "
                                                     "`fargpu doctor` tells more");
  }
  return make_socket_channel(socket.release(), address);
}

ControlConnection::ControlConnection(const PoolHost& host) : name_(address_text(host)), channel_(connect_to(host)) {
  ask(
      [](wire::Control::Builder control) {
        auto hello = control.initHello();
        hello.setProtocolVersion(wire::PROTOCOL_VERSION);
        hello.setSpecHash(spec_hash);
        hello.setDriverVersion(static_cast<std::uint32_t>(config().driver_version));
        hello.setProgram(program_name());
        hello.setHostName(host_name());
        hello.setProcessId(static_cast<std::uint32_t>(::getpid()));
      },
      wire::Control::HELLO_ANSWER,
      [&](wire::Control::Reader control) {
        const auto answer = control.getHelloAnswer();
        check(answer.getFailure(), name_);
        broker_version_ = answer.getVersion().cStr();
      });
}

void ControlConnection::ask(const std::function<void(wire::Control::Builder)>& request, wire::Control::Which expected,
                            const std::function<void(wire::Control::Reader)>& use) {
  try {
    send_control(*channel_, ++sequence_, request);
    const auto message = receive_control(*channel_, limits::attach_timeout);
    MessageReader reader(message);
    const auto answer = reader.root<wire::Control>();
    if (answer.which() != expected) throw ProtocolError(name_ + " gave an answer that was not asked for");
    use(answer);
  } catch (const DialError&) {
    throw;
  } catch (const ChannelClosed& error) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, std::string(error.what()) + " during the handshake; is it fargpud?");
  } catch (const std::exception& error) {
    throw DialError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, name_ + " does not speak this version of fargpu (" + error.what() + ")");
  }
}

std::unique_ptr<Session> attach(std::unique_ptr<Channel> channel, std::span<const std::byte> ticket, const Config& config,
                                const std::string& host_name) {
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
  const auto message = receive_control(*channel, limits::attach_timeout);
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isAttachAnswer()) throw ProtocolError(host_name + " did not answer to attach");
  const auto answer = control.getAttachAnswer();
  check(answer.getFailure(), host_name);

  Terms terms;
  terms.host = host_name;
  terms.session_id = answer.getSessionId();
  terms.device_window = keep_window(offered.device, answer.getDeviceWindow(), host_name);
  terms.host_window = keep_window(offered.host, answer.getHostWindow(), host_name);
  terms.driver_band = {answer.getDriverBand().getBase(), answer.getDriverBand().getBytes()};
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
  if (!config.driver_version_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.driver_version_error);
  if (!config.pool_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.pool_error);
  if (config.hosts.empty()) {
    throw DialError(CUDA_ERROR_NO_DEVICE, config.pool == "none"
                                              ? "FARGPU_POOL=none: this program is to use no GPU"
                                              : "FARGPU_POOL is not set; name the GPU host, for example "
                                                "FARGPU_POOL=gpuhost:8470");
  }
  std::unique_ptr<DialError> first;
  for (const PoolHost& host : config.hosts) {
    try {
      ControlConnection broker(host);
      std::vector<std::byte> ticket;
      broker.ask(
          [&](wire::Control::Builder control) {
            auto environment = control.initLeaseRequest().initEnvironment(static_cast<unsigned>(config.cuda_environment.size()));
            for (unsigned i = 0; i < config.cuda_environment.size(); ++i) {
              environment[i].setName(config.cuda_environment[i].first);
              environment[i].setValue(config.cuda_environment[i].second);
            }
          },
          wire::Control::LEASE_ANSWER,
          [&](wire::Control::Reader control) {
            const auto answer = control.getLeaseAnswer();
            check(answer.getFailure(), broker.name());
            const auto bytes = answer.getTicket();
            ticket.assign(reinterpret_cast<const std::byte*>(bytes.begin()),
                          reinterpret_cast<const std::byte*>(bytes.end()));
          });
      auto session = attach(connect_to(host), ticket, config, broker.name());
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
