#include "memory_map.h"

#include <mutex>

namespace fargpu::client {

std::optional<Region> MemoryMap::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return std::nullopt;
  --it;
  if (address - it->first >= it->second.bytes) return std::nullopt;
  return it->second;
}

bool MemoryMap::add(Region region) {
  const std::unique_lock lock(mutex_);
  const auto next = regions_.lower_bound(region.base);
  if (next != regions_.end() && next->first < region.base + region.bytes) return false;
  if (next != regions_.begin()) {
    const Region& before = std::prev(next)->second;
    if (before.base + before.bytes > region.base) return false;
  }
  const std::uint64_t base = region.base;
  regions_.emplace_hint(next, base, std::move(region));
  return true;
}

std::optional<Region> MemoryMap::remove(std::uint64_t base) {
  return remove_if(base, [](const Region&) { return true; });
}

bool MemoryMap::update(std::uint64_t base, const std::function<void(Region&)>& change) {
  const std::unique_lock lock(mutex_);
  const auto found = regions_.find(base);
  if (found == regions_.end()) return false;
  change(found->second);
  return true;
}

void MemoryMap::update_within(std::uint64_t address, std::uint64_t bytes, const std::function<void(Region&)>& change) {
  const std::unique_lock lock(mutex_);
  for (auto it = regions_.lower_bound(address); it != regions_.end() && it->first - address < bytes; ++it)
    change(it->second);
}

std::vector<Region> MemoryMap::within(std::uint64_t address, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  std::vector<Region> found;
  for (auto it = regions_.lower_bound(address); it != regions_.end() && it->first - address < bytes; ++it)
    found.push_back(it->second);
  return found;
}

std::vector<Region> MemoryMap::extract_within(std::uint64_t address, std::uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  std::vector<Region> found;
  auto it = regions_.lower_bound(address);
  for (; it != regions_.end() && it->first - address < bytes; it = regions_.erase(it)) found.push_back(it->second);
  return found;
}

std::vector<Region> MemoryMap::extract(const std::function<bool(const Region&)>& which) {
  const std::unique_lock lock(mutex_);
  std::vector<Region> found;
  for (auto it = regions_.begin(); it != regions_.end();) {
    if (which(it->second)) {
      found.push_back(it->second);
      it = regions_.erase(it);
    } else {
      ++it;
    }
  }
  return found;
}

bool MemoryMap::overlaps(std::uint64_t address, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto it = regions_.lower_bound(address);
  if (it != regions_.end() && it->first < address + bytes) return true;
  return it != regions_.begin() && std::prev(it)->second.base + std::prev(it)->second.bytes > address;
}

bool MemoryMap::usable(std::uint64_t address, std::uint64_t bytes) const {
  if (bytes == 0) return true;
  const auto region = find(address);
  const auto accessible = [](const Region& r) { return r.accessible; };
  return region && (region->on_device() ? covered(address, bytes, accessible) : region->contains(address, bytes));
}

bool MemoryMap::covered(std::uint64_t address, std::uint64_t bytes, bool (*accept)(const Region&)) const {
  const std::shared_lock lock(mutex_);
  const std::uint64_t end = address + bytes;
  if (end < address) return false;
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return false;
  --it;
  const Region& first = it->second;
  for (; address < end; ++it) {
    if (it == regions_.end() || !it->second.on_device() || it->first > address ||
        address - it->first >= it->second.bytes || !accept(it->second))
      return false;
    const bool both_mapped = first.kind == Region::Kind::mapped && it->second.kind == Region::Kind::mapped;
    if (it->first != first.base && !both_mapped) return false;
    address = it->first + it->second.bytes;
  }
  return true;
}

}  // namespace fargpu::client
