#include "broker_door.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "next_broker.h"
#include "protocol/channel_tls.h"
#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/text.h"
#include "protocol/tls.h"
#include "server/worker/peer/link_by_rdma.h"

namespace fargpu::server {
namespace {

// The broker tries for as long as a connection may take, and says so then.
constexpr auto answer_max = 2 * limits::connect_timeout;

}  // namespace

bool BrokerDoor::admit(std::span<const std::byte> key) {
  const std::vector<std::byte> name(key.begin(), key.end());
  std::unique_lock lock(mutex_);
  admitting_.insert(name);
  const bool sent = send_link(link_, [&](wire::WorkerMessage::Builder message) { message.setAdmit(data_of(key)); });
  const bool let_in =
      sent && changed_.wait_for(lock, limits::connect_timeout, [&] { return !admitting_.contains(name); });
  admitting_.erase(name);
  return let_in;
}

void BrokerDoor::shut_out(std::span<const std::byte> key) {
  const std::lock_guard lock(mutex_);
  admitted_.erase({key.begin(), key.end()});
  send_link(link_, [&](wire::WorkerMessage::Builder message) { message.setShutOut(data_of(key)); });
}

void BrokerDoor::heard_admitted(std::span<const std::byte> key) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::byte> name(key.begin(), key.end());
  admitting_.erase(name);
  admitted_.insert(name);
  changed_.notify_all();
}

bool BrokerDoor::recount_to(int next) const {
  return std::all_of(admitted_.begin(), admitted_.end(), [&](const auto& key) {
    return recount(next, [&](wire::WorkerMessage::Builder message) { message.setAdmits(data_of(key)); });
  });
}

Descriptor BrokerDoor::dial(const PeerAddress& address) {
  std::unique_lock lock(mutex_);
  const std::uint64_t request = ++request_;
  dialling_[request] = std::nullopt;
  const bool sent = send_link(link_, [&](wire::WorkerMessage::Builder message) {
    auto dial = message.initDial();
    dial.setRequest(request);
    dial.setHost(address.host);
    dial.setPort(address.port);
  });
  if (sent) changed_.wait_for(lock, answer_max, [&] { return dialling_[request].has_value(); });
  const auto answer = dialling_.extract(request);
  if (!answer.mapped()) throw ChannelClosed("fargpud of this host does not answer");
  if (!answer.mapped()->failure.empty()) throw ChannelClosed(answer.mapped()->failure);
  return std::move(answer.mapped()->descriptor);
}

void BrokerDoor::heard(wire::Dialled::Reader dialled, Descriptor descriptor) {
  const std::lock_guard lock(mutex_);
  const auto found = dialling_.find(dialled.getRequest());
  if (found == dialling_.end()) return;  // too late
  std::string failure = printable(dialled.getFailure().cStr(), 512);
  if (failure.empty() && descriptor.number() < 0) failure = "fargpud of this host gave no connection";
  found->second = Answer{std::move(failure), std::move(descriptor)};
  changed_.notify_all();
}

PeerConnection BrokerDoor::connect(const PeerAddress& address, std::uint32_t channel) {
  const std::span<const std::byte> key = address.key;
  if (key.size() < limits::lane_name_bytes + tls_key_bytes_min ||
      key.size() > limits::lane_name_bytes + tls_key_bytes_max)
    throw ProtocolError("a link's key of a length that keys do not have");
  const std::span<const std::byte> name = key.first(limits::lane_name_bytes);
  const std::string peer = "the worker of " + printable(address.host);
  Descriptor descriptor = dial(address);
  const auto devices = rdma_(descriptor.number());
  const auto ask = [&](Channel& connection) {
    send_control(connection, 1, [&](wire::Control::Builder control) {
      auto lane = control.initLane();
      lane.setSessionId(address.session);
      lane.setKey(data_of(address.encrypted ? name : key));
      lane.setChannel(channel);
      lane.setRdma(devices != nullptr);
    });
  };
  const auto answered = [&](std::unique_ptr<Channel> connection) {
    PeerConnection link = hear_target(std::move(connection), devices);
    link.channel = wrap_(std::move(link.channel));
    return link;
  };
  if (!address.encrypted) {
    auto connection = make_socket_channel(descriptor.release(), peer);
    ask(*connection);
    return answered(std::move(connection));
  }
  // One message in the clear, which names the key; TLS by the rest of it follows on the same socket.
  const int twin = ::fcntl(descriptor.number(), F_DUPFD_CLOEXEC, 0);
  if (twin < 0) throw SystemError(std::string("no descriptor is free: ") + std::strerror(errno));
  ask(*make_socket_channel(twin, peer));
  const auto secret = key.subspan(name.size());
  const TlsContext context = make_client_context(
      {.key = TlsKey{{reinterpret_cast<const char*>(name.data()), name.size()}, {secret.begin(), secret.end()}}});
  return answered(connect_tls(descriptor.release(), peer, context, "", limits::connect_timeout));
}

}  // namespace fargpu::server
