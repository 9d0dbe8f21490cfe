#include "lane_rows.h"

#include <cstring>

#include "client/base/pages.h"
#include "protocol/program_memory.h"

namespace fargpu::client {
namespace {

template <class Step>
bool for_rows(const CopySide& side, const RowChunks::Part& part, Step&& step) {
  const CopySide rows = side.from(part.column, part.row, 0);
  for (std::uint64_t y = 0; y < part.shape.height; ++y)
    if (!step(bytes_at(rows.row(y, 0)), y * part.shape.width, part.shape.width)) return false;
  return true;
}

}  // namespace

std::span<std::byte> LaneRows::place_of(std::uint64_t chunk) const {
  const RowChunks::Part part = chunks_.part(chunk);
  const CopySide rows = side_.from(part.column, part.row, 0);
  return {bytes_at(rows.begin()), rows.extent(part.shape)};
}

bool LaneRows::gather(std::uint64_t chunk, std::span<std::byte> into) const {
  return for_rows(side_, chunks_.part(chunk), [&](const std::byte* row, std::uint64_t at, std::uint64_t bytes) {
    if (unsure_) return read_program_memory(row, into.data() + at, bytes);
    std::memcpy(into.data() + at, row, bytes);
    return true;
  });
}

bool LaneRows::scatter(std::uint64_t chunk, std::span<const std::byte> bytes) const {
  return for_rows(side_, chunks_.part(chunk), [&](std::byte* row, std::uint64_t at, std::uint64_t width) {
    return write(reinterpret_cast<std::uint64_t>(row), bytes.subspan(at, width));
  });
}

bool LaneRows::write(std::uint64_t address, std::span<const std::byte> bytes) const {
  auto* const to = bytes_at(address);
  if (unsure_) return write_program_memory(bytes.data(), to, bytes.size());
  std::memcpy(to, bytes.data(), bytes.size());
  return true;
}

}  // namespace fargpu::client
