#include "output.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "protocol/program_memory.h"

namespace fargpu::server {

void Output::reply(const CallId& call, CUresult result, std::span<const std::byte> message) {
  FrameHeader header;
  header.kind = FrameKind::reply;
  header.opcode = call.opcode;
  header.thread = call.thread;
  header.subject = call.sequence;
  header.detail = static_cast<std::uint32_t>(result);
  tell_of_lanes();
  push(header, message, {}, {});
}

void Output::data(const CallId& call, std::span<const std::byte> bulk, Release release) {
  FrameHeader header;
  header.kind = FrameKind::data;
  header.opcode = call.opcode;
  header.thread = call.thread;
  header.subject = call.sequence;
  tell_of_lanes();
  push(header, {}, bulk, std::move(release));
}

void Output::tell_of_lanes() {
  const std::uint64_t chunks = lane_chunks_();
  if (std::exchange(told_chunks_, chunks) == chunks) return;
  push_control(
      [&](wire::Control::Builder control) { control.initArriving().setChunks(static_cast<std::uint32_t>(chunks)); }, {},
      {});
}

void Output::confirm() {
  FrameHeader header;
  header.kind = FrameKind::confirm;
  push(header, {}, {}, {});
}

void Output::push(FrameHeader header, std::span<const std::byte> message, std::span<const std::byte> bulk,
                  Release release) {
  constexpr std::size_t copied_bytes_max = 4096;
  header.message_bytes = static_cast<std::uint32_t>(message.size());
  header.bulk_bytes = static_cast<std::uint32_t>(bulk.size());
  header.sequence = ++sequence_;
  header.confirmed = confirmed_;
  const bool copy = bulk.size() <= copied_bytes_max;
  // Small frames share a piece, so that they share a system call.
  if (pieces_.empty() || !pieces_.back().bulk.empty() || pieces_.back().sent > 0) pieces_.emplace_back();
  Piece& piece = pieces_.back();
  const std::size_t before = piece.size();
  const auto append = [&](const void* bytes, std::size_t n) {
    const auto* begin = static_cast<const std::byte*>(bytes);
    piece.head.insert(piece.head.end(), begin, begin + n);
  };
  piece.header_at = piece.head.size();
  append(&header, sizeof(header));
  append(message.data(), message.size());
  const std::size_t padding = padded(bulk.size()) - bulk.size();
  if (copy) {
    append(bulk.data(), bulk.size());
    piece.head.insert(piece.head.end(), padding, std::byte{0});
  } else {
    piece.bulk = bulk;
    piece.padding = padding;
    piece.release = std::move(release);
  }
  waiting_bytes_ += piece.size() - before;
  if (copy && release) release();
}

// The piece is the first, and nothing of it has been sent. Packing takes the executor's time, at most some milliseconds
// for each frame, and in automatic mode less than sending what it saves would take.
void Output::compress(Piece& piece) {
  const auto packed = compressor_.pack(piece.bulk);
  if (packed.empty()) return;
  FrameHeader header;
  std::memcpy(&header, piece.head.data() + piece.header_at, sizeof(header));
  mark_compressed(header, packed.size());
  std::memcpy(piece.head.data() + piece.header_at, &header, sizeof(header));
  waiting_bytes_ -= piece.size();
  piece.bulk = packed;
  piece.padding = padded(packed.size()) - packed.size();
  piece.packed = true;
  waiting_bytes_ += piece.size();
  if (const Release release = std::exchange(piece.release, {})) release();
}

bool Output::pump() {
  static constexpr std::array<std::byte, 8> zeros{};
  bool progress = false;
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    const bool looks = piece.bulk.size() > 0 && !compressor_.idle();
    if (looks && piece.sent == 0 && !piece.waited) {
      compress(piece);
      begun_ = std::chrono::steady_clock::now();
    }
    std::array<Channel::Bytes, 3> parts{Channel::Bytes(piece.head), piece.bulk,
                                        Channel::Bytes(zeros).first(piece.padding)};
    std::size_t skip = piece.sent;
    for (Channel::Bytes& part : parts) {
      const std::size_t step = std::min(skip, part.size());
      part = part.subspan(step);
      skip -= step;
    }
    std::optional<OwnMemory> own;
    if (parts[1].empty()) own.emplace();
    const std::size_t sent = channel_.send_some(parts);
    if (sent == 0) {
      piece.waited = true;
      return progress;
    }
    progress = true;
    piece.sent += sent;
    waiting_bytes_ -= sent;
    if (piece.sent < piece.size()) continue;
    if (looks)
      compressor_.sent(piece.bulk.size(), piece.packed, std::chrono::steady_clock::now() - begun_, piece.waited);
    const Release release = std::move(piece.release);
    pieces_.pop_front();
    if (release) release();
  }
  return progress;
}

}  // namespace fargpu::server
