#include "graph_parts.h"

#include <algorithm>
#include <cstring>

#include "client/base/pages.h"

namespace fargpu::client {

std::vector<std::byte> GraphParts::Memory::gather() const {
  std::vector<std::byte> packed(shape.bytes());
  std::byte* to = packed.data();
  for (std::uint64_t s = 0; s < shape.depth; ++s)
    for (std::uint64_t r = 0; r < shape.height; ++r, to += shape.width)
      std::memcpy(to, reinterpret_cast<const void*>(side.row(r, s)), shape.width);
  return packed;
}

void GraphParts::Memory::scatter(std::size_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const std::size_t number = offset / shape.width, column = offset % shape.width;
    const std::size_t part = std::min<std::size_t>(bytes.size(), shape.width - column);
    std::memcpy(bytes_at(side.row(number % shape.height, number / shape.height)) + column, bytes.data(), part);
    bytes = bytes.subspan(part);
    offset += part;
  }
}

std::uint64_t GraphParts::add(Part part) {
  const std::lock_guard lock(mutex_);
  parts_.emplace(next_, part);
  return next_++;
}

std::map<std::uint64_t, GraphParts::Memory> GraphParts::within(std::uint64_t base, std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  std::map<std::uint64_t, Memory> found;
  for (const auto& [number, part] : parts_) {
    const auto* const memory = std::get_if<Memory>(&part);
    if (memory && memory->begin() < base + bytes && memory->begin() + memory->extent() > base)
      found.emplace(number, *memory);
  }
  return found;
}

void GraphParts::release(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  parts_.erase(number);
}

}  // namespace fargpu::client
