#include "encrypted_lanes.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "protocol/limits.h"

namespace fargpu::server {

EncryptedLanes::EncryptedLanes(std::span<const std::byte> key, Give give)
    : name_(key.first(std::min(key.size(), limits::lane_name_bytes))),
      secret_(key.subspan(name_.size())),
      give_(std::move(give)) {}

void EncryptedLanes::asked(Descriptor descriptor, std::span<const std::byte> lane_message) {
  const LaneWish wish = read_lane(lane_message, name_);
  if (!wish.known || under_way_ >= limits::lanes_max) return;
  ++under_way_;
  std::thread([this, wish, descriptor = descriptor.release()] {
    try {
      give_(accept_by_key(descriptor, wish.channel == 0 ? "the client" : "the client's bulk lane", name_, secret_),
            wish);
    } catch (const std::exception&) {  // it was not the client after all, or it is gone
    }
    --under_way_;
  }).detach();
}

}  // namespace fargpu::server
