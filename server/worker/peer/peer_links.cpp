#include "peer_links.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "protocol/data.h"
#include "protocol/errors.h"
#include "protocol/handshake.h"
#include "protocol/message.h"
#include "protocol/same_secret.h"
#include "protocol/text.h"

namespace fargpu::server {
namespace {

constexpr std::size_t key_bytes = limits::lane_name_bytes + 32;

constexpr const char* too_many = "there are enough links with other hosts";

}  // namespace

// --- for the executor -----------------------------------------------------------------------------------------------

std::string PeerLinks::make(std::uint32_t number, PeerLink::End end) {
  if (!door_) return "this host has no links with others";
  const auto alive = static_cast<std::size_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& one) { return one.second.link->failure().empty(); }));
  if (made_ == limits::links_ever_max || alive == limits::links_max) return too_many;
  if (links_.contains(number)) throw ProtocolError("a link has the number of another one");
  auto charge = HostCharge::try_take(budget_, PeerLink::memory_of(end));
  if (!charge) return "the session may not take so much more of the host's memory";
  auto link = std::make_shared<PeerLink>(number, end, waker_, compression_, silence_);
  const std::lock_guard lock(mutex_);
  ++made_;
  Member& member = links_[number];
  member.charge = std::move(*charge);
  member.link = std::move(link);
  return {};
}

std::string PeerLinks::offer(std::uint32_t number) { return make(number, PeerLink::End::target); }

std::string PeerLinks::join(std::uint32_t number) { return make(number, PeerLink::End::source); }

std::shared_ptr<PeerLink> PeerLinks::find(std::uint32_t number) const {
  const auto found = links_.find(number);
  return found == links_.end() ? nullptr : found->second.link;
}

// It stays known: calls that name it may be on their way, and the GPU may yet copy from its memory.
void PeerLinks::close(std::uint32_t number) {
  const auto found = links_.find(number);
  if (found == links_.end()) throw ProtocolError("a link is closed that there is not");
  found->second.told = true;
  {
    const std::lock_guard lock(mutex_);
    forget_key(found->second);
  }
  found->second.link->fail("the client has closed it");
}

void PeerLinks::close_all() {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [number, member] : links_) forget_key(member);
  }
  for (const auto& [number, member] : links_) member.link->abandon();
}

bool PeerLinks::collect() {
  bool any = false;
  for (auto& [number, member] : links_) {
    any |= member.link->collect();
    if (member.link->failure().empty() || member.told) continue;
    member.told = true;
    lost_(number, member.link->failure());
    const std::lock_guard lock(mutex_);
    forget_key(member);
  }
  return any;
}

void PeerLinks::context_closes(DriverTable& driver, const ContextState& context) {
  for (const auto& [number, member] : links_) member.link->context_closes(driver, context);
}

// --- for any thread -------------------------------------------------------------------------------------------------

// Under the mutex.
void PeerLinks::forget_key(Member& member) {
  if (member.key.empty()) return;
  door_->shut_out(member.key);
  member.key.clear();
}

std::vector<std::byte> PeerLinks::admit(std::uint32_t number) {
  std::vector<std::byte> key(key_bytes);
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return {};
  {
    const std::lock_guard lock(mutex_);
    const auto found = links_.find(number);
    if (found == links_.end()) return {};
    found->second.key = key;
    found->second.missing = limits::link_lanes + 1;
  }
  if (door_->admit(key)) return key;
  const std::lock_guard lock(mutex_);
  if (const auto found = links_.find(number); found != links_.end()) forget_key(found->second);
  return {};
}

PeerLinks::Met PeerLinks::meet(std::uint32_t number, const PeerAddress& address) {
  std::shared_ptr<PeerLink> link;
  {
    const std::lock_guard lock(mutex_);
    link = find(number);
  }
  if (!link) return {.failure = "the link is gone"};
  try {
    bool rdma = true;
    for (std::uint32_t channel = 0; channel <= limits::link_lanes; ++channel) {
      PeerConnection connection = door_->connect(address, channel);
      rdma &= connection.rdma;
      if (!link->take(channel, std::move(connection.channel))) return {.failure = "the link is gone"};
    }
    return {.rdma = rdma};
  } catch (const kj::Exception&) {
    return {.failure = "no host of fargpu answers there"};
  } catch (const std::exception& error) {
    return {.failure = printable(error.what(), 512)};
  }
}

std::optional<PeerWish> PeerLinks::read(std::span<const std::byte> lane_message) const noexcept {
  try {
    MessageReader reader(lane_message);
    const auto control = reader.root<wire::Control>();
    if (!control.isLane() || control.getLane().getResumes()) return std::nullopt;
    const std::span<const std::byte> theirs = bytes_of(control.getLane().getKey());
    const bool encrypted = theirs.size() == limits::lane_name_bytes;
    const std::lock_guard lock(mutex_);
    for (const auto& [number, member] : links_) {
      const std::span<const std::byte> ours(member.key);
      if (ours.empty() || !same_secret(encrypted ? ours.first(limits::lane_name_bytes) : ours, theirs)) continue;
      return PeerWish{.link = number,
                      .channel = control.getLane().getChannel(),
                      .key = member.key,
                      .encrypted = encrypted,
                      .rdma = control.getLane().getRdma()};
    }
  } catch (const std::exception&) {
  } catch (const kj::Exception&) {  // nonsense
  }
  return std::nullopt;
}

void PeerLinks::take(std::unique_ptr<Channel> channel, const PeerWish& wish) noexcept {
  try {
    std::shared_ptr<PeerLink> link;
    {
      const std::lock_guard lock(mutex_);
      const auto found = links_.find(wish.link);
      if (found != links_.end() && found->second.missing > 0 && same_secret(found->second.key, wish.key) &&
          wish.channel <= limits::link_lanes) {
        link = found->second.link;
        if (--found->second.missing == 0) forget_key(found->second);
      }
    }
    const auto answer = [&](Channel& to) {
      send_control(to, 1, [&](wire::Control::Builder control) {
        auto failure = control.initLaneAnswer();
        if (link) return;
        failure.setReason(wire::Failure::Reason::DENIED);
        failure.setText("the session expects no connection of another host with this key");
      });
    };
    if (link) link->take(wish.channel, std::move(channel), answer);
    else answer(*channel);
  } catch (const std::exception&) {  // it is gone
  }
}

}  // namespace fargpu::server
