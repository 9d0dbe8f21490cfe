#include "lane_requests.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/channel_tls.h"
#include "protocol/data.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/rdma/handover.h"
#include "protocol/same_secret.h"
#include "resumption.h"
#include "session.h"

namespace fargpu::server {

LaneWish read_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept {
  try {
    MessageReader reader(lane_message);
    const auto control = reader.root<wire::Control>();
    if (!control.isLane()) return {};
    const auto lane = control.getLane();
    return {
        .known = same_secret(key, bytes_of(lane.getKey())), .channel = lane.getChannel(), .resumes = lane.getResumes()};
  } catch (const kj::Exception&) {  // nonsense
    return {};
  }
}

void take_lane(Session* session, std::unique_ptr<Channel> channel, const LaneWish& wish) noexcept {
  std::shared_ptr<Channel> lane;
  try {
    const bool taken = wish.known && session && !session->lanes_full();
    send_control(*channel, 1, [&](wire::Control::Builder answer) {
      auto failure = answer.initLaneAnswer();
      if (taken) return;
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("the session takes no bulk lane with this key, or has enough of them");
    });
    if (!taken) return;
    Resumption* const resumption = session->options().resumption.get();
    lane = std::move(channel);
    if (resumption && wish.channel != 0) lane = resumption->wrap(std::move(lane), wish.channel);
    session->add_lane(lane);
  } catch (const std::exception&) {  // it is gone
    // The client counts on it once it has its answer, and what resumes it keeps it.
    if (lane) lane->close();
  }
}

namespace {

/// By which devices, and into which ring, a lane of this session goes.
rdma::HandedOver hand_lane_over(Channel& connection, const RdmaOffer& offer, std::chrono::milliseconds timeout) {
  if (!offer.direct || !offer.devices || !offer.direct->decide())
    return rdma::hand_over(connection, offer.devices, offer.why_none, {}, timeout);
  auto handed = rdma::hand_over(connection, offer.direct->devices(), offer.why_none, {}, timeout, offer.direct->ring());
  if (!handed.why_no_ring.empty()) offer.direct->give_up(handed.why_no_ring);
  return handed;
}

}  // namespace

std::unique_ptr<Channel> lane_by_rdma(std::unique_ptr<Channel> connection, const RdmaOffer& offer) noexcept {
  try {
    auto handed = hand_lane_over(*connection, offer, limits::rdma_timeout);
    if (handed.end) return std::move(handed).go_on(std::move(connection));
  } catch (const std::exception&) {  // the client is gone, or was none
  } catch (const kj::Exception&) {}
  return nullptr;
}

GoOn meet_by_rdma(Channel& connection, const RdmaOffer& offer, bool lane) {
  const auto handed = std::make_shared<rdma::HandedOver>(
      lane ? hand_lane_over(connection, offer, limits::connect_timeout)
           : rdma::hand_over(connection, offer.devices, offer.why_none, {}, limits::connect_timeout));
  return [handed](std::unique_ptr<Channel> met) { return std::move(*handed).go_on(std::move(met)); };
}

std::unique_ptr<Channel> accept_by_key(int descriptor, const std::string& peer, std::span<const std::byte> name,
                                       std::span<const std::byte> secret) {
  const std::string identity(reinterpret_cast<const char*>(name.data()), name.size());
  TlsService service;
  service.find_key = [identity, key = std::vector<std::byte>(secret.begin(), secret.end())](const std::string& asked) {
    return asked == identity ? std::optional(key) : std::nullopt;
  };
  return accept_tls(descriptor, peer, make_server_context(std::move(service)), limits::connect_timeout);
}

}  // namespace fargpu::server
