#pragma once
// A frame is the unit on a channel: a header of 32 bytes, one Cap'n Proto segment, and bulk bytes padded to eight.
// All numbers are little-endian. docs/internals/wire-format.md says which frames exist and what must hold.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "errors.h"
#include "limits.h"

namespace fargpu {

static_assert(std::endian::native == std::endian::little, "frames are written in memory order");

enum class FrameKind : std::uint16_t {
  control = 1,  ///< a Control message (control.capnp)
  call = 2,     ///< client to worker: a call; `opcode` names it
  reply = 3,    ///< worker to client: the outcome of the call that `subject` numbers
  /// Worker to client: the next bulk bytes of the answer to the call that `subject` numbers, before its reply.
  data = 4,
  confirm = 5,    ///< either way: header only, carries `confirmed`
  heartbeat = 6,  ///< either way: header only, is answered by a confirm
};

/// In the place of a kind: its bulk bytes are compressed (compression.h).
inline constexpr std::uint16_t frame_compressed = 0x8000;

struct FrameHeader {
  std::uint32_t message_bytes = 0;  ///< multiple of eight
  std::uint32_t bulk_bytes = 0;     ///< without the padding
  std::uint32_t sequence = 0;       ///< number of this frame in its direction, low 32 bits; the first is 1
  std::uint32_t confirmed = 0;      ///< number of the last frame taken from the other direction
  FrameKind kind = FrameKind::control;
  std::uint16_t opcode = 0;   ///< of calls, and of the replies to them
  std::uint32_t thread = 0;   ///< of calls: the client's thread; of replies: the same
  std::uint32_t subject = 0;  ///< of calls: the current context's id, 0 for none; of replies: the call's sequence
  std::uint32_t detail = 0;   ///< of calls: CallFlags; of replies: the CUresult
};
static_assert(sizeof(FrameHeader) == 32);

inline bool is_compressed(const FrameHeader& header) {
  return static_cast<std::uint16_t>(header.kind) & frame_compressed;
}
/// The header that tells of its bulk bytes as they travel, and as they are.
inline void mark_compressed(FrameHeader& header, std::size_t wire_bytes) {
  header.kind = static_cast<FrameKind>(static_cast<std::uint16_t>(header.kind) | frame_compressed);
  header.bulk_bytes = static_cast<std::uint32_t>(wire_bytes);
}
inline void mark_plain(FrameHeader& header, std::size_t bytes) {
  header.kind = static_cast<FrameKind>(static_cast<std::uint16_t>(header.kind) & ~frame_compressed);
  header.bulk_bytes = static_cast<std::uint32_t>(bytes);
}

/// Bits of `detail` in a call.
enum CallFlags : std::uint32_t {
  call_wants_reply = 1u << 0,  ///< the client waits; without it only failures are reported (Control.lateError)
  /// It must not wait for work that is held back, which may wait for what the calling thread does next. Of one that
  /// makes a stream and is not awaited: the stream's work must not wait for what all of its context waits for.
  call_never_held = 1u << 1,
  call_takes_credit = 1u << 2,  ///< room is kept for it at the worker (credit.h)
};

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

/// Throws ProtocolError unless the header's lengths and kind are possible.
/// `message_bytes_max` is smaller for peers that are not known yet.
inline void check_frame_header(const FrameHeader& header, std::size_t message_bytes_max = limits::message_bytes_max) {
  if (header.message_bytes > message_bytes_max || header.message_bytes % 8 != 0) {
    throw ProtocolError("frame with a message of " + std::to_string(header.message_bytes) + " bytes; at most " +
                        std::to_string(message_bytes_max) + " and a multiple of 8 are allowed");
  }
  if (header.bulk_bytes > limits::bulk_bytes_max) {
    throw ProtocolError("frame with " + std::to_string(header.bulk_bytes) + " bulk bytes; at most " +
                        std::to_string(limits::bulk_bytes_max) + " are allowed");
  }
  const auto kind = static_cast<FrameKind>(static_cast<std::uint16_t>(header.kind) & ~frame_compressed);
  if (kind < FrameKind::control || kind > FrameKind::heartbeat || (is_compressed(header) && header.bulk_bytes == 0)) {
    throw ProtocolError("frame of unknown kind " + std::to_string(static_cast<unsigned>(header.kind)));
  }
}

}  // namespace fargpu
