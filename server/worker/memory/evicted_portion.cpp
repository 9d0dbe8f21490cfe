#include "evicted_portion.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace fargpu::server {

void EvictedPlace::give_up(const EvictedContents& contents) {
  const auto [offset, bytes] = contents.range();
  if (file) file->give_up(offset, bytes);
  if (charge) charge->shrink(charge->bytes() - std::min(charge->bytes(), contents.kept_bytes()));
}

std::uint64_t EvictedPortion::bytes(int device) const {
  std::uint64_t bytes = 0;
  for (const DeviceMemory::Piece& piece : pieces) bytes += piece.device == device ? piece.bytes : 0;
  return bytes;
}

bool EvictedPortion::any(const std::function<bool(const DeviceMemory::Piece&)>& is) const {
  return std::any_of(pieces.begin(), pieces.end(), is);
}

EvictedPortion::Cut EvictedPortion::each_of(std::uint64_t bytes) {
  return [bytes, here = std::uint64_t{0}](const auto& before, const auto&) mutable {
    here += before.bytes;
    if (here < bytes) return false;
    here = 0;
    return true;
  };
}

// Its pieces lie in its store in their order.
std::vector<EvictedPortion> EvictedPortion::divide(EvictedPortion portion, const Cut& cut) {
  std::vector<EvictedPortion> portions;
  for (DeviceMemory::Piece& piece : portion.pieces) {
    if (portions.empty() || cut(portions.back().pieces.back(), piece))
      portions.push_back({.pieces = {}, .place = portion.place, .contents = {}});
    portions.back().pieces.push_back(std::move(piece));
  }
  std::map<CUdeviceptr, std::pair<CUdeviceptr, std::size_t>> pieces;  // by their begin: their end, and whose they are
  for (std::size_t part = 0; part < portions.size(); ++part)
    for (const DeviceMemory::Piece& piece : portions[part].pieces)
      pieces[piece.address] = {piece.address + piece.bytes, part};
  auto contents = portion.contents->divide(portions.size(), [&](CUdeviceptr address) -> std::optional<std::size_t> {
    const auto next = pieces.upper_bound(address);
    if (next == pieces.begin()) return std::nullopt;
    const auto& [end, part] = std::prev(next)->second;
    return address < end ? std::optional(part) : std::nullopt;
  });
  for (std::size_t part = 0; part < portions.size(); ++part) {
    portions[part].contents = std::move(contents[part]);
    if (portion.store_bytes > 0)
      std::tie(portions[part].offset, portions[part].store_bytes) = portions[part].contents->range();
  }
  return portions;
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
