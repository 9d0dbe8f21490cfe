#include "graph_parts.h"

#include <algorithm>
#include <cstring>

namespace fargpu::client {

std::uint64_t GraphParts::Memory::row(std::size_t row, std::size_t slice) const {
  return base + (z + slice) * pitch * height + (y + row) * pitch + x;
}

std::vector<std::byte> GraphParts::Memory::gather() const {
  std::vector<std::byte> packed(bytes());
  std::byte* to = packed.data();
  for (std::size_t s = 0; s < slices; ++s) {
    for (std::size_t r = 0; r < rows; ++r, to += width) std::memcpy(to, reinterpret_cast<const void*>(row(r, s)), width);
  }
  return packed;
}

void GraphParts::Memory::scatter(std::size_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const std::size_t number = offset / width, column = offset % width;
    const std::size_t part = std::min(bytes.size(), width - column);
    std::memcpy(reinterpret_cast<std::byte*>(row(number % rows, number / rows)) + column, bytes.data(), part);
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
    if (memory && memory->begin() < base + bytes && memory->end() > base) found.emplace(number, *memory);
  }
  return found;
}

void GraphParts::release(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  parts_.erase(number);
}

}  // namespace fargpu::client
