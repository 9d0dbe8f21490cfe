#pragma once
// Takes frames out of a channel, with bulk bytes landing where the receiver wants them.

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "channel.h"
#include "compression.h"
#include "frame.h"

namespace fargpu {

/// What a receiver does with frames. All calls come from the thread that pumps.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  /// Where the bulk bytes of this frame shall lie: exactly header.bulk_bytes, or nothing if there is no room now; then
  /// nothing further is read until a later pump() finds room. Called once per frame with bulk bytes, again only after
  /// "no room". Handlers see compressed frames as if they were not.
  virtual std::optional<std::span<std::byte>> place(const FrameHeader& header, std::span<const std::byte> message) = 0;

  /// A complete frame. The message is valid during the call; the bulk bytes are those that place() gave.
  virtual void take(const FrameHeader& header, std::span<const std::byte> message, std::span<std::byte> bulk) = 0;

  /// While calls are held: whether this one is. Asked again at each pump.
  virtual bool holds(const FrameHeader& header, std::span<const std::byte> message);
};

/// Owned and used by one thread at a time.
class FrameReader {
 public:
  /// `frames_before` were taken from the channel already, by other means.
  FrameReader(Channel& channel, FrameHandler& handler, std::uint64_t frames_before);

  /// Handles what is there without waiting, at most `frames_max` frames, so that the caller can look after other things
  /// in between. Returns whether anything was received or handled; if so, there may be more. Throws ChannelClosed,
  /// ProtocolError, and whatever the handler throws.
  bool pump(unsigned frames_max = 32);

  /// Frames taken so far, those before included.
  std::uint64_t frames() const { return frames_; }
  /// How much has come behind the frame that is being handled.
  std::size_t waiting_bytes() const { return end_ - begin_; }
  /// Bytes on the wire of the frame that the handler is given.
  std::size_t wire_bytes() const { return wire_bytes_; }
  /// The place of that frame's bulk bytes could not be written (EFAULT), and does not hold them.
  bool spoiled() const { return spoiled_; }
  /// From now on, calls that the handler holds are not handed on. While one waits, what is behind it waits too.
  void hold_calls(bool held) { holds_calls_ = held; }
  /// Whether a frame is being handled whose bulk bytes have their place already.
  bool in_frame() const { return bulk_.has_value(); }
  /// True if the last pump stopped because place() had no room, or at a call that is held.
  bool blocked() const { return blocked_; }

 private:
  bool step();
  bool read_head(FrameHeader& header);
  void begin_bulk(const FrameHeader& header, std::span<const std::byte> message);
  void unpack_bulk(FrameHeader& header, std::span<const std::byte> message);
  void move_to_front();
  std::size_t receive_missing();
  void unpack(std::span<std::byte> place);
  std::span<const std::byte> buffered() const { return std::span(buffer_).subspan(begin_, end_ - begin_); }

  Channel& channel_;
  FrameHandler& handler_;
  std::vector<std::byte> buffer_;  // operator new aligns it well enough for messages read in place
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t frames_;
  bool blocked_ = false;
  bool holds_calls_ = false;
  // Set while the bulk bytes of the frame at begin_ are arriving, straight into their place. The padding behind them
  // goes into `padding_`, so that what follows in the buffer stays aligned.
  std::optional<std::span<std::byte>> bulk_;
  std::span<std::byte> missing_;
  std::vector<std::byte> nowhere_;  // for those whose place cannot be written
  bool spoiled_ = false;
  std::array<std::byte, 8> padding_{};
  std::size_t padding_missing_ = 0;
  bool direct_ = false;  // the frame's bulk bytes did not (all) come through the buffer
  std::size_t wire_bytes_ = 0;
  // The bulk bytes of a compressed frame arrive here, before they are unpacked into their place.
  std::vector<std::byte> packed_;
  Decompressor decompressor_;
};

}  // namespace fargpu
