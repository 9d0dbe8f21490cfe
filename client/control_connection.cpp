#include "control_connection.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <asio.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "config.h"
#include "log.h"
#include "opcodes.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "protocol/printable.h"

namespace fargpu::client {
namespace {

std::string program_name() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return "?";
  const std::string text(path, static_cast<std::size_t>(length));
  return text.substr(text.rfind('/') + 1);
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

}  // namespace

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string address_text(const PoolHost& host) {
  if (!host.socket.empty()) return "unix:" + host.socket;
  const bool v6 = host.host.find(':') != std::string::npos;
  return (v6 ? "[" + host.host + "]" : host.host) + ":" + std::to_string(host.port);
}

void require_pool(const Config& config) {
  if (!config.pool_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.pool_error);
  if (config.hosts.empty()) {
    throw DialError(CUDA_ERROR_NO_DEVICE, config.pool == "none"
                                              ? "FARGPU_POOL=none: this program is to use no GPU"
                                              : "FARGPU_POOL is not set; name the GPU host, for example "
                                                "FARGPU_POOL=gpuhost:8470");
  }
}

void check_failure(wire::Failure::Reader failure, const std::string& host) {
  if (failure.getReason() != wire::Failure::Reason::NONE)
    throw DialError(result_of(failure.getReason()), host + ": " + printable(failure.getText().cStr(), 512));
}

namespace {

std::unique_ptr<Channel> connect_to_socket(const PoolHost& host) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, host.socket.data(), std::min(host.socket.size(), sizeof(address.sun_path)));
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + host.socket.size());
  if (host.socket.front() == '@') address.sun_path[0] = '\0';
  else ++length;
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = descriptor >= 0 && ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!connected) {
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, "cannot connect to " + address_text(host) + " (" + std::strerror(error) +
                                                     "); is fargpud running on this machine and FARGPU_POOL right?" + std::string(doctor_hint));
  }
  return make_socket_channel(descriptor, address_text(host));
}

}  // namespace

std::unique_ptr<Channel> connect_to(const PoolHost& host) {
  if (!host.socket.empty()) return connect_to_socket(host);
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
  const auto deadline = std::chrono::steady_clock::now() + limits::connect_timeout;
  for (const auto& endpoint : endpoints) {
    // Close-on-exec from the start: the program may start others meanwhile.
    const asio::ip::tcp::endpoint to = endpoint;
    const int descriptor = ::socket(to.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (descriptor < 0) {
      outcome = asio::error_code(errno, asio::system_category());
      continue;
    }
    socket = asio::ip::tcp::socket(io, to.protocol(), descriptor);
    outcome = asio::error::timed_out;
    socket.async_connect(to, [&](const asio::error_code& error) { outcome = error; });
    io.restart();
    io.run_until(deadline);
    if (!outcome || outcome == asio::error::timed_out) break;
  }
  if (outcome) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, "cannot connect to " + address + " (" + outcome.message() +
                                                     "); is fargpud running there and FARGPU_POOL right?" +
                                                     std::string(doctor_hint));
  }
  return make_socket_channel(socket.release(), address);
}

ControlConnection::ControlConnection(const PoolHost& host) : name_(address_text(host)), address_(host), channel_(connect_to(host)) {
  const Local local = hello({});
  if (!local.socket.empty() && host.socket.empty() && config().transport != Transport::tcp) come_closer(local);
}

ControlConnection::Local ControlConnection::hello(std::span<const std::byte> key) {
  const auto bytes_of = [](capnp::Data::Reader data) {
    const auto* const begin = reinterpret_cast<const std::byte*>(data.begin());
    return std::vector<std::byte>(begin, begin + data.size());
  };
  Local local;
  ask(
      [&](wire::Control::Builder control) {
        auto hello = control.initHello();
        hello.setProtocolVersion(wire::PROTOCOL_VERSION);
        hello.setSpecHash(spec_hash);
        hello.setDriverVersion(static_cast<std::uint32_t>(config().driver_version));
        hello.setProgram(program_name());
        hello.setHostName(host_name());
        hello.setProcessId(static_cast<std::uint32_t>(::getpid()));
        hello.setLocalKey(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(key.data()), key.size()));
      },
      wire::Control::HELLO_ANSWER,
      [&](wire::Control::Reader control) {
        const auto answer = control.getHelloAnswer();
        check_failure(answer.getFailure(), name_);
        broker_version_ = printable(answer.getVersion().cStr());
        local = {answer.getLocalSocket().cStr(), bytes_of(answer.getLocalKey()), bytes_of(answer.getLocalProof())};
      });
  return local;
}

// Asks on the broker's Unix socket from now on, if it is its own. If not, TCP does as well.
void ControlConnection::come_closer(const Local& local) {
  // A broker far away, behind a tunnel, shall not have us talk to whatever service listens here.
  const bool plausible = local.socket.starts_with("fargpud-") && local.socket.size() < 100 && !local.key.empty() && local.proof.size() >= 16;
  if (!plausible) return;
  PoolHost near = address_;
  near.socket = "@" + local.socket;
  std::unique_ptr<Channel> far;
  const std::uint32_t far_sequence = sequence_;
  try {
    auto channel = connect_to(near);
    far = std::exchange(channel_, std::move(channel));  // stays open until there is an answer: the key is good so long
    sequence_ = 0;
    if (hello(local.key).proof == local.proof) {
      address_ = near;
      return;
    }
    log::debug("{}: what listens on {} is another", name_, address_text(near));
  } catch (const DialError& error) {
    log::debug("{}: {}", name_, error.what());
  }
  if (far) {
    channel_ = std::move(far);
    sequence_ = far_sequence;
  }
}

void ControlConnection::ask(const std::function<void(wire::Control::Builder)>& request, wire::Control::Which expected,
                            const std::function<void(wire::Control::Reader)>& use) {
  // A lease may have to wait for a driver to be initialised; everything else is answered at once.
  const auto timeout = expected == wire::Control::LEASE_ANSWER ? limits::lease_timeout : limits::connect_timeout;
  try {
    send_control(*channel_, ++sequence_, request);
    const auto message = receive_control(*channel_, timeout);
    MessageReader reader(message);
    const auto answer = reader.root<wire::Control>();
    if (answer.which() != expected) throw ProtocolError(name_ + " gave an answer that was not asked for");
    use(answer);
  } catch (const DialError&) {
    throw;
  } catch (const ChannelClosed& error) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, std::string(error.what()) + " during the handshake; is it fargpud?");
  } catch (const kj::Exception& error) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, name_ + " is no fargpud (" + error.getDescription().cStr() + "); is the port right?");
  } catch (const std::exception& error) {  // another version would have said so
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, name_ + " is no fargpud (" + error.what() + "); is the port right?");
  }
}

}  // namespace fargpu::client
