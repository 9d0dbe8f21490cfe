#pragma once
// Frames as the bytes that travel, and the other way round.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "protocol/channel.h"
#include "protocol/frame.h"

namespace fargpu::test {

using Bytes = std::vector<std::byte>;

/// Bytes that differ from their neighbours, so that a shift shows.
inline Bytes pattern(std::size_t count, unsigned seed = 1) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((i + seed) * 2654435761u >> 11);
  return bytes;
}

inline void append(Bytes& to, std::span<const std::byte> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

/// A whole frame; fills in the lengths and the padding.
inline Bytes frame(FrameHeader header, const Bytes& message = {}, const Bytes& bulk = {}) {
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
  Bytes bytes;
  append(bytes, std::as_bytes(std::span(&header, 1)));
  append(bytes, message);
  append(bytes, bulk);
  bytes.resize(sizeof(header) + message.size() + padded(bulk.size()));
  return bytes;
}

inline FrameHeader numbered(std::uint32_t sequence, FrameKind kind = FrameKind::call) {
  FrameHeader header;
  header.sequence = sequence;
  header.kind = kind;
  return header;
}

inline void send(Channel& channel, const Bytes& bytes) {
  const Channel::Bytes piece(bytes);
  send_all(channel, std::span(&piece, 1));
}

}  // namespace fargpu::test
