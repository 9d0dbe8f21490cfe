#pragma once
// What the worker sends: frames in order, without ever waiting for the client to read.

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "call.h"
#include "control.capnp.h"
#include "protocol/channel.h"
#include "protocol/compression.h"
#include "protocol/frame.h"
#include "protocol/message.h"

namespace fargpu::server {

/// Frames gather here until pump() sends them. What they tell of may rest on bytes that went by the lanes before: the
/// client is told to wait for these first. Used by the executor only.
class Output {
 public:
  using Release = std::function<void()>;

  /// `lane_chunks` tells how many chunks have been given to the lanes.
  explicit Output(
      Channel& channel, Compression compression = Compression::never,
      std::function<std::uint64_t()> lane_chunks = [] { return 0; })
      : channel_(channel), compressor_(compression), lane_chunks_(std::move(lane_chunks)) {}

  void reply(const CallId& call, CUresult result, std::span<const std::byte> message);
  /// Bulk bytes of an answer, sent from where they lie; `release` runs when they have left.
  void data(const CallId& call, std::span<const std::byte> bulk, Release release);
  /// A control message, with bulk bytes behind it.
  template <class Fill>
  void control(Fill&& fill, std::span<const std::byte> bulk = {}, Release release = {}) {
    tell_of_lanes();
    push_control(fill, bulk, std::move(release));
  }
  /// One that tells of no work, and that the client need not wait for any bytes to read.
  template <class Fill>
  void control_ahead(Fill&& fill) {
    push_control(fill, {}, {});
  }
  void confirm();

  /// Sends what fits. Returns whether anything left. Throws ChannelClosed.
  bool pump();
  bool empty() const { return pieces_.empty(); }
  std::size_t waiting_bytes() const { return waiting_bytes_; }

  /// Number of the last frame taken from the client: confirmed by every frame that leaves.
  void set_confirmed(std::uint32_t number) { confirmed_ = number; }

 private:
  struct Piece {
    std::vector<std::byte> head;
    std::span<const std::byte> bulk;
    std::size_t padding = 0;
    std::size_t sent = 0;
    std::size_t header_at = 0;  // in the head: of the frame whose bulk bytes these are
    bool packed = false;
    bool waited = false;
    Release release;
    std::size_t size() const { return head.size() + bulk.size() + padding; }
  };
  template <class Fill>
  void push_control(Fill&& fill, std::span<const std::byte> bulk, Release release) {
    MessageWriter writer;
    fill(writer.root<wire::Control>());
    FrameHeader header;
    header.kind = FrameKind::control;
    push(header, writer.finish(), bulk, std::move(release));
  }
  void tell_of_lanes();
  void compress(Piece& piece);
  void push(FrameHeader header, std::span<const std::byte> message, std::span<const std::byte> bulk, Release release);

  Channel& channel_;
  Compressor compressor_;
  const std::function<std::uint64_t()> lane_chunks_;
  std::uint64_t told_chunks_ = 0;
  std::chrono::steady_clock::time_point begun_{};  // sending the first piece
  std::deque<Piece> pieces_;
  std::size_t waiting_bytes_ = 0;
  std::uint32_t sequence_ = 1;  // attachAnswer was the first frame
  std::uint32_t confirmed_ = 0;
};

}  // namespace fargpu::server
