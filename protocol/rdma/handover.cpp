#include "handover.h"

#include <utility>
#include <vector>

#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/text.h"

namespace fargpu::rdma {
namespace {

void send_end(Channel& connection, const ChannelEnd* end, const std::string& why) {
  send_control(connection, 1, [&](wire::Control::Builder control) {
    auto told = control.initRdma();
    if (!end) return told.setFailure(why);
    const EndFacts& facts = end->facts();
    told.setAddress(data_of(facts.address));
    told.setKey(data_of(facts.key));
    told.setRing(facts.ring);
    told.setRingBytes(facts.ring_bytes);
    told.setSecret(data_of(facts.secret));
  });
}

EndFacts facts_of(wire::RdmaEnd::Reader told) {
  return {copy_of(told.getAddress()), copy_of(told.getKey()), told.getRing(), told.getRingBytes(),
          copy_of(told.getSecret())};
}

std::string other_says(const std::string& text) { return "the other end says: " + printable(text, 512); }

}  // namespace

HandedOver hand_over(Channel& connection, const std::shared_ptr<OpenedDevices>& devices, const std::string& why_none,
                     std::optional<wire::RdmaEnd::Reader> heard, std::chrono::milliseconds timeout,
                     const std::shared_ptr<std::byte>& ring) {
  std::optional<ChannelEnd> end;
  std::string why = why_none, why_no_ring;
  if (devices && ring) {
    try {
      end.emplace(devices, limits::rdma_ring_bytes, ring);
    } catch (const RdmaError& error) {
      why_no_ring = error.what();
    }
  }
  if (devices && !end) {
    try {
      end.emplace(devices, limits::rdma_ring_bytes);
    } catch (const RdmaError& error) {
      why = error.what();
    }
  }
  send_end(connection, end ? &*end : nullptr, why);
  EndFacts other;
  std::string other_why;
  const auto take = [&](wire::RdmaEnd::Reader told) {
    other_why = told.getFailure().cStr();
    if (other_why.empty()) other = facts_of(told);
  };
  if (heard) {
    take(*heard);
  } else {
    const auto message = receive_control(connection, timeout);
    MessageReader reader(message);
    const auto control = reader.root<wire::Control>();
    if (!control.isRdma()) throw ProtocolError(connection.peer() + " does not go on by RDMA, as it was asked to");
    take(control.getRdma());
  }
  if (!other_why.empty()) return {std::nullopt, other_says(other_why), why_no_ring};
  if (!end) return {std::nullopt, why, why_no_ring};

  try {
    end->connect(other);
    end->meet(limits::rdma_meeting_timeout);
  } catch (const RdmaError& error) {
    why = error.what();
  }
  send_control(connection, 1, [&](wire::Control::Builder control) { control.setRdmaMet(why); });
  const auto message = receive_control(connection, timeout);
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isRdmaMet()) throw ProtocolError(connection.peer() + " does not say whether RDMA works");
  if (!why.empty()) return {std::nullopt, why, why_no_ring};
  if (const std::string text = control.getRdmaMet().cStr(); !text.empty())
    return {std::nullopt, other_says(text), why_no_ring};
  std::string by = end->describe();
  return {std::move(end), std::move(by), why_no_ring};
}

std::unique_ptr<Channel> HandedOver::go_on(std::unique_ptr<Channel> connection) && {
  if (!end) return connection;
  ChannelEnd met = std::move(*end);
  end.reset();
  return std::move(met).open(std::move(connection));
}

}  // namespace fargpu::rdma
