#include "worker.h"

#include <algorithm>

namespace fargpu::server {

std::optional<std::size_t> Worker::number_of(unsigned place) const {
  const std::vector<unsigned>& devices = lease->lease().devices;
  const auto found = std::find(devices.begin(), devices.end(), place);
  if (found == devices.end()) return std::nullopt;
  return static_cast<std::size_t>(found - devices.begin());
}

std::uint64_t Worker::used_bytes(unsigned place) const {
  const auto device = number_of(place);
  return device ? slot().held[*device] + slot().inherited[*device] : 0;
}

std::uint64_t Worker::there_bytes(unsigned place) const {
  const auto device = number_of(place);
  return device ? own_bytes_there(*device) + slot().inherited[*device] : 0;
}

std::uint64_t Worker::own_bytes_there(std::size_t device) const {
  const std::uint64_t held = slot().held[device];  // read once: the worker writes it
  return held - std::min<std::uint64_t>(slot().away[device], held);
}

AccountSlot& Worker::slot() const { return lease->lease().account->slot(lease->slot()); }

}  // namespace fargpu::server
