#include "evicted_portion.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace fargpu::server {

std::uint64_t EvictedPortion::bytes(int device) const {
  std::uint64_t bytes = 0;
  for (const DeviceMemory::Piece& piece : pieces) bytes += piece.device == device ? piece.bytes : 0;
  return bytes;
}

// The largest that are not too large, and for what is left then the smallest one that is.
std::vector<DeviceMemory::Piece> enough_of(std::vector<DeviceMemory::Piece> pieces, std::vector<std::uint64_t> bytes) {
  if (bytes.empty()) return pieces;
  std::sort(pieces.begin(), pieces.end(), [](const auto& one, const auto& other) { return one.bytes > other.bytes; });
  const auto wanted = [&](const DeviceMemory::Piece& piece) -> std::uint64_t& {
    const auto device = static_cast<std::size_t>(piece.device);
    if (device >= bytes.size()) bytes.resize(device + 1);
    return bytes[device];
  };
  std::vector<DeviceMemory::Piece> chosen, larger;
  for (DeviceMemory::Piece& piece : pieces) {
    const bool fits = piece.bytes <= wanted(piece);
    if (fits) wanted(piece) -= piece.bytes;
    (fits ? chosen : larger).push_back(std::move(piece));
  }
  std::reverse(larger.begin(), larger.end());
  for (DeviceMemory::Piece& piece : larger)
    if (std::exchange(wanted(piece), 0) > 0) chosen.push_back(std::move(piece));
  return chosen;
}

}  // namespace fargpu::server
