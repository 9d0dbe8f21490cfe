#include "control_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <asio.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "client/base/config.h"
#include "client/base/environment.h"
#include "credentials.h"
#include "client/base/log.h"
#include "protocol/channel_tls.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/host_name.h"
#include "protocol/message.h"
#include "protocol/resumable_channel.h"
#include "protocol/text.h"
#include "protocol/version.h"

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
    case wire::Failure::Reason::VERSION_MISMATCH: return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case wire::Failure::Reason::NO_CAPACITY:
    case wire::Failure::Reason::DRAINING:
    case wire::Failure::Reason::HOST_ERROR: return CUDA_ERROR_SYSTEM_NOT_READY;
    default: return CUDA_ERROR_NOT_PERMITTED;
  }
}

// A fargpud that was killed has told so by the end of all its connections at once.
constexpr std::chrono::milliseconds end_heard_within(100);

}  // namespace

// A broker that is reached by its own socket keeps the name that the user gave it.
std::string address_text(const PoolHost& host) {
  if (host.host.empty()) return "unix:" + host.socket;
  const bool v6 = host.host.find(':') != std::string::npos;
  return (v6 ? "[" + host.host + "]" : host.host) + ":" + std::to_string(host.port);
}

void require_pool(const Config& config) {
  if (!config.pool_error.empty()) throw DialError(CUDA_ERROR_NO_DEVICE, config.pool_error);
  if (config.hosts.empty()) {
    const char* why = "FARGPU_POOL is not set; name the GPU host, for example FARGPU_POOL=gpuhost:8470";
    if (config.pool == "none") why = "FARGPU_POOL=none: this program is to use no GPU";
    if (environment_withheld())
      why = "this program has more rights than its user (set-user-ID): no variables are read, so it has no GPU host";
    throw DialError(CUDA_ERROR_NO_DEVICE, why);
  }
}

DialError::Line line_of(const ChannelClosed& error) {
  return is_end(error) ? DialError::Line::ended : is_break(error) ? DialError::Line::broke : DialError::Line::whole;
}

void check_failure(wire::Failure::Reader failure, const std::string& host) {
  if (failure.getReason() != wire::Failure::Reason::NONE)
    throw DialError(result_of(failure.getReason()), host + ": " + printable(failure.getText().cStr(), 512),
                    failure.getReason());
}

DialError none_usable(const std::vector<DialError>& errors) {
  if (errors.size() == 1) return errors.front();
  std::string text = "none of the " + std::to_string(errors.size()) + " hosts in FARGPU_POOL can be used";
  bool hint = false;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    std::string_view one = errors[i].what();
    if (one.ends_with(doctor_hint)) {
      one.remove_suffix(doctor_hint.size());
      hint = true;
    }
    text += (i == 0 ? ": (" : "; (") + std::to_string(i + 1) + ") ";
    text += one;
  }
  if (hint) text += doctor_hint;
  // A host that refuses for good says nothing of one that is full, or silent.
  const auto hope = [](const DialError& error) {
    if (error.reason == wire::Failure::Reason::NO_CAPACITY || error.reason == wire::Failure::Reason::DRAINING) return 2;
    return error.result == CUDA_ERROR_NOT_PERMITTED ? 0 : 1;
  };
  return std::ranges::max_element(errors, {}, hope)->told_as(text);
}

std::string pool_text(const PoolHost& host) {
  const char* const scheme = host.transport == PoolHost::Transport::tls    ? "tls://"
                             : host.transport == PoolHost::Transport::rdma ? "rdma://"
                             : host.transport == PoolHost::Transport::tcp  ? "tcp://"
                                                                           : "";
  return scheme + address_text(host);
}

namespace {

struct Socket {
  int descriptor;
  bool local;
  std::string address;  // empty: of a Unix socket
};

Socket connect_by_path(const PoolHost& host) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, host.socket.data(), std::min(host.socket.size(), sizeof(address.sun_path)));
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + host.socket.size());
  if (host.socket.front() == '@') address.sun_path[0] = '\0';
  else ++length;
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      descriptor >= 0 && ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!connected) {
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    "cannot connect to " + address_text(host) + " (" + std::strerror(error) +
                        "); is fargpud running on this machine and FARGPU_POOL right?" + std::string(doctor_hint))
        .with_repair("start fargpud on this machine with unix: in its listen, or correct FARGPU_POOL");
  }
  return {descriptor, true, ""};
}

std::vector<asio::ip::tcp::endpoint> endpoints_of(asio::io_context& io, const PoolHost& host) {
  if (!host.address.empty()) return {{asio::ip::make_address(host.address), host.port}};
  asio::ip::tcp::resolver resolver(io);
  asio::error_code outcome;
  const auto found = resolver.resolve(host.host, std::to_string(host.port), outcome);
  if (outcome) {
    DialError error(CUDA_ERROR_SYSTEM_NOT_READY, "no address for host '" + host.host + "' (" + outcome.message() +
                                                     "); check FARGPU_POOL, whose hosts are separated by commas");
    error.unknown_name = true;
    throw std::move(error).with_repair("correct FARGPU_POOL, or have the name put into DNS or /etc/hosts");
  }
  return {found.begin(), found.end()};
}

Socket connect_socket(const PoolHost& host) {
  if (!host.socket.empty()) return connect_by_path(host);
  const std::string address = address_text(host);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  asio::error_code outcome = asio::error::timed_out;
  const auto endpoints = endpoints_of(io, host);
  // Longer than until the kernel says again what was lost.
  constexpr std::chrono::steady_clock::duration patience_with_one = std::chrono::milliseconds(1800);
  const auto deadline = std::chrono::steady_clock::now() + limits::connect_timeout;
  asio::ip::address used;
  for (std::size_t left = endpoints.size(); const auto& to : endpoints) {
    --left;
    // Close-on-exec from the start: the program may start others meanwhile.
    const int descriptor = ::socket(to.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (descriptor < 0) {
      outcome = asio::error_code(errno, asio::system_category());
      continue;
    }
    socket = asio::ip::tcp::socket(io, to.protocol(), descriptor);
    outcome = asio::error::timed_out;
    socket.async_connect(to, [&](const asio::error_code& error) {
      if (error != asio::error::operation_aborted) outcome = error;  // else it is that of an address before
    });
    io.restart();
    // One that is silent leaves time for the others.
    const auto now = std::chrono::steady_clock::now();
    io.run_until(left == 0 ? deadline : std::min(deadline, now + std::min((deadline - now) / 2, patience_with_one)));
    used = to.address();
    if (!outcome) break;
  }
  if (outcome) {
    DialError error(CUDA_ERROR_SYSTEM_NOT_READY, "cannot connect to " + address + " (" + outcome.message() +
                                                     "); is fargpud running there and FARGPU_POOL right?" +
                                                     std::string(doctor_hint));
    error.nobody_listens = outcome == asio::error::connection_refused;
    // It was connected, and the fargpud that was to take the connection has ended.
    if (outcome == asio::error::connection_reset) error.line = DialError::Line::broke_at_hello;
    throw std::move(error).with_repair(
        outcome == asio::error::connection_refused
            ? "the machine is there, and nothing listens at this port: start fargpud there, or correct "
              "the port in FARGPU_POOL"
            : "no such machine answers: start it, open the port in its firewall, or correct FARGPU_POOL");
  }
  return {socket.release(), used.is_loopback(), used.to_string()};
}

DialError untrusted(const PoolHost& host, const std::string& why, const TlsTrust& trust) {
  std::string repair;
  if (!trust.fingerprint.empty()) repair = "; is FARGPU_FINGERPRINT that host's?";
  else if (!trust.ca_file.empty()) repair = "; FARGPU_CA names '" + trust.ca_file + "'";
  else repair = "; FARGPU_PSK_FILE is no key of that host's, and neither FARGPU_CA nor FARGPU_FINGERPRINT is set";
  return DialError::of_tls(address_text(host) + ": no TLS: " + why + repair);
}

// What would help when a handshake of TLS failed: of each cause its own line.
DialError tls_failure(const PoolHost& host, const TlsError& error, const TlsTrust& trust) {
  const std::string address = address_text(host), cause = address + ": no TLS: " + error.what();
  const std::string without = "if its fargpud serves without TLS, write tcp://" + address;
  const auto with = [&](const std::string& repair) {
    return DialError::of_tls(cause + "; " + repair).with_repair(repair);
  };
  switch (error.cause) {
    case TlsError::Cause::not_tls: return with(without + "; if another service has this port, correct FARGPU_POOL");
    case TlsError::Cause::closed:
      return with(
          without +
          "; a host that has shut out this address after many failed connections lets it in again after a minute");
    case TlsError::Cause::other: break;
  }
  if (trust.key && trust.ca_file.empty() && trust.fingerprint.empty()) {
    const std::string name = printable(trust.key->identity);
    const std::string repair =
        "the line of FARGPU_PSK_FILE must be that of psk_file at the host, with '" + name + "' and the key";
    return DialError::of_tls(address + " does not accept the shared key '" + name + "' (" + error.what() + "); " +
                             repair)
        .with_repair(repair);
  }
  return DialError::of_tls(cause + "; is FARGPU_CA or FARGPU_FINGERPRINT that host's, and FARGPU_PSK_FILE right?");
}

// The port takes connections, and nothing comes from it.
DialError mute(const ChannelClosed& error) {
  return DialError(CUDA_ERROR_SYSTEM_NOT_READY, std::string(error.what()) + " during the handshake; is it fargpud?")
      .by_line(line_of(error) == DialError::Line::whole ? DialError::Line::whole : DialError::Line::broke_at_hello)
      .with_repair(
          "another service has this port, or a firewall holds back what is said: open the port in its firewall, or "
          "correct FARGPU_POOL");
}

}  // namespace

Line connect_to(const PoolHost& host) {
  const Socket socket = connect_socket(host);
  const std::string address = address_text(host);
  Line line{nullptr, false, socket.local, socket.address};
  line.encrypted =
      host.transport == PoolHost::Transport::tls || (host.transport != PoolHost::Transport::tcp && !socket.local);
  if (!line.encrypted) {
    line.channel = make_socket_channel(socket.descriptor, address);
    return line;
  }
  Credentials credentials;
  TlsContext context;
  try {
    credentials = read_credentials();
    if (!credentials.can_tell_hosts()) {
      const std::string repair =
          "set FARGPU_CA to the certificate of its authority, or FARGPU_FINGERPRINT or FARGPU_PSK_FILE, or write "
          "tcp://" +
          address + " if it serves without TLS";
      DialError error =
          DialError::of_setting(address + " is to be spoken to by TLS, but nothing says how to know it; " + repair);
      error.tls = true;
      throw std::move(error).with_repair(repair);
    }
    context = make_client_context(credentials.trust);
  } catch (const TlsError& error) {
    ::close(socket.descriptor);
    throw DialError::of_setting(error.what());
  } catch (...) {
    ::close(socket.descriptor);
    throw;
  }
  try {
    const bool named = credentials.trust.fingerprint.empty() && !credentials.trust.ca_file.empty();
    line.channel = connect_tls(socket.descriptor, address, context, named ? host.host : "", limits::connect_timeout);
  } catch (const TlsKnownError& error) {
    throw untrusted(host, error.what(), credentials.trust);
  } catch (const TlsError& error) {
    throw tls_failure(host, error, credentials.trust);
  } catch (const ChannelClosed& error) {
    throw mute(error);
  }
  return line;
}

namespace {

// The process at the other end of a session's connections: when they end, that process has ended, and not its host.
std::string worker_text(const PoolHost& host) { return "the worker at " + address_text(host); }

// A connection that begins with one message in the clear, which names the key that both ends have, and goes on with TLS
// by that key.
std::unique_ptr<Channel> connect_by_key(const PoolHost& host, std::span<const std::byte> name,
                                        std::span<const std::byte> secret,
                                        const std::function<void(wire::Control::Builder)>& first) {
  const TlsContext context = make_client_context(
      {.key = TlsKey{{reinterpret_cast<const char*>(name.data()), name.size()}, {secret.begin(), secret.end()}}});
  const Socket socket = connect_socket(host);
  const std::string address = worker_text(host);
  const int twin = ::fcntl(socket.descriptor, F_DUPFD_CLOEXEC, 0);
  if (twin < 0) {
    ::close(socket.descriptor);
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, std::string("no descriptor is free: ") + std::strerror(errno));
  }
  send_control(*make_socket_channel(twin, address), 1, first);
  return connect_tls(socket.descriptor, address, context, "", limits::connect_timeout);
}

}  // namespace

std::unique_ptr<Channel> connect_session(const PoolHost& host, const Ticket& ticket) {
  if (ticket.name.empty()) return make_socket_channel(connect_socket(host).descriptor, worker_text(host));
  return connect_by_key(host, ticket.name, ticket.secret, [&](wire::Control::Builder control) {
    control.initRoute().setTicketName(data_of(ticket.name));
  });
}

namespace {

void write_lane(wire::Lane::Builder lane, const LaneRequest& request, std::span<const std::byte> shown) {
  lane.setSessionId(request.session);
  lane.setKey(data_of(shown));
  lane.setChannel(request.channel);
  lane.setResumes(request.resumes);
}

}  // namespace

void ask_for_lane(Channel& channel, const LaneRequest& request) {
  send_control(channel, 1,
               [&](wire::Control::Builder control) { write_lane(control.initLane(), request, request.key); });
}

std::unique_ptr<Channel> connect_lane(const PoolHost& host, bool encrypted, const LaneRequest& request) {
  if (!encrypted) {
    auto channel = connect_session(host, {});
    ask_for_lane(*channel, request);
    return channel;
  }
  const std::span<const std::byte> key = request.key;
  if (key.size() < limits::lane_name_bytes + tls_key_bytes_min ||
      key.size() > limits::lane_name_bytes + tls_key_bytes_max)
    throw ProtocolError(address_text(host) + " gave a key for bulk lanes of " + std::to_string(key.size()) + " bytes");
  const auto name = key.first(limits::lane_name_bytes);
  return connect_by_key(host, name, key.subspan(name.size()),
                        [&](wire::Control::Builder control) { write_lane(control.initLane(), request, name); });
}

Ticket read_ticket(wire::LeaseAnswer::Reader answer) {
  return {copy_of(answer.getTicket()), copy_of(answer.getTicketName())};
}

ControlConnection::ControlConnection(const PoolHost& host, For whom)
    : name_(address_text(host)), address_(host), whom_(whom) {
  Line line = connect_to(host);
  channel_ = std::move(line.channel);
  address_.address = line.address;
  watch_connection(*channel_);  // an answer may take days, and the host may lose its power meanwhile
  encrypted_ = far_encrypted_ = line.encrypted;
  token_ = read_credentials().token;
  if (!token_.empty() && !line.encrypted && !line.local) {
    throw DialError::of_setting("a token would be readable on the way to " + name_ + "; write tls://" + name_ +
                                ", or unset FARGPU_TOKEN_FILE");
  }
  const Local local = hello({});
  const bool network = config().transport == Transport::tcp || config().transport == Transport::rdma ||
                       host.transport == PoolHost::Transport::rdma;
  if (!local.socket.empty() && host.socket.empty() && !network) come_closer(local);
}

ControlConnection::Local ControlConnection::hello(std::span<const std::byte> key) {
  Local local;
  ask(
      [&](wire::Control::Builder control) {
        auto hello = control.initHello();
        write_versions(hello);
        hello.setDriverVersion(static_cast<std::uint32_t>(config().driver_version));
        hello.setProgram(program_name());
        hello.setHostName(host_name());
        hello.setProcessId(static_cast<std::uint32_t>(::getpid()));
        hello.setToken(token_);
        const auto& job = config().lease.job;
        if (job && whom_ == For::job) hello.setJob(data_of(*job));
        hello.setLocalKey(data_of(key));
      },
      wire::Control::HELLO_ANSWER,
      [&](wire::Control::Reader control) {
        const auto answer = control.getHelloAnswer();
        const std::uint32_t version = answer.getProtocolVersion();
        broker_version_ = printable(answer.getVersion().cStr());
        pool_ = printable(answer.getPool().cStr());
        host_identity_ = printable(answer.getHost().cStr());
        if (answer.getFailure().getReason() == wire::Failure::Reason::VERSION_MISMATCH && !speaks(version)) {
          // A host of before 0.2.0 does not say which side is older.
          throw DialError(
              CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
              versions_apart({name_, broker_version_, {version, version}}, {"the client", "", our_versions}),
              wire::Failure::Reason::VERSION_MISMATCH);
        }
        // Where TLS is spoken a client without it is told that alone, and no version.
        if (answer.getFailure().getReason() == wire::Failure::Reason::DENIED && version == 0 && !encrypted_)
          throw DialError(CUDA_ERROR_NOT_PERMITTED, name_ + ": " + printable(answer.getFailure().getText().cStr(), 512),
                          wire::Failure::Reason::DENIED)
              .with_repair("write tls://" + name_ +
                           " in FARGPU_POOL: an address of this machine has no TLS without "
                           "that");
        check_failure(answer.getFailure(), name_);
        if (!speaks(version))
          throw ProtocolError(fmt::format("{} answered with protocol {}, which it was not offered", name_, version));
        local = {answer.getLocalSocket().cStr(), copy_of(answer.getLocalKey()), copy_of(answer.getLocalProof())};
      });
  return local;
}

// Asks on the broker's Unix socket from now on, if it is its own. If not, TCP does as well.
void ControlConnection::come_closer(const Local& local) {
  // A broker far away, behind a tunnel, shall not have us talk to whatever service listens here.
  const bool plausible = local.socket.starts_with("fargpud-") && local.socket.size() < 100 && !local.key.empty() &&
                         local.proof.size() >= 16;
  if (!plausible) return;
  PoolHost near = address_;
  near.socket = "@" + local.socket;
  std::unique_ptr<Channel> far;
  const std::uint32_t far_sequence = sequence_;
  try {
    auto channel = connect_to(near).channel;
    far = std::exchange(channel_, std::move(channel));  // stays open until there is an answer: the key is good so long
    sequence_ = 0;
    if (hello(local.key).proof == local.proof) {
      address_ = near;
      encrypted_ = false;
      return;
    }
    log::debug("{}: what listens on {} is another", name_, near.socket);
  } catch (const DialError& error) {
    log::debug("{}: {}", name_, error.what());
  }
  if (far) {
    channel_ = std::move(far);
    sequence_ = far_sequence;
  }
}

DialError::Line ControlConnection::line() {
  std::array<std::byte, 1> none;
  try {
    if (channel_->wait({.readable = true}, end_heard_within).readable) channel_->receive_some(none);
    return DialError::Line::whole;
  } catch (const ChannelClosed& error) {
    return line_of(error);
  }
}

void ControlConnection::ask(const std::function<void(wire::Control::Builder)>& request, wire::Control::Which expected,
                            const std::function<void(wire::Control::Reader)>& use, std::chrono::milliseconds timeout) {
  exchange(request, expected, use, timeout, {});
}

bool ControlConnection::exchange(const std::function<void(wire::Control::Builder)>& request,
                                 wire::Control::Which expected, const std::function<void(wire::Control::Reader)>& use,
                                 std::chrono::milliseconds timeout, const Meanwhile& meanwhile) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  try {
    try {
      send_control(*channel_, ++sequence_, request);
    } catch (const ChannelClosed&) {
      // A host that lets nobody in closes at once, and why may be there to be read.
      if (expected != wire::Control::HELLO_ANSWER) throw;
    }
    while (meanwhile.go_on && std::chrono::steady_clock::now() < deadline &&
           !channel_->wait({.readable = true}, meanwhile.interval).readable)
      if (!meanwhile.go_on()) return false;
    const auto message = receive_control(
        *channel_, std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()),
                            std::chrono::milliseconds(1000)));
    MessageReader reader(message);
    const auto answer = reader.root<wire::Control>();
    if (answer.which() != expected) throw ProtocolError(name_ + " gave an answer that was not asked for");
    use(answer);
    return true;
  } catch (const DialError&) {
    throw;
  } catch (const CertificateRefused& error) {
    throw DialError(
        CUDA_ERROR_NOT_PERMITTED,
        name_ + " does not accept the certificate of FARGPU_CERT '" + read_credentials().trust.certificate_file +
            "' (" + error.what() +
            "); it has to be valid now, and issued by the authority that the host knows (its tls_client_ca): "
            "`fargpu pki issue --tenant` in that authority's folder makes one",
        wire::Failure::Reason::DENIED);
  } catch (const ChannelClosed& error) {
    // Once it has said hello it is a fargpud, which closes when it ends.
    if (expected != wire::Control::HELLO_ANSWER && std::chrono::steady_clock::now() < deadline) {
      throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                      std::string(error.what()) +
                          " before it had answered: its fargpud has been shut down, or has ended; try again later",
                      wire::Failure::Reason::DRAINING)
          .by_line(line_of(error));
    }
    throw mute(error);
  } catch (const kj::Exception& error) {
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY,
                    name_ + " is no fargpud (" + error.getDescription().cStr() + "); is the port right?");
  } catch (const std::exception& error) {  // another version would have said so
    throw DialError(CUDA_ERROR_SYSTEM_NOT_READY, name_ + " is no fargpud (" + error.what() + "); is the port right?");
  }
}

bool ControlConnection::ask_for_lease(const LeaseOptions& wish, bool hold,
                                      const std::function<void(wire::LeaseAnswer::Reader)>& use,
                                      const Meanwhile& meanwhile) {
  return exchange(
      [&](wire::Control::Builder control) {
        auto request = control.initLeaseRequest();
        write_lease_options(wish, request);
        request.setHold(hold);
        request.setWantsFacts(hold);
        const auto& variables = config().cuda_environment;
        auto environment = request.initEnvironment(static_cast<unsigned>(variables.size()));
        for (unsigned i = 0; i < environment.size(); ++i) {
          environment[i].setName(variables[i].first);
          environment[i].setValue(variables[i].second);
        }
      },
      wire::Control::LEASE_ANSWER,
      [&](wire::Control::Reader control) {
        check_failure(control.getLeaseAnswer().getFailure(), name_);
        use(control.getLeaseAnswer());
      },
      limits::lease_timeout + wish.wait,  // a driver may have to be initialised
      meanwhile);
}

// Under a number that shells and programs do not count on for themselves.
void ControlConnection::bequeath() {
  constexpr int least = 200;
  if (::fcntl(channel_->descriptor(), F_DUPFD, least) < 0)
    throw SystemError(std::string("cannot keep the lease open for the program: ") + std::strerror(errno));
}

}  // namespace fargpu::client
