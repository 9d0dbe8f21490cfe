#include "connection.h"

#include <sys/socket.h>

#include <cstring>

#include "event_log.h"
#include "passed_descriptors.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/frame.h"
#include "protocol/host_name.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/text.h"
#include "protocol/version.h"

namespace fargpu::server {
namespace {

// Why a handshake failed. OpenSSL tells in words of the protocol that keys differ.
std::string handshake_text(const asio::error_code& error) {
  if (error.category() == asio::error::get_ssl_category() &&
      ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_BINDER_DOES_NOT_VERIFY)
    return "the shared key is another one than the one of this name here";
  return error.message();
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

Broker::Connection::Connection(Broker& broker, asio::ip::tcp::socket socket, Transport transport)
    : broker_(broker), channel_(broker.io_), transport_(transport), deadline_(broker.io_) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  source_ = source_of(socket);
  client_.peer = error ? "?" : source_ + ":" + std::to_string(endpoint.port());
  here_ = !error && endpoint.address().is_loopback();
  // A client with our own address is on this machine, or behind a tunnel that ends here.
  near_ = !error && transport == Transport::plain && endpoint.address() == socket.local_endpoint(error).address();
  channel_.open(std::move(socket));
  begin();
}

Broker::Connection::Connection(Broker& broker, asio::local::stream_protocol::socket socket, Transport transport)
    : broker_(broker),
      channel_(broker.io_),
      transport_(transport),
      deadline_(broker.io_),
      source_(source_of(socket)),
      here_(true) {
  if (const auto peer = user_of(socket)) {
    client_.peer = fmt::format("unix:uid={},pid={}", peer->uid, peer->pid);
    shown_.user = peer->uid;
  }
  channel_.open(std::move(socket));
  begin();
}

void Broker::Connection::begin() {
  place_ = broker_.pending_.add(*this);
  pending_ = true;
}

Broker::Connection::~Connection() {
  stop_calling();
  channel_.hang_up();
  if (ticket_) broker_.tickets_.withdraw(*ticket_);
  if (local_) broker_.local_keys_.take_back(local_->key);
  if (lease_ && --lease_->holders == 0) lease_->left = std::chrono::steady_clock::now();
}

void Broker::Connection::cut(const std::string& why) {
  broker_.pending_.failed("connection cut", client_.peer, source_, why);
  stop_calling();
  channel_.hang_up();
}

void Broker::Connection::start() {
  asio::co_spawn(
      broker_.io_, [self = shared_from_this()] { return self->serve(); }, asio::detached);
}

void Broker::Connection::stop_calling() {
  if (pending_) broker_.pending_.remove(place_);
  pending_ = false;
}

asio::awaitable<void> Broker::Connection::serve() {
  try {
    expire_after(handshake_time());
    if (transport_ == Transport::tls && !co_await open_tls()) co_return;
    while (co_await channel_.read_frame()) {
      MessageReader reader(channel_.message());
      const auto control = reader.root<wire::Control>();
      const bool promised = ticket_.has_value();  // it has had its time from then on
      if (!co_await on_request(control)) co_return;
      if (lease_) deadline_.cancel();  // it lasts as long as this connection
      else if (!promised) expire_after(ticket_ ? handshake_time() : control_idle_max);
      if (pending_) broker_.pending_.spoke(place_);
    }
    if (lease_ && channel_.broke()) co_await outlast();
  } catch (const kj::Exception& error) {
    refused(error.getDescription().cStr());
  } catch (const ProtocolError& error) {
    refused(error.what());
  } catch (const asio::system_error& error) {
    // The peer went away, or was too slow.
    EventLog::debug("connection lost", {{"peer", client_.peer}, {"reason", error.what()}});
  }
}

// False where the connection is none of the broker's any more.
asio::awaitable<bool> Broker::Connection::on_request(wire::Control::Reader control) {
  switch (control.which()) {
    case wire::Control::HELLO:
      if (welcome_) throw ProtocolError("a second hello");
      welcome_ = co_await on_hello(control.getHello());
      co_return welcome_;
    case wire::Control::LEASE_REQUEST:
      require_hello();
      if (!pending_) throw ProtocolError("a second request for a session");
      stop_calling();
      co_return co_await on_lease(control.getLeaseRequest());
    case wire::Control::GIVE_UP:
      require_hello();
      if (broker_.pool_) broker_.pool_->give_up(printable(control.getGiveUp().cStr()), client_.tenant);
      co_await channel_.send([](wire::Control::Builder answer) { answer.setGivenUp(); });
      co_return true;
    case wire::Control::STATUS_REQUEST:
      require_hello();
      co_await on_status();
      co_return true;
    case wire::Control::ADMINISTRATION_REQUEST:
      require_hello();
      co_await on_administration(control.getAdministrationRequest());
      co_return true;
    case wire::Control::CONTENTS_REQUEST:
      require_hello();
      co_await on_contents(control.getContentsRequest());
      co_return true;
    case wire::Control::ATTACH:
      if (transport_ == Transport::tls) throw ProtocolError("an attach on a control connection");
      co_await on_attach(control.getAttach());
      co_return false;
    case wire::Control::LANE:
      if (transport_ == Transport::tls) throw ProtocolError("a bulk lane on a control connection");
      co_await on_lane(control.getLane());
      co_return false;
    default: throw ProtocolError("a control message that a client does not send here");
  }
}

void Broker::Connection::require_hello() const {
  if (!welcome_) throw ProtocolError("a request before hello");
}

// What comes first where TLS is spoken: a handshake, or in the clear the session that this is for. True if a control
// connection begins.
asio::awaitable<bool> Broker::Connection::open_tls() {
  // RFC 8446, 5.1; no frame begins so, since lengths are multiples of 8.
  constexpr unsigned char handshake_record = 0x16;
  const std::optional<unsigned char> first = co_await channel_.peek();
  if (!first) co_return false;
  if (*first == handshake_record) {
    const asio::error_code error = co_await channel_.encrypt(broker_.tls_);
    if (error) {
      refused("TLS: " + handshake_text(error));
      co_return false;
    }
    SSL* const shown_by = channel_.tls();
    shown_.encrypted = true;
    shown_.certificate = tls_common_name(shown_by);
    shown_.certificate_end = tls_certificate_end(shown_by);
    shown_.key_identity = tls_key_identity(shown_by);
    co_return true;
  }
  if (!co_await channel_.read_frame()) co_return false;
  MessageReader reader(channel_.message());
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
  co_await channel_.send([&](wire::Control::Builder answer) {
    auto failure = answer.initHelloAnswer().initFailure();
    failure.setReason(wire::Failure::Reason::DENIED);
    failure.setText("this port speaks TLS; write FARGPU_POOL=tls://host:port, and set FARGPU_CA");
  });
  co_return false;
}

asio::awaitable<bool> Broker::Connection::on_hello(wire::Hello::Reader hello) {
  const std::string denied = identify(hello);
  const Versions theirs = versions_of(hello);
  const auto version = common_version(our_versions, theirs);
  if (!version) {
    EventLog::warn("client of another version", {{"peer", client_.peer}, {"protocol", hello.getProtocolVersion()}});
  }
  if (near_ && !local_ && broker_.settings_.shared_memory) local_ = broker_.local_keys_.issue();
  std::optional<LocalKeys::Number> proof;
  if (channel_.by_socket())
    proof = broker_.local_keys_.proof_of(
        {reinterpret_cast<const std::byte*>(hello.getLocalKey().begin()), hello.getLocalKey().size()});
  co_await channel_.send([&](wire::Control::Builder control) {
    auto answer = control.initHelloAnswer();
    answer.setProtocolVersion(version.value_or(our_versions.newest));
    write_host(answer, proof);
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

// Enters what is known of the client. Why it is denied; empty if it is not.
std::string Broker::Connection::identify(wire::Hello::Reader hello) {
  client_.program = printable(hello.getProgram().cStr());
  client_.host_name = printable(hello.getHostName().cStr());
  client_.process_id = hello.getProcessId();
  if (hello.hasJob()) job_ = read_job(hello.getJob());
  shown_.token = hello.getToken().cStr();
  const auto judgement = broker_.identity_->judge(shown_, broker_.leases_.tenants());
  shown_.token.clear();
  client_.tenant = judgement.tenant;
  keeper_ = judgement.administrator;
  known_by_ = judgement.known_by;
  client_.identity = known_by_.text();
  return judgement.reason;
}

void Broker::Connection::write_host(wire::HelloAnswer::Builder answer,
                                    const std::optional<LocalKeys::Number>& proof) const {
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
}

// A program that ends closes its connection. If it breaks, the job may be there still, and its next session has the
// lease; sessions are waited for as long. If it breaks soon, the client may not have heard that it has the lease, or
// may have found another host meanwhile and not have read the answer of this one.
asio::awaitable<void> Broker::Connection::outlast() {
  channel_.hang_up();
  std::chrono::seconds time(lease_->resume_seconds.value_or(broker_.settings_.resume_seconds_of(here_)));
  if (std::chrono::steady_clock::now() - granted_ < handshake_time())
    time = std::min(time, std::chrono::duration_cast<std::chrono::seconds>(limits::resume_ended_max));
  if (time.count() == 0) co_return;
  EventLog::info("lease outlasts its connection", {{"lease", lease_->id}, {"seconds", time.count()}});
  asio::steady_timer timer(broker_.io_, time);
  co_await timer.async_wait(asio::use_awaitable);
}

void Broker::Connection::expire_after(std::chrono::milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    if (self->pending_ && !self->channel_.heard()) self->refused("said nothing in time");
    self->channel_.hang_up();
  });
}

void Broker::Connection::refused(const std::string& reason) {
  broker_.pending_.failed("connection refused", client_.peer, source_, reason);
}

JobKey Broker::Connection::read_job(capnp::Data::Reader bytes) {
  JobKey job;
  if (bytes.size() != job.size()) throw ProtocolError("a job's key of a wrong length");
  std::memcpy(job.data(), bytes.begin(), job.size());
  return job;
}

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
