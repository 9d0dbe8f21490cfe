#include "reservations.h"

namespace fargpu::client {

void Reservations::add(std::uint64_t base, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_[base] = bytes;
}

bool Reservations::holds(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto it = bytes_.upper_bound(address);
  if (it == bytes_.begin()) return false;
  --it;
  const std::uint64_t offset = address - it->first;
  return offset <= it->second && it->second - offset >= bytes;
}

bool Reservations::remove(std::uint64_t base, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = bytes_.find(base);
  if (found == bytes_.end() || found->second != bytes) return false;
  bytes_.erase(found);
  return true;
}

}  // namespace fargpu::client
