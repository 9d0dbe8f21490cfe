#include "link_by_rdma.h"

#include <utility>
#include <vector>

#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "protocol/message.h"
#include "protocol/rdma/handover.h"
#include "protocol/text.h"

namespace fargpu::server {
PeerConnection hear_target(std::unique_ptr<Channel> connection, const std::shared_ptr<rdma::OpenedDevices>& devices) {
  PeerConnection link{std::move(connection), false};
  const auto hear = [&] { return receive_control(*link.channel, limits::connect_timeout); };
  std::vector<std::byte> message = hear();
  if (devices) {
    MessageReader reader(message);
    if (const auto control = reader.root<wire::Control>(); control.isRdma()) {
      auto handed = rdma::hand_over(*link.channel, devices, {}, control.getRdma());
      link.rdma = handed.end.has_value();
      link.channel = std::move(handed).go_on(std::move(link.channel));
      message = hear();
    }
  }
  MessageReader reader(message);
  const auto control = reader.root<wire::Control>();
  if (!control.isLaneAnswer()) throw ProtocolError("no host of fargpu answers there");
  const auto failure = control.getLaneAnswer();
  if (failure.getReason() != wire::Failure::Reason::NONE) throw ChannelClosed(printable(failure.getText().cStr(), 512));
  return link;
}

}  // namespace fargpu::server
