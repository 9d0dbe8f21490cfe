// One client connection while it belongs to the broker: hello, leases, status, and what leads to a worker.

#include <netinet/tcp.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "broker.h"
#include "contents.h"
#include "event_log.h"
#include "host_facts.h"
#include "mps.h"
#include "passed_descriptors.h"
#include "pool_status.h"
#include "protocol/data.h"
#include "protocol/driver_variables.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/host_name.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/text.h"
#include "protocol/version.h"

namespace fargpu::server {
namespace {

constexpr auto control_idle_max = std::chrono::seconds(60);
// A program's end, which its starter sees first, can have been heard of here by then.
constexpr auto end_heard_within = std::chrono::milliseconds(100);
constexpr unsigned environment_max = 64;
// A registry that says nothing about a request for so long is as one that is away.
constexpr auto registry_silence_max = std::chrono::seconds(10);
// A host that has lost the registry goes on with another member of etcd, or with another leader, within moments.
constexpr auto registry_back_max = std::chrono::seconds(4);
constexpr auto registry_trouble_max = std::chrono::seconds(10);  // of one request, if it is lost again and again
constexpr auto registry_away_max = std::chrono::seconds(2);
// For which a host that clients of the same address did not reach is not taken: others may have room again soon.
constexpr auto doubt_max = std::chrono::seconds(1);
constexpr auto ask_in_doubt_again = std::chrono::milliseconds(200);
constexpr auto ask_pool_again = std::chrono::milliseconds(50);
constexpr int placements_max = 4;  // of one request, if hosts have no room although they seemed to

// What clients may set for their workers; the list the client sends is not trusted to be harmless.
bool environment_allowed(const std::string& name, const std::string& value) {
  const bool known =
      std::find(std::begin(driver_variables), std::end(driver_variables), name) != std::end(driver_variables);
  return known && value.size() <= 64 && value.find('\0') == std::string::npos;
}

// Why a handshake failed. OpenSSL tells in words of the protocol that keys differ.
std::string handshake_text(const asio::error_code& error) {
  if (error.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_BINDER_DOES_NOT_VERIFY)
    return "the shared key is another one than the one of this name here";
  return error.message();
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

// What was not read of a user's connection may have descriptors.
void hang_up(asio::ip::tcp::socket&) {}
void hang_up(asio::local::stream_protocol::socket& socket) { hang_up_aside(socket.release()); }

// The answer to the hello that is not read any more, as far as it goes without waiting.
template <class AnySocket>
void say_shut_out(AnySocket& socket) {
  MessageWriter writer;
  auto answer = writer.root<wire::Control>().initHelloAnswer();
  answer.setProtocolVersion(our_versions.newest);
  auto failure = answer.initFailure();
  failure.setReason(wire::Failure::Reason::NO_CAPACITY);
  failure.setText(
      "this host has shut out your address for up to a minute, because too many connections from there failed "
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

}  // namespace

/// Lives as long as something is under way on it.
class Broker::Connection final : public PendingConnection, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Broker& broker, asio::ip::tcp::socket socket, Transport transport)
      : broker_(broker), socket_(broker.io_), transport_(transport), deadline_(broker.io_) {
    asio::error_code error;
    const auto endpoint = socket.remote_endpoint(error);
    source_ = source_of(socket);
    client_.peer = error ? "?" : source_ + ":" + std::to_string(endpoint.port());
    here_ = !error && endpoint.address().is_loopback();
    // A client with our own address is on this machine, or behind a tunnel that ends here.
    near_ = !error && transport == Transport::plain && endpoint.address() == socket.local_endpoint(error).address();
    socket_ = std::move(socket);
    keep_alive(socket_);
    begin();
  }
  Connection(Broker& broker, asio::local::stream_protocol::socket socket, Transport transport)
      : broker_(broker),
        socket_(broker.io_),
        transport_(transport),
        deadline_(broker.io_),
        source_(source_of(socket)),
        here_(true),
        by_socket_(true) {
    if (const auto peer = user_of(socket)) {
      client_.peer = fmt::format("unix:uid={},pid={}", peer->uid, peer->pid);
      shown_.user = peer->uid;
    }
    keep_in_order(socket.native_handle());
    socket_ = std::move(socket);
    begin();
  }

  void begin() {
    place_ = broker_.pending_.add(*this);
    pending_ = true;
  }
  ~Connection() {
    stop_calling();
    hang_up();
    if (ticket_) broker_.tickets_.withdraw(*ticket_);
    if (local_) broker_.local_keys_.take_back(local_->key);
    if (lease_ && --lease_->holders == 0) lease_->left = std::chrono::steady_clock::now();
  }

  const std::string& source() const override { return source_; }

  void cut(const std::string& why) override {
    broker_.pending_.failed("connection cut", client_.peer, source_, why);
    stop_calling();
    hang_up();
  }

  void start() {
    asio::co_spawn(
        broker_.io_, [self = shared_from_this()] { return self->serve(); }, asio::detached);
  }

 private:
  void hang_up() {
    asio::error_code ignored;
    if (by_socket_) hang_up_aside(socket_.release(ignored));
    else socket_.close(ignored);
  }

  void stop_calling() {
    if (pending_) broker_.pending_.remove(place_);
    pending_ = false;
  }

  asio::awaitable<void> serve() {
    try {
      expire_after(handshake_time());
      if (transport_ == Transport::tls && !co_await open_tls()) co_return;
      bool welcome = false;
      const auto require_hello = [&] {
        if (!welcome) throw ProtocolError("a request before hello");
      };
      while (co_await read_frame()) {
        MessageReader reader(message_);
        const auto control = reader.root<wire::Control>();
        const bool promised = ticket_.has_value();  // it has had its time from then on
        switch (control.which()) {
          case wire::Control::HELLO:
            if (welcome) throw ProtocolError("a second hello");
            welcome = co_await on_hello(control.getHello());
            if (!welcome) co_return;
            break;
          case wire::Control::LEASE_REQUEST:
            require_hello();
            if (!pending_) throw ProtocolError("a second request for a session");
            stop_calling();
            if (!co_await on_lease(control.getLeaseRequest())) co_return;
            break;
          case wire::Control::GIVE_UP:
            require_hello();
            if (broker_.pool_) broker_.pool_->give_up(printable(control.getGiveUp().cStr()), client_.tenant);
            co_await send([](wire::Control::Builder answer) { answer.setGivenUp(); });
            break;
          case wire::Control::STATUS_REQUEST:
            require_hello();
            co_await on_status();
            break;
          case wire::Control::ADMINISTRATION_REQUEST:
            require_hello();
            co_await on_administration(control.getAdministrationRequest());
            break;
          case wire::Control::CONTENTS_REQUEST:
            require_hello();
            co_await on_contents(control.getContentsRequest());
            break;
          case wire::Control::ATTACH:
            if (transport_ == Transport::tls) throw ProtocolError("an attach on a control connection");
            co_await on_attach(control.getAttach());
            co_return;
          case wire::Control::LANE:
            if (transport_ == Transport::tls) throw ProtocolError("a bulk lane on a control connection");
            co_await on_lane(control.getLane());
            co_return;
          default: throw ProtocolError("a control message that a client does not send here");
        }
        if (lease_) deadline_.cancel();  // it lasts as long as this connection
        else if (!promised) expire_after(ticket_ ? handshake_time() : control_idle_max);
        if (pending_) broker_.pending_.spoke(place_);
      }
      if (lease_ && broke_) co_await outlast();
    } catch (const kj::Exception& error) {
      refused(error.getDescription().cStr());
    } catch (const ProtocolError& error) {
      refused(error.what());
    } catch (const asio::system_error& error) {
      // The peer went away, or was too slow.
      EventLog::debug("connection lost", {{"peer", client_.peer}, {"reason", error.what()}});
    }
  }

  asio::awaitable<void> on_status() {
    co_await broker_.device_watch_.refresh(broker_.workers_.device_uuids());
    // A job is told of its host alone.
    const bool of_pool = broker_.pool_ && !job_;
    // Not `? co_await :`, by which g++ 12 destroys what it waits for twice.
    std::shared_ptr<const pool::PoolView> pool;
    if (of_pool) pool = co_await broker_.pool_->view();
    const std::shared_ptr<const Lease> seen = broker_.lease_of(client_, job_);
    const Viewer viewer{client_.tenant, administers(), seen.get(), known_by_};
    co_await send([&](wire::Control::Builder answer) {
      auto status = answer.initStatus();
      broker_.status_.write(status, viewer, broker_.state_);
      if (of_pool && !seen) write_pool(*broker_.pool_, pool.get(), viewer, status.initPool());
    });
  }

  bool administers() const { return keeper_ || broker_.may_administer(client_.tenant, here_); }
  std::chrono::seconds handshake_time() const { return std::chrono::seconds(broker_.settings_.handshake_seconds); }

  void expire_after(std::chrono::milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
      const auto self = weak.lock();
      if (error || !self) return;
      if (self->pending_ && self->received_ == 0) self->refused("said nothing in time");
      self->hang_up();
    });
  }

  void refused(const std::string& reason) {
    broker_.pending_.failed("connection refused", client_.peer, source_, reason);
  }

  // The next frame's message; false at the end of the connection.
  asio::awaitable<bool> read_frame() {
    FrameHeader header;
    asio::error_code error;
    co_await read(asio::buffer(&header, sizeof(header)), error);
    broke_ = error && error.category() == asio::error::get_system_category() && error != asio::error::operation_aborted;
    if (error) co_return false;
    check_frame_header(header, limits::open_message_bytes_max);
    if (header.kind != FrameKind::control || header.bulk_bytes != 0)
      throw ProtocolError("something else than a control message");
    if (header.sequence != ++received_) throw ProtocolError("a frame out of its turn");
    message_.resize(header.message_bytes);
    co_await read(asio::buffer(message_), error);
    if (error) throw asio::system_error(error);
    co_return true;
  }

  // A program that ends closes its connection. If it breaks, the job may be there still, and its next session has the
  // lease; sessions are waited for as long. If it breaks soon, the client may not have heard that it has the lease, or
  // may have found another host meanwhile and not have read the answer of this one.
  asio::awaitable<void> outlast() {
    hang_up();
    std::chrono::seconds time(lease_->resume_seconds.value_or(broker_.settings_.resume_seconds_of(here_)));
    if (std::chrono::steady_clock::now() - granted_ < handshake_time())
      time = std::min(time, std::chrono::duration_cast<std::chrono::seconds>(limits::resume_ended_max));
    if (time.count() == 0) co_return;
    EventLog::info("lease outlasts its connection", {{"lease", lease_->id}, {"seconds", time.count()}});
    asio::steady_timer timer(broker_.io_, time);
    co_await timer.async_wait(asio::use_awaitable);
  }

  asio::awaitable<void> read(asio::mutable_buffer buffer, asio::error_code& error) {
    if (tls_) co_await asio::async_read(*tls_, buffer, asio::redirect_error(asio::use_awaitable, error));
    else if (by_socket_) co_await read_from_user(buffer, error);
    else co_await asio::async_read(socket_, buffer, asio::redirect_error(asio::use_awaitable, error));
  }

  // By a Unix socket.
  asio::awaitable<void> read_from_user(asio::mutable_buffer buffer, asio::error_code& error) {
    while (buffer.size() > 0) {
      co_await socket_.async_wait(asio::socket_base::wait_read, asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return;
      const ssize_t got =
          receive_without_descriptors(socket_.native_handle(), {static_cast<std::byte*>(buffer.data()), buffer.size()});
      if (got > 0) {
        buffer += static_cast<std::size_t>(got);
        continue;
      }
      if (got < 0 && errno == EBADMSG) throw ProtocolError("descriptors, which nobody wants");
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      error = got == 0 ? asio::error::make_error_code(asio::error::eof)
                       : asio::error_code(errno, asio::error::get_system_category());
      co_return;
    }
  }

  // What comes first where TLS is spoken: a handshake, or in the clear whose session this is. True if a control
  // connection begins.
  asio::awaitable<bool> open_tls() {
    // RFC 8446, 5.1; no frame begins so, since lengths are multiples of 8.
    constexpr unsigned char handshake_record = 0x16;
    asio::error_code error;
    co_await socket_.async_wait(asio::socket_base::wait_read, asio::redirect_error(asio::use_awaitable, error));
    unsigned char first = 0;
    if (error || ::recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) co_return false;
    if (first == handshake_record) {
      context_ = broker_.tls_;
      tls_.emplace(socket_, *context_);
      co_await tls_->async_handshake(asio::ssl::stream_base::server, asio::redirect_error(asio::use_awaitable, error));
      if (error) {
        refused("TLS: " + handshake_text(error));
        co_return false;
      }
      SSL* const shown_by = tls_->native_handle();
      shown_.encrypted = true;
      shown_.certificate = tls_common_name(shown_by);
      shown_.certificate_end = tls_certificate_end(shown_by);
      shown_.key_identity = tls_key_identity(shown_by);
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
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(&header, sizeof(header)),
                                                    asio::buffer(message.data(), message.size())};
    if (tls_) co_await asio::async_write(*tls_, buffers, asio::use_awaitable);
    else co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  }

  asio::awaitable<bool> on_hello(wire::Hello::Reader hello) {
    client_.program = printable(hello.getProgram().cStr());
    client_.host_name = printable(hello.getHostName().cStr());
    client_.process_id = hello.getProcessId();
    if (hello.hasJob()) job_ = read_job(hello.getJob());
    shown_.token = hello.getToken().cStr();
    const auto judgement = broker_.identity_->judge(shown_, broker_.leases_.tenants());
    const std::string& denied = judgement.reason;
    shown_.token.clear();
    client_.tenant = judgement.tenant;
    keeper_ = judgement.administrator;
    known_by_ = judgement.known_by;
    client_.identity = known_by_.text();
    const Versions theirs = versions_of(hello);
    const auto version = common_version(our_versions, theirs);
    if (!version) {
      EventLog::warn("client of another version", {{"peer", client_.peer}, {"protocol", hello.getProtocolVersion()}});
    }
    if (near_ && !local_ && broker_.settings_.shared_memory) local_ = broker_.local_keys_.issue();
    std::optional<LocalKeys::Number> proof;
    if (by_socket_)
      proof = broker_.local_keys_.proof_of(
          {reinterpret_cast<const std::byte*>(hello.getLocalKey().begin()), hello.getLocalKey().size()});
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initHelloAnswer();
      answer.setProtocolVersion(version.value_or(our_versions.newest));
      answer.setVersion(FARGPU_VERSION);
      answer.setHostName(host_name());
      answer.setTenant(client_.tenant);
      if (broker_.pool_) answer.setPool(broker_.pool_->name());
      answer.setHost(broker_.host_identity());
      if (local_) {
        answer.setLocalSocket(broker_.local_keys_.socket_name());
        answer.setLocalKey(data_of(local_->key));
        answer.setLocalProof(data_of(local_->proof));
      } else if (proof) {
        answer.setLocalProof(data_of(*proof));
      }
      if (version && !denied.empty()) {
        auto failure = answer.initFailure();
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText(denied);
      }
      if (!version) {
        auto failure = answer.initFailure();
        failure.setReason(wire::Failure::Reason::VERSION_MISMATCH);
        failure.setText(versions_apart({"this host", FARGPU_VERSION, our_versions}, {"the client", "", theirs}));
      }
    });
    if (!denied.empty()) broker_.pending_.failed("client denied", client_.peer, source_, denied);
    co_return version&& denied.empty();
  }

  static JobKey read_job(capnp::Data::Reader bytes) {
    JobKey job;
    if (bytes.size() != job.size()) throw ProtocolError("a job's key of a wrong length");
    std::memcpy(job.data(), bytes.begin(), job.size());
    return job;
  }

  asio::awaitable<bool> refuse_lease(wire::Failure::Reason reason, std::string text) {
    ++broker_.admissions_.refused[reason];
    EventLog::info("lease refused", {{"peer", client_.peer},
                                     {"program", client_.program},
                                     {"tenant", client_.tenant},
                                     {"identity", client_.identity},
                                     {"reason", text}});
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initLeaseAnswer().initFailure();
      failure.setReason(reason);
      failure.setText(text);
    });
    co_return false;
  }

  // What would have to change before this client can have a lease; nothing once it has one. Then `lease` is set, and
  // `session` if it is for one.
  std::optional<LeaseRefusal> try_lease(const LeaseWish& wish, const std::optional<JobKey>& job, bool hold,
                                        const Waiter* place, std::shared_ptr<Lease>& lease,
                                        std::unique_ptr<LeaseSession>& session) {
    const auto now = std::chrono::system_clock::now();
    const bool first = !job || !broker_.leases_.find(client_.tenant, *job);
    // A job that has begun goes on while the host is drained, with further processes too.
    const auto state = broker_.state_.at(now);
    if (state == ServiceState::State::stopping || (state == ServiceState::State::draining && first))
      return LeaseRefusal{false, broker_.state_.refusal(now)};
    if (client_.tenant.empty())
      return LeaseRefusal{
          false,
          "root and the user of fargpud may look after this host, but are of no tenant here; ask for GPUs as a user "
          "that a tenant lists under `users`, or set FARGPU_TOKEN_FILE"};
    if (broker_.workers_.taken() + broker_.leases_.before(place, client_.tenant, Shortage::host_sessions) >=
        broker_.settings_.sessions_max) {
      return LeaseRefusal{true, all_sessions_taken(broker_.settings_.sessions_max, "this host"),
                          Shortage::host_sessions};
    }
    const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
    if (!tenant) return LeaseRefusal{false, fmt::format("this host has no tenant '{}' any more", client_.tenant)};
    auto granted = broker_.leases_.grant(*tenant, wish, job, place);
    if (auto* const refusal = std::get_if<LeaseRefusal>(&granted)) return std::move(*refusal);
    lease = std::get<std::shared_ptr<Lease>>(granted);
    if (hold) {
      // A job that could have no session is not begun.
      auto refusal = first ? broker_.leases_.sessions_taken(*tenant, place) : std::nullopt;
      if (refusal) lease.reset();
      return refusal;
    }
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
        co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST,
                                        "environment variable " + printable(name) + " is not one that this host takes");
      environment[name] = value;
    }
    LeaseWish wish{request.getGpus(), request.getMemoryBytes(), request.getComputePercent(), std::nullopt};
    if (request.getPriorityAsked() || request.getPriority() != wire::Priority::NORMAL)
      wish.priority = request.getPriority();
    const bool hold = request.getHold(), wants_facts = request.getWantsFacts();
    std::optional<JobKey> job;
    if (request.hasJob()) job = read_job(request.getJob());
    if (hold && !job)
      co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "a lease to hold needs a job");
    const bool waits = request.getWaitMs() > 0;
    const auto deadline =
        std::chrono::steady_clock::now() +
        std::min<std::chrono::milliseconds>(std::chrono::milliseconds(request.getWaitMs()), limits::lease_wait_max);

    // Without its daemon the driver would run the programs as if there were no `mps`: beside others, with nothing of
    // their own.
    if (const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant); tenant && !tenant->mps.empty())
      if (const std::string missing = mps_complaint(tenant->mps); !missing.empty())
        co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, missing);

    std::shared_ptr<Lease> lease;
    std::unique_ptr<LeaseSession> session;
    counted_ = broker_.patient_.take(client_.tenant);
    if (!counted_)
      co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY,
                                      "too many clients wait for this host; try later");
    deadline_.cancel();
    std::shared_ptr<Waiter> place;  // in the queue
    const auto begin = std::chrono::steady_clock::now();
    // A job that asks for nothing in particular counts on what is there: it is not much less for what is being given
    // back.
    const bool first = !job || !broker_.leases_.find(client_.tenant, *job);
    const bool of_pool = broker_.pool_ && (first || request.getPlacement().size() > 0);
    while (first && !(of_pool && hold) && wish.memory_bytes == 0 && broker_.much_is_given_back(client_.tenant) &&
           std::chrono::steady_clock::now() < begin + Broker::giving_back_max)
      if (!co_await wait_for_change(begin + Broker::giving_back_max)) co_return false;
    std::shared_ptr<Lease> placed;
    if (of_pool && !co_await go_by_pool(request, wish, job, deadline, placed)) co_return false;
    while (const auto refusal = try_lease(wish, job, hold, place.get(), lease, session)) {
      const bool soon = broker_.sessions_are_ending();
      const auto until =
          std::max(deadline, begin + (soon ? std::chrono::milliseconds(Broker::giving_back_max) : end_heard_within));
      if (!refusal->may_change || std::chrono::steady_clock::now() >= until) {
        const bool drained = !broker_.state_.serves(std::chrono::system_clock::now());
        const auto reason = drained               ? wire::Failure::Reason::DRAINING
                            : refusal->may_change ? wire::Failure::Reason::NO_CAPACITY
                                                  : wire::Failure::Reason::DENIED;
        if (placed) broker_.pool_->give_up(placed);
        // A client that has waited is not told to wait; only `fargpu run` holds leases.
        const bool told = reason == wire::Failure::Reason::NO_CAPACITY && !waits;
        co_return co_await refuse_lease(reason, refusal->text + (!told  ? ""
                                                                 : hold ? " or wait with --wait"
                                                                        : " or wait with FARGPU_WAIT"));
      }
      EventLog::debug("lease waits", {{"peer", client_.peer}, {"program", client_.program}, {"reason", refusal->text}});
      if (const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant); !place && tenant)
        place = wait_in_queue(*tenant, wish, job);
      if (place) {
        place->shortage = refusal->shortage;
        place->reason = refusal->text;
      }
      if (!co_await wait_for_change(until)) co_return false;
      // The lease that the job had here may have ended, or the registry may be back.
      if (broker_.pool_ && !placed && (!job || !broker_.leases_.find(client_.tenant, *job))) {
        const bool goes_on = co_await go_by_pool(request, wish, job, deadline, placed);
        if (!goes_on) co_return false;
      }
    }
    place.reset();
    placed.reset();
    if (broker_.pool_) broker_.pool_->came(lease);
    // The processes of a job come to the lease that their starter has waited for.
    if (first) broker_.admissions_.waited(std::chrono::steady_clock::now() - begin);
    if (hold) {
      co_await hold_lease(std::move(lease), wants_facts);
      co_return true;
    }
    counted_ = {};
    co_return co_await promise_worker(std::move(environment), std::move(lease), std::move(session));
  }

  // Answers with a lease that this connection holds from then on.
  asio::awaitable<void> hold_lease(std::shared_ptr<Lease> lease, bool wants_facts) {
    expire_after(handshake_time());
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initLeaseAnswer();
      write_lease(*lease, answer);
      const auto facts = wants_facts ? broker_.workers_.facts() : std::nullopt;
      if (facts) copy_facts(*facts, lease->devices, lease->memory_bytes, answer.initFacts());
    });
    log_grant(*lease, EventLog::Level::info);
    lease_ = std::move(lease);
    granted_ = std::chrono::steady_clock::now();
    ++lease_->holders;
    lease_->left.reset();
  }

  // Answers with the ticket of a worker for a session of the lease. False if the answer is a refusal, or the client has
  // gone. There is news in any case: a worker becomes ready in its time, or fails. It is waited for by a timer that the
  // news cancels. A client that has gone leaves the worker to the next one, which may be itself again.
  asio::awaitable<bool> promise_worker(Environment environment, std::shared_ptr<Lease> lease,
                                       std::unique_ptr<LeaseSession> session) {
    std::string failure;
    bool news = false;
    asio::steady_timer wake(broker_.io_);
    Worker* const starts = broker_.workers_.reserve(
        broker_.profile(std::move(environment), *lease), [&](Worker* worker, const std::string& why) {
          // Promised before anything else can happen to the worker: then its end ends the promise too.
          if (worker) {
            worker->lease = std::move(session);
            ticket_ = broker_.tickets_.issue(*worker, client_, transport_ == Transport::tls);
          }
          failure = why;
          news = true;
          wake.cancel();
        });
    while (!news) {
      wake.expires_after(std::chrono::milliseconds(10));
      // One with variables of its own is hardly of use to others: its client is charged for it until it is ready.
      if (co_await sleep(wake) || news || !starts->profile.standard()) continue;
      broker_.workers_.forget(*starts);
      co_return false;
    }
    expire_after(handshake_time());
    if (!ticket_) co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, failure);
    ++broker_.admissions_.granted;
    log_grant(*lease, EventLog::Level::debug);
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initLeaseAnswer();
      answer.setTicket(data_of(*ticket_));
      if (transport_ == Transport::tls) {
        const Tickets::Name& name = broker_.tickets_.name_of(*ticket_);
        answer.setTicketName(data_of(name));
      }
      write_lease(*lease, answer);
    });
    co_return true;
  }

  // What a pool's registry has to do with a request. True: it goes on as at a host by itself; a lease that was placed
  // here is the job's then. False: it was answered, or its client has gone.
  asio::awaitable<bool> go_by_pool(wire::LeaseRequest::Reader request, const LeaseWish& wish,
                                   std::optional<JobKey>& job, std::chrono::steady_clock::time_point deadline,
                                   std::shared_ptr<Lease>& placed) {
    PoolHost& pool = *broker_.pool_;
    if (request.getPlacement().size() > 0) {
      if (!job)
        co_return co_await refuse_lease(wire::Failure::Reason::BAD_REQUEST, "a placement without the job it is for");
      const std::string reason = co_await pool.find(printable(request.getPlacement().cStr()), client_.tenant, *job);
      if (!reason.empty()) co_return co_await refuse_lease(wire::Failure::Reason::NO_CAPACITY, reason);
      placed = broker_.leases_.find(client_.tenant, *job);
      co_return true;
    }
    // What this host by itself refuses better.
    const Tenant* const tenant = broker_.leases_.tenants().find(client_.tenant);
    const auto state = broker_.state_.at(std::chrono::system_clock::now());
    if (!tenant || state == ServiceState::State::stopping || wish.compute_percent > 100 ||
        (state == ServiceState::State::draining && !request.getFollowsPlaces()) ||
        (wish.priority && rank(*wish.priority) > rank(tenant->priority)))
      co_return true;
    co_return co_await ask_pool(request, wish, job, deadline, placed);
  }

  pool::RequestRecord record_of(wire::LeaseRequest::Reader request, const LeaseWish& wish, const JobKey& job) const {
    pool::RequestRecord record;
    record.front = broker_.pool_->member().options().host;
    record.tenant = client_.tenant;
    record.job = text_of(job);
    record.gpus = wish.gpus;
    record.hosts = std::max(1u, request.getFollowsPlaces() ? request.getHosts() : 1u);
    record.memory_bytes = wish.memory_bytes;
    record.compute_percent = wish.compute_percent;
    if (wish.priority) record.priority = text_of(*wish.priority);
    record.only_front = !request.getFollowsPlaces();
    for (const auto host : request.getUnreached()) {
      if (record.unreached.size() == pool::avoid_max || !pool::is_name(host.cStr())) continue;
      record.unreached.push_back(printable(host.cStr()));
      broker_.pool_->not_reached(source_, record.unreached.back());
    }
    // A program without a job, or before it, comes to the same host each time, where it can share memory. A client that
    // does not reach others reaches this one.
    record.prefers_front = !request.getHold() || !record.unreached.empty();
    record.program = client_.program;
    record.client = fmt::format("{}:{}", client_.host_name, client_.process_id);
    record.since = static_cast<std::uint64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
    return record;
  }

  asio::awaitable<bool> ask_pool(wire::LeaseRequest::Reader request, const LeaseWish& wish, std::optional<JobKey>& job,
                                 std::chrono::steady_clock::time_point deadline, std::shared_ptr<Lease>& placed) {
    using Clock = std::chrono::steady_clock;
    PoolHost& pool = *broker_.pool_;
    pool::Member& member = pool.member();
    const bool waits = request.getWaitMs() > 0, hold = request.getHold();
    const bool local = broker_.settings_.pool_outage == "local";
    if (!job) {
      job.emplace();
      if (::getrandom(job->data(), job->size(), 0) != static_cast<ssize_t>(job->size()))
        co_return co_await refuse_lease(wire::Failure::Reason::HOST_ERROR, "no random numbers");
    }
    pool::RequestRecord record = record_of(request, wish, *job);
    const auto begin = Clock::now();
    auto until = deadline;  // of asking with a wait
    auto doubt_until = begin + doubt_max;
    std::string last_reason;
    int placements = 0;
    asio::steady_timer wake(broker_.io_);
    const auto refuse = [&](const std::string& text) {
      const char* const advice = waits ? "" : hold ? " or wait with --wait" : " or wait with FARGPU_WAIT";
      return refuse_lease(wire::Failure::Reason::NO_CAPACITY, text + advice);
    };
    // Another member may be in touch with the registry.
    const auto refuse_here = [&](const std::string& text) {
      return refuse_lease(wire::Failure::Reason::DRAINING, text);
    };
    while (true) {
      // The registry may be away for a moment, as while this host joins.
      while (!member.in_touch()) {
        const auto back = std::min(member.lost_at() + registry_back_max, begin + registry_trouble_max);
        if (Clock::now() >= (local ? back : std::max({deadline, begin + registry_away_max, back}))) {
          if (!local)
            co_return co_await refuse_here(pool.why_no_leases() + (member.name_is_taken() ? "" : "; try later"));
          EventLog::warn("lease without the pool", {{"tenant", client_.tenant}, {"reason", member.trouble()}});
          co_return true;
        }
        wake.expires_after(std::chrono::milliseconds(100));
        if (!co_await sleep(wake)) co_return false;
      }
      record.doubted = pool.doubted(source_);
      std::erase_if(record.doubted, [&](const std::string& host) {
        return std::ranges::find(record.unreached, host) != record.unreached.end();
      });
      const bool doubts = !record.doubted.empty() && Clock::now() < doubt_until;
      record.waits = !doubts && Clock::now() < until;
      pool::RequestRecord of_sure = record;
      if (doubts) of_sure.avoid.insert(of_sure.avoid.end(), record.doubted.begin(), record.doubted.end());
      of_sure.avoid.resize(std::min(of_sure.avoid.size(), pool::avoid_max));
      const auto asked = member.request(of_sure);
      const auto patience = doubts ? doubt_until : record.waits ? until : Clock::now() + registry_silence_max;
      asked->answered = [&wake] { wake.cancel(); };
      while (!asked->answer() && Clock::now() < patience && (member.in_touch() || (record.waits && !local))) {
        wake.expires_at(std::min(patience, Clock::now() + std::chrono::seconds(1)));
        if (!co_await sleep(wake)) co_return false;
      }
      if (!asked->answer()) {
        if (record.waits && member.in_touch() && !last_reason.empty()) co_return co_await refuse(last_reason);
        if (doubts || record.waits || !member.in_touch()) continue;  // once more, for the reason; or by itself
        co_return co_await refuse_here(
            fmt::format("no placer of pool '{}' has answered for {} s: `fargpu doctor` tells more; try later",
                        pool.name(), registry_silence_max.count()));
      }
      if (const auto* const refusal = std::get_if<pool::Refusal>(&*asked->answer())) {
        if (doubts) {
          if (!refusal->may_change) doubt_until = begin;
          wake.expires_after(refusal->may_change ? ask_in_doubt_again : ask_pool_again);
          if (!co_await sleep(wake)) co_return false;
          continue;
        }
        if (!refusal->may_change) {
          co_return co_await refuse_lease(wire::Failure::Reason::DENIED, refusal->text);
        }
        // What has just ended may not have been heard of by the placer.
        const auto grace =
            broker_.sessions_are_ending() ? std::chrono::milliseconds(Broker::giving_back_max) : 3 * end_heard_within;
        last_reason = refusal->text;
        until = std::max(deadline, begin + grace);
        if (Clock::now() >= until) co_return co_await refuse(last_reason);
        wake.expires_after(ask_pool_again);
        if (!co_await sleep(wake)) co_return false;
        continue;
      }
      const auto parts = std::get<std::vector<pool::Part>>(*asked->answer());
      if (parts.size() != 1 || parts.front().host != record.front) {
        if (request.getFollowsPlaces()) {
          co_await send_places(parts, asked->id(), *job);
          co_return false;
        }
        co_return co_await refuse(
            "the pool has placed this job at other hosts, which this client is too old to follow");
      }
      const std::string reason = co_await pool.find(asked->id(), client_.tenant, *job);
      placed = broker_.leases_.find(client_.tenant, *job);
      if (placed) co_return true;
      if (++placements == placements_max) co_return co_await refuse(reason);
      if (!record.only_front) record.avoid = {record.front};
      wake.expires_after(ask_pool_again);
      if (!co_await sleep(wake)) co_return false;
    }
  }

  asio::awaitable<void> send_places(const std::vector<pool::Part>& parts, const std::string& placement,
                                    const JobKey& job) {
    std::vector<std::string> names;
    for (const pool::Part& part : parts) names.push_back(part.host);
    const std::string hosts = fmt::format("{}", fmt::join(names, ","));
    broker_.pool_->sent(placement, client_.tenant, std::move(names));
    EventLog::info("lease placed elsewhere", {{"peer", client_.peer},
                                              {"program", client_.program},
                                              {"tenant", client_.tenant},
                                              {"placement", placement},
                                              {"hosts", hosts}});
    ++broker_.admissions_.granted;
    expire_after(handshake_time());
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initLeaseAnswer();
      auto places = answer.initPlaces(static_cast<unsigned>(parts.size()));
      for (unsigned i = 0; i < places.size(); ++i) {
        places[i].setAddress(parts[i].address);
        places[i].setGpus(parts[i].gpus);
        places[i].setHost(parts[i].host);
        places[i].setIdentity(parts[i].identity);
      }
      answer.setPlacement(placement);
      answer.setPlacementJob(data_of(job));
    });
  }

  void log_grant(const Lease& lease, EventLog::Level level) const {
    EventLog::write(level, "lease granted",
                    {{"peer", client_.peer},
                     {"program", client_.program},
                     {"tenant", client_.tenant},
                     {"identity", client_.identity},
                     {"lease", lease.id}});
  }

  std::shared_ptr<Waiter> wait_in_queue(const Tenant& tenant, const LeaseWish& wish, const std::optional<JobKey>& job) {
    auto place = broker_.leases_.wait(tenant, wish);
    place->program = client_.program;
    place->host_name = client_.host_name;
    place->process_id = client_.process_id;
    place->job = job;
    return place;
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
      if (!co_await sleep(wake)) co_return false;
    }
    co_return true;
  }

  // Until the timer's time, or its end. False if the client has gone meanwhile.
  asio::awaitable<bool> sleep(asio::steady_timer& wake) {
    asio::error_code ignored;
    co_await wake.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    char byte;
    const ssize_t got = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    co_return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
  }

  static void write_lease(const Lease& lease, wire::LeaseAnswer::Builder answer) {
    answer.setLease(lease.id);
    answer.setMemoryBytes(lease.memory_bytes);
    auto devices = answer.initDevices(static_cast<unsigned>(lease.devices.size()));
    for (unsigned i = 0; i < devices.size(); ++i) devices.set(i, lease.devices[i]);
  }

  // What comes of an eviction; the session's work may put it off.
  asio::awaitable<std::string> outcome_of_eviction(std::uint64_t session) {
    asio::steady_timer timer(broker_.io_);
    while (true) {
      if (const auto outcome = broker_.workers_.evictions().outcome(session)) {
        co_return outcome->empty() ? "" : fmt::format("session {} stays: {}", session, *outcome);
      }
      expire_after(control_idle_max);
      timer.expires_after(std::chrono::milliseconds(5));
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  asio::awaitable<void> on_administration(wire::AdministrationRequest::Reader request) {
    const bool allowed = administers();
    std::string refusal;
    if (!allowed)
      refusal =
          "only administrators of this host may do this: root and the user of fargpud at its Unix socket, tenants that "
          "the settings name so or, where they name no tenants, every user of the GPU host itself";
    else if (request.isPoolTenant()) refusal = co_await set_pool_tenant(request.getPoolTenant());
    else refusal = broker_.administer(client_, request);
    if (refusal.empty() && request.isEvict()) refusal = co_await outcome_of_eviction(request.getEvict());
    // It is seen by the next look.
    if (refusal.empty() && broker_.pool_ && (request.isDrain() || request.isResume()))
      co_await broker_.pool_->member().shown();
    if (!refusal.empty())
      EventLog::warn(
          "administration refused",
          {{"peer", client_.peer}, {"tenant", client_.tenant}, {"identity", client_.identity}, {"reason", refusal}});
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initAdministrationAnswer().initFailure();
      if (refusal.empty()) return;
      failure.setReason(allowed ? wire::Failure::Reason::BAD_REQUEST : wire::Failure::Reason::DENIED);
      failure.setText(refusal);
    });
  }

  asio::awaitable<std::string> set_pool_tenant(wire::PoolTenant::Reader wanted) {
    std::optional<pool::TenantRecord> limits;
    if (!wanted.getForget()) {
      limits.emplace();
      limits->limits = {wanted.getMemoryBytes(), wanted.getComputePercent(), wanted.getLeases()};
      limits->weight = wanted.getWeight() == 0 ? limits->weight : wanted.getWeight();
    }
    co_return co_await broker_.set_pool_tenant(client_, wanted.getName().cStr(), limits);
  }

  asio::awaitable<void> on_contents(wire::ContentsRequest::Reader request) {
    const std::string wanted = printable(request.getTenant().cStr());
    const std::string tenant = wanted.empty() ? client_.tenant : wanted;
    std::string refusal;
    bool allowed = true;
    if (tenant.empty()) {
      refusal = "this client is of no tenant here; name one with --tenant";
    } else if (tenant != client_.tenant && !administers()) {
      allowed = false;
      refusal = "only administrators of this host may look after another tenant's contents";
    } else if (!broker_.leases_.tenants().find(tenant)) {
      refusal = "this host has no tenant '" + tenant + "'";
    }
    const auto folder = refusal.empty() ? content_folder(broker_.settings_, tenant) : std::filesystem::path();
    const FolderAccount::Used kept = kept_contents(folder);
    if (refusal.empty() && request.getClear()) {
      refusal = clear_contents(folder);
      EventLog::info("contents cleared", {{"tenant", tenant},
                                          {"peer", client_.peer},
                                          {"identity", client_.identity},
                                          {"bytes", kept.bytes},
                                          {"failure", refusal}});
    }
    co_await send([&](wire::Control::Builder control) {
      auto answer = control.initContentsAnswer();
      auto failure = answer.initFailure();
      if (!refusal.empty()) {
        failure.setReason(allowed ? wire::Failure::Reason::BAD_REQUEST : wire::Failure::Reason::DENIED);
        failure.setText(refusal);
        return;
      }
      answer.setTenant(tenant);
      answer.setBytes(kept.bytes);
      answer.setBlocks(kept.files);
      answer.setBytesMax(folder.empty() ? 0 : broker_.settings_.content_bytes_max);
      const auto known = broker_.workers_.totals().find(tenant);
      if (known == broker_.workers_.totals().end()) return;
      answer.setKnownBytes(known->second.known_bytes);
      answer.setKeptBytes(known->second.kept_bytes);
    });
  }

  asio::awaitable<void> on_attach(wire::Attach::Reader attach) {
    const auto bytes = attach.getTicket();
    ClientFacts client;
    Worker* const worker =
        broker_.tickets_.redeem({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()}, client);
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
    client.by_loopback = here_;
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
    Tickets::Ticket ticket;
    Worker* const worker = broker_.tickets_.redeem_name(name, client, ticket);
    if (!worker) {
      refused("wrong, used or expired ticket");
      co_return;
    }
    client.peer = client_.peer;
    client.by_loopback = here_;
    deadline_.cancel();
    const std::uint64_t id = broker_.next_session_++;
    if (!broker_.workers_.begin_session(*worker, id, client,
                                        {.descriptor = socket_.release(), .ticket_name = name, .ticket = ticket}))
      EventLog::error("session lost", {{"session", id}, {"reason", "its worker ended before it could begin"}});
  }

  // A stranger's does not reach the session's worker, which has other things to hear. Where TLS is spoken, a handshake
  // there with the rest of the key decides.
  asio::awaitable<void> on_lane(wire::Lane::Reader lane) {
    deadline_.cancel();
    const auto key = lane.getKey();
    const std::uint64_t session = lane.getSessionId();
    const auto asked = broker_.workers_.judge_lane(
        session, {reinterpret_cast<const std::byte*>(key.begin()), key.size()}, transport_ == Transport::tls);
    if (asked == Workers::LaneVerdict::rightly) {
      broker_.workers_.add_lane(session, socket_.release(), message_);
      co_return;
    }
    if (asked == Workers::LaneVerdict::by_stranger) refused("a bulk lane of no session, or without its key");
    co_await send([&](wire::Control::Builder control) {
      auto failure = control.initLaneAnswer();
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("there is no session that takes a bulk lane with this key");
    });
  }

  Broker& broker_;
  Socket socket_;
  const Transport transport_;
  std::shared_ptr<asio::ssl::context> context_;    // that this connection began with
  std::optional<asio::ssl::stream<Socket&>> tls_;  // over socket_, once its handshake is done
  ShownCredentials shown_;
  asio::steady_timer deadline_;
  std::string source_;
  ClientFacts client_;
  bool here_ = false;       // from this machine
  bool near_ = false;       // by TCP, from this machine
  bool by_socket_ = false;  // a Unix socket
  bool keeper_ = false;     // root or the broker's own user
  KnownBy known_by_;
  std::optional<LocalKeys::Pair> local_;
  PendingConnections::Place place_;  // among the pending ones
  bool pending_ = false;
  std::optional<Tickets::Ticket> ticket_;  // what this connection was promised
  std::optional<JobKey> job_;              // that the client belongs to
  std::shared_ptr<Lease> lease_;           // that this connection holds
  std::chrono::steady_clock::time_point granted_{};
  bool broke_ = false;        // and did not end
  FairLimit::Place counted_;  // among those that wait for a lease or hold one
  std::uint32_t sequence_ = 0;
  std::uint32_t received_ = 0;
  std::vector<std::byte> message_;
};

template <class Socket>
void Broker::meet(Socket socket, Transport transport) {
  const std::string source = source_of(socket);
  if (pending_.shut_out(source)) {
    if (transport == Transport::plain) say_shut_out(socket);
    return hang_up(socket);
  }
  pending_.make_room_for(source);
  std::make_shared<Connection>(*this, std::move(socket), transport)->start();
}

template void Broker::meet(asio::ip::tcp::socket, Transport);
template void Broker::meet(asio::local::stream_protocol::socket, Transport);

}  // namespace fargpu::server
