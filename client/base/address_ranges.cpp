#include "address_ranges.h"

namespace fargpu::client {

AddressRanges::AddressRanges(std::uint64_t base, std::uint64_t bytes) : base_(base), bytes_(bytes) {
  if (bytes > 0) insert(base, bytes);
}

std::optional<std::uint64_t> AddressRanges::take(std::uint64_t bytes, std::uint64_t alignment) {
  for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end(); ++it) {
    const auto [size, address] = *it;
    const std::uint64_t aligned = (address + alignment - 1) & ~(alignment - 1);
    if (aligned - address > size - bytes) continue;
    carve(by_address_.find(address), aligned, bytes);
    return aligned;
  }
  return std::nullopt;
}

bool AddressRanges::take_at(std::uint64_t address, std::uint64_t bytes) {
  auto it = by_address_.upper_bound(address);
  if (it == by_address_.begin()) return false;
  --it;
  const std::uint64_t offset = address - it->first;
  if (offset > it->second || it->second - offset < bytes) return false;
  carve(it, address, bytes);
  return true;
}

void AddressRanges::give(std::uint64_t address, std::uint64_t bytes) {
  auto next = by_address_.lower_bound(address);
  if (next != by_address_.end() && next->first == address + bytes) {
    bytes += next->second;
    const auto gone = next++;
    remove(gone);
  }
  if (next != by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == address) {
      address = before->first;
      bytes += before->second;
      remove(before);
    }
  }
  insert(address, bytes);
}

void AddressRanges::insert(std::uint64_t address, std::uint64_t bytes) {
  by_address_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
  free_bytes_ += bytes;
}

void AddressRanges::remove(std::map<std::uint64_t, std::uint64_t>::iterator part) {
  by_size_.erase({part->second, part->first});
  free_bytes_ -= part->second;
  by_address_.erase(part);
}

void AddressRanges::carve(std::map<std::uint64_t, std::uint64_t>::iterator part, std::uint64_t address,
                          std::uint64_t bytes) {
  const auto [begin, size] = *part;
  remove(part);
  if (address > begin) insert(begin, address - begin);
  if (begin + size > address + bytes) insert(address + bytes, begin + size - address - bytes);
}

}  // namespace fargpu::client
