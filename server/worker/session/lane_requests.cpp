#include "lane_requests.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/channel_tls.h"
#include "protocol/handshake.h"
#include "protocol/limits.h"
#include "session.h"

namespace fargpu::server {

bool asks_for_lane(std::span<const std::byte> lane_message, std::span<const std::byte> key) noexcept {
  try {
    MessageReader reader(lane_message);
    const auto control = reader.root<wire::Control>();
    if (!control.isLane()) return false;
    const auto theirs = control.getLane().getKey();
    unsigned difference = key.empty() || theirs.size() != key.size();
    // All of it, so that the time tells nothing.
    for (std::size_t i = 0; i < key.size() && i < theirs.size(); ++i)
      difference |= unsigned{theirs[i]} ^ std::to_integer<unsigned>(key[i]);
    return difference == 0;
  } catch (const kj::Exception&) {  // nonsense
    return false;
  }
}

void take_lane(Session* session, std::unique_ptr<Channel> channel, bool known) noexcept {
  try {
    const bool taken = known && session && !session->lanes_full();
    send_control(*channel, 1, [&](wire::Control::Builder answer) {
      auto failure = answer.initLaneAnswer();
      if (taken) return;
      failure.setReason(wire::Failure::Reason::DENIED);
      failure.setText("the session takes no bulk lane with this key, or has enough of them");
    });
    if (taken) session->add_lane(std::move(channel));
  } catch (const std::exception&) {  // it is gone
  }
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
