#include "broker.h"

#include <cuda.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "event_log.h"
#include "opcodes.h"
#include "pci.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/printable.h"

namespace fargpu::server {
namespace {

constexpr std::size_t callers_wanted = 1024;
constexpr auto accept_pause = std::chrono::milliseconds(100);
constexpr auto control_idle_max = std::chrono::seconds(60);
constexpr auto stop_patience = std::chrono::seconds(5);
constexpr unsigned environment_max = 64;

// What clients may set for their workers; the list the client sends is not trusted to be harmless.
bool environment_allowed(const std::string& name, const std::string& value) {
  static const std::set<std::string> names{
      "CUDA_MODULE_LOADING",  "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
      "CUDA_FORCE_PTX_JIT",   "CUDA_DISABLE_PTX_JIT",        "CUDA_CACHE_DISABLE",
      "CUDA_CACHE_MAXSIZE",   "CUDA_AUTO_BOOST",             "CUDA_SCALE_LAUNCH_QUEUES",
      "CUDA_MODULE_DATA_LOADING", "CUDA_BINARY_LOADER_THREAD_COUNT"};
  return names.contains(name) && value.size() <= 64 && value.find('\0') == std::string::npos;
}

using Socket = asio::generic::stream_protocol::socket;

// TCP tells of a peer that vanished without a word after about two minutes.
void keep_alive(Socket& socket) {
  socket.set_option(asio::socket_base::keep_alive(true));
  const int on = 1, idle = 30, interval = 15, count = 6;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

// As many descriptors as the system allows, up to what can be of use. Returns how many callers there may be at once, so that
// sessions never lack descriptors for them.
std::size_t raise_descriptor_limit(std::uint64_t sessions_max) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return callers_wanted / 4;
  const rlim_t useful = 4 * callers_wanted + 4 * sessions_max;
  if (limit.rlim_cur < useful) {
    limit.rlim_cur = std::min(limit.rlim_max, useful);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return std::min<std::size_t>(callers_wanted, limit.rlim_cur / 4 + 1);
}

}  // namespace

/// One client connection while it belongs to the broker. Lives as long as something is under way on it.
class Broker::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Broker& broker, asio::ip::tcp::socket socket) : broker_(broker), socket_(broker.io_), deadline_(broker.io_) {
    asio::error_code error;
    const auto endpoint = socket.remote_endpoint(error);
    client_.peer = error ? "?" : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
    // Who has our own address is on this machine, or behind a tunnel that ends here.
    near_ = !error && endpoint.address() == socket.local_endpoint(error).address();
    socket_ = std::move(socket);
    keep_alive(socket_);
    begin();
  }
  Connection(Broker& broker, asio::local::stream_protocol::socket socket)
      : broker_(broker), socket_(std::move(socket)), deadline_(broker.io_), by_socket_(true) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    if (::getsockopt(socket_.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0)
      client_.peer = fmt::format("unix:uid={},pid={}", peer.uid, peer.pid);
    begin();
  }

  void begin() {
    place_ = broker_.callers_.insert(broker_.callers_.end(), this);
    calling_ = true;
  }
  ~Connection() {
    stop_calling();
    if (ticket_) broker_.withdraw(*ticket_);
    if (local_) broker_.local_keys_.take_back(local_->key);
  }

  void cut(const std::string& why) {
    EventLog::warn("connection cut", {{"peer", client_.peer}, {"reason", why}});
    stop_calling();
    asio::error_code ignored;
    socket_.close(ignored);
  }

  void start() {
    asio::co_spawn(broker_.io_, [self = shared_from_this()] { return self->serve(); }, asio::detached);
  }

 private:
  void stop_calling() {
    if (calling_) broker_.callers_.erase(place_);
    calling_ = false;
  }

  asio::awaitable<void> serve() {
    try {
      expire_after(handshake_time());
      bool welcome = false;
      while (co_await read_frame()) {
        MessageReader reader(message_);
        const auto control = reader.root<wire::Control>();
        switch (control.which()) {
          case wire::Control::HELLO:
            welcome = co_await on_hello(control.getHello());
            if (!welcome) co_return;
            break;
          case wire::Control::LEASE_REQUEST:
            if (!welcome || !calling_) throw ProtocolError(welcome ? "a second request for a session" : "a request before hello");
            stop_calling();
            if (!co_await on_lease(control.getLeaseRequest())) co_return;
            break;
          case wire::Control::STATUS_REQUEST:
            if (!welcome) throw ProtocolError("a request before hello");
            co_await broker_.look_at_devices();
            co_await send([&](wire::Control::Builder answer) { broker_.write_status(answer.initStatus()); });
            break;
          case wire::Control::ATTACH:
            co_await on_attach(control.getAttach());
            co_return;
          case wire::Control::LANE:
            co_await on_lane(control.getLane());
            co_return;
          default:
            throw ProtocolError("a control message that a client does not send here");
        }
        expire_after(ticket_ ? handshake_time() : control_idle_max);
        if (calling_) broker_.callers_.splice(broker_.callers_.end(), broker_.callers_, place_);
      }
    } catch (const kj::Exception& error) {
      EventLog::warn("connection refused", {{"peer", client_.peer}, {"reason", error.getDescription().cStr()}});
    } catch (const ProtocolError& error) {
      EventLog::warn("connection refused", {{"peer", client_.peer}, {"reason", error.what()}});
    } catch (const asio::system_error& error) {
      // The peer went away, or was too slow.
      EventLog::debug("connection lost", {{"peer", client_.peer}, {"reason", error.what()}});
    }
  }

  std::chrono::seconds handshake_time() const { return std::chrono::seconds(broker_.settings_.handshake_seconds); }

  void expire_after(std::chrono::milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
      const auto self = weak.lock();
      asio::error_code ignored;
      if (!error && self) self->socket_.close(ignored);
    });
  }

  // The next frame's message; false at the end of the connection.
  asio::awaitable<bool> read_frame() {
    FrameHeader header;
    asio::error_code error;
    co_await asio::async_read(socket_, asio::buffer(&header, sizeof(header)), asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    check_frame_header(header, limits::open_message_bytes_max);
    if (header.kind != FrameKind::control || header.bulk_bytes != 0) throw ProtocolError("something else than a control message");
    if (header.sequence != ++received_) throw ProtocolError("a frame out of its turn");
    message_.resize(header.message_bytes);
    co_await asio::async_read(socket_, asio::buffer(message_), asio::use_awaitable);
    co_return true;
  }

  template <class Fill>
  asio::awaitable<void> send(Fill&& fill) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    const auto message = writer.finish();
    FrameHeader header;
    header.kind = FrameKind::control;
    header.message_bytes = static_cast<std::uint32_t>(message.size());
    header.sequence = ++sequence_;
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(&header, sizeof(header)), asio::buffer(message.data(), message.size())};
    co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  }

  asio::awaitable<bool> on_hello(wire::Hello::Reader hello) {
    client_.program = printable(hello.getProgram().cStr());
    client_.host_name = printable(hello.getHostName().cStr());
    client_.process_id = hello.getProcessId();
    const bool same = hello.getProtocolVersion() == wire::PROTOCOL_VERSION;
    if (!same) {
      EventLog::warn("client of another version", {{"peer", client_.peer}, {"protocol", hello.getProtocolVersion()}});
    }
    const std::uint32_t theirs = hello.getProtocolVersion();
    if (near_ && !local_ && broker_.settings_.shared_memory) local_ = broker_.local_keys_.issue();
    std::optional<LocalKeys::Number> proof;
    if (by_socket_) proof = broker_.local_keys_.proof_of({reinterpret_cast<const std::byte*>(hello.getLocalKey().begin()), hello.getLocalKey().size()});
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initHelloAnswer();
      answer.setProtocolVersion(wire::PROTOCOL_VERSION);
      answer.setSpecHash(spec_hash);
      answer.setVersion(FARGPU_VERSION);
      char name[256] = {};
      ::gethostname(name, sizeof(name) - 1);
      answer.setHostName(name);
      const auto data = [](const LocalKeys::Number& number) {
        return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(number.data()), number.size());
      };
      if (local_) {
        answer.setLocalSocket(broker_.local_keys_.socket_name());
        answer.setLocalKey(data(local_->key));
        answer.setLocalProof(data(local_->proof));
      } else if (proof) {
        answer.setLocalProof(data(*proof));
      }
      if (!same) {
        auto failure = answer.initFailure();
        failure.setReason(wire::Failure::Reason::VERSION_MISMATCH);
        failure.setText(fmt::format("this host's fargpud ({}) speaks protocol {}, the client {}; install the same fargpu on both",
                                    FARGPU_VERSION, wire::PROTOCOL_VERSION, theirs));
      }
    });
    co_return same;
  }

  asio::awaitable<bool> refuse_lease(wire::Failure::Reason reason, std::string text) {
    EventLog::info("lease refused", {{"peer", client_.peer}, {"program", client_.program}, {"reason", text}});
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initLeaseAnswer().initFailure();
      failure.setReason(reason);
      failure.setText(text);
    });
    co_return false;
  }

  asio::awaitable<bool> on_lease(wire::LeaseRequest::Reader request) {
    if (broker_.draining_) co_return co_await refuse_lease(wire::Failure::Reason::DRAINING, "this host is shutting down");
    if (broker_.workers_.taken() >= broker_.settings_.sessions_max) {
      co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY,
                                      fmt::format("all {} sessions of this host are taken; try later", broker_.settings_.sessions_max));
    }
    Environment environment;
    if (request.getEnvironment().size() > environment_max)
      co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "too many environment variables");
    for (const auto variable : request.getEnvironment()) {
      const std::string name = variable.getName().cStr(), value = variable.getValue().cStr();
      if (!environment_allowed(name, value))
        co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "environment variable " + printable(name) +
                                                                                " is not one that this host takes");
      environment[name] = value;
    }
    // There is news in any case: a worker becomes ready in its time, or fails. It is waited for by a timer that the news cancels.
    std::string failure;
    bool news = false;
    asio::steady_timer wake(broker_.io_, asio::steady_timer::time_point::max());
    deadline_.cancel();
    broker_.workers_.reserve(environment, [&](Worker* worker, const std::string& why) {
      // Promised before anything else can happen to the worker: then its end ends the promise too.
      if (worker) ticket_ = broker_.issue(*worker, client_);
      failure = why;
      news = true;
      wake.cancel();
    });
    if (!news) {
      asio::error_code ignored;
      co_await wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    expire_after(handshake_time());
    if (!ticket_) co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, failure);
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initLeaseAnswer();
      answer.setTicket(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(ticket_->data()), ticket_->size()));
      answer.setTicketSeconds(static_cast<std::uint32_t>(broker_.settings_.handshake_seconds));
    });
    co_return true;
  }

  asio::awaitable<void> on_attach(wire::Attach::Reader attach) {
    const auto bytes = attach.getTicket();
    ClientFacts client;
    Worker* const worker =
        broker_.redeem({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()}, client);
    if (!worker) {
      EventLog::warn("connection refused", {{"peer", client_.peer}, {"reason", "wrong, used or expired ticket"}});
      co_await send([&](wire::Control::Builder control) {
        auto failure = control.initAttachAnswer().initFailure();
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText("the ticket is wrong, used or expired; start the program again");
      });
      co_return;
    }
    client.peer = client_.peer;
    client.shares_memory = by_socket_ && attach.getSharedMemory();
    deadline_.cancel();
    const std::uint64_t id = broker_.next_session_++;
    if (!broker_.workers_.begin_session(*worker, id, client, socket_.release(), message_))
      EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
  }

  // The session's worker decides whether to take it.
  asio::awaitable<void> on_lane(wire::Lane::Reader lane) {
    deadline_.cancel();
    if (!broker_.workers_.has_session(lane.getSessionId())) {
      co_await send([&](wire::Control::Builder control) {
        auto failure = control.initLaneAnswer();
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText("there is no such session");
      });
      co_return;
    }
    broker_.workers_.add_lane(lane.getSessionId(), socket_.release(), message_);
  }

  Broker& broker_;
  Socket socket_;
  asio::steady_timer deadline_;
  ClientFacts client_;
  bool near_ = false;       // by TCP, from this machine
  bool by_socket_ = false;  // a Unix socket
  std::optional<LocalKeys::Pair> local_;
  std::list<Connection*>::iterator place_;  // among the callers
  bool calling_ = false;
  std::optional<Ticket> ticket_;  // what this connection was promised
  std::uint32_t sequence_ = 0;
  std::uint32_t received_ = 0;
  std::vector<std::byte> message_;
};

Broker::Broker(asio::io_context& io, const Settings& settings)
    : io_(io), settings_(settings), workers_(io, settings), device_watch_(io, settings.nvml), signals_(io), drain_timer_(io), accept_timer_(io), callers_max_(raise_descriptor_limit(settings.sessions_max)) {
  signals_.add(SIGCHLD);
  workers_.on_end = [this] {
    if (draining_ && workers_.all().empty()) finish_drain("every session has ended");
  };
  const auto wait = std::make_shared<std::function<void()>>();
  *wait = [this, wait] {
    signals_.async_wait([this, wait](const asio::error_code& error, int) {
      if (error) return;
      // A reservation may be for a worker that is gone now.
      std::set<const Worker*> before;
      for (const Worker& worker : workers_.all()) before.insert(&worker);
      workers_.reap();
      for (const Worker& worker : workers_.all()) before.erase(&worker);
      std::erase_if(reservations_, [&](const auto& entry) { return before.contains(entry.second.worker); });
      (*wait)();
    });
  };
  (*wait)();
}

void Broker::listen() {
  for (const ListenAddress& address : parse_listen(settings_.listen)) {
    if (address.socket.empty()) listen_by_tcp(address);
    else listen_on_socket(address.socket);
  }
  if (settings_.shared_memory && !acceptors_.empty()) listen_on_socket(std::string(1, '\0') + local_keys_.socket_name());
}

void Broker::listen_on_socket(const std::string& name) {
  const bool abstract = name.front() == '\0';
  const std::string shown = "unix:" + (abstract ? "@" + name.substr(1) : name);
  const asio::local::stream_protocol::endpoint endpoint(name);
  try {
    // A socket that a broker left behind, which nobody serves any more.
    asio::error_code refused;
    asio::local::stream_protocol::socket probe(io_);
    if (!abstract) probe.connect(endpoint, refused);
    if (refused == asio::error::connection_refused) ::unlink(name.c_str());
    asio::local::stream_protocol::acceptor& acceptor = local_acceptors_.emplace_back(io_);
    acceptor.open();
    acceptor.bind(endpoint);
    acceptor.listen();
    // The other is no address that anybody gives: clients hear of it.
    if (abstract) EventLog::debug("local socket", {{"address", shown}});
    else EventLog::info("listening", {{"address", shown}});
    accept(acceptor);
  } catch (const asio::system_error& failed) {
    const bool taken = failed.code() == asio::error::address_in_use;
    throw SettingsError("listen: cannot listen on " + shown + " (" + failed.code().message() + ")" +
                        (taken ? "; is another fargpud running?" : "; name a folder that this user may write to"));
  }
}

void Broker::listen_by_tcp(const ListenAddress& address) {
  asio::ip::tcp::resolver resolver(io_);
  asio::error_code error;
  const auto endpoints = resolver.resolve(address.host, std::to_string(address.port), asio::ip::tcp::resolver::passive, error);
  if (error) throw SettingsError("listen: there is no address '" + address.host + "' (" + error.message() + ")");
  const asio::ip::tcp::endpoint endpoint = *endpoints.begin();
  if (!endpoint.address().is_loopback()) {
    if (!settings_.insecure) {
      throw SettingsError("listen: " + endpoint.address().to_string() +
                          " can be reached from other machines, and nothing is encrypted or authenticated yet; listen on "
                          "127.0.0.1 (and tunnel), or accept the risk with --insecure");
    }
    EventLog::warn("insecure", {{"address", endpoint.address().to_string()},
                                {"meaning", "whoever reaches this port can use the GPUs; nothing is encrypted"}});
  }
  try {
    asio::ip::tcp::acceptor& acceptor = acceptors_.emplace_back(io_);
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    const auto bound = acceptor.local_endpoint();
    EventLog::info("listening", {{"address", bound.address().to_string()}, {"port", bound.port()}});
    accept(acceptor);
  } catch (const asio::system_error& failed) {
    const bool taken = failed.code() == asio::error::address_in_use;
    const bool privileged = failed.code() == asio::error::access_denied;
    throw SettingsError("listen: cannot listen on " + address.host + ":" + std::to_string(address.port) + " (" + failed.code().message() +
                        "); " + (taken        ? "is another fargpud running?"
                                 : privileged ? "ports below 1024 are for root"
                                              : "name an address that this machine has"));
  }
}

template <class Acceptor>
void Broker::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](const asio::error_code& error, typename Acceptor::protocol_type::socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {
      // Most likely descriptors or memory ran out, which does not change at once.
      EventLog::warn("cannot accept", {{"reason", error.message()}});
      make_room();
      accept_timer_.expires_after(accept_pause);
      accept_timer_.async_wait([this, &acceptor](const asio::error_code& stopped) {
        if (!stopped) accept(acceptor);
      });
      return;
    }
    if (callers_.size() >= callers_max_) make_room();
    std::make_shared<Connection>(*this, std::move(socket))->start();
    accept(acceptor);
  });
}

void Broker::make_room() {
  if (!callers_.empty()) callers_.front()->cut("room was needed for others");
}

Broker::Ticket Broker::issue(Worker& worker, const ClientFacts& client) {
  Ticket ticket;
  if (::getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size()))
    throw SystemError("no random numbers");
  Reservation& reservation = reservations_[ticket];
  reservation.worker = &worker;
  reservation.client = client;
  reservation.expiry = std::make_unique<asio::steady_timer>(io_, std::chrono::seconds(settings_.handshake_seconds));
  reservation.expiry->async_wait([this, ticket](const asio::error_code& error) {
    if (!error) withdraw(ticket);
  });
  return ticket;
}

void Broker::withdraw(const Ticket& ticket) {
  const auto found = reservations_.find(ticket);
  if (found == reservations_.end()) return;  // used, or its worker is gone
  EventLog::info("ticket unused", {{"program", found->second.client.program}, {"worker", found->second.worker->process}});
  workers_.release(*found->second.worker);
  reservations_.erase(found);
}

Worker* Broker::redeem(std::span<const std::byte> bytes, ClientFacts& client) {
  Ticket ticket;
  if (bytes.size() != ticket.size()) return nullptr;
  std::memcpy(ticket.data(), bytes.data(), ticket.size());
  const auto found = reservations_.find(ticket);
  if (found == reservations_.end()) return nullptr;
  Worker* const worker = found->second.worker;
  client = found->second.client;
  reservations_.erase(found);
  return worker;
}

asio::awaitable<void> Broker::look_at_devices() {
  std::vector<std::string> uuids;
  if (const auto facts = workers_.facts())
    for (const auto device : facts->getDevices())
      uuids.emplace_back(reinterpret_cast<const char*>(device.getUuid().begin()), device.getUuid().size());
  co_await device_watch_.refresh(std::move(uuids));
}

void Broker::write_status(wire::Status::Builder status) {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  status.setHostName(name);
  status.setVersion(FARGPU_VERSION);
  status.setDriver(settings_.driver);
  status.setDraining(draining_);
  status.setStartedSeconds(static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(started_)));
  const auto facts = workers_.facts();
  if (!workers_.failure().empty()) {
    auto failure = status.initFailure();
    failure.setReason(wire::Failure::Reason::HOST_ERROR);
    failure.setText(workers_.failure());
  }
  unsigned sessions = 0, warm = 0;
  for (const Worker& worker : workers_.all()) {
    sessions += worker.state == Worker::State::session;
    warm += worker.state == Worker::State::ready;
  }
  status.setWarmWorkers(warm);
  status.setSessionsMax(static_cast<std::uint32_t>(settings_.sessions_max));
  status.setSessionsTaken(static_cast<std::uint32_t>(workers_.taken()));
  if (facts) {
    status.setDriverVersion(facts->getDriverVersion());
    status.setDriverRelease(facts->getDriverRelease());
    const auto known = facts->getDevices();
    auto devices = status.initDevices(known.size());
    for (unsigned i = 0; i < devices.size(); ++i) {
      const auto from = known[i];
      auto to = devices[i];
      to.setName(from.getName());
      to.setUuid(from.getUuid());
      to.setMemoryBytes(from.getMemoryBytes());
      std::uint64_t used = 0;
      for (const Worker& worker : workers_.all())
        if (worker.state == Worker::State::session && i < worker.memory_bytes.size()) used += worker.memory_bytes[i];
      to.setUsedBytes(used);
      unsigned major = 0, minor = 0;
      for (const auto attribute : from.getAttributes()) {
        const auto value = static_cast<unsigned>(attribute.getValue());
        switch (attribute.getAttribute()) {
          case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: to.setPciDomain(value); break;
          case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: to.setPciBus(value); break;
          case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: to.setPciDevice(value); break;
          case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: major = value; break;
          case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: minor = value; break;
          default: break;
        }
      }
      to.setComputeCapability(10 * major + minor);
      const PciIds ids = pci_ids(to.getPciDomain(), to.getPciBus(), to.getPciDevice());
      to.setPciDeviceId(ids.device);
      to.setPciSubSystemId(ids.subsystem);
      to.setAttributes(from.getAttributes());
      const auto readings = device_watch_.readings(i);
      auto list = to.initReadings(static_cast<unsigned>(readings.size()));
      for (unsigned r = 0; r < list.size(); ++r) {
        list[r].setKind(readings[r].kind);
        list[r].setValue(readings[r].value);
      }
    }
    status.setPeers(facts->getPeers());
    const std::vector<HostNvml::Distance> distances = device_watch_.distances();
    auto list = status.initDistances(static_cast<unsigned>(distances.size()));
    for (unsigned d = 0; d < list.size(); ++d) {
      list[d].setFrom(distances[d].from);
      list[d].setTo(distances[d].to);
      list[d].setLevel(distances[d].level);
    }
  }
  auto list = status.initSessions(sessions);
  unsigned i = 0;
  for (const Worker& worker : workers_.all()) {
    if (worker.state != Worker::State::session) continue;
    auto to = list[i++];
    to.setId(worker.session);
    to.setProgram(worker.client.program);
    to.setHostName(worker.client.host_name);
    to.setProcessId(worker.client.process_id);
    to.setWorkerId(static_cast<std::uint32_t>(worker.process));
    to.setStartedSeconds(static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(worker.started)));
    auto memory = to.initMemoryBytes(static_cast<unsigned>(worker.memory_bytes.size()));
    for (unsigned d = 0; d < worker.memory_bytes.size(); ++d) memory.set(d, worker.memory_bytes[d]);
    to.setCalls(worker.calls);
    to.setSharedMemory(worker.client.shares_memory);
  }
}

void Broker::drain(const std::string& why, std::chrono::seconds patience) {
  if (draining_) {  // the second word ends it now
    workers_.kill_all();
    finish_drain("told twice");
    return;
  }
  draining_ = true;
  EventLog::info("draining", {{"reason", why}, {"sessions", workers_.sessions()}, {"seconds", patience.count()}});
  const auto stop = [this, why] {
    workers_.stop_all("the host's fargpud is shutting down");
    if (workers_.all().empty()) {
      finish_drain("no session left");
      return;
    }
    drain_timer_.expires_after(stop_patience);
    drain_timer_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      workers_.kill_all();
      finish_drain("workers did not end by themselves");
    });
  };
  if (workers_.sessions() == 0) {
    stop();
    return;
  }
  // Look once a second whether the last session has ended.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto look = std::make_shared<std::function<void()>>();
  *look = [this, deadline, stop, look] {
    if (workers_.sessions() == 0 || std::chrono::steady_clock::now() >= deadline) {
      stop();
      return;
    }
    drain_timer_.expires_after(std::chrono::milliseconds(200));
    drain_timer_.async_wait([look](const asio::error_code& error) {
      if (!error) (*look)();
    });
  };
  (*look)();
}

void Broker::finish_drain(const std::string& why) {
  EventLog::info("stopped", {{"reason", why}});
  io_.stop();
}

}  // namespace fargpu::server
