#include "broker.h"

#include <cuda.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <set>

#include "event_log.h"
#include "opcodes.h"
#include "pci.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/printable.h"
#include "protocol/quantity.h"

namespace fargpu::server {
namespace {

constexpr std::size_t callers_wanted = 1024;
constexpr auto accept_pause = std::chrono::milliseconds(100);
constexpr auto control_idle_max = std::chrono::seconds(60);
constexpr auto memory_interval = std::chrono::seconds(1);
// Sessions that have ended give their memory back by the end of their processes, which the driver may take its time for. Who asks meanwhile
// is not refused for the want of it before this; and never before a program's end, which its starter sees first, can have been heard of here.
constexpr auto giving_back_max = std::chrono::seconds(3);
constexpr auto end_heard_within = std::chrono::milliseconds(100);
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

// Where a connection is from, by which callers are counted: an address, or a user of this machine.
std::string source_of(const asio::ip::tcp::socket& socket) {
  asio::error_code gone;
  return socket.remote_endpoint(gone).address().to_string();
}
std::optional<ucred> user_of(const asio::local::stream_protocol::socket& socket) {
  ucred user{};
  socklen_t length = sizeof(user);
  // Asio knows no constant handles.
  const int descriptor = const_cast<asio::local::stream_protocol::socket&>(socket).native_handle();
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 ? std::optional(user) : std::nullopt;
}
std::string source_of(const asio::local::stream_protocol::socket& socket) {
  const auto user = user_of(socket);
  return user ? "user " + std::to_string(user->uid) : "nobody";
}

// The loopback's own address is everybody's on this machine, and that of all who come through a tunnel which ends here: any one of them could
// shut out the others by it, and what his floods cost without that is little. (Another one, such as 127.0.0.2, somebody took on purpose.)
bool everybodys(const std::string& source) { return source == "127.0.0.1" || source == "::1" || source == "::ffff:127.0.0.1"; }

// The answer to the hello that is not read any more, as far as it goes without waiting.
template <class AnySocket>
void say_shut_out(AnySocket& socket) {
  MessageWriter writer;
  auto answer = writer.root<wire::Control>().initHelloAnswer();
  answer.setProtocolVersion(wire::PROTOCOL_VERSION);
  auto failure = answer.initFailure();
  failure.setReason(wire::Failure::Reason::NO_CAPACITY);
  failure.setText("this host has shut out your address for up to a minute, because too many connections from there came to nothing "
                  "(refusals_per_address_max); its log says which. Try again then");
  const auto message = writer.finish();
  FrameHeader header;
  header.kind = FrameKind::control;
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.sequence = 1;
  iovec parts[] = {{&header, sizeof(header)}, {const_cast<std::byte*>(message.data()), message.size()}};
  msghdr whole{};
  whole.msg_iov = parts;
  whole.msg_iovlen = std::size(parts);
  ::sendmsg(socket.native_handle(), &whole, MSG_NOSIGNAL | MSG_DONTWAIT);
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
  Connection(Broker& broker, asio::ip::tcp::socket socket, Transport transport)
      : broker_(broker), socket_(broker.io_), transport_(transport), deadline_(broker.io_) {
    asio::error_code error;
    const auto endpoint = socket.remote_endpoint(error);
    source_ = source_of(socket);
    client_.peer = error ? "?" : source_ + ":" + std::to_string(endpoint.port());
    here_ = !error && endpoint.address().is_loopback();
    // Who has our own address is on this machine, or behind a tunnel that ends here.
    near_ = !error && transport == Transport::plain && endpoint.address() == socket.local_endpoint(error).address();
    socket_ = std::move(socket);
    keep_alive(socket_);
    begin();
  }
  Connection(Broker& broker, asio::local::stream_protocol::socket socket, Transport transport)
      : broker_(broker), socket_(broker.io_), transport_(transport), deadline_(broker.io_), source_(source_of(socket)), here_(true), by_socket_(true) {
    if (const auto peer = user_of(socket)) {
      client_.peer = fmt::format("unix:uid={},pid={}", peer->uid, peer->pid);
      shown_.user = peer->uid;
    }
    socket_ = std::move(socket);
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

  const std::string& source() const { return source_; }

  void cut(const std::string& why) {
    broker_.offended("connection cut", client_.peer, source_, why);
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
      if (transport_ == Transport::tls && !co_await open_tls()) co_return;
      bool welcome = false;
      while (co_await read_frame()) {
        MessageReader reader(message_);
        const auto control = reader.root<wire::Control>();
        switch (control.which()) {
          case wire::Control::HELLO:
            if (welcome) throw ProtocolError("a second hello");
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
            {
              const std::shared_ptr<const Lease> seen = broker_.lease_of(client_, job_);
              co_await send([&](wire::Control::Builder answer) { broker_.write_status(answer.initStatus(), client_.tenant, seen.get()); });
            }
            break;
          case wire::Control::SCHEDULING_REQUEST:
            if (!welcome) throw ProtocolError("a request before hello");
            co_await on_scheduling(control.getSchedulingRequest());
            break;
          case wire::Control::ATTACH:
            if (transport_ == Transport::tls) throw ProtocolError("an attach on a control connection");
            co_await on_attach(control.getAttach());
            co_return;
          case wire::Control::LANE:
            if (transport_ == Transport::tls) throw ProtocolError("a bulk lane on a control connection");
            co_await on_lane(control.getLane());
            co_return;
          default:
            throw ProtocolError("a control message that a client does not send here");
        }
        if (lease_) deadline_.cancel();  // it lasts as long as this connection
        else expire_after(ticket_ ? handshake_time() : control_idle_max);
        if (calling_) broker_.callers_.splice(broker_.callers_.end(), broker_.callers_, place_);
      }
    } catch (const kj::Exception& error) {
      refused(error.getDescription().cStr());
    } catch (const ProtocolError& error) {
      refused(error.what());
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
      if (error || !self) return;
      if (self->calling_ && self->received_ == 0) self->refused("said nothing in time");
      self->socket_.close(ignored);
    });
  }

  void refused(const std::string& reason) { broker_.offended("connection refused", client_.peer, source_, reason); }

  // The next frame's message; false at the end of the connection.
  asio::awaitable<bool> read_frame() {
    FrameHeader header;
    asio::error_code error;
    co_await read(asio::buffer(&header, sizeof(header)), error);
    if (error) co_return false;
    check_frame_header(header, limits::open_message_bytes_max);
    if (header.kind != FrameKind::control || header.bulk_bytes != 0) throw ProtocolError("something else than a control message");
    if (header.sequence != ++received_) throw ProtocolError("a frame out of its turn");
    message_.resize(header.message_bytes);
    co_await read(asio::buffer(message_), error);
    if (error) throw asio::system_error(error);
    co_return true;
  }

  asio::awaitable<void> read(asio::mutable_buffer buffer, asio::error_code& error) {
    if (tls_) co_await asio::async_read(*tls_, buffer, asio::redirect_error(asio::use_awaitable, error));
    else co_await asio::async_read(socket_, buffer, asio::redirect_error(asio::use_awaitable, error));
  }

  // What comes first where TLS is spoken: a handshake, or in the clear whose session this is. True if a control connection begins.
  asio::awaitable<bool> open_tls() {
    constexpr unsigned char handshake_record = 0x16;  // RFC 8446, 5.1; no frame begins so, since lengths are multiples of 8
    asio::error_code error;
    co_await socket_.async_wait(asio::socket_base::wait_read, asio::redirect_error(asio::use_awaitable, error));
    unsigned char first = 0;
    if (error || ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) co_return false;
    if (first == handshake_record) {
      context_ = broker_.tls_;
      tls_.emplace(socket_, *context_);
      co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        refused("TLS: " + error.message());
        co_return false;
      }
      shown_ = {true, tls_common_name(tls_->native_handle()), tls_key_identity(tls_->native_handle()), "", std::nullopt};
      co_return true;
    }
    if (!co_await read_frame()) co_return false;
    MessageReader reader(message_);
    const auto control = reader.root<wire::Control>();
    if (control.isRoute()) {
      co_await on_route(control.getRoute());
      co_return false;
    }
    if (control.isLane()) {
      co_await on_lane(control.getLane());
      co_return false;
    }
    if (!control.isHello()) throw ProtocolError("neither TLS nor a session's name where TLS is spoken");
    refused("a client without TLS");
    co_await send([&](wire::Control::Builder answer) {
      auto failure = answer.initHelloAnswer().initFailure();
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("this port speaks TLS; write FARGPU_POOL=tls://host:port, and set FARGPU_CA");
    });
    co_return false;
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
    if (tls_) co_await asio::async_write(*tls_, buffers, asio::use_awaitable);
    else co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  }

  asio::awaitable<bool> on_hello(wire::Hello::Reader hello) {
    client_.program = printable(hello.getProgram().cStr());
    client_.host_name = printable(hello.getHostName().cStr());
    client_.process_id = hello.getProcessId();
    if (hello.hasJob()) job_ = read_job(hello.getJob());
    shown_.token = hello.getToken().cStr();
    const auto [tenant, denied] = broker_.identity_->judge(shown_, broker_.leases_.tenants());
    shown_.token.clear();
    client_.tenant = tenant;
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
      answer.setTenant(client_.tenant);
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
      if (same && !denied.empty()) {
        auto failure = answer.initFailure();
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText(denied);
      }
      if (!same) {
        auto failure = answer.initFailure();
        failure.setReason(wire::Failure::Reason::VERSION_MISMATCH);
        failure.setText(fmt::format("this host's fargpud ({}) speaks protocol {}, the client {}; install the same fargpu on both",
                                    FARGPU_VERSION, wire::PROTOCOL_VERSION, theirs));
      }
    });
    if (!denied.empty()) broker_.offended("client denied", client_.peer, source_, denied);
    co_return same && denied.empty();
  }

  static JobKey read_job(capnp::Data::Reader bytes) {
    JobKey job;
    if (bytes.size() != job.size()) throw ProtocolError("a job's key of a wrong length");
    std::memcpy(job.data(), bytes.begin(), job.size());
    return job;
  }

  asio::awaitable<bool> refuse_lease(wire::Failure::Reason reason, std::string text) {
    ++broker_.admissions_["refused"];
    EventLog::info("lease refused", {{"peer", client_.peer}, {"program", client_.program}, {"reason", text}});
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initLeaseAnswer().initFailure();
      failure.setReason(reason);
      failure.setText(text);
    });
    co_return false;
  }

  // What would have to change before this client can have a lease; nothing once it has one. Then `lease` is set, and `session` if it is
  // for one.
  std::optional<LeaseRefusal> try_lease(const LeaseWish& wish, const std::optional<JobKey>& job, bool hold, const Waiter* place,
                                        std::shared_ptr<Lease>& lease, std::unique_ptr<LeaseSession>& session) {
    if (broker_.draining_) return LeaseRefusal{false, "this host is shutting down"};
    if (broker_.workers_.taken() + broker_.leases_.before(place, client_.tenant, Lack::host_sessions) >= broker_.settings_.sessions_max) {
      return LeaseRefusal{true, fmt::format("all {} sessions of this host are taken; try later", broker_.settings_.sessions_max),
                          Lack::host_sessions};
    }
    const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
    if (!tenant) return LeaseRefusal{false, fmt::format("tenant '{}' is none of this host any more", client_.tenant)};
    auto granted = broker_.leases_.grant(*tenant, wish, job, place);
    if (auto* const refusal = std::get_if<LeaseRefusal>(&granted)) return std::move(*refusal);
    lease = std::get<std::shared_ptr<Lease>>(granted);
    if (hold) return std::nullopt;
    auto begun = broker_.leases_.begin_session(lease, place);
    if (auto* const refusal = std::get_if<LeaseRefusal>(&begun)) {
      lease.reset();
      return std::move(*refusal);
    }
    session = std::get<std::unique_ptr<LeaseSession>>(std::move(begun));
    return std::nullopt;
  }

  asio::awaitable<bool> on_lease(wire::LeaseRequest::Reader request) {
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
    const LeaseWish wish{request.getGpus(), request.getMemoryBytes(), request.getComputePercent(), request.getPriority()};
    const bool hold = request.getHold();
    std::optional<JobKey> job;
    if (request.hasJob()) job = read_job(request.getJob());
    if (hold && !job) co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "a lease to hold needs a job");
    const auto deadline =
        std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(std::chrono::milliseconds(request.getWaitMs()), limits::lease_wait_max);

    std::shared_ptr<Lease> lease;
    std::unique_ptr<LeaseSession> session;
    counted_ = broker_.patient_.take();
    if (!counted_) co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY, "too many clients wait for this host; try later");
    deadline_.cancel();
    std::shared_ptr<Waiter> place;  // in the queue
    const auto begin = std::chrono::steady_clock::now();
    // Who asks for nothing in particular counts on what is there: it is not much less for what is being given back.
    const bool first = !job || !broker_.leases_.find(client_.tenant, *job);
    while (first && wish.memory_bytes == 0 && broker_.much_is_given_back(client_.tenant) && std::chrono::steady_clock::now() < begin + giving_back_max)
      if (!co_await wait_for_change(begin + giving_back_max)) co_return false;
    while (const auto refusal = try_lease(wish, job, hold, place.get(), lease, session)) {
      const bool soon = broker_.workers_.giving_back([](const Lease&, unsigned) { return std::uint64_t{0}; });
      const auto until = std::max(deadline, begin + (soon ? std::chrono::milliseconds(giving_back_max) : end_heard_within));
      if (!refusal->may_change || std::chrono::steady_clock::now() >= until) {
        const auto reason = broker_.draining_     ? wire::Failure::Reason::DRAINING
                            : refusal->may_change ? wire::Failure::Reason::NO_CAPACITY
                                                  : wire::Failure::Reason::DENIED;
        co_return co_await refuse_lease(reason, refusal->text);
      }
      EventLog::debug("lease waits", {{"peer", client_.peer}, {"program", client_.program}, {"reason", refusal->text}});
      if (const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant); !place && tenant)
        place = broker_.leases_.wait(*tenant, wish);
      if (place) place->lack = refusal->lack;
      if (!co_await wait_for_change(until)) co_return false;
    }
    place.reset();
    if (hold) {
      expire_after(handshake_time());
      co_await send([&](wire::Control::Builder control) { write_lease(*lease, control.initLeaseAnswer()); });
      EventLog::info("lease held", {{"peer", client_.peer}, {"program", client_.program}, {"tenant", client_.tenant}, {"lease", lease->id}});
      lease_ = std::move(lease);
      co_return true;
    }
    counted_ = {};

    // There is news in any case: a worker becomes ready in its time, or fails. It is waited for by a timer that the news cancels.
    std::string failure;
    bool news = false;
    asio::steady_timer wake(broker_.io_, asio::steady_timer::time_point::max());
    broker_.workers_.reserve(broker_.profile(std::move(environment), *lease), [&](Worker* worker, const std::string& why) {
      // Promised before anything else can happen to the worker: then its end ends the promise too.
      if (worker) {
        worker->lease = std::move(session);
        ticket_ = broker_.issue(*worker, client_, transport_);
      }
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
    ++broker_.admissions_["granted"];
    EventLog::debug("lease granted", {{"peer", client_.peer}, {"program", client_.program}, {"tenant", client_.tenant}, {"lease", lease->id}});
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initLeaseAnswer();
      answer.setTicket(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(ticket_->data()), ticket_->size()));
      if (transport_ == Transport::tls) {
        const TicketName& name = broker_.reservations_.at(*ticket_).name;
        answer.setTicketName(capnp::Data::Reader(reinterpret_cast<const kj::byte*>(name.data()), name.size()));
      }
      answer.setTicketSeconds(static_cast<std::uint32_t>(broker_.settings_.handshake_seconds));
      write_lease(*lease, answer);
    });
    co_return true;
  }

  // Until a lease or a session has ended somewhere, or the time is over. False if the client has gone meanwhile.
  asio::awaitable<bool> wait_for_change(std::chrono::steady_clock::time_point deadline) {
    constexpr auto look_at_client = std::chrono::seconds(1);
    asio::steady_timer wake(broker_.io_);
    bool changed = false;
    const auto watch = broker_.leases_.watch([&] {
      changed = true;
      wake.cancel();
    });
    while (!changed && std::chrono::steady_clock::now() < deadline) {
      wake.expires_at(std::min(deadline, std::chrono::steady_clock::now() + look_at_client));
      asio::error_code ignored;
      co_await wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      char byte;
      const ssize_t got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) co_return false;
    }
    co_return true;
  }

  static void write_lease(const Lease& lease, wire::LeaseAnswer::Builder answer) {
    answer.setLease(lease.id);
    answer.setMemoryBytes(lease.memory_bytes);
    auto devices = answer.initDevices(static_cast<unsigned>(lease.devices.size()));
    for (unsigned i = 0; i < devices.size(); ++i) devices.set(i, lease.devices[i]);
  }

  asio::awaitable<void> on_scheduling(wire::SchedulingRequest::Reader request) {
    const bool allowed = broker_.may_administer(client_.tenant, here_);
    const std::string refusal = allowed ? broker_.change_scheduling(request)
                                        : "only administrators may change this: tenants that the settings name so or, where they name no tenants, "
                                          "who is on the GPU host itself";
    if (!refusal.empty()) EventLog::warn("scheduling not changed", {{"peer", client_.peer}, {"tenant", client_.tenant}, {"reason", refusal}});
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initSchedulingAnswer().initFailure();
      if (refusal.empty()) return;
      failure.setReason(allowed ? wire::Failure::Reason::BAD_REQUEST : wire::Failure::Reason::DENIED);
      failure.setText(refusal);
    });
  }

  asio::awaitable<void> on_attach(wire::Attach::Reader attach) {
    const auto bytes = attach.getTicket();
    ClientFacts client;
    Worker* const worker =
        broker_.redeem({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()}, client);
    if (!worker) {
      refused("wrong, used or expired ticket");
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
    if (!broker_.workers_.begin_session(*worker, id, client, {.descriptor = socket_.release(), .attach = message_}))
      EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
  }

  // What follows on the connection is between the client and the worker, which both have the ticket.
  asio::awaitable<void> on_route(wire::Route::Reader route) {
    const auto bytes = route.getTicketName();
    const std::span<const std::byte> name(reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size());
    ClientFacts client;
    Ticket ticket;
    Worker* const worker = broker_.redeem_name(name, client, ticket);
    if (!worker) {
      refused("wrong, used or expired ticket");
      co_return;
    }
    client.peer = client_.peer;
    deadline_.cancel();
    const std::uint64_t id = broker_.next_session_++;
    if (!broker_.workers_.begin_session(*worker, id, client, {.descriptor = socket_.release(), .ticket_name = name, .ticket = ticket}))
      EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
  }

  // The session's worker decides whether to take it; where TLS is spoken it and the client have a key for that.
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
  const Transport transport_;
  std::shared_ptr<asio::ssl::context> context_;                  // that this connection began with
  std::optional<asio::ssl::stream<Socket&>> tls_;  // over socket_, once its handshake is done
  Shown shown_;
  asio::steady_timer deadline_;
  std::string source_;
  ClientFacts client_;
  bool here_ = false;       // from this machine
  bool near_ = false;       // by TCP, from this machine
  bool by_socket_ = false;  // a Unix socket
  std::optional<LocalKeys::Pair> local_;
  std::list<Connection*>::iterator place_;  // among the callers
  bool calling_ = false;
  std::optional<Ticket> ticket_;  // what this connection was promised
  std::optional<JobKey> job_;     // that the client belongs to
  std::shared_ptr<Lease> lease_;  // that this connection holds
  Count::Part counted_;           // among those that wait for a lease or hold one
  std::uint32_t sequence_ = 0;
  std::uint32_t received_ = 0;
  std::vector<std::byte> message_;
};

Broker::Broker(asio::io_context& io, const Settings& settings)
    : io_(io), settings_(settings), leases_(settings.sessions_max), workers_(io, settings), device_watch_(io, settings.nvml), signals_(io), drain_timer_(io), accept_timer_(io), callers_max_(raise_descriptor_limit(settings.sessions_max)), offences_(settings.refusals_per_address_max), patient_(callers_max_) {
  signals_.add(SIGCHLD);
  leases_.set_tenants(Tenants::read(settings.file));
  take_identity(std::make_unique<Identity>(settings));
  workers_.on_facts = [this] {
    std::vector<std::uint64_t> memory_bytes;
    for (const auto device : workers_.facts()->getDevices()) memory_bytes.push_back(device.getMemoryBytes());
    const bool news = !leases_.knows_devices();
    leases_.set_devices(std::move(memory_bytes));
    if (news) warn_of_tenants();
  };
  workers_.on_end = [this] {
    if (draining_ && workers_.all().empty()) finish_drain("every session has ended");
  };
  asio::co_spawn(io_, watch_memory(), asio::detached);
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

void Broker::take_identity(std::unique_ptr<Identity> identity) {
  tls_.reset();
  if (const TlsContext& context = identity->context()) {
    SSL_CTX_up_ref(context.get());  // what is made of it takes one
    tls_ = std::make_shared<asio::ssl::context>(context.get());
  }
  identity_ = std::move(identity);
}

// What was written for nobody. A device may come back and a tenant be added: it is no reason not to serve the others.
void Broker::warn_of_tenants() {
  const auto have = workers_.facts()->getDevices().size();
  for (const auto& [name, tenant] : leases_.tenants().all()) {
    for (const unsigned device : tenant.devices) {
      if (device < have) continue;
      EventLog::warn("no such device", {{"tenant", name}, {"device", device}, {"devices", have},
                                        {"meaning", "devices of a tenant are places among those offered, from 0; without one it is refused"}});
    }
  }
  try {
    for (const site::TokenEntry& stray : identity_->strays(leases_.tenants()))
      EventLog::warn("token of no tenant", {{"token", stray.name}, {"tenant", stray.tenant},
                                            {"meaning", "whoever shows it is refused until the settings have [tenant." + stray.tenant + "]"}});
  } catch (const site::TokenError& error) {
    EventLog::error("no tokens", {{"reason", error.what()}});
  }
}

void Broker::reload() {
  try {
    Tenants tenants = Tenants::read(settings_.file);
    auto identity = std::make_unique<Identity>(settings_);
    if (tls_ && !identity->context()) throw SettingsError("TLS is spoken here, and nothing is left to speak it with");
    take_identity(std::move(identity));
    leases_.set_tenants(std::move(tenants));
    EventLog::info("reloaded", {{"file", settings_.file}});
    if (leases_.knows_devices()) warn_of_tenants();
  } catch (const SettingsError& error) {
    EventLog::error("not reloaded", {{"reason", error.what()}, {"meaning", "everything stays as it was"}});
  }
}

void Broker::listen() {
  if (!settings_.metrics_listen.empty())
    metrics_ = std::make_unique<MetricsServer>(io_, settings_.metrics_listen, settings_.insecure, [this] { return write_metrics(); });
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
    accept(acceptor, Transport::plain);
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
  const bool loopback = endpoint.address().is_loopback();
  const bool tls = address.transport == ListenAddress::Transport::tls ||
                   (address.transport == ListenAddress::Transport::usual && !loopback && !settings_.insecure);
  if (tls && !tls_) {
    throw SettingsError("listen: " + endpoint.address().to_string() +
                        (loopback ? " is to speak TLS" : " can be reached from other machines, and therefore speaks TLS") +
                        ", which needs tls_certificate and tls_key (`fargpu pki` makes them) or psk_file; give them" +
                        (loopback ? "" : ", listen on 127.0.0.1 (and tunnel), or accept the risk with --insecure"));
  }
  if (!tls && !loopback) {
    if (!settings_.insecure) {
      throw SettingsError("listen: " + endpoint.address().to_string() +
                          " can be reached from other machines, and tcp:// is neither encrypted nor authenticated; write tls://, or accept the "
                          "risk with --insecure");
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
    EventLog::info("listening", {{"transport", tls ? "tls" : "tcp"}, {"address", bound.address().to_string()}, {"port", bound.port()}});
    accept(acceptor, tls ? Transport::tls : Transport::plain);
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
void Broker::accept(Acceptor& acceptor, Transport transport) {
  acceptor.async_accept([this, &acceptor, transport](const asio::error_code& error, typename Acceptor::protocol_type::socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {
      // Most likely descriptors or memory ran out, which does not change at once.
      EventLog::warn("cannot accept", {{"reason", error.message()}});
      make_room();
      accept_timer_.expires_after(accept_pause);
      accept_timer_.async_wait([this, &acceptor, transport](const asio::error_code& stopped) {
        if (!stopped) accept(acceptor, transport);
      });
      return;
    }
    if (const std::string source = source_of(socket); !everybodys(source) && offences_.shut_out(source, Offences::Clock::now())) {
      if (transport == Transport::plain) say_shut_out(socket);
    } else {
      if (callers_.size() >= callers_max_) make_room();
      make_room(source);
      std::make_shared<Connection>(*this, std::move(socket), transport)->start();
    }
    accept(acceptor, transport);
  });
}

void Broker::make_room() {
  if (!callers_.empty()) callers_.front()->cut("room was needed for others");
}

void Broker::offended(const char* event, const std::string& peer, const std::string& source, const std::string& reason) {
  const Offences::Told told = offences_.add(source, Offences::Clock::now());
  if (told == Offences::Told::shut_out && everybodys(source)) {
    EventLog::warn("source not shut out", {{"source", source}, {"refused", settings_.refusals_per_address_max}, {"reason", reason},
                                           {"meaning", "it is everybody's on this machine; find out who does this"}});
  } else if (told == Offences::Told::shut_out) {
    EventLog::warn("source shut out", {{"source", source}, {"refused", settings_.refusals_per_address_max}, {"reason", reason}});
  } else if (told == Offences::Told::not_any_more) {
    EventLog::debug(event, {{"peer", peer}, {"reason", reason}});
  } else if (told == Offences::Told::last) {
    EventLog::warn(event, {{"peer", peer}, {"reason", reason}, {"meaning", "more of the same source in this minute are told at level debug only"}});
  } else {
    EventLog::warn(event, {{"peer", peer}, {"reason", reason}});
  }
}

void Broker::make_room(const std::string& source) {
  const auto from_there = [&](const Connection* caller) { return caller->source() == source; };
  if (static_cast<std::uint64_t>(std::count_if(callers_.begin(), callers_.end(), from_there)) < settings_.callers_per_address_max) return;
  (*std::find_if(callers_.begin(), callers_.end(), from_there))->cut("too many connections from one address");
}

bool Broker::much_is_given_back(const std::string& tenant) const {
  const Tenant* const asking = leases_.tenants().find(tenant);
  const auto facts = workers_.facts();
  return facts && workers_.giving_back([&](const Lease& lease, unsigned device) {
    std::uint64_t all = facts->getDevices()[device].getMemoryBytes();
    if (asking && asking->memory_bytes != 0 && lease.tenant == tenant) all = std::min(all, asking->memory_bytes);
    return std::max<std::uint64_t>(1, all / 4);
  });
}

Broker::Ticket Broker::issue(Worker& worker, const ClientFacts& client, Transport transport) {
  Ticket ticket;
  TicketName name;
  if (::getrandom(ticket.data(), ticket.size(), 0) != static_cast<ssize_t>(ticket.size()) ||
      ::getrandom(name.data(), name.size(), 0) != static_cast<ssize_t>(name.size()))
    throw SystemError("no random numbers");
  Reservation& reservation = reservations_[ticket];
  reservation.name = name;
  reservation.secure = transport == Transport::tls;
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
  if (found == reservations_.end() || found->second.secure) return nullptr;
  return take(found, client);
}

Worker* Broker::redeem_name(std::span<const std::byte> name, ClientFacts& client, Ticket& ticket) {
  const auto found = std::find_if(reservations_.begin(), reservations_.end(), [&](const auto& entry) {
    return entry.second.secure && std::equal(name.begin(), name.end(), entry.second.name.begin(), entry.second.name.end());
  });
  if (found == reservations_.end()) return nullptr;
  ticket = found->first;
  return take(found, client);
}

Worker* Broker::take(std::map<Ticket, Reservation>::iterator reservation, ClientFacts& client) {
  Worker* const worker = reservation->second.worker;
  client = reservation->second.client;
  reservations_.erase(reservation);
  return worker;
}

namespace {

// Whether what is held together is more than it may be.
bool beyond_limit(const Lease& lease, MemorySlot& slot, std::size_t device) {
  MemoryAccount& account = *lease.account;
  return (lease.memory_bytes != 0 && account.held(lease.id, static_cast<int>(device)) > lease.memory_bytes) ||
         (slot.unstated != 0 && account.held_unstated() > account.unreserved());
}

}  // namespace

asio::awaitable<void> Broker::watch_memory() {
  asio::steady_timer timer(io_);
  std::uint64_t calls_then = 0;
  unsigned looks = 0;
  while (true) {
    timer.expires_after(memory_interval);
    co_await timer.async_wait(asio::use_awaitable);
    // The driver takes memory for what it is asked to do. Asking NVML costs milliseconds, so that idle sessions are not looked at.
    std::uint64_t calls_now = 0;
    for (const Worker& worker : workers_.all())
      if (worker.state == Worker::State::session) calls_now += worker.calls + worker.session;
    if (calls_now != std::exchange(calls_then, calls_now)) looks = 2;
    if (looks == 0) continue;
    --looks;
    // What changes while NVML is asked is no matter of the driver's: the larger of before and after counts, and the smaller of two looks.
    std::map<std::pair<pid_t, std::size_t>, std::uint64_t> before;
    const auto each = [&](auto&& use) {
      for (Worker& worker : workers_.all()) {
        if (worker.state != Worker::State::session) continue;
        const Lease& lease = worker.lease->lease();
        worker.driver_bytes.resize(lease.devices.size());
        for (std::size_t d = 0; d < lease.devices.size(); ++d) use(worker, lease, lease.account->slot(worker.lease->slot()), d);
      }
    };
    each([&](const Worker& worker, const Lease&, MemorySlot& slot, std::size_t d) { before[{worker.process, d}] = slot.charged[d]; });
    if (before.empty()) continue;
    co_await look_at_devices();
    each([&](Worker& worker, const Lease& lease, MemorySlot& slot, std::size_t d) {
      const auto seen = device_watch_.process_bytes(lease.devices[d], worker.process);
      const auto known = before.find({worker.process, d});
      if (!seen || known == before.end()) return;
      const std::uint64_t charged = std::max<std::uint64_t>(known->second, slot.charged[d]);
      const std::uint64_t taken = *seen > charged ? *seen - charged : 0;
      slot.taken[d] = std::min(taken, std::exchange(worker.driver_bytes[d], taken));
      if (settings_.driver_bytes_max == 0 || slot.taken[d] <= settings_.driver_bytes_max || !beyond_limit(lease, slot, d)) return;
      workers_.stop(worker, fmt::format("the driver has taken {} of device {} for this session's code, variables and local memory, and the session "
                                        "is beyond its limit by that (driver_bytes_max here is {})",
                                        bytes_text(slot.taken[d]), d, bytes_text(settings_.driver_bytes_max)));
    });
  }
}

asio::awaitable<void> Broker::look_at_devices() {
  std::vector<std::string> uuids;
  if (const auto facts = workers_.facts())
    for (const auto device : facts->getDevices())
      uuids.emplace_back(reinterpret_cast<const char*>(device.getUuid().begin()), device.getUuid().size());
  co_await device_watch_.refresh(std::move(uuids));
}

// That of its job, or of the session that the same process has.
std::shared_ptr<const Lease> Broker::lease_of(const ClientFacts& client, const std::optional<JobKey>& job) const {
  if (job) return leases_.find(client.tenant, *job);
  for (const Worker& worker : workers_.all()) {
    const ClientFacts& other = worker.client;
    if (worker.state == Worker::State::session && other.tenant == client.tenant && other.process_id == client.process_id &&
        other.host_name == client.host_name && other.program == client.program)
      return worker.lease->shared();
  }
  return nullptr;
}

// The devices of a lease, unless those are all: then workers that are kept ready will do. Under MPS the lease's percentage is that of the
// multiprocessors that its kernels may be on.
Profile Broker::profile(Environment environment, const Lease& lease) const {
  if (!lease.mps.empty()) {
    environment["CUDA_MPS_PIPE_DIRECTORY"] = lease.mps;
    if (lease.compute_percent > 0 && lease.compute_percent < scheduler::percent_max)
      environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = std::to_string(lease.compute_percent);
  }
  const bool all = lease.devices.size() == workers_.facts()->getDevices().size();
  return {std::move(environment), all ? std::vector<unsigned>{} : lease.devices};
}

void Broker::write_status(wire::Status::Builder status, const std::string& tenant, const Lease* seen) {
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
  unsigned warm = 0;
  std::vector<const Worker*> sessions;
  for (const Worker& worker : workers_.all()) {
    warm += worker.state == Worker::State::ready;
    if (worker.state == Worker::State::session && worker.client.tenant == tenant && (!seen || &worker.lease->lease() == seen))
      sessions.push_back(&worker);
  }
  status.setWarmWorkers(warm);
  status.setSessionsMax(static_cast<std::uint32_t>(settings_.sessions_max));
  status.setSessionsTaken(static_cast<std::uint32_t>(workers_.taken()));
  status.setTenant(tenant);
  const scheduler::Rules& rules = workers_.scheduling().rules();
  status.setPolicy(rules.policy);
  status.setQuantumMs(static_cast<std::uint32_t>(rules.quantum / std::chrono::milliseconds(1)));
  status.setGraceMs(static_cast<std::uint32_t>(rules.grace / std::chrono::milliseconds(1)));
  std::vector<unsigned> places;  // of the devices that are told of
  if (facts) {
    places.resize(seen ? seen->devices.size() : facts->getDevices().size());
    if (seen) places = seen->devices;
    else std::iota(places.begin(), places.end(), 0u);
    status.setDriverVersion(facts->getDriverVersion());
    status.setDriverRelease(facts->getDriverRelease());
    write_devices(status, places, seen);
  }
  auto list = status.initSessions(static_cast<unsigned>(sessions.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const Worker& worker = *sessions[i];
    auto to = list[i];
    to.setId(worker.session);
    to.setProgram(worker.client.program);
    to.setHostName(worker.client.host_name);
    to.setProcessId(worker.client.process_id);
    to.setWorkerId(static_cast<std::uint32_t>(worker.process));
    to.setStartedSeconds(static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(worker.started)));
    auto memory = to.initMemoryBytes(static_cast<unsigned>(places.size()));
    for (unsigned d = 0; d < places.size(); ++d) memory.set(d, worker.used_bytes(places[d]));
    to.setCalls(worker.calls);
    auto busy = to.initBusyNs(static_cast<unsigned>(worker.busy_ns.size()));
    for (unsigned d = 0; d < busy.size(); ++d) busy.set(d, worker.busy_ns[d]);
    to.setWaitedNs(worker.waited_ns);
    to.setLease(worker.lease->lease().id);
    to.setTenant(worker.client.tenant);
    to.setSharedMemory(worker.client.shares_memory);
  }
  std::vector<std::shared_ptr<Lease>> leases = leases_.all();
  std::erase_if(leases, [&](const auto& lease) { return lease->tenant != tenant || (seen && lease.get() != seen); });
  auto lease_list = status.initLeases(static_cast<unsigned>(leases.size()));
  for (unsigned i = 0; i < lease_list.size(); ++i) {
    auto to = lease_list[i];
    to.setId(leases[i]->id);
    to.setTenant(leases[i]->tenant);
    auto devices = to.initDevices(static_cast<unsigned>(leases[i]->devices.size()));
    for (unsigned d = 0; d < devices.size(); ++d) {
      const auto place = std::find(places.begin(), places.end(), leases[i]->devices[d]);
      devices.set(d, static_cast<std::uint32_t>(place - places.begin()));
    }
    to.setMemoryBytes(leases[i]->memory_bytes);
    to.setComputePercent(leases[i]->compute_percent);
    to.setPriority(leases[i]->priority);
    to.setSessions(static_cast<std::uint32_t>(leases[i]->sessions));
    const std::uint64_t bandwidth = leases[i]->account->bandwidth();
    to.setBandwidthBytes(bandwidth == MemoryAccount::no_limit ? 0 : bandwidth);
    to.setMovedBytes(leases[i]->account->moved(leases[i]->id));
    if (const auto view = workers_.scheduling().view_of_lease(leases[i]->id)) {
      to.setSharePercent(view->share.percent);
      to.setWeight(view->share.weight);
      to.setHasTurn(view->turn.granted);
      to.setTurns(view->turns);
      to.setOverruns(view->overruns);
      to.setHeldBack(view->held_back);
    }
  }
}

// Series by session cost whoever keeps them; where there are many, only sums are told.
std::string Broker::write_metrics() const {
  constexpr std::size_t by_session_max = 64;
  MetricsText text;
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  const std::string host = name;
  text.add("fargpu_build_info", "gauge", "What runs here.", {{"Hostname", host}, {"version", FARGPU_VERSION}, {"policy", workers_.scheduling().rules().policy}}, 1);
  for (const char* result : {"granted", "refused"}) {
    const auto found = admissions_.find(result);
    text.add("fargpu_admission_total", "counter", "Requests for sessions.", {{"Hostname", host}, {"result", result}},
             found == admissions_.end() ? 0 : static_cast<double>(found->second));
  }
  text.add("fargpu_worker_restarts_total", "counter", "Workers that ended by a fault.", {{"Hostname", host}}, static_cast<double>(workers_.faults()));
  const auto facts = workers_.facts();
  const auto uuid_of = [&](unsigned place) {
    std::string uuid = "GPU";
    unsigned i = 0;
    for (const auto byte : facts->getDevices()[place].getUuid()) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
      uuid += fmt::format("{:02x}", byte);
      ++i;
    }
    return uuid;
  };
  if (facts) {
    for (unsigned place = 0; place < facts->getDevices().size(); ++place) {
      std::uint64_t used = 0;
      for (const Worker& worker : workers_.all())
        if (worker.state == Worker::State::session) used += worker.used_bytes(place);
      const MetricsText::Labels labels{{"Hostname", host}, {"gpu", std::to_string(place)}, {"UUID", uuid_of(place)}};
      text.add("fargpu_device_memory_bytes", "gauge", "Memory that the device has.", labels, static_cast<double>(facts->getDevices()[place].getMemoryBytes()));
      text.add("fargpu_device_memory_used_bytes", "gauge", "Memory that sessions hold.", labels, static_cast<double>(used));
    }
  }
  std::size_t sessions = 0;
  double busy_all = 0, waited_all = 0;
  const bool by_session = workers_.sessions() <= by_session_max;
  for (const Worker& worker : workers_.all()) {
    if (worker.state != Worker::State::session) continue;
    ++sessions;
    const Lease& lease = worker.lease->lease();
    waited_all += static_cast<double>(worker.waited_ns) / 1e9;
    for (const std::uint64_t busy : worker.busy_ns) busy_all += static_cast<double>(busy) / 1e9;
    if (!by_session || !facts) continue;
    const MetricsText::Labels labels{{"Hostname", host}, {"session", std::to_string(worker.session)}, {"lease", std::to_string(lease.id)}, {"tenant", lease.tenant}};
    for (std::size_t i = 0; i < lease.devices.size(); ++i) {
      MetricsText::Labels on = labels;
      on.emplace_back("gpu", std::to_string(lease.devices[i]));
      on.emplace_back("UUID", uuid_of(lease.devices[i]));
      text.add("fargpu_session_memory_bytes", "gauge", "Device memory that a session holds.", on, static_cast<double>(worker.used_bytes(lease.devices[i])));
      text.add("fargpu_session_memory_limit_bytes", "gauge", "Device memory that its lease may hold; 0 is no limit of its own.", on,
               static_cast<double>(lease.memory_bytes));
      text.add("fargpu_session_compute_seconds_total", "counter", "Seconds for which the device had work of the session.", on,
               i < worker.busy_ns.size() ? static_cast<double>(worker.busy_ns[i]) / 1e9 : 0);
    }
    if (const auto view = workers_.scheduling().view(worker.session)) {
      text.add("fargpu_session_compute_share_ratio", "gauge", "Part of a device that its lease may use at most, under the policy fixed.", labels, view->share.percent / 100.0);
      text.add("fargpu_session_turns_total", "counter", "Turns of its lease.", labels, static_cast<double>(view->turns));
    }
    MemoryAccount& account = *lease.account;
    text.add("fargpu_session_network_bytes_total", "counter", "Bytes that a session has sent and received over the network.", labels,
             static_cast<double>(account.slot(worker.lease->slot()).moved));
    if (account.bandwidth() != MemoryAccount::no_limit)
      text.add("fargpu_session_network_limit_bytes_per_second", "gauge", "What the sessions of its lease may move together.", labels,
               static_cast<double>(account.bandwidth()));
    MetricsText::Labels turn = labels;
    turn.emplace_back("reason", "turn");
    text.add("fargpu_throttle_seconds_total", "counter", "Seconds for which a session had work that had to wait.", turn, static_cast<double>(worker.waited_ns) / 1e9);
  }
  text.add("fargpu_session_active", "gauge", "Sessions that run.", {{"Hostname", host}}, static_cast<double>(sessions));
  if (!by_session) {
    text.add("fargpu_session_compute_seconds_total", "counter", "Seconds for which devices had work of sessions that run.", {{"Hostname", host}}, busy_all);
    text.add("fargpu_throttle_seconds_total", "counter", "Seconds for which sessions had work that had to wait.", {{"Hostname", host}, {"reason", "turn"}}, waited_all);
  }
  return text.text();
}

bool Broker::may_administer(const std::string& name, bool near) const {
  if (!leases_.tenants().configured()) return near;
  const Tenant* const tenant = leases_.tenants().find(name);
  return tenant && tenant->administrator;
}

std::string Broker::change_scheduling(wire::SchedulingRequest::Reader request) {
  Scheduling& scheduling = workers_.scheduling();
  if (request.isPolicy()) {
    scheduler::Rules rules = scheduling.rules();
    rules.policy = printable(request.getPolicy().cStr());
    if (!scheduler::make_policy(rules)) return "there is no policy '" + rules.policy + "'; use free, fair, fixed or exclusive";
    scheduling.set_rules(rules);
    EventLog::info("policy", {{"policy", rules.policy}});
    return "";
  }
  if (!request.isShare()) return "that is nothing that can be changed";
  const auto change = request.getShare();
  const auto view = scheduling.view(change.getSession());
  if (!view) return "there is no session " + std::to_string(change.getSession());
  scheduler::Share share = view->share;
  if (change.getComputePercent() != 0) share.percent = change.getComputePercent();
  if (change.getWeight() != 0) share.weight = change.getWeight();
  if (const std::string wrong = scheduler::complaint(share); !wrong.empty()) return wrong;
  scheduling.change(change.getSession(), share);
  EventLog::info("share", {{"session", change.getSession()}, {"percent", share.percent}, {"weight", share.weight}});
  return "";
}

void Broker::write_devices(wire::Status::Builder status, const std::vector<unsigned>& places, const Lease* seen) {
  const auto facts = workers_.facts();
  const auto known = facts->getDevices();
  auto devices = status.initDevices(static_cast<unsigned>(places.size()));
  for (unsigned i = 0; i < devices.size(); ++i) {
    const auto from = known[places[i]];
    auto to = devices[i];
    to.setName(from.getName());
    to.setUuid(from.getUuid());
    const bool limited = seen && seen->memory_bytes != 0;
    to.setMemoryBytes(limited ? seen->memory_bytes : from.getMemoryBytes());
    std::uint64_t used = 0;
    for (const Worker& worker : workers_.all())
      if (worker.state == Worker::State::session && (!limited || &worker.lease->lease() == seen)) used += worker.used_bytes(places[i]);
    to.setUsedBytes(used);
    to.setFreeBytes(leases_.free_bytes(places[i]));
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
    const auto readings = device_watch_.readings(places[i]);
    auto list = to.initReadings(static_cast<unsigned>(readings.size()));
    for (unsigned r = 0; r < list.size(); ++r) {
      list[r].setKind(readings[r].kind);
      list[r].setValue(readings[r].value);
    }
  }
  // Between devices: by their numbers among those that are told of.
  std::map<unsigned, unsigned> numbers;
  for (unsigned i = 0; i < places.size(); ++i) numbers[places[i]] = i;
  const auto told = [&](unsigned from, unsigned to) { return numbers.contains(from) && numbers.contains(to); };
  std::vector<wire::PeerFacts::Reader> peers;
  for (const auto peer : facts->getPeers())
    if (told(peer.getFrom(), peer.getTo())) peers.push_back(peer);
  auto peer_list = status.initPeers(static_cast<unsigned>(peers.size()));
  for (unsigned p = 0; p < peer_list.size(); ++p) {
    peer_list.setWithCaveats(p, peers[p]);
    peer_list[p].setFrom(numbers.at(peers[p].getFrom()));
    peer_list[p].setTo(numbers.at(peers[p].getTo()));
  }
  std::vector<HostNvml::Distance> distances = device_watch_.distances();
  std::erase_if(distances, [&](const auto& distance) { return !told(distance.from, distance.to); });
  auto list = status.initDistances(static_cast<unsigned>(distances.size()));
  for (unsigned d = 0; d < list.size(); ++d) {
    list[d].setFrom(numbers.at(distances[d].from));
    list[d].setTo(numbers.at(distances[d].to));
    list[d].setLevel(distances[d].level);
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
